"""One arc after another: score, find the best rival of the gold relation, move at once. On the CPU, one thread."""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}


@njit(**PLAIN)
def sweep(ids, offsets, gold, order, cap, weights, past, clock):
    """The passive-aggressive rule: where the gold relation is not ahead of every rival by 1, move the two rows of the
    arc's features by the least that makes it so, or by `cap`.

    ids [occurrences], offsets [arcs + 1]: the features of arcs; gold [arcs]; order: which arcs, one after another;
    weights, past [features, relations]: past sums up moves times the number of arcs before each, `clock` of which lie
    behind. -> how many moves."""
    relations, moves = weights.shape[1], 0
    scores = np.empty(relations, np.float64)
    for arc in order:
        own, right = ids[offsets[arc] : offsets[arc + 1]], gold[arc]
        scores[:] = 0.0
        for row in own:
            for r in range(relations):
                scores[r] += weights[row, r]
        rival = 1 if right == 0 else 0
        for r in range(relations):
            if r != right and scores[r] > scores[rival]:
                rival = r
        loss = scores[rival] + 1.0 - scores[right]
        if loss > 0.0 and len(own):
            step = min(cap, loss / (2.0 * len(own)))
            for row in own:
                weights[row, right] += step
                weights[row, rival] -= step
                past[row, right] += step * clock
                past[row, rival] -= step * clock
            moves += 1
        clock += 1
    return moves
