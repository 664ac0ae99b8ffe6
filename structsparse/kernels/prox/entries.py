"""Proximal steps of single entries on the CPU: soft threshold and shrinkage, in place on flat contiguous memory."""

from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL

TILE = 1 << 15  # entries of a piece for one thread: with their steps they fit a second-level cache
ALONE = 1 << 18  # entries, up to which one thread is done before the others are awake on a busy machine


@njit(**PARALLEL)
def soft_threshold(x, cut):
    """Soft threshold: x <- soft(x, cut)."""
    if x.size <= ALONE:
        _soft(x, cut)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        _soft(x[tile * TILE : (tile + 1) * TILE], cut)


@njit(**PARALLEL)
def soft_threshold_metric(x, steps, strength):
    """Soft threshold with a step per entry: x <- soft(x, strength * steps), for a strength above zero."""
    if x.size <= ALONE:
        _soft_metric(x, steps, strength)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        _soft_metric(x[tile * TILE : (tile + 1) * TILE], steps[tile * TILE : (tile + 1) * TILE], strength)


@njit(**PARALLEL)
def shrink_metric(x, steps, strength):
    """Prox of squares with a step per entry: x <- x / (1 + strength * steps), for a strength above zero."""
    if x.size <= ALONE:
        _shrink_entries(x, steps, strength)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        _shrink_entries(x[tile * TILE : (tile + 1) * TILE], steps[tile * TILE : (tile + 1) * TILE], strength)


@njit(**PARALLEL)
def shrink_and_shorten(x, steps, strength, shorter):
    """`shrink_metric`, and shorter <- steps / (1 + strength * steps), the steps of a penalty beside the squares."""
    if x.size <= ALONE:
        _shrink_and_shorten(x, steps, strength, shorter)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        a, b = tile * TILE, (tile + 1) * TILE
        _shrink_and_shorten(x[a:b], steps[a:b], strength, shorter[a:b])


@njit(**SERIAL)
def _soft(x, cut):
    """`soft_threshold` of one piece."""
    for i in range(x.size):
        x[i] -= min(max(x[i], -cut), cut)


@njit(**SERIAL)
def _soft_metric(x, steps, strength):
    """`soft_threshold_metric` of one piece."""
    for i in range(x.size):
        cut = strength * steps[i]
        x[i] -= min(max(x[i], -cut), cut)


@njit(**SERIAL)
def _shrink_entries(x, steps, strength):
    """`shrink_metric` of one piece."""
    one = x.dtype.type(1)
    for i in range(x.size):
        x[i] /= one + strength * steps[i]


@njit(**SERIAL)
def _shrink_and_shorten(x, steps, strength, shorter):
    """`shrink_and_shorten` of one piece."""
    one = x.dtype.type(1)
    for i in range(x.size):
        shorter[i] = one / (one / steps[i] + strength)  # right for an infinite step, too
        x[i] /= one + strength * steps[i]
