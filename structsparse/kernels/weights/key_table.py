"""Hash table of weights by 64-bit keys, with open addressing.

The high bits of a key give the first slot to try; the low half of the key is the tag that the slot stores. Tag and
weight lie side by side, so a look-up costs one cache miss, or none if the slot has been prefetched in time. A separate
array gives the row of each slot; rows hold the full keys and all other data of features. Updates compare full keys, but
look-ups compare tags only: with 2^32 tags, one look-up in billions is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.weights.bags import prefetcher

LEAST = 1024  # slots of the smallest table
LOAD = 0.4  # largest share of slots in use: in a fuller table, look-ups probe several slots
SPARE = 1.5  # a new table has room for so many times the rows that it holds
AHEAD = 16  # keys to prefetch in advance
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
fetch, fetch_to_write = prefetcher(writing=0), prefetcher(writing=1)


class Slots(NamedTuple):
    """Slots of a hash table: slot i has the tag tags[2 * i], 0 if empty, and the weight weights[2 * i + 1]."""

    tags: np.ndarray  # uint32 [2 * slots]
    weights: np.ndarray  # float32 [2 * slots], the same memory as `tags`
    rows: np.ndarray  # int32 [slots] row of each slot in use
    count: np.uint64  # number of slots


def slots_for(held: int) -> Slots:
    """Make an empty hash table with room for `held` rows and some spare rows."""
    count = max(LEAST, int(SPARE * held / LOAD) + 1)
    cells = np.empty(count, np.uint64)
    cells[:] = 0
    return Slots(cells.view(np.uint32), cells.view(np.float32), np.empty(count, np.int32), np.uint64(count))


def room(slots: Slots) -> int:
    """The number of rows that a hash table has room for."""
    return int(LOAD * len(slots.rows))


@njit(inline="always")
def first_slot(slots, key):
    """The first slot to try for a key: the high half of the key, scaled to the number of slots."""
    return ((key >> _HALF) * slots.count) >> _HALF


@njit(inline="always")
def _next(slots, i):
    """The slot that linear probing tries after slot i, cyclically."""
    return i + _ONE if i + _ONE < slots.count else np.uint64(0)


@njit(inline="always")
def tag_of(key):
    """The tag of a key: the low half of the key, with 1 in place of 0."""
    low = np.uint32(key & _LOW)
    return np.uint32(low + (low == 0))


@njit(inline="always")
def weigh(slots, key):
    """Look up the weight of a key; 0 if the table has no weight for the key."""
    tag, i = tag_of(key), first_slot(slots, key)
    while True:
        tag_there = slots.tags[i << _ONE]
        if tag_there == tag:
            return slots.weights[(i << _ONE) | _ONE]
        if tag_there == 0:
            return np.float32(0)
        i = _next(slots, i)


@njit(inline="always")
def fetch_row(slots, key):
    """Prefetch the first slot of a key and the row number of the slot, for writing."""
    i = first_slot(slots, key)
    fetch_to_write(slots.tags, i << _ONE)
    fetch_to_write(slots.rows, i)


@njit(**PLAIN)
def find(slots, keys, key):
    """Find the slot of a key, or else the empty slot for it; also returns whether the key is present.

    keys [rows]: the full key of each row."""
    tag, i = tag_of(key), first_slot(slots, key)
    while True:
        tag_there = slots.tags[i << _ONE]
        if tag_there == 0:
            return i, False
        if tag_there == tag and keys[slots.rows[i]] == key:
            return i, True
        i = _next(slots, i)


@njit(**PLAIN)
def put(slots, i, key, row):
    """Put a key and the number of its row in slot i."""
    slots.tags[i << _ONE], slots.rows[i] = tag_of(key), row


@njit(**PLAIN)
def fill(slots, keys, table):
    """Insert keys [rows], all different, and the weights `table` [rows] into an empty hash table."""
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
    """Copy the weights `table` [rows] into the slots in use."""
    for i in range(len(slots.rows)):
        if slots.tags[2 * i] != 0:
            slots.weights[2 * i + 1] = table[slots.rows[i]]


@njit(**PLAIN)
def collect(slots, table):
    """Copy the weights of the slots in use to `table` [rows]."""
    for i in range(len(slots.rows)):
        if slots.tags[2 * i] != 0:
            table[slots.rows[i]] = slots.weights[2 * i + 1]


@njit(**PLAIN)
def look_up(slots, keys, results):
    """Look up the weights of many keys: results [keys] = weight of each key, 0 if absent."""
    for k in range(len(keys)):
        results[k] = weigh(slots, keys[k])
