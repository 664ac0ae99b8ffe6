"""Sums over all dependency trees of a sentence on the CPU: tokens are eliminated one after the other.

The total weight of the trees is a determinant (the matrix-tree theorem), and a determinant of this kind is the
product of the pivots of an elimination that only ever adds, multiplies and divides what is not negative: a token e
goes, and whoever took it as head takes, in the same shares, the heads that e would have taken. Nothing is
subtracted, so nothing cancels: every pivot is right to almost its last digit, however close to singular the matrix
is. A factorisation that subtracts is not: with scores of scale 50 it keeps no digit of the marginals.

The marginals of a token k are its weights times the probability that a walk from the head, by those shares, ends at
the root before it comes by k (Wilson). They want an elimination in which k remains: half of the tokens are
eliminated, then those of the other half are looked at in the same way, and the same for the first half. All n take
together as many steps as about four eliminations do.

With a single root, arcs from the root count as infinitely small: what remains are the trees that have the fewest. As
long as a token has another way to go, the shares of the heads leave the root out; the first that has none `closes`
the sum: it is below the root, and all others have to reach it.

Arithmetic is on float64 weights, those of a token divided by the largest. A sentence in which a product could fall
out of range is answered with NaN and left to log-space: slower, and right for any scores.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import PLAIN, SUMS, exp_below
from structsparse.kernels.structures.chain import chunk_count

TRACE, FLOOR, REACH = 1e-300, 1e-280, 690.0  # smallest product, smallest sum, largest difference of scores


class Room(NamedTuple):
    """Work space for a sentence of n tokens. Depth is how often they were halved."""

    tables: np.ndarray  # [depth, n, n] weights of the heads of each token, without the root; those at depth 0 stay
    exits: np.ndarray  # [depth, n] weights of the root
    steps: np.ndarray  # [n, n] shares of the heads of the tokens removed so far, the first one first
    outs: np.ndarray  # [n] shares of the root
    removed: np.ndarray  # [n, 3] which token it was, and from where to where the tokens that remained
    reach: np.ndarray  # [n] probability that a walk from a token ends at the root
    tasks: np.ndarray  # [depth + 1, 6] what is still to be halved: see _sum


@njit(**PLAIN)
def load(scores, single, table, exits):
    """Weights of the heads of each token [n, n] and of the root [n]; the logarithm of what they were divided by.

    NaN if they are more than REACH apart. With a single root its weights have a scale of their own: there is one."""
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
    """Eliminate token e, low..high remain: the pivot, and the share of the root.

    Fills step[low:high] with the shares of the heads. A pivot of zero says that there is no tree, NaN that a product
    could fall out of range."""
    total = 0.0 if opened else exits[e]
    for h in range(low, high):
        total += table[e, h]
    if total == 0.0:
        if not opened or exits[e] == 0.0:
            return 0.0, 0.0
        total = exits[e]
        exits[low:high] = 0.0  # another arc from the root would be a second
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
def _expect(k, done, closer, room, row):
    """Fill row [n + 1] with the marginals of the heads of token k, which alone remains; whether all is in range."""
    reach = room.reach
    reach[k] = 0.0
    for d in range(done - 1, -1, -1):
        e, low, high = room.removed[d]
        total, step = room.outs[d] if d >= closer else 0.0, room.steps[d]
        for h in range(low, high):
            total += step[h] * reach[h]
        reach[e] = total
    row[0] = room.exits[0, k] if closer < 0 else 0.0
    total, own = row[0], room.tables[0, k]
    for h in range(len(own)):
        row[h + 1] = own[h] * reach[h]
        total += row[h + 1]
    for h in range(len(row)):
        row[h] /= total
    return FLOOR <= total < np.inf


@njit(**PLAIN)
def _halve(low, high, second, depth, done, closer, single, room):
    """Of low..high eliminate the second half, or the first: log of the product of the pivots, and the closer."""
    table, exits = room.tables[depth + 1], room.exits[depth + 1]
    table[low:high, low:high] = room.tables[depth, low:high, low:high]
    exits[low:high] = room.exits[depth, low:high]
    middle, pivots = (low + high + 1) // 2, 0.0
    for i in range(high - middle if second else middle - low):
        e, left, right = (high - 1 - i, low, high - 1 - i) if second else (low + i, low + i + 1, high)
        opened = single and closer < 0
        step = room.steps[done + i]
        pivot, room.outs[done + i] = _remove(e, left, right, table, exits, step, opened)
        if not pivot > 0.0:
            return np.log(pivot), closer
        if opened and not step[left:right].any():
            closer = done + i
        room.removed[done + i] = e, left, right
        pivots += math.log(pivot)
    return pivots, closer


@njit(**PLAIN)
def _finish(k, depth, done, closer, wanted, room, marginals):
    """Token k alone remains: the logarithm of its pivot, NaN if something is out of range; fills its marginals."""
    last = room.exits[depth, k]
    if wanted and last > 0.0 and not _expect(k, done, closer, room, marginals[k]):
        return np.nan
    return np.log(last) if last < np.inf else np.nan


@njit(**PLAIN)
def _sum(n, single, wanted, room, marginals):
    """log of the total weight of the trees; fills marginals [n, n + 1], each token's when it alone remains."""
    if n == 1:
        return _finish(0, 0, 0, -1, wanted, room, marginals)
    tasks = room.tasks
    tasks[0], tasks[1] = (0, n, 0, 0, 0, -1), (0, n, 1, 0, 0, -1)
    count, total, summed = 2, 0.0, False
    while count > 0:
        count -= 1
        low, high, second, depth, done, closer = tasks[count]
        pivots, closer = _halve(low, high, second == 1, depth, done, closer, single, room)
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
            pivot = _finish(low, depth, done, closer, wanted, room, marginals)
        if not pivot > -np.inf:
            return pivot
        if not summed:
            total += pivots + pivot
            summed = high - low == 1
            if summed and not wanted:
                return total
    return total


