"""Eisner kernels: sums, marginals and the best tree for projective dependency trees.

Positions are 0 (root) to n. weight[m, h] is the weight of the arc from head h to modifier m. The recursions over spans
from position i to position j are

    gap[i, j]       = sum over k in i..j-1 of right[i, k] * left[k + 1, j]
    rightward[i, j] = gap[i, j] * weight[j, i]                                     the arc from i to j
    leftward[i, j]  = gap[i, j] * weight[i, j]                                     the arc from j to i
    right[i, j]     = sum over k in i+1..j of rightward[i, k] * right[k, j]        spans headed by i
    left[i, j]      = sum over k in i..j-1 of left[i, k] * leftward[k, j]          spans headed by j

With a single root, the root has only one arc, and gap[0, j] has only the term with k = 0.

Sums are in float64. For each token, the weights of the heads are divided by the largest weight. Weights of trees may
then underflow. A sentence of n tokens has fewer than 7^n trees. If their total weight is at least FLOOR * 7^n, the lost
weights do not matter. Otherwise the result is NaN, and the caller computes the sentence again in log-space.
"""

import math

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import PLAIN, SUMS
from structsparse.kernels.structures.chain import chunk_count
from structsparse.kernels.structures.matrix_tree import load

RIGHT, LEFT, RIGHTWARD, LEFTWARD, GAP = range(5)  # indices of the charts, which are the tables of the recursion
CHARTS = 5  # number of charts, which are the tables of the recursion
FLOOR, MOST_TREES = 1e-280, 7.0  # for n tokens, a total weight below FLOOR * MOST_TREES^n is computed again in logs


@njit(**SUMS)
def _add(factor, terms, k, sums, i, low):
    """Eisner kernel: add a multiple of a chart row to another row, sums[i, j] += factor * terms[k, j] for j >= low."""
    for j in range(low, sums.shape[1]):
        sums[i, j] += factor * terms[k, j]


@njit(**SUMS)
def _add_back(factor, terms, k, by_terms, by_sums, i, low):
    """Eisner kernel: backpropagation through `_add`; returns the gradient in the factor.

    by_sums is the gradient of the log-partition in `sums`. The gradient in `terms` is added to by_terms."""
    total = 0.0
    for j in range(low, by_sums.shape[1]):
        by_terms[k, j] += factor * by_sums[i, j]
        total += by_sums[i, j] * terms[k, j]
    return total


@njit(**PLAIN)
def _inside(n, weights, single, charts):
    """Eisner kernel: inside recursion, which fills the array `charts`; returns the total weight of all trees."""
    right, left, rightward, leftward, gap = charts
    charts[:] = 0.0
    for i in range(n, -1, -1):
        right[i, i] = left[i, i] = 1.0
        for k in range(i, n + 1):
            if k > i:
                rightward[i, k] = gap[i, k] * weights[k, i]
                _add(rightward[i, k], right, k, right, i, k)
            if k < n and not (single and i == 0 and k > 0):
                _add(right[i, k], left, k + 1, gap, i, k + 1)
        if i > 0:
            for j in range(i + 1, n + 1):
                leftward[i, j] = gap[i, j] * weights[i, j]
            for k in range(i, n):
                _add(left[i, k], leftward, k, left, i, k + 1)
    return right[0, n]


@njit(**PLAIN)
def _outside(n, weights, single, charts, gradients, marginals):
    """Eisner kernel: outside recursion, which fills `marginals` with the arc marginals of one sentence.

    The marginals are gradients of the log-partition, by backpropagation through `_inside`. `gradients` gets the
    gradient in each chart entry."""
    right, left, rightward, leftward, _ = charts
    by_right, by_left, by_rightward, by_leftward, by_gap = gradients
    gradients[:] = 0.0
    by_right[0, n] = 1.0 / right[0, n]
    for i in range(n + 1):
        if i > 0:
            for k in range(n - 1, i - 1, -1):
                by_left[i, k] += _add_back(left[i, k], leftward, k, by_leftward, by_left, i, k + 1)
            for j in range(i + 1, n + 1):
                by_gap[i, j] += by_leftward[i, j] * weights[i, j]
                marginals[i, j] = by_leftward[i, j] * leftward[i, j]
        for k in range(n, i - 1, -1):
            if k < n and not (single and i == 0 and k > 0):
                by_right[i, k] += _add_back(right[i, k], left, k + 1, by_left, by_gap, i, k + 1)
            if k > i:
                by_rightward[i, k] = _add_back(rightward[i, k], right, k, by_right, by_right, i, k)
                by_gap[i, k] += by_rightward[i, k] * weights[k, i]
                marginals[k, i] = by_rightward[i, k] * rightward[i, k]


