"""Kernels of the prox of the max norm (largest absolute value) of each block of rows, in place on flat CPU memory.

The prox clips the absolute values of a block at a height r. At this r, the sum of max(|x| - r, 0) / steps over the
entries of the block is `strength`. The block becomes zero if the sum is smaller even at r = 0. Newton's method finds r.
An entry with step 0 cannot move, and r is at least its absolute value.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL, SUMS

TILE = 1 << 15  # number of entries in a tile, the unit of work of a thread
ALONE = 1 << 17  # up to this number of entries, one thread is faster than several


@njit(**PARALLEL)
def clip_blocks(x, offsets, width, weight, threshold):
    """Blocks max prox kernel: prox of threshold * weight[g] * max |v| over each row block g, by clipping."""
    first, last = _tiles(offsets, width)
    for tile in prange(first.size):
        for g in range(first[tile], last[tile]):
            _clip_group(x[offsets[g] * width : offsets[g + 1] * width], threshold * weight[g])


@njit(**PARALLEL)
def clip_blocks_metric(x, steps, offsets, width, weight, strength):
    """Blocks max prox kernel: prox of strength * weight[g] * max |v| over each row block g, with a step per entry."""
    first, last = _tiles(offsets, width)
    for tile in prange(first.size):
        for g in range(first[tile], last[tile]):
            a, b = offsets[g] * width, offsets[g + 1] * width
            _clip_group_metric(x[a:b], steps[a:b], strength * weight[g])


@njit(**SERIAL)
def _tiles(offsets, width):
    """Blocks max prox kernel: the first row block of each tile, and the block after its last one.

    A tile is the unit of work of a thread."""
    entries = offsets[-1] * width
    tiles = 1 if entries <= ALONE else entries // TILE
    bounds = np.searchsorted(offsets, np.arange(tiles + 1) * offsets[-1] // tiles)
    bounds[-1] = offsets.size - 1
    return bounds[:-1], bounds[1:]


@njit(**SERIAL)
def _clip(x, height):
    """Blocks max prox kernel: clip the absolute values of a row block at a height.

    Zeros get a positive sign, and NaN stays NaN.
    """
    zero = x.dtype.type(0)
    for i in range(x.size):
        value = x[i] + zero
        value = height if value > height else value
        x[i] = -height + zero if value < -height else value


@njit(**SERIAL, fastmath={"nnan", "nsz"})
def _largest(x, steps, strength):
    """Blocks max prox kernel: the largest |x| - strength * step in a row block.

    This is a lower bound of the height at which the prox clips the block."""
    largest = 0.0
    for i in range(x.size):
        left = np.float64(abs(x[i])) - strength * steps[i]
        largest = left if left > largest else largest
    return largest


@njit(**SUMS)
def _above(x, height):
    """Blocks max prox kernel: sum and count of the absolute values in one row block that are above `height`."""
    total, count = 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        total += size if size > height else 0.0
        count += 1.0 if size > height else 0.0
    return total, count


@njit(**SUMS)
def _above_metric(x, steps, height):
    """Blocks max prox kernel: sums of |x| / step and of 1 / step over the entries of a row block with |x| > height."""
    total, count = 0.0, 0.0
    for i in range(x.size):
        size = np.float64(abs(x[i]))
        inverse = 1.0 / steps[i] if size > height else 0.0
        total += size * inverse
        count += inverse
    return total, count


@njit(**SERIAL)
def _clip_group(x, threshold):
    """Blocks max prox kernel: clip one row block at the height that solves the prox, by Newton's method."""
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
    """Blocks max prox kernel: clip one row block with a step per entry at the height that solves the prox."""
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
