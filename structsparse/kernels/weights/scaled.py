"""Kernels of scaled weight tables, with one factor per group of rows, so that a group lasso prox costs O(groups).

Group g is a block of consecutive rows of a table W. Its weights are factors[g] * W[rows of g].

- The prox changes the factor and the squared norm of a group, squares[g], but not its rows.
- doubt[g] is an upper bound of the rounding error of squares[g]. If it gets too large, the norm is computed from the
  rows.
- The rows of group g that a step touches are listed in `touched` from index rows[g] on, possibly with repetitions.
  counts[g] is the length of the list, at most the number of rows in the group. When the prox sets a group to zero, only
  listed rows are set to zero. If the list has its maximum length, it may be incomplete, and all rows are set to zero.
- Each thread has whole groups. The result does not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from structsparse.kernels import vectors
from structsparse.kernels.weights import bags
from structsparse.kernels.weights.bags import (
    fetch_row,
    fetch_row_to_write,
    gather,
    on_rows,
    prefetch_distance,
    subtract_row,
)

WALK = 8  # number of groups of rows that `_group` tries one by one before a binary search
SMALL = 2.0**-60  # smaller factors are multiplied into the rows, before 1 / factor can overflow
DOUBT = 1e-10  # largest accepted relative rounding error of a squared norm
EPS = 2.0**-52  # relative rounding error of a float64 operation
PLAIN = {"cache": True, "nogil": True, "error_model": "numpy"}


def _scaled_sum(build, to, row, factor):
    """Scaled weights kernel: emit LLVM code for the sum of the vectors `to` and factor * row."""
    return [build.fadd(to, build.fmul(factor, row))]


def _two_scaled_sums(build, to, row, other, factor, next_factor):
    """Scaled weights kernel: emit LLVM code for the sum of `to`, factor * row and next_factor * other."""
    return [build.fadd(build.fadd(to, build.fmul(factor, row)), build.fmul(next_factor, other))]


_add_scaled_row = on_rows(_scaled_sum)
_add_two_scaled_rows = on_rows(_two_scaled_sums)


@njit(**PLAIN)
def _group(rows, group, row):
    """Scaled weights kernel: the index of the group that has a row; the search begins at the index `group`."""
    if row >= rows[group]:
        for _ in range(WALK):
            if row < rows[group + 1]:
                return group
            group += 1
            if group + 1 == rows.size:
                break
    return np.searchsorted(rows, row, side="right") - 1


@njit(parallel=True, **PLAIN)
def total(ids, offsets, table, factors, rows, sums, threads):
    """Scaled weights kernel: add to sums[token] the rows in the bag of each token, each times the factor of its group.

    Arrays: ids [occurrences], offsets [tokens + 1], table [rows, labels], factors [groups], sums [tokens, labels]. rows
    [groups + 1] has the first row of each group."""
    width = np.uint64(table.shape[1])
    flat, out, kind = table.reshape(-1), sums.reshape(-1), table.dtype.type
    last, tokens = len(ids), len(offsets) - 1
    for thread in prange(threads):
        for token in range(tokens * thread // threads, tokens * (thread + 1) // threads):
            ahead, end, here = prefetch_distance(offsets, token), offsets[token + 1], np.uint64(token) * width
            place, group = offsets[token], 0
            while place + 1 < end:
                left, right = np.uint64(ids[place]) * width, np.uint64(ids[place + 1]) * width
                if place + ahead + 1 < last:
                    fetch_row(flat, np.uint64(ids[place + ahead]) * width, width)
                    fetch_row(flat, np.uint64(ids[place + ahead + 1]) * width, width)
                group = _group(rows, group, ids[place])
                other = _group(rows, group, ids[place + 1])
                numbers = kind(factors[group]), kind(factors[other])
                _add_two_scaled_rows(width, (out, flat, flat), (here, left, right), numbers)
                group = other
                place += 2
            if place < end:
                factor = kind(factors[_group(rows, group, ids[place])])
                _add_scaled_row(width, (out, flat), (here, np.uint64(ids[place]) * width), (factor,))


def owners(ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Scaled weights kernel: divide the table rows among the threads.

    Thread t owns the rows bounds[t] to bounds[t + 1] - 1 of the result `bounds`. Each range consists of whole groups.
    All ranges have about the same number of occurrences in bags."""
    bounds = bags.owners(ids)
    bounds[1:-1] = rows[np.searchsorted(rows[:-1], bounds[1:-1]).clip(max=len(rows) - 2)]
    return bounds


@njit(inline="always")  # inlined, because a call for each row would pass a dozen arrays
def _change_row(flat, steps, start, source, width, rate, group, row, factors, squares, doubt, rows, touched, counts):
    """Scaled weights kernel: subtract rate / factor * residual from one row of the table W.

    Updates three data of its group: the squared norm, the bound of its rounding error, and the list of touched rows."""
    factor = factors[group]
    begin, end = np.intp(start), np.intp(start + width)
    before = vectors.square_sum(flat, begin, end, ())
    subtract_row(width, (flat, steps), (start, source), (flat.dtype.type(rate / factor),))
    after = vectors.square_sum(flat, begin, end, ())
    squares[group] += factor * factor * (after - before)
    doubt[group] += EPS * (factor * factor * (after + before) + abs(squares[group]))
    if counts[group] < rows[group + 1] - rows[group]:
        touched[rows[group] + counts[group]] = row
        counts[group] += 1


