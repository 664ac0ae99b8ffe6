"""Online chain kernels: perceptron and passive-aggressive learning of chain taggers, on one thread.

Each sentence takes a Viterbi search and an update. The search finds the best label sequence under the current weights,
with a cost added to wrong labels. This sequence is called the rival. The update moves the weights towards the gold
labels and away from the rival labels.

The table of emission weights has one row per feature. A growing table has rows only for the features whose weights were
changed before; the weights of all other features are zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.weights.bags import PLAIN, add_row, fetch_row

TOKENS_AHEAD = 2  # number of tokens by which the prefetch of weight rows runs ahead of scoring
LANES, AT_ONCE = 8, 4  # labels are padded to a multiple of LANES; Viterbi tries AT_ONCE previous labels at a time


class TaggedCorpus(NamedTuple):
    """Online chain kernel: a tagged corpus as flat arrays.

    Sentence s has the tokens begins[s] to begins[s + 1] - 1. Token t has the features ids[offsets[t] : offsets[t + 1]].
    """

    ids: np.ndarray  # int32 [occurrences]: the active features of all tokens, token after token
    offsets: np.ndarray  # int64 [tokens + 1]: where the features of each token begin in `ids`
    begins: np.ndarray  # int64 [sentences + 1]: the first token of each sentence
    gold: np.ndarray  # int64 [tokens]: the gold label of each token


class FeatureRows(NamedTuple):
    """Online chain kernel: the emission weights of a tagger, in a table with rows for features.

    If `slots` is empty, feature f has row f. Otherwise it has row slots[f], or no row if slots[f] is -1."""

    weights: np.ndarray  # [rows, labels]: emission weights
    past: np.ndarray  # [rows, labels]: sum of (weight change * count of earlier sentences), for averaged weights
    slots: np.ndarray  # int32 [features]: the row of each feature; empty if feature f has row f
    features: np.ndarray  # int64 [rows]: the feature of each row; empty if row f belongs to feature f


class LabelWeights(NamedTuple):
    """Online chain kernel: the transition, start and end weights of a tagger.

    The arrays named `past_` serve to compute averaged weights. They sum each weight change times the count of sentences
    before the change."""

    transitions: np.ndarray  # [labels, labels]: weight of each pair (previous label, label)
    start: np.ndarray  # [labels]: weight of each label at the first token
    end: np.ndarray  # [labels]: weight of each label at the last token
    past_transitions: np.ndarray  # [labels, labels]: sums for averaged transition weights
    past_start: np.ndarray  # [labels]: sums for averaged start weights
    past_end: np.ndarray  # [labels]: sums for averaged end weights


class UpdateRule(NamedTuple):
    """Online chain kernel: the rule for the cost and the step size of an online update.

    - The step size of the perceptron is `rate`.
    - The step size of a passive-aggressive update is rate * min(cap, loss / length). Here `length` is the squared norm
      of the gold feature vector minus the rival feature vector. The rival is the best label sequence in the search."""

    cost: float  # margin: added to the score of every wrong label (or arc) in the search for the rival
    rate: float  # step size of the perceptron, or factor of the passive-aggressive step size
    cap: float  # largest passive-aggressive step size, before it is multiplied by `rate`
    passive: bool  # whether updates are passive-aggressive
    averaging: bool  # whether sums for averaged weights are kept


class ChainScratch(NamedTuple):
    """Online chain kernel: work memory of Viterbi and updates.

    In the shapes, `longest` is the number of tokens of the longest sentence. `width` is the number of labels, padded to
    a multiple of LANES. The rival is the best label sequence that the search finds."""

    emissions: np.ndarray  # [longest, width]: emission scores of a sentence
    scores: np.ndarray  # [longest, width]: score of the best label sequence that ends in each label, at each token
    arrivals: np.ndarray  # [width]: score of the best label sequence that ends in each label, without the last emission
    transitions: np.ndarray  # [width, width]: transition weights; minus infinity for padding
    rival: np.ndarray  # int64 [longest]: the rival labels
    counts: np.ndarray  # int32 [features of one sentence, labels]: gold minus rival count of each (feature, label)
    moving: np.ndarray  # int64 [features of one sentence]: the weight table rows that an update changes
    place: np.ndarray  # int32 [rows]: the index of each row in `moving`, or -1 if absent
    pairs: np.ndarray  # int32 [labels, labels]: gold minus rival count of (previous label, label); 0 between updates


@njit(**PLAIN)
def sweep(corpus, order, done, rows, held, labels, rule, scratch, clock):
    """Online chain kernel: learn a tagger from the sentences order[done:], one after the other.

    The caller has already processed `clock` sentences before order[0]. The first `held` rows of the weight table are in
    use. The pass ends early if a growing table lacks room for all features of the next sentence.

    Returns five numbers: count of processed entries of `order`, count of table rows in use, sum of losses, sum of step
    sizes, and the change of the count of nonzero weights."""
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
    """Online chain kernel: find the rival labels of a sentence by Viterbi, with a cost for wrong labels.

    Writes them to scratch.rival. Returns the loss: the rival's score with costs minus the score of the gold labels, or
    0 if this is negative."""
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
    """Online chain kernel: compute emission scores with a table that has a row for every feature.

    emissions[t] increases by the sum of the weight rows of all features of token first + t."""
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
    """Online chain kernel: compute emission scores with a growing table, which lacks the rows of some features.

    emissions[t] increases by the sum of the weight rows of all features of token first + t. Features without a row are
    skipped."""
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
    """Online chain kernel: the larger of two Viterbi scores."""
    return x if x > y else y


@njit(**PLAIN)
def _best(emissions, labels, scratch, path):
    """Online chain kernel: fill `path` [tokens] with the best labels of a sentence (Viterbi).

    Among sequences with equal scores, the one with the lowest last label wins. If the last labels are equal, the labels
    before them decide, and so on."""
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
    """Online chain kernel: the score of the label sequence `path`: emission, transition, start and end scores."""
    total = float(labels.start[path[0]]) + float(labels.end[path[-1]])
    for t in range(len(path)):
        total += float(emissions[t, path[t]])
        if t > 0:
            total += float(labels.transitions[path[t - 1], path[t]])
    return total


@njit(**PLAIN)
def _differ(gold, rival):
    """Online chain kernel: whether the gold labels and the rival labels of a sentence differ anywhere."""
    differ = False
    for t in range(len(gold)):
        differ |= gold[t] != rival[t]
    return differ


@njit(**PLAIN)
def _pair_differs(gold, rival, t):
    """Online chain kernel: whether gold and rival labels differ in the pair of labels at tokens t - 1 and t."""
    return gold[t - 1] != rival[t - 1] or gold[t] != rival[t]


@njit(**PLAIN)
def _add_rows(corpus, first, gold, rival, rows, held):
    """Online chain kernel: add a row of zeros to the growing table for each new feature of a wrong token.

    A token is wrong if the rival label differs from the gold label. Returns the count of rows in use."""
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
    """Online chain kernel: the squared norm of the gold minus the rival feature vector, for step sizes.

    A feature vector counts (feature, label) pairs, pairs of neighbouring labels, the first label and the last label."""
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
    """Online chain kernel: update the emission weights of all features of wrong tokens.

    A token is wrong if the rival label differs from the gold label. The weights for the gold label gain `step`, and
    those for the rival label lose `step`. The sums for averaging gain and lose `late`, which is `step` times the count
    of earlier sentences. Returns the change of the count of nonzero weights."""
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
    """Online chain kernel: update the transition, start and end weights of gold and rival labels.

    Where gold and rival differ, the weights of gold labels gain `step` and those of rival labels lose `step`. The sums
    for averaging gain and lose `late`, which is `step` times the count of earlier sentences."""
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
