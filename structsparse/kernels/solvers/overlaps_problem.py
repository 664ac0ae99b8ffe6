"""Linear models with several outputs: losses, gradients, and proximal Newton under lasso and ridge. Float64.

The loss is a mean over items of scores F = (X W)' + bias, [outputs, items]; W is [rows, outputs]. Row j of W belongs to
column j of X, stored in the entries `starts[j]` to `starts[j + 1]` of `values` and `items`. `slope` and `bend`
[outputs, items] hold the first and second derivative of the loss of each item with respect to the scores. Softmax
couples the outputs of an item: the second derivative is diag(p) - p p', and `bend` holds the probabilities p. For the
other losses it is diag(bend). The module `overlaps_groups` has the kernels of the overlapping groups.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import SERIAL, dot, soft

LOGISTIC, SQUARED, HINGE, SOFTMAX = 0, 1, 2, 3
HALVINGS = 40  # of the step length in a line search, at most
ENOUGH = 1e-4  # share of the predicted decrease that a step must bring (Armijo)
ROUNDING = 4e-15  # relative increase of the objective that counts as rounding
FLOOR = 1e-14  # least curvature relative to the largest: smaller curvatures are rounding errors


class LinearData(NamedTuple):
    """The data of a linear model: sparse design matrix by columns, targets, and the kind of loss."""

    values: np.ndarray  # float64 [entries]
    items: np.ndarray  # int32 [entries]
    starts: np.ndarray  # int32 [rows + 1]
    targets: np.ndarray  # float64 [items]: signs, numbers, or class indices
    kind: int  # kind of loss: LOGISTIC, SQUARED, HINGE or SOFTMAX


# --- losses


@njit(**SERIAL)
def losses(data, F, slope, bend):
    """The mean loss of items with several outputs, from scores F [outputs, items].

    Fills slope and bend [outputs, items]: first and second derivative of the loss in F; for softmax, bend <- p."""
    outputs, count = F.shape
    if data.kind == SOFTMAX:
        return _softmax(data.targets, F, slope, bend)
    total = 0.0
    for k in range(outputs):
        for i in range(count):
            f, y = F[k, i], data.targets[i]
            if outputs > 1:
                y = 1.0 if y == k else -1.0
            if data.kind == LOGISTIC:
                small = np.exp(-abs(f))
                total += np.log1p(small) + max(-y * f, 0.0)
                miss = (small if y * f > 0 else 1.0) / (1 + small)
                slope[k, i], bend[k, i] = -y * miss, small / ((1 + small) * (1 + small))
            elif data.kind == SQUARED:
                slope[k, i], bend[k, i] = f - y, 1.0
                total += (f - y) * (f - y) / 2
            else:
                short = max(1 - y * f, 0.0)
                total += short * short
                slope[k, i], bend[k, i] = -2 * y * short, 2.0 if short > 0 else 0.0
    return total / count


@njit(**SERIAL)
def _softmax(targets, F, slope, bend):
    """The mean softmax loss; slope <- derivative of the loss in F, bend <- probabilities p."""
    outputs, count = F.shape
    total = 0.0
    for i in range(count):
        top = F[0, i]
        for k in range(1, outputs):
            top = max(top, F[k, i])
        total_mass = 0.0
        for k in range(outputs):
            bend[k, i] = np.exp(F[k, i] - top)
            total_mass += bend[k, i]
        for k in range(outputs):
            bend[k, i] /= total_mass
            slope[k, i] = bend[k, i]
        gold = int(targets[i])
        slope[gold, i] = 0.0
        for k in range(outputs):
            slope[gold, i] -= slope[k, i] if k != gold else 0.0  # p - 1 without cancellation
        total += np.log(total_mass) + top - F[gold, i]
    return total / count


@njit(**SERIAL)
def conjugates(data, slope, scale):
    """The mean convex conjugate of the loss at the dual point scale * slope; infinite outside the domain."""
    outputs, count = slope.shape
    total = 0.0
    for k in range(outputs):
        for i in range(count):
            dual, y = scale * slope[k, i], data.targets[i]
            if data.kind == SOFTMAX:
                p = dual + 1 if y == k else dual
                if p < 0:
                    return np.inf
                total += p * np.log(p) if p > 0 else 0.0
                continue
            if outputs > 1:
                y = 1.0 if y == k else -1.0
            if data.kind == SQUARED:
                total += dual * (dual / 2 + y)
                continue
            miss = -y * dual
            if miss < 0 or (data.kind == LOGISTIC and miss > 1):
                return np.inf
            if data.kind == HINGE:
                total += miss * (miss / 4 - 1)
            elif 0 < miss < 1:
                total += miss * np.log(miss) + (1 - miss) * np.log1p(-miss)
    return total / count


# --- columns of the design matrix


@njit(**SERIAL)
def gradient(data, slope, G):
    """Gradient of the loss with respect to the weights: G[j, k] <- X_j' slope_k / number of items."""
    for k in range(slope.shape[0]):
        output_slope = slope[k]
        for j in range(G.shape[0]):
            G[j, k] = dot(data.values, data.items, data.starts[j], data.starts[j + 1], output_slope) / output_slope.size


