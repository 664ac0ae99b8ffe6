"""Projective dependency trees on the CPU: Eisner's charts, in log-space, over the positions 0 (root) to n.

A span i..j is *complete* if one of its ends is the head of all the rest, and *joined* if an arc links its ends:

    gap[i, j]      = sum over k in i..j-1 of right[i, k] * left[k + 1, j]
    arc i -> j     = gap[i, j] * exp(scores[j, i]),  arc j -> i  = gap[i, j] * exp(scores[i, j])
    right[i, j]    = sum over k in i+1..j of (arc i -> k) * right[k, j]          headed by i
    left[i, j]     = sum over k in i..j-1 of left[i, k] * (arc k -> j reversed)  headed by j

Every tree is put together in one way. With a single root its first arc must be its last: gap[0, j] has k = 0 alone.
A chart is kept by its left ends, [i, j], or by its right ends, [j, i], or both, such that all sums run along rows.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.chain import chunk_count
from structsparse.kernels.logspace import PLAIN, SUMS, exp_below

RIGHT, RIGHT_BACK, LEFT, LEFT_BACK, RIGHTWARD, LEFTWARD_BACK, GAP = range(7)  # the charts
CHARTS = 7


@njit(**SUMS)
def _log_dot(xs, ys):
    """log sum exp(xs + ys)."""
    peak, total = -np.inf, 0.0
    for k in range(len(xs)):
        peak = xs[k] + ys[k] if xs[k] + ys[k] > peak else peak
    shift = peak if peak > -np.inf else 0.0
    for k in range(len(xs)):
        total += exp_below(xs[k] + ys[k] - shift)
    return np.log(total) + shift


@njit(**SUMS)
def _share(mass, total, xs, ys, to_xs, to_ys):
    """Deal the mass of a sum `total` = log sum exp(xs + ys) to its terms."""
    if mass > 0.0:
        for k in range(len(xs)):
            part = mass * exp_below(min(xs[k] + ys[k] - total, 0.0))
            to_xs[k] += part
            to_ys[k] += part


@njit(**PLAIN)
def _inside(n, scores, single, charts):
    """Fill the charts [7, n + 1, n + 1]; returns log Z."""
    right, right_back, left, left_back, rightward, leftward_back, gap = charts
    for i in range(n + 1):
        right[i, i] = right_back[i, i] = left[i, i] = left_back[i, i] = 0.0
    for width in range(1, n + 1):
        for i in range(n + 1 - width):
            j = i + width
            stop = 1 if single and i == 0 else j
            gap[i, j] = _log_dot(right[i, i:stop], left_back[j, i + 1 : stop + 1])
            rightward[i, j] = gap[i, j] + scores[j, i]
            right[i, j] = _log_dot(rightward[i, i + 1 : j + 1], right_back[j, i + 1 : j + 1])
            right_back[j, i] = right[i, j]
            if i > 0:
                leftward_back[j, i] = gap[i, j] + scores[i, j]
                left[i, j] = _log_dot(left[i, i:j], leftward_back[j, i:j])
                left_back[j, i] = left[i, j]
    return right[0, n]


@njit(**PLAIN)
def _outside(n, single, charts, masses, marginals):
    """Fill marginals [n + 1, n + 1]: the mass of the whole is dealt to the spans that it is put together from."""
    right, right_back, left, left_back, rightward, leftward_back, gap = charts
    to_right, to_right_back, to_left, to_left_back, to_rightward, to_leftward_back, _ = masses
    masses[:] = 0.0
    to_right[0, n] = 1.0
    for width in range(n, 0, -1):
        for i in range(n + 1 - width):
            j = i + width
            stop = 1 if single and i == 0 else j
            low, high = slice(i, j), slice(i + 1, j + 1)
            mass = to_right[i, j] + to_right_back[j, i]
            ways = rightward[i, high], right_back[j, high]
            _share(mass, right[i, j], *ways, to_rightward[i, high], to_right_back[j, high])
            if i > 0:
                mass = to_left[i, j] + to_left_back[j, i]
                _share(mass, left[i, j], left[i, low], leftward_back[j, low], to_left[i, low], to_leftward_back[j, low])
                marginals[i, j] = to_leftward_back[j, i]
            marginals[j, i] = to_rightward[i, j]
            mass = to_rightward[i, j] + to_leftward_back[j, i]
            low, high = slice(i, stop), slice(i + 1, stop + 1)
            _share(mass, gap[i, j], right[i, low], left_back[j, high], to_right[i, low], to_left_back[j, high])


@njit(**PLAIN)
def _sum_chunk(mine, scores, lengths, single, wanted, totals, marginals):
    size = scores.shape[1]
    charts, masses = np.empty((CHARTS, size, size)), np.empty((CHARTS, size, size))
    for b in mine:
        n = lengths[b]
        own = charts[:, : n + 1, : n + 1]
        totals[b] = _inside(n, scores[b], single, own)
        if wanted and totals[b] > -np.inf:
            _outside(n, single, own, masses[:, : n + 1, : n + 1], marginals[b])


@njit(parallel=True, **PLAIN)
def sums(scores, lengths, single, wanted, totals, marginals):
    """Fill totals [batch] with log Z and, where `wanted`, the marginals [batch, n + 1, n + 1], which come as zeros."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # waking the threads would cost more than they save
        _sum_chunk(range(len(lengths)), scores, lengths, single, wanted, totals, marginals)
        return
    for c in prange(chunks):
        _sum_chunk(range(c, len(lengths), chunks), scores, lengths, single, wanted, totals, marginals)


