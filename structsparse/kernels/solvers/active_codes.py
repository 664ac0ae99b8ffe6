"""Kernels of sparse codes by active sets: FISTA over the few atoms of each item, and the rest that the atoms leave.

The code of an item minimises 1/2 ||x - D'a||^2 + penalty(a), given the Gram matrix G = D D' and the correlations D x.
The active set of item c has the atoms rows[starts[c] : starts[c + 1]], sorted by the place of their nodes. The penalty
has norms of the subtrees of a forest, an absolute value and a square for each entry."""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS
from structsparse.kernels.prox.forest import shrink_forest

TINY = 1e-30  # a step this short, squared, is not compared with the curvature


@njit(**PARALLEL)
def solve(gram, pull, which, starts, rows, values, forest, cut, ridge, limit, iterations):
    """Active-set kernel: the codes of items over their active sets, in place of the start values.

    Entry c of the active sets is of item which[c], whose correlations are pull[which[c]]. An item has converged when no
    entry of its proximal gradient exceeds limit[which[c]]. `forest` has place, above and weight (level order)."""
    for c in prange(which.size):
        part = slice(starts[c], starts[c + 1])
        _solve_one(gram, pull[which[c]], rows[part], values[part], forest, cut, ridge, limit[which[c]], iterations)


@njit(**SERIAL)
def _solve_one(gram, pull, rows, x, forest, cut, ridge, limit, iterations):
    """Active-set kernel: the code of one item over its active set, by FISTA with restarts and backtracking."""
    size = rows.size
    small, correlations = np.empty((size, size), x.dtype), np.empty(size, x.dtype)
    for i in range(size):
        correlations[i] = pull[rows[i]]
        for j in range(size):
            small[i, j] = gram[rows[i], rows[j]]
        small[i, i] += x.dtype.type(ridge)
    begins, above, levels, weight = _subforest(rows, forest)
    nothing, squares, factor = np.empty(0, np.int32), np.empty(weight.size), np.empty(weight.size)
    point, product, point_product = x.copy(), np.empty_like(x), np.empty_like(x)
    new, new_product = np.empty_like(x), np.empty_like(x)
    _multiply(small, x, product)
    point_product[:] = product
    bound, momentum = 1.0, 1.0
    for _ in range(iterations):
        while True:
            for i in range(size):
                new[i] = point[i] - (point_product[i] - correlations[i]) / x.dtype.type(bound)
            shrink_forest(
                new, nothing, begins, 1, above, levels, weight, 1 / bound, x.dtype.type(cut / bound), squares, factor
            )
            _multiply(small, new, new_product)
            curved, moved, turn, residual = _compare(new, point, x, new_product, point_product)
            if curved <= bound * moved * (1 + 1e-4) or moved < TINY:
                break
            bound *= 1.5
        before = 1.0 if turn > 0 else momentum
        momentum = (1 + np.sqrt(1 + 4 * before * before)) / 2
        share = x.dtype.type((before - 1) / momentum)
        for i in range(size):
            point[i] = new[i] + share * (new[i] - x[i])
            point_product[i] = new_product[i] + share * (new_product[i] - product[i])
            x[i], product[i] = new[i], new_product[i]
        if bound * residual <= limit:
            break


@njit(**SERIAL)
def _subforest(rows, forest):
    """Active-set kernel: the forest of the nodes of an active set and of all nodes above them, in level order.

    Returns where the entries of each node begin, its parent, where levels begin, and its weight."""
    place, above, weight = forest
    local, depth = np.full(above.size, -1, np.int32), np.zeros(above.size, np.int32)
    nodes = 0
    for i in range(rows.size):
        p = place[rows[i]]
        while p >= 0 and local[p] < 0:
            local[p] = 0
            nodes += 1
            p = above[p]
    parent, own, weights = np.empty(nodes, above.dtype), np.zeros(nodes + 1, np.int64), np.empty(nodes)
    levels = np.zeros(nodes + 2, np.int64)
    k, height = 0, 0
    for p in range(above.size):
        if local[p] >= 0:
            local[p], weights[k] = k, weight[p]
            parent[k] = local[above[p]] if above[p] >= 0 else -1
            depth[k] = depth[parent[k]] + 1 if parent[k] >= 0 else 0
            height = max(height, depth[k] + 1)
            levels[depth[k] + 1] = k + 1
            k += 1
    for i in range(rows.size):
        own[local[place[rows[i]]] + 1] += 1
    return np.cumsum(own), parent, levels[: height + 1], weights


@njit(**SERIAL)
def _multiply(small, x, product):
    """Active-set kernel: the product of a symmetric matrix and a code with zeros."""
    product[:] = 0
    for j in range(x.size):
        if x[j] != 0:
            value = x[j]
            for i in range(x.size):
                product[i] += value * small[j, i]


@njit(**SUMS)
def _compare(new, point, x, new_product, point_product):
    """Active-set kernel: of the step from `point` to `new`: curvature, squared length, turn and largest entry.

    The turn is (point - new)(new - x), which is positive if the momentum points the wrong way."""
    curved, moved, turn, most = 0.0, 0.0, 0.0, 0.0
    for i in range(x.size):
        way = np.float64(new[i]) - point[i]
        curved += way * (np.float64(new_product[i]) - point_product[i])
        moved += way * way
        turn -= way * (np.float64(new[i]) - x[i])
        most = max(most, abs(way))
    return curved, moved, turn, most


@njit(**PARALLEL)
def rests(gram, pull, which, starts, rows, values, result):
    """Active-set kernel: result[which[c]] <- the correlations of item which[c] minus G times its code."""
    for c in prange(which.size):
        row = result[which[c]]
        row[:] = pull[which[c]]
        for e in range(starts[c], starts[c + 1]):
            if values[e] != 0:
                _subtract(row, gram[rows[e]], values[e])


@njit(**SERIAL)
def _subtract(row, gram_row, value):
    """Active-set kernel: subtract a multiple of a row of the Gram matrix."""
    for i in range(row.size):
        row[i] -= value * gram_row[i]