@njit(**SERIAL)
def scores(data, W, bias, F):
    """Scores of all items and outputs of a linear model: F <- (X W)' + bias."""
    for k in range(F.shape[0]):
        F[k] = bias[k]
        for j in range(W.shape[0]):
            add_column(data, j, W[j, k], F[k])


@njit(**SERIAL)
def add_column(data, j, weight, x):
    """Add a multiple of a sparse column: x [items] += weight * column j."""
    if weight != 0:
        for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
            x[np.uint64(data.items[a])] += data.values[a] * weight


@njit(**SERIAL)
def _coupled_dot(values, items, first, last, p, e, mean):
    """Softmax coupling: the dot product of a sparse column with p * (e - mean), all of these [items]."""
    total = 0.0
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(items[a])
        total += values[a] * p[i] * (e[i] - mean[i])
    return total


@njit(**SERIAL)
def bend_of(data, j, bends):
    """The second derivative of the mean loss in one weight of row j; `bends` [items]: second derivative per item."""
    total = 0.0
    for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
        total += data.values[a] * data.values[a] * bends[np.uint64(data.items[a])]
    return total / bends.size


@njit(**SERIAL)
def own_bends(data, bend):
    """The diagonal second derivative of the loss of each item in each output: p (1 - p) for softmax, else bend."""
    return bend * (1 - bend) if data.kind == SOFTMAX else bend


# --- one step of proximal Newton


@njit(**SERIAL)
def newton(data, W, bias, F, slope, bend, G, cut, ridge, centre, rows, moves_bias, passes, slack):
    """One proximal Newton step on  loss + cut * |W|_1 + sum_j ridge[j] / 2 * |W_j - centre_j|^2  over the given rows.

    Coordinate descent on the second-order model of the loss gives a direction; a line search moves W, bias and F along
    it. slope, bend and G are derivatives of the loss at W; slope and bend are updated. Zero weights that the gradient
    leaves at zero are skipped. Returns the new mean loss, and the largest violation of optimality at the start. The
    violation of a weight is the least absolute value of its subgradients.
    """
    outputs, count = F.shape
    entries, size = np.empty((rows.size * outputs, 2), np.int64), 0
    worst = 0.0
    for j in rows:
        for k in range(outputs):
            s = G[j, k] + ridge[j] * (W[j, k] - centre[j, k])
            violation = abs(s + cut * np.sign(W[j, k])) if W[j, k] != 0 else max(abs(s) - cut, 0.0)
            if W[j, k] != 0 or violation > 0:
                entries[size, 0], entries[size, 1] = j, k
                size += 1
                worst = max(worst, violation)
    entries = entries[:size]
    item_bends = own_bends(data, bend)
    curvature, change = np.empty(size), np.zeros(size)
    largest = 0.0
    for c in range(size):
        j, k = entries[c]
        curvature[c] = bend_of(data, j, item_bends[k]) + ridge[j]
        largest = max(largest, curvature[c])
    curvature = np.maximum(curvature, max(FLOOR * largest, 1e-300))
    ahead, pull, mean, bias_change = np.zeros_like(F), np.zeros_like(F), np.zeros(count), np.zeros(outputs)
    first = 0.0
    for _ in range(passes):
        gain = 0.0
        for c in range(size):
            j, k = entries[c]
            moved = _coordinate(
                data, j, W[j, k] + change[c], ridge[j], centre[j, k], cut, G[j, k], curvature[c], bend[k], ahead[k],
                pull[k], mean,
            )  # fmt: skip
            change[c] += moved
            gain = max(gain, curvature[c] * abs(moved))
        if moves_bias:
            for k in range(outputs):
                gain = max(
                    gain, _move_bias(data, slope[k], bend[k], item_bends[k], ahead[k], pull[k], mean, bias_change, k)
                )
        first = max(first, gain)
        if gain <= slack * first:
            break
    loss = _search(data, W, bias, F, slope, bend, G, cut, ridge, centre, entries, change, bias_change, ahead)
    return loss, worst


