"""Online tree kernels: perceptron and passive-aggressive learning of dependency parsers, on one thread.

Each sentence takes a search for a tree and an update of the weights. The search finds the best tree under the current
weights, with a cost added to wrong arcs. This tree is called the rival. Each feature has one weight, and arc a has the
features ids[offsets[a] : offsets[a + 1]]. A sentence of n words has n * n arcs, sorted by modifier, then by head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.structures.best_trees import room, solve
from structsparse.kernels.weights.bags import prefetcher

AHEAD = 16  # number of loop iterations by which a prefetch of array entries runs ahead
_fetch = prefetcher(writing=1)


class ParsedCorpus(NamedTuple):
    """Online tree kernel: a parsed corpus as flat arrays.

    Sentence s has the words begins[s] to begins[s + 1] - 1, and the arcs arcs[s] to arcs[s + 1] - 1."""

    ids: np.ndarray  # int32 [occurrences]: the active features of all arcs, arc after arc
    offsets: np.ndarray  # int64 [arcs + 1]: where the features of each arc begin in `ids`
    begins: np.ndarray  # int64 [sentences + 1]: the first word of each sentence
    gold: np.ndarray  # int64 [words]: the gold head of each word
    arcs: np.ndarray  # int64 [sentences + 1]: the first arc of each sentence


class TreeScratch(NamedTuple):
    """Online tree kernel: work memory for the feature counts of the gold tree minus those of the rival.

    The rival is the best tree that the search finds."""

    counts: np.ndarray  # int16 [features]: gold minus rival count of each feature; 0 between updates
    moving: np.ndarray  # int32: the features whose weights change; room for all features of gold and rival tree
    amounts: np.ndarray  # int16, as long as `moving`: gold minus rival count of each feature in `moving`
    longest: int  # number of words in the longest sentence


@njit(**PLAIN)
def sweep(corpus, order, weights, past, projective, single, rule, scratch, clock):
    """Online tree kernel: learn a parser from the sentences in the list `order`, one after the other.

    The caller has already processed `clock` sentences. `projective` and `single` tell whether trees must be projective,
    and whether they must have a single root. Returns the sum of losses, the sum of step sizes, and the change of the
    count of nonzero weights."""
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
    """Online tree kernel: compute the scores of all arcs of a sentence of n words.

    Fills `scores`, an array of shape [n + 1, n + 1] with a row per modifier and a column per head. `first` is the index
    of the first arc of the sentence in the corpus. Entries that are not arcs get minus infinity."""
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
    """Online tree kernel: the score of a dependency tree, which is the sum of the scores of its arcs."""
    total = 0.0
    for m in range(len(heads)):
        total += scores[m + 1, heads[m]]
    return total


@njit(**PLAIN)
def add_cost(scores, gold, cost):
    """Online tree kernel: add a cost to the score of every arc that is not in the gold tree."""
    if cost != 0:
        for m in range(len(gold)):
            gold_score = scores[m + 1, gold[m]]
            scores[m + 1] += cost
            scores[m + 1, gold[m]] = gold_score


@njit(**PLAIN)
def _difference(corpus, first, gold, rival, scratch):
    """Online tree kernel: the feature counts of the gold tree minus the feature counts of the rival tree.

    Writes the features to scratch.moving, and the differences to scratch.amounts. Returns the count of features with a
    nonzero difference, and the sum of the squared differences."""
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
        if counts[row] != 0:  # 0 if both trees have equal counts, or if the feature was seen earlier in the loop
            moving[distinct], amounts[distinct] = row, counts[row]
            length += np.float64(counts[row]) ** 2
            counts[row] = 0
            distinct += 1
    return distinct, length


@njit(**PLAIN)
def _move(scratch, moves, weights, past, step, late, averaging):
    """Online tree kernel: update the weights of the features in scratch.moving.

    The gold minus rival count of a feature is its entry in scratch.amounts. Each weight gains `step` times this count.
    The sum for averaging gains `late` times this count, where `late` is `step` times the count of earlier sentences.
    Returns the change of the count of nonzero weights."""
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
