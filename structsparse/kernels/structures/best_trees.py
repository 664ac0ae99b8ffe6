"""The best and the k best dependency trees of a batch on the CPU; parallel over sentences.

The k best are found by branching (Lawler 1972): the trees other than the best one part in n sets, the m-th of which
has the heads of the best for the tokens before m and another one for m. The best of every set is looked for at once,
and the best of all sets is the next tree, whose set parts in the same way. Of k trees those that are still wanted are
kept; a set whose tokens, each with its best head, would not make up for the last of them is not looked at.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.structures.chain import chunk_count
from structsparse.kernels.structures.chu_liu_edmonds import best as best_crossing
from structsparse.kernels.structures.chu_liu_edmonds import room as crossing_room
from structsparse.kernels.structures.eisner import best as best_nested
from structsparse.kernels.structures.eisner import room as nested_room


@njit(**PLAIN)
def room(size, projective):
    """A matrix to work on, and what either search needs."""
    crossing, nested = (0, size) if projective else (size, 0)
    return np.empty((size, size)), crossing_room(crossing), nested_room(nested)


@njit(**PLAIN)
def solve(work, projective, single, heads, crossing, nested):
    """Fill heads [n + 1]; whether there is a tree."""
    if projective:
        return best_nested(work, single, heads, nested)
    return best_crossing(work, single, heads, crossing)


@njit(**PLAIN)
def _best_chunk(mine, scores, lengths, projective, single, heads, found):
    work, crossing, nested = room(scores.shape[1], projective)
    tree = np.empty(scores.shape[1], np.int64)
    for b in mine:
        size = lengths[b] + 1
        own = work[:size, :size]
        own[:] = scores[b, :size, :size]
        heads[b] = 0
        found[b] = solve(own, projective, single, tree[:size], crossing, nested)
        if found[b]:
            heads[b, : size - 1] = tree[1:size]


@njit(parallel=True, **PLAIN)
def best(scores, lengths, projective, single, heads, found):
    """Fill heads [batch, n] with the best trees, 0 beyond the length; found [batch] says whether there is one."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # waking the threads would cost more than they save
        _best_chunk(range(len(lengths)), scores, lengths, projective, single, heads, found)
        return
    for c in prange(chunks):
        _best_chunk(range(c, len(lengths), chunks), scores, lengths, projective, single, heads, found)


# --- the k best


@njit(**PLAIN)
def _restrict(scores, tree, place, barred, work):
    """The scores with all heads forbidden but the tree's for tokens before `place`, and those barred for it."""
    work[:] = scores
    for m in range(1, place):
        work[m] = -np.inf
        work[m, tree[m]] = scores[m, tree[m]]
    if place > 0:
        for h in range(len(tree)):
            work[place, h] = -np.inf if barred[h] else work[place, h]


@njit(**PLAIN)
def _worth(scores, tree):
    total = 0.0
    for m in range(1, len(tree)):
        total += scores[m, tree[m]]
    return total


@njit(**PLAIN)
def _hopes(scores):
    """What the tokens from m on are worth together, each with its best head [n + 2]."""
    size = len(scores)
    hopes = np.zeros(size + 1)
    for m in range(size - 1, 0, -1):
        best = -np.inf
        for h in range(size):
            best = scores[m, h] if h != m and scores[m, h] > best else best
        hopes[m] = hopes[m + 1] + best
    return hopes


@njit(**PLAIN)
def _hope(row, place, barred):
    """What the best head of a token is worth that is not barred."""
    best = -np.inf
    for h in range(len(row)):
        best = row[h] if h != place and not barred[h] and row[h] > best else best
    return best


@njit(**PLAIN)
def _keep(tree, total, place, barred, count, wanted, pool):
    """Put the best tree of a set into the pool, if it is full for the last one there; returns how many are in it."""
    trees, totals, places, bars = pool
    slot = count
    if count == wanted:
        slot = np.argmin(totals[:count])
        if not total > totals[slot]:
            return count
    trees[slot, : len(tree)], totals[slot], places[slot], bars[slot, : len(tree)] = tree, total, place, barred
    return max(count, slot + 1)


@njit(**PLAIN)
def _part(scores, hopes, first, parent, barred, count, wanted, projective, single, rooms, pool):
    """Part the set of a tree, of which the heads from `first` on are free; returns how many are in the pool."""
    work, crossing, nested = rooms
    tree, fixed = np.empty(len(parent), np.int64), _worth(scores, parent[:first])
    for place in range(first, len(parent)):
        barred[parent[place]] = True
        hope = fixed + _hope(scores[place], place, barred) + hopes[place + 1]
        if count < wanted or hope > pool[1][:count].min():
            _restrict(scores, parent, place, barred, work)
            if solve(work, projective, single, tree, crossing, nested):
                count = _keep(tree, _worth(scores, tree), place, barred, count, wanted, pool)
        barred[:] = False
        fixed += scores[place, parent[place]]
    return count


@njit(**PLAIN)
def _best_k(scores, projective, single, rooms, pool, heads, totals):
    """Fill heads [k, n] and totals [k]; the pool holds the best trees of the sets, as many as are still wanted."""
    work, crossing, nested = rooms
    trees, worths, places, bars = pool
    size, hopes = len(scores), _hopes(scores)
    parent, barred = np.empty(size, np.int64), np.zeros(size, np.bool_)
    work[:] = scores
    count = 0
    if solve(work, projective, single, parent, crossing, nested):
        count = _keep(parent, _worth(scores, parent), 1, barred, 0, 1, pool)
    for rank in range(len(totals)):
        if count == 0:
            break
        slot = np.argmax(worths[:count])
        parent[:], first, barred[:] = trees[slot, :size], places[slot], bars[slot, :size]
        heads[rank], totals[rank] = parent[1:], worths[slot]
        count -= 1
        trees[slot], worths[slot], places[slot], bars[slot] = trees[count], worths[count], places[count], bars[count]
        wanted = len(totals) - rank - 1
        if wanted > 0:
            count = _part(scores, hopes, first, parent, barred, count, wanted, projective, single, rooms, pool)


@njit(**PLAIN)
def _best_k_chunk(mine, scores, lengths, projective, single, heads, totals):
    size, k = scores.shape[1], totals.shape[1]
    work, crossing, nested = room(size, projective)
    pool = np.empty((k, size), np.int64), np.empty(k), np.empty(k, np.int64), np.empty((k, size), np.bool_)
    for b in mine:
        n = lengths[b]
        rooms = work[: n + 1, : n + 1], crossing, nested
        heads[b], totals[b] = 0, -np.inf
        own = scores[b, : n + 1, : n + 1].astype(np.float64)
        _best_k(own, projective, single, rooms, pool, heads[b, :, :n], totals[b])


@njit(parallel=True, **PLAIN)
def best_k(scores, lengths, projective, single, heads, totals):
    """Fill heads [batch, k, n] with the best trees and totals [batch, k], minus infinity where there are fewer."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _best_k_chunk(range(len(lengths)), scores, lengths, projective, single, heads, totals)
        return
    for c in prange(chunks):
        _best_k_chunk(range(c, len(lengths), chunks), scores, lengths, projective, single, heads, totals)
