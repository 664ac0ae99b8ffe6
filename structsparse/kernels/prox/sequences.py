"""Kernels of the prox for sequences: total variation along chains, and isotonic regression for sorted weights.

Both are exact and computed in float64. Total variation uses dynamic programming (Johnson 2013), extended to a step for
each entry:

- v is the result. f_t(b) is the least cost of its first t entries if v_t = b.
- The derivative of f_t is piecewise linear. It is clipped to [-strength, strength], and a line is added for the next
  entry.
- A double-ended queue stores the derivative as knots. A knot is a value b at which the derivative changes its slope or
  jumps.
- The result is found backwards: v_t is v_{t + 1}, clipped to the interval where the derivative of f_t was not clipped.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL

LONGEST = 1e30  # larger steps are replaced by this step; the result is the same
ALONE = 1 << 13  # up to this number of entries, one thread is faster than several


@njit(**PARALLEL)
def smooth_chains(x, steps, strength):
    """Sequences prox kernel: prox of total variation, strength * sum_t |v_{t+1} - v_t|, on each chain x[o, :, i].

    x has the shape [outer, time, inner]. `steps` has the same shape, or is [1, 1, 1] for one common step."""
    outer, time, inner = x.shape
    chains = outer * inner
    parts = 1 if x.size <= ALONE else min(chains, 64)
    for part in prange(parts):
        scratch = np.empty((5, 2 * time + 2))
        for chain in range(part * chains // parts, (part + 1) * chains // parts):
            o, i = chain // inner, chain % inner
            if steps.size == 1:
                _smooth(x[o, :, i], steps[0, 0, :], 0, strength, scratch)
            else:
                _smooth(x[o, :, i], steps[o, :, i], 1, strength, scratch)


@njit(**SERIAL)
def _smooth(x, steps, stride, strength, scratch):
    """Sequences prox kernel: prox of total variation on one chain.

    `steps` has one step per entry (stride 1) or one step for all (stride 0)."""
    knots, lowest, highest = scratch[:3], scratch[3], scratch[4]
    last = x.size - 1
    first = end = x.size  # the knots in the queue are those from `first` to end - 1
    for t in range(x.size):
        w, step = np.float64(x[t]), np.float64(steps[t * stride])
        slope, start = 1.0 / min(step, LONGEST), strength if t == 0 else 0.0
        if step == 0:  # the entry must keep its value w; the derivative jumps there from -inf to inf
            first, end = x.size, x.size + 1
            knots[0, first], knots[1, first], knots[2, first] = w, 0.0, 2 * strength
            lowest[t] = highest[t] = w
        elif t == last:
            lowest[t] = _crossing(w, start - strength, slope, 1, first, end, knots)[0]
        else:
            left, rise, left_jump, passed = _crossing(w, start, slope, 1, first, end, knots)
            first += passed
            right, fall, right_jump, passed = _crossing(w, -start, slope, -1, first, end, knots)
            end -= passed
            first -= 1
            knots[0, first], knots[1, first], knots[2, first] = left, rise, left_jump
            knots[0, end], knots[1, end], knots[2, end] = right, -fall, right_jump
            end += 1
            lowest[t], highest[t] = left, right
    # The exact result lies in the range of x. Clipping to it keeps equal entries free of rounding errors.
    least, most = np.inf, -np.inf
    for t in range(x.size):
        least, most = min(least, np.float64(x[t])), max(most, np.float64(x[t]))
    v = min(max(lowest[last], least), most)
    for t in range(last, -1, -1):
        if t < last:
            v = min(max(min(max(v, lowest[t]), highest[t]), least), most)
        x[t] = v + 0.0 if x[t] == x[t] else np.nan


@njit(**SERIAL)
def _crossing(place, past, slope, side, first, end, knots):
    """Sequences prox kernel: the place where a piecewise linear derivative in total variation reaches a target.

    The search starts at `place`, left of all knots (side 1) or right of all knots (side -1). At the start, `past` is
    the derivative minus the target, and `slope` the slope of the derivative. Returns the place, the slope there, the
    excess, and the number of knots passed. If the derivative jumps over the target, the excess is the distance from the
    target to the value after the jump. Otherwise the excess is 0."""
    rise, passed = slope, 0
    while first + passed < end:
        knot = first + passed if side > 0 else end - 1 - passed
        there = past + rise * (knots[0, knot] - place)
        if not side * there < 0:
            break
        place, past = knots[0, knot], there + side * knots[2, knot]
        rise = max(rise + side * knots[1, knot], slope)
        passed += 1
        if side * past >= 0:
            return place, rise, side * past, passed
    return place - past / rise, rise, 0.0, passed


@njit(**SERIAL)
def fall_and_stop(x):
    """Sequences prox kernel: isotonic regression; x becomes the nearest vector that never rises and is never negative.

    The algorithm is pool adjacent violators."""
    totals, counts = np.empty(x.size), np.empty(x.size, np.int64)
    blocks = 0
    for i in range(x.size):
        total, count = x[i], 1
        while blocks > 0 and totals[blocks - 1] * count < total * counts[blocks - 1]:
            blocks -= 1
            total += totals[blocks]
            count += counts[blocks]
        totals[blocks], counts[blocks] = total, count
        blocks += 1
    i = 0
    for block in range(blocks):
        mean = max(totals[block] / counts[block], 0.0)
        for _ in range(counts[block]):
            x[i] = mean
            i += 1
