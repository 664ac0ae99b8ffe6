"""Pruned language models, as tries of contexts with nonzero weights: scores, normalisers, sampling proposals.

An entry is a (context, word) pair. Node `node` of the trie is a context and has the entries
starts[node] : starts[node + 1], sorted by word; node 0 is the empty context and has all words.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.features.suffixes import search

PLAIN = {"cache": True, "nogil": True}
_MOST = 1e150  # largest change of a normaliser, relative to the normaliser above
_WORTH = 2.0**-12  # least share of the normaliser above at which the difference is precise


@njit(**PLAIN)
def entries_above(above, starts, entry_word, entry_above):
    """Find the entry above each entry: the same word after the nearest shorter context that has an entry for the word.

    above [nodes]; entries of node 0 have no entry above, so they get -1."""
    for entry in range(starts[1]):
        entry_above[entry] = -1
    for node in range(1, len(above)):
        for entry in range(starts[node], starts[node + 1]):
            place, over = above[node], -1
            while over < 0:  # ends at node 0
                over = search(entry_word, starts[place], starts[place + 1], entry_word[entry])
                place = above[place]
            entry_above[entry] = over


@njit(**PLAIN)
def spread(explicit, same, entry_above, values):
    """Fill inherited values: values [entries] = value of the entry above if `same`, else the next of `explicit`."""
    taken = 0
    for entry in range(len(values)):
        if same[entry]:
            values[entry] = values[entry_above[entry]]
        else:
            values[entry] = explicit[taken]
            taken += 1


@njit(**PLAIN)
def score(increments, entry_above, scores):
    """Scores of a pruned model: scores [entries] = sums of the increments along the path from node 0."""
    for entry in range(len(scores)):
        over = entry_above[entry]
        scores[entry] = increments[entry] + (scores[over] if over >= 0 else 0.0)


@njit(**PLAIN)
def scores_after(node, above, starts, entry_word, scores, words):
    """Scores after a context: words [V] = the score of every word after the context of `node`."""
    words[:] = scores[: starts[1]]
    depth, place = 0, node
    while place > 0:
        depth, place = depth + 1, above[place]
    path = np.empty(depth, np.int64)
    for k in range(depth - 1, -1, -1):
        path[k], node = node, above[node]
    for k in range(depth):
        for entry in range(starts[path[k]], starts[path[k] + 1]):
            words[entry_word[entry]] = scores[entry]


@njit(**PLAIN)
def normalise(scores, above, starts, entry_word, entry_above, log_z):
    """Normalisers of a pruned model: log_z [nodes] = log of the sum of exp(score) over all words.

    Z of a context is Z of the context above plus the change by the entries of the context. Z is summed over all words
    instead if the change is too large, or if Z has too small a share of the largest Z on the path."""
    words, shares = np.empty(starts[1]), np.ones(len(above))
    for node in range(len(above)):
        change = 0.0  # of Z, relative to Z of the context above
        if node > 0:
            over = log_z[above[node]]
            for entry in range(starts[node], starts[node + 1]):
                change += np.exp(scores[entry] - over) - np.exp(scores[entry_above[entry]] - over)
            shares[node] = min(1.0, shares[above[node]] * (1.0 + change))
            log_z[node] = over + np.log1p(change)
        if node == 0 or not (shares[node] >= _WORTH and change < _MOST):
            scores_after(node, above, starts, entry_word, scores, words)
            largest = words.max()
            log_z[node] = np.log(np.exp(words - largest).sum()) + largest
            shares[node] = 1.0


@njit(**PLAIN)
def propose(scores, above, starts, entry_above, shift, cooling, bound, gain, gains):
    """Proposal masses for sampling words; the mass of an entry is exp((score - shift) * cooling).

    gain [entries]: running sums, within a node, of the nonnegative increase of mass over the entry above. gains
    [nodes]: the total increase of each node. bound [entries]: the sum of the increases of an entry and of all entries
    above, an upper bound of the mass."""
    for node in range(len(above)):
        total = 0.0
        for entry in range(starts[node], starts[node + 1]):
            over = entry_above[entry]
            added = np.exp((scores[entry] - shift) * cooling)
            if over >= 0:
                added = max(added - np.exp((scores[over] - shift) * cooling), 0.0)
            bound[entry] = added + (bound[over] if over >= 0 else 0.0)
            total += added
            gain[entry] = total
        gains[node] = total
