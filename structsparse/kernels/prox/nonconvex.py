"""Kernels of the prox of nonconvex penalties (l0, log-sum, MCP) on single entries, on the CPU.

The formulas are in `prox.nonconvex`. `steps` has one step for each entry, or one step for all. Thresholds are float64,
because the prox jumps at the threshold, where rounding could change the result.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL

TILE = 1 << 15  # number of entries in a tile, the unit of work of a thread
ALONE = 1 << 16  # up to this number of entries, one thread is faster than several


@njit(**PARALLEL)
def move_hard(x, steps, strength, parameter):
    """Nonconvex prox kernel: hard threshold, the prox of the l0 penalty.

    `parameter` is unused; the kernels of the other penalties need it."""
    for tile in prange(_tiles(x)):
        a, b = tile * x.size // _tiles(x), (tile + 1) * x.size // _tiles(x)
        _hard(x[a:b], steps if steps.size == 1 else steps[a:b], strength)


@njit(**PARALLEL)
def move_log_sum(x, steps, strength, parameter):
    """Nonconvex prox kernel: prox of the log-sum penalty with epsilon = `parameter`."""
    for tile in prange(_tiles(x)):
        a, b = tile * x.size // _tiles(x), (tile + 1) * x.size // _tiles(x)
        _log_sum(x[a:b], steps if steps.size == 1 else steps[a:b], strength, parameter)


@njit(**PARALLEL)
def move_firm(x, steps, strength, parameter):
    """Nonconvex prox kernel: firm threshold, the prox of the MCP, which is constant for |x| > `parameter`."""
    for tile in prange(_tiles(x)):
        a, b = tile * x.size // _tiles(x), (tile + 1) * x.size // _tiles(x)
        _firm(x[a:b], steps if steps.size == 1 else steps[a:b], strength, parameter)


@njit(**SERIAL)
def _tiles(x):
    """Nonconvex prox kernel: the number of tiles (units of work of a thread) into which the entries are split."""
    return 1 if x.size <= ALONE else x.size // TILE


@njit(**SERIAL)
def _hard(x, steps, strength):
    """Nonconvex prox kernel: hard threshold of the entries of one tile."""
    stride = 1 if steps.size > 1 else 0
    for i in range(x.size):
        dies = abs(np.float64(x[i])) <= np.sqrt(2 * strength * steps[i * stride])
        x[i] = 0 if dies else x[i]


@njit(**SERIAL)
def _log_sum(x, steps, strength, epsilon):
    """Nonconvex prox kernel: prox of the log-sum penalty on the entries of one tile."""
    stride = 1 if steps.size > 1 else 0
    for i in range(x.size):
        size, threshold = abs(np.float64(x[i])), strength * steps[i * stride]
        past = size - epsilon
        discriminant = past * past + 4 * epsilon * (size - threshold)
        if discriminant < 0 or (size <= threshold and size <= epsilon):
            x[i] = 0
            continue
        root = np.sqrt(discriminant)
        living = (past + root) / 2 if past >= 0 else 2 * epsilon * (size - threshold) / (root - past)
        if size <= threshold:  # both 0 and the shrunken value are local minima: compare the objective
            height = threshold * epsilon * np.log1p(living / epsilon)
            if height >= living * (size - living / 2):
                x[i] = 0
                continue
        moved = threshold * (epsilon / (epsilon + living))
        x[i] = x[i] - (moved if x[i] > 0 else -moved)


@njit(**SERIAL)
def _firm(x, steps, strength, reach):
    """Nonconvex prox kernel: firm threshold (MCP) of the entries of one tile."""
    stride = 1 if steps.size > 1 else 0
    for i in range(x.size):
        size, threshold = abs(np.float64(x[i])), strength * steps[i * stride]
        concave = threshold >= reach
        if size <= (np.sqrt(reach * threshold) if concave else threshold):
            x[i] = 0
        elif not concave and size < reach:
            moved = threshold * (reach - size) / (reach - threshold)
            x[i] = x[i] - (moved if x[i] > 0 else -moved)
