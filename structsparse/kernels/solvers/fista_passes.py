"""Vector operations of an accelerated proximal gradient step (FISTA), each fused into one pass over memory.

All arrays of a call are flat, contiguous and of the same precision; `step` [entries] holds one step size per entry.
Sums are float64. Each tile of STRETCH entries has its own sum, so results do not depend on the number of threads.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SUMS

STRETCH = 1 << 15  # entries of a tile
ALONE = 1 << 18  # entries: a single thread finishes smaller arrays before other threads have started


@njit(**SUMS)
def _ahead(x, before, here, point, momentum):
    """Extrapolation (`ahead`) on one tile."""
    for i in range(x.size):
        here[i] = x[i]
        x[i] += momentum * (x[i] - before[i])
        point[i] = x[i]


@njit(**PARALLEL)
def ahead(x, before, here, point, momentum):
    """FISTA extrapolation: here <- x; x and point <- x + momentum * (x - before), `before` being the last iterate."""
    if x.size <= ALONE:
        _ahead(x, before, here, point, momentum)
        return
    for tile in prange((x.size + STRETCH - 1) // STRETCH):
        a, b = tile * STRETCH, (tile + 1) * STRETCH
        _ahead(x[a:b], before[a:b], here[a:b], point[a:b], momentum)


@njit(**SUMS)
def _down(x, point, gradient, step, scale, metric):
    """Gradient step (`down`) on one tile."""
    for i in range(x.size):
        metric[i] = scale * step[i]
        x[i] = point[i] - metric[i] * gradient[i]


@njit(**PARALLEL)
def down(x, point, gradient, step, scale, metric):
    """FISTA gradient step: metric <- scale * step; x <- point - metric * gradient."""
    if x.size <= ALONE:
        _down(x, point, gradient, step, scale, metric)
        return
    for tile in prange((x.size + STRETCH - 1) // STRETCH):
        a, b = tile * STRETCH, (tile + 1) * STRETCH
        _down(x[a:b], point[a:b], gradient[a:b], step[a:b], scale, metric[a:b])


@njit(**SUMS)
def _sums(x, point, here, gradient, step, sums):
    """Line-search sums (`sums`) on one tile."""
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
    """Sums for the line search and the restart test of FISTA, with move = x - point.

    Returns [sum move^2 / step, sum move * gradient, sum -move / step * (x - here)]."""
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
