"""Kernels of a key table: a hash table of weights by 64-bit feature keys, with open addressing.

- The high bits of a key give the first slot to try. The low half of the key is its tag, which the slot stores.
- Tag and weight lie side by side: a look-up costs at most one cache miss.
- A separate array gives the row of each slot. Rows hold the full keys and all other data of features.
- Updates compare full keys. Look-ups compare tags only, and one look-up in billions is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.weights.bags import prefetcher

LEAST = 1024  # number of slots of the smallest table
LOAD = 0.4  # largest share of slots in use; in a fuller table, look-ups would try more slots
SPARE = 1.5  # number of rows that a new table has room for, as a multiple of the number of rows it starts with
AHEAD = 16  # number of keys by which the prefetch of slots runs ahead
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
fetch, fetch_to_write = prefetcher(writing=0), prefetcher(writing=1)


class Slots(NamedTuple):
    """Key table kernels: slots of a hash table.

    Slot i has the tag tags[2 * i] and the weight weights[2 * i + 1]. The tag of an empty slot is 0."""

    tags: np.ndarray  # uint32 [2 * slots]: tags at the even indices
    weights: np.ndarray  # float32 [2 * slots]: weights at the odd indices; the same memory as `tags`
    rows: np.ndarray  # int32 [slots]: table row of each slot in use
    count: np.uint64  # number of slots


def slots_for(held: int) -> Slots:
    """Key table kernels: make an empty hash table, with room for more than `held` table rows."""
    count = max(LEAST, int(SPARE * held / LOAD) + 1)
    cells = np.empty(count, np.uint64)
    cells[:] = 0
    return Slots(cells.view(np.uint32), cells.view(np.float32), np.empty(count, np.int32), np.uint64(count))


def room(slots: Slots) -> int:
    """Key table kernels: the number of rows that the hash table has room for."""
    return int(LOAD * len(slots.rows))


@njit(inline="always")
def first_slot(slots, key):
    """Key table kernel: the first slot to try for a key: the high half of the key, scaled to the number of slots."""
    return ((key >> _HALF) * slots.count) >> _HALF


@njit(inline="always")
def _next(slots, i):
    """Key table kernel: the slot that linear probing tries after slot i, cyclically."""
    return i + _ONE if i + _ONE < slots.count else np.uint64(0)


@njit(inline="always")
def tag_of(key):
    """Key table kernel: the tag of a key, which is the low half of the key, or 1 if this is 0."""
    low = np.uint32(key & _LOW)
    return np.uint32(low + (low == 0))


@njit(inline="always")
def weigh(slots, key):
    """Key table kernel: the weight of a key in the hash table, or 0 if the key is absent."""
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
    """Key table kernel: prefetch the first slot of a key, and the row of this slot, for writing."""
    i = first_slot(slots, key)
    fetch_to_write(slots.tags, i << _ONE)
    fetch_to_write(slots.rows, i)


@njit(**PLAIN)
def find(slots, keys, key):
    """Key table kernel: find the slot of a key, and whether the key is present.

    For an absent key, the slot is the empty slot where the key belongs. keys [rows] holds the full key of each row."""
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
    """Key table kernel: store the tag of a key and its row in slot i."""
    slots.tags[i << _ONE], slots.rows[i] = tag_of(key), row


@njit(**PLAIN)
def fill(slots, keys, table):
    """Key table kernel: insert the distinct keys of all rows, with weights table[row], into an empty hash table."""
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
    """Key table kernel: copy the weight table[row] of each row to its slot in the hash table."""
    for i in range(len(slots.rows)):
        if slots.tags[2 * i] != 0:
            slots.weights[2 * i + 1] = table[slots.rows[i]]


@njit(**PLAIN)
def collect(slots, table):
    """Key table kernel: copy the weight of each used slot to table[row], where `row` is the row of the slot."""
    for i in range(len(slots.rows)):
        if slots.tags[2 * i] != 0:
            table[slots.rows[i]] = slots.weights[2 * i + 1]


@njit(**PLAIN)
def look_up(slots, keys, results):
    """Key table kernel: set results[i] to the weight of key i in the hash table, or to 0 if the key is absent."""
    for k in range(len(keys)):
        results[k] = weigh(slots, keys[k])
