"""Symbols as few bits: an adaptive binary arithmetic coder.

A symbol of `width` bits is told bit by bit, the highest first. How probable a bit is, is learnt on the way, apart for
each context and for the bits told before: (ones + 1/2) / (all + 1) (Krichevsky and Trofimov 1981). All arithmetic is in
whole numbers, so that every machine writes and reads the same bytes.

Where `chained` is true the context of a symbol is contexts[i] + 1 + the symbol before it, else contexts[i].
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
LONGEST = 1 << 14  # so many bits of a kind are remembered; then the older ones count half
_SHIFT = 16
_ONE = 1 << _SHIFT
_BYTE, _TOP, _WORD = 1 << 24, 0xFF000000, 0xFFFFFFFF


@njit(inline="always")
def _share(seen, node):
    """How probable a 0 is, of 2^16: at least 1, less than all."""
    zeros, ones = np.int64(seen[node, 0]), np.int64(seen[node, 1])
    return min(max(((2 * zeros + 1) << _SHIFT) // (2 * (zeros + ones) + 2), 1), _ONE - 1)


@njit(inline="always")
def _learn(seen, node, bit):
    seen[node, bit] += 1
    if seen[node, bit] == LONGEST:
        seen[node, 0] >>= 1
        seen[node, 1] >>= 1


@njit(**PLAIN)
def _carry(told, place):
    """Add one to the number whose bytes are told[:place]."""
    place -= 1
    while told[place] == 255:
        told[place] = 0
        place -= 1
    told[place] += 1


@njit(**PLAIN)
def encode(symbols, contexts, chained, width, seen, told):
    """Fill told, which has room for (width * 2 + 1) bytes a symbol and 8 more; how many bytes of it are needed.

    symbols uint8 or int32, contexts int32, chained bool: [symbols]; seen uint16 [contexts << width, 2], zeros."""
    low, span, place = 0, _WORD, 0
    for i in range(len(symbols)):
        symbol, context = np.int64(symbols[i]), np.int64(contexts[i])
        if chained[i]:
            context += 1 + symbols[i - 1]
        node = 1
        for k in range(width - 1, -1, -1):
            bit, here = (symbol >> k) & 1, (context << width) + node
            bound = (span >> _SHIFT) * _share(seen, here)
            if bit:
                low += bound
                span -= bound
            else:
                span = bound
            _learn(seen, here, bit)
            node = 2 * node + bit
            if low > _WORD:
                _carry(told, place)
                low &= _WORD
            while span < _BYTE:
                told[place] = low >> 24
                place += 1
                low = (low << 8) & _WORD
                span <<= 8
    low = (low + _BYTE - 1) & (_TOP | (_WORD + 1))  # the number within the span that has the most zeros at its end
    if low > _WORD:
        _carry(told, place)
    told[place] = (low & _WORD) >> 24
    place += 1
    while place and told[place - 1] == 0:  # who reads on finds zeros
        place -= 1
    return place


@njit(**PLAIN)
def decode(told, contexts, chained, width, seen, symbols):
    """Fill symbols [contexts]; how many bytes were looked at: those that `told` has beyond them mean nothing."""
    span, value, place = _WORD, 0, 0
    for _ in range(4):
        value = (value << 8) | (told[place] if place < len(told) else 0)
        place += 1
    for i in range(len(symbols)):
        context = np.int64(contexts[i])
        if chained[i]:
            context += 1 + symbols[i - 1]
        node = 1
        for _ in range(width):
            here = (context << width) + node
            bound = (span >> _SHIFT) * _share(seen, here)
            bit = 1 if value >= bound else 0
            if bit:
                value -= bound
                span -= bound
            else:
                span = bound
            _learn(seen, here, bit)
            node = 2 * node + bit
            while span < _BYTE:
                value = ((value << 8) | (told[place] if place < len(told) else 0)) & _WORD
                place += 1
                span <<= 8
        symbols[i] = node - (1 << width)
    return place


# --- numbers of some bits each, side by side, the highest bit first


@njit(**PLAIN)
def lay_bits(numbers, width, told, place):
    """The lowest bits of each number, from bit `place` of told (zeros there) on; the place after them."""
    for number in numbers:
        left = width
        while left > 0:
            free = 8 - (place & 7)
            some = min(free, left)
            bits = (np.int64(number >> np.uint64(left - some))) & ((1 << some) - 1)
            told[place >> 3] |= np.uint8(bits << (free - some))
            place += some
            left -= some
    return place


@njit(**PLAIN)
def lift_bits(told, place, width, numbers):
    """Fill numbers uint64 with what `lay_bits` was given; the place after them."""
    for i in range(len(numbers)):
        left, number = width, 0
        while left > 0:
            free = 8 - (place & 7)
            some = min(free, left)
            number = (number << some) | ((np.int64(told[place >> 3]) >> (free - some)) & ((1 << some) - 1))
            place += some
            left -= some
        numbers[i] = number
    return place
