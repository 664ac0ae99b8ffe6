"""The context tree against dictionaries of tuples, and everything made from it against the definition."""

import os
from collections import Counter, defaultdict
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.text import EncodedText, Vocabulary, encode, read_coded
from structsparse.corpora.text_reading import TextReading
from structsparse.tasks.lm.contexts import ContextTree, Places

WORDS = "abcd"
sentences = st.lists(st.lists(st.sampled_from(WORDS), max_size=7), min_size=1, max_size=9)
orders = st.integers(1, 6)
NODES = "above", "word", "depth", "chain", "count", "ends"
ENTRIES = "entry_node", "entry_word", "entry_above", "entry_count", "entry_ends"


def text_of(lines, vocabulary=None):
    """A text of sentences; empty ones, which would be dropped, get a word."""
    return encode([line or ["a"] for line in lines], vocabulary)


def contexts_of(text, order):
    """For each target its contexts from empty to longest (tuples of codes, in the order of the text), and its word."""
    for p in text.targets.tolist():
        start = p
        while text.codes[start] != len(text.vocabulary):
            start -= 1
        before = text.codes[max(start, p - order + 1) : p].tolist()
        yield [tuple(before[len(before) - k :]) for k in range(len(before) + 1)], int(text.codes[p])


def brute(text, order):
    """Counts by context of the next words; number of targets whose deepest context, or entry, it is."""
    follow, ends, entry_ends = defaultdict(Counter), Counter(), Counter()
    for contexts, word in contexts_of(text, order):
        for context in contexts:
            follow[context][word] += 1
        ends[contexts[-1]] += 1
        entry_ends[contexts[-1], word] += 1
    return follow, ends, entry_ends


def spelt(tree):
    """The context of each node of a trie."""
    contexts = [()]
    for n in range(1, tree.nodes):
        contexts.append((int(tree.word[n]), *contexts[tree.above[n]]))
    return contexts


def assert_same(one, other):
    """Assert that two context trees are equal."""
    for field in fields(ContextTree):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.tolist() == b.tolist(), field.name
            assert a.dtype == b.dtype, field.name
        else:
            assert a == b, field.name


def assert_valid(tree):
    """Assert the invariants of every context tree."""
    V, steps = tree.words, np.arange(tree.nodes)
    assert tree.above[0] == tree.word[0] == -1
    assert (tree.above[1:] >= 0).all()
    assert (tree.above[1:] < steps[1:]).all()
    level = np.searchsorted(tree.node_levels, steps, side="right")
    assert (level[tree.above[1:]] < level[1:]).all()
    assert tree.node_levels[-1] == tree.nodes
    assert tree.entry_levels[-1] == tree.entries
    assert len(tree.node_levels) == len(tree.entry_levels) == tree.order + 1
    keys = tree.entry_node.astype(np.int64) * V + tree.entry_word
    assert (np.diff(keys) > 0).all()
    assert keys[:V].tolist() == list(range(V))
    assert (tree.entry_above[:V] == -1).all()
    over = tree.entry_above[V:]
    assert (tree.entry_word[over] == tree.entry_word[V:]).all()
    assert (over >= 0).all()
    assert (over < np.arange(V, tree.entries)).all()
    above = tree.entry_node[over]
    for e in range(V, tree.entries):  # the entry above lies on the path
        n = tree.entry_node[e]
        while n != above[e - V] and n > 0:
            n = tree.above[n]
        assert n == above[e - V]
        assert n != tree.entry_node[e]
    levels = np.searchsorted(tree.entry_levels, np.arange(tree.entries), side="right")
    assert (levels == level[tree.entry_node]).all()
    for name in (*NODES, *ENTRIES):
        array = getattr(tree, name)
        assert array.dtype == np.int32, name
        assert array.flags.c_contiguous, name


def path_sums(tree, increments):
    """The sums of increments from the top down to each entry."""
    sums = np.array(increments, float)
    for e in range(tree.words, tree.entries):
        sums[e] += sums[tree.entry_above[e]]
    return sums


