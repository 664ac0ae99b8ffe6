"""Kernels of tables of observed (feature, label) pairs: finding the pairs, sums and gradients.

The pairs of a row (feature) lie end to end: those of row r are offsets[r] : offsets[r + 1], int64 [rows + 1], and
labels [pairs] holds their labels.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.weights.bags import PLAIN, add_row, fetch_row

AHEAD = 48  # occurrences to prefetch in advance
FREQUENT = 32  # occurrences from which on a row is summed token by token, its sum staying in the CPU cache
WORD = 64  # labels in one bit mask


# --- finding the observed pairs


@njit(**PLAIN)
def mark(ids, offsets, gold, seen):
    """Set bit `label` of seen [rows, words] (uint64) for every row that is active at a token with that label."""
    for token in range(len(gold)):
        word, bit = gold[token] // WORD, np.uint64(1) << np.uint64(gold[token] % WORD)
        for place in range(offsets[token], offsets[token + 1]):
            seen[ids[place], word] |= bit


@njit(**PLAIN)
def count(seen, counts):
    """Count the observed labels of each row: counts [rows] += their number."""
    for row in range(len(seen)):
        for word in range(seen.shape[1]):
            bits = seen[row, word]
            while bits:
                bits &= bits - np.uint64(1)
                counts[row] += 1


@njit(**PLAIN)
def spell(seen, labels):
    """Write the labels of each row, ascending, row after row: labels [pairs]."""
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
    """Invert the bags: tokens[starts[row] : starts[row + 1]] are those at which the row is active, ascending.

    counts [rows]: the number of tokens of each row; 0 skips the row."""
    starts[0] = 0
    for row in range(len(counts)):
        starts[row + 1] = starts[row] + counts[row]
    end = starts.copy()
    for token in range(len(offsets) - 1):
        for k in range(offsets[token], offsets[token + 1]):
            row = ids[k]
            if counts[row]:
                tokens[end[row]] = token
                end[row] += 1


# --- sums: living rows are laid out as a dense table first, so that rows are added as vectors


@njit(**PLAIN)
def number_living(values, offsets, numbers):
    """Number the rows with a nonzero weight from 1 on: numbers [rows], 0 for the others; returns how many there are."""
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
    """Copy the weights of the living rows to table [living + 1, labels], zero before."""
    for row in range(len(numbers)):
        if numbers[row]:
            for place in range(offsets[row], offsets[row + 1]):
                table[numbers[row], labels[place]] = values[place]


@njit(**PLAIN)
def total(ids, offsets, numbers, table, sums):
    """sums [tokens, labels] += the rows of the table made by `lay_out`, in the ascending order of a token's rows."""
    width = np.uint64(table.shape[1])
    flat, out = table.reshape(-1), sums.reshape(-1)
    for token in range(len(offsets) - 1):
        here = np.uint64(token) * width
        for place in range(offsets[token], offsets[token + 1]):
            number = numbers[ids[place]]
            if number:
                add_row(width, (out, flat), (here, np.uint64(number) * width), ())


# --- the gradient: residuals [tokens, labels] summed over the tokens of each row, then picked at its labels


@njit(**PLAIN)
def gradient_of_tokens(ids, offsets, residuals, pair_offsets, labels, gradient):
    """gradient [pairs] += the residuals, token after token: for a few sentences."""
    for token in range(len(offsets) - 1):
        residual = residuals[token]
        for k in range(offsets[token], offsets[token + 1]):
            for place in range(pair_offsets[ids[k]], pair_offsets[ids[k] + 1]):
                gradient[place] += residual[labels[place]]


@njit(**PLAIN)
def gradient_of_frequent(ids, offsets, rows, residuals, pair_offsets, labels, gradient):
    """gradient [pairs] of the frequent rows `rows`, token after token: their sums stay in the CPU cache.

    ids[offsets[token] : offsets[token + 1]]: the frequent rows active at a token, as places in `rows`"""
    width = np.uint64(residuals.shape[1])
    table = np.zeros((len(rows), residuals.shape[1]), residuals.dtype)
    flat, sums = residuals.reshape(-1), table.reshape(-1)
    for token in range(len(offsets) - 1):
        here = np.uint64(token) * width
        for place in range(offsets[token], offsets[token + 1]):
            add_row(width, (sums, flat), (np.uint64(ids[place]) * width, here), ())
    for k in range(len(rows)):
        for place in range(pair_offsets[rows[k]], pair_offsets[rows[k] + 1]):
            gradient[place] = table[k, labels[place]]


@njit(**PLAIN)
def gradient_of_rare(starts, tokens, residuals, pair_offsets, labels, gradient):
    """gradient [pairs] of the rare rows, row after row, with the tokens of each from `by_row`."""
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
                fetch_row(flat, np.uint64(tokens[k + AHEAD]) * width, width)
            add_row(width, (sums, flat), (np.uint64(0), np.uint64(tokens[k]) * width), ())
        for place in range(pair_offsets[row], pair_offsets[row + 1]):
            gradient[place] = sums[labels[place]]
