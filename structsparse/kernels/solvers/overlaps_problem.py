"""Overlaps problem kernels: linear models with several outputs, and proximal Newton steps under lasso and ridge.

- W [rows, outputs] holds the weights. Row j of W belongs to column j of the sparse design matrix X.
- The scores F = (X W)' + bias have the shape [outputs, items]. The loss is a mean over items.
- `slope` and `bend` [outputs, items] hold the first and second derivative of each item's loss in its scores.
- Exception: for softmax, `bend` holds the probabilities p of the outputs. The second derivative for an item is then
  the matrix diag(p) - p p'.

All numbers are float64.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import SERIAL, dot, soft

LOGISTIC, SQUARED, HINGE, SOFTMAX = 0, 1, 2, 3
HALVINGS = 40  # maximum number of halvings of the step length in a line search
ENOUGH = 1e-4  # share of the predicted decrease of the objective that a step must reach (Armijo)
ROUNDING = 4e-15  # relative increase of the objective that a line search accepts as a rounding error
FLOOR = 1e-14  # least curvature as a share of the largest; smaller curvatures are raised to it


class LinearData(NamedTuple):
    """Data of a linear model in the overlaps problem kernels: design matrix, targets and kind of loss."""

    values: np.ndarray  # float64 [entries]: nonzero entries of the design matrix, column after column
    items: np.ndarray  # int32 [entries]: the item (row of the design matrix) of each entry in `values`
    starts: np.ndarray  # int32 [columns + 1]: where each column of the design matrix begins in `values`
    targets: np.ndarray  # float64 [items]: 1 or -1, any numbers, or class indices, depending on the loss
    kind: int  # the loss: LOGISTIC, SQUARED, HINGE (squared) or SOFTMAX


# --- losses


@njit(**SERIAL)
def losses(data, F, slope, bend):
    """Overlaps problem kernel: the mean loss of items with several outputs, from the scores F [outputs, items].

    Fills `slope` and `bend` [outputs, items] with the first and second derivative of each item's loss in its scores.
    For softmax, `bend` gets the probabilities of the outputs instead."""
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
    """Overlaps problem kernel: the mean softmax loss, from the scores F [outputs, items].

    Fills `slope` with the derivative of the loss in F, and `bend` with the probabilities p of the outputs."""
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
            slope[gold, i] -= slope[k, i] if k != gold else 0.0  # equals p - 1 for the gold class, without cancellation
        total += np.log(total_mass) + top - F[gold, i]
    return total / count


@njit(**SERIAL)
def conjugates(data, slope, scale):
    """Overlaps problem kernel: the mean convex conjugate of the loss at the dual point scale * slope.

    `slope` [outputs, items] is the derivative of the loss in the scores. The result is infinite outside the domain of
    the conjugate."""
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
    """Overlaps problem kernel: the gradient G [rows, outputs] of the mean loss in the weights.

    G[j, k] gets the dot product of column j of the design matrix with slope[k], divided by the count of items. slope[k]
    [items] is the derivative of each item's loss in the score of output k."""
    for k in range(slope.shape[0]):
        output_slope = slope[k]
        for j in range(G.shape[0]):
            G[j, k] = dot(data.values, data.items, data.starts[j], data.starts[j + 1], output_slope) / output_slope.size


@njit(**SERIAL)
def scores(data, W, bias, F):
    """Overlaps problem kernel: the scores F = (X W)' + bias of all items and outputs, for the design matrix X."""
    for k in range(F.shape[0]):
        F[k] = bias[k]
        for j in range(W.shape[0]):
            add_column(data, j, W[j, k], F[k])


@njit(**SERIAL)
def add_column(data, j, weight, x):
    """Overlaps problem kernel: add a multiple of design matrix column j to a vector, x += weight * column."""
    if weight != 0:
        for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
            x[np.uint64(data.items[a])] += data.values[a] * weight


@njit(**SERIAL)
def _coupled_dot(values, items, first, last, p, e, mean):
    """Overlaps problem kernel: the dot product of a sparse column with p * (e - mean), for softmax.

    p, e and `mean` are arrays [items]. For one output, p holds its probabilities, and e the changes of its scores.
    `mean` is the mean change of the scores over all outputs, weighted by their probabilities."""
    total = 0.0
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(items[a])
        total += values[a] * p[i] * (e[i] - mean[i])
    return total


@njit(**SERIAL)
def bend_of(data, j, bends):
    """Overlaps problem kernel: the second derivative of the mean loss in one weight of row j.

    `bends` [items] is the second derivative of each item's loss in the score that the weight contributes to."""
    total = 0.0
    for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
        total += data.values[a] * data.values[a] * bends[np.uint64(data.items[a])]
    return total / bends.size


@njit(**SERIAL)
def own_bends(data, bend):
    """Overlaps problem kernel: the second derivative of each item's loss in each score, array [outputs, items].

    For softmax this is p (1 - p) with the probabilities p in `bend`. For other losses it is `bend`."""
    return bend * (1 - bend) if data.kind == SOFTMAX else bend


# --- one step of proximal Newton


@njit(**SERIAL)
def newton(data, W, bias, F, slope, bend, G, cut, ridge, centre, rows, moves_bias, passes, slack):
    """Overlaps problem kernel: one proximal Newton step under lasso and ridge, over the given rows.

    The objective is loss + cut * |W|_1 + sum_j ridge[j] / 2 * |W_j - centre_j|^2 over the rows j of the weights W.

    - Coordinate descent on the second-order model of the loss gives a direction.
    - Zero weights stay zero if that is optimal for the gradient at the start.
    - A line search moves W, the bias and the scores F along the direction.
    - `slope`, `bend` and G are the derivatives of the loss at the initial W. `slope` and `bend` are updated.

    Returns the new mean loss, and the largest violation of optimality at the start. The violation of a weight is the
    least absolute value among the subgradients of the objective in this weight."""
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
    """Overlaps problem kernel: minimise a second-order model of the loss plus the penalty over one weight w.

    The weight multiplies feature j in the score of one output. Returns the change of the weight. Arrays have one number
    per item (training example):
    - `ahead`: how much all weight changes so far, in the model, have changed the score of this output
    - `bend`: the probability of this output for a softmax loss, else the second derivative of the loss in the score
    - `mean`: for a softmax loss only, the mean over all outputs of their score changes, weighted by probability
    - `pull`: for other losses only, the change of the first derivative of the loss, bend * ahead

    The arrays `ahead`, and `mean` or `pull`, are updated for the change of w."""
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
    """Overlaps problem kernel: minimise the second-order model over the bias of output k.

    Returns the absolute derivative of the model in the bias before the change."""
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
    """Overlaps problem kernel: backtracking line search along the change of weights and biases.

    Returns the mean loss at the end. If no step length lowers the objective, nothing changes."""
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
