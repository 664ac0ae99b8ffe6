"""The best dependency tree whose arcs may cross: Edmonds' contractions, on a dense matrix in time n^2.

A path is grown from token to best head (Gabow, Galil, Spencer and Tarjan 1986). If it reaches the root, or what was
linked to the root before, all of it is linked. If it meets itself, the cycle becomes one node, whose arcs are the
best of its members', less what the member's own arc in the cycle is worth. At the end the cycles are opened from the
last one made to the first: each loses the arc of the member where the arc from outside enters.

With a single root every arc from the root has rank 1, all others 0, and a lower rank goes before any score: the tree
has the fewest arcs from the root that it can have, and of those trees it is the best. Ranks are integers that are
subtracted beside the scores: a penalty without a size, which no score outweighs and no digit is lost to.

Of equal arcs the one from the lowest node is taken.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from structsparse.kernels.logspace import PLAIN

FRESH, ON_PATH, LINKED, MERGED, IN_CYCLE = range(5)


class Room(NamedTuple):
    """Work space. Nodes are known by their place, cycles by that of their first member; names tell all apart."""

    ranks: np.ndarray  # [n + 1, n + 1] of the best arc between two nodes
    arcs: np.ndarray  # [n + 1, n + 1] which arc of tokens that is: modifier * (n + 1) + head
    state: np.ndarray  # [n + 1] of the node at a place
    path: np.ndarray  # [n + 1] places
    names: np.ndarray  # [n + 1] of the node at a place
    above: np.ndarray  # [names] the cycle that a node became part of
    enters: np.ndarray  # [names] the arc that enters a node


@njit(**PLAIN)
def room(size):
    """For `best` of up to size - 1 tokens."""
    ranks, arcs = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    state, path, names = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    return Room(ranks, arcs, state, path, names, np.empty(2 * size, np.int64), np.empty(2 * size, np.int64))


@njit(**PLAIN)
def _start(size, single, space):
    for m in range(size):
        for h in range(size):
            space.ranks[m, h] = 1 if single and h == 0 else 0
            space.arcs[m, h] = m * size + h
        space.state[m], space.names[m] = FRESH, m
    space.state[0] = LINKED
    space.above[:] = -1


@njit(**PLAIN)
def _best_head(v, size, scores, ranks, state):
    """The node of the best arc into v, -1 where all are forbidden."""
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
    """Let the arc at place `at` stand for that at place `to`, if it is better."""
    if not scores[at] > -np.inf:
        return
    better = ranks[at] < ranks[to] or (ranks[at] == ranks[to] and scores[at] > scores[to])
    if better or not scores[to] > -np.inf:
        scores[to], ranks[to], arcs[to] = scores[at], ranks[at], arcs[at]


@njit(**PLAIN)
def _contract(cycle, name, size, scores, space):
    """Merge the nodes of a cycle, each followed by its head, into the first of them."""
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
    """Link `start` to the root; returns the name for the next cycle, -1 where there is no way."""
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
    """Fill heads [n + 1] with the best tree of scores [n + 1, n + 1], which are spoiled; whether there is one."""
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
