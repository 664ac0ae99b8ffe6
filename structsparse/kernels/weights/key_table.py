"""A table of weights that are found by 64-bit keys, on the CPU.

Open addressing: the high bits of a key say where to look first, its low half is the tag by which it is known there. Tag
and weight lie side by side, so a look-up costs one cache miss, and where a key has been fetched in time none. Which row
a slot belongs to is told apart: rows have the whole keys, and whatever else is known of a feature. Two keys in one
neighbourhood whose tags are equal are told apart where weights move, not where they are looked up: with 2^32 tags that
is one wrong look-up in some thousand millions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.weights.bags import _prefetcher

LEAST = 1024  # slots
LOAD = 0.4  # share of the slots in use at most: beyond, look-ups go from slot to slot
SPARE = 1.5  # slots for so many times the rows there are: what a table made anew may grow by
AHEAD = 16  # keys, while many are looked up one by one
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
fetch, fetch_to_write = _prefetcher(writing=0), _prefetcher(writing=1)


class Slots(NamedTuple):
    """Slot i has its tag in tags[2 * i], 0 where it is empty, and its weight in weights[2 * i + 1]."""

    tags: np.ndarray  # uint32 [2 * slots]
    weights: np.ndarray  # float32 [2 * slots], the same memory
    rows: np.ndarray  # int32 [slots]
    count: np.uint64


def slots_for(held: int) -> Slots:
    """Empty slots for so many rows."""
    count = max(LEAST, int(SPARE * held / LOAD) + 1)
    cells = np.empty(count, np.uint64)
    cells[:] = 0
    return Slots(cells.view(np.uint32), cells.view(np.float32), np.empty(count, np.int32), np.uint64(count))


def room(slots: Slots) -> int:
    """How many rows may be in use."""
    return int(LOAD * len(slots.rows))


@njit(inline="always")
def first_slot(slots, key):
    """Where a key is looked for first: as far among the slots as it is among all keys."""
    return ((key >> _HALF) * slots.count) >> _HALF


@njit(inline="always")
def _next(slots, i):
    return i + _ONE if i + _ONE < slots.count else np.uint64(0)


@njit(inline="always")
def tag_of(key):
    low = np.uint32(key & _LOW)
    return np.uint32(low + (low == 0))


@njit(inline="always")
def weigh(slots, key):
    """The weight of a key, 0 where it has none."""
    tag, i = tag_of(key), first_slot(slots, key)
    while True:
        known = slots.tags[i << _ONE]
        if known == tag:
            return slots.weights[(i << _ONE) | _ONE]
        if known == 0:
            return np.float32(0)
        i = _next(slots, i)


@njit(inline="always")
def fetch_row(slots, key):
    """To write to a key's slot, which row it is included."""
    i = first_slot(slots, key)
    fetch_to_write(slots.tags, i << _ONE)
    fetch_to_write(slots.rows, i)


@njit(**PLAIN)
def find(slots, keys, key):
    """The slot of a key, or where it would be put; and whether it is there. keys [rows] are whole."""
    tag, i = tag_of(key), first_slot(slots, key)
    while True:
        known = slots.tags[i << _ONE]
        if known == 0:
            return i, False
        if known == tag and keys[slots.rows[i]] == key:
            return i, True
        i = _next(slots, i)


@njit(**PLAIN)
def put(slots, i, key, row):
    slots.tags[i << _ONE], slots.rows[i] = tag_of(key), row


@njit(**PLAIN)
def fill(slots, keys, table):
    """Lay keys [rows], all different, and their weights [rows] into empty slots."""
    for row in range(len(keys)):
        if row + AHEAD < len(keys):
            fetch_row(slots, keys[row + AHEAD])
        i = first_slot(slots, keys[row])
        while slots.tags[i << _ONE] != 0:
            i = _next(slots, i)
        put(slots, i, keys[row], row)
        slots.weights[(i << _ONE) | _ONE] = table[row]


@njit(**PLAIN)
def pour(slots, table):
    """Let the slots in use have the weights [rows]."""
    for i in range(len(slots.rows)):
        if slots.tags[2 * i] != 0:
            slots.weights[2 * i + 1] = table[slots.rows[i]]


@njit(**PLAIN)
def collect(slots, table):
    """The weights of the slots in use, row by row: table [rows]"""
    for i in range(len(slots.rows)):
        if slots.tags[2 * i] != 0:
            table[slots.rows[i]] = slots.weights[2 * i + 1]


@njit(**PLAIN)
def look_up(slots, keys, found):
    """found [keys] = their weights."""
    for k in range(len(keys)):
        found[k] = weigh(slots, keys[k])
