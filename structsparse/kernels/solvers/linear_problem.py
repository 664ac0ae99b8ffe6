"""Penalised linear models over a sparse matrix: loss, gradient, penalty and dual objective. Float64, one thread.

The objective is  (1/N) sum_i loss(targets[i], f[i])  with scores f = X w, plus, for each block of features,
cut * |w_block|_1 + reach * |w_block|_2, plus 1/2 sum_j ridge[j] w[j]^2. A block with reach 0 has one feature; a block
with neither cut nor reach is unpenalised (free). Block g has the features `members[bounds[g]:bounds[g + 1]]`. Column j
of X has the entries `starts[j]` to `starts[j + 1]` of `values` and `items`. `chosen` lists the blocks that a kernel
works on. A block lives if one of its weights is nonzero.

For speed, indices are unsigned, which saves the check for negative indices. Functions that are called once per column
take arrays, since a LinearProblem is copied when it is passed.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}
ROUNDS = 60  # iterations of Newton's method for one scalar root, at most; a dozen is usual


class LinearProblem(NamedTuple):
    """A penalised linear model: sparse design matrix by columns, targets, loss and block penalty."""

    values: np.ndarray  # float64 [entries]
    items: np.ndarray  # int32 [entries]
    starts: np.ndarray  # int32 [features + 1]
    members: np.ndarray  # int32 [features]
    bounds: np.ndarray  # int32 [blocks + 1]
    cut: np.ndarray  # float64 [blocks]
    reach: np.ndarray  # float64 [blocks]
    ridge: np.ndarray  # float64 [features]
    targets: np.ndarray  # float64 [items]
    logistic: bool  # logistic loss, else squared loss


# --- the loss log(1 + exp(-y f)) or (f - y)^2 / 2, and its first and second derivative in the score f


@njit(**SERIAL)
def total_loss(problem, scores, slope, curvature):
    """The mean loss; fills slope and curvature [items]: first and second derivative of the loss in each score."""
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
    """The mean convex conjugate of the loss at the dual point scale * slope; infinite outside the domain."""
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


# --- columns of the design matrix


@njit(**SERIAL)
def compress(X):
    """Compressed sparse columns of a dense matrix X: the arrays values, items and starts of the nonzero entries."""
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
    """The dot product of a sparse column, stored in entries first : last, with a vector x [items]."""
    total = 0.0
    for k in range(np.uint64(first), np.uint64(last)):
        total += values[k] * x[np.uint64(items[k])]
    return total


@njit(**SERIAL)
def add_columns(problem, w, chosen, scores):
    """Add to the scores of a linear model: scores += X w, over the features of the chosen blocks."""
    for g in chosen:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            if w[j] != 0:
                for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                    scores[np.uint64(problem.items[k])] += problem.values[k] * w[j]


@njit(**SERIAL)
def gradient(problem, slope, chosen, grad):
    """Gradient of the loss in the weights: grad[j] <- X_j' slope / N, for the features of the chosen blocks."""
    values, items, starts, members, bounds = problem[:5]
    for g in chosen:
        for m in range(np.uint64(bounds[g]), np.uint64(bounds[g + 1])):
            j = np.uint64(members[m])
            grad[j] = dot(values, items, starts[j], starts[j + np.uint64(1)], slope) / slope.size


@njit(**SUMS)
def block_norms(problem, norms):
    """Frobenius norms of blocks: norms[g] <- norm of the columns of block g."""
    for g in range(norms.size):
        total = 0.0
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                total += problem.values[k] * problem.values[k]
        norms[g] = np.sqrt(total)


@njit(**SERIAL)
def restrict(problem, chosen):
    """The linear problem of the chosen blocks alone, with features in block order; and the old feature indices."""
    features = features_of(problem, chosen)
    entries = 0
    for j in features:
        entries += problem.starts[j + 1] - problem.starts[j]
    values, items = np.empty(entries), np.empty(entries, problem.items.dtype)
    starts, entries = np.zeros(features.size + 1, problem.starts.dtype), 0
    for a in range(features.size):
        first, last = problem.starts[features[a]], problem.starts[features[a] + 1]
        values[entries : entries + last - first] = problem.values[first:last]
        items[entries : entries + last - first] = problem.items[first:last]
        entries += last - first
        starts[a + 1] = entries
    bounds = np.zeros(chosen.size + 1, problem.bounds.dtype)
    for c in range(chosen.size):
        bounds[c + 1] = bounds[c] + problem.bounds[chosen[c] + 1] - problem.bounds[chosen[c]]
    members = np.arange(features.size).astype(problem.members.dtype)
    cut, reach, ridge = problem.cut[chosen], problem.reach[chosen], problem.ridge[features]
    return LinearProblem(
        values, items, starts, members, bounds, cut, reach, ridge, problem.targets, problem.logistic
    ), features


@njit(**SERIAL)
def features_of(problem, chosen):
    """The indices of the features of the chosen blocks, block after block."""
    size = 0
    for g in chosen:
        size += problem.bounds[g + 1] - problem.bounds[g]
    features, size = np.empty(size, np.int64), 0
    for g in chosen:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            features[size] = problem.members[m]
            size += 1
    return features


# --- the penalty, and the dual objective


@njit(**SERIAL)
def penalty_value(problem, w, chosen):
    """The penalty of the chosen blocks: lasso (cut), group lasso (reach) and ridge."""
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
    """The soft threshold of x at `cut`, the prox of the lasso."""
    return x - min(max(x, -cut), cut)  # x - x gives no negative zeros


@njit(**SERIAL)
def _soft_norms(members, grad, ridge, w, share, cut):
    """The 2-norm and the 1-norm of soft(share * (grad + ridge * w), cut) over the features of a block."""
    squares, absolute = 0.0, 0.0
    for j in members:
        excess = abs(soft(share * (grad[j] + ridge[j] * w[j]), cut))
        squares += excess * excess
        absolute += excess
    return np.sqrt(squares), absolute


@njit(**SERIAL)
def gauge(problem, grad, w, chosen):
    """The dual norm, of the penalty cut and reach, of v = grad + ridge * w over the chosen blocks.

    The dual norm is the largest root t of |soft(v_g, t * cut)| = t * reach over the blocks g. The difference of the
    two sides is convex and decreasing in t, so Newton's method from the left never passes a root.
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
    """The dual objective at the dual point scale * slope, with a good choice of the dual variables of the ridge term.

    In a block of one feature, the dual variable is the excess of the scaled gradient over the cut, which is optimal.
    In a larger block it is scale * ridge * w; the scale from `gauge` is small enough to make this feasible.
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
    """Screening: out[g] <- distance that slope / N can move while the weights of block g stay zero.

    The distance is minus infinity for a free block and for a block that has a nonzero weight."""
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
            norm = _soft_norms(members[bounds[g] : bounds[g + 1]], grad, ridge, w, scale, cut)[0]
            out[g] = (reach - norm) / norms[g]
