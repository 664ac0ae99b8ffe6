"""Kernels of the prox of single entries: soft threshold and ridge shrinkage, in place on flat contiguous CPU memory.

soft(x, cut) is x - max(-cut, min(x, cut)). Threads share the entries in tiles, each of TILE entries.
"""

from numba import njit, prange

from structsparse.kernels.options import PARALLEL, SERIAL

TILE = 1 << 15  # number of entries in a tile; a tile and its step sizes fit the second-level CPU cache
ALONE = 1 << 18  # up to this number of entries, one thread is faster than several


@njit(**PARALLEL)
def soft_threshold(x, cut):
    """Single entries prox kernel: soft threshold (prox of l1), x <- x - max(-cut, min(x, cut))."""
    if x.size <= ALONE:
        _soft(x, cut)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        _soft(x[tile * TILE : (tile + 1) * TILE], cut)


@njit(**PARALLEL)
def soft_threshold_metric(x, steps, strength):
    """Single entries prox kernel: soft threshold at strength * steps, with a step per entry.

    `strength` must be positive."""
    if x.size <= ALONE:
        _soft_metric(x, steps, strength)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        _soft_metric(x[tile * TILE : (tile + 1) * TILE], steps[tile * TILE : (tile + 1) * TILE], strength)


@njit(**PARALLEL)
def shrink_metric(x, steps, strength):
    """Single entries prox kernel: ridge prox with a step per entry, x <- x / (1 + strength * steps).

    `strength` must be positive.
    """
    if x.size <= ALONE:
        _shrink_entries(x, steps, strength)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        _shrink_entries(x[tile * TILE : (tile + 1) * TILE], steps[tile * TILE : (tile + 1) * TILE], strength)


@njit(**PARALLEL)
def shrink_and_shorten(x, steps, strength, shorter):
    """Single entries prox kernel: ridge prox beside another penalty, x <- x / (1 + strength * steps).

    `shorter` gets steps / (1 + strength * steps): the steps for the prox of the other penalty."""
    if x.size <= ALONE:
        _shrink_and_shorten(x, steps, strength, shorter)
        return
    for tile in prange((x.size + TILE - 1) // TILE):
        a, b = tile * TILE, (tile + 1) * TILE
        _shrink_and_shorten(x[a:b], steps[a:b], strength, shorter[a:b])


@njit(**SERIAL)
def _soft(x, cut):
    """Single entries prox kernel: soft threshold of the entries of one tile."""
    for i in range(x.size):
        x[i] -= min(max(x[i], -cut), cut)


@njit(**SERIAL)
def _soft_metric(x, steps, strength):
    """Single entries prox kernel: soft threshold of the entries of one tile, with a step per entry."""
    for i in range(x.size):
        cut = strength * steps[i]
        x[i] -= min(max(x[i], -cut), cut)


@njit(**SERIAL)
def _shrink_entries(x, steps, strength):
    """Single entries prox kernel: ridge prox of the entries of one tile, with a step per entry."""
    one = x.dtype.type(1)
    for i in range(x.size):
        x[i] /= one + strength * steps[i]


@njit(**SERIAL)
def _shrink_and_shorten(x, steps, strength, shorter):
    """Single entries prox kernel: ridge prox of one tile, and the steps for the prox of another penalty."""
    one = x.dtype.type(1)
    for i in range(x.size):
        shorter[i] = one / (one / steps[i] + strength)  # this formula holds even for an infinite step
        x[i] /= one + strength * steps[i]
