"""Kernels of the group lasso prox over blocks of rows, and of sums over blocks, in place on flat CPU memory.

- Block g has the rows offsets[g] to offsets[g + 1] - 1 of a parameter with `width` entries per row.
- A tile is a list of whole blocks that one thread processes. All threads share a block of more than LARGE entries.
- Tiles depend on sizes alone. Results therefore do not depend on the number of threads.
- Sums are float64, except for blocks of at most vectors.FEW entries. These are summed in the dtype of the entries.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels import vectors
from structsparse.kernels.options import PARALLEL, SERIAL, SUMS
from structsparse.kernels.prox.entries import _soft_metric, soft_threshold_metric

TILE = 1 << 15  # intended number of entries in a tile; a tile and its step sizes fit the second-level CPU cache
ALONE = 1 << 18  # up to this number of entries, one thread is faster than several
PORTION = 1 << 11  # maximum number of entries of small blocks that are processed together, in the first-level cache
BEHIND = 128  # maximum number of entries past the end of a small block that vector instructions read or write
LINE = 64  # number of bytes of a vector register
# A float32 sum of squares above MOST or below LEAST may be inexact, and is computed again in float64.
# Exception: a sum below LEAST is kept if the threshold is at least FAINT, as the prox sets the block to zero anyway.
LEAST, MOST, FAINT = 1e-30, 1e30, 1e-12
RUN = 1 << 18  # intended number of entries in a tile of the prox with one common step
LARGE = 1 << 21  # all threads share a block with more entries than this
ROUNDS = 60  # maximum number of Newton iterations


@njit(**PARALLEL)
def shrink_blocks(x, offsets, width, weight, threshold, cut):
    """Blocks prox kernel: apply the sparse group lasso prox to blocks of rows.

    Block g is soft-thresholded at `cut`, then shrunk by the prox of threshold * weight[g] * norm."""
    if x.size <= ALONE:
        _shrink_tile(x, offsets, width, weight, threshold, cut)
        return
    first, last = _tiles(offsets, width, RUN)
    for tile in prange(first.size):
        a, b = first[tile], last[tile]
        _shrink_tile(x, offsets[a : b + 1], width, weight[a:b], threshold, cut)
    for g in range(weight.size):
        a, b = offsets[g] * width, offsets[g + 1] * width
        if b - a > LARGE:
            _shrink_large(x[a:b], threshold * weight[g], cut)


@njit(**PARALLEL)
def shrink_blocks_metric(x, steps, offsets, width, weight, strength, cut):
    """Blocks prox kernel: apply the sparse group lasso prox, with a step per entry, to blocks of rows.

    Block g is soft-thresholded at cut * steps, then shrunk by the prox of strength * weight[g] * norm in the metric 1 /
    steps."""
    if x.size <= ALONE:
        _shrink_tile_metric(x, steps, offsets, width, weight, strength, cut)
        return
    first, last = _tiles(offsets, width, TILE)
    for tile in prange(first.size):
        a, b = first[tile], last[tile]
        _shrink_tile_metric(x, steps, offsets[a : b + 1], width, weight[a:b], strength, cut)
    for g in range(weight.size):
        a, b = offsets[g] * width, offsets[g + 1] * width
        if b - a > LARGE:
            _shrink_large_metric(x[a:b], steps[a:b], x.dtype.type(strength * weight[g]), cut)


@njit(**PARALLEL)
def block_sums(x, offsets, width, power, sums):
    """Blocks kernel: sums[g] gets the sum of |x|^power (power 1 or 2) over row block g.

    `sums` (float64) must be zero."""
    if x.size <= ALONE:
        _sum_tile(x, offsets, width, power, sums)
        return
    first, last = _tiles(offsets, width, TILE)
    for tile in prange(first.size):
        a, b = first[tile], last[tile]
        _sum_tile(x, offsets[a : b + 1], width, power, sums[a:b])
    for g in range(sums.size):
        a, b = offsets[g] * width, offsets[g + 1] * width
        if b - a > LARGE:
            sums[g] = _power_sum_large(x[a:b], power)


@njit(**PARALLEL)
def block_sums_past(x, offsets, width, cuts, sums):
    """Blocks kernel: count and sums of the entries of each row block whose absolute value exceeds a cut.

    For the entries of block g with |x| > cuts[g], sums[:, g] gets three numbers: their count, the sum of |x| - cuts[g],
    and the sum of (|x| - cuts[g])^2. `sums` is float64."""
    if x.size <= ALONE:
        for g in range(cuts.size):
            sums[:, g] = _sums_past(x[offsets[g] * width : offsets[g + 1] * width], cuts[g])
        return
    for g in prange(cuts.size):
        sums[:, g] = _sums_past(x[offsets[g] * width : offsets[g + 1] * width], cuts[g])


@njit(**SUMS)
def _sums_past(x, cut):
    """Blocks kernel: count of the entries of a row block with |x| > cut, and sums of |x| - cut and (|x| - cut)^2."""
    many, total, squares = 0.0, 0.0, 0.0
    for i in range(x.size):
        past = max(np.float64(abs(x[i])) - cut, 0.0)
        many += past > 0
        total += past
        squares += past * past
    return many, total, squares


@njit(**SERIAL)
def _tiles(offsets, width, entries):
    """Blocks prox kernel: the first block of each tile, and the block after its last one.

    A tile is a piece of work of about `entries` entries. Blocks of more than LARGE entries are left out."""
    tiles = 1 + offsets[-1] * width // entries
    bounds = np.searchsorted(offsets, np.arange(tiles + 1) * offsets[-1] // tiles)
    first, last = bounds[:-1], bounds[1:].copy()
    for tile in range(tiles):
        end = last[tile]
        if end > first[tile] and (offsets[end] - offsets[end - 1]) * width > LARGE:
            last[tile] = end - 1
    return first, last


@njit(**SERIAL)
def _power_sum(x, start, stop, power):
    """Blocks kernel: sum of |x|^power over one row block, x[start:stop]."""
    return vectors.square_sum(x, start, stop, ()) if power == 2 else vectors.absolute_sum(x, start, stop, ())


@njit(**SERIAL)
def _sum_tile(x, offsets, width, power, sums):
    """Blocks kernel: sums of |x|^power over each row block of a tile."""
    for g in range(sums.size):
        sums[g] = _power_sum(x, offsets[g] * width, offsets[g + 1] * width, power)


@njit(**PARALLEL)
def _power_sum_large(x, power):
    """Blocks kernel: sum of |x|^power over one large row block, shared by all threads."""
    tiles = (x.size + TILE - 1) // TILE
    partial = np.empty((tiles, 1))
    for tile in prange(tiles):
        partial[tile, 0] = _power_sum(x, tile * TILE, min((tile + 1) * TILE, x.size), power)
    return _total(partial, 0)


@njit(**SERIAL)
def _squares(x, start, stop, cut):
    """Blocks prox kernel: sum of squares over one row block, x[start:stop], after soft thresholding at `cut`."""
    return vectors.square_sum(x, start, stop, ()) if cut == 0 else vectors.soft_square_sum(x, start, stop, (cut,))


@njit(**SERIAL)
def _factor(squares, threshold):
    """Blocks prox kernel: the factor of the group prox, max(0, 1 - threshold / norm), from the squared norm."""
    if threshold == 0:
        return 1.0
    norm = np.sqrt(squares)
    return 0.0 if norm <= threshold else 1 - threshold / norm


@njit(**SERIAL)
def _scale(x, start, stop, cut, factor):
    """Blocks prox kernel: soft-threshold one row block, x[start:stop], at `cut`, then multiply it by `factor`."""
    if cut == 0:
        vectors.multiply(x, start, stop, (factor,))
    else:
        vectors.soft_multiply(x, start, stop, (cut, factor))


@njit(**SERIAL)
def _shrink_tile(x, offsets, width, weight, threshold, cut):
    """Blocks prox kernel: sparse group lasso prox over the row blocks of one tile.

    Blocks of few entries are processed in portions, larger blocks one by one.
    """
    bounds, first = offsets * width, 0
    squares, factors, spread = np.empty(PORTION), np.empty(PORTION, x.dtype), np.empty(PORTION + BEHIND, x.dtype)
    # whether the average block is no larger than two vector registers
    two = bounds[-1] - bounds[0] <= weight.size * (vectors.TWO * LINE // x.itemsize)
    scratch = squares, factors, spread
    while first < weight.size:
        if two and cut == 0:
            first = _shrink_two(x, bounds, first, weight, threshold, cut, *scratch)
        elif two:
            first = _shrink_two_soft(x, bounds, first, weight, threshold, cut, *scratch)
        elif cut == 0:
            first = _shrink_few(x, bounds, first, weight, threshold, cut, *scratch)
        else:
            first = _shrink_few_soft(x, bounds, first, weight, threshold, cut, *scratch)
        if first < weight.size:
            a, b = bounds[first], bounds[first + 1]
            factor = _factor(_squares(x, a, b, cut), threshold * weight[first])
            _scale(x, a, b, cut, x.dtype.type(factor))
            first += 1


def _few_shrinker(add, fill, multiply, soft):
    """Blocks prox kernel: make a kernel that shrinks row blocks of few entries by the given vector functions.

    `add` computes sums of squares, `fill` spreads a factor over a block, and `multiply` multiplies entries by factors.
    `soft` tells whether the entries are soft-thresholded."""

    @njit(**SERIAL)
    def shrink(x, bounds, g, weight, threshold, cut, squares, factors, spread):
        """Blocks prox kernel: shrink consecutive small row blocks from block g on; returns the first block not done.

        Blocks are processed in portions: first all sums of squares, then all factors, then all products."""
        numbers = (cut,) if soft else ()
        while g < weight.size:
            first, begin, unsure = g, bounds[g], False
            while g < weight.size and g - first < PORTION:
                start, stop = bounds[g], bounds[g + 1]
                if stop - start > vectors.FEW or stop - begin > PORTION or stop + BEHIND > x.size:
                    break
                total = add(x, start, stop, numbers)
                squares[g - first] = total
                unsure |= (total < LEAST) | (total > MOST)
                g += 1
            if g == first:
                break
            for k in range(first, g if unsure else first):
                total = squares[k - first]
                if total > MOST or (total < LEAST and threshold * weight[k] < FAINT):
                    squares[k - first] = _squares(x, bounds[k], bounds[k + 1], cut)
            _factors(squares[: g - first], weight[first:g], threshold, factors)
            for k in range(first, g):
                fill(spread, bounds[k] - begin, bounds[k + 1] - begin, (factors[k - first],))
            multiply(x, begin, bounds[g], numbers, spread)
        return g

    return shrink


_shrink_few = _few_shrinker(vectors.few_square_sum, vectors.fill, vectors.multiply_each, False)
_shrink_few_soft = _few_shrinker(vectors.few_soft_square_sum, vectors.fill, vectors.soft_multiply_each, True)
_shrink_two = _few_shrinker(vectors.two_square_sum, vectors.fill_two, vectors.multiply_each, False)
_shrink_two_soft = _few_shrinker(vectors.two_soft_square_sum, vectors.fill_two, vectors.soft_multiply_each, True)


@njit(**SERIAL)
def _factors(squares, weight, threshold, factors):
    """Blocks prox kernel: factors[g] gets max(0, 1 - threshold * weight / norm) for some row blocks.

    `squares` holds the squared norms. The loop has no branches, so that the compiler can vectorise."""
    for g in range(squares.size):
        share, norm = threshold * weight[g], np.sqrt(squares[g])
        left = 0.0 if norm <= share else 1 - share / norm
        factors[g] = 1.0 if share == 0 else left


@njit(**PARALLEL)
def _shrink_large(x, threshold, cut):
    """Blocks prox kernel: sparse group lasso prox of one large row block, shared by all threads."""
    tiles = (x.size + TILE - 1) // TILE
    partial = np.empty((tiles, 1))
    for tile in prange(tiles):
        partial[tile, 0] = _squares(x, tile * TILE, min((tile + 1) * TILE, x.size), cut)
    factor = x.dtype.type(_factor(_total(partial, 0), threshold))
    for tile in prange(tiles):
        _scale(x, tile * TILE, min((tile + 1) * TILE, x.size), cut, factor)


@njit(**SERIAL)
def _total(partial, column):
    """Blocks kernel: sum of the partial sums of a large row block, in the same order for any number of threads."""
    total = 0.0
    for tile in range(partial.shape[0]):
        total += partial[tile, column]
    return total


# --- group prox in the metric 1 / steps: Newton's method finds theta, the norm of a row block after its prox


@njit(**SUMS)
def _start(x, steps, strength):
    """Blocks prox kernel: the square of a lower bound of theta, the norm of a row block after its prox.

    The bound is the norm after soft thresholding at strength * steps."""
    total = 0.0
    for i in range(x.size):
        cut = strength * steps[i]
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SUMS)
def _secular(x, steps, strength, theta):
    """Blocks prox kernel: |p|^2 for p = x / (theta + strength * steps), and minus half its derivative in theta.

    The norm of a row block after its prox is the theta for which |p| = 1."""
    one, tiny = x.dtype.type(1), x.dtype.type(np.finfo(x.dtype).tiny)
    squares, slope = 0.0, 0.0
    for i in range(x.size):
        inverse = one / max(theta + strength * steps[i], tiny)
        p = x[i] * inverse
        squares += p * p
        slope += p * p * inverse
    return squares, slope


@njit(**SERIAL)
def _multiply(x, steps, strength, theta):
    """Blocks prox kernel: apply the prox to a row block, given its norm theta after the prox.

    Zeros get a positive sign."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for i in range(x.size):
        reach = strength * steps[i]
        x[i] = x[i] * (one if reach == 0 else theta / (theta + reach)) + zero


