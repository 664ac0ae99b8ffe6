"""CPU kernels of the prox of the largest absolute value of each row block, in place on flat contiguous memory.

The prox clips a group at the height r where sum (|x| - r)+ / steps = strength. The group becomes zero if the sum is
smaller even at r = 0. The sum is convex and falls with r. So Newton's method from a lower bound reaches the root from
below, in finitely many iterations. An entry with step 0 cannot move, so r is at least its size.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

TILE = 1 << 15  # entries of a tile, the work of one thread
ALONE = 1 << 17  # entries: with fewer, starting other threads costs more than it saves


@njit(**PARALLEL)
def clip_blocks(x, offsets, width, weight, threshold):
    """Kernel of the clipping prox: row block g of x <- prox of threshold * weight[g] * max |v|."""
    first, last = _tiles(offsets, width)
    for tile in prange(first.size):
        for g in range(first[tile], last[tile]):
            _clip_group(x[offsets[g] * width : offsets[g + 1] * width], threshold * weight[g])


@njit(**PARALLEL)
def clip_blocks_metric(x, steps, offsets, width, weight, strength):
    """Kernel of the clipping prox with a step per entry: row block g of x <- prox of strength * weight[g] * max |v|."""
    first, last = _tiles(offsets, width)
    for tile in prange(first.size):
        for g in range(first[tile], last[tile]):
            a, b = offsets[g] * width, offsets[g + 1] * width
            _clip_group_metric(x[a:b], steps[a:b], strength * weight[g])


@njit(**SERIAL)
def _tiles(offsets, width):
    """First and end row block of each tile, the unit of work of a thread."""
    entries = offsets[-1] * width
    tiles = 1 if entries <= ALONE else entries // TILE
    bounds = np.searchsorted(offsets, np.arange(tiles + 1) * offsets[-1] // tiles)
    bounds[-1] = offsets.size - 1
    return bounds[:-1], bounds[1:]


@njit(**SERIAL)
def _clip(x, height):
    """Clip the absolute values of a row block x at a height; zeros get a positive sign, NaN stays NaN."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        value = x[i] + zero
        value = height if value > height else value
        x[i] = -height + zero if value < -height else value


@njit(**SERIAL, fastmath={"nnan", "nsz"})
def _largest(x, steps, strength):
    """The largest |x| - strength * step, a lower bound of the clipping height."""
    largest = 0.0
    for i in range(x.size):
        left = np.float64(abs(x[i])) - strength * steps[i]
        largest = left if left > largest else largest
    return largest


@njit(**SUMS)
def _above(x, height):
    """Sum and number of the absolute values above a height."""
    total, count = 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        total += size if size > height else 0.0
        count += 1.0 if size > height else 0.0
    return total, count


@njit(**SUMS)
def _above_metric(x, steps, height):
    """Sums of |x| / step and of 1 / step over the entries with |x| above a height."""
    total, count = 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        inverse = 1.0 / steps[i] if size > height else 0.0
        total += size * inverse
        count += inverse
    return total, count


@njit(**SERIAL)
def _clip_group(x, threshold):
    """Clip one group at the height that solves its prox, by Newton's method."""
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
    """Clip one group at the height that solves its prox with a step per entry, by Newton's method."""
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
