"""Kernel for overlapping groups in turn: apply the prox of one group norm after the other (not the prox of the sum).

An atom is a set of entries that lie in the same groups. Group g has the atoms members[offsets[g] : offsets[g + 1]].
Atom k has the entries x[bounds[k] : bounds[k + 1]].
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL
from structsparse.kernels.prox.overlaps import _root


@njit(**SERIAL)
def shrink_in_turn(x, steps, even, bounds, members, offsets, order, reach):
    """Overlaps in turn kernel: apply the prox of the norm of each group, one group after the other.

    Where groups overlap, the result is not the prox of the sum of the norms. `order` lists the groups. `even` tells
    whether all steps are equal."""
    for g in order:
        if reach[g] == 0:
            continue
        group = members[offsets[g] : offsets[g + 1]]
        norm, scaled = _norms(x, steps, even, bounds, group)
        dead = scaled <= reach[g]
        theta = 0.0
        if not dead:
            theta = norm - reach[g] * steps[0] if even else _root(x, steps, bounds, group, reach[g])
        for k in group:
            for i in range(bounds[k], bounds[k + 1]):
                x[i] = 0.0 if dead else x[i] * (theta / (theta + reach[g] * steps[i])) + 0.0


@njit(**SERIAL)
def _norms(x, steps, even, bounds, members):
    """Overlaps in turn kernel: the norm of x and the norm of x / steps over one overlapping group."""
    squares, scaled = 0.0, 0.0
    for k in members:
        for i in range(bounds[k], bounds[k + 1]):
            squares += x[i] * x[i]
            if not even and x[i] != 0:
                scaled += (x[i] / steps[i]) ** 2
    norm = np.sqrt(squares)
    return norm, (norm / steps[0] if even and norm > 0 else np.sqrt(scaled))
