"""Penalised linear models over the columns of a sparse matrix: losses, dual points, gradients. Float64, one thread.

A Problem is  (1/N) sum_i loss(targets[i], f[i])  with f = X w, plus, for each block of features,
cut * |w_block|_1 + reach * |w_block|_2, plus 1/2 sum_j ridge[j] w[j]^2. A block with reach 0 has one feature; one with
neither cut nor reach is free. Columns: features `members[bounds[g]:bounds[g + 1]]` make block g, and the entries
`starts[j]` to `starts[j + 1]` of `values` and `items` make column j. `chosen` lists the blocks that a kernel looks at.

Two habits for speed: unsigned indices need no check for negative ones, and what runs per column gets arrays, since a
Problem handed on is copied.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}
ROUNDS = 60  # of Newton for one root: it ends by itself within a dozen, this bounds what odd input could do


class Problem(NamedTuple):
    values: np.ndarray  # float64 [entries]
    items: np.ndarray  # int32 [entries]
    starts: np.ndarray  # int32 [features + 1]
    members: np.ndarray  # int32 [features]
    bounds: np.ndarray  # int32 [blocks + 1]
    cut: np.ndarray  # float64 [blocks]
    reach: np.ndarray  # float64 [blocks]
    ridge: np.ndarray  # float64 [features]
    targets: np.ndarray  # float64 [items]
    logistic: bool  # or squared


# --- the loss: log(1 + exp(-y f)) or (f - y)^2 / 2, its slope in f and its curvature


@njit(**SERIAL)
def total_loss(problem, scores, slope, curvature):
    """The mean loss; fills slope and curvature [items]."""
    total, targets = 0.0, problem.targets
    if problem.logistic:
        for i in range(targets.size):
            margin = targets[i] * scores[i]
            small = np.exp(-abs(margin))
            total += np.log1p(small) + max(-margin, 0.0)
            miss = (small if margin > 0 else 1.0) / (1 + small)
            slope[i] = -targets[i] * miss
            curvature[i] = small / ((1 + small) * (1 + small))
    else:
        for i in range(targets.size):
            slope[i] = scores[i] - targets[i]
            curvature[i] = 1.0
            total += slope[i] * slope[i] / 2
    return total / targets.size


@njit(**SERIAL)
def loss_conjugate(problem, slope, scale):
    """The mean of the conjugate of the loss at scale * slope; infinite outside its domain."""
    total, targets = 0.0, problem.targets
    for i in range(targets.size):
        dual = scale * slope[i]
        if problem.logistic:
            miss = -targets[i] * dual
            if miss < 0 or miss > 1:
                return np.inf
            if 0 < miss < 1:
                total += miss * np.log(miss) + (1 - miss) * np.log1p(-miss)
        else:
            total += dual * (dual / 2 + targets[i])
    return total / targets.size


# --- columns


@njit(**SERIAL)
def compress(X):
    """The columns of a dense matrix: values, items, starts."""
    starts = np.zeros(X.shape[1] + 1, np.int32)
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            starts[j + 1] += X[i, j] != 0
    for j in range(X.shape[1]):
        starts[j + 1] += starts[j]
    values, items, ends = np.empty(starts[-1]), np.empty(starts[-1], np.int32), starts[:-1].copy()
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            if X[i, j] != 0:
                values[ends[j]], items[ends[j]] = X[i, j], i
                ends[j] += 1
    return values, items, starts


@njit(**SUMS)
def dot(values, items, first, last, x):
    """A column, its entries from first to last, times x [items]."""
    total = 0.0
    for k in range(np.uint64(first), np.uint64(last)):
        total += values[k] * x[np.uint64(items[k])]
    return total


@njit(**SERIAL)
def add_columns(problem, w, chosen, scores):
    """scores += X w over the chosen blocks."""
    for g in chosen:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            if w[j] != 0:
                for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                    scores[np.uint64(problem.items[k])] += problem.values[k] * w[j]


@njit(**SERIAL)
def gradient(problem, slope, chosen, grad):
    """grad[j] <- X_j' slope / N over the chosen blocks."""
    values, items, starts, members, bounds = problem[:5]
    for g in chosen:
        for m in range(np.uint64(bounds[g]), np.uint64(bounds[g + 1])):
            j = np.uint64(members[m])
            grad[j] = dot(values, items, starts[j], starts[j + np.uint64(1)], slope) / slope.size


@njit(**SUMS)
def block_norms(problem, norms):
    """norms[g] <- Frobenius norm of the columns of block g."""
    for g in range(norms.size):
        total = 0.0
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                total += problem.values[k] * problem.values[k]
        norms[g] = np.sqrt(total)