# --- the best tree


@njit(**PLAIN)
def room(size):
    """Work space for `best` of up to size - 1 tokens: charts, where each best sum splits, spans to be opened."""
    return np.empty((CHARTS, size, size)), np.empty((CHARTS, size, size), np.int64), np.empty((4 * size, 3), np.int64)


@njit(**PLAIN)
def _highest(xs, ys):
    """The largest xs + ys, and the first place where it is."""
    best, place = -np.inf, 0
    for k in range(len(xs)):
        if xs[k] + ys[k] > best:
            best, place = xs[k] + ys[k], k
    return best, place


@njit(**PLAIN)
def best(scores, single, heads, space):
    """Fill heads [n + 1] with the best tree of scores [n + 1, n + 1]; whether there is one."""
    n = len(heads) - 1
    charts, splits, _ = space
    right, right_back, left, left_back, rightward, leftward_back, gap = charts
    for i in range(n + 1):
        right[i, i] = right_back[i, i] = left[i, i] = left_back[i, i] = 0.0
    for width in range(1, n + 1):
        for i in range(n + 1 - width):
            j = i + width
            stop = 1 if single and i == 0 else j
            gap[i, j], k = _highest(right[i, i:stop], left_back[j, i + 1 : stop + 1])
            splits[GAP, i, j] = i + k
            rightward[i, j] = gap[i, j] + scores[j, i]
            right[i, j], k = _highest(rightward[i, i + 1 : j + 1], right_back[j, i + 1 : j + 1])
            splits[RIGHT, i, j] = i + 1 + k
            right_back[j, i] = right[i, j]
            if i > 0:
                leftward_back[j, i] = gap[i, j] + scores[i, j]
                left[i, j], k = _highest(left[i, i:j], leftward_back[j, i:j])
                splits[LEFT, i, j] = i + k
                left_back[j, i] = left[i, j]
    if not right[0, n] > -np.inf:
        return False
    _open(n, space, heads)
    return True


@njit(**PLAIN)
def _open(n, space, heads):
    """Read off the heads, from the whole to its parts."""
    _, splits, spans = space
    heads[0], count = 0, 1
    spans[0] = RIGHT, 0, n
    while count > 0:
        count -= 1
        kind, i, j = spans[count]
        if i == j:
            continue
        k = splits[kind, i, j]
        if kind == RIGHT:
            heads[k] = i
            spans[count] = GAP, i, k
            spans[count + 1] = RIGHT, k, j
        elif kind == LEFT:
            heads[k] = j
            spans[count] = LEFT, i, k
            spans[count + 1] = GAP, k, j
        else:
            spans[count] = RIGHT, i, k
            spans[count + 1] = LEFT, k + 1, j
        count += 2