def scores(tree, sums, node):
    """The score of every word after a context, the sum of its deepest entry: [V]"""
    path = []
    while node >= 0:
        path.append(node)
        node = tree.above[node]
    result = np.empty(tree.words)
    for n in reversed(path):
        entries = slice(tree.starts[n], tree.starts[n + 1])
        result[tree.entry_word[entries]] = sums[entries]
    return result


def surprise(tree, increments, node_ends, entry_ends):
    """Sum over targets of -log p, with a full softmax for every context."""
    sums = path_sums(tree, increments)
    total = -float(entry_ends @ sums)
    for n in np.flatnonzero(node_ends):
        total += node_ends[n] * np.log(np.exp(scores(tree, sums, n)).sum())
    return total


@settings(max_examples=150)
@given(sentences, orders)
def test_a_trie_has_every_context_and_its_next_words(lines, order):
    text = text_of(lines)
    tree, (follow, ends, entry_ends) = ContextTree.build(text, order), brute(text, order)
    assert_valid(tree)
    contexts = spelt(tree)
    assert sorted(contexts) == sorted(follow)
    for n, context in enumerate(contexts):
        entries = slice(tree.starts[n], tree.starts[n + 1])
        seen = dict(zip(tree.entry_word[entries].tolist(), tree.entry_count[entries].tolist(), strict=True))
        assert {word: count for word, count in seen.items() if count} == follow[context]
        assert n == 0 or all(seen.values())
        assert tree.count[n] == follow[context].total()
        assert tree.ends[n] == ends[context]
        assert tree.depth[n] == len(context)
        assert tree.chain[n] == 1
        assert tree.node_levels[len(context)] <= n < tree.node_levels[len(context) + 1]
        for e in range(entries.start, entries.stop):
            assert tree.entry_ends[e] == entry_ends[context, int(tree.entry_word[e])]
            if n:
                assert contexts[tree.entry_node[tree.entry_above[e]]] == context[1:]


@settings(max_examples=150)
@given(sentences, orders)
def test_a_collapsed_tree_joins_contexts_with_the_same_targets(lines, order):
    text = text_of(lines)
    tree, (follow, _, _) = ContextTree.build(text, order, collapse=True), brute(text, order)
    assert_valid(tree)
    top = {(): ()}  # the shortest context of the chain of each
    for context in sorted(follow, key=len)[1:]:
        shorter = context[1:]
        joins = shorter and follow[context].total() == follow[shorter].total()
        top[context] = top[shorter] if joins else context
    chains = defaultdict(list)
    for context, first in top.items():
        chains[first].append(context)
    node = {(): 0}
    for first in sorted(chains, key=len)[1:]:
        children = np.flatnonzero((tree.above == node[top[first[1:]]]) & (tree.word == first[0]))
        (node[first],) = children.tolist()
    assert len(node) == tree.nodes
    for first, n in node.items():
        assert tree.chain[n] == len(chains[first])
        assert tree.depth[n] == max(map(len, chains[first]))
        assert tree.count[n] == follow[first].total()
        entries = slice(tree.starts[n], tree.starts[n + 1])
        seen = dict(zip(tree.entry_word[entries].tolist(), tree.entry_count[entries].tolist(), strict=True))
        assert {word: count for word, count in seen.items() if count} == follow[first]
    assert tree.chain.sum() == len(follow)


@settings(max_examples=100)
@given(sentences, orders)
def test_a_collapsed_trie_equals_a_tree_built_collapsed(lines, order):
    text = text_of(lines)
    trie, built = ContextTree.build(text, order), ContextTree.build(text, order, collapse=True)
    tree, entry_of = trie.collapse()
    assert_same(tree, built)
    assert np.bincount(entry_of, minlength=tree.entries).tolist() == tree.entry_chain.tolist()
    assert (tree.entry_word[entry_of] == trie.entry_word).all()
    assert (tree.entry_count[entry_of] == trie.entry_count).all()
    assert (tree.tops()[tree.entry_node][entry_of] == trie.tops()[trie.entry_node]).all()
    # with equal values on a chain, the collapsed tree gives the same scores if each value is multiplied by its chain
    values = np.random.default_rng(0).normal(size=tree.entries)
    expected = surprise(trie, values[entry_of], trie.ends, trie.entry_ends)
    assert surprise(tree, values * tree.entry_chain, tree.ends, tree.entry_ends) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=60)
