"""Language models in use: probabilities against sums over all words, next words, and the verbs of every model."""

import gzip
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import Vocabulary, encode, read_coded
from structsparse.corpora.text_reading import END, START, UNKNOWN, TextReading
from structsparse.tasks.lm.artifact import save
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.lm.predictor import LanguageModel
from tests.support.language_models import SIGNS, DenseModel, model_of, sentences


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    order=st.integers(1, 5),
    alpha=st.sampled_from([0.5, 1.0, 1.2]),
    base=st.booleans(),
    signs=st.sampled_from([*SIGNS]),
    dead=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_log_probabilities_equal_a_softmax_over_all_words(seed, order, alpha, base, signs, dead):
    model = model_of(seed, order, alpha, base, signs, dead)
    texts = sentences(seed + 1, 5, 12)  # with unknown words
    expected = [value for sentence in texts for value in DenseModel(model).log_probabilities(sentence)]
    np.testing.assert_allclose(model.log_probabilities(model.encode(texts)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [20.0, 60.0, 3000.0])
def test_masses_that_cancel_or_overflow_are_summed_again(size):
    """If a context forbids nearly all words that are likely above it, a difference has no correct digit."""
    model = model_of(3, 4, signs="signed", dead=0.2, size=size)
    dense = DenseModel(model)
    for node in range(model.trie.nodes):
        scores = dense.scores([[*dense.words, START][code] for code in model.trie.context(node)]).values()
        expected = max(scores) + math.log(math.fsum(math.exp(score - max(scores)) for score in scores))
        assert model.log_z[node] == pytest.approx(expected, rel=1e-12, abs=1e-11)


def test_small_losses_of_mass_add_up():
    """Every context forbids the likely words above it: a thousandth of the mass remains at each level."""
    words = [f"w{k}" for k in range(6)]
    tree = ContextTree.build(encode([["c"] * 5 + [word] for word in words]), 6)
    codes, names = tree.vocabulary.codes, tree.vocabulary.words
    base = np.array([-7.0 * words.index(word) if word in words else -100.0 for word in names])
    forbidden = np.array([codes[f"w{depth - 1}"] for depth in range(1, 6)])
    depth = tree.depth[tree.entry_node]
    weights = np.where((depth > 0) & (tree.entry_word == forbidden[depth - 1]), -50.0, 0.0)
    model = LanguageModel.of(tree, weights, base=base)
    for length in range(6):
        context = ["c"] * length
        assert model.log_z[model.trie.path([codes["c"]] * length)[-1]] == pytest.approx(-7 * length, abs=0.01)
        expected = DenseModel(model).probabilities(context)
        np.testing.assert_allclose(model.distribution(context), [expected[word] for word in names], rtol=1e-10)


def test_the_predictor_equals_the_trained_model():
    text = encode(sentences(5))
    trained = NgramModel(ContextTree.build(text, 4), alpha=0.8, base="unigram").double()
    with torch.no_grad():
        trained.table.copy_(torch.rand(trained.table.shape) * (torch.rand(trained.table.shape) < 0.5))
    model = LanguageModel.of(trained.tree, trained.table.detach(), trained.alpha, trained.base)
    test = model.encode(sentences(6, 20, 12))
    expected = trained.log_probabilities(trained.tree.locate(test)).numpy()
    np.testing.assert_allclose(model.log_probabilities(test), expected, rtol=0, atol=1e-10)


def test_a_collapsed_tree_is_refused():
    tree = ContextTree.build(encode(sentences(5)), 4, collapse=True)
    with pytest.raises(UserError, match="made from a trie"):
        LanguageModel.of(tree, np.zeros(tree.entries))


def test_a_text_in_other_codes_is_refused():
    model = model_of()
    other = encode([["elsewhere"]])
    with pytest.raises(UserError, match="coded for another model"):
        model.log_probabilities(other)
    same = encode([["w1"]], Vocabulary(model.vocabulary.words))
    assert len(model.log_probabilities(same)) == 2


def test_perplexity_over_known_words_and_over_all():
    model = model_of()
    dense = DenseModel(model)
    texts = [["w0", "strange", "w1"], ["w2", UNKNOWN]]
    known = [[True, False, True, True], [True, True, True]]
    values = [dense.log_probabilities(sentence) for sentence in texts]
    of_known = [v for vs, ks in zip(values, known, strict=True) for v, k in zip(vs, ks, strict=True) if k]
    figures = model.evaluate(texts)
    assert figures["perplexity"] == pytest.approx(math.exp(-np.mean(of_known)), rel=1e-12)
    assert figures["perplexity_open"] == pytest.approx(math.exp(-np.mean(sum(values, []))), rel=1e-12)
    assert (figures["targets"], figures["unknown"]) == (6, 1)


# --- the verbs of every model


def test_predict_scores_texts_sentences_and_files_alike(tmp_path):
    model, words = model_of(2), [["w0", "strange", "w1"], ["w2"]]
    expected = [DenseModel(model).log_probabilities(sentence) for sentence in words]
    (tmp_path / "text").write_text("w0 strange w1\n\nw2\n")
    (tmp_path / "zipped").write_bytes(gzip.compress(b"w0 strange w1\nw2\n"))
    for texts in (words, [" ".join(sentence) for sentence in words], tmp_path / "text", tmp_path / "zipped"):
        result = model.predict(texts)
        assert [[word.word for word in text] for text in result] == [["w0", "strange", "w1", END], ["w2", END]]
        assert [[word.known for word in text] for text in result] == [[True, False, True, True], [True, True]]
        for text, values in zip(result, expected, strict=True):
            assert [word.log_probability for word in text] == pytest.approx(values, abs=1e-10)
    (both,) = model.predict("w0 strange w1\nw2")  # one text of two sentences
    assert [word.word for word in both] == ["w0", "strange", "w1", END, "w2", END]
    assert model.predict(["", "w2"]) == [[], model.predict("w2")[0]]


def test_nbest_are_the_next_words():
    model = model_of(2)
    assert model.nbest(["w0 w1", ["<s>"]], 3) == [model.next_words("w0 w1", 3), model.next_words("<s>", 3)]
    assert model.nbest("w0", 2) == [model.next_words("w0", 2)]


def test_evaluate_reads_files_and_texts(tmp_path):
    model, words = model_of(2), sentences(5, 20, 12)
    (tmp_path / "text").write_text("\n".join(map(" ".join, words)) + "\n")
    figures = model.evaluate(words)
    assert (figures["sentences"], figures["tokens"]) == (20, sum(len(sentence) + 1 for sentence in words))
    for source in (tmp_path / "text", str(tmp_path / "text"), [" ".join(sentence) for sentence in words]):
        assert model.evaluate(source) == pytest.approx(figures)


def test_what_a_language_model_cannot_answer_is_refused_with_the_reason(tmp_path):
    model = model_of()
    with pytest.raises(UserError, match="a language model has no marginals"):
        model.marginals("w0")
    with pytest.raises(UserError, match="not after a file"):
        model.nbest(tmp_path / "text")
    for texts in (3, [3], [["w0", 3]], [None], b"w0"):
        with pytest.raises(UserError, match=r"reads texts \(str\) or sentences \(lists of words\), got"):
            model.predict(texts)
    with pytest.raises(UserError, match="got 3"):
        model.nbest([3])
    with pytest.raises(UserError, match="nowhere: no such file"):
        model.evaluate("nowhere")


# --- next words


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize(
    "context", ["", "w0", "w1 w0", "<s>", "<s> w0 w1", "w5 nothing w1", "w1 <s> w0", "w0 w0 w0 w1 w0"]
)
def test_the_distribution_equals_that_of_the_definition(context, signs):
    model = model_of(2, signs=signs)
    dense = DenseModel(model).probabilities(
        [w if w in (*model.vocabulary.words, START) else UNKNOWN for w in context.split()]
    )
    distribution = model.distribution(context)
    np.testing.assert_allclose(distribution, [dense[word] for word in model.vocabulary.words], atol=1e-12)
    assert distribution.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(model.distribution(context.split()), distribution)


def test_next_words_are_the_most_probable_with_their_reasons():
    model = model_of(2)
    dense = DenseModel(model)
    for context in (["w1", "w0"], [START, "w0"], [UNKNOWN]):
        probabilities = dense.probabilities(context)
        best = model.next_words(context, 5)
        assert [word.probability for word in best] == pytest.approx(sorted(probabilities.values(), reverse=True)[:5])
        for word in best:
            parts = {part.context: part.weight for part in word.parts}
            suffixes = [tuple(context[k:]) for k in reversed(range(len(context) + 1))]
            expected = {c: dense.weights[c, word.word] for c in suffixes if dense.weights.get((c, word.word))}
            expected[()] = dense.weights[(), word.word] + dense.base[word.word]
            assert word.probability == pytest.approx(probabilities[word.word])
            assert parts == pytest.approx(expected)
            assert [*parts] == [c for c in suffixes if c in expected]  # from the empty context on
    assert any(len(word.parts) > 2 for word in model.next_words("w1 w0", 9))


def test_more_next_words_than_the_vocabulary_has():
    model = model_of()
    assert {word.word for word in model.next_words("w0", 10**6)} == {*model.vocabulary.words}
    with pytest.raises(UserError, match="the 0 most probable words"):
        model.next_words("w0", 0)


def test_contexts_are_read_as_the_training_text_was():
    model = replace(model_of(2), reading=TextReading(tokens="words", lower=True))
    np.testing.assert_array_equal(model.distribution("W1, W0"), model.distribution(["w1", ",", "w0"]))
    assert model.unknown_words("<s> W1, W0 W99") == [",", "w99"]
    assert model.unknown_words("W99 </s> W1") == []  # another sentence begins there


def test_contexts_are_the_living_contexts():
    model = model_of(2, base=False)
    weights = {(c.words, word): weight for c in model.contexts() for word, weight in c.weights.items()}
    assert weights == pytest.approx({key: weight for key, weight in DenseModel(model).weights.items() if weight})
    lengths = [len(context.words) for context in model.contexts()]
    assert lengths == sorted(lengths)


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
@pytest.mark.parametrize("signs", SIGNS)
def test_probabilities_after_contexts_of_real_text_sum_to_1(signs, tmp_path):
    """Contexts of a text of 70,000 words, and longer contexts of another text."""
    paths = locate("ptb")
    coded = read_coded(paths["dev"], TextReading())
    tree = ContextTree.build(coded.text(coded.vocabulary()), 6)
    generator = np.random.default_rng(0)
    table = generator.uniform(*SIGNS[signs], tree.entries) * (generator.random(tree.entries) < 0.5)
    save(tmp_path / "model", LanguageModel.of(tree, table, 1.5))
    model = load(tmp_path / "model")
    sums = [np.exp(model.trie.after(node, model.scores) - z).sum() for node, z in enumerate(model.log_z[:200])]
    for node in generator.choice(model.trie.nodes, 300, replace=False):
        sums.append(np.exp(model.trie.after(node, model.scores) - model.log_z[node]).sum())
    lines = paths["test"].read_text().splitlines()
    for line in generator.choice(lines, 100):
        sums.append(model.distribution(["<s>", *line.split()[: generator.integers(12)]]).sum())
    np.testing.assert_allclose(sums, 1, rtol=0, atol=1e-9)
