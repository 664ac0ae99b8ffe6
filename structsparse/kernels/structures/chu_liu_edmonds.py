"""Chu-Liu-Edmonds kernels: the best nonprojective dependency tree, whose arcs may cross, in time n^2 for n tokens.

The matrix of scores is dense. A node is a token, the root, or a contracted cycle. A path is grown from a token to its
best head, then to the best head of this head, and so on. The path follows Gabow, Galil, Spencer and Tarjan (1986). If
the path reaches the root, or a node linked to the root before, all nodes of the path are linked. If the path meets
itself, the cycle is contracted to one node. Let an arc lead from outside into a member of the cycle. The score of this
arc is reduced by the score of the arc that enters the member within the cycle. The best such arc becomes the arc into
the contracted node. At the end the cycles are expanded, from the last to the first. Each cycle loses one arc: the arc
into the member at which the arc from outside enters.

With a single root, arcs from the root have rank 1, all other arcs have rank 0, and a lower rank precedes any score. So
the tree has as few arcs from the root as possible, and is the best of these trees. Ranks act as an infinite penalty.
Ranks are integers beside the scores, so the penalty costs no precision.

Among arcs with equal scores, the arc from the lowest node is taken.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN

FRESH, ON_PATH, LINKED, MERGED, IN_CYCLE = range(5)  # states of a node


class Contractions(NamedTuple):
    """Work memory of the Chu-Liu-Edmonds kernel for the contraction of cycles.

    A token has a place of its own, and a cycle has the place of its first member. Every token and every cycle has a
    name, which is a number."""

    ranks: np.ndarray  # [n + 1, n + 1]: rank of the best arc between two nodes
    arcs: np.ndarray  # [n + 1, n + 1]: best arc between two nodes, as the number modifier * (n + 1) + head of tokens
    state: np.ndarray  # [n + 1]: state of the node at each place
    path: np.ndarray  # [n + 1]: places of the nodes on the path
    names: np.ndarray  # [n + 1]: name of the node at each place
    above: np.ndarray  # [names]: name of the cycle that a node became part of, or -1
    enters: np.ndarray  # [names]: the arc that enters a node


@njit(**PLAIN)
def room(size):
    """Chu-Liu-Edmonds kernel: work memory for sentences of up to size - 1 tokens."""
    ranks, arcs = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    state, path, names = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    return Contractions(ranks, arcs, state, path, names, np.empty(2 * size, np.int64), np.empty(2 * size, np.int64))


@njit(**PLAIN)
def _start(size, single, space):
    """Chu-Liu-Edmonds kernel: initialise the work memory; tokens are separate nodes, and only the root is linked."""
    for m in range(size):
        for h in range(size):
            space.ranks[m, h] = 1 if single and h == 0 else 0
            space.arcs[m, h] = m * size + h
        space.state[m], space.names[m] = FRESH, m
    space.state[0] = LINKED
    space.above[:] = -1


@njit(**PLAIN)
def _best_head(v, size, scores, ranks, state):
    """Chu-Liu-Edmonds kernel: the best head of node v, which may be a cycle; -1 if all heads are forbidden."""
    best = -1
    for u in range(size):
        if u == v or state[u] == MERGED or not scores[v, u] > -np.inf:
            continue
        if (
            best < 0
            or ranks[v, u] < ranks[v, best]
            or (ranks[v, u] == ranks[v, best] and scores[v, u] > scores[v, best])
        ):
            best = u
    return best


@njit(**PLAIN)
def _take(to, at, scores, ranks, arcs):
    """Chu-Liu-Edmonds kernel: replace the arc at index pair `to` by the arc at index pair `at` if that is better.

    A lower rank is better; among equal ranks, a higher score is better."""
    if not scores[at] > -np.inf:
        return
    better = ranks[at] < ranks[to] or (ranks[at] == ranks[to] and scores[at] > scores[to])
    if better or not scores[to] > -np.inf:
        scores[to], ranks[to], arcs[to] = scores[at], ranks[at], arcs[at]


@njit(**PLAIN)
def _contract(cycle, name, size, scores, space):
    """Chu-Liu-Edmonds kernel: contract a cycle of nodes into its first node.

    In `cycle`, each node is followed by its head. `name` is the name of the contracted node."""
    ranks, arcs, state, r = space.ranks, space.arcs, space.state, cycle[0]
    for v in cycle:
        state[v] = IN_CYCLE
        space.above[space.names[v]] = name
    for i in range(len(cycle)):
        v, head = cycle[i], cycle[(i + 1) % len(cycle)]
        worth, rank = scores[v, head], ranks[v, head]
        for u in range(size):
            if state[u] != MERGED and state[u] != IN_CYCLE:
                scores[v, u] -= worth
                ranks[v, u] -= rank
                if v != r:
                    _take((r, u), (v, u), scores, ranks, arcs)
                    if state[u] != LINKED:
                        _take((u, r), (u, v), scores, ranks, arcs)
    for v in cycle:
        state[v] = MERGED
    state[r], space.names[r] = ON_PATH, name


@njit(**PLAIN)
def _grow(start, name, size, scores, space):
    """Chu-Liu-Edmonds kernel: grow a path of best heads from node `start` until the path is linked to the root.

    `name` is the first free name for cycles. Returns the first name that is still free, or -1 if no path to the root
    exists."""
    state, path = space.state, space.path
    path[0], count = start, 1
    state[start] = ON_PATH
    while True:
        v = path[count - 1]
        u = _best_head(v, size, scores, space.ranks, state)
        if u < 0:
            return -1
        space.enters[space.names[v]] = space.arcs[v, u]
        if state[u] == FRESH:
            state[u], path[count] = ON_PATH, u
            count += 1
        elif state[u] == LINKED:
            for i in range(count):
                state[path[i]] = LINKED
            return name
        else:
            bottom = count - 1
            while path[bottom] != u:
                bottom -= 1
            _contract(path[bottom:count], name, size, scores, space)
            name, count = name + 1, bottom + 1


@njit(**PLAIN)
def best(scores, single, heads, space):
    """Chu-Liu-Edmonds kernel: fill heads [n + 1] with the best nonprojective tree; returns whether a tree exists.

    scores [n + 1, n + 1] are modifiers by heads and are overwritten. The tree has a single root if `single`."""
    size = len(heads)
    enters, name = space.enters, size
    _start(size, single, space)
    for start in range(1, size):
        if space.state[start] == FRESH:
            name = _grow(start, name, size, scores, space)
            if name < 0:
                return False
    for cycle in range(name - 1, size - 1, -1):
        node = enters[cycle] // size
        while space.above[node] != cycle:
            node = space.above[node]
        enters[node] = enters[cycle]
    heads[0], roots = 0, 0
    for m in range(1, size):
        heads[m] = enters[m] % size
        roots += heads[m] == 0
    return roots == 1 or not single
