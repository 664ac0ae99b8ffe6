"""Adaptive binary arithmetic coder: sequences of symbols in about as many bits as their entropy.

A symbol of `width` bits is coded bit by bit, the highest first. The probability of each bit is learnt while coding,
separately for each context and for the higher bits of the symbol: (ones + 1/2) / (all + 1) (Krichevsky and Trofimov
1981). All arithmetic is in integers, so that every machine writes and reads the same bytes.

Where `chained` is true the context of a symbol is contexts[i] + 1 + the symbol before it, else contexts[i].
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
LONGEST = 1 << 14  # at this count of a bit value both counts are halved: older bits weigh less
_SHIFT = 16
_ONE = 1 << _SHIFT
_BYTE, _TOP, _WORD = 1 << 24, 0xFF000000, 0xFFFFFFFF


@njit(inline="always")
def _zero_share(counts, node):
    """Probability of a 0 in units of 2^-16: at least 1, less than 2^16."""
    zeros, ones = np.int64(counts[node, 0]), np.int64(counts[node, 1])
    return min(max(((2 * zeros + 1) << _SHIFT) // (2 * (zeros + ones) + 2), 1), _ONE - 1)


@njit(inline="always")
def _count(counts, node, bit):
    """Count a bit that has been coded."""
    counts[node, bit] += 1
    if counts[node, bit] == LONGEST:
        counts[node, 0] >>= 1
        counts[node, 1] >>= 1


@njit(**PLAIN)
def _carry(encoded, size):
    """Add one to the number whose bytes are encoded[:size]."""
    size -= 1
    while encoded[size] == 255:
        encoded[size] = 0
        size -= 1
    encoded[size] += 1


@njit(**PLAIN)
def encode(symbols, contexts, chained, width, counts, encoded):
    """Fill `encoded` (uint8, room for (2 * width + 1) bytes a symbol and 8 more); returns the number of bytes used.

    symbols uint8 or int32, contexts int32, chained bool: [symbols]; counts uint16 [contexts << width, 2], zeros."""
    low, span, size = 0, _WORD, 0
    for i in range(len(symbols)):
        symbol, context = np.int64(symbols[i]), np.int64(contexts[i])
        if chained[i]:
            context += 1 + symbols[i - 1]
        node = 1
        for k in range(width - 1, -1, -1):
            bit, row = (symbol >> k) & 1, (context << width) + node
            bound = (span >> _SHIFT) * _zero_share(counts, row)
            if bit:
                low += bound
                span -= bound
            else:
                span = bound
            _count(counts, row, bit)
            node = 2 * node + bit
            if low > _WORD:
                _carry(encoded, size)
                low &= _WORD
            while span < _BYTE:
                encoded[size] = low >> 24
                size += 1
                low = (low << 8) & _WORD
                span <<= 8
    low = (low + _BYTE - 1) & (_TOP | (_WORD + 1))  # the number within the span with the most zeros at its end
    if low > _WORD:
        _carry(encoded, size)
    encoded[size] = (low & _WORD) >> 24
    size += 1
    while size and encoded[size - 1] == 0:  # the decoder reads zeros beyond the end
        size -= 1
    return size


@njit(**PLAIN)
def decode(encoded, contexts, chained, width, counts, symbols):
    """Fill `symbols` [contexts]; returns the number of bytes read. Any bytes beyond them have no meaning."""
    span, value, position = _WORD, 0, 0
    for _ in range(4):
        value = (value << 8) | (encoded[position] if position < len(encoded) else 0)
        position += 1
    for i in range(len(symbols)):
        context = np.int64(contexts[i])
        if chained[i]:
            context += 1 + symbols[i - 1]
        node = 1
        for _ in range(width):
            row = (context << width) + node
            bound = (span >> _SHIFT) * _zero_share(counts, row)
            bit = 1 if value >= bound else 0
            if bit:
                value -= bound
                span -= bound
            else:
                span = bound
            _count(counts, row, bit)
            node = 2 * node + bit
            while span < _BYTE:
                value = ((value << 8) | (encoded[position] if position < len(encoded) else 0)) & _WORD
                position += 1
                span <<= 8
        symbols[i] = node - (1 << width)
    return position
