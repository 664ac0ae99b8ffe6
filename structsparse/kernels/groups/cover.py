"""Kernels for covers, which are sets of overlapping groups: repeated members, colouring, nesting, sums over groups.

An atom is a set of entries that lie in the same groups. The atoms of group g are members[offsets[g] : offsets[g + 1]].
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

ALONE = 1 << 15  # up to this many members, one thread does all the work, as starting other threads takes longer


@njit(**SERIAL)
def repeated(members, offsets, atoms):
    """Cover kernel: the first member that repeats an atom of its overlapping group; -1 if there is none."""
    seen = np.full(atoms, -1, np.int64)
    for g in range(offsets.size - 1):
        for m in range(offsets[g], offsets[g + 1]):
            if seen[members[m]] == g:
                return m
            seen[members[m]] = g
    return -1


@njit(**SERIAL)
def colours(members, offsets, order, multiplicity):
    """Cover kernel: greedy colouring of overlapping groups in the given order: int64 [groups].

    Each group gets the first colour that no group with a common atom has. multiplicity [atoms] is the number of groups
    that contain each atom.
    """
    colour = np.empty(offsets.size - 1, np.int64)
    start = np.zeros(multiplicity.size + 1, np.int64)
    start[1:] = np.cumsum(multiplicity)
    # met: the colours so far of the groups of each atom; filled: how many colours each atom has met
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
    """Cover kernel: whether the overlapping groups are nested, that is, disjoint or one inside the other.

    The groups are visited by size, the largest first. They are nested if, for each group, all atoms have the same
    latest visited group.
    """
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
    """Cover kernel: the sum of values [atoms] over the members of one overlapping group."""
    total = 0.0
    for m in range(members.size):
        total += values[members[m]]
    return total


@njit(**PARALLEL)
def gather(values, members, offsets, sums):
    """Cover kernel: sums[g] <- sum of values [atoms] over the members of overlapping group g."""
    if members.size <= ALONE:
        for g in range(sums.size):
            sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
        return
    for g in prange(sums.size):
        sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
