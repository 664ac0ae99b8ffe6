"""Linear ridge kernels: Newton's method with conjugate gradients for linear problems of ridge penalty only.

Each Newton iteration (round) minimises the second-order model of the objective by preconditioned conjugate gradients,
without forming the Hessian. It reads the design matrix item by item: one reading gives a product with the Hessian. An
item's row of the design matrix is called its row.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.solvers.linear_newton import line_search, shortfall
from structsparse.kernels.solvers.linear_problem import SERIAL, SUMS, penalty_value, total_loss

CONJUGATES = 200  # maximum number of conjugate gradient steps in a Newton iteration
# Conjugate gradients end once the norm of the residual is at most ROUGH times its first value. The last Newton
# iteration ends at SHARE times the square root of the wanted share of the duality gap, if that is larger.
ROUGH, SHARE = 0.03, 0.5
LARGEST = 0.25  # largest second derivative of the logistic loss
STUCK = 3  # the solver ends after this number of successive Newton iterations without a decrease of the objective


class ItemRows(NamedTuple):
    """The sparse design matrix of a linear problem by items: row i has the entries starts[i] : starts[i + 1]."""

    values: np.ndarray  # float64 [entries]
    features: np.ndarray  # int32 [entries]: the feature (column of the design matrix) of each entry
    starts: np.ndarray  # int64 [items + 1]


@njit(**SERIAL)
def rows_of(problem):
    """Linear ridge kernel: the design matrix of a linear problem by items."""
    count = problem.targets.size
    starts = np.zeros(count + 1, np.int64)
    for i in problem.items:
        starts[i + 1] += 1
    starts = np.cumsum(starts)
    ends, values = starts[:-1].copy(), np.empty(problem.values.size)
    features = np.empty(problem.values.size, np.int32)
    for j in range(problem.starts.size - 1):
        for k in range(problem.starts[j], problem.starts[j + 1]):
            end = ends[problem.items[k]]
            values[end], features[end] = problem.values[k], j
            ends[problem.items[k]] = end + 1
    return ItemRows(values, features, starts)


@njit(**SERIAL)
def solve(problem, rows, w, scores, goal, rounds):
    """Linear ridge kernel: minimise a linear problem of ridge penalty by Newton steps, to a duality gap of `goal`.

    The weights w [features] and the scores [items] change in place. Returns the number of conjugate gradient steps."""
    count, blocks = scores.size, np.arange(problem.cut.size)
    slope, curvature, ahead = np.empty(count), np.empty(count), np.empty(count)
    grad, diagonal = np.empty(w.size), np.empty(w.size)
    objective = total_loss(problem, scores, slope, curvature) + penalty_value(problem, w, blocks)
    steps, stuck = 0, 0
    for _ in range(rounds):
        if stuck > 0 and problem.logistic:  # the largest curvature of the loss bounds it from above: the step lowers it
            curvature[:] = LARGEST
        _derivatives(problem, rows, slope, curvature, grad, diagonal)
        gap = shortfall(problem, objective, slope, grad, w, blocks, curvature)
        if gap <= goal:
            break
        accuracy = max(ROUGH, SHARE * np.sqrt(goal / gap))
        move, taken = _newton_step(problem, rows, grad + problem.ridge * w, curvature, diagonal, accuracy)
        steps += taken
        _scores(rows, move, ahead)
        value = line_search(problem, w, w + move, scores, ahead, blocks, slope, curvature, objective)
        stuck = 0 if value < objective else stuck + 1
        if stuck == STUCK:
            break
        objective = value
    return steps


@njit(**SERIAL)
def _newton_step(problem, rows, slope, curvature, diagonal, accuracy):
    """Linear ridge kernel: the change of the weights in a Newton step, by preconditioned conjugate gradients.

    `slope` is the gradient of the objective in the weights, and `diagonal` the diagonal of its Hessian. A feature whose
    diagonal entry is 0 keeps its weight. The second result is the number of steps."""
    inverse = np.zeros(slope.size)
    for j in range(slope.size):
        inverse[j] = 1 / diagonal[j] if diagonal[j] > 0 else 0.0
    move, residual, product = np.zeros(slope.size), -slope, np.empty(slope.size)
    scaled = inverse * residual
    towards, norm = scaled.copy(), residual @ scaled
    first = norm
    for step in range(CONJUGATES):
        _times_hessian(problem, rows, curvature, towards, product)
        bend = towards @ product
        if not bend > 0:
            return move, step
        move += norm / bend * towards
        residual -= norm / bend * product
        scaled = inverse * residual
        before, norm = norm, residual @ scaled
        if norm <= accuracy * accuracy * first:
            return move, step + 1
        towards = scaled + norm / before * towards
    return move, CONJUGATES


# --- readings of the design matrix, item by item


@njit(**SERIAL)
def _derivatives(problem, rows, slope, curvature, grad, diagonal):
    """Linear ridge kernel: the gradient of the loss in the weights, and the diagonal of the objective's Hessian.

    `slope` and `curvature` are the first and second derivative of the loss in the scores, arrays [items]."""
    grad[:] = 0
    diagonal[:] = problem.ridge
    for i in range(slope.size):
        first, second = slope[i] / slope.size, curvature[i] / slope.size
        for k in range(np.uint64(rows.starts[i]), np.uint64(rows.starts[i + 1])):
            j, value = np.uint64(rows.features[k]), rows.values[k]
            grad[j] += first * value
            diagonal[j] += second * value * value


@njit(**SUMS)
def _row_dot(rows, i, w):
    """Linear ridge kernel: the dot product of an item's row with the weights w."""
    total = 0.0
    for k in range(np.uint64(rows.starts[i]), np.uint64(rows.starts[i + 1])):
        total += rows.values[k] * w[np.uint64(rows.features[k])]
    return total


@njit(**SERIAL)
def _scores(rows, w, scores):
    """Linear ridge kernel: fill `scores` with the products X w of the design matrix X and the weights w."""
    for i in range(scores.size):
        scores[i] = _row_dot(rows, i, w)


@njit(**SERIAL)
def _times_hessian(problem, rows, curvature, v, product):
    """Linear ridge kernel: fill `product` with the Hessian of the objective times a vector v [features]."""
    product[:] = problem.ridge * v
    for i in range(curvature.size):
        part = curvature[i] * _row_dot(rows, i, v) / curvature.size
        for k in range(np.uint64(rows.starts[i]), np.uint64(rows.starts[i + 1])):
            product[np.uint64(rows.features[k])] += part * rows.values[k]
