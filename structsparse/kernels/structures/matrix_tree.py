"""Matrix-tree kernels: sums over all dependency trees of a sentence, by an elimination without subtraction.

By the matrix-tree theorem, the total weight of the trees is a determinant. It is computed as the product of the pivots
of an elimination. When token e is eliminated, every token that could take e as its head takes the possible heads of e
instead, in proportion to their weights. Nothing is subtracted, and no precision is lost by cancellation.

- The share of a head is the weight of its arc divided by the summed weights of all heads of the token.
- A random walk steps from a token to one of its heads, with the shares as probabilities.
- The marginal of an arc from head h to token k is proportional to the weight of the arc, times the probability that the
  walk from h reaches the root before k (Wilson).
- This probability needs an elimination of all tokens but k. The eliminations for all k share work: one half of the
  tokens is eliminated and the other half is treated recursively, and vice versa.

With a single root, the weights of arcs from the root count as infinitely small. Only trees with one such arc are left.

For each token, the float64 weights of the heads are divided by the largest weight. If a product could underflow, the
result of the sentence is NaN, and the caller computes it again in log-space.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import PLAIN, SUMS, exp_below
from structsparse.kernels.structures.chain import chunk_count

TRACE, FLOOR, REACH = 1e-300, 1e-280, 690.0  # limits: smallest product, smallest sum, largest difference of scores


class Elimination(NamedTuple):
    """Work memory of the matrix-tree kernel for the elimination of n tokens.

    tables[d] and exits[d] are for a set of tokens that has been halved d times, with d < depth."""

    tables: np.ndarray  # [depth, n, n]: weights of the heads of each token, without the root; input at index 0
    exits: np.ndarray  # [depth, n]: weight of the root as head of each token
    steps: np.ndarray  # [n, n]: for each eliminated token in turn, the shares of its heads
    outs: np.ndarray  # [n]: for each eliminated token in turn, the share of the root as its head
    removed: np.ndarray  # [n, 3]: each eliminated token in turn, and the range (begin, end) of tokens left after it
    reach: np.ndarray  # [n]: probability that a random walk from each token ends at the root
    tasks: np.ndarray  # [depth + 1, 6]: stack of calls of `_halve` still to be made, each with its first six arguments


@njit(**PLAIN)
def load(scores, single, table, exits):
    """Matrix-tree kernel: turn the arc scores of a sentence into weights of the heads of each token.

    table [n, n] gets the weights of tokens as heads, and exits [n] the weights of the root as head. For each token, the
    weights of all heads are divided by the largest of them. With a single root, the divisor is the largest weight of a
    head other than the root. All elements of `exits` are then divided by the largest element of `exits`. Returns the
    logarithm of the product of all divisors, or NaN if scores are more than REACH apart."""
    n = len(exits)
    scale, tame, top = 0.0, True, -np.inf
    for m in range(n):
        row, peak = scores[m + 1], -np.inf
        for h in range(1 if single else 0, n + 1):
            peak = row[h] if h != m + 1 and row[h] > peak else peak
        peak = peak if peak > -np.inf else 0.0
        for h in range(n):
            table[m, h] = 0.0 if h == m else exp_below(row[h + 1] - peak)
            tame &= h == m or row[h + 1] == -np.inf or row[h + 1] - peak > -REACH
        exits[m] = row[0] - peak
        top = max(top, exits[m])
        scale += peak
    top = top if single and top > -np.inf else 0.0
    for m in range(n):
        tame &= exits[m] == -np.inf or exits[m] - top > -REACH
        exits[m] = exp_below(exits[m] - top)
    return (scale + top) if tame else np.nan


@njit(**SUMS)
def _remove(e, low, high, table, exits, step, opened):
    """Matrix-tree kernel: eliminate token e, which leaves the tokens low to high - 1.

    Fills step[low:high] with the shares of the other tokens as heads of e. Returns the pivot, and the share of the root
    as head of e. A pivot of 0 means that no tree exists, and NaN that a product could underflow. `opened` tells whether
    a single root is required and the only child of the root has not been eliminated yet."""
    total = 0.0 if opened else exits[e]
    for h in range(low, high):
        total += table[e, h]
    if total == 0.0:
        if not opened or exits[e] == 0.0:
            return 0.0, 0.0
        total = exits[e]
        exits[low:high] = 0.0  # e is the only child of a single root; no other token can be its child
    out = exits[e] / total
    least, thinnest = out if out > 0.0 else np.inf, np.inf
    for h in range(low, high):
        step[h] = table[e, h] / total
        least = step[h] if 0.0 < step[h] < least else least
    for m in range(low, high):
        weight = table[m, e]
        if weight > 0.0:
            thinnest = min(thinnest, weight)
            row = table[m]
            for h in range(low, high):
                row[h] += weight * step[h]
            row[m] = 0.0
            exits[m] += weight * out
    return (np.nan if least * thinnest < TRACE else total), out


@njit(**SUMS)
def _expect(k, done, closer, memory, row):
    """Matrix-tree kernel: fill the array `row` with the head marginals of token k, after eliminating all other tokens.

    `done` is the count of eliminated tokens. `closer` is the index of the step that eliminated the only child of a
    single root, or -1 for none. Returns False if the sum of the unnormalised marginals is out of range."""
    reach = memory.reach
    reach[k] = 0.0
    for d in range(done - 1, -1, -1):
        e, low, high = memory.removed[d]
        total, step = memory.outs[d] if d >= closer else 0.0, memory.steps[d]
        for h in range(low, high):
            total += step[h] * reach[h]
        reach[e] = total
    row[0] = memory.exits[0, k] if closer < 0 else 0.0
    total, weights = row[0], memory.tables[0, k]
    for h in range(len(weights)):
        row[h + 1] = weights[h] * reach[h]
        total += row[h + 1]
    for h in range(len(row)):
        row[h] /= total
    return FLOOR <= total < np.inf


@njit(**PLAIN)
def _halve(low, high, second, depth, done, closer, single, memory):
    """Matrix-tree kernel: eliminate one half of the tokens low to high - 1: the second half if `second` is set.

    Returns the logarithm of the product of the pivots, and the updated value of `closer`. `closer` is the index of the
    step that eliminated the only child of a single root, or -1 for none."""
    table, exits = memory.tables[depth + 1], memory.exits[depth + 1]
    table[low:high, low:high] = memory.tables[depth, low:high, low:high]
    exits[low:high] = memory.exits[depth, low:high]
    middle, pivots = (low + high + 1) // 2, 0.0
    for i in range(high - middle if second else middle - low):
        e, left, right = (high - 1 - i, low, high - 1 - i) if second else (low + i, low + i + 1, high)
        opened = single and closer < 0
        step = memory.steps[done + i]
        pivot, memory.outs[done + i] = _remove(e, left, right, table, exits, step, opened)
        if not pivot > 0.0:
            return np.log(pivot), closer
        if opened and not step[left:right].any():
            closer = done + i
        memory.removed[done + i] = e, left, right
        pivots += math.log(pivot)
    return pivots, closer


@njit(**PLAIN)
def _finish(k, depth, done, closer, with_marginals, memory, marginals):
    """Matrix-tree kernel: the logarithm of the last pivot, or NaN if it is out of range.

    The last pivot belongs to token k, after all other tokens were eliminated. If `with_marginals` is set, fills the
    head marginals of token k."""
    last = memory.exits[depth, k]
    if with_marginals and last > 0.0 and not _expect(k, done, closer, memory, marginals[k]):
        return np.nan
    return np.log(last) if last < np.inf else np.nan


@njit(**PLAIN)
def _sum(n, single, with_marginals, memory, marginals):
    """Matrix-tree kernel: the logarithm of the total weight of all dependency trees of a sentence.

    If `with_marginals` is set, fills the head marginals of all tokens, an array of shape [n, n + 1]."""
    if n == 1:
        return _finish(0, 0, 0, -1, with_marginals, memory, marginals)
    tasks = memory.tasks
    tasks[0], tasks[1] = (0, n, 0, 0, 0, -1), (0, n, 1, 0, 0, -1)
    count, total, summed = 2, 0.0, False
    while count > 0:
        count -= 1
        low, high, second, depth, done, closer = tasks[count]
        pivots, closer = _halve(low, high, second == 1, depth, done, closer, single, memory)
        if not pivots > -np.inf:
            return pivots
        middle = (low + high + 1) // 2
        low, high, done = (low, middle, done + high - middle) if second else (middle, high, done + middle - low)
        depth += 1
        if high - low > 1:
            tasks[count], tasks[count + 1] = (low, high, 0, depth, done, closer), (low, high, 1, depth, done, closer)
            count += 2
            pivot = 0.0
        else:
            pivot = _finish(low, depth, done, closer, with_marginals, memory, marginals)
        if not pivot > -np.inf:
            return pivot
        if not summed:
            total += pivots + pivot
            summed = high - low == 1
            if summed and not with_marginals:
                return total
    return total


@njit(**PLAIN)
def _depths(n):
    """Matrix-tree kernel: the number of weight tables that repeated halving of n tokens needs."""
    return 2 + int(np.ceil(np.log2(max(n, 1))))


@njit(**PLAIN)
def _memory_for(n, space):
    """Matrix-tree kernel: work memory for the elimination of n tokens.

    Tables are contiguous slices of the flat array `space`, so that the compiler can vectorise."""
    depths = _depths(n)
    steps, end = depths * n * n, (depths + 1) * n * n
    tables, exits = space[:steps].reshape(depths, n, n), np.empty((depths, n))
    removed, tasks = np.empty((n, 3), np.int64), np.empty((depths + 1, 6), np.int64)
    return Elimination(tables, exits, space[steps:end].reshape(n, n), np.empty(n), removed, np.empty(n), tasks)


@njit(**PLAIN)
def _sum_chunk(sentences, scores, lengths, single, with_marginals, totals, marginals):
    """Matrix-tree kernel: log-partitions and arc marginals of the given sentences, one chunk of the batch."""
    longest = scores.shape[1] - 1
    space = np.empty((_depths(longest) + 1) * longest**2)
    for b in sentences:
        n = lengths[b]
        memory = _memory_for(n, space)
        rows = marginals[b, 1 : n + 1, : n + 1] if with_marginals else marginals[0]
        totals[b] = load(scores[b], single, memory.tables[0], memory.exits[0])
        if not np.isnan(totals[b]):
            totals[b] += _sum(n, single, with_marginals, memory, rows)
        if with_marginals and not totals[b] > -np.inf:
            rows[:] = 0.0  # no tree exists, or the total is NaN


@njit(parallel=True, **PLAIN)
def sums(scores, lengths, single, with_marginals, totals, marginals):
    """Matrix-tree kernel: sums over all dependency trees; fills totals [batch] with log-partitions.

    A total is NaN if it must be computed in log-space. If `with_marginals` is set, the array `marginals` gets the arc
    marginals. The caller must provide `marginals` filled with zeros, in the shape [batch, n + 1, n + 1]."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # one thread is faster for one chunk
        _sum_chunk(range(len(lengths)), scores, lengths, single, with_marginals, totals, marginals)
        return
    for c in prange(chunks):
        _sum_chunk(range(c, len(lengths), chunks), scores, lengths, single, with_marginals, totals, marginals)
