"""Linear problem kernels: loss, gradient, penalty and dual objective of penalised linear models.

The objective in the weights w is

    (1/N) sum_i loss(targets[i], f[i]) + sum_g (cut[g] * |w_g|_1 + reach[g] * |w_g|_2) + 1/2 sum_j ridge[j] w[j]^2

with N items i, features j, and the scores f = X w for the design matrix X. w_g are the weights of block g. A block is a
set of features.

- A block with reach 0 has one feature.
- A block with cut 0 and reach 0 is unpenalised.
- A living block has a nonzero weight.
- Many functions take a list of block indices, `chosen`, and ignore all other blocks.

All kernels run on one thread, in float64. Indices are unsigned to save the check for negative indices.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

SERIAL = {"cache": True, "nogil": True, "error_model": "numpy"}
SUMS = {**SERIAL, "fastmath": {"reassoc", "contract"}}
ROUNDS = 60  # maximum iterations of Newton's method for one scalar root; usually about 12 are needed


class LinearProblem(NamedTuple):
    """Linear problem of the kernels: sparse design matrix by columns, targets, loss and block penalty.

    Column j of the design matrix has the entries starts[j] : starts[j + 1] of `values` and `items`. Block g has the
    features members[bounds[g] : bounds[g + 1]]."""

    values: np.ndarray  # float64 [entries]: nonzero entries of the design matrix, column after column
    items: np.ndarray  # int32 [entries]: the item (row of the design matrix) of each entry in `values`
    starts: np.ndarray  # int32 [features + 1]: where each column of the design matrix begins in `values`
    members: np.ndarray  # int32 [features]: the features of all blocks, block after block
    bounds: np.ndarray  # int32 [blocks + 1]: where each block begins in `members`
    cut: np.ndarray  # float64 [blocks]: strength of the lasso on each block
    reach: np.ndarray  # float64 [blocks]: strength of the group lasso on each block
    ridge: np.ndarray  # float64 [features]: strength of the ridge penalty on each weight
    targets: np.ndarray  # float64 [items]: 1 or -1 for the logistic loss, any number for the squared loss
    logistic: bool  # whether the loss is logistic; otherwise it is the squared loss


# --- the loss log(1 + exp(-y f)) or (f - y)^2 / 2 of a target y and a score f


@njit(**SERIAL)
def total_loss(problem, scores, slope, curvature):
    """Linear problem kernel: the mean loss over the items, and the derivatives of the loss in the scores.

    Fills `slope` and `curvature`, arrays [items], with the first and second derivative of each item's loss in its
    score."""
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
    """Linear problem kernel: the mean convex conjugate of the loss at the dual point scale * slope.

    `slope` [items] is the derivative of the loss in each score. The result is infinite outside the domain of the
    conjugate."""
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
    """Linear problem kernel: the sparse columns of a dense design matrix X.

    Returns the arrays `values`, `items` and `starts` of a LinearProblem."""
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
    """Linear problem kernel: the dot product of one sparse column with a vector x [items].

    The column is stored from index `first` to `last` (exclusive) of `values` and `items`."""
    total = 0.0
    for k in range(np.uint64(first), np.uint64(last)):
        total += values[k] * x[np.uint64(items[k])]
    return total


@njit(**SERIAL)
def add_columns(problem, w, chosen, scores):
    """Linear problem kernel: add the contribution of the chosen blocks to the scores X w.

    X is the design matrix, and w are the weights."""
    for g in chosen:
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            if w[j] != 0:
                for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                    scores[np.uint64(problem.items[k])] += problem.values[k] * w[j]


@njit(**SERIAL)
def gradient(problem, slope, chosen, grad):
    """Linear problem kernel: the gradient of the mean loss in the weights of the chosen blocks.

    For each feature j of these blocks, grad[j] gets X_j' slope / N. Here, X_j is column j of the design matrix and N is
    the number of items. `slope` [items] is the derivative of the loss in each score."""
    values, items, starts, members, bounds = problem[:5]
    for g in chosen:
        for m in range(np.uint64(bounds[g]), np.uint64(bounds[g + 1])):
            j = np.uint64(members[m])
            grad[j] = dot(values, items, starts[j], starts[j + np.uint64(1)], slope) / slope.size


@njit(**SUMS)
def block_norms(problem, norms):
    """Linear problem kernel: fill norms[g] with the Frobenius norm of the design matrix columns of each block g."""
    for g in range(norms.size):
        total = 0.0
        for m in range(problem.bounds[g], problem.bounds[g + 1]):
            j = problem.members[m]
            for k in range(np.uint64(problem.starts[j]), np.uint64(problem.starts[j + 1])):
                total += problem.values[k] * problem.values[k]
        norms[g] = np.sqrt(total)


@njit(**SERIAL)
def restrict(problem, chosen):
    """Linear problem kernel: the smaller linear problem that has the chosen blocks only.

    Features get new indices, in the order of the blocks. Returns the smaller problem and the old index of each feature.
    """
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
    """Linear problem kernel: the indices of the features of the chosen blocks, block after block."""
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
    """Linear problem kernel: the lasso, group lasso and ridge penalty of the chosen blocks at the weights w."""
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
    """Linear problem kernel: soft thresholding of x, the prox of the lasso with strength `cut`."""
    return x - min(max(x, -cut), cut)  # if |x| <= cut, the result is 0.0, never -0.0


@njit(**SERIAL)
def _soft_norms(members, grad, ridge, w, share, cut):
    """Linear problem kernel: the 2-norm and the 1-norm of a block's gradient after soft thresholding.

    Each entry of share * (grad + ridge * w) is soft-thresholded at `cut`; `share` is a factor. `members` lists the
    features of the block. `grad` is the gradient of the mean loss in the weights w."""
    squares, absolute = 0.0, 0.0
    for j in members:
        excess = abs(soft(share * (grad[j] + ridge[j] * w[j]), cut))
        squares += excess * excess
        absolute += excess
    return np.sqrt(squares), absolute


@njit(**SERIAL)
def gauge(problem, grad, w, chosen):
    """Linear problem kernel: the dual norm of the gradient for the lasso and group lasso on the chosen blocks.

    The gradient is v = grad + ridge * w, where `grad` is the gradient of the mean loss in the weights w. For block g
    with gradient v_g, let t_g solve |soft(v_g, t * cut[g])| = t * reach[g] in t. The dual norm is the largest t_g.
    Newton's method finds it."""
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
def violations(problem, grad, w, chosen):
    """Linear problem kernel: the number of chosen blocks of zero weights that a proximal gradient step makes nonzero.

    `grad` is the gradient of the mean loss in the weights w."""
    count = 0
    for g in chosen:
        members, living = problem.members[problem.bounds[g] : problem.bounds[g + 1]], False
        for j in members:
            living |= w[j] != 0
        count += not living and _soft_norms(members, grad, problem.ridge, w, 1.0, problem.cut[g])[0] > problem.reach[g]
    return count


@njit(**SERIAL)
def dual_value(problem, slope, scale, grad, w, chosen):
    """Linear problem kernel: the dual objective at the dual point scale * slope.

    `slope` [items] is the derivative of the loss in each score. `grad` is the gradient of the mean loss in the weights
    w. The dual point is feasible if `scale` is at most 1 and at most the reciprocal of the result of `gauge`."""
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
    """Linear problem kernel: fill out[g] with the screening distance of each chosen block g.

    The dual point may move by this Euclidean distance before a weight of the block can become nonzero. The dual point
    is `scale` times the derivative of the mean loss in the scores. `norms` comes from `block_norms`. The distance is
    minus infinity for an unpenalised block, and for a block with a nonzero weight."""
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
