"""Kernels of a weight table with a bag of rows per token: sums of rows, and SGD and AdaGrad updates of rows.

The bag of a token is the set of table rows of its active features. An occurrence is one row in one bag.

- The gradient of the loss with respect to the table is X'R. R holds one row of residuals per token, and X tells which
  table rows are in the bag of each token. The gradient is applied without being stored.
- Rows lie scattered in memory. They are prefetched about `AHEAD` occurrences in advance.
- Each thread owns a range of rows and goes over all tokens. The result does not depend on the number of threads.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic

from structsparse.kernels.vectors import prefetch

AHEAD = 96  # number of occurrences (rows in bags) by which the prefetch of rows runs ahead
ROWS_AHEAD = 32  # number of touched rows by which the prefetch of AdaGrad runs ahead
PLAIN = {"cache": True, "nogil": True}


# --- LLVM instructions that numba lacks: prefetch, and SIMD arithmetic on a row of any width


def prefetcher(writing: int):
    """Weight bags kernel: make a function (array, place) that prefetches array[place].

    `writing` is 1 to prefetch for writing, and 0 for reading."""

    @intrinsic
    def fetch(typingctx, array, place):
        """Weight bags kernel: the numba signature and the code generator of a prefetch."""

        def generate(context, builder, signature, arguments):
            """Weight bags kernel: emit the LLVM prefetch of array[place]."""
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            prefetch(builder, builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer()), writing)
            return context.get_dummy_value()

        return types.void(array, place), generate

    return fetch


def _row_fetcher(fetch):
    """Weight bags kernel: make a function that prefetches a table row, from a function that prefetches an entry."""

    @njit(inline="always")
    def fetch_row(flat, start, width):
        """Weight bags kernel: prefetch the first two cache lines and the last cache line of a table row.

        The processor prefetches the others on its own."""
        fetch(flat, start)
        fetch(flat, start + np.uint64(64 // flat.itemsize))
        fetch(flat, start + width - np.uint64(1))

    return fetch_row


def _lanes(formula, count: int):
    """Weight bags kernel: make an operation on `count` consecutive entries of table rows, as one LLVM vector.

    `formula` takes one vector from each array. Its first result is stored in the first array, its second in the
    second."""

    @intrinsic
    def work(typingctx, arrays, starts, done, numbers):
        """Weight bags kernel: the numba signature and the code generator of an operation on entries of table rows."""

        def generate(context, builder, signature, arguments):
            """Weight bags kernel: emit code that stores the results of the formula on entries of table rows."""
            kinds = signature.args[0]
            vector = ir.VectorType(context.get_data_type(kinds[0].dtype), count)
            size = kinds[0].dtype.bitwidth // 8
            tables, places, scalars = (cgutils.unpack_tuple(builder, arguments[k]) for k in (0, 1, 3))
            addresses = []
            for kind, table, place in zip(kinds, tables, places, strict=True):
                data = context.make_array(kind)(context, builder, table).data
                address = builder.gep(data, [builder.add(place, arguments[2])])
                addresses.append(builder.bitcast(address, vector.as_pointer()))
            vectors = [builder.load(address, align=size) for address in addresses]
            results = formula(builder, *vectors, *(_spread(builder, scalar, vector) for scalar in scalars))
            for result, address in zip(results, addresses, strict=False):
                builder.store(result, address, align=size)
            return context.get_dummy_value()

        return types.void(arrays, starts, done, numbers), generate

    return work


def _spread(builder, scalar, vector):
    """Weight bags kernel: emit an LLVM vector with the same number in all lanes."""
    empty, lane = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(empty, scalar, lane(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(lane, vector.count), [0] * vector.count))


def on_rows(formula):
    """Weight bags kernel: make a function that applies a formula to whole table rows.

    The function takes flat arrays and the start of a row in each array. Rows of any width are processed as vectors of
    16, 8, 4, 2 and 1 entries."""
    sixteen, eight, four, two, one = (_lanes(formula, count) for count in (16, 8, 4, 2, 1))

    @njit(inline="always")
    def work(width, arrays, starts, numbers):
        """Weight bags kernel: apply the formula to table rows of `width` entries, in vectors of 16, 8, 4, 2 and 1."""
        done = np.uint64(0)
        while done + np.uint64(16) <= width:
            sixteen(arrays, starts, done, numbers)
            done += np.uint64(16)
        if width & np.uint64(8):
            eight(arrays, starts, done, numbers)
            done += np.uint64(8)
        if width & np.uint64(4):
            four(arrays, starts, done, numbers)
            done += np.uint64(4)
        if width & np.uint64(2):
            two(arrays, starts, done, numbers)
            done += np.uint64(2)
        if width & np.uint64(1):
            one(arrays, starts, done, numbers)

    return work


def _root(builder, vector):
    """Weight bags kernel: emit the square root of a vector, lane by lane, for AdaGrad."""
    bits = 32 if isinstance(vector.type.element, ir.FloatType) else 64
    kind = ir.FunctionType(vector.type, [vector.type])
    name = f"llvm.sqrt.v{vector.type.count}f{bits}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [vector])


def _adagrad(build, weight, history, gradient, rate, eps):
    """Weight bags kernel: emit the AdaGrad step of a vector; returns new weights and new sums of squared gradients."""
    history = build.fadd(history, build.fmul(gradient, gradient))
    step = build.fdiv(build.fmul(rate, gradient), build.fadd(_root(build, history), eps))
    return build.fsub(weight, step), history


_fetch_entry_to_write = prefetcher(writing=1)
fetch_row, fetch_row_to_write = _row_fetcher(prefetcher(writing=0)), _row_fetcher(_fetch_entry_to_write)
_copy_row = on_rows(lambda build, to, row: [row])
add_row = on_rows(lambda build, to, row: [build.fadd(to, row)])
# `row` and `other` are added to `to` one after the other. A row of zeros then changes no bit of the sum.
_add_two_rows = on_rows(lambda build, to, row, other: [build.fadd(build.fadd(to, row), other)])
subtract_row = on_rows(lambda build, to, row, rate: [build.fsub(to, build.fmul(rate, row))])
_adagrad_row = on_rows(_adagrad)


# --- sums of rows, and updates


@njit(**PLAIN)
def prefetch_distance(offsets, token):
    """Weight bags kernel: the number of occurrences by which the prefetch runs ahead of the bag of a token.

    It is the distance from the start of this bag to the start of a later bag, of about `AHEAD` occurrences."""
    last = len(offsets) - 1
    tokens = 1 + AHEAD * last // (offsets[last] + 1)
    return offsets[min(token + tokens, last)] - offsets[token]


@njit(parallel=True, **PLAIN)
def total(ids, offsets, table, sums, threads):
    """Weight bags kernel: add to sums[token] the table rows in the bag of each token.

    Arrays: ids [occurrences], offsets [tokens + 1], table [rows, labels], sums [tokens, labels]."""
    width = np.uint64(table.shape[1])
    flat, out = table.reshape(-1), sums.reshape(-1)
    last, tokens = len(ids), len(offsets) - 1
    for thread in prange(threads):
        for token in range(tokens * thread // threads, tokens * (thread + 1) // threads):
            ahead, end, here = prefetch_distance(offsets, token), offsets[token + 1], np.uint64(token) * width
            place = offsets[token]
            while place + 1 < end:  # adds two rows at once, which halves the reads and writes of `sums`
                left, right = np.uint64(ids[place]) * width, np.uint64(ids[place + 1]) * width
                if place + ahead + 1 < last:
                    fetch_row(flat, np.uint64(ids[place + ahead]) * width, width)
                    fetch_row(flat, np.uint64(ids[place + ahead + 1]) * width, width)
                _add_two_rows(width, (out, flat, flat), (here, left, right), ())
                place += 2
            if place < end:
                add_row(width, (out, flat), (here, np.uint64(ids[place]) * width), ())


def owners(ids: np.ndarray) -> np.ndarray:
    """Weight bags kernel: divide the table rows among the threads.

    Thread t owns the rows bounds[t] to bounds[t + 1] - 1 of the result `bounds`. All ranges have about the same number
    of occurrences in bags."""
    threads = numba.get_num_threads()
    bounds = np.zeros(threads + 1, np.int64)
    bounds[threads] = np.iinfo(np.int32).max
    if threads > 1 and len(ids):
        sample = np.sort(ids[:: max(1, len(ids) // 4096)])
        bounds[1:threads] = sample[np.arange(1, threads) * len(sample) // threads]
    return bounds


@njit(parallel=True, **PLAIN)
def subtract(ids, offsets, residuals, table, rate, bounds):
    """Weight bags kernel: SGD step of a table: subtracts from each row rate * the sum of residuals of its tokens.

    The tokens of a row are those whose bag contains the row. Arrays: ids [occurrences], offsets [tokens + 1], residuals
    [tokens, labels], table [rows, labels]."""
    width = np.uint64(table.shape[1])
    flat, steps = table.reshape(-1), residuals.reshape(-1)
    last = len(ids)
    for thread in prange(len(bounds) - 1):
        low, high = bounds[thread], bounds[thread + 1]
        for token in range(len(offsets) - 1):
            ahead, end, here = prefetch_distance(offsets, token), offsets[token + 1], np.uint64(token) * width
            place = offsets[token]
            while place < end and ids[place] < low:
                place += 1
            while place < end and ids[place] < high:
                if place + ahead < last:
                    fetch_row_to_write(flat, np.uint64(ids[place + ahead]) * width, width)
                start = np.uint64(ids[place]) * width
                subtract_row(width, (flat, steps), (start, here), (rate,))
                place += 1


@njit(**PLAIN)
def gather(ids, offsets, residuals, low, high, slot, rows, sources, sums):
    """Weight bags kernel: add up the gradient of each touched table row from `low` to high - 1.

    A row is touched if it is in a bag. Returns the number of touched rows. `rows` gets the touched rows, and `sources`
    tells where their gradients are:

    - If only one bag has the row, the source is the index of its token. The gradient is the residual of this token.
    - Otherwise the source is -1 - k, and the gradient is sums[k]."""
    width = np.uint64(residuals.shape[1])
    sum_flat, residual_flat = sums.reshape(-1), residuals.reshape(-1)
    last, touched, repeated = len(ids), 0, 0
    for token in range(len(offsets) - 1):
        ahead, end, here = prefetch_distance(offsets, token), offsets[token + 1], np.uint64(token) * width
        place = offsets[token]
        while place < end and ids[place] < low:
            place += 1
        while place < end and ids[place] < high:
            if place + ahead < last:
                _fetch_entry_to_write(slot, np.uint64(ids[place + ahead]))
            row = ids[place]
            place += 1
            number = slot[row]
            if number < 0:
                slot[row], rows[touched], sources[touched] = touched, row, token
                touched += 1
                continue
            if sources[number] >= 0:
                starts = np.uint64(repeated) * width, np.uint64(sources[number]) * width
                _copy_row(width, (sum_flat, residual_flat), starts, ())
                repeated += 1
                sources[number] = -repeated
            add_row(width, (sum_flat, residual_flat), (np.uint64(-1 - sources[number]) * width, here), ())
    return touched


@njit(**PLAIN)
def _adagrad_rows(rows, sources, sums, residuals, slot, table, squares, rate, eps):
    """Weight bags kernel: AdaGrad steps of the touched table rows, whose gradients `gather` has collected.

    `gather` has set elements of the work memory `slot`. They are set to -1 again."""
    width = np.uint64(table.shape[1])
    weights, history = table.reshape(-1), squares.reshape(-1)
    sum_flat, residual_flat = sums.reshape(-1), residuals.reshape(-1)
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            ahead = np.uint64(rows[k + ROWS_AHEAD])
            _fetch_entry_to_write(slot, ahead)
            fetch_row_to_write(weights, ahead * width, width)
            fetch_row_to_write(history, ahead * width, width)
        slot[rows[k]] = -1
        start, source = np.uint64(rows[k]) * width, sources[k]
        if source >= 0:
            starts = start, start, np.uint64(source) * width
            _adagrad_row(width, (weights, history, residual_flat), starts, (rate, eps))
        else:
            starts = start, start, np.uint64(-1 - source) * width
            _adagrad_row(width, (weights, history, sum_flat), starts, (rate, eps))


@njit(parallel=True, **PLAIN)
def adagrad(ids, offsets, residuals, table, squares, rate, eps, bounds, slot):
    """Weight bags kernel: AdaGrad step of a weight table, on touched rows only.

    Adds gradient^2 to `squares`, then subtracts rate * gradient / (sqrt(squares) + eps) from `table`. slot (int32
    [rows]) is work memory; all its elements must be -1."""
    for thread in prange(len(bounds) - 1):
        low, high = bounds[thread], bounds[thread + 1]
        most = 0
        for row in ids:
            most += low <= row < high
        rows, sources = np.empty(most, np.int32), np.empty(most, np.int32)
        sums = np.empty((most // 2, table.shape[1]), table.dtype)
        touched = gather(ids, offsets, residuals, low, high, slot, rows, sources, sums)
        _adagrad_rows(rows[:touched], sources, sums, residuals, slot, table, squares, rate, eps)
