"""Log-space kernels: exponentials and log-sum-exp for numba code, with their compiler options.

The numba caches of other modules do not notice an edit of this file. After an edit, delete the cache files
(`__pycache__`, `*.nbi`).
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

PLAIN = {"cache": True, "nogil": True, "error_model": "numpy"}
SUMS = {**PLAIN, "fastmath": {"contract", "reassoc", "nsz"}}  # sums may be reordered; NaN and infinity are kept
EXACT = {**PLAIN, "fastmath": {"contract"}}  # a product and a sum may be rounded together, but nothing is reordered

# The exponential is a Taylor series, because a call to the C library would keep loops from being vectorised.
TO_BINARY = 1.4426950408889634  # 1 / log 2
LOG_2, LOG_2_REST = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # log 2 is the sum of these two floats
ROUNDER = 1.5 * 2.0**52  # the low bits of the float x + ROUNDER hold x rounded to an integer
TAYLOR = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))


@intrinsic
def _bits(typing, x):
    """Log-space kernel: reinterpret the bits of a float64 as an int64."""
    return types.int64(types.float64), lambda _c, build, _s, args: build.bitcast(args[0], ir.IntType(64))


@intrinsic
def _from_bits(typing, x):
    """Log-space kernel: reinterpret the bits of an int64 as a float64."""
    return types.float64(types.int64), lambda _c, build, _s, args: build.bitcast(args[0], ir.DoubleType())


@njit(**EXACT)
def exp(x):
    """Log-space kernel: exp(x) for |x| < 700, accurate to one unit in the last place; NaN stays NaN."""
    shifted = x * TO_BINARY + ROUNDER
    power = shifted - ROUNDER
    rest = (x - power * LOG_2) - power * LOG_2_REST
    value = TAYLOR[0]
    for k in range(1, 14):
        value = value * rest + TAYLOR[k]
    return value * _from_bits((_bits(shifted) + 1023) << 52)


@njit(**EXACT)
def exp_below(x):
    """Log-space kernel: exp(x) for x <= 0, including minus infinity; the result is 0 if x < -700."""
    return 0.0 if x < -700.0 else exp(x)


@njit(**EXACT)
def log_step(vector, matrix, peaks, out):  # `matrix` is square, and `vector` and `out` have one element per row
    """Log-space kernel: one step of a chain recursion, out[j] = log sum_i exp(vector[i] + matrix[i, j]).

    `vector` holds a log-weight for each label i, and `matrix` the score of each transition from label i to label j. The
    inner loops run over the labels j, so that the compiler can vectorise them. `peaks` is work memory, one number per
    label."""
    peaks[:] = -np.inf
    for i in range(len(vector)):
        v, row = vector[i], matrix[i]
        for j in range(len(out)):
            peaks[j] = v + row[j] if v + row[j] > peaks[j] else peaks[j]
    for j in range(len(out)):
        peaks[j] = peaks[j] if peaks[j] > -np.inf else 0.0
        out[j] = 0.0
    for i in range(len(vector)):
        v, row = vector[i], matrix[i]
        for j in range(len(out)):
            out[j] += exp_below(v + row[j] - peaks[j])
    for j in range(len(out)):
        out[j] = np.log(out[j]) + peaks[j]


@njit(**EXACT)
def log_total(alpha, end):
    """Log-space kernel: the log-partition function of a chain, log sum_j exp(alpha[j] + end[j]).

    alpha[j] is the log-weight of all label sequences that end in label j, and end[j] is the score of label j at the
    end. The result is minus infinity if no sequence is allowed.
    """
    peak, total = -np.inf, 0.0
    for j in range(len(end)):
        peak = alpha[j] + end[j] if alpha[j] + end[j] > peak else peak
    peak = peak if peak > -np.inf else 0.0
    for j in range(len(end)):
        total += exp_below(alpha[j] + end[j] - peak)
    return np.log(total) + peak
