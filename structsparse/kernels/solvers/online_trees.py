"""Online learning of dependency parsers (perceptron, passive-aggressive): best tree and update, sentence by sentence.

The rival of a sentence is its best tree under the current weights, with a cost for wrong arcs. Each feature has one
weight; arc a has the features ids[offsets[a] : offsets[a + 1]]. The n * n arcs of a sentence of n words are ordered by
modifier, then by head. One thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.structures.best_trees import room, solve
from structsparse.kernels.weights.bags import prefetcher

AHEAD = 16  # weights to prefetch in advance
_fetch = prefetcher(writing=1)


class ParsedCorpus(NamedTuple):
    """A parsed corpus: sentence s has words begins[s] : begins[s + 1] with gold heads, and arcs from arcs[s] on."""

    ids: np.ndarray  # int32 [occurrences] active features
    offsets: np.ndarray  # int64 [arcs + 1]
    begins: np.ndarray  # int64 [sentences + 1]
    gold: np.ndarray  # int64 [words] gold heads
    arcs: np.ndarray  # int64 [sentences + 1] first arc


class TreeScratch(NamedTuple):
    """Work memory for the difference between the feature counts of two trees."""

    counts: np.ndarray  # int16 [features], 0 before and after a call
    moving: np.ndarray  # int32 [most features of a rival and a gold tree]: the features that change
    amounts: np.ndarray  # int16: gold minus rival count of each feature in `moving`
    longest: int  # words of the longest sentence


@njit(**PLAIN)
def sweep(corpus, order, weights, past, projective, single, rule, scratch, clock):
    """Learn a parser from the sentences `order`; `clock` sentences have been seen before.

    Returns the sum of losses, the sum of step sizes, and the change of the number of nonzero weights."""
    work, crossing, nested = room(scratch.longest + 1, projective)
    scores, tree = np.empty_like(work), np.empty(scratch.longest + 1, np.int64)
    losses, taken, living = 0.0, 0.0, 0
    for done in range(len(order)):
        sentence = order[done]
        gold = corpus.gold[corpus.begins[sentence] : corpus.begins[sentence + 1]]
        first, size = corpus.arcs[sentence], len(gold) + 1
        arcs, rival = scores[:size, :size], tree[:size]
        score_arcs(corpus.ids, corpus.offsets, first, weights, arcs)
        gold_score = tree_score(arcs, gold)
        add_cost(arcs, gold, rule.cost)
        work[:size, :size] = arcs
        solve(work[:size, :size], projective, single, rival, crossing, nested)  # all arcs are allowed, so a tree exists
        loss = max(0.0, tree_score(arcs, rival[1:]) - gold_score)
        changed, length = _difference(corpus, first, gold, rival, scratch)
        step = rule.rate if changed > 0 else 0.0
        if rule.passive and changed > 0:
            step *= min(rule.cap, loss / length)
        living += _move(scratch, changed, weights, past, step, step * (clock + done), rule.averaging)
        losses += loss
        taken += step
    return losses, taken, living


@njit(**PLAIN)
def score_arcs(ids, offsets, first, weights, scores):
    """Fill the arc scores [n + 1, n + 1] of a sentence, whose arcs begin at `first`; non-arcs get minus infinity."""
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
def tree_score(scores, heads):
    """The score of a dependency tree: the sum of the scores of its arcs."""
    total = 0.0
    for m in range(len(heads)):
        total += scores[m + 1, heads[m]]
    return total


@njit(**PLAIN)
def add_cost(scores, gold, cost):
    """Cost augmentation: add a cost to the score of every arc that is not gold."""
    if cost != 0:
        for m in range(len(gold)):
            gold_score = scores[m + 1, gold[m]]
            scores[m + 1] += cost
            scores[m + 1, gold[m]] = gold_score


@njit(**PLAIN)
def _difference(corpus, first, gold, rival, scratch):
    """Feature counts of the gold tree minus the rival tree: features in scratch.moving, counts in scratch.amounts.

    Returns the number of features with a nonzero difference, and the sum of the squared differences."""
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
    distinct, length = 0, 0.0
    for k in range(many):
        row = moving[k]
        if counts[row] != 0:  # zero if the feature was listed before
            moving[distinct], amounts[distinct] = row, counts[row]
            length += np.float64(counts[row]) ** 2
            counts[row] = 0
            distinct += 1
    return distinct, length


@njit(**PLAIN)
def _move(scratch, moves, weights, past, step, late, averaging):
    """Update weights: add step * amount for each feature in `moving`; returns the change of the nonzero count."""
    living, one = 0, weights.dtype.type(1)
    move, weighted = one * step, one * late
    for k in range(moves):
        if k + AHEAD < moves:
            ahead = np.uint64(scratch.moving[k + AHEAD])
            _fetch(weights, ahead)
            if averaging:
                _fetch(past, ahead)
        row, amount = scratch.moving[k], scratch.amounts[k]
        living -= weights[row] != 0
        weights[row] += move * amount
        living += weights[row] != 0
        if averaging:
            past[row] += weighted * amount
    return living
