"""One sentence after another: score, find the best rival of the gold labels, move at once. On the CPU, one thread.

A feature's row of weights is found directly, or in a growing table by way of its slot; a feature without a slot weighs
nothing, and gets one when a sentence first moves it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.weights.bags import PLAIN, _add_row, _fetch

TOKENS_AHEAD = 2  # whose rows are fetched while a token is scored
LANES, AT_ONCE = 8, 4  # labels are filled up to whole vectors; predecessors are compared so many at a time


class Corpus(NamedTuple):
    """Sentence s has the tokens begins[s] : begins[s + 1], token t the features ids[offsets[t] : offsets[t + 1]]."""

    ids: np.ndarray  # int32 [occurrences]
    offsets: np.ndarray  # int64 [tokens + 1]
    begins: np.ndarray  # int64 [sentences + 1]
    gold: np.ndarray  # int64 [tokens]


class Rows(NamedTuple):
    """The weights of features. Where `slots` is empty, feature f has row f; else row slots[f], none if that is -1."""

    weights: np.ndarray  # [rows, labels]
    past: np.ndarray  # [rows, labels] sum of moves times the number of sentences before each; empty: not kept
    slots: np.ndarray  # int32 [features] or [0]
    features: np.ndarray  # int64 [rows] or [0], whose row it is


class Labels(NamedTuple):
    """Weights of labels and their pairs, and the sums of their moves as above."""

    transitions: np.ndarray  # [labels, labels] from, to
    start: np.ndarray  # [labels]
    end: np.ndarray  # [labels]
    past_transitions: np.ndarray
    past_start: np.ndarray
    past_end: np.ndarray


class Rule(NamedTuple):
    """How far to move: `rate`, or if passive rate * min(cap, loss / squared length of the move)."""

    cost: float  # of a wrong label, while the rival is looked for
    rate: float
    cap: float
    passive: bool
    averaging: bool


class Scratch(NamedTuple):
    """Memory for the longest sentence, and for each row where it stands among those that move. `width` is the number
    of labels filled up to whole vectors, with labels that are forbidden."""

    emissions: np.ndarray  # [longest, width]
    scores: np.ndarray  # [longest, width] of the best way to each label
    arrivals: np.ndarray  # [width]
    transitions: np.ndarray  # [width, width]
    rival: np.ndarray  # int64 [longest]
    counts: np.ndarray  # int32 [most occurrences of a sentence, labels]
    moving: np.ndarray  # int64 [most occurrences of a sentence]
    place: np.ndarray  # int32 [rows], -1 before and after
    pairs: np.ndarray  # int32 [labels, labels], 0 before and after


@njit(**PLAIN)
def sweep(corpus, order, done, rows, held, labels, rule, scratch, clock):
    """Go through the sentences order[done:], `clock` of which lie behind. A growing table without room for all features
    of the next sentence ends it early.

    -> sentences done, rows held, sum of losses, sum of steps, change of the number of weights that are not zero."""
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
                held = _sprout(corpus, first, gold, rival, rows, held)
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
    """Fill scratch.rival with the best labels, a wrong one credited with `cost`; what the gold ones lack to them."""
    emissions, gold, rival = scratch.emissions[: last - first], corpus.gold[first:last], scratch.rival[: last - first]
    emissions[:] = 0
    if len(rows.slots) > 0:
        _score_held(corpus.ids, corpus.offsets, first, last, rows.weights, rows.slots, emissions)
    else:
        _score(corpus.ids, corpus.offsets, first, last, rows.weights, emissions)
    right = _total(emissions, gold, labels)
    if cost != 0:
        for t in range(len(gold)):
            keep = emissions[t, gold[t]]
            emissions[t] += emissions.dtype.type(cost)
            emissions[t, gold[t]] = keep
    _best(emissions, labels, scratch, rival)
    return max(0.0, _total(emissions, rival, labels) - right)


@njit(**PLAIN)
def _score(ids, offsets, first, last, weights, emissions):
    """emissions[t] += the rows of token first + t"""
    width, stride = np.uint64(weights.shape[1]), np.uint64(emissions.shape[1])
    flat, out = weights.reshape(-1), emissions.reshape(-1)
    end = offsets[last]
    for token in range(first, last):
        here, begin = np.uint64(token - first) * stride, offsets[token]
        ahead = offsets[min(token + TOKENS_AHEAD, last)] - begin
        for place in range(begin, offsets[token + 1]):
            if place + ahead < end:
                _fetch(flat, np.uint64(ids[place + ahead]) * width, width)
            _add_row(width, (out, flat), (here, np.uint64(ids[place]) * width), ())


@njit(**PLAIN)
def _score_held(ids, offsets, first, last, weights, slots, emissions):
    """The same of the rows that are held."""
    width, stride = np.uint64(weights.shape[1]), np.uint64(emissions.shape[1])
    flat, out = weights.reshape(-1), emissions.reshape(-1)
    for token in range(first, last):
        here = np.uint64(token - first) * stride
        for place in range(offsets[token], offsets[token + 1]):
            slot = slots[ids[place]]
            if slot >= 0:
                _add_row(width, (out, flat), (here, np.uint64(slot) * width), ())


@njit(inline="always")
def _larger(x, y):
    return x if x > y else y


@njit(**PLAIN)
def _best(emissions, labels, scratch, path):
    """Fill path [time] with the best labels; of equals the lowest, from the last on."""
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
    total = float(labels.start[path[0]]) + float(labels.end[path[-1]])
    for t in range(len(path)):
        total += float(emissions[t, path[t]])
        if t > 0:
            total += float(labels.transitions[path[t - 1], path[t]])
    return total


@njit(**PLAIN)
def _differ(gold, rival):
    differ = False
    for t in range(len(gold)):
        differ |= gold[t] != rival[t]
    return differ


@njit(**PLAIN)
def _pair_differs(gold, rival, t):
    return gold[t - 1] != rival[t - 1] or gold[t] != rival[t]


@njit(**PLAIN)
def _sprout(corpus, first, gold, rival, rows, held):
    """Give a row of zeros to each feature of a wrong token that has none; how many are held then."""
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
    """The squared length of the features of the gold labels minus those of the rival. A count that goes from n to n + 1
    adds 2 n + 1 to its square, one that goes to n - 1 adds 1 - 2 n."""
    counts, place_of, pairs, moving = scratch.counts, scratch.place, scratch.pairs, scratch.moving
    ids, offsets, slots, growing = corpus.ids, corpus.offsets, rows.slots, len(rows.slots) > 0
    many, total = 0, 0
    for t in range(len(gold)):
        if gold[t] == rival[t]:
            continue
        for place in range(offsets[first + t], offsets[first + t + 1]):
            row = slots[ids[place]] if growing else ids[place]
            if place_of[row] < 0:
                place_of[row], moving[many] = many, row
                counts[many] = 0
                many += 1
            count = counts[place_of[row]]
            total += 2 * (count[gold[t]] - count[rival[t]] + 1)
            count[gold[t]] += 1
            count[rival[t]] -= 1
    for k in range(many):
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
    """Features of wrong tokens: step towards the gold label, away from the rival's; how many more weights live."""
    ids, offsets, slots, growing = corpus.ids, corpus.offsets, rows.slots, len(rows.slots) > 0
    weights, past = rows.weights, rows.past
    by, later, living = weights.dtype.type(step), weights.dtype.type(late), 0
    for t in range(len(gold)):
        right, wrong = gold[t], rival[t]
        if right == wrong:
            continue
        for place in range(offsets[first + t], offsets[first + t + 1]):
            row = slots[ids[place]] if growing else ids[place]
            living -= (weights[row, right] != 0) + (weights[row, wrong] != 0)
            weights[row, right] += by
            weights[row, wrong] -= by
            living += (weights[row, right] != 0) + (weights[row, wrong] != 0)
            if averaging:
                past[row, right] += later
                past[row, wrong] -= later
    return living


@njit(**PLAIN)
def _move_labels(gold, rival, labels, step, late, averaging):
    kind = labels.start.dtype.type
    for path, sign in ((gold, 1.0), (rival, -1.0)):
        by, past = kind(sign * step), kind(sign * late)
        if gold[0] != rival[0]:
            labels.start[path[0]] += by
            if averaging:
                labels.past_start[path[0]] += past
        if gold[-1] != rival[-1]:
            labels.end[path[-1]] += by
            if averaging:
                labels.past_end[path[-1]] += past
        for t in range(1, len(gold)):
            if _pair_differs(gold, rival, t):
                labels.transitions[path[t - 1], path[t]] += by
                if averaging:
                    labels.past_transitions[path[t - 1], path[t]] += past
