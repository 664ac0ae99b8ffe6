"""Linear models with rows of weights: losses, gradients, and proximal Newton under lasso and squares. Float64.

The loss is a mean over items of scores F = (X W)' + bias, [outputs, items]; W is [rows, outputs]. Row j of W belongs to
column j of X, the entries `starts[j]` to `starts[j + 1]` of `values` and `items`. Softmax alone couples outputs: the
second derivative of an item is diag(p) - p p', for other losses diag(bend). Overlapping groups: `overlaps_groups`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import SERIAL, dot, soft

LOGISTIC, SQUARED, HINGE, SOFTMAX = 0, 1, 2, 3
HALVINGS = 40  # of the step length, at most
ENOUGH = 1e-4  # share of the predicted decrease that a step must bring (Armijo)
ROUNDING = 4e-15  # relative increase of the objective that counts as rounding
FLOOR = 1e-14  # of a curvature, relative to the largest: a smaller one is not informative


class LinearData(NamedTuple):
    """A sparse matrix by columns, targets, and the kind of loss."""

    values: np.ndarray  # float64 [entries]
    items: np.ndarray  # int32 [entries]
    starts: np.ndarray  # int32 [rows + 1]
    targets: np.ndarray  # float64 [items]: signs, numbers, or codes of classes
    kind: int  # of loss


# --- losses


@njit(**SERIAL)
def losses(data, F, slope, bend):
    """The mean loss of items with several outputs; fills slope and bend [outputs, items], the curvature or, for
    softmax, p."""
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
    """`losses` of softmax; bend <- p."""
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
    """The mean conjugate of the loss at scale * slope; infinite outside its domain."""
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


# --- columns


@njit(**SERIAL)
def gradient(data, slope, G):
    """Gradient by rows and outputs: G[j, k] <- X_j' slope_k / items"""
    for k in range(slope.shape[0]):
        output_slope = slope[k]
        for j in range(G.shape[0]):
            G[j, k] = dot(data.values, data.items, data.starts[j], data.starts[j + 1], output_slope) / output_slope.size


@njit(**SERIAL)
def scores(data, W, bias, F):
    """Scores of all items and outputs: F <- (X W)' + bias"""
    for k in range(F.shape[0]):
        F[k] = bias[k]
        for j in range(W.shape[0]):
            add_column(data, j, W[j, k], F[k])


@njit(**SERIAL)
def add_column(data, j, weight, x):
    """x [items] += weight * column j"""
    if weight != 0:
        for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
            x[np.uint64(data.items[a])] += data.values[a] * weight


@njit(**SERIAL)
def _coupled_dot(values, items, first, last, p, e, mean):
    """The dot product of a column with p * (e - mean)."""
    total = 0.0
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(items[a])
        total += values[a] * p[i] * (e[i] - mean[i])
    return total


@njit(**SERIAL)
def bend_of(data, j, bends):
    """The second derivative of the loss along an entry of row j; `bends` [items] holds those of the items."""
    total = 0.0
    for a in range(np.uint64(data.starts[j]), np.uint64(data.starts[j + 1])):
        total += data.values[a] * data.values[a] * bends[np.uint64(data.items[a])]
    return total / bends.size


@njit(**SERIAL)
def own_bends(data, bend):
    """The second derivative of each item along each output by itself."""
    return bend * (1 - bend) if data.kind == SOFTMAX else bend


# --- one step of proximal Newton


@njit(**SERIAL)
def newton(data, W, bias, F, slope, bend, G, cut, ridge, centre, rows, moves_bias, passes, slack):
    """W, bias and F move towards the minimum of  loss + cut * |W|_1 + sum_j ridge[j] / 2 * |W_j - centre_j|^2
    over these rows, by coordinate descent on the second-order model of the loss and a line search.

    slope, bend and G are those of the loss at W; slope and bend are updated. Zero entries that the gradient leaves at
    zero are skipped. Returns the mean loss at the end and the largest violation at the start: the least absolute
    subgradient of a visited entry.
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
    """Move one entry to its minimum; `pull` is bend * ahead, under softmax p * (ahead - mean) is used instead.

    Returns the change."""
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
    """Move the bias of output k to its minimum; returns the absolute slope."""
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
    """Line search along the change, with halved steps; returns the mean loss at the end."""
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
