"""A binary tree of word classes over word vectors: what stands in like company stands together.

Vectors are the singular vectors of positive pointwise mutual information in a window (Bullinaria and Levy 2007, Levy
and Goldberg 2014), of length 1; the tree is Ward's (1963): of all pairs of classes the pair is merged that adds least
to the squared distances from the means. The most frequent words make the tree, each further word joins the one of them
that it is nearest to.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import linkage

from structsparse.base import cache
from structsparse.base.errors import UserError
from structsparse.features.clusters.brown import WordTree

SMOOTHING = 0.75  # power of a neighbour's frequency, so that rare ones say less
MANY = 2048  # words compared at a time


def ward(documents, classes: int = 5000, dimensions: int = 40, window: int = 5, megabytes: int = 0) -> WordTree:
    """The tree over the `classes` most frequent words of these documents; neighbours are those at most `window` words
    away within a document. The loss of a merge is the distance at which Ward's method makes it.

    Up to so many megabytes of results are kept for the next run that asks for the same."""
    given = {"classes": classes, "dimensions": dimensions, "window": window}
    for name, number in given.items():
        if type(number) is not int or number < 1:
            raise UserError(f"groups.{name} is {number!r}, expected a whole number of at least 1")
    if not len(documents.tokens):
        raise UserError("word vectors: the documents of training have no words")
    key = cache.key(["ward", *given.values()], [documents.tokens, documents.offsets], [Path(__file__)])
    found = cache.load_or_make(key, lambda: _tree(documents.tokens, documents.offsets, **given), megabytes)
    frequency = np.bincount(documents.tokens, minlength=len(documents.words))
    leaf = np.full(len(documents.words), -1, np.int32)
    leaf[: len(found["leaf"])] = found["leaf"]
    losses = found["losses"].view(np.float64)  # the cache keeps whole numbers
    return WordTree(tuple(documents.words), frequency, leaf, found["children"].reshape(-1, 2), losses)


def _tree(tokens: np.ndarray, offsets: np.ndarray, classes: int, dimensions: int, window: int) -> dict:
    """leaf [codes], children [2 (classes - 1)] and the bits of losses [classes - 1] of the tree."""
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
    """A vector of length 1 for each word, float64 [words, dimensions]; zero for those whose company says nothing. The
    `contexts` most frequent words count as neighbours, and their matrix makes the dimensions."""
    contexts = min(contexts, words)
    shares = company(ranks, offsets, words, contexts, window)
    if min(contexts, words) <= dimensions:
        _, values, right = np.linalg.svd(shares[:contexts].toarray(), full_matrices=False)
    else:
        start = np.random.default_rng(0).standard_normal(contexts)  # so that the same text has the same vectors
        _, values, right = sparse.linalg.svds(shares[:contexts], dimensions, v0=start)
    scale = np.where(values > values.max(initial=0) * 1e-9, values, np.inf) ** -0.5
    found = shares @ (right.T * scale)  # of the frequent ones: left * sqrt(values)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)


def company(ranks: np.ndarray, offsets: np.ndarray, words: int, contexts: int, window: int) -> sparse.csr_array:
    """Positive pointwise mutual information of words with the most frequent ones around them [words, contexts]."""
    document = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    counts = sparse.csr_array((words, contexts))
    for apart in range(1, window + 1):
        together = document[:-apart] == document[apart:]
        one, other = ranks[:-apart][together], ranks[apart:][together]
        one, other = np.concatenate([one, other]), np.concatenate([other, one])
        known = other < contexts
        pairs = (np.ones(int(known.sum())), (one[known], other[known]))
        counts = counts + sparse.coo_array(pairs, (words, contexts)).tocsr()
    counts = counts.tocoo()
    of_word, of_context = counts.sum(1), counts.sum(0) ** SMOOTHING
    row, column = counts.coords
    information = np.log(counts.data * of_context.sum() / (of_word[row] * of_context[column]))
    positive = information > 0
    return sparse.coo_array((information[positive], (row[positive], column[positive])), counts.shape).tocsr()


def nearest(vectors: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which of the unit vectors `among` has the largest cosine with each, the first of equals."""
    blocks = [vectors[k : k + MANY] @ among.T for k in range(0, len(vectors), MANY)]
    return np.concatenate([block.argmax(1) for block in blocks] or [np.empty(0, np.int64)])
