"""Stable contexts kernels: softmax loss of a language model over a tree of contexts, for any finite scores.

These kernels are the slow counterpart of `contexts`. The kernels keep the scores S instead of exponentials. The mass Z
of a context, the sum of exp S over all words, is stored relative to exp(shift). Every context has a shift, by default
the shift of the parent context. A mass may be less than WORTH of the mass of a context above, or more than MOST. Such a
mass is summed directly over all V words, with the best score as the shift. The gradient of the targets below the
context then goes to the V words and not further up. Each direct sum costs V operations.
"""

import math

import numpy as np
from numba import njit

from structsparse.kernels.logspace import EXACT, PLAIN, SUMS
from structsparse.kernels.structures.contexts import MOST, WORTH, add_upwards, increment


@njit(**EXACT)
def path_sums(weights, features, base, above, out):
    """Stable contexts kernel: fill out [entries] with the scores S of entries.

    S is the sum of the score increments along the path from the empty context. above [entries] is the entry of the same
    word in the nearest context above."""
    for e in range(out.size):
        d = increment(weights, features, base, e)
        out[e] = d if above[e] < 0 else out[above[e]] + d


@njit(**PLAIN)
def deepest_entries(n, tree, entry_word, path, out):
    """Stable contexts kernel: fill out [V] with the deepest entry of each word on the path to node n.

    `tree` is (above of nodes, first entry of each node, above of entries, node of each entry). path [levels] is work
    memory."""
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
    """Stable contexts kernel: the normalisers of all contexts, log Z = shifts + log masses[:, 0].

    masses[:, 1] gets the largest mass on the path. anew [nodes] marks the contexts whose mass is summed over all words.
    """
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
    """Stable contexts kernel: the language-model loss sum_n N[n] log Z[n] - sum_e M[e] S[e].

    N, `node_ends`, counts the targets whose deepest context is node n. M, `entry_ends`, counts the targets whose
    deepest entry is e. Z is masses[:, 0] * exp(shifts)."""
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

    out [entries] <- scale * dloss/dweights. `below` counts the targets of each entry and all entries below; `node_ends`
    counts the targets of each node. masses, shifts and anew come from `masses`."""
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
