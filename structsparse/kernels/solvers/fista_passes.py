"""FISTA kernels: the vector operations of an accelerated proximal gradient step, each in one pass over memory.

All arrays are flat and contiguous. `step` holds one step size per array entry. Sums are float64. Large arrays are split
into tiles, each of STRETCH entries. Each tile is summed separately. The results therefore do not depend on the number
of threads.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SUMS

STRETCH = 1 << 15  # number of array entries in one tile
ALONE = 1 << 18  # number of array entries up to which one thread is faster than several


@njit(**SUMS)
def _ahead(x, before, here, point, momentum):
    """FISTA kernel: extrapolate the weights of one tile, a stretch of the arrays, as described at `ahead`."""
    for i in range(x.size):
        here[i] = x[i]
        x[i] += momentum * (x[i] - before[i])
        point[i] = x[i]


@njit(**PARALLEL)
def ahead(x, before, here, point, momentum):
    """FISTA kernel: extrapolate the weights x along the last move, x - before.

    `before` holds the weights of the previous iteration. Copies x to `here`. Then sets x and `point` to
    x + momentum * (x - before)."""
    if x.size <= ALONE:
        _ahead(x, before, here, point, momentum)
        return
    for tile in prange((x.size + STRETCH - 1) // STRETCH):
        a, b = tile * STRETCH, (tile + 1) * STRETCH
        _ahead(x[a:b], before[a:b], here[a:b], point[a:b], momentum)


@njit(**SUMS)
def _down(x, point, gradient, step, scale, metric):
    """FISTA kernel: take the gradient step on one tile, a stretch of the arrays, as described at `down`."""
    for i in range(x.size):
        metric[i] = scale * step[i]
        x[i] = point[i] - metric[i] * gradient[i]


@njit(**PARALLEL)
def down(x, point, gradient, step, scale, metric):
    """FISTA kernel: take a gradient step from the extrapolated point.

    `point` is the extrapolated point, and `gradient` the gradient of the loss at this point. `metric` gets the step
    sizes scale * step. x gets the new weights, point - metric * gradient."""
    if x.size <= ALONE:
        _down(x, point, gradient, step, scale, metric)
        return
    for tile in prange((x.size + STRETCH - 1) // STRETCH):
        a, b = tile * STRETCH, (tile + 1) * STRETCH
        _down(x[a:b], point[a:b], gradient[a:b], step[a:b], scale, metric[a:b])


@njit(**SUMS)
def _sums(x, point, here, gradient, step, sums):
    """FISTA kernel: fill the array `sums` with the three sums over one tile that the function `sums` describes."""
    length = along = turn = 0.0
    for i in range(x.size):
        move = np.float64(x[i]) - point[i]
        scaled = move / np.float64(step[i])
        length += move * scaled
        along += move * gradient[i]
        turn -= scaled * (np.float64(x[i]) - here[i])
    sums[0], sums[1], sums[2] = length, along, turn


@njit(**PARALLEL)
def sums(x, point, here, gradient, step):
    """FISTA kernel: the three sums that the line search and the restart test need.

    x is the new iterate, `here` the previous iterate and `point` the extrapolated point. `gradient` is the gradient of
    the loss at `point`, and `step` holds the step sizes. With move = x - point, the result has the sums over all
    entries of

    - move^2 / step,
    - move * gradient,
    - -move / step * (x - here)."""
    tiles = max(1, (x.size + STRETCH - 1) // STRETCH)
    tile_sums = np.zeros((tiles, 3))
    if x.size <= ALONE:
        _sums(x, point, here, gradient, step, tile_sums[0])
    else:
        for tile in prange(tiles):
            a, b = tile * STRETCH, (tile + 1) * STRETCH
            _sums(x[a:b], point[a:b], here[a:b], gradient[a:b], step[a:b], tile_sums[tile])
    total = np.zeros(3)
    for tile in range(tiles):
        for k in range(3):
            total[k] += tile_sums[tile, k]
    return total
