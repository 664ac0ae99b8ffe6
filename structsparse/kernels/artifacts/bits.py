"""Kernels for bit packing: numbers of a few bits each, side by side in bytes, the highest bit first."""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}


@njit(**PLAIN)
def write_bits(numbers, width, packed, position):
    """Append the lowest `width` bits of each number to packed bytes; returns the bit position after them.

    numbers: uint64. packed: uint8, zeros from bit `position` on.
    """
    for number in numbers:
        left = width
        while left > 0:
            free = 8 - (position & 7)
            size = min(free, left)
            bits = (np.int64(number >> np.uint64(left - size))) & ((1 << size) - 1)
            packed[position >> 3] |= np.uint8(bits << (free - size))
            position += size
            left -= size
    return position


@njit(**PLAIN)
def read_bits(packed, position, width, numbers):
    """Read packed numbers of `width` bits into `numbers` (uint64); returns the bit position after them."""
    for i in range(len(numbers)):
        left, number = width, 0
        while left > 0:
            free = 8 - (position & 7)
            size = min(free, left)
            number = (number << size) | ((np.int64(packed[position >> 3]) >> (free - size)) & ((1 << size) - 1))
            position += size
            left -= size
        numbers[i] = number
    return position
