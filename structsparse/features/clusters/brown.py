"""Brown clustering (Brown et al. 1992): a binary tree of word classes, from the bigrams of a text.

The algorithm of Liang (2005) has three steps:

- Each of the most frequent words starts as a class.
- Each further word is added as a class, and then two classes are merged. Of all possible merges, this merge loses the
  least average mutual information of neighbouring classes.
- At the end, the remaining classes are merged one pair at a time. These merges form the tree.

The merges are computed in kernels/features/brown.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.base import cache
from structsparse.base.errors import UserError
from structsparse.kernels.features import brown as kernel

NAMED = 3  # maximum number of words in the name of a tree node


@dataclass(frozen=True)
class WordTree:
    """A binary tree of word classes, as Brown clustering makes it.

    Nodes 0 to classes - 1 are the classes. Each further node is a merge of two nodes; the last node is the root. The
    words below a node have the codes order[begins[node] : ends[node]]."""

    words: tuple[str, ...]  # words[c] is the word with the code c
    frequency: np.ndarray  # int64 array: number of occurrences of each word in the text
    leaf: np.ndarray  # int32 array: the class of each word, -1 for words that are not in the text
    children: np.ndarray  # int32, shape [classes - 1, 2]: the two nodes that each merge joins
    losses: np.ndarray  # float64, shape [classes - 1]: average mutual information that each merge loses, in nats

    @property
    def classes(self) -> int:
        """Brown tree: the number of word classes, which are the leaves of the tree."""
        return len(self.children) + 1

    @property
    def nodes(self) -> int:
        """Brown tree: the number of nodes, which are the word classes (leaves) and the merges."""
        return len(self.children) + self.classes

    @cached_property
    def sizes(self) -> np.ndarray:
        """Brown tree: the number of words below each node (int64 array of shape [nodes])."""
        sizes = np.zeros(self.nodes, np.int64)
        sizes[: self.classes] = np.bincount(self.leaf[self.leaf >= 0], minlength=self.classes)
        for k, (left, right) in enumerate(self.children.tolist()):
            sizes[self.classes + k] = sizes[left] + sizes[right]
        return sizes

    @cached_property
    def begins(self) -> np.ndarray:
        """Brown tree: the index in `order` of the first word below each node (int64 array of shape [nodes])."""
        begins = np.zeros(self.nodes, np.int64)
        for k in range(len(self.children) - 1, -1, -1):
            left, right = self.children[k]
            begins[left] = begins[self.classes + k]
            begins[right] = begins[left] + self.sizes[left]
        return begins

    @property
    def ends(self) -> np.ndarray:
        """Brown tree: the index in `order` after the last word below each node (int64 array of shape [nodes])."""
        return self.begins + self.sizes

    @cached_property
    def order(self) -> np.ndarray:
        """Brown tree: the codes of all clustered words, class after class (int64 array).

        The classes are in the order of the leaves in the tree. Within a class, the most frequent words come first."""
        clustered = np.flatnonzero(self.leaf >= 0)
        return clustered[np.lexsort((clustered, -self.frequency[clustered], self.begins[self.leaf[clustered]]))]

    @cached_property
    def bits(self) -> list[str]:
        """Brown tree: the path from the root to each node, as a string of bits."""
        bits = [""] * self.nodes
        for k in range(len(self.children) - 1, -1, -1):
            left, right = self.children[k].tolist()
            bits[left], bits[right] = bits[self.classes + k] + "0", bits[self.classes + k] + "1"
        return bits

    def codes(self, node: int) -> np.ndarray:
        """Brown tree: the codes of the words below a node."""
        return self.order[self.begins[node] : self.begins[node] + self.sizes[node]]

    def name(self, node: int) -> str:
        """Brown tree: the name of a node, such as `cluster 0110: monday tuesday sunday ... (9 words)`."""
        codes = self.codes(node)
        most = codes[np.lexsort((codes, -self.frequency[codes]))][:NAMED]
        rest = f" ... ({len(codes)} words)" if len(codes) > NAMED else ""
        return f"cluster {self.bits[node] or 'of all'}: " + " ".join(self.words[c] for c in most.tolist()) + rest


def brown_tree(documents, classes: int = 5000, megabytes: int = 0) -> WordTree:
    """Cluster the words of documents into a Brown tree.

    Bigrams do not cross documents. With fewer words than `classes`, each word is a class."""
    if type(classes) is not int or classes < 1:
        raise UserError(f"Brown clustering into {classes!r} classes: expected a whole number of at least 1")
    if not len(documents.tokens):
        raise UserError("Brown clustering: the training documents have no words")
    key = cache.key(["brown", classes], [documents.tokens, documents.offsets], [Path(__file__), Path(kernel.__file__)])
    arrays = cache.load_or_make(key, lambda: _cluster(documents.tokens, documents.offsets, classes), megabytes)
    frequency = np.bincount(documents.tokens, minlength=len(documents.words))
    losses = arrays["losses"] / 2.0**kernel.SHIFT / max(1, len(documents.tokens))
    return WordTree(tuple(documents.words), frequency, arrays["leaf"], arrays["children"].reshape(-1, 2), losses)


def _cluster(tokens: np.ndarray, offsets: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Brown clustering of coded words; returns the class of each word and the merges, as arrays for the cache.

    `offsets` has the index of the first token of each document, then the number of tokens."""
    frequency = np.bincount(tokens)
    ranked = np.argsort(-frequency, kind="stable")[: np.count_nonzero(frequency)]
    rank = np.full(len(frequency), -1, np.int64)
    rank[ranked] = np.arange(len(ranked))
    totals, after, before = bigrams(rank[tokens], offsets, len(ranked))
    log = _logarithms(len(tokens))
    merges, costs = kernel.cluster(totals, after, before, classes, *log)
    classes = min(classes, len(ranked))
    leaf, children = _tree(merges, len(ranked), classes)
    by_code = np.full(len(frequency), -1, np.int32)
    by_code[ranked] = leaf
    return {"leaf": by_code, "children": children.ravel(), "losses": costs[len(ranked) - classes :]}


