"""Kernels for forward selection of arc templates: the gain in likelihood of a softmax over the heads of each word.

Two models are fitted side by side. Each is fitted to one half of the sentences and validated on the other half. state
[arcs, 4] holds slope and curvature of the log-likelihood with respect to the score of each arc, for both models. sums
[features, 2, 4] holds the sums of the state over the arcs of each feature, separately for the two halves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN, SUMS

SLOPE, CURVATURE = 0, 1
_SPREAD, _WORD = np.uint64(0x9E3779B97F4A7C15), np.uint64(64)


@njit(**PLAIN)
def number_features(keys, bits, slots, distinct, ids):
    """Number the distinct feature keys of arcs by first appearance: ids [arcs]; returns the number of features.

    slots: int32 [2^bits], a hash table with more slots than arcs; distinct: uint64 [arcs], receives the key of each
    feature.
    """
    slots[:] = -1
    shift, mask, count = _WORD - np.uint64(bits), (1 << bits) - 1, 0
    for a in range(len(keys)):
        key = keys[a]
        i = np.int64((key * _SPREAD) >> shift)
        while slots[i] >= 0 and distinct[slots[i]] != key:
            i = (i + 1) & mask
        if slots[i] < 0:
            slots[i], distinct[count] = count, key
            count += 1
        ids[a] = slots[i]
    return count


@njit(**SUMS)
def differentiate(scores, gold, begins, arcs, state):
    """Slopes and curvatures of the log-likelihood with respect to arc scores: state [arcs, 4], at scores [2, arcs].

    Sentence s has the words begins[s] : begins[s + 1], whose heads are `gold`, and the arcs from arcs[s] on.
    """
    for s in range(len(begins) - 1):
        words = begins[s + 1] - begins[s]
        for m in range(words):
            first, head = arcs[s] + m * words, gold[begins[s] + m]
            right = head - (head > m + 1)
            for model in range(2):
                word_scores = scores[model, first : first + words]
                most, total = word_scores.max(), np.float32(0)
                for j in range(words):
                    share = np.exp(word_scores[j] - most)
                    state[first + j, 2 * model] = share
                    total += share
                for j in range(words):
                    share = state[first + j, 2 * model] / total
                    state[first + j, 2 * model + SLOPE] = (j == right) - share
                    state[first + j, 2 * model + CURVATURE] = share * (1 - share)


@njit(**SUMS)
def sum_by_feature(ids, half, state, sums):
    """Sums of slopes and curvatures by feature and half: sums [features, 2, 4], from ids [arcs] and half [arcs]."""
    sums[:] = 0
    for a in range(len(ids)):
        total = sums[ids[a], half[a]]
        for k in range(4):
            total[k] += state[a, k]


@njit(**SUMS)
def gain(sums, ridge, rate):
    """Gain in log-likelihood on the validation halves, to second order, from one step of the weight of each feature.

    The step is `rate` times a Newton step on the half that the model is fitted to, with the penalty ridge / 2 *
    squares.
    """
    total = 0.0
    for f in range(len(sums)):
        for model in range(2):
            fitted, held = sums[f, model], sums[f, 1 - model]
            change = rate * fitted[2 * model] / (fitted[2 * model + 1] + ridge)
            total += change * (held[2 * model] - 0.5 * change * held[2 * model + 1])
    return total


@njit(**SUMS)
def step(sums, ids, ridge, rate, weights, scores):
    """Newton step of the weights [2, features] of an added template, scaled by `rate`.

    Updates weights and scores [2, arcs], and overwrites sums.
    """
    for f in range(len(sums)):
        for model in range(2):
            fitted = sums[f, model]
            change = rate * (fitted[2 * model] - ridge * weights[model, f]) / (fitted[2 * model + 1] + ridge)
            weights[model, f] += change
            fitted[2 * model] = change
    for a in range(len(ids)):
        for model in range(2):
            scores[model, a] += sums[ids[a], model, 2 * model]
