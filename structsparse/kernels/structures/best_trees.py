"""Best-trees kernels: the best and the k best dependency trees of a batch of sentences, projective or nonprojective.

The k best trees of a sentence are found by branching (Lawler 1972):

- The trees other than the best tree are divided into sets, one for each token m. The trees in set m agree with the best
  tree on the heads of all tokens before m, and differ from it in the head of m.
- The best tree of every set is computed. The best of these trees is the next tree. Its set is divided again.
- A pool keeps the best trees of the sets, as many as are still needed.
- A set is skipped if even the sum of the best head scores would not beat the worst tree in the pool.
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
    """Best-trees kernel: work memory of `solve` for sentences of at most size - 1 tokens.

    Returns a score matrix, memory for Chu-Liu-Edmonds and memory for Eisner's algorithm."""
    crossing, nested = (0, size) if projective else (size, 0)
    return np.empty((size, size)), crossing_room(crossing), nested_room(nested)


@njit(**PLAIN)
def solve(work, projective, single, heads, crossing, nested):
    """Best-trees kernel: fill `heads` with the best tree of one sentence; returns whether a tree exists.

    The sentence has n tokens, and `heads` the shape [n + 1]. `work` holds the arc scores, with a row per modifier and a
    column per head, and is overwritten. `projective` and `single` tell whether the tree must be projective, and whether
    it must have a single root."""
    if projective:
        return best_nested(work, single, heads, nested)
    return best_crossing(work, single, heads, crossing)


@njit(**PLAIN)
def _best_chunk(sentences, scores, lengths, projective, single, heads, exists):
    """Best-trees kernel: fill `heads` with the best trees of the given sentences, one chunk of the batch."""
    work, crossing, nested = room(scores.shape[1], projective)
    tree = np.empty(scores.shape[1], np.int64)
    for b in sentences:
        size = lengths[b] + 1
        arcs = work[:size, :size]
        arcs[:] = scores[b, :size, :size]
        heads[b] = 0
        exists[b] = solve(arcs, projective, single, tree[:size], crossing, nested)
        if exists[b]:
            heads[b, : size - 1] = tree[1:size]


@njit(parallel=True, **PLAIN)
def best(scores, lengths, projective, single, heads, exists):
    """Best-trees kernel: fill heads [batch, n] with the best tree of each sentence, and 0 beyond its length.

    Fills exists [batch] with whether a sentence has a tree."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # one thread is faster for one chunk
        _best_chunk(range(len(lengths)), scores, lengths, projective, single, heads, exists)
        return
    for c in prange(chunks):
        _best_chunk(range(c, len(lengths), chunks), scores, lengths, projective, single, heads, exists)


# --- the k best trees


@njit(**PLAIN)
def _restrict(scores, tree, place, barred, work):
    """Best-trees kernel: restrict arc scores to a set of trees, with minus infinity for forbidden arcs.

    `work` gets the restricted scores. Tokens before `place` keep the heads of `tree`. Token `place` must not have a
    head that the mask `barred` marks."""
    work[:] = scores
    for m in range(1, place):
        work[m] = -np.inf
        work[m, tree[m]] = scores[m, tree[m]]
    if place > 0:
        for h in range(len(tree)):
            work[place, h] = -np.inf if barred[h] else work[place, h]


@njit(**PLAIN)
def _tree_score(scores, tree):
    """Best-trees kernel: the score of a tree, which is the sum of the scores of its arcs."""
    total = 0.0
    for m in range(1, len(tree)):
        total += scores[m, tree[m]]
    return total


@njit(**PLAIN)
def _bounds(scores):
    """Best-trees kernel: upper bounds for the scores of trees, an array of shape [n + 2] for n tokens.

    Entry m is the sum, over token m and all later tokens, of the score of the token's best head."""
    size = len(scores)
    bounds = np.zeros(size + 1)
    for m in range(size - 1, 0, -1):
        best = -np.inf
        for h in range(size):
            best = scores[m, h] if h != m and scores[m, h] > best else best
        bounds[m] = bounds[m + 1] + best
    return bounds


@njit(**PLAIN)
def _bound(row, place, barred):
    """Best-trees kernel: the highest score among the heads of token `place`, except those in the mask `barred`."""
    best = -np.inf
    for h in range(len(row)):
        best = row[h] if h != place and not barred[h] and row[h] > best else best
    return best


