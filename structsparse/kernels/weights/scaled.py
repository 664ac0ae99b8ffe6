"""Kernels of tables with a factor per group, whose group lasso costs the number of groups.

The row block g of a table W stands for factors[g] * W, and its squared norm `squares[g]` is kept up to date. Shrinking
a group is then two multiplications, whatever its size.

A step lists the rows it touches in `touched[rows[g]:]`; `counts[g]` says how many are listed. When the group dies,
these are set to zero. Once as many are listed as the group has rows, all of them count as touched, so zeroing costs no
more than touching did. `doubt[g]` bounds the rounding error of `squares[g]`; if it gets too large, the norm is computed
anew. Threads own whole groups, so the result does not depend on the number of threads.
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

WALK = 8  # groups to try one by one before a binary search
SMALL = 2.0**-60  # a factor to multiply into the rows, long before 1 / factor overflows in float32
DOUBT = 1e-10  # allowed relative rounding error of a squared norm: thousands of steps at worst
EPS = 2.0**-52
PLAIN = {"cache": True, "nogil": True, "error_model": "numpy"}


def _scaled_sum(build, to, row, factor):
    """to + factor * row"""
    return [build.fadd(to, build.fmul(factor, row))]


def _two_scaled_sums(build, to, row, other, factor, next_factor):
    """to + factor * row + next_factor * other"""
    return [build.fadd(build.fadd(to, build.fmul(factor, row)), build.fmul(next_factor, other))]


_add_scaled_row = on_rows(_scaled_sum)
_add_two_scaled_rows = on_rows(_two_scaled_sums)


@njit(**PLAIN)
def _group(rows, group, row):
    """The group of a row, searched from `group` on."""
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
    """Sums of bags of a scaled table: sums[token] += the rows of the token, each times the factor of its group.

    ids [occurrences], offsets [tokens + 1], table [rows, labels], factors [groups], rows [groups + 1] where each group
    begins, sums [tokens, labels]"""
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
    """Ranges of whole groups with about equally many occurrences, one for each thread: int64 [threads + 1] rows."""
    bounds = bags.owners(ids)
    bounds[1:-1] = rows[np.searchsorted(rows[:-1], bounds[1:-1]).clip(max=len(rows) - 2)]
    return bounds


@njit(inline="always")  # a call would pass a dozen arrays for each row
def _change_row(flat, steps, start, source, width, rate, group, row, factors, squares, doubt, rows, touched, counts):
    """W[row] -= rate / factor * residual; updates the squared norm and the touched rows of the group."""
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
    """SGD step of a scaled table: factors * W -= rate * X'R, on the touched rows only.

    ids [occurrences], offsets [tokens + 1], residuals [tokens, labels], table [rows, labels]; the rest as above"""
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
    """history[g] += |gradient of g|^2; factors * W -= lr * gradient / (sqrt(history[g]) + eps), on the touched rows.

    slot: int32 [rows], all -1 before and after."""
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
    """The prox of the group lasso, with threshold thresholds[g] for group g."""
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
    """Compute the squared norm of group g from its rows."""
    total = vectors.square_sum(flat, rows[g] * width, rows[g + 1] * width, ())
    squares[g], doubt[g] = factors[g] * factors[g] * total, 0.0


@njit(**PLAIN)
def fold(flat, width, g, factors, squares, doubt, rows):
    """Multiply the factor of group g into its rows, after which it is 1."""
    if factors[g] != 1:
        vectors.multiply(flat, rows[g] * width, rows[g + 1] * width, (flat.dtype.type(factors[g]),))
        factors[g] = 1.0
    measure(flat, width, g, factors, squares, doubt, rows)


@njit(**PLAIN)
def fold_all(table, factors, squares, doubt, rows):
    """Multiply all factors into the rows."""
    for g in range(factors.size):
        fold(table.reshape(-1), table.shape[1], g, factors, squares, doubt, rows)


@njit(**PLAIN)
def _clear(flat, width, g, rows, touched, counts):
    """Set the touched rows of group g to zero."""
    zero, first = flat.dtype.type(0), rows[g]
    if counts[g] >= rows[g + 1] - first:
        flat[first * width : rows[g + 1] * width] = zero
    else:
        for k in range(counts[g]):
            row = np.intp(touched[first + k])
            vectors.multiply(flat, row * width, (row + 1) * width, (zero,))
    counts[g] = 0