@njit(**PLAIN)
def _depths(n):
    return 2 + int(np.ceil(np.log2(max(n, 1))))


@njit(**PLAIN)
def _room(n, space):
    """Cut from a flat space without gaps, so that rows go in vectors."""
    depths = _depths(n)
    steps, end = depths * n * n, (depths + 1) * n * n
    tables, exits = space[:steps].reshape(depths, n, n), np.empty((depths, n))
    removed, tasks = np.empty((n, 3), np.int64), np.empty((depths + 1, 6), np.int64)
    return Room(tables, exits, space[steps:end].reshape(n, n), np.empty(n), removed, np.empty(n), tasks)


@njit(**PLAIN)
def _sum_chunk(mine, scores, lengths, single, wanted, totals, marginals):
    longest = scores.shape[1] - 1
    space = np.empty((_depths(longest) + 1) * longest**2)
    for b in mine:
        n = lengths[b]
        room = _room(n, space)
        own = marginals[b, 1 : n + 1, : n + 1] if wanted else marginals[0]
        totals[b] = load(scores[b], single, room.tables[0], room.exits[0])
        if not np.isnan(totals[b]):
            totals[b] += _sum(n, single, wanted, room, own)
        if wanted and not totals[b] > -np.inf:
            own[:] = 0.0  # no tree: no arc is expected


@njit(parallel=True, **PLAIN)
def sums(scores, lengths, single, wanted, totals, marginals):
    """Fill totals [batch] with log Z, NaN where it has to be looked for in log-space; and, where `wanted`, the
    marginals [batch, n + 1, n + 1], which come as zeros."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # waking the threads would cost more than they save
        _sum_chunk(range(len(lengths)), scores, lengths, single, wanted, totals, marginals)
        return
    for c in prange(chunks):
        _sum_chunk(range(c, len(lengths), chunks), scores, lengths, single, wanted, totals, marginals)
