"""Chu-Liu-Edmonds kernels: the best nonprojective dependency tree, whose arcs may cross, in time n^2 for n tokens.

A node is a token, the root, or a contracted cycle. The algorithm is that of Gabow, Galil, Spencer and Tarjan (1986):

- A path is grown from a token to its best head, then to the best head of this head, and so on.
- If the path reaches the root, or a node that was linked to the root before, all nodes of the path are linked.
- If the path meets itself, the cycle is contracted to one node. The score of an arc from outside to a node of the cycle
  is reduced by the score of the cycle's arc to this node.
- At the end the cycles are expanded, from the last to the first. Each cycle loses one arc: the arc to the node that is
  entered from outside.

If a single root is required, arcs from the root have rank 1 and all other arcs have rank 0. Arcs are compared by rank
first, then by score. The tree therefore has as few arcs from the root as possible.

Among arcs with equal scores, the arc from the lowest node is taken.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN

FRESH, ON_PATH, LINKED, MERGED, IN_CYCLE = range(5)  # states of a node


class Contractions(NamedTuple):
    """Work memory of the Chu-Liu-Edmonds kernel for the contraction of cycles.

    A node is a token, the root, or a contracted cycle. A place is an index in the score matrix; a cycle has the place
    of one of its nodes. A name is a unique number of a node."""

    ranks: np.ndarray  # [n + 1, n + 1]: rank of the best arc between two nodes: 1 if it leaves a single root, else 0
    arcs: np.ndarray  # [n + 1, n + 1]: best arc between two nodes, coded as modifier * (n + 1) + head
    state: np.ndarray  # [n + 1]: state of the node at each place, such as FRESH or LINKED
    path: np.ndarray  # [n + 1]: places of the nodes on the path that is being grown
    names: np.ndarray  # [n + 1]: name of the node at each place
    above: np.ndarray  # [names]: name of the cycle that a node became part of, or -1
    enters: np.ndarray  # [names]: the arc from a node's head to the node, coded as in `arcs`


@njit(**PLAIN)
def room(size):
    """Chu-Liu-Edmonds kernel: work memory for sentences of at most size - 1 tokens."""
    ranks, arcs = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    state, path, names = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    return Contractions(ranks, arcs, state, path, names, np.empty(2 * size, np.int64), np.empty(2 * size, np.int64))


@njit(**PLAIN)
def _start(size, single, space):
    """Chu-Liu-Edmonds kernel: initialise the work memory.

    Every token is a node of its own. Only the root counts as linked to the root."""
    for m in range(size):
        for h in range(size):
            space.ranks[m, h] = 1 if single and h == 0 else 0
            space.arcs[m, h] = m * size + h
        space.state[m], space.names[m] = FRESH, m
    space.state[0] = LINKED
    space.above[:] = -1


@njit(**PLAIN)
def _best_head(v, size, scores, ranks, state):
    """Chu-Liu-Edmonds kernel: the best head of node v (a token or contracted cycle), or -1 if all are forbidden."""
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
    """Chu-Liu-Edmonds kernel: replace the arc at index pair `to` by the arc at index pair `at`, if this is better.

    The arc with the lower rank is better. Among equal ranks, the arc with the higher score is better."""
    if not scores[at] > -np.inf:
        return
    better = ranks[at] < ranks[to] or (ranks[at] == ranks[to] and scores[at] > scores[to])
    if better or not scores[to] > -np.inf:
        scores[to], ranks[to], arcs[to] = scores[at], ranks[at], arcs[at]


@njit(**PLAIN)
def _contract(cycle, name, size, scores, space):
    """Chu-Liu-Edmonds kernel: contract a cycle of nodes into its first node.

    `cycle` lists the nodes, and each node is followed by its head. `name` becomes the name of the contracted node."""
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

    `name` is the first unused name for contracted cycles. Returns the first name that is then unused, or -1 if no path
    to the root exists."""
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
    """Chu-Liu-Edmonds kernel: fill `heads` with the best nonprojective tree; returns whether a tree exists.

    For n tokens, `heads` has the shape [n + 1]. `scores` has the shape [n + 1, n + 1], with a row per modifier and a
    column per head, and is overwritten. `single` tells whether the tree must have a single root."""
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