@njit(**SERIAL)
def _coordinate(data, j, w, ridge, centre, cut, slope, curvature, bend, ahead, pull, mean):
    """Coordinate step: minimise the second-order model over one weight; returns the change of the weight.

    `ahead` [items] is the change of the scores so far, `pull` is bend * ahead.
    Softmax uses p * (ahead - mean) instead of `pull`."""
    first, last = data.starts[j], data.starts[j + 1]
    if data.kind == SOFTMAX:
        total = _coupled_dot(data.values, data.items, first, last, bend, ahead, mean)
    else:
        total = dot(data.values, data.items, first, last, pull)
    s = slope + total / ahead.size + ridge * (w - centre)
    moved = soft(w - s / curvature, cut / curvature) - w
    if moved != 0:
        for a in range(np.uint64(first), np.uint64(last)):
            i = np.uint64(data.items[a])
            step = data.values[a] * moved
            ahead[i] += step
            if data.kind == SOFTMAX:
                mean[i] += bend[i] * step
            else:
                pull[i] += bend[i] * step
    return moved


@njit(**SERIAL)
def _move_bias(data, slope, bend, bends, ahead, pull, mean, bias_change, k):
    """Minimise the second-order model over the bias of output k; returns the absolute derivative in the bias before."""
    total, curvature = 0.0, 0.0
    for i in range(ahead.size):
        total += slope[i] + (bend[i] * (ahead[i] - mean[i]) if data.kind == SOFTMAX else pull[i])
        curvature += bends[i]
    if curvature <= 1e-12 * ahead.size:
        return 0.0
    moved = -total / curvature
    bias_change[k] += moved
    for i in range(ahead.size):
        ahead[i] += moved
        if data.kind == SOFTMAX:
            mean[i] += bend[i] * moved
        else:
            pull[i] += bend[i] * moved
    return abs(total) / ahead.size


@njit(**SERIAL)
def _search(data, W, bias, F, slope, bend, G, cut, ridge, centre, entries, change, bias_change, ahead):
    """Backtracking line search along the change of weights and biases; returns the mean loss at the end."""
    start, loss_change, objective, predicted = F.copy(), 0.0, 0.0, 0.0
    for k in range(F.shape[0]):
        predicted += bias_change[k] * slope[k].sum() / F.shape[1]
    before = np.empty(change.size)
    for c in range(change.size):
        j, k = entries[c]
        before[c] = W[j, k]
        apart, new = W[j, k] - centre[j, k], W[j, k] + change[c]
        objective += cut * abs(W[j, k]) + ridge[j] / 2 * apart * apart
        predicted += (G[j, k] + ridge[j] * apart) * change[c] + cut * (abs(new) - abs(W[j, k]))
    loss = losses(data, F, slope, bend)
    objective += loss
    step = 1.0
    for _ in range(HALVINGS):
        F[:] = start + step * ahead
        value = loss_change = losses(data, F, slope, bend)
        for c in range(change.size):
            j, k = entries[c]
            new = before[c] + step * change[c]
            W[j, k] = new
            value += cut * abs(new) + ridge[j] / 2 * (new - centre[j, k]) * (new - centre[j, k])
        if value <= objective + ENOUGH * step * predicted + ROUNDING * abs(objective):
            bias += step * bias_change
            return loss_change
        step /= 2
    F[:] = start
    for c in range(change.size):
        W[entries[c, 0], entries[c, 1]] = before[c]
    return losses(data, F, slope, bend)
