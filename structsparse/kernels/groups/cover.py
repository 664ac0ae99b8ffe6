"""Overlapping groups on the CPU: repeated members, colours of groups, nesting, sums over groups.

The atoms of group g are `members[offsets[g] : offsets[g + 1]]`.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

ALONE = 1 << 15  # members, up to which one thread is done before the others are awake


@njit(**SERIAL)
def repeated(members, offsets, atoms):
    """The first member that repeats an atom of its group; -1 if none does."""
    seen = np.full(atoms, -1, np.int64)
    for g in range(offsets.size - 1):
        for m in range(offsets[g], offsets[g + 1]):
            if seen[members[m]] == g:
                return m
            seen[members[m]] = g
    return -1


@njit(**SERIAL)
def colours(members, offsets, order, multiplicity):
    """Greedy colouring of overlapping groups, in that order: the first colour that no group with a common atom has."""
    colour = np.empty(offsets.size - 1, np.int64)
    start = np.zeros(multiplicity.size + 1, np.int64)
    start[1:] = np.cumsum(multiplicity)
    met, filled = np.empty(start[-1], np.int64), np.zeros(multiplicity.size, np.int64)  # colours met at each atom
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
    """Whether groups are nested: down from the largest, all atoms of a group were last in the same group."""
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
    """Sum of values over the members of one group."""
    total = 0.0
    for m in range(members.size):
        total += values[members[m]]
    return total


@njit(**PARALLEL)
def gather(values, members, offsets, sums):
    """Sums over groups: sums[g] <- sum of values over the members of group g."""
    if members.size <= ALONE:
        for g in range(sums.size):
            sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
        return
    for g in prange(sums.size):
        sums[g] = _gathered(values, members[offsets[g] : offsets[g + 1]])