def bigrams(ranks: np.ndarray, offsets: np.ndarray, words: int) -> tuple:
    """Brown clustering: count the bigrams of documents, and collect the neighbours of each word.

    Returns three values. The first is an array of shape [2, words]: how often each word comes first and second in a
    bigram. The other two are the words after each word and the words before each word, as returned by `_neighbours`."""
    inside = np.ones(len(ranks), bool)
    # the first word of a document is not the second word of a bigram
    inside[np.asarray(offsets[1:-1])[np.asarray(offsets[1:-1]) < len(ranks)]] = False
    second = np.flatnonzero(inside[1:]) + 1
    left, right = ranks[second - 1], ranks[second]
    totals = np.stack([np.bincount(left, minlength=words), np.bincount(right, minlength=words)])
    return totals, _neighbours(left, right, words), _neighbours(right, left, words)


def _neighbours(of: np.ndarray, neighbour: np.ndarray, words: int) -> tuple:
    """Brown clustering: collect the distinct neighbours of each word, with counts.

    `of` and `neighbour` have an entry for each occurrence of two neighbouring words. Returns offsets, neighbours,
    counts; word w has the neighbours neighbours[offsets[w] : offsets[w + 1]]."""
    pairs, counts = np.unique(of.astype(np.int64) * words + neighbour, return_counts=True)
    offsets = np.searchsorted(pairs, np.arange(words + 1) * words)
    return offsets, (pairs % words).astype(np.int32), counts.astype(np.int32)


def _logarithms(most: int) -> tuple[np.ndarray, np.ndarray]:
    """Brown clustering: tables of x log x and of log x for the integers x from 0 to 2 * `most`.

    The values are fixed-point numbers in units of 2^-SHIFT (SHIFT is a constant of the kernel)."""
    x = np.arange(2 * most + 1, dtype=np.float64)
    log = np.log(np.maximum(x, 1))
    return tuple(np.rint(np.ldexp(values, kernel.SHIFT)).astype(np.int64) for values in (x * log, log))


def _tree(merges: np.ndarray, words: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Brown clustering: make the word tree from the merges; returns the class of each word and the nodes of each merge.

    Words are given by their rank in frequency. Classes are numbered in the order of their most frequent words."""
    above = np.arange(words)
    for one, other in merges[: words - classes].tolist():
        above[other] = one  # `other` is merged into `one`, and one < other
    for word in range(words):
        above[word] = above[above[word]]  # words with smaller indices already have their final class
    firsts, leaf = np.unique(above, return_inverse=True)
    node = np.empty(words, np.int64)
    node[firsts] = np.arange(classes)
    children = np.empty((classes - 1, 2), np.int32)
    for k, (one, other) in enumerate(merges[words - classes :].tolist()):
        children[k] = node[one], node[other]
        node[one] = classes + k
    return leaf.astype(np.int32), children


def mutual_information(tokens: np.ndarray, offsets: np.ndarray, class_of: np.ndarray) -> float:
    """Brown clustering: average mutual information of neighbouring word classes, in nats.

    `class_of` has the class of each word code."""
    totals, (bounds, second, counts), _ = bigrams(class_of[tokens], offsets, int(class_of.max()) + 1)
    first = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    total = counts.sum()
    return float((counts * np.log(counts * total / totals[0, first] / totals[1, second])).sum() / total)
