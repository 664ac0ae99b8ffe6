"""Stable contexts kernels: softmax loss of a language model over a tree of contexts, for any finite scores.

These kernels are the slow counterpart of `contexts`, where the model is described.

- Scores S are kept instead of their exponentials.
- The mass Z of a context is the sum of exp S over all words. It is stored relative to exp(shift). The default shift of
  a context is that of its parent context.
- A mass is usually computed from the mass of the parent context. It is summed over all words instead if it is less than
  WORTH times the mass of a shorter context, or more than MOST. In this case, the shift is the best score.
"""

import math

import numpy as np
from numba import njit

from structsparse.kernels.logspace import EXACT, PLAIN, SUMS
from structsparse.kernels.structures.contexts import MOST, WORTH, add_upwards, increment


@njit(**EXACT)
def path_sums(weights, features, base, above, out):
    """Stable contexts kernel: fill out [entries] with the scores of entries.

    A score is the sum of the score increments along the path from the empty context. above [entries] is the entry of
    the same word in the nearest shorter context."""
    for e in range(out.size):
        d = increment(weights, features, base, e)
        out[e] = d if above[e] < 0 else out[above[e]] + d


@njit(**PLAIN)
def deepest_entries(n, tree, entry_word, path, out):
    """Stable contexts kernel: for each word, find its deepest entry on the path to node n.

    Writes the entries to `out`, which has one element per word. An entry is a pair of a context and a word. `tree` is
    described at the function `forward` of the kernels `contexts`. path [levels] is work memory."""
    node_above, starts = tree[0], tree[1]
    for e in range(out.size):
        out[e] = e
    size = 0
    while n > 0:
        path[size] = n
        size += 1
        n = node_above[n]
    for k in range(size - 1, -1, -1):
        for e in range(starts[path[k]], starts[path[k] + 1]):
            out[entry_word[e]] = e


@njit(**EXACT)
def masses(S, tree, entry_word, levels, words, masses, shifts, anew):
    """Stable contexts kernel: fill `masses` and `shifts` with normalisers Z, as log Z = shifts + log masses[:, 0].

    masses[:, 1] gets the largest mass on the path from the empty context. anew [nodes] gets True if the mass of a
    context was summed over all words, and False if it was computed from the parent context."""
    node_above, starts, above, _ = tree
    path, deepest = np.empty(levels, np.int64), np.empty(words, np.int64)
    for n in range(len(node_above)):
        anew[n] = n == 0
        if n > 0:
            p = node_above[n]
            shift, mass, most = shifts[p], masses[p, 0], masses[p, 1]
            gained = 0.0
            for e in range(starts[n], starts[n + 1]):
                gained += math.exp(S[e] - shift) - math.exp(S[above[e]] - shift)
            mass += gained
            most = mass if mass > most else most
            shifts[n], masses[n, 0], masses[n, 1] = shift, mass, most
            anew[n] = not (mass >= WORTH * most and mass < MOST)
        if anew[n]:
            deepest_entries(n, tree, entry_word, path, deepest)
            shift, mass = -np.inf, 0.0
            for v in range(words):
                shift = S[deepest[v]] if S[deepest[v]] > shift else shift
            for v in range(words):
                mass += math.exp(S[deepest[v]] - shift)
            shifts[n], masses[n, 0], masses[n, 1] = shift, mass, mass


@njit(**SUMS)
def loss(S, node_ends, entry_ends, masses, shifts):
    """Stable contexts kernel: the language-model loss, the sum over all targets of log Z minus the score S.

    node_ends [nodes] and entry_ends [entries] count the targets by deepest context and by deepest entry. The normaliser
    of a context is Z = masses[:, 0] * exp(shifts)."""
    loss = 0.0
    for n in range(len(node_ends)):
        if node_ends[n] != 0.0:
            loss += node_ends[n] * (shifts[n] + math.log(masses[n, 0]))
    for e in range(len(entry_ends)):
        if entry_ends[e] != 0.0:
            loss -= entry_ends[e] * S[e]
    return loss


@njit(**EXACT)
def gradient(S, tree, entry_word, levels, features, below, node_ends, scale, masses, shifts, anew, out):
    """Stable contexts kernel: the gradient of the language-model loss in the weights.

    out [entries] gets `scale` times the gradient. `below` counts the targets of each entry and all entries below it.
    `node_ends` counts the targets of each context. `masses`, `shifts` and `anew` come from the function `masses`."""
    node_above, starts, above, _ = tree
    words = starts[1]
    path, deepest = np.empty(levels, np.int64), np.empty(words, np.int64)
    shares, slopes = np.zeros(len(node_above)), np.zeros(S.size)
    for n in range(len(node_above) - 1, -1, -1):
        share, shift = shares[n] + node_ends[n] / masses[n, 0], shifts[n]
        if anew[n]:
            deepest_entries(n, tree, entry_word, path, deepest)
            for v in range(words):
                slopes[deepest[v]] += share * math.exp(S[deepest[v]] - shift)
            continue
        shares[node_above[n]] += share
        for e in range(starts[n], starts[n + 1]):
            slopes[e] += share * math.exp(S[e] - shift)
            slopes[above[e]] -= share * math.exp(S[above[e]] - shift)
    add_upwards(slopes, above)
    for e in range(out.size):
        feature = features[e] if features.size > 0 else 1.0
        out[e] = scale * (slopes[e] - below[e]) * feature
