"""Kneser-Ney smoothing of any order on a trie of contexts: the baseline for the log-linear language models."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import EncodedText
from structsparse.tasks.lm.contexts import ContextTree, Places

FALLBACK = (0.5, 1.0, 1.5)  # discounts of counts 1, 2 and 3 or more, if the counts allow no estimate


class KneserNey:
    """An interpolated Kneser-Ney language model, estimated from the counts in a trie of contexts.

    The probability of a word w after a context h is

        p(w | h) = max(c(h w) - D, 0) / c(h .) + backoff(h) p(w | h')

    - h' is h without its first word. If h is empty, p(w | h') is 1 / V, where V is the number of words.
    - c(h w) is the number of occurrences of h w in training, if h has order - 1 words or begins with `<s>`. For other
      h, c(h w) is the number of different words before h w.
    - c(h .) is the sum of c(h w) over all words w.
    - D is the discount of the count c(h w). If `modified` is set, D differs for counts 1, 2 and 3 or more (Chen and
      Goodman 1998). Otherwise D = n1 / (n1 + 2 n2), where n1 and n2 are the numbers of pairs h w with count 1 and 2.
    - backoff(h) is the sum of the discounts of all words after h, divided by c(h .).

    Discounts are estimated separately for each length of h."""

    def __init__(self, tree: ContextTree, order: int | None = None, modified: bool = True) -> None:
        if tree.collapsed:
            raise UserError("Kneser-Ney needs a trie, not a collapsed tree: it counts the contexts one by one")
        order = tree.order if order is None else order
        if not 1 <= order <= tree.order:
            raise UserError(f"order {order} of Kneser-Ney: expected 1 to {tree.order}, the order of its tree")
        self.tree, self.order, self.modified = tree, order, modified
        levels = [self._level(k) for k in range(min(order, len(tree.node_levels) - 1))]
        discounted, backoff, self.discounts = zip(*levels, strict=True)
        self.discounted = np.concatenate(discounted)  # float64 [entries], discounted count / count of context
        self.backoff = np.concatenate(backoff)  # float64 [nodes], back-off weight of each context

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

        Returns three arrays:

        - the discounted relative frequency of each entry (context, next word)
        - the back-off weight of each context
        - the discounts of counts 0, 1, 2 and 3 or more"""
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
        """The Kneser-Ney counts of the entries (context, next word) whose contexts have k words (int64).

        For the longest contexts, and for contexts that begin with `<s>`, a count is the number of occurrences. For
        other contexts, a count is the number of different words that precede the context and the word."""
        tree = self.tree
        tokens = tree.entry_count[entries].astype(np.int64)
        if k + 1 >= min(self.order, len(tree.node_levels) - 1):
            return tokens
        above = tree.entry_above[slice(*tree.entry_levels[k + 1 : k + 3])]
        starts = tree.word[tree.entry_node[entries]] == tree.words  # whether the context begins with <s>
        return np.where(starts, tokens, np.bincount(above - entries.start, minlength=len(tokens)))

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Kneser-Ney model: for each entry (context, word), the probability of the word after the context (float64)."""
        tree, result = self.tree, np.empty(self.entries)
        first = slice(0, tree.words)
        result[first] = self.discounted[first] + self.backoff[0] / tree.words
        for k in range(1, len(self.discounts)):
            level = slice(*tree.entry_levels[k : k + 2])
            shorter = result[tree.entry_above[level]]
            result[level] = self.discounted[level] + self.backoff[tree.entry_node[level]] * shorter
        return result

    @cached_property
    def increments(self) -> np.ndarray:
        """Kneser-Ney model: the weights of a log-linear n-gram model that has the same probabilities.

        Let h be a context, and h' the context without the first word of h. The weight of the entry (h, w) is

            log p(w | h) - log p(w | h') - log backoff(h)

        For the empty context, the weight is log p(w). A word without an entry after h has the probability
        backoff(h) p(w | h'), and so the weight 0. The result is float64 [entries]."""
        result, deeper = np.log(self.probabilities), slice(self.tree.words, self.entries)
        result[deeper] -= result[self.tree.entry_above[deeper]] + np.log(self.backoff)[self.tree.entry_node[deeper]]
        return result

    def log_probabilities(self, text: EncodedText | Places) -> np.ndarray:
        """Kneser-Ney model: the natural log-probability of each target (word to predict) of a text (float64 [targets]).

        `text` is the encoded text, or the places of its targets in the context tree."""
        node, entry = self.tree.locate(text) if isinstance(text, EncodedText) else text
        node, entry = _up(node, self.tree.above, self.nodes), _up(entry, self.tree.entry_above, self.entries)
        result = self.probabilities[entry]
        home = self.tree.entry_node[entry]
        longer = np.flatnonzero(node != home)  # indices of targets whose word never follows the context in training
        while len(longer):
            result[longer] *= self.backoff[node[longer]]
            node[longer] = self.tree.above[node[longer]]
            longer = longer[node[longer] != home[longer]]
        return np.log(result)

    def distribution(self, node: int) -> np.ndarray:
        """Kneser-Ney model: the probability of every word after the context of a node (float64, one per word)."""
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
    """The Kneser-Ney discounts of counts 0, 1, 2 and 3 or more (float64 [4]).

    `counts` has the counts of all pairs of a context and a next word, for contexts of one length. If `modified` is not
    set, all positive counts have the same discount."""
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
    """Kneser-Ney model of a lower order: replace indices of a trie that are too large.

    Each index that is not less than `size` is replaced by the index of the nearest ancestor that is less than `size`.
    `places` are the indices of nodes, or of entries. `above` has the index of the parent of each node or entry."""
    places = places.astype(np.int64)
    deep = np.flatnonzero(places >= size)
    while len(deep):
        places[deep] = above[places[deep]]
        deep = deep[places[deep] >= size]
    return places
