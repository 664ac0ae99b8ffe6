"""Heads of words, each chosen by a softmax over the arcs to its word: what features would add to their scores.

Two models go side by side, each fitted to one half of the sentences and judged on the other. Their state [arcs, 4] is
slope and curvature of the log-likelihood along each arc's score, of the first model and of the second. Sums of it by
feature, [features, 2, 4], are taken of the arcs of each half apart.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN, SUMS

SLOPE, CURVATURE = 0, 1
_SPREAD, _WORD = np.uint64(0x9E3779B97F4A7C15), np.uint64(64)


@njit(**PLAIN)
def number(keys, bits, slots, known, ids):
    """Number the features from 0 on, as they come: ids [arcs] of keys [arcs]; how many there are.

    slots: int32 [2^bits], more than there are arcs; known: uint64 [arcs]."""
    slots[:] = -1
    shift, mask, count = _WORD - np.uint64(bits), (1 << bits) - 1, 0
    for a in range(len(keys)):
        key = keys[a]
        i = np.int64((key * _SPREAD) >> shift)
        while slots[i] >= 0 and known[slots[i]] != key:
            i = (i + 1) & mask
        if slots[i] < 0:
            slots[i], known[count] = count, key
            count += 1
        ids[a] = slots[i]
    return count


@njit(**SUMS)
def look(scores, gold, begins, arcs, state):
    """state [arcs, 4] of scores [2, arcs]. Sentence s has the words begins[s] : begins[s + 1], whose heads are gold,
    and the arcs from arcs[s] on."""
    for s in range(len(begins) - 1):
        words = begins[s + 1] - begins[s]
        for m in range(words):
            first, head = arcs[s] + m * words, gold[begins[s] + m]
            right = head - (head > m + 1)
            for model in range(2):
                own = scores[model, first : first + words]
                most, total = own.max(), np.float32(0)
                for j in range(words):
                    share = np.exp(own[j] - most)
                    state[first + j, 2 * model] = share
                    total += share
                for j in range(words):
                    share = state[first + j, 2 * model] / total
                    state[first + j, 2 * model + SLOPE] = (j == right) - share
                    state[first + j, 2 * model + CURVATURE] = share * (1 - share)


@njit(**SUMS)
def add_up(ids, half, state, sums):
    """sums [features, 2, 4] of the state by feature and half: ids [arcs], half [arcs]"""
    sums[:] = 0
    for a in range(len(ids)):
        own = sums[ids[a], half[a]]
        for k in range(4):
            own[k] += state[a, k]


@njit(**SUMS)
def gain(sums, ridge, rate):
    """By how much the log-likelihood of the halves that the models are not fitted to would rise, to second order, if
    each feature took a step of `rate` towards what fits the other half, ridge / 2 times squares added."""
    total = 0.0
    for f in range(len(sums)):
        for model in range(2):
            fitted, held = sums[f, model], sums[f, 1 - model]
            step = rate * fitted[2 * model] / (fitted[2 * model + 1] + ridge)
            total += step * (held[2 * model] - 0.5 * step * held[2 * model + 1])
    return total


@njit(**SUMS)
def move(sums, ids, ridge, rate, weights, scores):
    """Take that step, from weights [2, features] on: they and scores [2, arcs] change; sums are lost."""
    for f in range(len(sums)):
        for model in range(2):
            fitted = sums[f, model]
            step = rate * (fitted[2 * model] - ridge * weights[model, f]) / (fitted[2 * model + 1] + ridge)
            weights[model, f] += step
            fitted[2 * model] = step
    for a in range(len(ids)):
        for model in range(2):
            scores[model, a] += sums[ids[a], model, 2 * model]
