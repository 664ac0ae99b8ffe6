"""Kneser-Ney against a scalar twin of n-gram dictionaries, sums over the vocabulary and the numbers of kenlm."""

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


class Scalar:
    """The same from the definition, n-gram by n-gram, of padded sentences of words."""

    def __init__(self, sentences, vocabulary, order, modified):
        self.words, self.order = vocabulary, order
        padded = [["<s>", *sentence, "</s>"] for sentence in sentences]
        self.counts = []  # of each length, {context: {word: adjusted count}}
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
        found = Counter(count for words in table.values() for count in words.values())
        n1, n2, n3, n4 = (found[i] for i in range(1, 5))
        if not modified:
            one = n1 / (n1 + 2 * n2) if n1 else 0.5
            return {1: one, 2: one, 3: one}
        y = n1 / (n1 + 2 * n2) if n1 else math.nan
        d = {
            i: i - (i + 1) * y * b / a if a else math.nan for i, (a, b) in enumerate(((n1, n2), (n2, n3), (n3, n4)), 1)
        }
        return d if all(0 < d[i] <= i for i in d) else dict(zip((1, 2, 3), FALLBACK, strict=True))

    def probability(self, word, context):
        """Of a word after a tuple of at most order - 1 words."""
        shorter = self.probability(word, context[1:]) if context else 1 / len(self.words)
        table, discounts = self.counts[len(context)].get(context), self.discounts[len(context)]
        if not table:
            return shorter
        freed = sum(discounts[min(count, 3)] for count in table.values())
        count = table.get(word, 0)
        return (count - (discounts[min(count, 3)] if count else 0) + freed * shorter) / sum(table.values())

    def text(self, sentences):
        found = []
        for sentence in sentences:
            padded = ["<s>", *(word if word in self.words else "<unk>" for word in sentence), "</s>"]
            for place in range(1, len(padded)):
                context = tuple(padded[max(0, place - self.order + 1) : place])
                found.append(math.log(self.probability(padded[place], context)))
        return np.array(found)


def sentences_of(seed: int, count: int, words: int = 12) -> list[list[str]]:
    """Words of very unlike frequencies, and sentences that repeat parts of one another."""
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
    """A text, a text to be scored that has words and contexts of its own, and the trie."""
    train, other = sentences_of(0, 150, 40), sentences_of(1, 40, 50)
    text = encode(train)
    return train, other, text, encode(other, text.vocabulary), ContextTree.build(text, 6)


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_every_order_equals_the_scalar_twin(large, order, modified):
    train, other, text, scored, tree = large
    model, twin = KneserNey(tree, order, modified), Scalar(train, text.vocabulary.words, order, modified)
    assert np.allclose(model.log_probabilities(scored), twin.text(other), rtol=0, atol=1e-9)
    assert np.allclose(model.log_probabilities(text), twin.text(train), rtol=0, atol=1e-9)
    assert np.array_equal(model.log_probabilities(tree.locate(scored)), model.log_probabilities(scored))


@pytest.mark.parametrize("modified", [False, True])
def test_small_texts_equal_the_scalar_twin(modified):
    """Classes of counts are empty in these, at some order or other."""
    fallen = 0
    for seed in range(12):
        train, other = sentences_of(seed, 3 + seed, 5), sentences_of(100 + seed, 6, 7)
        text = encode(train)
        tree = ContextTree.build(text, 5)
        model, twin = KneserNey(tree, modified=modified), Scalar(train, text.vocabulary.words, 5, modified)
        fallen += sum(np.array_equal(discounts[1:], FALLBACK) for discounts in model.discounts)
        found = model.log_probabilities(encode(other, text.vocabulary))
        assert np.isfinite(found).all()
        assert np.allclose(found, twin.text(other), rtol=0, atol=1e-9)
    assert fallen > 0 or not modified


@pytest.mark.parametrize("modified", [False, True])
def test_probabilities_sum_to_one_after_every_context_and_are_those_of_the_targets(large, modified):
    _, _, _, scored, tree = large
    for order in (1, 3, 6):
        model, places = KneserNey(tree, order, modified), tree.locate(scored)
        every = np.array([model.distribution(node) for node in range(tree.nodes)])
        assert every.shape == (tree.nodes, tree.words)
        assert (every > 0).all()
        assert np.abs(every.sum(1) - 1).max() < 1e-12
        wanted = every[places.node, scored.codes[scored.targets]]
        assert np.allclose(model.log_probabilities(places), np.log(wanted), rtol=0, atol=1e-12)


def test_a_lower_order_is_that_of_a_tree_of_that_order(large):
    _, _, text, scored, tree = large
    for order in (1, 2, 4):
        small = KneserNey(ContextTree.build(text, order))
        cut = KneserNey(tree, order)
        assert (cut.entries, cut.nodes) == (small.tree.entries, small.tree.nodes)
        assert np.array_equal(cut.log_probabilities(scored), small.log_probabilities(scored))


def test_what_is_given_is_left_as_it_was(large):
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
def test_discounts_fall_back_where_a_class_is_empty_or_the_formulas_leave_their_range(counts):
    assert discounts_of(np.array(counts), True).tolist() == [0, *FALLBACK]


def test_without_singletons_something_is_left_for_the_words_not_seen():
    assert discounts_of(np.array([2, 2, 3]), False).tolist() == [0, 0.5, 0.5, 0.5]


def test_what_cannot_be_counted_is_refused(large):
    _, _, text, _, tree = large
    with pytest.raises(UserError, match="order 7 of Kneser-Ney: expected 1 to 6"):
        KneserNey(tree, 7)
    with pytest.raises(UserError, match="trie, not a collapsed tree"):
        KneserNey(ContextTree.build(text, 3, collapse=True))


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
def test_ptb_equals_kenlm():
    """lmplz on the first 100,000 words of ptb.train (to the end of the sentence), scored on 20,000 more; it counts one
    more unknown word among those that share the uniform. Its numbers are of single precision."""
    lines = [line.split() for line in locate("ptb")["train"].read_text().splitlines()]
    words = np.cumsum([len(line) for line in lines])
    middle = int(np.searchsorted(words, 100_000)) + 1
    end = int(np.searchsorted(words, words[middle - 1] + 20_000)) + 1
    *seen, last = encode(lines[:middle]).vocabulary.words
    train = encode(lines[:middle], Vocabulary((*seen, "<never seen>", last)))
    scored = encode(lines[middle:end], train.vocabulary)
    known, tree = scored.known[scored.targets], ContextTree.build(train, 5)
    assert known.sum() == 20_050
    for order, kenlm, ours in ((3, 257.3297806, 257.3297759), (5, 252.9209623, 252.9209639)):
        found = math.exp(-KneserNey(tree, order).log_probabilities(scored)[known].mean())
        assert found == pytest.approx(kenlm, rel=3e-8)
        assert found == pytest.approx(ours, abs=1e-7)
