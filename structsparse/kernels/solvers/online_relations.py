"""Online learning of relations: one pass over arcs by the passive-aggressive rule, one thread."""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}


@njit(**PLAIN)
def sweep(ids, offsets, gold, order, cap, weights, past, clock):
    """Where the gold relation does not lead every rival by 1, move the weights of the arc's features by the least that
    makes it so, or by `cap`.

    ids [occurrences], offsets [arcs + 1]: the features of arcs; gold [arcs]; order: the arcs to learn from; weights,
    past [features, relations]: past sums changes times the number of arcs before each, of which `clock` came before
    this pass. Returns the number of updates."""
    relations, updates = weights.shape[1], 0
    scores = np.empty(relations, np.float64)
    for arc in order:
        rows, right = ids[offsets[arc] : offsets[arc + 1]], gold[arc]
        scores[:] = 0.0
        for row in rows:
            for r in range(relations):
                scores[r] += weights[row, r]
        rival = 1 if right == 0 else 0
        for r in range(relations):
            if r != right and scores[r] > scores[rival]:
                rival = r
        loss = scores[rival] + 1.0 - scores[right]
        if loss > 0.0 and len(rows):
            step = min(cap, loss / (2.0 * len(rows)))
            for row in rows:
                weights[row, right] += step
                weights[row, rival] -= step
                past[row, right] += step * clock
                past[row, rival] -= step * clock
            updates += 1
        clock += 1
    return updates
