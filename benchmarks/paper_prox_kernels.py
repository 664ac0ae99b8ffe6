"""Kernels of the algorithms of Nelakanti, Archambeau, Mairal, Bach and Bouchard (2013) that clip subtrees; float64.

Twins of `kernels.prox.forest.clip_forest`, which does the same faster: these are its baselines. v and c hold the
sizes and counts (1 / step) of the entries of one node after the other.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL


@njit(**SERIAL)
def entries_in_order(x, steps, units, starts, width, nodes, v, c):
    """v <- |x|, c <- 1 / steps, of one node after the other; returns where each node's begin, and their places in x."""
    first, place = np.zeros(nodes + 1, np.int64), np.empty(v.size, np.int64)
    for k in range(nodes):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        i = first[k]
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                v[i], c[i], place[i] = abs(np.float64(x[e])), 1.0, e
                if steps.size > 0:
                    c[i] = 1 / np.float64(steps[e])
                i += 1
        first[k + 1] = i
    return first, place


@njit(**SERIAL)
def back_in_place(x, v, place):
    """x <- v with the signs of x, and plain zeros."""
    for i in range(v.size):
        x[place[i]] = -v[i] if x[place[i]] < 0 and v[i] > 0 else v[i]


# Algorithm 3: each subtree by itself, from the leaves to the roots. Pivots are drawn at random among those entries
# that may still lie on either side of the limit (Bruckner 1984, Duchi et al. 2008).


@njit(**SERIAL)
def clip_by_random_pivots(v, c, first, depth, reach, draw):
    """Nodes in preorder, so that a subtree is one stretch; reach [nodes]; draw: a random generator."""
    nodes = depth.size
    end, candidates = np.empty(nodes, np.int64), np.empty(v.size, np.int64)
    waiting = np.full(depth.max() + 2, nodes, np.int64)  # by depth, the next node to the right
    for k in range(nodes - 1, -1, -1):
        end[k] = waiting[: depth[k] + 1].min()
        waiting[depth[k]] = k
        if reach[k] > 0:
            a, b = first[k], first[end[k]]
            limit = _limit_by_pivots(v[a:b], c[a:b], reach[k], candidates, draw)
            for i in range(a, b):
                v[i] = min(v[i], limit)


@njit(**SERIAL)
def _limit_by_pivots(v, c, reach, candidates, draw):
    """The r at which sum c (v - r)+ is `reach`; 0 if it is less at 0."""
    low, high = 0, 0  # the candidates
    for i in range(v.size):
        if v[i] > 0 and c[i] > 0:
            candidates[high] = i
            high += 1
    mass = count = 0.0
    while low < high:
        at = draw.integers(low, high)
        pivot = candidates[at]
        candidates[at], candidates[high - 1] = candidates[high - 1], pivot
        more_mass, more_count, middle = v[pivot] * c[pivot], c[pivot], low
        for j in range(low, high - 1):  # the larger ones come first
            i = candidates[j]
            if v[i] >= v[pivot]:
                more_mass += v[i] * c[i]
                more_count += c[i]
                candidates[j], candidates[middle] = candidates[middle], i
                middle += 1
        if (mass + more_mass) - (count + more_count) * v[pivot] < reach:
            mass, count, low, high = mass + more_mass, count + more_count, middle, high - 1
        else:
            high = middle
    return max(0.0, (mass - reach) / count) if count > 0 else 0.0


# Algorithm 4: a heap of each subtree, from those of the children; the k largest are read in falling order, clipped
# where they are, and stay in the heap one by one. Heaps are skew heaps, merged in logarithmic time on average.


@njit(**SERIAL)
def clip_by_best_of_heap(v, c, first, above, reach):
    """Nodes with parents before children; reach [nodes]. Returns the mean number of entries read by a node that clips
    any."""
    nodes, entries = above.size, v.size
    left, right = np.full(entries, -1, np.int64), np.full(entries, -1, np.int64)
    queue, best = np.empty(entries + 1, np.int64), np.empty(entries, np.int64)
    top, mass, dead = np.full(nodes, -1, np.int64), np.zeros(nodes), np.zeros(nodes, np.bool_)
    clipped = taken = 0
    for k in range(nodes - 1, -1, -1):
        for i in range(first[k], first[k + 1]):
            if v[i] > 0 and c[i] > 0:
                top[k] = _merge(top[k], i, v, left, right)
                mass[k] += v[i] * c[i]
        if reach[k] > 0:
            if mass[k] <= reach[k]:
                top[k], mass[k], dead[k] = -1, 0.0, True
            else:
                clipped, taken = clipped + 1, taken + _clip_best(top[k], v, c, left, right, reach[k], queue, best)
                mass[k] -= reach[k]
        if above[k] >= 0:
            top[above[k]] = _merge(top[above[k]], top[k], v, left, right)
            mass[above[k]] += mass[k]
    for k in range(nodes):
        dead[k] |= above[k] >= 0 and dead[above[k]]
        if dead[k]:
            v[first[k] : first[k + 1]] = 0.0
    return taken / max(clipped, 1)


@njit(**SERIAL)
def _clip_best(top, v, c, left, right, reach, queue, best):
    """Clip the largest entries of a heap; how many."""
    mass = count = 0.0
    waiting, taken = _push(queue, 0, top, v), 0
    while waiting > 0:
        i = queue[0]
        if count > 0 and not v[i] > (mass + v[i] * c[i] - reach) / (count + c[i]):
            break
        waiting = _pop(queue, waiting, v)
        mass, count = mass + v[i] * c[i], count + c[i]
        best[taken] = i
        taken += 1
        if left[i] >= 0:
            waiting = _push(queue, waiting, left[i], v)
        if right[i] >= 0:
            waiting = _push(queue, waiting, right[i], v)
    limit = (mass - reach) / count
    for j in range(taken):
        v[best[j]] = min(v[best[j]], limit)
    return taken


@njit(**SERIAL)
def _push(queue, size, i, v):
    """A binary heap of entries, the largest first; its new size."""
    at = size
    while at > 0 and v[queue[(at - 1) // 2]] < v[i]:
        queue[at] = queue[(at - 1) // 2]
        at = (at - 1) // 2
    queue[at] = i
    return size + 1


@njit(**SERIAL)
def _pop(queue, size, v):
    size -= 1
    last, at = queue[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and v[queue[child + 1]] > v[queue[child]]:
            child += 1
        if v[queue[child]] <= v[last]:
            break
        queue[at] = queue[child]
        at = child
    queue[at] = last
    return size


@njit(**SERIAL)
def _merge(a, b, v, left, right):
    """Two skew heaps as one: along the right sides, whose children change sides on the way."""
    if a < 0 or b < 0:
        return max(a, b)
    if v[a] < v[b]:
        a, b = b, a
    top = at = a
    rest = right[at]
    right[at] = left[at]
    while rest >= 0:
        if v[rest] < v[b]:
            rest, b = b, rest
        left[at] = rest
        at = rest
        rest = right[at]
        right[at] = left[at]
    left[at] = b
    return top
