"""Kneser-Ney against a scalar twin of n-gram dictionaries, sums over the vocabulary, and the results of kenlm."""

import math
import os
from collections import Counter, defaultdict

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import Vocabulary, encode
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.kneser_ney import FALLBACK, KneserNey, discounts_of
from structsparse.tasks.lm.predictor import LanguageModel
from tests.support.language_models import DenseModel


class ScalarKneserNey:
    """Kneser-Ney by its definition, n-gram by n-gram, from padded sentences of words."""

    def __init__(self, sentences, vocabulary, order, modified):
        self.words, self.order = vocabulary, order
        padded = [["<s>", *sentence, "</s>"] for sentence in sentences]
        self.counts = []  # by length: {context: {word: adjusted count}}
        for size in range(1, order + 1):
            tokens, lefts = Counter(), defaultdict(set)
            for sentence in padded:
                for end in range(max(size, 2), len(sentence) + 1):  # a start is never predicted
                    gram = tuple(sentence[end - size : end])
                    tokens[gram] += 1
                    if end > size:
                        lefts[gram].add(sentence[end - size - 1])
            table = defaultdict(dict)
            for gram, count in tokens.items():
                raw = size == order or gram[0] == "<s>"
                table[gram[:-1]][gram[-1]] = count if raw else len(lefts[gram])
            self.counts.append(table)
        self.discounts = [self.discount(table, modified) for table in self.counts]

    @staticmethod
    def discount(table, modified):
        """The discounts of counts 1, 2, 3 or more."""
        counts = Counter(count for words in table.values() for count in words.values())
        n1, n2, n3, n4 = (counts[i] for i in range(1, 5))
        if not modified:
            one = n1 / (n1 + 2 * n2) if n1 else 0.5
            return {1: one, 2: one, 3: one}
        y = n1 / (n1 + 2 * n2) if n1 else math.nan
        d = {
            i: i - (i + 1) * y * b / a if a else math.nan for i, (a, b) in enumerate(((n1, n2), (n2, n3), (n3, n4)), 1)
        }
        return d if all(0 < d[i] <= i for i in d) else dict(zip((1, 2, 3), FALLBACK, strict=True))

    def probability(self, word, context):
        """The probability of a word after a tuple of at most order - 1 words."""
        shorter = self.probability(word, context[1:]) if context else 1 / len(self.words)
        table, discounts = self.counts[len(context)].get(context), self.discounts[len(context)]
        if not table:
            return shorter
        freed = sum(discounts[min(count, 3)] for count in table.values())
        count = table.get(word, 0)
        return (count - (discounts[min(count, 3)] if count else 0) + freed * shorter) / sum(table.values())

    def text(self, sentences):
        """The log-probabilities of all words and sentence ends."""
        values = []
        for sentence in sentences:
            padded = ["<s>", *(word if word in self.words else "<unk>" for word in sentence), "</s>"]
            for place in range(1, len(padded)):
                context = tuple(padded[max(0, place - self.order + 1) : place])
                values.append(math.log(self.probability(padded[place], context)))
        return np.array(values)


