"""One sentence after another: score, find the best rival of the gold labels, move at once. On the CPU, one thread.

A feature's row of weights is found directly, or in a growing table by way of its slot; a feature without a slot weighs
nothing, and gets one when a sentence first moves it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.bags import PLAIN, _add_row, _fetch
from structsparse.kernels.chain import _best

TOKENS_AHEAD = 2  # whose rows are fetched while a token is scored


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
    """Memory for the longest sentence, and for each row where it stands among those that move."""

    emissions: np.ndarray  # [longest, labels]
    scores: np.ndarray  # float64 [labels]
    arrivals: np.ndarray  # float64 [labels]
    origins: np.ndarray  # int64 [longest, labels]
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
    _score(corpus, first, last, rows, emissions)
    right = _total(emissions, gold, labels)
    if cost != 0:
        for t in range(len(gold)):
            keep = emissions[t, gold[t]]
            emissions[t] += emissions.dtype.type(cost)
            emissions[t, gold[t]] = keep
    chain = labels.transitions, labels.start, labels.end
    _best(emissions, *chain, scratch.scores, scratch.arrivals, scratch.origins, rival)
    return max(0.0, _total(emissions, rival, labels) - right)


@njit(**PLAIN)
def _score(corpus, first, last, rows, emissions):
    """emissions[t] = sum of the rows of token first + t"""
    width = np.uint64(emissions.shape[1])
    flat, out = rows.weights.reshape(-1), emissions.reshape(-1)
    growing = len(rows.slots) > 0
    emissions[:] = 0
    end = corpus.offsets[last]
    for token in range(first, last):
        here, begin = np.uint64(token - first) * width, corpus.offsets[token]
        ahead = corpus.offsets[min(token + TOKENS_AHEAD, last)] - begin
        for place in range(begin, corpus.offsets[token + 1]):
            if growing:
                slot = rows.slots[corpus.ids[place]]
                if slot >= 0:
                    _add_row(width, (out, flat), (here, np.uint64(slot) * width), ())
                continue
            if place + ahead < end:
                _fetch(flat, np.uint64(corpus.ids[place + ahead]) * width, width)
            _add_row(width, (out, flat), (here, np.uint64(corpus.ids[place]) * width), ())


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
    for t in range(len(gold)):
        if gold[t] != rival[t]:
            return True
    return False


@njit(**PLAIN)
def _pair_differs(gold, rival, t):
    return gold[t - 1] != rival[t - 1] or gold[t] != rival[t]


@njit(**PLAIN)
def _row(rows, feature):
    return np.int64(rows.slots[feature]) if len(rows.slots) > 0 else np.int64(feature)


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
    counts, place_of, pairs = scratch.counts, scratch.place, scratch.pairs
    many, total = 0, 0
    for t in range(len(gold)):
        if gold[t] == rival[t]:
            continue
        for place in range(corpus.offsets[first + t], corpus.offsets[first + t + 1]):
            row = _row(rows, corpus.ids[place])
            if place_of[row] < 0:
                place_of[row], scratch.moving[many] = many, row
                counts[many] = 0
                many += 1
            count = counts[place_of[row]]
            total += 2 * (count[gold[t]] - count[rival[t]] + 1)
            count[gold[t]] += 1
            count[rival[t]] -= 1
    for k in range(many):
        place_of[scratch.moving[k]] = -1
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
    living = 0
    by, past = rows.weights.dtype.type(step), rows.weights.dtype.type(late)
    for t in range(len(gold)):
        if gold[t] == rival[t]:
            continue
        for place in range(corpus.offsets[first + t], corpus.offsets[first + t + 1]):
            row = _row(rows, corpus.ids[place])
            weights, right, wrong = rows.weights[row], gold[t], rival[t]
            living -= (weights[right] != 0) + (weights[wrong] != 0)
            weights[right] += by
            weights[wrong] -= by
            living += (weights[right] != 0) + (weights[wrong] != 0)
            if averaging:
                rows.past[row, right] += past
                rows.past[row, wrong] -= past
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
