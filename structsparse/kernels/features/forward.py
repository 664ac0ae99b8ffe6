"""Kernels of forward selection of arc templates: the gain in likelihood of a softmax over the heads of each word.

Two models are fitted side by side. Each is fitted to one half of the sentences, and validated on the other half.

- The slope of an arc is the first derivative of the log-likelihood in the arc score. The curvature is minus the second
  derivative.
- state [arcs, 4] holds the slope and curvature of each arc for the first model, then for the second model.
- sums [features, 2, 4] holds the sums of `state` over the arcs of each feature, for each half of the sentences.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN, SUMS

SLOPE, CURVATURE = 0, 1  # columns of `state` for the first model; add 2 for the second model
_SPREAD, _WORD = np.uint64(0x9E3779B97F4A7C15), np.uint64(64)  # multiplier of the hash function; bits of a key


@njit(**PLAIN)
def number_features(keys, bits, slots, distinct, ids):
    """Forward selection kernel: number the distinct feature keys of arcs in the order of first appearance.

    ids [arcs] gets the feature index of each arc. `slots` (int32 [2^bits]) is a hash table with more slots than arcs.
    `distinct` (uint64 [arcs]) gets the key of each feature. Returns the number of features."""
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
    """Forward selection kernel: slopes and curvatures of the log-likelihood with respect to the arc scores.

    state [arcs, 4] gets the slope and curvature of each arc for both models, from scores [2, arcs]. Sentence s has the
    words begins[s] to begins[s + 1] - 1, with the heads `gold`. Its arcs begin at arcs[s]."""
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
    """Forward selection kernel: sums of slopes and curvatures by feature and by half of the sentences.

    sums [features, 2, 4] gets the sums of state [arcs, 4]. ids [arcs] is the feature of each arc. half [arcs] is 0 or
    1, the half that the arc's sentence belongs to."""
    sums[:] = 0
    for a in range(len(ids)):
        total = sums[ids[a], half[a]]
        for k in range(4):
            total[k] += state[a, k]


@njit(**SUMS)
def gain(sums, ridge, rate):
    """Forward selection kernel: gain in validation log-likelihood from one Newton step of the weights of a template.

    The gain is computed to second order, and summed over both models. A model takes the Newton step, times `rate`, on
    the half of the sentences that it is fitted to. The fitted loss includes the penalty ridge / 2 times the sum of
    squared weights.
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
    """Forward selection kernel: one Newton step of the weights of an added template, scaled by `rate`.

    Updates weights [2, features] and scores [2, arcs] of both models."""
    for f in range(len(sums)):
        for model in range(2):
            fitted = sums[f, model]
            change = rate * (fitted[2 * model] - ridge * weights[model, f]) / (fitted[2 * model + 1] + ridge)
            weights[model, f] += change
            fitted[2 * model] = change
    for a in range(len(ids)):
        for model in range(2):
            scores[model, a] += sums[ids[a], model, 2 * model]