def sentences_of(seed: int, count: int, words: int = 12) -> list[list[str]]:
    """Random sentences with very different word frequencies and repeated phrases."""
    draw, shares = np.random.default_rng(seed), 1 / np.arange(1, words + 1) ** 1.3
    phrases = [
        [f"w{k}" for k in draw.choice(words, draw.integers(1, 6), p=shares / shares.sum())] for _ in range(count // 3)
    ]
    return [
        [word for k in draw.integers(len(phrases), size=draw.integers(1, 4)) for word in phrases[k]]
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def large():
    """A training text, a test text with other words and contexts, and the trie."""
    train, other = sentences_of(0, 150, 40), sentences_of(1, 40, 50)
    text = encode(train)
    return train, other, text, encode(other, text.vocabulary), ContextTree.build(text, 6)


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_every_order_equals_the_scalar_twin(large, order, modified):
    train, other, text, scored, tree = large
    model, twin = KneserNey(tree, order, modified), ScalarKneserNey(train, text.vocabulary.words, order, modified)
    assert np.allclose(model.log_probabilities(scored), twin.text(other), rtol=0, atol=1e-9)
    assert np.allclose(model.log_probabilities(text), twin.text(train), rtol=0, atol=1e-9)
    assert np.array_equal(model.log_probabilities(tree.locate(scored)), model.log_probabilities(scored))


@pytest.mark.parametrize("modified", [False, True])
def test_small_texts_equal_the_scalar_twin(modified):
    """In these some classes of counts are empty."""
    fallbacks = 0
    for seed in range(12):
        train, other = sentences_of(seed, 3 + seed, 5), sentences_of(100 + seed, 6, 7)
        text = encode(train)
        tree = ContextTree.build(text, 5)
        model, twin = KneserNey(tree, modified=modified), ScalarKneserNey(train, text.vocabulary.words, 5, modified)
        fallbacks += sum(np.array_equal(discounts[1:], FALLBACK) for discounts in model.discounts)
        values = model.log_probabilities(encode(other, text.vocabulary))
        assert np.isfinite(values).all()
        assert np.allclose(values, twin.text(other), rtol=0, atol=1e-9)
    assert fallbacks > 0 or not modified


@pytest.mark.parametrize("modified", [False, True])
def test_distributions_sum_to_one_and_have_the_probabilities_of_the_targets(large, modified):
    _, _, _, scored, tree = large
    for order in (1, 3, 6):
        model, places = KneserNey(tree, order, modified), tree.locate(scored)
        every = np.array([model.distribution(node) for node in range(tree.nodes)])
        assert every.shape == (tree.nodes, tree.words)
        assert (every > 0).all()
        assert np.abs(every.sum(1) - 1).max() < 1e-12
        expected = every[places.node, scored.codes[scored.targets]]
        assert np.allclose(model.log_probabilities(places), np.log(expected), rtol=0, atol=1e-12)


def test_a_lower_order_is_that_of_a_tree_of_that_order(large):
    _, _, text, scored, tree = large
    for order in (1, 2, 4):
        small = KneserNey(ContextTree.build(text, order))
        cut = KneserNey(tree, order)
        assert (cut.entries, cut.nodes) == (small.tree.entries, small.tree.nodes)
        assert np.array_equal(cut.log_probabilities(scored), small.log_probabilities(scored))


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("order", [1, 2, 6])
def test_a_log_linear_model_has_the_same_probabilities(modified, order):
    """Its normalisers are sums over the vocabulary, see DenseModel; the probabilities are those of the scalar twin."""
    train, other = sentences_of(0, 40, 12), sentences_of(1, 12, 15)
    text = encode(train)
    tree = ContextTree.build(text, order)
    model = LanguageModel.of(tree, KneserNey(tree, modified=modified).increments)
    twin, dense = ScalarKneserNey(train, text.vocabulary.words, order, modified), DenseModel(model)
    expected = twin.text(other)
    assert np.allclose(model.log_probabilities(encode(other, text.vocabulary)), expected, rtol=0, atol=1e-9)
    values = np.concatenate([dense.log_probabilities(sentence) for sentence in other])
    assert np.allclose(values, expected, rtol=0, atol=1e-9)


def test_places_are_not_modified(large):
    _, _, _, scored, tree = large
    places = tree.locate(scored)
    before = places.node.copy(), places.entry.copy()
    KneserNey(tree, 2).log_probabilities(places)
    assert np.array_equal(places.node, before[0])
    assert np.array_equal(places.entry, before[1])


def test_discounts_are_those_of_chen_and_goodman():
    counts = np.repeat([0, 1, 2, 3, 4, 9], [5, 400, 120, 60, 30, 7])
    y = 400 / (400 + 2 * 120)
    assert discounts_of(counts, False) == pytest.approx([0, y, y, y])
    assert discounts_of(counts, True) == pytest.approx([0, y, 2 - 3 * y * 60 / 120, 3 - 4 * y * 30 / 60])


@pytest.mark.parametrize("counts", [[5], [1, 1, 3, 4], [2, 3, 4], [1, 2, 4], [1, 2, 3, 3, 3, 3, 3, 3]])
def test_discounts_fall_back_if_a_class_is_empty_or_the_formulas_leave_their_range(counts):
    assert discounts_of(np.array(counts), True).tolist() == [0, *FALLBACK]


def test_without_singletons_unseen_words_still_have_mass():
    assert discounts_of(np.array([2, 2, 3]), False).tolist() == [0, 0.5, 0.5, 0.5]


def test_wrong_orders_and_collapsed_trees_are_refused(large):
    _, _, text, _, tree = large
    with pytest.raises(UserError, match="order 7 of Kneser-Ney: expected 1 to 6"):
        KneserNey(tree, 7)
    with pytest.raises(UserError, match="trie, not a collapsed tree"):
        KneserNey(ContextTree.build(text, 3, collapse=True))


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
def test_ptb_equals_kenlm():
    """lmplz trained on the first 100,000 words of ptb.train (to the end of the sentence), scored on 20,000 more.

    It has one more unknown word in the uniform distribution, and its results have single precision."""
    lines = [line.split() for line in locate("ptb")["train"].read_text().splitlines()]
    words = np.cumsum([len(line) for line in lines])
    middle = int(np.searchsorted(words, 100_000)) + 1
    end = int(np.searchsorted(words, words[middle - 1] + 20_000)) + 1
    *words_seen, last = encode(lines[:middle]).vocabulary.words
    train = encode(lines[:middle], Vocabulary((*words_seen, "<never seen>", last)))
    scored = encode(lines[middle:end], train.vocabulary)
    known, tree = scored.known[scored.targets], ContextTree.build(train, 5)
    assert known.sum() == 20_050
    for order, kenlm, ours in ((3, 257.3297806, 257.3297759), (5, 252.9209623, 252.9209639)):
        perplexity = math.exp(-KneserNey(tree, order).log_probabilities(scored)[known].mean())
        assert perplexity == pytest.approx(kenlm, rel=3e-8)
        assert perplexity == pytest.approx(ours, abs=1e-7)
