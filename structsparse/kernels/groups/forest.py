"""Nested groups (forests) on the CPU: orders of their nodes, and sums and maxima over their subtrees.

Level order is breadth first: a node comes after its parent, and the children of a node lie side by side, so that loops
between two levels read and write memory in order. Nodes that come level by level already stay where they are. Preorder
is depth first: a subtree is contiguous, and the path to the root needs one slot per depth.

Memory of a node: a unit is `width` entries, unit u begins at u * width, and the node at place k owns units[starts[k]]
to units[starts[k + 1] - 1]. If each node owns one unit, `starts` is empty; if that is the unit at its own place,
`units` is empty, too. Sums are float64.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL, SUMS


@njit(**SERIAL)
def level_order(parents):
    """Level order of a forest: the node at each place, and the place of its parent. Nodes in cycles are left out."""
    nodes = parents.size
    first = np.zeros(nodes + 2, np.int64)  # of the children of node i - 1; roots are the children of node -1
    for i in range(nodes):
        first[parents[i] + 2] += 1
    for i in range(nodes):
        first[i + 2] += first[i + 1]
    children = np.empty(nodes, np.int32)
    for i in range(nodes):
        children[first[parents[i] + 1]] = i
        first[parents[i] + 1] += 1  # now the end of them
    order, above = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    end = first[0]
    for k in range(end):
        order[k], above[k] = children[k], -1
    k = 0
    while k < end:
        for c in range(first[order[k]], first[order[k] + 1]):
            order[end], above[end] = children[c], k
            end += 1
        k += 1
    return order[:end], above[:end]


@njit(**SERIAL)
def levelled(parents):
    """Whether the nodes of a forest already come level by level."""
    depth = np.zeros(parents.size, np.int32)
    for k in range(parents.size):
        if parents[k] >= k:
            return False
        if parents[k] >= 0:
            depth[k] = depth[parents[k]] + 1
        if k > 0 and depth[k] < depth[k - 1]:
            return False
    return True


@njit(**SERIAL)
def level_offsets(above):
    """Levels of a forest: the first place of each, then the number of nodes."""
    offsets = [0]
    for k in range(above.size):
        if above[k] >= offsets[-1]:
            offsets.append(k)
    offsets.append(above.size)
    return np.array(offsets)


@njit(**SERIAL)
def cycle_above(parents, node):
    """The cycle of parents above a node that reaches no root."""
    seen = np.zeros(parents.size, np.bool_)
    while not seen[node]:
        seen[node] = True
        node = parents[node]
    cycle = [node]
    while parents[cycle[-1]] != node:
        cycle.append(parents[cycle[-1]])
    return np.array(cycle)


@njit(**SERIAL)
def preorder(above):
    """Preorder of a forest: for each place in level order the place in preorder."""
    size = np.ones(above.size, np.int32)
    for k in range(above.size - 1, -1, -1):
        if above[k] >= 0:
            size[above[k]] += size[k]
    places, free, trees = np.empty(above.size, np.int32), np.empty(above.size, np.int32), 0
    for k in range(above.size):
        if above[k] < 0:
            places[k] = trees
            trees += size[k]
        else:
            places[k] = free[above[k]]
            free[above[k]] += size[k]
        free[k] = places[k] + 1
    return places


@njit(**SERIAL)
def units_by_place(owners, place, units):
    """Units of memory sorted by owner: units <- those of each place, one place after the other; returns where each
    place begins. Owner -1 is nobody."""
    starts = np.zeros(place.size + 2, np.int64)
    for unit in range(owners.size):
        if owners[unit] >= 0:
            starts[place[owners[unit]] + 2] += 1
    for k in range(place.size):
        starts[k + 2] += starts[k + 1]
    for unit in range(owners.size):
        if owners[unit] >= 0:
            k = place[owners[unit]] + 1
            units[starts[k]] = unit
            starts[k] += 1
    return starts[:-1]


@njit(**SERIAL)
def add_upwards(values, above):
    """Sums over subtrees: values[k], in level order, <- the sum over the subtree of k."""
    for k in range(above.size - 1, -1, -1):
        if above[k] >= 0:
            values[above[k]] += values[k]


@njit(**SERIAL)
def add_downwards(values, above):
    """Sums along paths: values[k], in level order, <- the sum over the path from the root to k."""
    for k in range(above.size):
        if above[k] >= 0:
            values[k] += values[above[k]]


@njit(**SERIAL)
def largest(x, units, starts, width, above, values):
    """Largest entries of subtrees: values[k], in level order, <- the largest |x| in the subtree of k."""
    values[:] = 0.0
    for k in range(values.size - 1, -1, -1):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        most = values[k]
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                size = abs(np.float64(x[e]))
                most = size if not size <= most else most  # NaN stays NaN
        values[k] = most
        if above[k] >= 0 and not most <= values[above[k]]:
            values[above[k]] = most


@njit(**SERIAL)
def largest_upwards(values, where, above):
    """Maxima over subtrees: values[k], in level order, <- the largest in the subtree of k, where[k] <- its place."""
    for k in range(above.size - 1, -1, -1):
        p = above[k]
        if p >= 0 and where[k] >= 0 and (where[p] < 0 or values[k] > values[p]):
            values[p], where[p] = values[k], where[k]


@njit(**SERIAL)
def own_largest(x, units, starts, width, values, where):
    """Largest entries of nodes without their subtrees: values[k] <- the largest |x| among the entries of node k itself,
    where[k] <- its place in x; unchanged for nodes without entries."""
    for k in range(values.size):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                if where[k] < 0 or abs(x[e]) > values[k]:
                    values[k], where[k] = abs(x[e]), e


@njit(**SERIAL)
def own_squares(x, units, starts, width, cut, squares):
    """Squared norms of nodes without their subtrees: squares[k] <- sum of soft(x, cut)^2 over the entries of node k."""
    if width == 1 and starts.size == 0:
        if units.size == 0:
            _square_each(x, cut, squares)
        else:
            _square_scattered(x, units, cut, squares)
        return
    for k in range(squares.size):
        squares[k] = 0.0
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            squares[k] += _squares(x[unit * width : (unit + 1) * width], cut)


@njit(**SUMS)
def _squares(x, cut):
    """Sum of the squares of soft(x, cut)."""
    total = 0.0
    for i in range(x.size):
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SERIAL)
def _square_each(x, cut, squares):
    """`own_squares` where each node owns the entry at its own place."""
    for k in range(squares.size):
        rest = np.float64(x[k] - min(max(x[k], -cut), cut))
        squares[k] = rest * rest


@njit(**SERIAL)
def _square_scattered(x, units, cut, squares):
    """`own_squares` where each node owns one entry."""
    for k in range(squares.size):
        rest = np.float64(x[units[k]] - min(max(x[units[k]], -cut), cut))
        squares[k] = rest * rest
