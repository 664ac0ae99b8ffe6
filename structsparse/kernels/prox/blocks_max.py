"""Prox of the largest entry of each row block on the CPU, in place on flat contiguous memory.

A group is clipped at the height r where  sum (|x| - r)+ / steps = strength; it dies if even at r = 0 the sum is
smaller. The sum is convex and falls with r, so Newton from the left climbs to the root without passing it, in finitely
many rounds. An entry that cannot move (step 0) keeps r above itself.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

TILE = 1 << 15  # entries of a piece for one thread
ALONE = 1 << 17  # entries, up to which waking other threads costs more than it saves


@njit(**PARALLEL)
def clip_blocks(x, offsets, width, weight, threshold):
    """Clip row blocks: block g of x <- prox of threshold * weight[g] * max |v|."""
    first, last = _tiles(offsets, width)
    for tile in prange(first.size):
        for g in range(first[tile], last[tile]):
            _clip_group(x[offsets[g] * width : offsets[g + 1] * width], threshold * weight[g])


@njit(**PARALLEL)
def clip_blocks_metric(x, steps, offsets, width, weight, strength):
    """`clip_blocks` in the metric 1 / steps."""
    first, last = _tiles(offsets, width)
    for tile in prange(first.size):
        for g in range(first[tile], last[tile]):
            a, b = offsets[g] * width, offsets[g + 1] * width
            _clip_group_metric(x[a:b], steps[a:b], strength * weight[g])


@njit(**SERIAL)
def _tiles(offsets, width):
    """First group and end group of each tile."""
    entries = offsets[-1] * width
    tiles = 1 if entries <= ALONE else entries // TILE
    bounds = np.searchsorted(offsets, np.arange(tiles + 1) * offsets[-1] // tiles)
    bounds[-1] = offsets.size - 1
    return bounds[:-1], bounds[1:]


@njit(**SERIAL)
def _clip(x, height):
    """Clip the sizes of x at a height; zeros get a positive sign, NaN stays NaN."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        value = x[i] + zero
        value = height if value > height else value
        x[i] = -height + zero if value < -height else value


@njit(**SERIAL, fastmath={"nnan", "nsz"})
def _largest(x, steps, strength):
    """The largest |x| - strength * step, a lower bound of the height."""
    largest = 0.0
    for i in range(x.size):
        left = np.float64(abs(x[i])) - strength * steps[i]
        largest = left if left > largest else largest
    return largest


@njit(**SUMS)
def _above(x, height):
    """Sum and number of the sizes above a height."""
    total, count = 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        total += size if size > height else 0.0
        count += 1.0 if size > height else 0.0
    return total, count


@njit(**SUMS)
def _above_metric(x, steps, height):
    """Sum and number of the sizes above a height, each divided by its step."""
    total, count = 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        inverse = 1.0 / steps[i] if size > height else 0.0
        total += size * inverse
        count += inverse
    return total, count


@njit(**SERIAL)
def _clip_group(x, threshold):
    """Clip one group at its height."""
    if threshold == 0:
        return
    total, count = _above(x, 0.0)
    height = 0.0
    while total - threshold > height * count:
        climbed = (total - threshold) / count
        if climbed <= height:
            break
        height = climbed
        total, count = _above(x, height)
    _clip(x, x.dtype.type(height))


@njit(**SERIAL)
def _clip_group_metric(x, steps, strength):
    """Clip one group at its height in the metric 1 / steps."""
    if strength == 0:
        return
    height = _largest(x, steps, strength)
    total, count = _above_metric(x, steps, height)
    while total - strength > height * count:
        climbed = (total - strength) / count
        if climbed <= height:
            break
        height = climbed
        total, count = _above_metric(x, steps, height)
    _clip(x, x.dtype.type(height))
