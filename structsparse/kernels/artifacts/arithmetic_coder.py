"""Kernels of an adaptive binary arithmetic coder: compresses symbols to about as many bits as their entropy.

A symbol of `width` bits is coded bit by bit, the highest bit first. The probability of each bit is estimated while
coding, separately for each context and for each prefix of higher bits of the symbol: (ones + 1/2) / (all + 1)
(Krichevsky and Trofimov 1981). All arithmetic is in integers, so that every machine writes and reads the same bytes.

The context of symbol i is contexts[i]. If chained[i], it is contexts[i] + 1 + the symbol before.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
LONGEST = 1 << 14  # when the count of a bit value reaches this, both counts are halved, so older bits weigh less
_SHIFT = 16
_ONE = 1 << _SHIFT
_BYTE, _TOP, _WORD = 1 << 24, 0xFF000000, 0xFFFFFFFF


@njit(inline="always")
def _zero_share(counts, node):
    """Probability of a 0 bit for the arithmetic coder, in units of 2^-16: at least 1, less than 2^16."""
    zeros, ones = np.int64(counts[node, 0]), np.int64(counts[node, 1])
    return min(max(((2 * zeros + 1) << _SHIFT) // (2 * (zeros + ones) + 2), 1), _ONE - 1)


@njit(inline="always")
def _count(counts, node, bit):
    """Update the counts of the arithmetic coder with a coded bit."""
    counts[node, bit] += 1
    if counts[node, bit] == LONGEST:
        counts[node, 0] >>= 1
        counts[node, 1] >>= 1


@njit(**PLAIN)
def _carry(encoded, size):
    """Propagate a carry of the arithmetic coder: add one to the big-endian number in encoded[:size]."""
    size -= 1
    while encoded[size] == 255:
        encoded[size] = 0
        size -= 1
    encoded[size] += 1


@njit(**PLAIN)
def encode(symbols, contexts, chained, width, counts, encoded):
    """Compress symbols by arithmetic coding into `encoded`; returns the number of bytes used.

    `encoded` is uint8, with room for (2 * width + 1) bytes per symbol and 8 more. symbols uint8 or int32, contexts
    int32, chained bool: [symbols]; counts uint16 [contexts << width, 2], zeros.
    """
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
    low = (low + _BYTE - 1) & (_TOP | (_WORD + 1))  # the number in the interval with the most trailing zeros
    if low > _WORD:
        _carry(encoded, size)
    encoded[size] = (low & _WORD) >> 24
    size += 1
    while size and encoded[size - 1] == 0:  # the decoder reads zeros beyond the end
        size -= 1
    return size


@njit(**PLAIN)
def decode(encoded, contexts, chained, width, counts, symbols):
    """Decompress arithmetic-coded bytes into `symbols` [contexts]; returns the number of bytes read.

    Bytes after these are ignored.
    """
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
