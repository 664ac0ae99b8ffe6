"""Kernels of stochastic gradient steps at sampled entries of a sparse matrix, in blocks without common rows or columns.

The matrix is about codes [rows, dimensions] times the transpose of atoms [columns, dimensions]. Its rows and its
columns are split into `blocks` groups each, so that there are blocks * blocks blocks of entries. Stratum s has the
blocks (p, (p + s) mod blocks). No two blocks of a stratum share a row or a column, so that threads process them in
parallel with the result of one thread."""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

MAGNITUDE, UNIFORM, WEIGHTED = 0, 1, 2  # entries drawn by |x|; uniformly; uniformly with a step in proportion to |x|
GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@njit(**SERIAL)
def by_block(starts, columns, values, row_group, column_group, blocks, begins, rows, sorted_columns, sorted_values):
    """Sampled entries kernel: sort the entries of a CSR matrix by block, in the order of the matrix within a block.

    Entries of block (p, q) are at places begins[p * blocks + q] to begins[p * blocks + q + 1] - 1 of the results."""
    begins[:] = 0
    for i in range(row_group.size):
        for e in range(starts[i], starts[i + 1]):
            begins[row_group[i] * blocks + column_group[columns[e]] + 1] += 1
    for k in range(blocks * blocks):
        begins[k + 1] += begins[k]
    place = begins[:-1].copy()
    for i in range(row_group.size):
        for e in range(starts[i], starts[i + 1]):
            k = row_group[i] * blocks + column_group[columns[e]]
            rows[place[k]], sorted_columns[place[k]], sorted_values[place[k]] = i, columns[e], values[e]
            place[k] += 1


@njit(**PARALLEL)
def stratum(number, codes, atoms, entries, groups, counts, states, options, errors):
    """Sampled entries kernel: process the blocks of a stratum in parallel.

    - entries: begins, rows, columns and values of `by_block`
    - groups: the columns sorted by group, and where each group begins
    - counts: int64 [blocks * blocks], how many entries of each block are drawn
    - states: uint64 [blocks * blocks], the random state of each block
    - options: rate, decay, sampling, negatives and scale of `block`
    - errors: float64 [blocks * blocks], for each block the sum of half the squared errors before the steps"""
    blocks = groups[1].size - 1
    for p in prange(blocks):
        k = p * blocks + (p + number) % blocks
        errors[k] = block(k, codes, atoms, entries, groups, counts[k], states[k : k + 1], options)


@njit(**SERIAL)
def block(k, codes, atoms, entries, groups, count, state, options):
    """Sampled entries kernel: draw entries of a block, with gradient steps of the code and the atoms of each.

    A step at entry x of row i and column j has the error e = x - codes[i] . atoms[j], and adds rate * e * atoms[j] to
    codes[i] and rate * (e * codes[i] - decay * atoms[j]) to atoms[j]; with `sampling` WEIGHTED, both are multiplied by
    scale * |x|. After each entry follow `negatives` pairs of the
    same row with random columns of the block and x = 0; columns with an entry are skipped."""
    begins, rows, columns, values = entries
    order, of_group = groups
    rate, decay, sampling, negatives, scale = options
    first, last = begins[k], begins[k + 1]
    if first == last:
        return 0.0
    q = k % (of_group.size - 1)
    most = np.abs(values[first:last]).max()
    error = 0.0
    for _ in range(count):
        e = draw(values, first, last, most, sampling, state)
        share = abs(values[e]) * scale if sampling == WEIGHTED else 1.0
        error += _step(codes[rows[e]], atoms[columns[e]], values[e], rate * share, decay)
        for _ in range(negatives):
            j = order[of_group[q] + random_below(of_group[q + 1] - of_group[q], state)]
            if not _has(rows, columns, first, last, rows[e], j):
                _step(codes[rows[e]], atoms[j], values.dtype.type(0), rate, decay)
    return error


@njit(**SERIAL)
def draw(values, first, last, most, sampling, state):
    """Sampled entries kernel: draw an entry at the places first to last - 1; by |x|, some draws are rejected."""
    e = first + random_below(last - first, state)
    while sampling == MAGNITUDE and _uniform(state) * most >= abs(values[e]) and most > 0:
        e = first + random_below(last - first, state)
    return e


@njit(**SERIAL)
def random_below(size, state):
    """Sampled entries kernel: a random number from 0 to size - 1."""
    return np.int64(_uniform(state) * size)


@njit(**SERIAL)
def _uniform(state):
    """Sampled entries kernel: a random number from 0 to less than 1, by the generator SplitMix64."""
    state[0] += GOLDEN
    mixed = state[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND
    return np.float64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@njit(**SERIAL)
def _has(rows, columns, first, last, row, column):
    """Sampled entries kernel: whether a block has an entry at a row and a column, by binary search."""
    while first < last:
        middle = (first + last) // 2
        if rows[middle] < row or (rows[middle] == row and columns[middle] < column):
            first = middle + 1
        else:
            last = middle
    return first < rows.size and rows[first] == row and columns[first] == column


@njit(**SUMS)
def _step(code, atom, value, rate, decay):
    """Sampled entries kernel: the gradient step of a code and of an atom; returns half the squared error before it."""
    zero = code.dtype.type(0)
    made = zero
    for m in range(code.size):
        made += code[m] * atom[m]
    error = value - made
    pull, keep = code.dtype.type(rate * error), code.dtype.type(1 - rate * decay)
    for m in range(code.size):
        before = atom[m]
        atom[m] = keep * before + pull * code[m]
        code[m] += pull * before
    return 0.5 * np.float64(error) * np.float64(error)
