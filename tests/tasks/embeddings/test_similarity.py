"""Evaluation of word vectors against scipy and against answers that are known by construction."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import spearmanr

from structsparse.corpora.known.word_sets import Analogies, Completion, WordPairs
from structsparse.tasks.embeddings.similarity import analogies, completion_answers, similarity, spearman, unit_rows


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_is_that_of_scipy(seed):
    rng = np.random.default_rng(seed)
    left, right = rng.integers(0, 6, 40).astype(float), rng.normal(size=40)  # with equal numbers
    assert spearman(left, right + left) == pytest.approx(spearmanr(left, right + left).statistic)
    assert np.isnan(spearman(left, np.ones(40)))


@pytest.mark.parametrize("seed", range(3))
def test_rank_correlations_of_resampled_pairs_are_those_of_repeated_pairs(seed):
    rng = np.random.default_rng(seed)
    left, right = rng.integers(0, 9, 30).astype(float), rng.normal(size=30).round(1)
    counts = rng.multinomial(30, np.full(30, 1 / 30), 20)
    expected = [spearmanr(np.repeat(left, times), np.repeat(right, times)).statistic for times in counts]
    np.testing.assert_allclose(spearman(left, right, counts), expected)


def test_sparse_vectors_are_evaluated_like_dense_ones():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(30, 9)) * (rng.random((30, 9)) < 0.5)).astype(np.float32)
    vectors[4] = 0
    dense, thin = unit_rows(vectors), unit_rows(sparse.csr_array(vectors))
    np.testing.assert_allclose(thin.toarray(), dense, rtol=1e-6)
    codes = {f"w{k}": k for k in range(30)}
    pairs = WordPairs("set", tuple((f"w{k}", f"w{k + 7}", float(k % 5)) for k in range(20)))
    assert similarity(thin, codes, pairs) == similarity(dense, codes, pairs)
    asked = Analogies("test", {"semantic": tuple(tuple(f"w{k + j}" for j in range(4)) for k in range(20))})
    assert analogies(thin, codes, asked) == analogies(dense, codes, asked)


def test_similarity_is_of_pairs_with_known_words():
    vectors = np.array([[1, 0], [1, 1], [0, 1], [-1, 0], [0, 0]], np.float32)
    codes = {word: k for k, word in enumerate(("cat", "dog", "old", "new", "zero"))}
    pairs = WordPairs("set", (("cat", "Dog", 9.0), ("cat", "old", 5.0), ("cat", "new", 1.0), ("cat", "unknown", 9.9)))
    score = similarity(unit_rows(vectors), codes, pairs)
    assert score == (pytest.approx(1.0), 3, 4)
    reversed_scores = WordPairs("set", tuple((a, b, -s) for a, b, s in pairs.pairs))
    assert similarity(unit_rows(vectors), codes, reversed_scores).spearman == pytest.approx(-1.0)
    nothing = similarity(unit_rows(vectors), codes, WordPairs("set", (("x", "y", 1.0), ("cat", "dog", 2.0))))
    assert np.isnan(nothing.spearman)
    assert nothing[1:] == (1, 2)


def test_analogies_leave_out_the_words_asked_about():
    words = "man woman king queen apple".split()
    vectors = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0, 0]], np.float32)
    codes = {word: k for k, word in enumerate(words)}
    asked = {"semantic": (("man", "woman", "king", "queen"), ("man", "king", "woman", "apple"), ("a", "b", "c", "d"))}
    found = analogies(unit_rows(vectors), codes, Analogies("test", {**asked, "syntactic": ()}))
    assert found["semantic"] == (0.5, 2, 3)
    assert np.isnan(found["syntactic"].accuracy)


def test_a_sentence_is_completed_by_the_option_nearest_to_its_words():
    words = {word: k for k, word in enumerate(("cold", "ice", "snow", "warm", "fire", "sun"))}
    vectors = unit_rows(np.array([[1, 0], [1, 0.1], [0.9, 0.2], [0, 1], [0.1, 1], [0.2, 0.9]], np.float32))
    questions = (
        Completion(("the", "Cold", "ice"), ("fire", "snow", "sun"), 1),
        Completion(("warm", "fire"), ("ice", "sun", "snow"), 2),
        Completion(("warm",), ("fire", "unknown", "snow"), 0),
        Completion(("nothing", "known"), ("fire", "ice", "snow"), 0),
    )
    found = completion_answers(vectors, words, questions)
    assert found.known.tolist() == [True, True, False, False]
    assert found.values.tolist() == [1, 0, 0, 0]
