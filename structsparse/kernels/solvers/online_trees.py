"""One sentence after another: score all arcs, find the gold tree's best rival, move at once. On the CPU, one thread.

An arc's features are rows of a table of single weights, ids[offsets[a] : offsets[a + 1]]; the arcs of a sentence of n
words go by modifier, then by head, n * n of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.structures.best_trees import room, solve
from structsparse.kernels.weights.bags import _prefetcher

AHEAD = 16  # rows, while those of wrong arcs are gone through one by one
_fetch = _prefetcher(writing=1)


class Corpus(NamedTuple):
    """Sentence s has the words begins[s] : begins[s + 1], whose heads are gold, and the arcs from arcs[s] on."""

    ids: np.ndarray  # int32 [occurrences]
    offsets: np.ndarray  # int64 [arcs + 1]
    begins: np.ndarray  # int64 [sentences + 1]
    gold: np.ndarray  # int64 [words]
    arcs: np.ndarray  # int64 [sentences + 1]


class Scratch(NamedTuple):
    counts: np.ndarray  # int16 [rows], 0 before and after
    moving: np.ndarray  # int32 [most features of a wrong tree and its gold one]
    amounts: np.ndarray  # int16, as many
    longest: int  # words of a sentence


@njit(**PLAIN)
def sweep(corpus, order, weights, past, projective, single, rule, scratch, clock):
    """Go through the sentences `order`, `clock` of which lie behind.

    -> sum of losses, sum of steps, change of the number of weights that are not zero."""
    work, crossing, nested = room(scratch.longest + 1, projective)
    scores, tree = np.empty_like(work), np.empty(scratch.longest + 1, np.int64)
    losses, taken, living = 0.0, 0.0, 0
    for done in range(len(order)):
        sentence = order[done]
        gold = corpus.gold[corpus.begins[sentence] : corpus.begins[sentence + 1]]
        first, size = corpus.arcs[sentence], len(gold) + 1
        own, rival = scores[:size, :size], tree[:size]
        score_arcs(corpus.ids, corpus.offsets, first, weights, own)
        right = _total(own, gold)
        _add_cost(own, gold, rule.cost)
        work[:size, :size] = own
        solve(work[:size, :size], projective, single, rival, crossing, nested)  # with all arcs allowed there is a tree
        loss = max(0.0, _total(own, rival[1:]) - right)
        moves, length = _difference(corpus, first, gold, rival, scratch)
        step = rule.rate if moves > 0 else 0.0
        if rule.passive and moves > 0:
            step *= min(rule.cap, loss / length)
        living += _move(scratch, moves, weights, past, step, step * (clock + done), rule.averaging)
        losses += loss
        taken += step
    return losses, taken, living


@njit(**PLAIN)
def score_arcs(ids, offsets, first, weights, scores):
    """scores [n + 1, n + 1] of the arcs from `first` on; what is no arc is forbidden."""
    size, arc = len(scores), first
    scores[0], begin = -np.inf, np.uint64(offsets[first])
    for m in range(1, size):
        for h in range(size):
            if h == m:
                scores[m, h] = -np.inf
                continue
            end, total = np.uint64(offsets[arc + 1]), 0.0
            for place in range(begin, end):
                total += weights[np.uint64(ids[place])]
            scores[m, h] = total
            begin, arc = end, arc + 1


@njit(**PLAIN)
def _total(scores, heads):
    total = 0.0
    for m in range(len(heads)):
        total += scores[m + 1, heads[m]]
    return total


@njit(**PLAIN)
def _add_cost(scores, gold, cost):
    if cost != 0:
        for m in range(len(gold)):
            keep = scores[m + 1, gold[m]]
            scores[m + 1] += cost
            scores[m + 1, gold[m]] = keep


@njit(**PLAIN)
def _difference(corpus, first, gold, rival, scratch):
    """The features of the gold tree minus those of the rival, without what is on both: rows to scratch.moving, and how
    often to scratch.amounts; how many there are, and their squared length."""
    words, many = len(gold), 0
    counts, moving, amounts = scratch.counts, scratch.moving, scratch.amounts
    for m in range(1, words + 1):
        right, wrong = gold[m - 1], rival[m]
        if right == wrong:
            continue
        for head, sign in ((right, 1), (wrong, -1)):
            arc = first + (m - 1) * words + head - (head > m)
            end = corpus.offsets[arc + 1]
            for place in range(corpus.offsets[arc], end):
                if place + AHEAD < end:
                    _fetch(counts, np.uint64(corpus.ids[place + AHEAD]))
                row = corpus.ids[place]
                counts[row] += sign
                moving[many] = row
                many += 1
    kept, length = 0, 0.0
    for k in range(many):
        row = moving[k]
        if counts[row] != 0:  # not so where it is met again
            moving[kept], amounts[kept] = row, counts[row]
            length += np.float64(counts[row]) ** 2
            counts[row] = 0
            kept += 1
    return kept, length


@njit(**PLAIN)
def _move(scratch, moves, weights, past, step, late, averaging):
    """How many more weights live then."""
    living, one = 0, weights.dtype.type(1)
    by, later = one * step, one * late
    for k in range(moves):
        if k + AHEAD < moves:
            coming = np.uint64(scratch.moving[k + AHEAD])
            _fetch(weights, coming)
            if averaging:
                _fetch(past, coming)
        row, amount = scratch.moving[k], scratch.amounts[k]
        living -= weights[row] != 0
        weights[row] += by * amount
        living += weights[row] != 0
        if averaging:
            past[row] += later * amount
    return living
