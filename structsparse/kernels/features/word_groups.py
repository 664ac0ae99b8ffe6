"""Kernels for millions of groups of words: the distinct words of each group, and groups with the same words."""

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@njit(**PLAIN)
def count_distinct(rows, begins, ends, table):
    """The number of distinct word rows of each group of words: int64 [groups].

    The rows of group g are rows[begins[g] : ends[g]], each below `table`; -1 is ignored.
    """
    seen, sizes = np.full(table, -1, np.int64), np.zeros(len(begins), np.int64)
    for g in range(len(begins)):
        for t in range(begins[g], ends[g]):
            row = rows[t]
            if row >= 0 and seen[row] != g:
                seen[row] = g
                sizes[g] += 1
    return sizes


@njit(**PLAIN)
def distinct(rows, begins, ends, table, offsets):
    """The distinct word rows of each group of words in ascending order: int32 [offsets[-1]].

    The rows of group g are at offsets[g] : offsets[g + 1].
    """
    seen, members = np.full(table, -1, np.int64), np.empty(offsets[-1], np.int32)
    for g in range(len(begins)):
        place = offsets[g]
        for t in range(begins[g], ends[g]):
            row = rows[t]
            if row >= 0 and seen[row] != g:
                seen[row] = g
                members[place] = row
                place += 1
        members[offsets[g] : place].sort()
    return members


@njit(**PLAIN)
def same_as(members, offsets):
    """The first group of words that has the same members as each group, in the same order: int64 [groups]."""
    groups = len(offsets) - 1
    slots = 1
    while slots < 2 * groups:
        slots *= 2
    table, first = np.full(slots, -1, np.int64), np.empty(groups, np.int64)
    for g in range(groups):
        slot = np.int64(_hash(members, offsets, g) & np.uint64(slots - 1))
        while table[slot] >= 0 and not _equal(members, offsets, table[slot], g):
            slot = (slot + 1) % slots
        if table[slot] < 0:
            table[slot] = g
        first[g] = table[slot]
    return first


@njit(**PLAIN)
def _hash(members, offsets, g):
    """A hash of the members of a group of words."""
    key = np.uint64(0)
    for m in range(offsets[g], offsets[g + 1]):
        key = (key ^ np.uint64(members[m])) * _ODD
        key ^= key >> _HALF
    return key


@njit(**PLAIN)
def _equal(members, offsets, one, other):
    """Whether two groups of words have the same members."""
    return np.array_equal(members[offsets[one] : offsets[one + 1]], members[offsets[other] : offsets[other + 1]])
