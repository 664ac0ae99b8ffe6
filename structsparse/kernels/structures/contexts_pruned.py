"""Pruned contexts kernels: scores, normalisers and sampling proposals of a pruned language model.

A pruned model keeps only the contexts with nonzero weights, in a trie.

- Node n of the trie is a context. above[n] is its parent, a shorter context. Node 0 is the empty context.
- An entry is a pair of a context and a word. Node n has the entries starts[n] to starts[n + 1] - 1, sorted by word.
  Node 0 has entries for all words.
- The entry above an entry has the same word, in the nearest shorter context that has an entry for it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.features.suffixes import search

PLAIN = {"cache": True, "nogil": True}
_MOST = 1e150  # largest change of the normaliser Z from parent to child context, as a multiple of the parent's Z
_WORTH = 2.0**-12  # least normaliser Z of a context, as a share of the largest Z of the shorter contexts


@njit(**PLAIN)
def entries_above(above, starts, entry_word, entry_above):
    """Pruned contexts kernel: fill entry_above [entries] with the entry above each entry.

    The entry above has the same word in the nearest shorter context. Entries of node 0, the empty context, get -1."""
    for entry in range(starts[1]):
        entry_above[entry] = -1
    for node in range(1, len(above)):
        for entry in range(starts[node], starts[node + 1]):
            place, over = above[node], -1
            while over < 0:  # ends at node 0, which has all words
                over = search(entry_word, starts[place], starts[place + 1], entry_word[entry])
                place = above[place]
            entry_above[entry] = over


@njit(**PLAIN)
def spread(explicit, same, entry_above, values):
    """Pruned contexts kernel: fill values [entries] from the explicit values and the entries above.

    If same[entry] is set, the entry gets the value of the entry above it. Otherwise it gets the next element of
    `explicit`."""
    taken = 0
    for entry in range(len(values)):
        if same[entry]:
            values[entry] = values[entry_above[entry]]
        else:
            values[entry] = explicit[taken]
            taken += 1


@njit(**PLAIN)
def score(increments, entry_above, scores):
    """Pruned contexts kernel: fill scores [entries] with the sums of the increments along the path from node 0.

    Node 0 is the empty context. The path goes through the entries of the same word."""
    for entry in range(len(scores)):
        over = entry_above[entry]
        scores[entry] = increments[entry] + (scores[over] if over >= 0 else 0.0)


@njit(**PLAIN)
def scores_after(node, above, starts, entry_word, scores, words):
    """Pruned contexts kernel: fill the array `words` with the scores of all words after the context `node`."""
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
    """Pruned contexts kernel: fill log_z [nodes] with the logarithm of the sum Z of exp(score) over all words.

    Z of a context is Z of the parent context plus a change. Z is summed over all words instead if this would be
    imprecise."""
    words, shares = np.empty(starts[1]), np.ones(len(above))
    for node in range(len(above)):
        change = 0.0  # change of the normaliser Z, relative to Z of the parent context
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
    """Pruned contexts kernel: fill the proposal masses for sampling the next word.

    The mass of an entry is exp((score - shift) * cooling), where `cooling` is the inverse temperature. The increase of
    an entry is its mass minus the mass of the entry above it, or 0 if this is negative.

    - gain [entries] gets the running sums of the increases within each node.
    - gains [nodes] gets the total increase of each node.
    - bound [entries] gets an upper bound of the mass: the sum of the increases of an entry and all entries above it."""
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
