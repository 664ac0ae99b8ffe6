"""Online relation kernel: passive-aggressive learning of a classifier that labels arcs with dependency relations."""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}


@njit(**PLAIN)
def sweep(ids, offsets, gold, order, cap, weights, past, clock):
    """Online relation kernel: learn dependency relations from a list of arcs, with passive-aggressive updates.

    The score of an arc's gold relation should exceed the scores of all other relations by 1. The step size of an update
    is the least that achieves this, but at most `cap`.

    - Arc a has the features ids[offsets[a] : offsets[a + 1]] and the gold relation gold[a].
    - `order` lists the arcs to learn from.
    - `weights` and `past` are arrays [features, relations].
    - `past` sums each weight change times the count of arcs before the change, for averaged weights.
    - `clock` is the count of arcs that were processed before this call.

    Returns the count of updates."""
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
