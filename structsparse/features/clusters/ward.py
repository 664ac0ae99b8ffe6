"""Ward's tree over word vectors: a binary tree of clusters of words that occur in similar contexts.

- A word is described by its positive pointwise mutual information with neighbouring words (Bullinaria and Levy 2007).
- A singular value decomposition turns these values into word vectors of length 1 (Levy and Goldberg 2014).
- Ward's method (1963) merges two clusters at a time. Each merge adds as little as possible to the squared distances
  between vectors and cluster means.
- The tree is made from the most frequent words. Each other word joins the class of the nearest frequent word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import linkage

from structsparse.base import cache
from structsparse.base.errors import UserError
from structsparse.features.clusters.brown import WordTree

SMOOTHING = 0.75  # exponent of neighbour frequencies; reduces the information of rare neighbours
BLOCK = 2048  # number of word vectors compared at a time, which limits the memory


def ward_tree(documents, classes: int = 5000, dimensions: int = 40, window: int = 5, megabytes: int = 0) -> WordTree:
    """Make Ward's tree over the vectors of the `classes` most frequent words of documents.

    The neighbours of a word are the words at most `window` positions away in the same document."""
    options = {"classes": classes, "dimensions": dimensions, "window": window}
    for name, number in options.items():
        if type(number) is not int or number < 1:
            raise UserError(f"groups.{name} is {number!r}, expected a whole number of at least 1")
    if not len(documents.tokens):
        raise UserError("word vectors: the training documents have no words")
    key = cache.key(["ward", *options.values()], [documents.tokens, documents.offsets], [Path(__file__)])
    arrays = cache.load_or_make(key, lambda: _tree(documents.tokens, documents.offsets, **options), megabytes)
    frequency = np.bincount(documents.tokens, minlength=len(documents.words))
    leaf = np.full(len(documents.words), -1, np.int32)
    leaf[: len(arrays["leaf"])] = arrays["leaf"]
    losses = arrays["losses"].view(np.float64)  # the cache stores the bits of float64 numbers as int64
    return WordTree(tuple(documents.words), frequency, leaf, arrays["children"].reshape(-1, 2), losses)


def _tree(tokens: np.ndarray, offsets: np.ndarray, classes: int, dimensions: int, window: int) -> dict:
    """Ward's tree of coded words; returns the class of each word and the merges, as arrays for the cache.

    The losses of the merges are float64 numbers, whose bits are stored as int64."""
    frequency = np.bincount(tokens)
    ranked = np.argsort(-frequency, kind="stable")[: np.count_nonzero(frequency)]
    rank = np.full(len(frequency), -1, np.int64)
    rank[ranked] = np.arange(len(ranked))
    vectors = word_vectors(rank[tokens], offsets, len(ranked), classes, dimensions, window)
    classes = min(classes, len(ranked))
    leaf = np.full(len(frequency), -1, np.int32)
    leaf[ranked] = np.concatenate([np.arange(classes), nearest(vectors[classes:], vectors[:classes])])
    if classes == 1:
        return {"leaf": leaf, "children": np.empty(0, np.int32), "losses": np.empty(0, np.int64)}
    merges = linkage(vectors[:classes], "ward")
    return {
        "leaf": leaf,
        "children": merges[:, :2].astype(np.int32).ravel(),
        "losses": merges[:, 2].copy().view(np.int64),
    }


def word_vectors(
    ranks: np.ndarray, offsets: np.ndarray, words: int, contexts: int, dimensions: int, window: int
) -> np.ndarray:
    """Word vectors of length 1 for Ward's tree (float64 array of shape [words, dimensions]).

    The `contexts` most frequent words count as neighbours. A word without informative neighbours has the vector zero.
    The vectors come from a singular value decomposition of the mutual information of words and neighbours."""
    contexts = min(contexts, words)
    information = neighbour_information(ranks, offsets, words, contexts, window)
    if min(contexts, words) <= dimensions:
        _, values, right = np.linalg.svd(information[:contexts].toarray(), full_matrices=False)
    else:
        start = np.random.default_rng(0).standard_normal(contexts)  # makes the result of svds deterministic
        _, values, right = sparse.linalg.svds(information[:contexts], dimensions, v0=start)
    scale = np.where(values > values.max(initial=0) * 1e-9, values, np.inf) ** -0.5
    # The vectors of frequent words are the left singular vectors times the square roots of the singular values.
    vectors = information @ (right.T * scale)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def neighbour_information(
    ranks: np.ndarray, offsets: np.ndarray, words: int, contexts: int, window: int
) -> sparse.csr_array:
    """Word vectors of Ward's tree: the positive pointwise mutual information of words and neighbours.

    Returns a sparse matrix of shape [words, contexts]."""
    document = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    counts = sparse.csr_array((words, contexts))
    for distance in range(1, window + 1):
        together = document[:-distance] == document[distance:]
        one, other = ranks[:-distance][together], ranks[distance:][together]
        one, other = np.concatenate([one, other]), np.concatenate([other, one])
        frequent = other < contexts
        pairs = (np.ones(int(frequent.sum())), (one[frequent], other[frequent]))
        counts = counts + sparse.coo_array(pairs, (words, contexts)).tocsr()
    counts = counts.tocoo()
    of_word, of_context = counts.sum(1), counts.sum(0) ** SMOOTHING
    row, column = counts.coords
    information = np.log(counts.data * of_context.sum() / (of_word[row] * of_context[column]))
    positive = information > 0
    return sparse.coo_array((information[positive], (row[positive], column[positive])), counts.shape).tocsr()


def nearest(vectors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Ward's tree: for each word vector, the index of the candidate with the largest cosine (int64 array)."""
    blocks = [vectors[k : k + BLOCK] @ candidates.T for k in range(0, len(vectors), BLOCK)]
    return np.concatenate([block.argmax(1) for block in blocks] or [np.empty(0, np.int64)])