@given(sentences, orders)
def test_a_lower_order_is_a_part_of_a_higher_one(lines, order):
    text = text_of(lines)
    trie = ContextTree.build(text, 6)
    assert_same(trie.up_to(order), ContextTree.build(text, order))


@settings(max_examples=100)
@given(sentences, sentences, orders)
def test_targets_of_another_text_are_located(lines, other_lines, order):
    text = text_of([["b", *line] for line in lines])
    other = text_of([["z", *line] for line in other_lines], text.vocabulary)
    tree, (follow, _, _) = ContextTree.build(text, order), brute(text, order)
    places, contexts = tree.locate(other), spelt(tree)
    for t, (contexts_of_target, word) in enumerate(contexts_of(other, order)):
        known = [context for context in contexts_of_target if context in follow]
        assert contexts[places.node[t]] == known[-1]
        deepest = [context for context in known if context == () or follow[context][word]][-1]
        assert contexts[tree.entry_node[places.entry[t]]] == deepest
        assert tree.entry_word[places.entry[t]] == word


@settings(max_examples=60)
@given(sentences, orders)
def test_training_targets_are_located_at_their_ends(lines, order):
    text = text_of(lines)
    tree = ContextTree.build(text, order)
    places = tree.locate(text)
    assert np.bincount(places.node, minlength=tree.nodes).tolist() == tree.ends.tolist()
    assert np.bincount(places.entry, minlength=tree.entries).tolist() == tree.entry_ends.tolist()


@settings(max_examples=100)
@given(sentences, sentences, orders, st.sampled_from([0, 0.3, 0.6, 1]), st.integers(0, 1000))
def test_a_pruned_trie_gives_the_same_scores(lines, other_lines, order, share, seed):
    text, rng = text_of(lines), np.random.default_rng(seed)
    other = text_of(other_lines, text.vocabulary)
    tree = ContextTree.build(text, order)
    increments = np.where(rng.random(tree.entries) < share, rng.normal(size=tree.entries), 0)
    small, rows = tree.prune(increments != 0)
    assert_valid(small)
    alive = np.flatnonzero((increments != 0) | (np.arange(tree.entries) < tree.words))
    assert rows.tolist() == alive.tolist()
    assert rows.dtype == np.int64
    contexts, remaining = spelt(tree), spelt(small)
    living = {contexts[n][k:] for n in tree.entry_node[rows] for k in range(len(contexts[n]) + 1)}
    assert sorted(remaining) == sorted(living)  # no node without a living entry at or below it
    sums, less = path_sums(tree, increments), path_sums(small, increments[rows])
    assert less.tolist() == pytest.approx(sums[rows].tolist())
    places, small_places = tree.locate(other), small.locate(other)
    for t in range(len(other.targets)):
        assert scores(small, less, small_places.node[t]) == pytest.approx(scores(tree, sums, places.node[t]))
        assert less[small_places.entry[t]] == pytest.approx(sums[places.entry[t]])
    assert surprise(small, increments[rows], small.ends, small.entry_ends) == pytest.approx(
        surprise(tree, increments, tree.ends, tree.entry_ends)
    )


