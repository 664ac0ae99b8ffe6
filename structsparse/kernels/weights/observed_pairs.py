"""Kernels of sparse weight tables with one weight per observed (feature, label) pair: pairs, sums, gradients.

- A row is a feature. The pairs of a row are consecutive. labels [pairs] holds the label of each pair.
- A living row has a nonzero weight.
- The bag of a token holds the rows of its features. An occurrence is one row in one bag.
- In functions that have an array `ids`, it holds the bags of all tokens. The bag of token t is ids[offsets[t] :
  offsets[t + 1]].
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.weights.bags import PLAIN, add_row, fetch_row

AHEAD = 48  # number of occurrences (rows in bags) by which the prefetch runs ahead
FREQUENT = 32  # a row is frequent if it occurs in at least this number of bags
WORD = 64  # number of bits of an integer that is a mask of labels


# --- search for the observed pairs


@njit(**PLAIN)
def mark(ids, offsets, gold, seen):
    """Observed pairs kernel: mark the gold label of each token as observed with the rows in its bag.

    seen[r], a row of a uint64 array, is the bit mask of the labels observed with table row r."""
    for token in range(len(gold)):
        word, bit = gold[token] // WORD, np.uint64(1) << np.uint64(gold[token] % WORD)
        for place in range(offsets[token], offsets[token + 1]):
            seen[ids[place], word] |= bit


@njit(**PLAIN)
def count(seen, counts):
    """Observed pairs kernel: add to counts[row] the number of labels in the bit mask seen[row]."""
    for row in range(len(seen)):
        for word in range(seen.shape[1]):
            bits = seen[row, word]
            while bits:
                bits &= bits - np.uint64(1)
                counts[row] += 1


@njit(**PLAIN)
def spell(seen, labels):
    """Observed pairs kernel: list the labels observed with each row, from the bit masks `seen`.

    labels [pairs] gets the labels in ascending order, row after row."""
    place = 0
    for row in range(len(seen)):
        for word in range(seen.shape[1]):
            for bit in range(WORD):
                if seen[row, word] >> np.uint64(bit) & np.uint64(1):
                    labels[place] = word * WORD + bit
                    place += 1


# --- the tokens at which each row is active


@njit(**PLAIN)
def by_row(ids, offsets, counts, starts, tokens):
    """Observed pairs kernel: list the tokens whose bag contains each row, that is, invert the bags.

    The tokens of a row are tokens[starts[row] : starts[row + 1]], ascending. counts [rows] is the number of tokens
    whose bag contains each row, or 0 for rows to leave out."""
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


# --- sums: living rows are first copied to a dense table, so that rows are added as SIMD vectors


@njit(**PLAIN)
def number_living(values, offsets, numbers):
    """Observed pairs kernel: number the living rows, which have a nonzero weight; returns their count.

    numbers [rows] gets 1, 2, ... for living rows, and 0 for other rows. values [pairs] are the weights. offsets [rows +
    1] tells where the pairs of each row begin."""
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
    """Observed pairs kernel: copy the weights of the living rows to a dense table [living + 1, labels].

    The table must be zero. values [pairs] are the weights. offsets [rows + 1] tells where the pairs of each row begin.
    numbers [rows] is the index of each row in the dense table, or 0 for none."""
    for row in range(len(numbers)):
        if numbers[row]:
            for place in range(offsets[row], offsets[row + 1]):
                table[numbers[row], labels[place]] = values[place]


@njit(**PLAIN)
def total(ids, offsets, numbers, table, sums):
    """Observed pairs kernel: add to sums[token] the weights of all rows in the bag of each token.

    The weights are read from the dense table of `lay_out`. The rows of a bag are added in ascending order."""
    width = np.uint64(table.shape[1])
    flat, out = table.reshape(-1), sums.reshape(-1)
    for token in range(len(offsets) - 1):
        here = np.uint64(token) * width
        for place in range(offsets[token], offsets[token + 1]):
            number = numbers[ids[place]]
            if number:
                add_row(width, (out, flat), (here, np.uint64(number) * width), ())


# --- the gradient: residuals are summed over the tokens of each row, then read at the labels of the row


@njit(**PLAIN)
def gradient_of_tokens(ids, offsets, residuals, pair_offsets, labels, gradient):
    """Observed pairs kernel: gradient of the loss with respect to pair weights, for a few sentences.

    For each token and each row in its bag, goes over the pairs of the row. gradient[pair] grows by the residual of the
    token at the label of the pair."""
    for token in range(len(offsets) - 1):
        residual = residuals[token]
        for k in range(offsets[token], offsets[token + 1]):
            for place in range(pair_offsets[ids[k]], pair_offsets[ids[k] + 1]):
                gradient[place] += residual[labels[place]]


@njit(**PLAIN)
def gradient_of_frequent(ids, offsets, rows, residuals, pair_offsets, labels, gradient):
    """Observed pairs kernel: gradient of the loss with respect to pair weights of frequent rows.

    `rows` lists the frequent rows, which occur in many bags. The bags contain only frequent rows, each as an index into
    `rows`: the bag of token t is ids[offsets[t] : offsets[t + 1]]. pair_offsets[r] is the index of the first pair of
    row r. Residuals are added token after token. The sums of the frequent rows fit the CPU cache."""
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
    """Observed pairs kernel: gradient of the loss with respect to pair weights of rare rows.

    Residuals are added row after row. `starts` and `tokens` come from `by_row`."""
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
