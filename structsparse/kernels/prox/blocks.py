"""Group lasso over row blocks on the CPU: proximal steps and sums, in place on flat contiguous float memory.

Row blocks are `offsets` (in rows) over a parameter of `width` entries a row. A thread takes whole blocks, about a
TILE of entries at a time, and finishes them while they lie in its cache; a block above LARGE is shared by all threads.
Pieces depend on sizes alone, so results do not depend on the number of threads. Sums are float64: in float32 a sum
over a million entries is wrong in the third digit. Only blocks of few entries (vectors.FEW) are summed in the
precision of the entries, which moves such a block by at most 1e-6 of itself.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels import vectors
from structsparse.kernels.options import PARALLEL, SERIAL, SUMS
from structsparse.kernels.prox.entries import _soft_metric, soft_threshold_metric

TILE = 1 << 15  # entries of a piece for one thread: with their steps they fit a second-level cache
ALONE = 1 << 18  # entries, up to which one thread is done before the others are awake on a busy machine
PORTION = 1 << 11  # entries of small blocks: with a factor each they fit a first-level cache
BEHIND = 128  # entries that vectors of small blocks may read or fill behind them
LINE = 64  # bytes of a vector
LEAST, MOST, FAINT = 1e-30, 1e30, 1e-12  # squares between are safe in float32; below, only FAINT thresholds matter
RUN = 1 << 18  # entries of a task of many blocks; with fewer, scheduling costs up to 6 %
LARGE = 1 << 21  # entries of a block that is worth all threads at once
ROUNDS = 60  # of Newton, at most: it converges within a dozen on ordinary input


@njit(**PARALLEL)
def shrink_blocks(x, offsets, width, weight, threshold, cut):
    """Sparse group lasso over row blocks: block g of x <- group prox of soft(x, cut) with threshold * weight[g]."""
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
    """Sparse group lasso over row blocks in the metric 1 / steps: block g of x <- group prox of soft(x, cut * steps)
    with strength * weight[g]."""
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
    """sums[g] <- sum of |x|^power (1 or 2) over row block g, for sums (float64) that are zero before."""
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
    """Sums past a cut: of the entries of row block g with |x| > cuts[g], sums[:, g] <- their number, and the sums of
    |x| - cut and of its square, for sums (float64) that are zero before."""
    if x.size <= ALONE:
        for g in range(cuts.size):
            sums[:, g] = _sums_past(x[offsets[g] * width : offsets[g + 1] * width], cuts[g])
        return
    for g in prange(cuts.size):
        sums[:, g] = _sums_past(x[offsets[g] * width : offsets[g + 1] * width], cuts[g])


@njit(**SUMS)
def _sums_past(x, cut):
    """Number of entries past a cut, and the sums of what is past it and of its square."""
    many, total, squares = 0.0, 0.0, 0.0
    for i in range(x.size):
        past = max(np.float64(abs(x[i])) - cut, 0.0)
        many += past > 0
        total += past
        squares += past * past
    return many, total, squares


@njit(**SERIAL)
def _tiles(offsets, width, entries):
    """First block and end block of each tile. Large blocks, which can only come last in a tile, are left out."""
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
    """Sum of |x|^power over a slice."""
    return vectors.square_sum(x, start, stop, ()) if power == 2 else vectors.absolute_sum(x, start, stop, ())


@njit(**SERIAL)
def _sum_tile(x, offsets, width, power, sums):
    """Sums of |x|^power over each row block of a tile."""
    for g in range(sums.size):
        sums[g] = _power_sum(x, offsets[g] * width, offsets[g + 1] * width, power)


@njit(**PARALLEL)
def _power_sum_large(x, power):
    """Sum of |x|^power over a large block, shared by all threads."""
    tiles = (x.size + TILE - 1) // TILE
    partial = np.empty((tiles, 1))
    for tile in prange(tiles):
        partial[tile, 0] = _power_sum(x, tile * TILE, min((tile + 1) * TILE, x.size), power)
    return _total(partial, 0)


@njit(**SERIAL)
def _squares(x, start, stop, cut):
    """Sum of the squares of soft(x, cut)."""
    return vectors.square_sum(x, start, stop, ()) if cut == 0 else vectors.soft_square_sum(x, start, stop, (cut,))


@njit(**SERIAL)
def _factor(squares, threshold):
    """The number that a group of that squared norm is multiplied by in the group prox."""
    if threshold == 0:
        return 1.0
    norm = np.sqrt(squares)
    return 0.0 if norm <= threshold else 1 - threshold / norm


@njit(**SERIAL)
def _scale(x, start, stop, cut, factor):
    """x <- soft(x, cut) * factor."""
    if cut == 0:
        vectors.multiply(x, start, stop, (factor,))
    else:
        vectors.soft_multiply(x, start, stop, (cut, factor))


@njit(**SERIAL)
def _shrink_tile(x, offsets, width, weight, threshold, cut):
    """Sparse group lasso over the row blocks of a tile: those of few entries in portions, the others one by one."""
    bounds, first = offsets * width, 0
    squares, factors, spread = np.empty(PORTION), np.empty(PORTION, x.dtype), np.empty(PORTION + BEHIND, x.dtype)
    two = bounds[-1] - bounds[0] <= weight.size * (vectors.TWO * LINE // x.itemsize)  # on average
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
    """A kernel that shrinks row blocks of few entries, compiled for one set of vector functions: choosing between them
    block by block would take as long as the work."""

    @njit(**SERIAL)
    def shrink(x, bounds, g, weight, threshold, cut, squares, factors, spread):
        """Shrink blocks in portions: all sums, then all factors, then all products. Returns the first block left."""
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
    """`_factor` of each group, without branches, so that roots and quotients are computed as vectors."""
    for g in range(squares.size):
        share, norm = threshold * weight[g], np.sqrt(squares[g])
        left = 0.0 if norm <= share else 1 - share / norm
        factors[g] = 1.0 if share == 0 else left


@njit(**PARALLEL)
def _shrink_large(x, threshold, cut):
    """Sparse group prox of one large block, shared by all threads."""
    tiles = (x.size + TILE - 1) // TILE
    partial = np.empty((tiles, 1))
    for tile in prange(tiles):
        partial[tile, 0] = _squares(x, tile * TILE, min((tile + 1) * TILE, x.size), cut)
    factor = x.dtype.type(_factor(_total(partial, 0), threshold))
    for tile in prange(tiles):
        _scale(x, tile * TILE, min((tile + 1) * TILE, x.size), cut, factor)


@njit(**SERIAL)
def _total(partial, column):
    """Sum of partial sums in a fixed order, whatever the number of threads."""
    total = 0.0
    for tile in range(partial.shape[0]):
        total += partial[tile, column]
    return total


# In the metric 1 / steps a living group becomes theta * p, where p = w / (theta + strength * steps) and theta solves
# |p| = 1. As 1 / |p| is increasing and concave in theta, Newton on 1 / |p| = 1 climbs to the root from any point left
# of it, such as |soft(w, strength * steps)|; from there on no entry of p exceeds 1.


@njit(**SUMS)
def _start(x, steps, strength):
    """The square of a lower bound of theta."""
    total = 0.0
    for i in range(x.size):
        cut = strength * steps[i]
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SUMS)
def _secular(x, steps, strength, theta):
    """|p|^2, and minus half of its derivative in theta."""
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
    """x <- theta * p, with zeros of positive sign."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for i in range(x.size):
        reach = strength * steps[i]
        x[i] = x[i] * (one if reach == 0 else theta / (theta + reach)) + zero


@njit(**SERIAL)
def _climbed(squares, slope, tolerance):
    """The Newton move of theta; zero once |p| is 1."""
    norm = np.sqrt(squares)
    return (norm - 1) * (squares / slope) if norm > 1 + tolerance else 0.0


@njit(**SERIAL)
def _shrink_tile_metric(x, steps, offsets, width, weight, strength, cut):
    """Sparse group lasso over the row blocks of a tile, in the metric 1 / steps."""
    for g in range(weight.size):
        a, b = offsets[g] * width, offsets[g + 1] * width
        _shrink_small_metric(x[a:b], steps[a:b], x.dtype.type(strength * weight[g]), cut)


@njit(**SERIAL)
def _shrink_small_metric(x, steps, strength, cut):
    """Sparse group prox of one block in the metric 1 / steps."""
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
    """Sparse group prox of one large block in the metric 1 / steps, shared by all threads."""
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