@settings(max_examples=100)
@given(sentences, sentences, orders, st.integers(1, 6), st.booleans(), st.integers(0, 1000))
def test_a_restricted_tree_gives_the_loss_of_its_targets(lines, other_lines, order, size, pruned, seed):
    text, rng = text_of(lines), np.random.default_rng(seed)
    other = text_of(other_lines, text.vocabulary)
    tree = ContextTree.build(text, order)
    if pruned:
        tree, _ = tree.prune(rng.random(tree.entries) < 0.5)
    places = tree.locate(other)
    places = places.take(rng.integers(0, len(places.node), size))
    small, rows = tree.restrict(places)
    assert_valid(small)
    increments = rng.normal(size=tree.entries)
    ends, entry_ends = np.bincount(places.node, minlength=tree.nodes), np.bincount(places.entry, minlength=tree.entries)
    assert small.ends.sum() == small.entry_ends.sum() == size
    assert surprise(small, increments[rows], small.ends, small.entry_ends) == pytest.approx(
        surprise(tree, increments, ends, entry_ends)
    )
    touched = {0}
    for n in places.node.tolist():
        while n > 0:
            touched.add(n)
            n = int(tree.above[n])
    assert sorted(touched) == np.unique(tree.entry_node[rows]).tolist() or pruned
    assert rows.tolist() == [e for n in sorted(touched) for e in range(tree.starts[n], tree.starts[n + 1])]
    for name in ("word", "depth", "chain", "count"):
        assert getattr(small, name).tolist() == getattr(tree, name)[sorted(touched)].tolist()
    assert small.entry_count.tolist() == tree.entry_count[rows].tolist()


def test_a_restricted_collapsed_tree_gives_the_loss_of_its_targets():
    text = text_of([list("abcabd"), list("abcd"), list("cabc")])
    trie = ContextTree.build(text, 5)
    tree, entry_of = trie.collapse()
    places = trie.locate(text)
    places = Places(tree.entry_node[entry_of[places.entry]], entry_of[places.entry])  # exact for training targets
    assert np.bincount(places.node, minlength=tree.nodes).tolist() == tree.ends.tolist()
    increments = np.random.default_rng(0).normal(size=tree.entries)
    for t in range(len(places.node)):
        small, rows = tree.restrict(places.take([t]))
        assert_valid(small)
        ends, entry_ends = np.zeros(tree.nodes), np.zeros(tree.entries)
        ends[places.node[t]] = entry_ends[places.entry[t]] = 1
        assert surprise(small, increments[rows], small.ends, small.entry_ends) == pytest.approx(
            surprise(tree, increments, ends, entry_ends)
        )


def test_nothing_joins_the_empty_context():
    vocabulary = Vocabulary(("a", "<unk>", "</s>"))
    codes = np.array([3, 2, 3, 2], np.int32)  # two empty sentences: every target comes after <s>
    text = EncodedText(vocabulary, codes, np.ones(4, bool))
    tree = ContextTree.build(text, 3, collapse=True)
    assert tree.chain.tolist() == [1, 1]
    assert tree.depth.tolist() == [0, 1]
    assert tree.count.tolist() == [2, 2]
    assert tree.entries == 3 + 1
    assert_same(ContextTree.build(text, 3).collapse()[0], tree)


def test_a_text_of_one_word_collapses_to_chains():
    tree = ContextTree.build(encode([["a"]]), 4, collapse=True)
    assert tree.chain.tolist() == [1, 2, 1]
    assert tree.depth.tolist() == [0, 2, 1]


def test_wrong_arguments_are_refused():
    text = encode([["a", "b"], ["b"]])
    trie, tree = ContextTree.build(text, 3), ContextTree.build(text, 3, collapse=True)
    with pytest.raises(UserError, match=r"model\.order is 0"):
        ContextTree.build(text, 0)
    with pytest.raises(UserError, match="order 3 has no part of order 4"):
        trie.up_to(4)
    with pytest.raises(UserError, match="only a trie of contexts can be searched"):
        tree.locate(text)
    with pytest.raises(UserError, match="vocabulary of 5 words, the contexts one of 4"):
        trie.locate(encode([["a", "b", "c"]]))
    with pytest.raises(UserError, match=r"alive has shape \(2,\)"):
        trie.prune(np.ones(2, bool))
    with pytest.raises(UserError, match="no words"):
        ContextTree.build(encode([], text.vocabulary), 2)


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
def test_the_penn_treebank_has_the_known_number_of_contexts():
    coded = read_coded(locate("ptb")["train"], TextReading())
    text = coded.text(coded.vocabulary())
    trie = ContextTree.build(text, 12)
    assert len(text.targets) == 929_589
    assert trie.entries == 6_650_757
    assert trie.up_to(3).entries == 861_548
    tree, _ = trie.collapse()
    assert_same(tree, ContextTree.build(text, 12, collapse=True))
