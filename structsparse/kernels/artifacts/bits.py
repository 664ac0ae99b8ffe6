"""Kernels for bit packing: numbers of a few bits each are packed into bytes without gaps, the highest bit first."""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}


@njit(**PLAIN)
def write_bits(numbers, width, packed, position):
    """Bit packing kernel: write the lowest `width` bits of each number to the packed bytes, from bit `position` on.

    `numbers` are uint64. `packed` (uint8) must be zero from there on. Returns the bit position after the last
    number."""
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
    """Bit packing kernel: unpack numbers of `width` bits into `numbers` (uint64); returns the next bit position."""
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
