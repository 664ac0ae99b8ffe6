"""Weights of (feature, label) pairs, the pairs of a feature end to end: which there are, sums and gradients on the CPU.

offsets int64 [rows + 1] says where the pairs of each row (feature) are, labels [pairs] which labels they are of.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.weights.bags import PLAIN, _add_row, _fetch

AHEAD = 48  # occurrences
FREQUENT = 32  # occurrences of a row from which on its sum is kept in the cache while tokens are gone through
WORD = 64  # labels told in one number


# --- which pairs there are


@njit(**PLAIN)
def mark(ids, offsets, gold, seen):
    """Bit `label` of seen [rows, words] (uint64) is set for every row that is active at a token of that label."""
    for token in range(len(gold)):
        word, bit = gold[token] // WORD, np.uint64(1) << np.uint64(gold[token] % WORD)
        for place in range(offsets[token], offsets[token + 1]):
            seen[ids[place], word] |= bit


@njit(**PLAIN)
def count(seen, counts):
    for row in range(len(seen)):
        for word in range(seen.shape[1]):
            left = seen[row, word]
            while left:
                left &= left - np.uint64(1)
                counts[row] += 1


@njit(**PLAIN)
def spell(seen, labels):
    """The labels of each row, ascending, row after row."""
    place = 0
    for row in range(len(seen)):
        for word in range(seen.shape[1]):
            for bit in range(WORD):
                if seen[row, word] >> np.uint64(bit) & np.uint64(1):
                    labels[place] = word * WORD + bit
                    place += 1


# --- the tokens of each row


@njit(**PLAIN)
def by_row(ids, offsets, counts, starts, tokens):
    """tokens[starts[row] : starts[row + 1]] are those at which the row is active, ascending; starts [rows + 1].

    counts [rows]: how many tokens of each are wanted, all of them or none."""
    starts[0] = 0
    for row in range(len(counts)):
        starts[row + 1] = starts[row] + counts[row]
    place = starts.copy()
    for token in range(len(offsets) - 1):
        for k in range(offsets[token], offsets[token + 1]):
            row = ids[k]
            if counts[row]:
                tokens[place[row]] = token
                place[row] += 1


# --- sums: what lives is laid out as a dense table first, so that rows are added as vectors


@njit(**PLAIN)
def number_living(values, offsets, numbers):
    """numbers [rows]: 0 for a row without a weight, else its place among those with one, from 1 on; their number."""
    living = 0
    for row in range(len(numbers)):
        lives = False
        for place in range(offsets[row], offsets[row + 1]):
            lives |= values[place] != 0
        living += lives
        numbers[row] = living if lives else 0
    return living


@njit(**PLAIN)
def lay_out(values, offsets, labels, numbers, table):
    """table [living + 1, labels], zero before, gets the weights of the living rows."""
    for row in range(len(numbers)):
        if numbers[row]:
            for place in range(offsets[row], offsets[row + 1]):
                table[numbers[row], labels[place]] = values[place]


@njit(**PLAIN)
def total(ids, offsets, numbers, table, sums):
    """sums [tokens, labels] += the rows of `lay_out`, one after the other as the rows of a token ascend."""
    width = np.uint64(table.shape[1])
    flat, out = table.reshape(-1), sums.reshape(-1)
    for token in range(len(offsets) - 1):
        here = np.uint64(token) * width
        for place in range(offsets[token], offsets[token + 1]):
            number = numbers[ids[place]]
            if number:
                _add_row(width, (out, flat), (here, np.uint64(number) * width), ())


# --- the gradient: residuals [tokens, labels] summed over the tokens of each row, read off at its labels


@njit(**PLAIN)
def gradient_of_tokens(ids, offsets, residuals, pair_offsets, labels, gradient):
    """gradient [pairs] += token after token: for a few sentences."""
    for token in range(len(offsets) - 1):
        residual = residuals[token]
        for k in range(offsets[token], offsets[token + 1]):
            for place in range(pair_offsets[ids[k]], pair_offsets[ids[k] + 1]):
                gradient[place] += residual[labels[place]]


@njit(**PLAIN)
def gradient_of_frequent(ids, offsets, rows, residuals, pair_offsets, labels, gradient):
    """gradient [pairs] of some rows (`rows`), token after token: their sums, one row each, stay in the cache.

    ids: places in `rows` of those of them that are active at the token offsets[token] : offsets[token + 1]"""
    width = np.uint64(residuals.shape[1])
    table = np.zeros((len(rows), residuals.shape[1]), residuals.dtype)
    flat, sums = residuals.reshape(-1), table.reshape(-1)
    for token in range(len(offsets) - 1):
        here = np.uint64(token) * width
        for place in range(offsets[token], offsets[token + 1]):
            _add_row(width, (sums, flat), (np.uint64(ids[place]) * width, here), ())
    for k in range(len(rows)):
        for place in range(pair_offsets[rows[k]], pair_offsets[rows[k] + 1]):
            gradient[place] = table[k, labels[place]]


@njit(**PLAIN)
def gradient_of_rare(starts, tokens, residuals, pair_offsets, labels, gradient):
    """gradient [pairs] of the other rows, row after row, with the tokens of each from `by_row`."""
    width = np.uint64(residuals.shape[1])
    flat, sums = residuals.reshape(-1), np.empty(residuals.shape[1], residuals.dtype)
    last = len(tokens)
    for row in range(len(starts) - 1):
        begin, end = starts[row], starts[row + 1]
        if begin == end:
            continue
        sums[:] = 0
        for k in range(begin, end):
            if k + AHEAD < last:
                _fetch(flat, np.uint64(tokens[k + AHEAD]) * width, width)
            _add_row(width, (sums, flat), (np.uint64(0), np.uint64(tokens[k]) * width), ())
        for place in range(pair_offsets[row], pair_offsets[row + 1]):
            gradient[place] = sums[labels[place]]
