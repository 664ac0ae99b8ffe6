"""Contexts kernels: softmax loss of a language model over a tree of contexts, and its gradient.

The model:

- The tree has one node n per context. The parent of a context is a shorter context, a suffix of it. Node 0 is the empty
  context.
- An entry e is a pair of a context and a word. above[e] is the entry of the same word in the nearest shorter context.
- The increment of entry e is d[e] = features[e] * weights[e]. The first V entries are all words after the empty
  context. Their increments also include the array `base`.
- The score of the word in the context is S[e] = S[above[e]] + d[e].
- The mass of a context is Z = the sum of exp S over all V words. It is computed from the mass of the parent context:

    Z[n] = Z[parent of n] + sum over the entries e of n of (exp S[e] - exp S[above[e]])

Each target of the language model has a deepest context n and a deepest entry e in the tree. N[n] and M[e] count the
targets of each n and e. `below` is the sum of M over an entry and all entries below it. The loss is

    sum_n N[n] log Z[n] - sum_e M[e] S[e] = sum_n N[n] log Z[n] - sum_e below[e] d[e]

This module has the fast algorithm, which works with exp S and with differences of masses. It reports failure if exp S
exceeds MOST, or if Z falls below WORTH times the mass of a shorter context. `contexts_stable` has a slower algorithm
for these cases.

The order of nodes:

- A run is a range of consecutive nodes. A tile is a set of whole subtrees with about TILE entries, which fit in the CPU
  cache.
- A part is a list of runs that one thread processes. Parts share only the empty context. They depend on the tree alone.
  Results therefore do not depend on the number of threads.
"""

import math

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import EXACT, PLAIN, SUMS, exp

TILE = 1 << 15  # intended number of entries in a tile; a tile fits in the second-level CPU cache
PARTS, PART = 8, 1 << 17  # maximum number of parts of a tree; least number of entries in a part
STEEP, MOST = 300.0, 1e150  # largest score increment, and largest exp(score), that the fast algorithm accepts
WORTH = 2.0**-12  # least mass of a context, as a share of the largest mass of the shorter contexts above it
FULL = 1e140  # masses are multiplied up to this product before one logarithm is taken


# --- the order of nodes


