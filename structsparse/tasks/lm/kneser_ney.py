"""Kneser-Ney smoothing of any order on a trie of contexts: the baseline for the log-linear language models."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import EncodedText
from structsparse.tasks.lm.contexts import ContextTree, Places

FALLBACK = (0.5, 1.0, 1.5)  # discounts of counts 1, 2 and 3 or more, where a level has too few entries for estimates


class KneserNey:
    """An interpolated Kneser-Ney language model, estimated from the counts in a trie of contexts.

    The probability of a word w after a context h is

        p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h .) + backoff(h) p(w | h')

    where h' is h without the farthest word, and c(h .) is the sum of c(h w) over all words w. D is the discount of a
    count. backoff(h) is the share of c(h .) that the discounts remove. For the empty context, p(w | h') is 1 / V, where
    V is the number of words.

    If h has order - 1 words or begins with `<s>`, the count c(h w) is the number of occurrences in training. For other
    contexts, c(h w) is the number of different words to the left of h w.

    `modified` discounts counts of 1, 2 and 3 or more differently, by the formulas of Chen and Goodman (1998). Otherwise
    D = n1 / (n1 + 2 n2). Here n1 and n2 are the numbers of entries with count 1 and with count 2, for contexts of the
    same length. A model of lower order can be counted from the same trie."""

    def __init__(self, tree: ContextTree, order: int | None = None, modified: bool = True) -> None:
        if tree.collapsed:
            raise UserError("Kneser-Ney needs a trie, not a collapsed tree: it counts the contexts one by one")
        order = tree.order if order is None else order
        if not 1 <= order <= tree.order:
            raise UserError(f"order {order} of Kneser-Ney: expected 1 to {tree.order}, the order of its tree")
        self.tree, self.order, self.modified = tree, order, modified
        levels = [self._level(k) for k in range(min(order, len(tree.node_levels) - 1))]
        discounted, backoff, self.discounts = zip(*levels, strict=True)
        self.discounted = np.concatenate(discounted)  # float64 [entries], max(c(h w) - D, 0) / c(h .)
        self.backoff = np.concatenate(backoff)  # float64 [nodes], backoff(h): the factor of the probability after h'

    @property
    def entries(self) -> int:
        """The number of (context, next word) pairs of the Kneser-Ney model."""
        return len(self.discounted)

    @property
    def nodes(self) -> int:
        """The number of contexts of the Kneser-Ney model."""
        return len(self.backoff)

    def _level(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kneser-Ney estimates for the contexts of k words.

        Returns the discounted relative frequencies of the entries, the back-off weights of the contexts, and the
        discounts."""
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
        """The Kneser-Ney counts of entries whose contexts have k words: int64 [entries of the level]

        At the highest order and after contexts that begin with `<s>`, these are numbers of occurrences. Elsewhere these
        are numbers of different words to the left."""
        tree = self.tree
        tokens = tree.entry_count[entries].astype(np.int64)
        if k + 1 >= min(self.order, len(tree.node_levels) - 1):
            return tokens
        above = tree.entry_above[slice(*tree.entry_levels[k + 1 : k + 3])]
        starts = tree.word[tree.entry_node[entries]] == tree.words  # <s> has no word to the left
        return np.where(starts, tokens, np.bincount(above - entries.start, minlength=len(tokens)))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Kneser-Ney model: the probability of the word of each entry after the entry's context: float64 [entries]"""
        tree, result = self.tree, np.empty(self.entries)
        first = slice(0, tree.words)
        result[first] = self.discounted[first] + self.backoff[0] / tree.words
        for k in range(1, len(self.discounts)):
            level = slice(*tree.entry_levels[k : k + 2])
            shorter = result[tree.entry_above[level]]
            result[level] = self.discounted[level] + self.backoff[tree.entry_node[level]] * shorter
        return result

    def log_probabilities(self, text: EncodedText | Places) -> np.ndarray:
        """Kneser-Ney model: the natural log-probability of each target (word to predict): float64 [targets]

        The targets are given by an encoded text, or by places in the context tree."""
        node, entry = self.tree.locate(text) if isinstance(text, EncodedText) else text
        node, entry = _up(node, self.tree.above, self.nodes), _up(entry, self.tree.entry_above, self.entries)
        result = self.probabilities[entry]
        home = self.tree.entry_node[entry]
        longer = np.flatnonzero(node != home)  # indices of targets whose word is unseen after the context `node`
        while len(longer):
            result[longer] *= self.backoff[node[longer]]
            node[longer] = self.tree.above[node[longer]]
            longer = longer[node[longer] != home[longer]]
        return np.log(result)

    def distribution(self, node: int) -> np.ndarray:
        """Kneser-Ney model: the probability of every next word after the context of a node: float64 [V]"""
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
    """The Kneser-Ney discounts of counts 0, 1, 2 and 3 or more: float64 [4]

    `counts` are the counts of the entries of one level."""
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
    """Kneser-Ney model of a lower order: the nearest ancestor with a number below `size`, for each place in the trie.

    `places` are nodes or entries, and `above` holds the parent of each node or entry. A place below `size` stays. The
    result is a new array: int64 [places]."""
    places = places.astype(np.int64)
    deep = np.flatnonzero(places >= size)
    while len(deep):
        places[deep] = above[places[deep]]
        deep = deep[places[deep] >= size]
    return places
