"""Kernels for covers, which are sets of overlapping groups: repeated members, colouring, nesting, sums over groups.

An atom is a set of entries that lie in exactly the same groups. A member is an atom listed in a group. Group g has the
atoms members[offsets[g] : offsets[g + 1]].
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

ALONE = 1 << 15  # up to this total size of all groups, one thread is faster than several


@njit(**SERIAL)
def repeated(members, offsets, atoms):
    """Cover kernel: the first index in `members` whose atom occurs before in the same overlapping group; -1 for none.

    An atom is a set of entries that lie in the same groups. members[offsets[g] : offsets[g + 1]] are the atoms of group
    g."""
    seen = np.full(atoms, -1, np.int64)
    for g in range(offsets.size - 1):
        for m in range(offsets[g], offsets[g + 1]):
            if seen[members[m]] == g:
                return m
            seen[members[m]] = g
    return -1


@njit(**SERIAL)
def colours(members, offsets, order, multiplicity):
    """Cover kernel: greedy colouring of overlapping groups in the given order; returns the colour of each group.

    Each group gets the lowest colour that no group with a common atom has. An atom is a set of entries that lie in the
    same groups. multiplicity [atoms] counts the groups that contain each atom."""
    colour = np.empty(offsets.size - 1, np.int64)
    start = np.zeros(multiplicity.size + 1, np.int64)
    start[1:] = np.cumsum(multiplicity)
    # `met` lists, for each atom (set of entries), the colours of groups with this atom so far; `filled` counts them
    met, filled = np.empty(start[-1], np.int64), np.zeros(multiplicity.size, np.int64)
    taken = np.full(offsets.size, -1, np.int64)
    for g in order:
        group = members[offsets[g] : offsets[g + 1]]
        for k in group:
            for at in range(start[k], start[k] + filled[k]):
                taken[met[at]] = g
        first = 0
        while taken[first] == g:
            first += 1
        colour[g] = first
        for k in group:
            met[start[k] + filled[k]] = first
            filled[k] += 1
    return colour


@njit(**SERIAL)
def nested(members, offsets, largest_first, atoms):
    """Cover kernel: whether the overlapping groups are nested: any two are disjoint, or one contains the other.

    `largest_first` lists the groups by size. `atoms` is the number of atoms (sets of entries that no group divides)."""
    latest = np.full(atoms, -1)
    for g in largest_first:
        group = members[offsets[g] : offsets[g + 1]]
        for k in group:
            if latest[k] != latest[group[0]]:
                return False
        latest[group] = g
    return True


@njit(**SUMS)
def _gathered(values, members):
    """Cover kernel: the sum of `values` over the atoms (undivided sets of entries) of one overlapping group."""
    total = 0.0
    for m in range(members.size):
        total += values[members[m]]
    return total


@njit(**PARALLEL)
def gather(values, members, offsets, sums):
    """Cover kernel: sums[g] gets the sum of `values` over the atoms of overlapping group g.

    An atom is a set of entries that lie in the same groups. `values` has one number per atom."""
    if members.size <= ALONE:
        for g in range(sums.size):
            sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
        return
    for g in prange(sums.size):
        sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
