"""Overlaps Newton kernels: Newton steps on nonzero weights under overlapping group lasso, by conjugate gradients.

The norm of a group is smooth where the group has a nonzero weight. The penalty therefore has an exact Hessian in the
nonzero weights. W [rows, outputs] holds the weights of a linear model. All numbers are float64.
"""

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_problem import SERIAL, dot
from structsparse.kernels.solvers.overlaps_problem import (
    ENOUGH,
    HALVINGS,
    ROUNDING,
    SOFTMAX,
    add_column,
    bend_of,
    losses,
    own_bends,
)


@njit(**SERIAL)
def true_penalty(sets, W, rows, cut, squares, norms, eps=0.0):
    """Overlaps Newton kernel: the overlapping group penalty at W, with lasso and ridge.

    Rows of W outside `rows` are zero. `cut` is the lasso strength, and squares[j] the ridge strength of row j. norms[g]
    gets the norm ||W_g||, where W_g holds the rows of group g. With eps > 0, the penalty uses sqrt(||W_g||^2 + eps^2) -
    eps in place of each norm."""
    norms[:] = 0
    total = 0.0
    for j in rows:
        squared_norm = 0.0
        for k in range(W.shape[1]):
            squared_norm += W[j, k] * W[j, k]
            total += cut * abs(W[j, k])
        total += squares[j] / 2 * squared_norm
        if squared_norm > 0:
            for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
                norms[np.uint64(sets.groups[a])] += squared_norm
    for g in range(norms.size):
        if norms[g] > 0:
            total += sets.reach[g] * (np.sqrt(norms[g] + eps * eps) - eps)
            norms[g] = np.sqrt(norms[g])
    return total


@njit(**SERIAL)
def _curve(data, sets, W, entries, norms, ridge, bend, moves_bias, d, d_bias, out, ahead, mean, along):
    """Overlaps Newton kernel: multiply the Hessian of loss and penalty by a direction.

    The direction has the parts `d` for the nonzero weights and `d_bias` for the biases. `entries` lists the nonzero
    weights as pairs of row and output. Writes the product for the weights to `out`, and returns the product for the
    biases."""
    outputs, count = ahead.shape
    ahead[:], mean[:], along[:] = 0, 0, 0
    for c in range(d.size):
        j, k = entries[c]
        add_column(data, j, d[c], ahead[k])
        part = W[j, k] * d[c]
        for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
            along[np.uint64(sets.groups[a])] += part
    for g in range(along.size):
        if norms[g] > 0:
            along[g] *= sets.reach[g] / (norms[g] * norms[g] * norms[g])
    if moves_bias:
        for k in range(outputs):
            ahead[k] += d_bias[k]
    if data.kind == SOFTMAX:
        for k in range(outputs):
            mean += bend[k] * ahead[k]
    out_bias = np.zeros(outputs)
    for k in range(outputs):
        ahead[k] = bend[k] * (ahead[k] - mean)
        out_bias[k] = ahead[k].sum() / count if moves_bias else 0.0
    for c in range(d.size):
        j, k = entries[c]
        total = dot(data.values, data.items, data.starts[j], data.starts[j + 1], ahead[k]) / count
        norm_part = 0.0
        for a in range(np.uint64(sets.starts[j]), np.uint64(sets.starts[j + 1])):
            norm_part += along[np.uint64(sets.groups[a])]
        out[c] = total + ridge[j] * d[c] - W[j, k] * norm_part
    return out_bias