@njit(**PLAIN)
def _sum_chunk(sentences, scores, lengths, single, with_marginals, totals, marginals):
    """Eisner kernel: log-partitions and arc marginals of the given sentences, one chunk of the batch."""
    space = np.empty((1 + 2 * CHARTS) * scores.shape[1] ** 2)
    for b in sentences:
        n = lengths[b]
        tables = space[: (1 + 2 * CHARTS) * (n + 1) ** 2].reshape(-1, n + 1, n + 1)  # contiguous, for vectorised loops
        weights, charts = tables[0], tables[1 : 1 + CHARTS]
        scale = load(scores[b], single, weights[1:, 1:], weights[1:, 0])
        total = _inside(n, weights, single, charts)
        totals[b] = scale + math.log(total) if FLOOR * MOST_TREES**n <= total < np.inf else np.nan
        if with_marginals and totals[b] > -np.inf:
            _outside(n, weights, single, charts, tables[1 + CHARTS :], marginals[b])


@njit(parallel=True, **PLAIN)
def sums(scores, lengths, single, with_marginals, totals, marginals):
    """Eisner kernel: sums over projective trees; fills totals [batch] with the log-partition of each sentence.

    A total is NaN if it must be computed in log-space. If `with_marginals` is set, the array `marginals` gets the arc
    marginals. The caller must provide `marginals` filled with zeros, in the shape [batch, n + 1, n + 1]."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # one thread is faster for one chunk
        _sum_chunk(range(len(lengths)), scores, lengths, single, with_marginals, totals, marginals)
        return
    for c in prange(chunks):
        _sum_chunk(range(c, len(lengths), chunks), scores, lengths, single, with_marginals, totals, marginals)


# --- the best tree


@njit(**PLAIN)
def room(size):
    """Eisner kernel: work memory for sentences of at most size - 1 tokens: charts and a stack of spans."""
    return np.empty(CHARTS * size**2), np.empty((4 * size, 3), np.int64)


@njit(**PLAIN)
def _raise(score, terms, k, highest, i, low):
    """Eisner kernel: update the maxima in a chart row for the best projective tree.

    highest[i, j] becomes max(highest[i, j], score + terms[k, j]) for all j >= low."""
    for j in range(low, highest.shape[1]):
        total = score + terms[k, j]
        highest[i, j] = total if total > highest[i, j] else highest[i, j]


@njit(**PLAIN)
def best(scores, single, heads, space):
    """Eisner kernel: fill `heads` with the best projective tree; returns whether a tree exists.

    For n tokens, `heads` has the shape [n + 1]. `scores` has the shape [n + 1, n + 1], with a row per modifier and a
    column per head. `single` tells whether the tree must have a single root. Among splits of a span with equal scores,
    the first is taken."""
    n = len(heads) - 1
    charts = space[0][: CHARTS * (n + 1) ** 2].reshape(CHARTS, n + 1, n + 1)
    right, left, rightward, leftward, gap = charts
    charts[:] = -np.inf
    for i in range(n, -1, -1):
        right[i, i] = left[i, i] = 0.0
        for k in range(i, n + 1):
            if k > i:
                rightward[i, k] = gap[i, k] + scores[k, i]
                _raise(rightward[i, k], right, k, right, i, k)
            if k < n and not (single and i == 0 and k > 0):
                _raise(right[i, k], left, k + 1, gap, i, k + 1)
        if i > 0:
            for j in range(i + 1, n + 1):
                leftward[i, j] = gap[i, j] + scores[i, j]
            for k in range(i, n):
                _raise(left[i, k], leftward, k, left, i, k + 1)
    exists = right[0, n] > -np.inf
    if exists:
        _backtrack(n, charts, space[1], heads)
    return exists


@njit(**PLAIN)
def _first(highest, xs, i, ys, j, low, shift):
    """Eisner kernel: the split point of a span in the best projective tree.

    The span from i to j has the score `highest`. The charts `xs` and `ys` hold the scores of its left and right parts.
    The left part ends at k, and the right part begins at k + shift. Returns the first k >= low with xs[i, k] +
    ys[k + shift, j] = highest."""
    k = low
    while xs[i, k] + ys[k + shift, j] != highest:
        k += 1
    return k


@njit(**PLAIN)
def _backtrack(n, charts, spans, heads):
    """Eisner kernel: read the heads of the best projective tree from the charts, from wide to narrow spans."""
    right, left, rightward, leftward, gap = charts
    heads[0], count = 0, 1
    spans[0] = RIGHT, 0, n
    while count > 0:
        count -= 1
        kind, i, j = spans[count]
        if i == j:
            continue
        if kind == RIGHT:
            k = _first(right[i, j], rightward, i, right, j, i + 1, 0)
            heads[k] = i
            spans[count], spans[count + 1] = (GAP, i, k), (RIGHT, k, j)
        elif kind == LEFT:
            k = _first(left[i, j], left, i, leftward, j, i, 0)
            heads[k] = j
            spans[count], spans[count + 1] = (LEFT, i, k), (GAP, k, j)
        else:
            k = _first(gap[i, j], right, i, left, j, i, 1)
            spans[count], spans[count + 1] = (RIGHT, i, k), (LEFT, k + 1, j)
        count += 2
