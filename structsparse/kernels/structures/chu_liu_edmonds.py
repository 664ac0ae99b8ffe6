"""Chu-Liu-Edmonds: the best dependency tree whose arcs may cross.

The matrix of scores is dense, and the time grows with n^2.

A path is grown from a token to its best head, and so on (Gabow, Galil, Spencer and Tarjan 1986). If it reaches the
root, or a node linked to the root before, all of it is linked. If it meets itself, the cycle is contracted to one node,
whose arcs are the best of its members', minus the score of the member's own arc in the cycle. At the end the cycles are
expanded from the last one made to the first: each loses the arc of the member at which the arc from outside enters.

With a single root, arcs from the root have rank 1, all others rank 0, and a lower rank precedes any score: the tree has
as few arcs from the root as possible, and is the best of these trees. Ranks are integers that are subtracted beside the
scores: an infinite penalty that costs no precision.

Among equal arcs the one from the lowest node is taken.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN

FRESH, ON_PATH, LINKED, MERGED, IN_CYCLE = range(5)


class Contractions(NamedTuple):
    """Work memory of contractions. A node is at a place, a cycle at that of its first member; names are unique over
    both."""

    ranks: np.ndarray  # [n + 1, n + 1] of the best arc between two nodes
    arcs: np.ndarray  # [n + 1, n + 1] which arc of tokens that is: modifier * (n + 1) + head
    state: np.ndarray  # [n + 1] state of the node at a place
    path: np.ndarray  # [n + 1] places
    names: np.ndarray  # [n + 1] name of the node at a place
    above: np.ndarray  # [names] the cycle that a node became part of
    enters: np.ndarray  # [names] the arc that enters a node


@njit(**PLAIN)
def room(size):
    """Work memory of contractions for up to size - 1 tokens."""
    ranks, arcs = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    state, path, names = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    return Contractions(ranks, arcs, state, path, names, np.empty(2 * size, np.int64), np.empty(2 * size, np.int64))


@njit(**PLAIN)
def _start(size, single, space):
    """Initialise the work memory: every token is a node of its own."""
    for m in range(size):
        for h in range(size):
            space.ranks[m, h] = 1 if single and h == 0 else 0
            space.arcs[m, h] = m * size + h
        space.state[m], space.names[m] = FRESH, m
    space.state[0] = LINKED
    space.above[:] = -1


@njit(**PLAIN)
def _best_head(v, size, scores, ranks, state):
    """The best head of node v, which may be a cycle; -1 if all are forbidden."""
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
    """Replace the arc at place `to` by that at place `at`, if that is better."""
    if not scores[at] > -np.inf:
        return
    better = ranks[at] < ranks[to] or (ranks[at] == ranks[to] and scores[at] > scores[to])
    if better or not scores[to] > -np.inf:
        scores[to], ranks[to], arcs[to] = scores[at], ranks[at], arcs[at]


@njit(**PLAIN)
def _contract(cycle, name, size, scores, space):
    """Contract a cycle of nodes, each followed by its head, into the first of them."""
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
    """Grow a path from `start` until it is linked to the root.

    Returns the name for the next cycle, -1 if there is no path."""
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
    """Fill heads [n + 1] with the best tree of scores [n + 1, n + 1], which are overwritten.

    Returns whether there is a tree."""
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
