"""CPU kernels of the interior point method for overlapping groups: sums over the entries of each atom.

`prox.overlaps_interior` explains the method. Atom k is x[bounds[k] : bounds[k + 1]], and `pull` has one number per
atom.
"""

from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

ALONE = 1 << 15  # entries: with fewer, one thread finishes before the others start


@njit(**SUMS)
def _pulled_sums(x, steps, pull):
    """Sums of v^2, steps * v^2 / (1 + steps * pull) and steps * v^2 over one atom, for v = x / (1 + steps * pull)."""
    squares, falls, spread = 0.0, 0.0, 0.0
    for i in range(x.size):
        share = 1 / (1 + steps[i] * pull)
        v = x[i] * share
        square = v * v
        moved = square * steps[i]
        squares += square
        falls += moved * share
        spread += moved
    return squares, falls, spread


@njit(**PARALLEL)
def pulled_sums(x, steps, bounds, pull, sums):
    """Kernel: sums over each atom of v^2, of steps * v^2 / (1 + steps * pull) and of steps * v^2.

    Here v = x / (1 + steps * pull[k]).
    """
    if x.size <= ALONE:
        for k in range(pull.size):
            atom = slice(bounds[k], bounds[k + 1])
            sums[0, k], sums[1, k], sums[2, k] = _pulled_sums(x[atom], steps[atom], pull[k])
        return
    for k in prange(pull.size):
        atom = slice(bounds[k], bounds[k + 1])
        sums[0, k], sums[1, k], sums[2, k] = _pulled_sums(x[atom], steps[atom], pull[k])


@njit(**SERIAL)
def sums_at_zero(x, steps, bounds, sums):
    """Kernel: sums over each atom of x^2 / steps, of x^2 / steps^2, and of x^2 / steps without entries of step 0."""
    for k in range(bounds.size - 1):
        first, second, finite = 0.0, 0.0, 0.0
        for i in range(bounds[k], bounds[k + 1]):
            if x[i] != 0:
                ratio = x[i] / steps[i]
                first += x[i] * ratio
                second += ratio * ratio
                if steps[i] > 0:
                    finite += x[i] * ratio
        sums[0, k], sums[1, k], sums[2, k] = first, second, finite


@njit(**SERIAL)
def _pull(x, steps, pull, v):
    """v <- x / (1 + steps * pull) for the entries of one atom of overlapping groups."""
    for i in range(x.size):
        v[i] = x[i] / (1 + steps[i] * pull)


@njit(**PARALLEL)
def pulled(x, steps, bounds, pull, zero, v):
    """Kernel: v <- x / (1 + steps * pull[k]) on each atom k, or exactly zero where zero[k]."""
    for k in prange(pull.size):
        atom = slice(bounds[k], bounds[k + 1])
        if zero[k]:
            v[atom] = 0.0
        else:
            _pull(x[atom], steps[atom], pull[k], v[atom])


@njit(**SERIAL)
def common(owner, starts, values, matrix):
    """Kernel: matrix[g, h] <- sum of values [atoms] over the atoms that groups g and h have in common."""
    for k in range(values.size):
        groups = owner[starts[k] : starts[k + 1]]
        for i in range(groups.size):
            for j in range(groups.size):
                matrix[groups[i], groups[j]] += values[k]
