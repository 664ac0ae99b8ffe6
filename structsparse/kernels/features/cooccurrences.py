"""Kernels that count pairs of words within a window, merge counts of pairs, and make the symmetric matrix.

A text is a vector of word codes in which frequent words have small codes. Code -1 is a word that is not counted, and -2
ends a sentence, beyond which no window reaches. A pair (x, y) of words with x <= y has the key x * words + y."""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL

SKIPPED, END = -1, -2  # codes of a word that is not counted, and of the end of a sentence


@njit(**SERIAL)
def count_pairs(codes, begin, end, weights, words, dense, keys, spread):
    """Co-occurrence kernel: count the pairs whose first word is at a position from `begin` to `end` - 1.

    The second word comes at most weights.size positions later. Two words that are d + 1 apart count weights[d]. Pairs
    of two words below dense.shape[0] are added to `dense`. The keys of all others go to `keys`. If `spread` is
    above 1, a key is multiplied by it, and d is added. Returns the number of keys."""
    frequent, window, found = dense.shape[0], weights.size, 0
    for i in range(begin, end):
        a = codes[i]
        if a < 0:
            continue
        for d in range(min(window, codes.size - 1 - i)):
            b = codes[i + d + 1]
            if b < 0:
                if b == END:
                    break
                continue
            x, y = min(a, b), max(a, b)
            if y < frequent:
                dense[x, y] += weights[d]
            else:
                key = np.int64(x) * words + y
                keys[found] = key * spread + d if spread > 1 else key
                found += 1
    return found


@njit(**SERIAL)
def add_equal(keys, counts, weights, spread):
    """Co-occurrence kernel: of sorted keys, the distinct ones move to the front, and their counts are added up.

    A key counts 1. If `spread` is above 1, the key is divided by it, and the rest d says that it counts weights[d].
    Returns the number of distinct keys."""
    kept = 0
    for i in range(keys.size):
        key, weight = keys[i], np.int64(1)
        if spread > 1:
            key, weight = key // spread, np.int64(weights[key % spread])
        if kept > 0 and keys[kept - 1] == key:
            counts[kept - 1] += weight
        else:
            keys[kept], counts[kept] = key, weight
            kept += 1
    return kept


@njit(**SERIAL)
def merge(left, left_counts, right, right_counts, keys, counts):
    """Co-occurrence kernel: merge two sorted lists of distinct keys, and add the counts of equal keys.

    Returns the number of distinct keys."""
    i, j, kept = 0, 0, 0
    while i < left.size and j < right.size:  # no branches: which key is smaller cannot be predicted
        a, b = left[i], right[j]
        first, second = np.int64(a <= b), np.int64(b <= a)
        keys[kept] = min(a, b)
        counts[kept] = first * left_counts[i] + second * right_counts[j]
        i, j, kept = i + first, j + second, kept + 1
    for rest in range(i, left.size):
        keys[kept], counts[kept] = left[rest], left_counts[rest]
        kept += 1
    for rest in range(j, right.size):
        keys[kept], counts[kept] = right[rest], right_counts[rest]
        kept += 1
    return kept


@njit(**SERIAL)
def pairs_of_square(square, words, size):
    """Co-occurrence kernel: the `size` pairs of frequent words that were counted, as sorted keys with their counts."""
    keys, counts, found = np.empty(size, np.int64), np.empty(size, np.int64), 0
    for x in range(square.shape[0]):
        for y in range(x, square.shape[0]):
            if square[x, y] != 0:
                keys[found], counts[found] = x * words + y, square[x, y]
                found += 1
    return keys, counts


@njit(**SERIAL)
def mirror(square):
    """Co-occurrence kernel: make counts of pairs x <= y symmetric; a word beside itself counts twice."""
    for x in range(square.shape[0]):
        square[x, x] *= 2
        for y in range(x):
            square[x, y] = square[y, x]


@njit(**SERIAL)
def row_sizes(keys, words, below, above):
    """Co-occurrence kernel: count the entries of each row of the symmetric matrix that some pairs x <= y make.

    `below` gets the number of entries in columns below the diagonal, `above` that of the others."""
    for key in keys:
        x, y = key // words, key % words
        above[x] += 1
        if x != y:
            below[y] += 1


@njit(**SERIAL)
def place_pairs(keys, counts, words, lower, upper, columns, values):
    """Co-occurrence kernel: place pairs x <= y, in the order of their keys, into the symmetric matrix by rows.

    lower[x] and upper[x] are the next free places of row x, below the diagonal and from it on. A word beside itself
    counts twice, once for each of its two places."""
    for k in range(keys.size):
        x, y = keys[k] // words, keys[k] % words
        columns[upper[x]], values[upper[x]] = y, counts[k] * (2 if x == y else 1)
        upper[x] += 1
        if x != y:
            columns[lower[y]], values[lower[y]] = x, counts[k]
            lower[y] += 1