@njit(**PLAIN)
def plan(above, starts):
    """Contexts kernel: plan the order in which the nodes of a context tree are processed.

    above[n] is the parent context of node n, and starts[n] its first entry. Returns two arrays:

    - runs int64 [runs, 2]: run r has the nodes runs[r, 0] to runs[r, 1] - 1. Node 0 is in no run.
    - parts int64 [parts + 1]: the index of the first run of each part. One thread processes a part."""
    nodes = len(above)
    sizes, tile = np.zeros(nodes, np.int64), np.zeros(nodes, np.int32)
    top = np.empty(nodes, np.int32)  # for each context, the one-word context from which it descends
    for n in range(1, nodes):
        top[n] = n if above[n] == 0 else top[above[n]]
        sizes[top[n]] += starts[n + 1] - starts[n]
    tiles = 0
    begun = 0
    for n in range(1, nodes):
        if top[n] == n:
            if begun == 0 or begun + sizes[n] > TILE:
                tiles, begun = tiles + 1, 0
            begun += sizes[n]
        tile[n] = tile[top[n]] if top[n] != n else tiles - 1
    order, offsets = _by_tile(tile, tiles)
    runs = np.empty((nodes, 2), np.int64)
    parts = np.zeros(PARTS + 1, np.int64)
    entries = starts[nodes] - starts[min(1, nodes)]
    share = max(PART, -(-entries // PARTS))
    count, part, done = 0, 0, 0
    for t in range(tiles):
        if done >= (part + 1) * share and part + 1 < PARTS:
            part += 1
            parts[part] = count
        for i in range(offsets[t], offsets[t + 1]):
            n = order[i]
            if i > offsets[t] and runs[count - 1, 1] == n:
                runs[count - 1, 1] = n + 1
            else:
                runs[count, 0], runs[count, 1] = n, n + 1
                count += 1
            done += starts[n + 1] - starts[n]
    parts[part + 1] = count
    return runs[:count].copy(), parts[: part + 2].copy()


@njit(**PLAIN)
def _by_tile(tile, tiles):
    """Contexts kernel: all nodes except 0, sorted by tile, then by index; also returns where each tile begins."""
    offsets = np.zeros(tiles + 1, np.int64)
    for n in range(1, len(tile)):
        offsets[tile[n] + 1] += 1
    for t in range(tiles):
        offsets[t + 1] += offsets[t]
    order, place = np.empty(len(tile) - 1, np.int64), offsets[:-1].copy()
    for n in range(1, len(tile)):
        order[place[tile[n]]] = n
        place[tile[n]] += 1
    return order, offsets


@njit(**PLAIN)
def add_upwards(values, above):
    """Contexts kernel: sum values over subtrees of contexts or entries.

    Adds values[k] to values[above[k]], from the last index k to the first."""
    for k in range(len(values) - 1, -1, -1):
        if above[k] >= 0:
            values[above[k]] += values[k]


# --- the fast algorithm


@njit(**EXACT)
def _exponentials(weights, features, out):
    """Contexts kernel: fill out [entries] with exp(features * weights) of some entries.

    Returns how many of the products features * weights have an absolute value of STEEP or more."""
    steep = 0
    if features.size == 0:
        for e in range(out.size):
            d = np.float64(weights[e])
            steep += 0 if abs(d) < STEEP else 1
            out[e] = exp(d)
    else:
        for e in range(out.size):
            d = np.float64(weights[e]) * np.float64(features[e])
            steep += 0 if abs(d) < STEEP else 1
            out[e] = exp(d)
    return steep


@njit(**SUMS)
def _gain(weights, features, below):
    """Contexts kernel: the part of the loss that is linear in the weights, sum_e below[e] * features[e] * weights[e].

    below[e] counts the targets at entry e and at all entries below it."""
    total = 0.0
    if features.size == 0:
        for e in range(below.size):
            total += below[e] * np.float64(weights[e])
    else:
        for e in range(below.size):
            total += below[e] * np.float64(weights[e]) * np.float64(features[e])
    return total


@njit(**EXACT)
def _root(weights, features, base, below, exps, masses):
    """Contexts kernel: fill `exps` and `masses` for the empty context, with exp(score - highest score) and their sum.

    Returns three numbers: the highest score, the part of the loss that is linear in the weights, and the count of
    scores that are too low for the fast algorithm."""
    words = below.size
    shift, gain = -np.inf, 0.0
    for e in range(words):
        d = increment(weights, features, base, e)
        shift = d if d > shift else shift
        gain += below[e] * d
        exps[e] = d
    total, steep = 0.0, 0
    for e in range(words):
        d = exps[e] - shift
        steep += 0 if d > -STEEP else 1
        exps[e] = exp(d)
        total += exps[e]
    masses[0, 0] = masses[0, 1] = total
    return shift, gain, steep


@njit(**EXACT)
def increment(weights, features, base, e):
    """Contexts kernel: the score increment of entry e, which is its feature times its weight.

    Words after the empty context also have the increment `base`. If `features` is empty, all features are 1."""
    d = np.float64(weights[e])
    if features.size > 0:
        d *= np.float64(features[e])
    if e < base.size:
        d += base[e]
    return d


@njit(**EXACT)
def _multiply(a, b, node, above, exps, masses):
    """Contexts kernel: compute exp(score) of the entries a to b - 1, and the mass of each node minus its parent's.

    Returns the number of entries whose exp(score) is out of range."""
    wild, last, gained = 0, -1, 0.0
    for e in range(a, b):
        n, x = node[e], exps[above[e]]
        y = exps[e] * x
        wild += 0 if y > 1 / MOST and y < MOST else 1
        exps[e] = y
        gained = (gained if n == last else 0.0) + (y - x)
        masses[n, 0] = gained
        last = n
    return wild


@njit(**EXACT)
def _gather(begin, end, above, node_ends, masses):
    """Contexts kernel: compute the masses Z of the nodes begin to end - 1.

    node_ends [nodes] counts the targets whose deepest context is each node. Returns the sum of node_ends * log Z over
    these nodes, and the number of masses out of range."""
    total, product, wild = 0.0, 1.0, 0
    for n in range(begin, end):
        p = above[n]
        mass, most = masses[p, 0] + masses[n, 0], masses[p, 1]
        wild += 0 if mass >= WORTH * most else 1
        masses[n, 0], masses[n, 1] = mass, mass if mass > most else most
        count = node_ends[n]
        if count <= 1.0:  # masses with count 1 are multiplied, and one logarithm is taken of the product
            product *= mass if count == 1.0 else 1.0
            if product > FULL or product < 1 / FULL:
                total += math.log(product)
                product = 1.0
        if not (count == 0.0 or count == 1.0):
            total += count * math.log(mass)
    return total + math.log(product), wild


@njit(**PLAIN)
def _forward_part(first, last, runs, tree, weights, features, below, node_ends, exps, masses):
    """Contexts kernel: the loss of one part of the context tree.

    Returns the loss, and the number of values out of the range of the fast algorithm."""
    node_above, starts, above, node = tree
    loss, wild = 0.0, 0
    for r in range(first, last):
        begin, end = runs[r]
        a, b = starts[begin], starts[end]
        part_features = features[a:b] if features.size > 0 else features
        wild += _exponentials(weights[a:b], part_features, exps[a:b])
        wild += _multiply(a, b, node, above, exps, masses)
        log_mass, extra = _gather(begin, end, node_above, node_ends, masses)
        wild += extra
        loss += log_mass - _gain(weights[a:b], part_features, below[a:b])
    return loss, wild


@njit(parallel=True, **PLAIN)
def forward(runs, parts, tree, weights, features, base, below, node_ends, total, words, exps, masses):
    """Contexts kernel: the language-model loss over a tree of contexts.

    - `runs` and `parts` come from `plan`.
    - `tree` has four arrays: parent of each node, first entry of each node, entry above each entry, node of each entry.
    - `total` is the count of targets, and `words` the count of words.

    Returns the loss, and whether all values are in the range of the fast algorithm. Fills exps [entries] and masses
    [nodes, 2] for `backward`. Row n of `masses` holds the mass of context n, and the largest mass on the path to it."""
    shift, gain, steep = _root(weights, features, base, below[:words], exps, masses)
    loss = total * shift + node_ends[0] * math.log(masses[0, 0]) - gain
    count = len(parts) - 1
    losses, wild = np.zeros(count), np.zeros(count, np.int64)
    if count == 1:
        losses[0], wild[0] = _forward_part(0, len(runs), runs, tree, weights, features, below, node_ends, exps, masses)
    else:
        for k in prange(count):
            losses[k], wild[k] = _forward_part(
                parts[k], parts[k + 1], runs, tree, weights, features, below, node_ends, exps, masses
            )
    return loss + losses.sum(), steep + wild.sum() == 0


@njit(**EXACT)
def _climb(begin, end, above, shares, place):
    """Contexts kernel: add the shares of the nodes begin to end - 1 to the shares of their parents.

    The share of a node is the count of its targets divided by its mass, summed over the node and all nodes below it.
    The share of node 0 is at shares[place]."""
    for n in range(end - 1, begin - 1, -1):
        p = above[n]
        shares[p if p > 0 else place] += shares[n]


@njit(**EXACT)
def _spread(a, b, words, node, above, exps, shares, slopes, root, first):
    """Contexts kernel: add the slopes of the entries a to b - 1 to the slopes of the entries above them.

    The slope of an entry is the part of its gradient that comes from longer contexts. `shares` comes from `_climb`. The
    first `words` entries belong to the empty context, which all parts of the tree share. Each part therefore has a copy
    of their slopes, which begins at slopes[root]. The slope of any other entry e is at slopes[first + e]."""
    for e in range(b - 1, a - 1, -1):
        q = above[e]
        slopes[q + (root if q < words else first)] += slopes[first + e] + shares[node[e]] * (exps[e] - exps[q])


@njit(**EXACT)
def _finish(node, exps, shares, slopes, below, features, scale, out):
    """Contexts kernel: the gradient of the loss in the weights of some entries, times `scale`.

    shares [nodes] comes from `_climb`, and slopes [entries] from `_spread`."""
    if features.size == 0:
        for e in range(out.size):
            out[e] = scale * (slopes[e] + shares[node[e]] * exps[e] - below[e])
    else:
        for e in range(out.size):
            out[e] = scale * (slopes[e] + shares[node[e]] * exps[e] - below[e]) * features[e]


@njit(**SUMS)
def _divide(counts, masses, out):
    """Contexts kernel: the count of targets of each node divided by its mass, out = counts / masses[:, 0]."""
    for n in range(out.size):
        out[n] = counts[n] / masses[n, 0]


@njit(**PLAIN)
def _backward_part(
    part, parts, runs, tree, features, below, node_ends, scale, exps, masses, shares, slopes, words, out
):
    """Contexts kernel: the gradient of the loss in the weights of one part of the context tree, for `backward`."""
    node_above, starts, above, node = tree
    count = len(parts) - 1
    root, first, place = part * words, (count - 1) * words, len(node_above) + part
    slopes[root : root + words], shares[place] = 0.0, 0.0
    for r in range(parts[part], parts[part + 1]):
        begin, end = runs[r]
        _divide(node_ends[begin:end], masses[begin:end], shares[begin:end])
        slopes[first + starts[begin] : first + starts[end]] = 0.0
    for r in range(parts[part + 1] - 1, parts[part] - 1, -1):
        begin, end = runs[r]
        a, b = starts[begin], starts[end]
        _climb(begin, end, node_above, shares, place)
        _spread(a, b, words, node, above, exps, shares, slopes, root, first)
        part_features = features[a:b] if features.size > 0 else features
        _finish(node[a:b], exps[a:b], shares, slopes[first + a : first + b], below[a:b], part_features, scale, out[a:b])


@njit(parallel=True, **PLAIN)
def backward(runs, parts, tree, features, below, node_ends, scale, exps, masses, shares, slopes, words, out):
    """Contexts kernel: the gradient of the language-model loss in the weights, times `scale`.

    out [entries] gets the gradient. The work memory is shares [nodes + parts] and slopes [entries + (parts - 1) *
    words]. `words` is the count of words."""
    count = len(parts) - 1
    if count == 1:
        _backward_part(
            0, parts, runs, tree, features, below, node_ends, scale, exps, masses, shares, slopes, words, out
        )
    else:
        for k in prange(count):
            _backward_part(
                *(k, parts, runs, tree, features, below, node_ends, scale),
                *(exps, masses, shares, slopes, words, out),
            )
    _finish_root(count, features, below, node_ends[0] / masses[0, 0], scale, exps, shares, slopes, words, out)


@njit(**PLAIN)
def _finish_root(count, features, below, share, scale, exps, shares, slopes, words, out):
    """Contexts kernel: the gradient of the loss in the weights of the empty context, summed over the tree's parts."""
    nodes = len(shares) - count
    for k in range(count):
        share += shares[nodes + k]
    for e in range(words):
        slope = share * exps[e]
        for k in range(count):
            slope += slopes[k * words + e]
        feature = features[e] if features.size > 0 else 1.0
        out[e] = scale * (slope - below[e]) * feature
