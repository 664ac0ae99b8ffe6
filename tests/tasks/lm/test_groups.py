"""Groups of contexts: a tree of nested groups for each word."""

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.text import encode
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.groups import ContextLayout, EntryNames, by_suffix


def test_groups_are_a_tree_for_each_word():
    tree = ContextTree.build(encode([["the", "chief", "executive"], ["the", "chief"]]), 4)
    forest = by_suffix((tree.entries,), ContextLayout(tree), parameter="table")
    assert forest.parents.tolist() == tree.entry_above.tolist()
    assert (forest.weight == 1).all()
    assert forest.counts is None
    assert [len(names := forest.names), names[-1]] == [tree.entries, EntryNames(tree)[tree.entries - 1]]
    assert "the chief -> executive" in list(names)
    assert "<s> the chief -> </s>" in list(names)
    assert names[0] == "-> the"
    assert names[:2] == [names[0], names[1]]
    deep = by_suffix((tree.entries,), ContextLayout(tree), "0.5**depth")
    assert deep.weight.tolist() == (0.5 ** (1 + tree.entry_depth)).tolist()


def test_groups_of_a_collapsed_tree_count_their_chains():
    text = encode([["a", "b", "c"], ["a", "b", "d"]])
    trie, tree = ContextTree.build(text, 4), ContextTree.build(text, 4, collapse=True)
    assert tree.entries < trie.entries
    forest = by_suffix((tree.entries,), ContextLayout(tree))
    assert forest.weight.tolist() == tree.entry_chain.tolist()
    assert forest.weight.sum() == trie.entries
    _, entry_of = trie.collapse()
    values = torch.from_numpy(np.random.default_rng(0).normal(size=tree.entries))
    full = by_suffix((trie.entries,), ContextLayout(trie))
    collapsed = float(forest.weight @ forest.maxima(values))
    assert collapsed == pytest.approx(float(full.weight @ full.maxima(values[torch.from_numpy(entry_of).long()])))
    assert "a ... b -> c" not in list(forest.names)  # the chain of b is b, a b and <s> a b
    assert "... b -> c" in list(forest.names)


def test_a_table_of_another_shape_is_refused():
    tree = ContextTree.build(encode([["a", "b"], ["b"]]), 3)
    with pytest.raises(UserError, match="does not fit table"):
        by_suffix((3,), ContextLayout(tree), parameter="table")
