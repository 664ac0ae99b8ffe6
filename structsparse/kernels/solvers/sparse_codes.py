"""Kernel of FISTA for many sparse codes at once: momentum, restarts and residuals of every column of a table."""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL

BLOCK = 128  # columns that are processed together; their data fit the CPU cache


@njit(**SERIAL)
def extrapolate(new, codes, point, momentum, residual):
    """Sparse codes kernel: after a proximal gradient step from `point` to `new`, the next point of each column.

    The next point is new + share * (new - codes), and `codes` becomes `new`. The share grows with `momentum`, which
    restarts at 1 in columns where the step points against the last one. `residual` gets the largest absolute entry of
    point - new in each column. All tables are [rows, columns]."""
    one, zero = new.dtype.type(1), new.dtype.type(0)
    turn, share = np.empty(BLOCK, new.dtype), np.empty(BLOCK, new.dtype)
    for a in range(0, new.shape[1], BLOCK):
        b = min(a + BLOCK, new.shape[1])
        turn[:] = zero
        residual[a:b] = zero
        for i in range(new.shape[0]):
            _compare(new[i, a:b], codes[i, a:b], point[i, a:b], turn, residual[a:b])
        for c in range(b - a):
            before = one if turn[c] > 0 else momentum[a + c]
            after = (one + np.sqrt(one + 4 * before * before)) / 2
            share[c], momentum[a + c] = (before - one) / after, after
        for i in range(new.shape[0]):
            _advance(new[i, a:b], codes[i, a:b], point[i, a:b], share)


@njit(**SERIAL)
def _compare(new, codes, point, turn, residual):
    """Sparse codes kernel: add a row to the inner products (point - new)(new - codes), and update the residuals."""
    for c in range(new.size):
        back = point[c] - new[c]
        turn[c] += back * (new[c] - codes[c])
        size = abs(back)
        residual[c] = size if size > residual[c] else residual[c]


@njit(**SERIAL)
def _advance(new, codes, point, share):
    """Sparse codes kernel: the next point of a row, and its codes."""
    for c in range(new.size):
        point[c] = new[c] + share[c] * (new[c] - codes[c])
        codes[c] = new[c]
