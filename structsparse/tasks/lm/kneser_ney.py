"""Kneser-Ney smoothing of any order on a trie of contexts: the baseline for the log-linear language models."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import EncodedText
from structsparse.tasks.lm.contexts import ContextTree, Places

FALLBACK = (0.5, 1.0, 1.5)  # discounts of counts 1, 2, 3 or more, for levels with too few entries to estimate discounts


class KneserNey:
    """An interpolated Kneser-Ney language model, counted from a trie of contexts.

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h .) + backoff(h) p(w | h without its farthest word)

    where backoff(h) is the probability mass that the discounts D free. The empty context backs off to 1 / V. c counts
    tokens for contexts of order - 1 words and for contexts that begin with `<s>`; for other contexts, c counts the
    different words to the left of h w. `modified` discounts counts of 1, 2 and 3 or more differently, by the formulas
    of Chen and Goodman (1998). Otherwise D = n1 / (n1 + 2 n2), where n_i is the number of entries of a level with
    c = i. A model of lower order can be counted from the same tree."""

    def __init__(self, tree: ContextTree, order: int | None = None, modified: bool = True) -> None:
        if tree.collapsed:
            raise UserError("Kneser-Ney needs a trie, not a collapsed tree: it counts the contexts one by one")
        order = tree.order if order is None else order
        if not 1 <= order <= tree.order:
            raise UserError(f"order {order} of Kneser-Ney: expected 1 to {tree.order}, the order of its tree")
        self.tree, self.order, self.modified = tree, order, modified
        levels = [self._level(k) for k in range(min(order, len(tree.node_levels) - 1))]
        discounted, backoff, self.discounts = zip(*levels, strict=True)
        self.discounted = np.concatenate(discounted)  # [entries], discounted count / total of the context
        self.backoff = np.concatenate(backoff)  # [nodes], back-off weight of the shorter context

    @property
    def entries(self) -> int:
        """The number of (context, next word) pairs up to the order of the model."""
        return len(self.discounted)

    @property
    def nodes(self) -> int:
        """The number of contexts up to the order of the model."""
        return len(self.backoff)

    def _level(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The discounted probabilities, back-off weights and discounts of the contexts of k words."""
        tree = self.tree
        nodes, entries = slice(*tree.node_levels[k : k + 2]), slice(*tree.entry_levels[k : k + 2])
        node = tree.entry_node[entries] - nodes.start
        counts = self._counts(k, entries)
        discounts = discounts_of(counts, self.modified)
        remaining = np.maximum(counts - discounts[np.minimum(counts, 3)], 0.0)
        size = nodes.stop - nodes.start
        total = np.bincount(node, counts, size)
        freed = np.bincount(node, counts - remaining, size)
        return remaining / total[node], freed / total, discounts

    def _counts(self, k: int, entries: slice) -> np.ndarray:
        """The Kneser-Ney counts of entries whose contexts have k words.

        These are numbers of tokens at the highest order and after `<s>`, elsewhere numbers of different words to the
        left."""
        tree = self.tree
        tokens = tree.entry_count[entries].astype(np.int64)
        if k + 1 >= min(self.order, len(tree.node_levels) - 1):
            return tokens
        above = tree.entry_above[slice(*tree.entry_levels[k + 1 : k + 3])]
        starts = tree.word[tree.entry_node[entries]] == tree.words  # nothing stands before a start
        return np.where(starts, tokens, np.bincount(above - entries.start, minlength=len(tokens)))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probability of the next word of each entry in the context of the entry: float64 [entries]"""
        tree, result = self.tree, np.empty(self.entries)
        first = slice(0, tree.words)
        result[first] = self.discounted[first] + self.backoff[0] / tree.words
        for k in range(1, len(self.discounts)):
            level = slice(*tree.entry_levels[k : k + 2])
            shorter = result[tree.entry_above[level]]
            result[level] = self.discounted[level] + self.backoff[tree.entry_node[level]] * shorter
        return result

    def log_probabilities(self, text: EncodedText | Places) -> np.ndarray:
        """The natural log-probability of each target, of a text or of places in the context tree: float64 [targets]"""
        node, entry = self.tree.locate(text) if isinstance(text, EncodedText) else text
        node, entry = _up(node, self.tree.above, self.nodes), _up(entry, self.tree.entry_above, self.entries)
        result = self.probabilities[entry]
        home = self.tree.entry_node[entry]
        longer = np.flatnonzero(node != home)  # contexts in which the word is unseen
        while len(longer):
            result[longer] *= self.backoff[node[longer]]
            node[longer] = self.tree.above[node[longer]]
            longer = longer[node[longer] != home[longer]]
        return np.log(result)

    def distribution(self, node: int) -> np.ndarray:
        """The probability of every next word after a context of the tree: float64 [V]"""
        tree, path = self.tree, []
        while node >= 0:
            if node < self.nodes:
                path.append(node)
            node = int(tree.above[node])
        result = np.full(tree.words, 1 / tree.words)
        for node in reversed(path):
            entries = slice(*tree.starts[node : node + 2])
            result *= self.backoff[node]
            result[tree.entry_word[entries]] += self.discounted[entries]
        return result


def discounts_of(counts: np.ndarray, modified: bool) -> np.ndarray:
    """The Kneser-Ney discounts of counts 0, 1, 2 and 3 or more: float64 [4]"""
    n1, n2, n3, n4 = np.bincount(counts, minlength=5)[1:5].tolist()
    if not modified:
        one = n1 / (n1 + 2 * n2) if n1 else FALLBACK[0]
        return np.array([0.0, one, one, one])
    if not (n1 and n2 and n3):
        return np.array([0.0, *FALLBACK])
    one = n1 / (n1 + 2 * n2)
    estimates = [1 - 2 * one * n2 / n1, 2 - 3 * one * n3 / n2, 3 - 4 * one * n4 / n3]
    valid = all(0 < discount <= count for count, discount in enumerate(estimates, start=1))
    return np.array([0.0, *(estimates if valid else FALLBACK)])


def _up(places: np.ndarray, above: np.ndarray, size: int) -> np.ndarray:
    """The nearest ancestor of each node or entry of a trie among the first `size`, in a new array."""
    places = places.astype(np.int64)
    deep = np.flatnonzero(places >= size)
    while len(deep):
        places[deep] = above[places[deep]]
        deep = deep[places[deep] >= size]
    return places
