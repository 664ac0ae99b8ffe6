"""Row updates from bag gradients on the CPU.

The gradient of a weight table is X'R: R holds one residual row per token, X says which table rows each token
touched. It is applied without ever being formed. Rows lie scattered in memory, so the cost is cache misses:
the row that will be needed `AHEAD` occurrences later is fetched while the current one is worked on.

Each thread owns a range of rows and walks over all tokens, so no two threads write the same row and the result
does not depend on how many threads there are. The rows of a token ascend (templates own ascending blocks).
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic

AHEAD = 24


@intrinsic
def _prefetch(typingctx, array, index):
    """Ask for the cache line of array[index] before it is needed (llvm.prefetch: for writing, kept in all levels)."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        flag = ir.IntType(32)
        name = "llvm.prefetch.p0" if getattr(address.type, "is_opaque", False) else "llvm.prefetch.p0i8"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]), name
        )
        builder.call(function, [address, flag(1), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


def owners(ids: np.ndarray) -> np.ndarray:
    """Row ranges of about equally many occurrences, one a thread: int64 [threads + 1]."""
    threads = numba.get_num_threads()
    inner = np.quantile(ids[:: max(1, len(ids) // 4096)], np.arange(1, threads) / threads) if len(ids) else []
    return np.r_[0, np.asarray(inner, np.int64), np.iinfo(np.int32).max]


@njit(parallel=True, cache=True, nogil=True, fastmath=True)
def subtract(ids, offsets, residuals, table, rate, bounds):
    """table[row] -= rate * sum of the residuals of the tokens that touched it.

    ids [occurrences], offsets [tokens + 1], residuals [tokens, labels], table [rows, labels]"""
    width = table.shape[1]
    flat = table.reshape(-1)
    size = np.uint64(width)
    line = np.uint64(64 // table.itemsize)
    last = len(ids)
    for thread in prange(len(bounds) - 1):
        low, high = bounds[thread], bounds[thread + 1]
        step = np.empty(width, table.dtype)
        for token in range(len(offsets) - 1):
            begin, end = offsets[token], offsets[token + 1]
            while begin < end and ids[begin] < low:
                begin += 1
            residual = residuals[token]
            for label in range(width):
                step[label] = rate * residual[label]
            for place in range(begin, end):
                if ids[place] >= high:
                    break
                if place + AHEAD < last:
                    coming = np.uint64(ids[place + AHEAD]) * size
                    _prefetch(flat, coming)
                    _prefetch(flat, coming + line)
                start = np.uint64(ids[place]) * size
                for label in range(width):
                    flat[start + np.uint64(label)] -= step[label]


@njit(cache=True, nogil=True, fastmath=True)
def _gather(ids, offsets, residuals, low, high, slot, rows, sums):
    """Sum the residuals per row of [low, high); returns how many rows were touched."""
    touched = 0
    last = len(ids)
    width = np.uint64(residuals.shape[1])
    flat = sums.reshape(-1)
    for token in range(len(offsets) - 1):
        begin, end = offsets[token], offsets[token + 1]
        while begin < end and ids[begin] < low:
            begin += 1
        residual = residuals[token]
        for place in range(begin, end):
            row = ids[place]
            if row >= high:
                break
            if place + AHEAD < last:
                _prefetch(slot, np.uint64(ids[place + AHEAD]))
            if slot[row] < 0:
                slot[row] = touched
                rows[touched] = row
                start = np.uint64(touched) * width
                for label in range(width):
                    flat[start + label] = residual[label]
                touched += 1
            else:
                start = np.uint64(slot[row]) * width
                for label in range(width):
                    flat[start + label] += residual[label]
    return touched


@njit(cache=True, nogil=True, fastmath=True)
def _adagrad_rows(rows, sums, touched, slot, table, squares, rate, eps):
    width = np.uint64(table.shape[1])
    line = np.uint64(64 // table.itemsize)
    weights, history, gradient = table.reshape(-1), squares.reshape(-1), sums.reshape(-1)
    for k in range(touched):
        if k + 8 < touched:
            coming = np.uint64(rows[k + 8]) * width
            _prefetch(weights, coming)
            _prefetch(weights, coming + line)
            _prefetch(history, coming)
            _prefetch(history, coming + line)
        slot[rows[k]] = -1
        start = np.uint64(rows[k]) * width
        here = np.uint64(k) * width
        for label in range(width):
            g = gradient[here + label]
            h = history[start + label] + g * g
            history[start + label] = h
            weights[start + label] -= rate * g / (np.sqrt(h) + eps)


@njit(parallel=True, cache=True, nogil=True)
def adagrad(ids, offsets, residuals, table, squares, rate, eps, bounds, slot):
    """squares += gradient^2; table -= rate * gradient / (sqrt(squares) + eps), on the touched rows only.

    slot: int32 [rows], all -1 before and after; the row's place among the touched ones in between."""
    threads = len(bounds) - 1
    for thread in prange(threads):
        low, high = bounds[thread], bounds[thread + 1]
        most = 0
        for row in ids:
            most += low <= row < high
        rows = np.empty(most, np.int32)
        sums = np.empty((most, table.shape[1]), table.dtype)
        touched = _gather(ids, offsets, residuals, low, high, slot, rows, sums)
        _adagrad_rows(rows, sums, touched, slot, table, squares, rate, eps)
