"""Kernels of forward selection of arc templates: the gain in likelihood of a softmax over the heads of each word.

Two models are fitted side by side. Each model is fitted to one half of the sentences and validated on the other half.
The slope and the curvature of an arc are the first derivative, and minus the second derivative, of the log-likelihood
with respect to the arc score. state [arcs, 4] holds slope and curvature of each arc for the first model, then for the
second. sums [features, 2, 4] holds the sums of `state` over the arcs of each feature, separately for the two halves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN, SUMS

SLOPE, CURVATURE = 0, 1  # columns of `state` for model 0; model 1 has columns 2 and 3
_SPREAD, _WORD = np.uint64(0x9E3779B97F4A7C15), np.uint64(64)  # multiplier of a hash table; bits of a key


@njit(**PLAIN)
def number_features(keys, bits, slots, distinct, ids):
    """Forward selection kernel: number the distinct feature keys of arcs by first appearance.

    ids [arcs] becomes the number of the feature of each arc. `slots` (int32 [2^bits]) is a hash table with more slots
    than arcs. `distinct` (uint64 [arcs]) receives the key of each feature. Returns the number of features.
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
    """Forward selection kernel: slopes and curvatures of the log-likelihood with respect to the arc scores.

    state [arcs, 4] becomes slope and curvature of each arc for both models, at scores [2, arcs]. Sentence s has the
    words begins[s] : begins[s + 1], whose heads are `gold`, and the arcs from arcs[s] on.
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
    """Forward selection kernel: sums of slopes and curvatures by feature and by half of the sentences.

    sums [features, 2, 4] becomes the sums of state [arcs, 4]. ids [arcs] and half [arcs] are the feature and the half
    of each arc.
    """
    sums[:] = 0
    for a in range(len(ids)):
        total = sums[ids[a], half[a]]
        for k in range(4):
            total[k] += state[a, k]


@njit(**SUMS)
def gain(sums, ridge, rate):
    """Forward selection kernel: gain in validation log-likelihood from one step of the weights of a template.

    The gain is computed to second order and added over both models. The step is `rate` times a Newton step of each
    weight on the half that the model is fitted to. The penalty is ridge / 2 times the sum of squared weights.
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

    The kernel updates weights [2, features] and scores [2, arcs] of both models, and overwrites `sums`.
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
