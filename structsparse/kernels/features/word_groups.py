"""Kernels for many word groups: the distinct words of each group, and groups with the same words."""

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: an odd multiplier that mixes the bits of a hash
_HALF = np.uint64(32)  # half of the number of bits of a hash


@njit(**PLAIN)
def count_distinct(rows, begins, ends, table):
    """Word groups kernel: the number of distinct words of each group, as an int64 array.

    A word is an index less than `table`. The words of group g are rows[begins[g] : ends[g]]. An index of -1 is
    ignored."""
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
    """Word groups kernel: the distinct words of each group, in ascending order, as one int32 array.

    A word is an index less than `table`. The words of group g are rows[begins[g] : ends[g]]. An index of -1 is ignored.
    The result has the distinct words of group g at offsets[g] to offsets[g + 1] - 1."""
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
    """Word groups kernel: for each group, the index of the first group that has the same words.

    The words of group g are members[offsets[g] : offsets[g + 1]], in ascending order."""
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
    """Word groups kernel: a 64-bit hash of the words of group g, members[offsets[g] : offsets[g + 1]]."""
    key = np.uint64(0)
    for m in range(offsets[g], offsets[g + 1]):
        key = (key ^ np.uint64(members[m])) * _ODD
        key ^= key >> _HALF
    return key


@njit(**PLAIN)
def _equal(members, offsets, one, other):
    """Word groups kernel: whether two groups have the same words."""
    return np.array_equal(members[offsets[one] : offsets[one + 1]], members[offsets[other] : offsets[other + 1]])