@njit(**PLAIN)
def _add_to_pool(tree, total, place, barred, count, needed, pool):
    """Best-trees kernel: add a tree to the pool of candidates for the k best trees; returns the new pool size.

    If the pool already holds `needed` trees, it drops the worst tree."""
    trees, totals, places, bars = pool
    slot = count
    if count == needed:
        slot = np.argmin(totals[:count])
        if not total > totals[slot]:
            return count
    trees[slot, : len(tree)], totals[slot], places[slot], bars[slot, : len(tree)] = tree, total, place, barred
    return max(count, slot + 1)


@njit(**PLAIN)
def _partition(scores, bounds, first, parent, barred, count, needed, projective, single, rooms, pool):
    """Best-trees kernel: divide a set of trees into smaller sets (Lawler), and add the best tree of each to the pool.

    The best tree of the given set is `parent`. All trees of this set have the heads of `parent` for the tokens before
    `first`. Returns the new number of trees in the pool; the old number is `count`."""
    work, crossing, nested = rooms
    tree, fixed = np.empty(len(parent), np.int64), _tree_score(scores, parent[:first])
    for place in range(first, len(parent)):
        barred[parent[place]] = True
        bound = fixed + _bound(scores[place], place, barred) + bounds[place + 1]
        if count < needed or bound > pool[1][:count].min():
            _restrict(scores, parent, place, barred, work)
            if solve(work, projective, single, tree, crossing, nested):
                count = _add_to_pool(tree, _tree_score(scores, tree), place, barred, count, needed, pool)
        barred[:] = False
        fixed += scores[place, parent[place]]
    return count


@njit(**PLAIN)
def _best_k(scores, projective, single, rooms, pool, heads, totals):
    """Best-trees kernel: fill heads [k, n] and totals [k] with the k best trees of one sentence and their scores.

    The pool is work memory for candidate trees."""
    work, crossing, nested = rooms
    trees, pool_totals, places, bars = pool
    size, bounds = len(scores), _bounds(scores)
    parent, barred = np.empty(size, np.int64), np.zeros(size, np.bool_)
    work[:] = scores
    count = 0
    if solve(work, projective, single, parent, crossing, nested):
        count = _add_to_pool(parent, _tree_score(scores, parent), 1, barred, 0, 1, pool)
    for rank in range(len(totals)):
        if count == 0:
            break
        slot = np.argmax(pool_totals[:count])
        parent[:], first, barred[:] = trees[slot, :size], places[slot], bars[slot, :size]
        heads[rank], totals[rank] = parent[1:], pool_totals[slot]
        count -= 1
        trees[slot], pool_totals[slot], places[slot], bars[slot] = (
            trees[count],
            pool_totals[count],
            places[count],
            bars[count],
        )
        needed = len(totals) - rank - 1
        if needed > 0:
            count = _partition(scores, bounds, first, parent, barred, count, needed, projective, single, rooms, pool)


@njit(**PLAIN)
def _best_k_chunk(sentences, scores, lengths, projective, single, heads, totals):
    """Best-trees kernel: fill `heads` with the k best trees of the given sentences, one chunk of the batch."""
    size, k = scores.shape[1], totals.shape[1]
    work, crossing, nested = room(size, projective)
    pool = np.empty((k, size), np.int64), np.empty(k), np.empty(k, np.int64), np.empty((k, size), np.bool_)
    for b in sentences:
        n = lengths[b]
        rooms = work[: n + 1, : n + 1], crossing, nested
        heads[b], totals[b] = 0, -np.inf
        arcs = scores[b, : n + 1, : n + 1].astype(np.float64)
        _best_k(arcs, projective, single, rooms, pool, heads[b, :, :n], totals[b])


@njit(parallel=True, **PLAIN)
def best_k(scores, lengths, projective, single, heads, totals):
    """Best-trees kernel: fill heads [batch, k, n] and totals [batch, k] with the k best trees and their scores.

    If a sentence has fewer than k trees, the totals of the missing trees are minus infinity."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _best_k_chunk(range(len(lengths)), scores, lengths, projective, single, heads, totals)
        return
    for c in prange(chunks):
        _best_k_chunk(range(c, len(lengths), chunks), scores, lengths, projective, single, heads, totals)
