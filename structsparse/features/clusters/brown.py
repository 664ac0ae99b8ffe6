"""Brown clustering (Brown et al. 1992): a binary tree of word classes, found by who stands beside whom.

The window of Liang (2005): the most frequent words begin as classes of their own; each further word joins them, and the
pair whose merge costs the least average mutual information of neighbouring classes is merged. The remaining classes
are then merged to one, which makes the tree. Nothing is approximated beyond that window: of all pairs the cheapest one
is merged every time (kernels/brown.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.base import cache
from structsparse.base.errors import UserError
from structsparse.kernels.features import brown as kernel

SOME = 3  # words that the name of a class shows


@dataclass(frozen=True)
class WordTree:
    """A binary tree over classes of words. Nodes: the classes 0 ... classes - 1, then one for each merge; the last is
    the root. The words below a node stand together: order[begins[node] : ends[node]]."""

    words: tuple[str, ...]  # all that have a code
    frequency: np.ndarray  # of each code in the text [words]
    leaf: np.ndarray  # the class of each code, -1 of those not in the text [words]
    children: np.ndarray  # the nodes below each merge [classes - 1, 2]; the first has the bit 0
    losses: np.ndarray  # average mutual information that each merge costs, in nats [classes - 1]

    @property
    def classes(self) -> int:
        return len(self.children) + 1

    @property
    def nodes(self) -> int:
        return len(self.children) + self.classes

    @cached_property
    def sizes(self) -> np.ndarray:
        """Words below each node."""
        sizes = np.zeros(self.nodes, np.int64)
        sizes[: self.classes] = np.bincount(self.leaf[self.leaf >= 0], minlength=self.classes)
        for k, (left, right) in enumerate(self.children.tolist()):
            sizes[self.classes + k] = sizes[left] + sizes[right]
        return sizes

    @cached_property
    def begins(self) -> np.ndarray:
        begins = np.zeros(self.nodes, np.int64)
        for k in range(len(self.children) - 1, -1, -1):
            left, right = self.children[k]
            begins[left] = begins[self.classes + k]
            begins[right] = begins[left] + self.sizes[left]
        return begins

    @property
    def ends(self) -> np.ndarray:
        return self.begins + self.sizes

    @cached_property
    def order(self) -> np.ndarray:
        """The codes, class after class as they stand in the tree, the most frequent ones of a class first."""
        known = np.flatnonzero(self.leaf >= 0)
        return known[np.lexsort((known, -self.frequency[known], self.begins[self.leaf[known]]))]

    @cached_property
    def bits(self) -> list[str]:
        """The way from the root to each node."""
        bits = [""] * self.nodes
        for k in range(len(self.children) - 1, -1, -1):
            left, right = self.children[k].tolist()
            bits[left], bits[right] = bits[self.classes + k] + "0", bits[self.classes + k] + "1"
        return bits

    def codes(self, node: int) -> np.ndarray:
        """The words below a node."""
        return self.order[self.begins[node] : self.begins[node] + self.sizes[node]]

    def name(self, node: int) -> str:
        """`cluster 0110: monday tuesday sunday ... (9 words)`."""
        codes = self.codes(node)
        most = codes[np.lexsort((codes, -self.frequency[codes]))][:SOME]
        rest = f" ... ({len(codes)} words)" if len(codes) > SOME else ""
        return f"cluster {self.bits[node] or 'of all'}: " + " ".join(self.words[c] for c in most.tolist()) + rest


def brown(documents, classes: int = 5000, megabytes: int = 0) -> WordTree:
    """The tree of the words of these documents; neighbours are those within a document. Words are ranked by how often
    they occur, of equals the one with the lower code first. Fewer words than classes are a class each.

    Up to so many megabytes of results are kept for the next run that asks for the same."""
    if type(classes) is not int or classes < 1:
        raise UserError(f"Brown clustering into {classes!r} classes: expected a whole number of at least 1")
    if not len(documents.tokens):
        raise UserError("Brown clustering: the documents of training have no words")
    key = cache.key(["brown", classes], [documents.tokens, documents.offsets], [Path(__file__), Path(kernel.__file__)])
    found = cache.load_or_make(key, lambda: _cluster(documents.tokens, documents.offsets, classes), megabytes)
    frequency = np.bincount(documents.tokens, minlength=len(documents.words))
    losses = found["losses"] / 2.0**kernel.SHIFT / max(1, len(documents.tokens))
    return WordTree(tuple(documents.words), frequency, found["leaf"], found["children"].reshape(-1, 2), losses)


def _cluster(tokens: np.ndarray, offsets: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """leaf [codes], children [2 (classes - 1)] and losses [classes - 1] of the tree."""
    frequency = np.bincount(tokens)
    ranked = np.argsort(-frequency, kind="stable")[: np.count_nonzero(frequency)]
    rank = np.full(len(frequency), -1, np.int64)
    rank[ranked] = np.arange(len(ranked))
    whole, after, before = neighbours(rank[tokens], offsets, len(ranked))
    log = _logarithms(len(tokens))
    merges, costs = kernel.cluster(whole, after, before, classes, *log)
    classes = min(classes, len(ranked))
    leaf, children = _tree(merges, len(ranked), classes)
    by_code = np.full(len(frequency), -1, np.int32)
    by_code[ranked] = leaf
    return {"leaf": by_code, "children": children.ravel(), "losses": costs[len(ranked) - classes :]}


def neighbours(ranks: np.ndarray, offsets: np.ndarray, words: int) -> tuple:
    """How often each word comes first and second in a bigram of a document [2, words]; (offsets, words, counts) of what
    comes after each word, and of what comes before."""
    inside = np.ones(len(ranks), bool)
    inside[np.asarray(offsets[1:-1])[np.asarray(offsets[1:-1]) < len(ranks)]] = False  # nobody comes before them
    second = np.flatnonzero(inside[1:]) + 1
    left, right = ranks[second - 1], ranks[second]
    whole = np.stack([np.bincount(left, minlength=words), np.bincount(right, minlength=words)])
    return whole, _compressed(left, right, words), _compressed(right, left, words)


def _compressed(of: np.ndarray, neighbour: np.ndarray, words: int) -> tuple:
    pairs, counts = np.unique(of.astype(np.int64) * words + neighbour, return_counts=True)
    offsets = np.searchsorted(pairs, np.arange(words + 1) * words)
    return offsets, (pairs % words).astype(np.int32), counts.astype(np.int32)


def _logarithms(most: int) -> tuple[np.ndarray, np.ndarray]:
    """x log x and log x of 0 ... 2 most, in units of 2^-SHIFT, 0 at 0."""
    x = np.arange(2 * most + 1, dtype=np.float64)
    log = np.log(np.maximum(x, 1))
    return tuple(np.rint(np.ldexp(values, kernel.SHIFT)).astype(np.int64) for values in (x * log, log))


def _tree(merges: np.ndarray, words: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The class of each rank, classes numbered by their most frequent words, and the nodes below each later merge."""
    above = np.arange(words)
    for one, other in merges[: words - classes].tolist():
        above[other] = one  # one < other, and `other` names no class any more
    for word in range(words):
        above[word] = above[above[word]]  # what comes before is resolved already
    firsts, leaf = np.unique(above, return_inverse=True)
    node = np.empty(words, np.int64)
    node[firsts] = np.arange(classes)
    children = np.empty((classes - 1, 2), np.int32)
    for k, (one, other) in enumerate(merges[words - classes :].tolist()):
        children[k] = node[one], node[other]
        node[one] = classes + k
    return leaf.astype(np.int32), children


def mutual_information(tokens: np.ndarray, offsets: np.ndarray, of_word: np.ndarray) -> float:
    """Average mutual information of neighbouring classes, in nats; of_word [codes] says the class of each word."""
    whole, (bounds, second, counts), _ = neighbours(of_word[tokens], offsets, int(of_word.max()) + 1)
    first = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    total = counts.sum()
    return float((counts * np.log(counts * total / whole[0, first] / whole[1, second])).sum() / total)
