"""Consensus copies of overlapping groups on the CPU: their update and its sums over the groups of each entry.

A group is a list of atoms, `members[offsets[g] : offsets[g + 1]]`; atom k is x[bounds[k] : bounds[k + 1]]. The copy of
its entries that a group has lies one atom after the other from starts[g] on.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL, SUMS


@njit(**SERIAL)
def consensus(x, bounds, members, offsets, starts, reach, copies, duals, copy_sums, dual_sums):
    """Update consensus copies: for each group z = x + u, copies v <- group prox of z with reach, u <- z - v; both also
    summed over the groups of each entry. Returns the squares of x - v, of v and of x, summed over all copies."""
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
    """`consensus` where each atom is one entry. As dual + copy = x + old dual, the sums of duals follow from those of
    copies, so that only the latter are scattered."""
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