@njit(**SERIAL)
def _direction(data, sets, W, entries, start, start_bias, norms, ridge, bend, item_bends, moves_bias, rounds, accuracy):
    """Overlaps Newton kernel: the Newton direction, by preconditioned conjugate gradients.

    `entries` lists the nonzero weights. `start` and `start_bias` are the negative gradient of the objective in these
    weights and in the biases. The preconditioner is diagonal. `item_bends` [outputs, items] is the second derivative of
    each item's loss in each score. Returns the direction of the weights and the direction of the biases."""
    size, (outputs, count) = start.size, item_bends.shape
    scale, scale_bias = np.empty(size), np.ones(outputs)
    for c in range(size):
        j, k = entries[c]
        scale[c] = 1 / max(bend_of(data, j, item_bends[k]) + ridge[j], 1e-300)
    if moves_bias:
        for k in range(outputs):
            scale_bias[k] = 1 / max(item_bends[k].sum() / count, 1e-12)
    d, d_bias = np.zeros(size), np.zeros(outputs)
    out, ahead, mean, along = np.empty(size), np.empty_like(item_bends), np.empty(count), np.empty(norms.size)
    residual, residual_bias = start.copy(), start_bias.copy()
    p, p_bias = scale * residual, scale_bias * residual_bias
    total = residual @ p + residual_bias @ p_bias
    start_total = total
    for _ in range(rounds):
        if not total > accuracy * accuracy * start_total:
            break
        out_bias = _curve(data, sets, W, entries, norms, ridge, bend, moves_bias, p, p_bias, out, ahead, mean, along)
        along_p = p @ out + p_bias @ out_bias
        if not along_p > 1e-300:
            break
        length = total / along_p
        d += length * p
        d_bias += length * p_bias
        residual -= length * out
        residual_bias -= length * out_bias
        new_total = residual @ (scale * residual) + residual_bias @ (scale_bias * residual_bias)
        p = scale * residual + new_total / total * p
        p_bias = scale_bias * residual_bias + new_total / total * p_bias
        total = new_total
    return d, d_bias


@njit(**SERIAL)
def polish(
    data, sets, W, bias, F, slope, bend, G, cut, ridge, squares, norms, rows, moves_bias, rounds, accuracy, eps=0.0
):
    """Overlaps Newton kernel: one Newton step on the nonzero weights in `rows`, without changes of sign.

    - `squares` [rows] is the strength of the ridge penalty.
    - `norms` [groups] holds the norm of the weights in each group, smoothed by `eps`.
    - `ridge` [rows] is the factor of each row of W in the gradient of the ridge penalty and the group norms. It is
      `squares` plus the sum of group strength / group norm over the groups of each row.
    - G [rows, outputs] is the gradient of the loss in the weights W.
    - `accuracy` is the residual at which conjugate gradients end, as a share of the first residual.

    Updates the weights, the biases, the scores F, and the loss derivatives `slope` and `bend`. Nothing changes if no
    step length lowers the objective."""
    outputs, count = F.shape
    entries, size = np.empty((rows.size * outputs, 2), np.int64), 0
    for j in rows:
        for k in range(outputs):
            if W[j, k] != 0:
                entries[size, 0], entries[size, 1] = j, k
                size += 1
    entries = entries[:size]
    down, before, down_bias = np.empty(size), np.empty(size), np.zeros(outputs)
    for c in range(size):
        j, k = entries[c]
        before[c] = W[j, k]
        down[c] = -(G[j, k] + ridge[j] * W[j, k] + cut * np.sign(W[j, k]))
    if moves_bias:
        for k in range(outputs):
            down_bias[k] = -slope[k].sum() / count
    item_bends = own_bends(data, bend)
    d, d_bias = _direction(
        data, sets, W, entries, down, down_bias, norms, ridge, bend, item_bends, moves_bias, rounds, accuracy
    )
    predicted, work_norms = -(down @ d + down_bias @ d_bias), norms.copy()
    objective = losses(data, F, slope, bend) + true_penalty(sets, W, rows, cut, squares, work_norms, eps)
    start, step = F.copy(), 1.0
    for _ in range(HALVINGS):
        F[:] = start
        for c in range(size):
            j, k = entries[c]
            weight = before[c] + step * d[c]
            if cut > 0 and weight * before[c] < 0:
                weight = 0.0
            W[j, k] = weight
            add_column(data, j, weight - before[c], F[k])
        for k in range(outputs):
            F[k] += step * d_bias[k]
        value = losses(data, F, slope, bend) + true_penalty(sets, W, rows, cut, squares, work_norms, eps)
        if value <= objective + ENOUGH * step * predicted + ROUNDING * abs(objective):
            bias += step * d_bias
            return
        step /= 2
    F[:] = start
    for c in range(size):
        W[entries[c, 0], entries[c, 1]] = before[c]
    losses(data, F, slope, bend)