@njit(parallel=True, **PLAIN)
def subtract(ids, offsets, residuals, table, rate, factors, squares, doubt, rows, touched, counts, bounds):
    """Scaled weights kernel: SGD step on the touched rows only; subtracts rate * X'R from the weights.

    R is residuals [tokens, labels], and X tells which rows are in the bag of each token. The bag of token t is
    ids[offsets[t] : offsets[t + 1]]. The arrays that describe groups of rows are updated."""
    width = np.uint64(table.shape[1])
    flat, steps = table.reshape(-1), residuals.reshape(-1)
    last = len(ids)
    for thread in prange(len(bounds) - 1):
        low, high = bounds[thread], bounds[thread + 1]
        for token in range(len(offsets) - 1):
            ahead, end, here = prefetch_distance(offsets, token), offsets[token + 1], np.uint64(token) * width
            place, group = offsets[token], 0
            while place < end and ids[place] < low:
                place += 1
            while place < end and ids[place] < high:
                if place + ahead < last:
                    fetch_row_to_write(flat, np.uint64(ids[place + ahead]) * width, width)
                row = ids[place]
                group = _group(rows, group, row)
                start = np.uint64(row) * width
                _change_row(
                    flat, steps, start, here, width, rate, group, row, factors, squares, doubt, rows, touched, counts
                )
                place += 1


@njit(parallel=True, **PLAIN)
def adagrad(
    ids, offsets, residuals, table, history, lr, eps, factors, squares, doubt, rows, touched, counts, bounds, slot
):
    """Scaled weights kernel: AdaGrad step with one step size per group of rows, on the touched rows only.

    Adds the squared norm of the gradient of group g to history[g]. Then subtracts lr * gradient / (sqrt(history[g]) +
    eps) from the weights of the group. slot (int32 [rows]) is work memory; all its elements must be -1."""
    width = np.uint64(table.shape[1])
    flat, residual_flat = table.reshape(-1), residuals.reshape(-1)
    for thread in prange(len(bounds) - 1):
        low, high = bounds[thread], bounds[thread + 1]
        most = 0
        for row in ids:
            most += low <= row < high
        distinct, sources = np.empty(most, np.int32), np.empty(most, np.int32)
        sums = np.empty((most // 2, table.shape[1]), table.dtype)
        sum_flat = sums.reshape(-1)
        number = gather(ids, offsets, residuals, low, high, slot, distinct, sources, sums)
        owner, group = np.empty(number, np.int64), 0
        for k in range(number):
            group = _group(rows, group, distinct[k])
            owner[k] = group
            slot[distinct[k]] = -1
            begin = np.intp(sources[k] if sources[k] >= 0 else -1 - sources[k]) * table.shape[1]
            flat_gradient = residual_flat if sources[k] >= 0 else sum_flat
            history[group] += vectors.square_sum(flat_gradient, begin, begin + table.shape[1], ())
        for k in range(number):
            group, start = owner[k], np.uint64(distinct[k]) * width
            rate = lr / (np.sqrt(history[group]) + eps)
            source = np.uint64(sources[k] if sources[k] >= 0 else -1 - sources[k]) * width
            flat_gradient = residual_flat if sources[k] >= 0 else sum_flat
            _change_row(
                flat, flat_gradient, start, source, width, rate, group, distinct[k],
                factors, squares, doubt, rows, touched, counts,
            )  # fmt: skip


@njit(**PLAIN)
def shrink(table, thresholds, factors, squares, doubt, rows, touched, counts):
    """Scaled weights kernel: group lasso prox: the norm of group g falls by thresholds[g], but not below zero."""
    flat, width = table.reshape(-1), table.shape[1]
    for g in range(thresholds.size):
        threshold = thresholds[g]
        if threshold == 0 or (squares[g] == 0 and doubt[g] == 0):
            continue
        if doubt[g] > DOUBT * squares[g]:
            measure(flat, width, g, factors, squares, doubt, rows)
        norm = np.sqrt(squares[g])
        if norm <= threshold:
            _clear(flat, width, g, rows, touched, counts)
            factors[g], squares[g], doubt[g] = 1.0, 0.0, 0.0
            continue
        factor = 1 - threshold / norm
        factors[g] *= factor
        squares[g] *= factor * factor
        doubt[g] = factor * factor * doubt[g] + EPS * squares[g]
        if factors[g] < SMALL:
            fold(flat, width, g, factors, squares, doubt, rows)


@njit(**PLAIN)
def measure(flat, width, g, factors, squares, doubt, rows):
    """Scaled weights kernel: compute the squared norm squares[g] of the weights of group g from its rows."""
    total = vectors.square_sum(flat, rows[g] * width, rows[g + 1] * width, ())
    squares[g], doubt[g] = factors[g] * factors[g] * total, 0.0


@njit(**PLAIN)
def fold(flat, width, g, factors, squares, doubt, rows):
    """Scaled weights kernel: multiply the factor of group g into the rows of the group, then set the factor to 1."""
    if factors[g] != 1:
        vectors.multiply(flat, rows[g] * width, rows[g + 1] * width, (flat.dtype.type(factors[g]),))
        factors[g] = 1.0
    measure(flat, width, g, factors, squares, doubt, rows)


@njit(**PLAIN)
def fold_all(table, factors, squares, doubt, rows):
    """Scaled weights kernel: multiply the factors of all groups into the rows, then set the factors to 1."""
    for g in range(factors.size):
        fold(table.reshape(-1), table.shape[1], g, factors, squares, doubt, rows)


@njit(**PLAIN)
def _clear(flat, width, g, rows, touched, counts):
    """Scaled weights kernel: set the touched rows of group g to zero; its other rows are zero already."""
    zero, first = flat.dtype.type(0), rows[g]
    if counts[g] >= rows[g + 1] - first:
        flat[first * width : rows[g + 1] * width] = zero
    else:
        for k in range(counts[g]):
            row = np.intp(touched[first + k])
            vectors.multiply(flat, row * width, (row + 1) * width, (zero,))
    counts[g] = 0
