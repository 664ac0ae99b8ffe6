"""Quasi-Newton kernels: coordinate descent on the quadratic model of the loss, dot products, merging of index sets."""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL, SUMS


@njit(**SUMS)
def dot(x, y):
    """Quasi-Newton kernel: the dot product of two vectors in float64, without a float64 copy of the vectors."""
    total = 0.0
    for k in range(x.size):
        total += np.float64(x[k]) * np.float64(y[k])
    return total


@njit(**SERIAL)
def _add(x, y, factor):
    """Quasi-Newton kernel: add a multiple of a vector to another in coordinate descent, x += factor * y."""
    for k in range(x.size):
        x[k] += factor * y[k]


@njit(**SERIAL)
def merge(old, kept, new, places, of_old, of_new):
    """Quasi-Newton kernel: merge two ascending sets of entry indices into the array `places`.

    The union contains all indices in `new`, and the indices in `old` that the mask `kept` marks. of_old[i] gets the
    position of old[i] in the union, or -1 if it is absent. of_new[i] gets the position of new[i]. Returns the size of
    the union."""
    i = j = size = 0
    while i < old.size or j < new.size:
        place = new[j] if i == old.size or (j < new.size and new[j] < old[i]) else old[i]
        in_both = i < old.size and j < new.size and old[i] == new[j]
        if i < old.size and old[i] == place:
            of_old[i] = size if kept[i] or in_both else -1
            i += 1
            if of_old[i - 1] < 0:
                continue
        if j < new.size and new[j] == place:
            of_new[j] = size
            j += 1
        places[size] = place
        size += 1
    return size


@njit(**SERIAL)
def coordinate_descent(V, W, gradient, base, Q, R, diagonal, cut, ridge, sweeps, tolerance):
    """Quasi-Newton kernel: coordinate descent on the quadratic model plus lasso and ridge; returns the sweep count.

    Let W be the current weights and `gradient` the gradient of the loss at W. The new weights are

        V <- argmin  <gradient, V - W> + 1/2 (V - W)' B (V - W) + sum (cut |V| + ridge / 2 V^2),  B = diag(base) - Q R'.

    - Q and R are [entries, columns], with R = Q M for a symmetric matrix M. All other arrays are [entries].
    - `diagonal` is the diagonal of B, and is positive.
    - The first V is W, or a better guess.
    - The descent ends after `sweeps` sweeps.
    - It ends earlier if no entry decreases the model by more than `tolerance` times the largest decrease in the first
      sweep."""
    product = np.zeros(Q.shape[1])  # always equal to Q' (V - W)
    for j in range(V.size):
        if V[j] != W[j]:
            _add(product, Q[j], V[j] - W[j])
    first = 0.0
    for sweep in range(sweeps):
        largest = 0.0
        for j in range(V.size):
            slope = gradient[j] + base[j] * (V[j] - W[j]) - dot(R[j], product)
            free = diagonal[j] * V[j] - slope
            moved = (free - min(max(free, -cut[j]), cut[j])) / (diagonal[j] + ridge[j])
            change = moved - V[j]
            if change != 0:
                V[j] = moved
                _add(product, Q[j], change)
                largest = max(largest, change * change * diagonal[j])
        first = max(first, largest)
        if largest <= tolerance * first:
            return sweep + 1
    return sweeps
