"""Counts of co-occurrences against a loop over all pairs of words, by any number of threads; associations."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.features import cooccurrences
from structsparse.features.cooccurrences import Window, associations, count

WORDS = 60


def text(tokens: int = 3000, seed: int = 0) -> np.ndarray:
    """Random codes, small ones more often; some words are not counted, and some positions end a sentence."""
    rng = np.random.default_rng(seed)
    codes = (WORDS * rng.random(tokens) ** 2).astype(np.int32)
    codes[rng.random(tokens) < 0.05] = -1
    codes[rng.random(tokens) < 0.08] = -2
    return codes


def slow_counts(codes: np.ndarray, window: Window) -> np.ndarray:
    """A dictionary of pairs in both orders, sentence by sentence, in exact fractions."""
    counts, sentence = Counter(), []
    share = {
        "none": lambda d: Fraction(1),
        "linear": lambda d: Fraction(window.size + 1 - d, window.size),
        "harmonic": lambda d: Fraction(1, d),
    }[window.weighting]
    for code in [*codes.tolist(), -2]:
        if code != -2:
            sentence.append(code)
            continue
        for i, a in enumerate(sentence):
            for j, b in enumerate(sentence):
                if i != j and abs(i - j) <= window.size and a >= 0 and b >= 0:
                    counts[a, b] += share(abs(i - j))
        sentence = []
    table = np.zeros((WORDS, WORDS))
    for pair, value in counts.items():
        table[pair] = value
    return table


@pytest.fixture(params=[5, 4096])
def _frequent(request, monkeypatch):
    """Some pairs, or all, are counted in the square array."""
    monkeypatch.setattr(cooccurrences, "FREQUENT", request.param)


@pytest.mark.usefixtures("_frequent")
@pytest.mark.parametrize("weighting", cooccurrences.WEIGHTINGS)
@pytest.mark.parametrize("size", [1, 5])
def test_counts_are_those_of_a_loop(size, weighting, monkeypatch):
    monkeypatch.setattr(cooccurrences, "CHUNK", 700)
    window = Window(size, weighting)
    found = count(text(), WORDS, window)
    np.testing.assert_allclose(found.matrix.toarray() / found.scale, slow_counts(text(), window), rtol=1e-14)
    assert found.matrix.has_sorted_indices
    assert (found.matrix.data > 0).all()


@pytest.fixture
def set_threads(monkeypatch):
    """Count with a number of threads, whatever the machine has."""
    return lambda number: monkeypatch.setattr(cooccurrences.numba, "get_num_threads", lambda: number)


@pytest.mark.parametrize("weighting", ["none", "linear"])
def test_any_number_of_threads_counts_the_same(weighting, set_threads, monkeypatch):
    monkeypatch.setattr(cooccurrences, "FREQUENT", 5)
    monkeypatch.setattr(cooccurrences, "CHUNK", 700)
    window, results = Window(4, weighting), []
    for number in (1, 2, 3, 7):
        set_threads(number)
        results.append(count(text(), WORDS, window))
    for found in results:
        same(found.matrix, results[0].matrix)
    np.testing.assert_allclose(results[1].matrix.toarray() / results[1].scale, slow_counts(text(), window), rtol=1e-14)


def test_a_text_too_long_for_its_counters_is_counted_in_parts(monkeypatch):
    window, codes = Window(3), text(500)
    expected = count(codes, WORDS, window)
    monkeypatch.setattr(cooccurrences, "_FEW", 1)
    monkeypatch.setattr(cooccurrences, "_LARGEST", 127)
    same(count(codes, WORDS, window).matrix, expected.matrix)


def test_weights_of_a_large_window_have_large_counters():
    window = Window(20, "harmonic")
    found = count(text(300), WORDS, window)
    np.testing.assert_allclose(found.matrix.toarray() / found.scale, slow_counts(text(300), window), rtol=1e-12)


def same(found: sparse.csr_array, expected: sparse.csr_array) -> None:
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype


def test_a_text_without_pairs_has_an_empty_matrix():
    for codes in ([3, -2, 4, -2, -1, -2], [], [0]):
        found = count(np.array(codes, np.int32), WORDS, Window())
        assert found.matrix.nnz == 0
        assert associations(found).nnz == 0


@pytest.mark.parametrize("smoothing", [1.0, 0.75])
@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_associations_are_those_of_the_formula(smoothing, shift, monkeypatch):
    monkeypatch.setattr(cooccurrences, "_BLOCK", 333)
    counted = count(text(), WORDS, Window(3, "linear"))
    table = slow_counts(text(), Window(3, "linear"))
    words = table.sum(1) / table.sum()
    contexts = table.sum(0) ** smoothing / (table.sum(0) ** smoothing).sum()
    with np.errstate(divide="ignore"):
        pmi = np.log(table / table.sum() / np.outer(words, contexts)) - np.log(shift)
    expected = np.where(table > 0, pmi, 0.0)
    np.testing.assert_allclose(associations(counted, "pmi", smoothing, shift).toarray(), expected, atol=1e-6)
    positive = associations(counted, "ppmi", smoothing, shift)
    np.testing.assert_allclose(positive.toarray(), np.maximum(expected, 0), atol=1e-6)
    assert (positive.data > 0).all()
    np.testing.assert_allclose(associations(counted, "log_count").toarray(), np.log1p(table), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "features.window is 0"),
        (lambda: Window(5, "square"), "features.weighting is square, expected one of none"),
        (lambda: associations(count(text(), WORDS, Window()), "lmi"), "features.association is lmi"),
        (lambda: associations(count(text(), WORDS, Window()), "pmi", 0.0), "features.smoothing is 0.0"),
    ],
)
def test_bad_options_get_one_sentence(make, message):
    with pytest.raises(UserError, match=message):
        make()
