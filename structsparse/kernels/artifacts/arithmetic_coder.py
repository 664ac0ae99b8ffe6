"""Kernels of an adaptive binary arithmetic coder: compress symbols to about as many bits as their entropy.

- A symbol of `width` bits is coded bit by bit, the highest bit first.
- The coder counts the bits that it has coded, separately for each context and each prefix of higher bits of the symbol.
- If `ones` of `all` counted bits were 1, the probability of another 1 bit is estimated as (ones + 1/2) / (all + 1)
  (Krichevsky and Trofimov 1981).
- The context of symbol i is the number contexts[i], or contexts[i] + 1 + symbols[i - 1] if chained[i] is true.
- All arithmetic is in integers. Every machine therefore writes and reads the same bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
LONGEST = 1 << 14  # limit of a count of 0 or 1 bits; at the limit, both counts are halved
_SHIFT = 16  # probabilities are integers in units of 2^-16
_ONE = 1 << _SHIFT
# _BYTE is the smallest length of the coding interval. _TOP masks the top byte of a 32-bit word, _WORD all its bits.
_BYTE, _TOP, _WORD = 1 << 24, 0xFF000000, 0xFFFFFFFF


@njit(inline="always")
def _zero_share(counts, node):
    """Arithmetic coder kernel: the probability of a 0 bit in units of 2^-16, at least 1 and less than 2^16.

    A node stands for a context and the higher bits of a symbol. counts[node] holds how often a 0 bit and a 1 bit came
    next."""
    zeros, ones = np.int64(counts[node, 0]), np.int64(counts[node, 1])
    return min(max(((2 * zeros + 1) << _SHIFT) // (2 * (zeros + ones) + 2), 1), _ONE - 1)


@njit(inline="always")
def _count(counts, node, bit):
    """Arithmetic coder kernel: count a coded bit in counts[node], which holds the number of 0 bits and of 1 bits.

    Both counts are halved if one reaches LONGEST."""
    counts[node, bit] += 1
    if counts[node, bit] == LONGEST:
        counts[node, 0] >>= 1
        counts[node, 1] >>= 1


@njit(**PLAIN)
def _carry(encoded, size):
    """Arithmetic coder kernel: propagate a carry, that is, add one to the big-endian number in encoded[:size]."""
    size -= 1
    while encoded[size] == 255:
        encoded[size] = 0
        size -= 1
    encoded[size] += 1


@njit(**PLAIN)
def encode(symbols, contexts, chained, width, counts, encoded):
    """Arithmetic coder kernel: compress symbols into the array `encoded`; returns the number of bytes used.

    - `symbols` (uint8 or int32) are numbers of `width` bits.
    - `contexts` (int32) and `chained` (bool) have one element per symbol. If chained[i] is true, the context of symbol
      i depends on symbol i - 1.
    - `encoded` (uint8) needs room for 2 * width + 1 bytes per symbol, plus 8.
    - `counts` (uint16 [2^width * number of contexts, 2]) must be zero, and gets the bit counts."""
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
    low = (low + _BYTE - 1) & (_TOP | (_WORD + 1))  # round up to a multiple of 2^24, which is still in the interval
    if low > _WORD:
        _carry(encoded, size)
    encoded[size] = (low & _WORD) >> 24
    size += 1
    while size and encoded[size - 1] == 0:  # final zero bytes are dropped; the decoder reads zeros beyond the end
        size -= 1
    return size


@njit(**PLAIN)
def decode(encoded, contexts, chained, width, counts, symbols):
    """Arithmetic coder kernel: decompress bytes into the array `symbols`; returns the number of bytes read.

    The other arguments are as in `encode`. `counts` must be zero."""
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
