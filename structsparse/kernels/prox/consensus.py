"""Kernels of consensus ADMM for overlapping groups: update of the copies, and the sums of all copies of each entry.

An atom is a set of entries that lie in the same groups. Group g has the atoms members[offsets[g] : offsets[g + 1]].
Atom k has the entries x[bounds[k] : bounds[k + 1]]. Each group has a copy of its entries, which begins at index
starts[g] of the array `copies`.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL, SUMS


@njit(**SERIAL)
def consensus(x, bounds, members, offsets, starts, reach, copies, duals, copy_sums, dual_sums):
    """Consensus ADMM kernel: update the copies v and the dual variables u of overlapping groups.

    For each group g, let z = x + u over its entries. Then v becomes the prox of reach[g] * norm at z. The new
    u is z - v. `copy_sums` and `dual_sums` get, for each entry, the sums of v and u over its groups. Returns the sums
    over all copies of (x - v)^2, of v^2 and of x^2."""
    copy_sums[:] = 0.0
    dual_sums[:] = 0.0
    apart, of_copies, of_x = 0.0, 0.0, 0.0
    for g in range(reach.size):
        group = members[offsets[g] : offsets[g + 1]]
        v, u = copies[starts[g] : starts[g + 1]], duals[starts[g] : starts[g + 1]]
        c, squares = 0, 0.0
        for k in group:
            for i in range(bounds[k], bounds[k + 1]):
                z = x[i] + u[c]
                squares += z * z
                c += 1
        norm = np.sqrt(squares)
        factor = 0.0 if norm <= reach[g] else 1 - reach[g] / norm
        c = 0
        for k in group:
            for i in range(bounds[k], bounds[k + 1]):
                z = x[i] + u[c]
                new = factor * z
                v[c], u[c] = new, z - new
                copy_sums[i] += new
                dual_sums[i] += z - new
                apart += (x[i] - new) ** 2
                of_copies += new * new
                of_x += x[i] * x[i]
                c += 1
    return apart, of_copies, of_x


@njit(**SUMS)
def consensus_of_singles(x, members, offsets, counts, reach, copies, duals, copy_sums, dual_sums):
    """Consensus ADMM kernel: update copies and dual variables of overlapping groups whose atoms are single entries.

    The update is that of `consensus`. counts [entries] is the number of copies of each entry. `dual_sums` must hold the
    sums of the old dual variables."""
    for i in range(x.size):
        dual_sums[i] += counts[i] * x[i]
    copy_sums[:] = 0.0
    apart, of_copies, of_x = 0.0, 0.0, 0.0
    for g in range(reach.size):
        group = members[offsets[g] : offsets[g + 1]]
        v, u = copies[offsets[g] : offsets[g + 1]], duals[offsets[g] : offsets[g + 1]]
        squares = 0.0
        for c in range(group.size):
            z = x[group[c]] + u[c]
            v[c] = z
            squares += z * z
        factor = 0.0 if squares <= reach[g] * reach[g] else 1 - reach[g] / np.sqrt(squares)
        of_copies += factor * factor * squares
        for c in range(group.size):
            z = v[c]
            new = factor * z
            v[c] = new
            u[c] = z - new
            copy_sums[group[c]] += new
            rest = x[group[c]] - new
            apart += rest * rest
    for i in range(x.size):
        dual_sums[i] -= copy_sums[i]
        of_x += counts[i] * x[i] * x[i]
    return apart, of_copies, of_x
