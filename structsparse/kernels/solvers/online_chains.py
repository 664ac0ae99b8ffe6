"""Online learning of taggers: one pass over sentences, each scored, compared with its best rival and learnt from.

A feature's row of weights is found directly, or in a growing table through its slot. A feature without a slot has
weight zero, and gets a slot when a sentence first changes it. One thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.weights.bags import PLAIN, add_row, fetch_row

TOKENS_AHEAD = 2  # the rows of this many tokens later are prefetched while a token is scored
LANES, AT_ONCE = 8, 4  # labels are padded to whole vectors; predecessors are compared four at a time


class TaggedCorpus(NamedTuple):
    """Sentences: s has the tokens begins[s] : begins[s + 1], token t the features ids[offsets[t] : offsets[t + 1]]."""

    ids: np.ndarray  # int32 [occurrences]
    offsets: np.ndarray  # int64 [tokens + 1]
    begins: np.ndarray  # int64 [sentences + 1]
    gold: np.ndarray  # int64 [tokens]


class FeatureRows(NamedTuple):
    """The weights of features. If `slots` is empty, feature f has row f; else row slots[f], none if that is -1."""

    weights: np.ndarray  # [rows, labels]
    past: np.ndarray  # [rows, labels] sum of changes times the number of sentences before each; empty: no mean
    slots: np.ndarray  # int32 [features] or [0]
    features: np.ndarray  # int64 [rows] or [0], the feature of each row


class LabelWeights(NamedTuple):
    """The weights of labels and label pairs, and the sums of their changes as in `FeatureRows`."""

    transitions: np.ndarray  # [labels, labels] from, to
    start: np.ndarray  # [labels]
    end: np.ndarray  # [labels]
    past_transitions: np.ndarray
    past_start: np.ndarray
    past_end: np.ndarray


class UpdateRule(NamedTuple):
    """An online update: its step is `rate`, or if passive-aggressive rate * min(cap, loss / squared length)."""

    cost: float  # added to the score of a wrong label in the search for the rival
    rate: float
    cap: float
    passive: bool
    averaging: bool  # whether sums for the mean are kept


class ChainScratch(NamedTuple):
    """Work memory for the longest sentence; `width` is the number of labels, padded to whole vectors."""

    emissions: np.ndarray  # [longest, width]
    scores: np.ndarray  # [longest, width] of the best path to each label
    arrivals: np.ndarray  # [width]
    transitions: np.ndarray  # [width, width]
    rival: np.ndarray  # int64 [longest]
    counts: np.ndarray  # int32 [most occurrences of a sentence, labels]
    moving: np.ndarray  # int64 [most occurrences of a sentence], the rows that change
    place: np.ndarray  # int32 [rows], where a row stands in `moving`; -1 before and after
    pairs: np.ndarray  # int32 [labels, labels], 0 before and after


@njit(**PLAIN)
def sweep(corpus, order, done, rows, held, labels, rule, scratch, clock):
    """Learn a tagger from the sentences order[done:]; `clock` sentences have been seen before order[0].

    It ends early where a growing table has no room for all features of the next sentence. Returns the number of
    sentences done, rows held, the sum of losses, the sum of steps, and the change of the number of nonzero weights."""
    scratch.transitions[:] = -np.inf
    growing = len(rows.slots) > 0
    losses, taken, living = 0.0, 0.0, 0
    while done < len(order):
        sentence = order[done]
        first, last = corpus.begins[sentence], corpus.begins[sentence + 1]
        if growing and held + corpus.offsets[last] - corpus.offsets[first] > len(rows.weights):
            break
        gold, rival = corpus.gold[first:last], scratch.rival[: last - first]
        loss = _rival(corpus, first, last, rows, labels, rule.cost, scratch)
        step = 0.0 if rule.passive else rule.rate
        if _differ(gold, rival):
            if growing:
                held = _add_rows(corpus, first, gold, rival, rows, held)
            if rule.passive:
                length = _length(corpus, first, gold, rival, rows, scratch)
                step = rule.rate * min(rule.cap, loss / length) if length > 0 else 0.0
            late = step * (clock + done)
            living += _move_rows(corpus, first, gold, rival, rows, step, late, rule.averaging)
            _move_labels(gold, rival, labels, step, late, rule.averaging)
        losses += loss
        taken += step
        done += 1
    return done, held, losses, taken, living


@njit(**PLAIN)
def _rival(corpus, first, last, rows, labels, cost, scratch):
    """Fill scratch.rival with the best labels, each wrong one credited with `cost`; returns the loss."""
    emissions, gold, rival = scratch.emissions[: last - first], corpus.gold[first:last], scratch.rival[: last - first]
    emissions[:] = 0
    if len(rows.slots) > 0:
        _score_held(corpus.ids, corpus.offsets, first, last, rows.weights, rows.slots, emissions)
    else:
        _score(corpus.ids, corpus.offsets, first, last, rows.weights, emissions)
    gold_score = _total(emissions, gold, labels)
    if cost != 0:
        for t in range(len(gold)):
            gold_emission = emissions[t, gold[t]]
            emissions[t] += emissions.dtype.type(cost)
            emissions[t, gold[t]] = gold_emission
    _best(emissions, labels, scratch, rival)
    return max(0.0, _total(emissions, rival, labels) - gold_score)


@njit(**PLAIN)
def _score(ids, offsets, first, last, weights, emissions):
    """emissions[t] += the rows of token first + t, in a table held whole."""
    width, stride = np.uint64(weights.shape[1]), np.uint64(emissions.shape[1])
    flat, out = weights.reshape(-1), emissions.reshape(-1)
    end = offsets[last]
    for token in range(first, last):
        here, begin = np.uint64(token - first) * stride, offsets[token]
        ahead = offsets[min(token + TOKENS_AHEAD, last)] - begin
        for place in range(begin, offsets[token + 1]):
            if place + ahead < end:
                fetch_row(flat, np.uint64(ids[place + ahead]) * width, width)
            add_row(width, (out, flat), (here, np.uint64(ids[place]) * width), ())


@njit(**PLAIN)
def _score_held(ids, offsets, first, last, weights, slots, emissions):
    """emissions[t] += the rows of token first + t, in a growing table."""
    width, stride = np.uint64(weights.shape[1]), np.uint64(emissions.shape[1])
    flat, out = weights.reshape(-1), emissions.reshape(-1)
    for token in range(first, last):
        here = np.uint64(token - first) * stride
        for place in range(offsets[token], offsets[token + 1]):
            slot = slots[ids[place]]
            if slot >= 0:
                add_row(width, (out, flat), (here, np.uint64(slot) * width), ())


@njit(inline="always")
def _larger(x, y):
    return x if x > y else y


@njit(**PLAIN)
def _best(emissions, labels, scratch, path):
    """Fill path [time] with the best labels (Viterbi); among equals the lowest label, from the last token on."""
    count, width, arrivals = len(labels.start), emissions.shape[1], scratch.arrivals
    scores, transitions = scratch.scores[: len(path)], scratch.transitions
    for i in range(count):
        for j in range(count):
            transitions[i, j] = labels.transitions[i, j]
        scores[0, i] = labels.start[i] + emissions[0, i]
    scores[0, count:] = -np.inf
    for t in range(1, len(path)):
        before, now, emission = scores[t - 1], scores[t], emissions[t]
        arrivals[:] = -np.inf
        for i in range(0, count, AT_ONCE):
            a, b, c, d = transitions[i], transitions[i + 1], transitions[i + 2], transitions[i + 3]
            at_a, at_b, at_c, at_d = before[i], before[i + 1], before[i + 2], before[i + 3]
            for j in range(width):
                best = _larger(_larger(at_a + a[j], at_b + b[j]), _larger(at_c + c[j], at_d + d[j]))
                arrivals[j] = _larger(arrivals[j], best)
        for j in range(width):
            now[j] = arrivals[j] + emission[j]
    label, last = 0, scores[len(path) - 1]
    for j in range(1, count):
        if last[j] + labels.end[j] > last[label] + labels.end[label]:
            label = j
    path[-1] = label
    for t in range(len(path) - 1, 0, -1):
        origin, before = 0, scores[t - 1]
        for i in range(1, count):
            if before[i] + transitions[i, label] > before[origin] + transitions[origin, label]:
                origin = i
        label = origin
        path[t - 1] = label


@njit(**PLAIN)
def _total(emissions, path, labels):
    """The score of a sequence of labels."""
    total = float(labels.start[path[0]]) + float(labels.end[path[-1]])
    for t in range(len(path)):
        total += float(emissions[t, path[t]])
        if t > 0:
            total += float(labels.transitions[path[t - 1], path[t]])
    return total


@njit(**PLAIN)
def _differ(gold, rival):
    """Whether gold and rival labels differ."""
    differ = False
    for t in range(len(gold)):
        differ |= gold[t] != rival[t]
    return differ


@njit(**PLAIN)
def _pair_differs(gold, rival, t):
    """Whether the label pairs at t - 1 and t differ."""
    return gold[t - 1] != rival[t - 1] or gold[t] != rival[t]


@njit(**PLAIN)
def _add_rows(corpus, first, gold, rival, rows, held):
    """Add a row of zeros for each feature of a wrong token that has none; returns the number of rows held."""
    for t in range(len(gold)):
        if gold[t] == rival[t]:
            continue
        for place in range(corpus.offsets[first + t], corpus.offsets[first + t + 1]):
            feature = corpus.ids[place]
            if rows.slots[feature] < 0:
                rows.slots[feature], rows.features[held] = held, feature
                rows.weights[held] = 0
                if len(rows.past) > 0:
                    rows.past[held] = 0
                held += 1
    return held


@njit(**PLAIN)
def _length(corpus, first, gold, rival, rows, scratch):
    """The squared length of the difference between the features of gold and rival.

    A count that goes from n to n + 1 adds 2 n + 1 to its square, one that goes to n - 1 adds 1 - 2 n."""
    counts, place_of, pairs, moving = scratch.counts, scratch.place, scratch.pairs, scratch.moving
    ids, offsets, slots, growing = corpus.ids, corpus.offsets, rows.slots, len(rows.slots) > 0
    rows_moving, total = 0, 0
    for t in range(len(gold)):
        if gold[t] == rival[t]:
            continue
        for place in range(offsets[first + t], offsets[first + t + 1]):
            row = slots[ids[place]] if growing else ids[place]
            if place_of[row] < 0:
                place_of[row], moving[rows_moving] = rows_moving, row
                counts[rows_moving] = 0
                rows_moving += 1
            count = counts[place_of[row]]
            total += 2 * (count[gold[t]] - count[rival[t]] + 1)
            count[gold[t]] += 1
            count[rival[t]] -= 1
    for k in range(rows_moving):
        place_of[moving[k]] = -1
    for t in range(1, len(gold)):
        if _pair_differs(gold, rival, t):
            right, wrong = (gold[t - 1], gold[t]), (rival[t - 1], rival[t])
            total += 2 * (pairs[right] - pairs[wrong] + 1)
            pairs[right] += 1
            pairs[wrong] -= 1
    for t in range(1, len(gold)):
        pairs[gold[t - 1], gold[t]] = 0
        pairs[rival[t - 1], rival[t]] = 0
    return float(total + 2 * (gold[0] != rival[0]) + 2 * (gold[-1] != rival[-1]))


@njit(**PLAIN)
def _move_rows(corpus, first, gold, rival, rows, step, late, averaging):
    """Move the features of wrong tokens towards the gold label, away from the rival's.

    Returns the change of the number of nonzero weights."""
    ids, offsets, slots, growing = corpus.ids, corpus.offsets, rows.slots, len(rows.slots) > 0
    weights, past = rows.weights, rows.past
    move, weighted, living = weights.dtype.type(step), weights.dtype.type(late), 0
    for t in range(len(gold)):
        right, wrong = gold[t], rival[t]
        if right == wrong:
            continue
        for place in range(offsets[first + t], offsets[first + t + 1]):
            row = slots[ids[place]] if growing else ids[place]
            living -= (weights[row, right] != 0) + (weights[row, wrong] != 0)
            weights[row, right] += move
            weights[row, wrong] -= move
            living += (weights[row, right] != 0) + (weights[row, wrong] != 0)
            if averaging:
                past[row, right] += weighted
                past[row, wrong] -= weighted
    return living


@njit(**PLAIN)
def _move_labels(gold, rival, labels, step, late, averaging):
    """Move the weights of labels and label pairs towards gold, away from the rival."""
    kind = labels.start.dtype.type
    for path, sign in ((gold, 1.0), (rival, -1.0)):
        move, past = kind(sign * step), kind(sign * late)
        if gold[0] != rival[0]:
            labels.start[path[0]] += move
            if averaging:
                labels.past_start[path[0]] += past
        if gold[-1] != rival[-1]:
            labels.end[path[-1]] += move
            if averaging:
                labels.past_end[path[-1]] += past
        for t in range(1, len(gold)):
            if _pair_differs(gold, rival, t):
                labels.transitions[path[t - 1], path[t]] += move
                if averaging:
                    labels.past_transitions[path[t - 1], path[t]] += past
