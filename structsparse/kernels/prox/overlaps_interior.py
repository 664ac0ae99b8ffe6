"""Kernels of the interior point method for the prox of overlapping groups: sums over the entries of each atom.

An atom is a set of entries that lie in the same groups. Atom k has the entries x[bounds[k] : bounds[k + 1]]. The prox
divides the entries of atom k by 1 + steps * pull[k]. `prox.overlaps_interior` explains the method.
"""

from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

ALONE = 1 << 15  # up to this number of entries, one thread is faster than several


@njit(**SUMS)
def _pulled_sums(x, steps, pull):
    """Interior point overlaps kernel: the sums of v^2, steps * v^2 / (1 + steps * pull) and steps * v^2 over one atom.

    An atom is a set of entries that no group divides. v is x / (1 + steps * pull)."""
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
    """Interior point overlaps kernel: three sums over each atom that Newton's method needs.

    An atom is a set of entries that no group divides. On atom k, let v = x / (1 + steps * pull[k]). The rows of sums
    [3, atoms] get the sums of v^2, of steps * v^2 / (1 + steps * pull[k]), and of steps * v^2."""
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
    """Interior point overlaps kernel: sums over each atom of x^2 / steps and of x^2 / steps^2.

    An atom is a set of entries that no group divides. The first two rows of sums [3, atoms] get these sums. The third
    row gets the sum of x^2 / steps without the entries of step 0."""
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
    """Interior point overlaps kernel: v <- x / (1 + steps * pull) for the entries of one atom (undivided set)."""
    for i in range(x.size):
        v[i] = x[i] / (1 + steps[i] * pull)


@njit(**PARALLEL)
def pulled(x, steps, bounds, pull, zero, v):
    """Interior point overlaps kernel: v <- x / (1 + steps * pull[k]) on each atom k, or exactly zero where zero[k].

    An atom is a set of entries that no group divides."""
    for k in prange(pull.size):
        atom = slice(bounds[k], bounds[k + 1])
        if zero[k]:
            v[atom] = 0.0
        else:
            _pull(x[atom], steps[atom], pull[k], v[atom])


@njit(**SERIAL)
def common(owner, starts, values, matrix):
    """Interior point overlaps kernel: add to matrix[g, h] the sum of `values` over the atoms common to groups g and h.

    An atom is a set of entries that no group divides. `values` has one number per atom. Atom k lies in the groups
    owner[starts[k] : starts[k + 1]]."""
    for k in range(values.size):
        groups = owner[starts[k] : starts[k + 1]]
        for i in range(groups.size):
            for j in range(groups.size):
                matrix[groups[i], groups[j]] += values[k]