@njit(**SERIAL)
def _climbed(squares, slope, tolerance):
    """Blocks prox kernel: the Newton step to add to theta, the norm of a row block after its prox.

    theta is the root of |p| = 1 for p = x / (theta + strength * steps). `squares` is |p|^2, and `slope` minus half its
    derivative in theta. The step is zero if |p| is at most 1 + tolerance."""
    norm = np.sqrt(squares)
    return (norm - 1) * (squares / slope) if norm > 1 + tolerance else 0.0


@njit(**SERIAL)
def _shrink_tile_metric(x, steps, offsets, width, weight, strength, cut):
    """Blocks prox kernel: sparse group lasso prox with a step per entry, over the row blocks of one tile."""
    for g in range(weight.size):
        a, b = offsets[g] * width, offsets[g + 1] * width
        _shrink_small_metric(x[a:b], steps[a:b], x.dtype.type(strength * weight[g]), cut)


@njit(**SERIAL)
def _shrink_small_metric(x, steps, strength, cut):
    """Blocks prox kernel: sparse group lasso prox with a step per entry, of one row block in one thread."""
    if cut > 0:
        _soft_metric(x, steps, cut)
    if strength == 0:
        return
    kind = x.dtype.type
    theta, tolerance = np.sqrt(_start(x, steps, strength)), 4 * np.finfo(x.dtype).eps
    for _ in range(ROUNDS):
        squares, slope = _secular(x, steps, strength, kind(theta))
        move = _climbed(squares, slope, tolerance)
        if move == 0:
            break
        theta += move
    _multiply(x, steps, strength, kind(theta))


@njit(**PARALLEL)
def _shrink_large_metric(x, steps, strength, cut):
    """Blocks prox kernel: sparse group lasso prox with a step per entry, of one large row block in all threads."""
    if cut > 0:
        soft_threshold_metric(x, steps, cut)
    if strength == 0:
        return
    kind = x.dtype.type
    tiles = (x.size + TILE - 1) // TILE
    partial = np.empty((tiles, 2))
    for tile in prange(tiles):
        a, b = tile * TILE, (tile + 1) * TILE
        partial[tile, 0] = _start(x[a:b], steps[a:b], strength)
    theta, tolerance = np.sqrt(_total(partial, 0)), 4 * np.finfo(x.dtype).eps
    for _ in range(ROUNDS):
        for tile in prange(tiles):
            a, b = tile * TILE, (tile + 1) * TILE
            partial[tile, 0], partial[tile, 1] = _secular(x[a:b], steps[a:b], strength, kind(theta))
        move = _climbed(_total(partial, 0), _total(partial, 1), tolerance)
        if move == 0:
            break
        theta += move
    for tile in prange(tiles):
        a, b = tile * TILE, (tile + 1) * TILE
        _multiply(x[a:b], steps[a:b], strength, kind(theta))
