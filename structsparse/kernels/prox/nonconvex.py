"""CPU kernels of the prox of nonconvex penalties (l0, log-sum, MCP) on single entries.

`prox.nonconvex` has the formulas. `steps` has one step for each entry, or one for all. Thresholds are float64, as the
prox jumps and rounding would decide near a jump.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL

TILE = 1 << 15  # entries of a tile, the work of one thread
ALONE = 1 << 16  # entries: with fewer, starting other threads costs more than it saves


@njit(**PARALLEL)
def move_hard(x, steps, strength, parameter):
    """Kernel of the hard threshold (prox of l0); `parameter` is unused."""
    for tile in prange(_tiles(x)):
        a, b = tile * x.size // _tiles(x), (tile + 1) * x.size // _tiles(x)
        _hard(x[a:b], steps if steps.size == 1 else steps[a:b], strength)


@njit(**PARALLEL)
def move_log_sum(x, steps, strength, parameter):
    """Kernel of the prox of the log-sum penalty; `parameter` is epsilon."""
    for tile in prange(_tiles(x)):
        a, b = tile * x.size // _tiles(x), (tile + 1) * x.size // _tiles(x)
        _log_sum(x[a:b], steps if steps.size == 1 else steps[a:b], strength, parameter)


@njit(**PARALLEL)
def move_firm(x, steps, strength, parameter):
    """Kernel of the firm threshold (prox of the MCP); `parameter` is the reach of the penalty."""
    for tile in prange(_tiles(x)):
        a, b = tile * x.size // _tiles(x), (tile + 1) * x.size // _tiles(x)
        _firm(x[a:b], steps if steps.size == 1 else steps[a:b], strength, parameter)


@njit(**SERIAL)
def _tiles(x):
    """The number of tiles that the entries are cut into."""
    return 1 if x.size <= ALONE else x.size // TILE


@njit(**SERIAL)
def _hard(x, steps, strength):
    """Hard threshold of the entries of one tile."""
    stride = 1 if steps.size > 1 else 0
    for i in range(x.size):
        dies = abs(np.float64(x[i])) <= np.sqrt(2 * strength * steps[i * stride])
        x[i] = 0 if dies else x[i]


@njit(**SERIAL)
def _log_sum(x, steps, strength, epsilon):
    """Prox of the log-sum penalty on the entries of one tile."""
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
        if size <= threshold:  # zero is a local minimum as well
            height = threshold * epsilon * np.log1p(living / epsilon)
            if height >= living * (size - living / 2):
                x[i] = 0
                continue
        moved = threshold * (epsilon / (epsilon + living))
        x[i] = x[i] - (moved if x[i] > 0 else -moved)


@njit(**SERIAL)
def _firm(x, steps, strength, reach):
    """Firm threshold (MCP) of the entries of one tile."""
    stride = 1 if steps.size > 1 else 0
    for i in range(x.size):
        size, threshold = abs(np.float64(x[i])), strength * steps[i * stride]
        concave = threshold >= reach
        if size <= (np.sqrt(reach * threshold) if concave else threshold):
            x[i] = 0
        elif not concave and size < reach:
            moved = threshold * (reach - size) / (reach - threshold)
            x[i] = x[i] - (moved if x[i] > 0 else -moved)