@njit(**SERIAL)
def restrict(problem, chosen):
    """The chosen blocks as a problem of its own, with features in the order of the blocks, and which these were."""
    kept = features_of(problem, chosen)
    entries = 0
    for j in kept:
        entries += problem.starts[j + 1] - problem.starts[j]
    values, items = np.empty(entries), np.empty(entries, problem.items.dtype)
    starts, entries = np.zeros(kept.size + 1, problem.starts.dtype), 0
    for a in range(kept.size):
        first, last = problem.starts[kept[a]], problem.starts[kept[a] + 1]
        values[entries : entries + last - first] = problem.values[first:last]
        items[entries : entries + last - first] = problem.items[first:last]
        entries += last - first
        starts[a + 1] = entries
    bounds = np.zeros(chosen.size + 1, problem.bounds.dtype)
    for c in range(chosen.size):
        bounds[c + 1] = bounds[c] + problem.bounds[chosen[c] + 1] - problem.bounds[chosen[c]]
    members = np.arange(kept.size).astype(problem.members.dtype)
    cut, reach, ridge = problem.cut[chosen], problem.reach[chosen], problem.ridge[kept]
    return Problem(values, items, starts, members, bounds, cut, reach, ridge, problem.targets, problem.logistic), kept


@njit(**SERIAL)
def features_of(problem, chosen):
    """Features of the chosen blocks, block after block."""
    size = 0
    for g in chosen:
        size += problem.bounds[g + 1] - problem.bounds[g]
    features, size = np.empty(size, np.int64), 0
    for g in chosen:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            features[size] = problem.members[m]
            size += 1
    return features


# --- the penalty, and the dual point


@njit(**SERIAL)
def penalty_value(problem, w, chosen):
    total = 0.0
    for g in chosen:
        absolute, squares = 0.0, 0.0
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            absolute += abs(w[j])
            squares += w[j] * w[j]
            total += problem.ridge[j] * w[j] * w[j] / 2
        total += problem.cut[g] * absolute + problem.reach[g] * np.sqrt(squares)
    return total


@njit(**SERIAL)
def soft(x, cut):
    return x - min(max(x, -cut), cut)  # x - x: no negative zeros


@njit(**SERIAL)
def _soft_norms(members, grad, ridge, w, share, cut):
    """Norm and sum of |soft(share * (grad + ridge * w), cut)| over the members of a block."""
    squares, absolute = 0.0, 0.0
    for j in members:
        rest = abs(soft(share * (grad[j] + ridge[j] * w[j]), cut))
        squares += rest * rest
        absolute += rest
    return np.sqrt(squares), absolute


@njit(**SERIAL)
def gauge(problem, grad, w, chosen):
    """The dual norm of grad + ridge * w over the penalised of the chosen blocks.

    It is the largest root t of |soft(v_g, t * cut)| = t * reach. The difference of the two sides is convex and
    decreasing in t, so Newton from the left never passes the root; what is left of one root is left of the largest.
    """
    largest, members, bounds, ridge = 0.0, problem.members, problem.bounds, problem.ridge
    for g in chosen:
        cut, reach = problem.cut[g], problem.reach[g]
        if reach == 0:
            j = members[bounds[g]]
            if cut > 0:
                largest = max(largest, abs(grad[j] + ridge[j] * w[j]) / cut)
            continue
        for _ in range(ROUNDS):
            norm, absolute = _soft_norms(members[bounds[g] : bounds[g + 1]], grad, ridge, w, 1.0, largest * cut)
            excess = norm - largest * reach
            if excess <= 4e-16 * norm:
                break
            largest += excess / (reach + cut * absolute / norm)
    return largest


@njit(**SERIAL)
def dual_value(problem, slope, scale, grad, w, chosen):
    """The dual objective at scale * slope, with what the ridge takes off each feature chosen well.

    Alone in its block a feature with a ridge leaves the excess of its scaled gradient over the cut to it, which is
    best; a block takes off scale * ridge * w, for which `gauge` has made the scale small enough.
    """
    value = -loss_conjugate(problem, slope, scale)
    for g in chosen:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            if problem.ridge[j] > 0:
                if problem.reach[g] == 0:
                    taken = soft(scale * grad[j], problem.cut[g])
                    value -= taken * taken / (2 * problem.ridge[j])
                else:
                    taken = scale * w[j]
                    value -= problem.ridge[j] * taken * taken / 2
    return value


@njit(**SERIAL)
def distances(problem, grad, w, scale, norms, chosen, out):
    """out[g] <- how far the slope over N may move before block g can live: minus infinity where it lives already."""
    members, bounds, ridge = problem.members, problem.bounds, problem.ridge
    for g in chosen:
        cut, reach = problem.cut[g], problem.reach[g]
        living = cut == 0 and reach == 0
        for m in range(bounds[g], bounds[g + 1]):
            living |= w[members[m]] != 0
        if living:
            out[g] = -np.inf
        elif norms[g] == 0:
            out[g] = np.inf
        elif reach == 0:
            out[g] = (cut - abs(scale * grad[members[bounds[g]]])) / norms[g]
        else:
            rest = _soft_norms(members[bounds[g] : bounds[g + 1]], grad, ridge, w, scale, cut)[0]
            out[g] = (reach - rest) / norms[g]
