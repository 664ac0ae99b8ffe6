"""Kneser-Ney smoothing of any order on a trie of contexts, the yardstick of every other language model here."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import Text
from structsparse.tasks.lm.contexts import ContextTree, Places

FALLBACK = (0.5, 1.0, 1.5)  # discounts of counts 1, 2, 3 or more where a level has too few of them to say


class KneserNey:
    """p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h .) + rest(h) p(w | h without its farthest word)

    where rest(h) is what the discounts D have freed, and 1 / V stands below the empty context. c counts tokens for
    contexts of order - 1 words and for those that begin with `<s>`, for others how many different words stand to the
    left of h w. `modified` discounts counts of 1, 2 and 3 or more differently, by the formulas of Chen and Goodman
    (1998); else D = n1 / (n1 + 2 n2), n_i being the number of entries of a level with c = i. Every order up to that of
    the tree comes from one tree."""

    def __init__(self, tree: ContextTree, order: int | None = None, modified: bool = True) -> None:
        if tree.collapsed:
            raise UserError("Kneser-Ney needs a trie, not a collapsed tree: it counts the contexts one by one")
        order = tree.order if order is None else order
        if not 1 <= order <= tree.order:
            raise UserError(f"order {order} of Kneser-Ney: expected 1 to {tree.order}, the order of its tree")
        self.tree, self.order, self.modified = tree, order, modified
        levels = [self._level(k) for k in range(min(order, len(tree.node_levels) - 1))]
        own, rest, self.discounts = zip(*levels, strict=True)
        self.own = np.concatenate(own)  # [entries] what an entry has by its own count
        self.rest = np.concatenate(rest)  # [nodes] the share of what the shorter context says

    @property
    def entries(self) -> int:
        return len(self.own)

    @property
    def nodes(self) -> int:
        return len(self.rest)

    def _level(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """own, rest and discounts of contexts of k words."""
        tree = self.tree
        nodes, entries = slice(*tree.node_levels[k : k + 2]), slice(*tree.entry_levels[k : k + 2])
        node = tree.entry_node[entries] - nodes.start
        counts = self._counts(k, entries)
        discounts = discounts_of(counts, self.modified)
        kept = np.maximum(counts - discounts[np.minimum(counts, 3)], 0.0)
        size = nodes.stop - nodes.start
        total = np.bincount(node, counts, size)
        freed = np.bincount(node, counts - kept, size)
        return kept / total[node], freed / total, discounts

    def _counts(self, k: int, entries: slice) -> np.ndarray:
        """Tokens at the top and after `<s>`, elsewhere different words to the left."""
        tree = self.tree
        tokens = tree.entry_count[entries].astype(np.int64)
        if k + 1 >= min(self.order, len(tree.node_levels) - 1):
            return tokens
        above = tree.entry_above[slice(*tree.entry_levels[k + 1 : k + 3])]
        starts = tree.word[tree.entry_node[entries]] == tree.words  # nothing stands before a start
        return np.where(starts, tokens, np.bincount(above - entries.start, minlength=len(tokens)))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """float64 [entries], of the word of each in its context"""
        tree, found = self.tree, np.empty(self.entries)
        first = slice(0, tree.words)
        found[first] = self.own[first] + self.rest[0] / tree.words
        for k in range(1, len(self.discounts)):
            level = slice(*tree.entry_levels[k : k + 2])
            shorter = found[tree.entry_above[level]]
            found[level] = self.own[level] + self.rest[tree.entry_node[level]] * shorter
        return found

    def log_probabilities(self, text: Text | Places) -> np.ndarray:
        """float64 [targets], natural logarithms; of a text, or of where its targets stand in the tree"""
        node, entry = self.tree.locate(text) if isinstance(text, Text) else text
        node, entry = _up(node, self.tree.above, self.nodes), _up(entry, self.tree.entry_above, self.entries)
        found = self.probabilities[entry]
        home = self.tree.entry_node[entry]
        longer = np.flatnonzero(node != home)  # contexts in which the word has not been seen
        while len(longer):
            found[longer] *= self.rest[node[longer]]
            node[longer] = self.tree.above[node[longer]]
            longer = longer[node[longer] != home[longer]]
        return np.log(found)

    def distribution(self, node: int) -> np.ndarray:
        """float64 [V], the next word's after a context of the tree"""
        tree, path = self.tree, []
        while node >= 0:
            if node < self.nodes:
                path.append(node)
            node = int(tree.above[node])
        found = np.full(tree.words, 1 / tree.words)
        for node in reversed(path):
            own = slice(*tree.starts[node : node + 2])
            found *= self.rest[node]
            found[tree.entry_word[own]] += self.own[own]
        return found


def discounts_of(counts: np.ndarray, modified: bool) -> np.ndarray:
    """float64 [4], of counts 0, 1, 2 and 3 or more."""
    n1, n2, n3, n4 = np.bincount(counts, minlength=5)[1:5].tolist()
    if not modified:
        one = n1 / (n1 + 2 * n2) if n1 else FALLBACK[0]
        return np.array([0.0, one, one, one])
    if not (n1 and n2 and n3):
        return np.array([0.0, *FALLBACK])
    one = n1 / (n1 + 2 * n2)
    found = [1 - 2 * one * n2 / n1, 2 - 3 * one * n3 / n2, 3 - 4 * one * n4 / n3]
    sound = all(0 < discount <= most for most, discount in enumerate(found, start=1))
    return np.array([0.0, *(found if sound else FALLBACK)])


def _up(places: np.ndarray, above: np.ndarray, size: int) -> np.ndarray:
    """The nearest of the first `size` above each, in an array of its own."""
    places = places.astype(np.int64)
    deep = np.flatnonzero(places >= size)
    while len(deep):
        places[deep] = above[places[deep]]
        deep = deep[places[deep] >= size]
    return places
