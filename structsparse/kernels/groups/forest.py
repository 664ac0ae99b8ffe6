"""Kernels for forests of nested groups: orders of the nodes, and sums and maxima over subtrees.

A node is a group. The parent of a node is the smallest group that contains it. The place of a node is its index in one
of two orders:

- Level order is breadth first: a node comes after its parent, and the children of a node are contiguous. above[k] is
  the place of the parent of the node at place k, or -1 for a root.
- Preorder is depth first: a subtree is contiguous.

The memory of a parameter consists of units, which are blocks of `width` entries. Unit u begins at entry u * width. The
node at place k owns the units `units[starts[k]:starts[k + 1]]`.

- If each node owns one unit, `starts` is empty.
- If the node at place k owns just unit k, for all k, `units` is empty as well.

Sums are float64.
"""

import numpy as np
from numba import njit

from structsparse.kernels.options import SERIAL, SUMS


@njit(**SERIAL)
def level_order(parents):
    """Forest groups kernel: level order (breadth first): for each place in it, the node and the place of the parent.

    parents [nodes] is the parent of each node, or -1 for a root. Nodes in cycles, or below them, are left out."""
    nodes = parents.size
    # before the loop that fills `children`, the children of node p begin there at first[p + 1], the roots at first[0]
    first = np.zeros(nodes + 2, np.int64)
    for i in range(nodes):
        first[parents[i] + 2] += 1
    for i in range(nodes):
        first[i + 2] += first[i + 1]
    children = np.empty(nodes, np.int32)
    for i in range(nodes):
        children[first[parents[i] + 1]] = i
        first[parents[i] + 1] += 1  # after the loop, first[p + 1] is one past the last child of node p
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
    """Forest groups kernel: whether the nodes are already in level order (by depth), given the parent of each node."""
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
    """Forest groups kernel: the first place of each level in level order, followed by the number of nodes."""
    offsets = [0]
    for k in range(above.size):
        if above[k] >= offsets[-1]:
            offsets.append(k)
    offsets.append(above.size)
    return np.array(offsets)


@njit(**SERIAL)
def cycle_above(parents, node):
    """Forest groups kernel: the nodes of the cycle in which the walk from a node to its parents ends.

    No root may be above the node."""
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
    """Forest groups kernel: for the node at each place in level order, its place in preorder (depth first)."""
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
    """Forest groups kernel: sort the units of memory by the place of the node that owns each unit.

    A unit is a block of entries, and a place is the index of a node in some order. owners [units] is the owning node of
    each unit, or -1 for none. place [nodes] is the place of each node. `units` gets the units, one place after the
    other. Returns the first index of each place in `units`."""
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
    """Forest groups kernel: replace values[k] by the sum of values over the subtree of node k.

    Nodes are in level order."""
    for k in range(above.size - 1, -1, -1):
        if above[k] >= 0:
            values[above[k]] += values[k]


@njit(**SERIAL)
def add_downwards(values, above):
    """Forest groups kernel: replace values[k] by the sum of values from the root to node k.

    Nodes are in level order."""
    for k in range(above.size):
        if above[k] >= 0:
            values[k] += values[above[k]]


@njit(**SERIAL)
def largest(x, units, starts, width, above, values):
    """Forest groups kernel: values[k] gets the largest |x| in the subtree of node k; nodes are in level order."""
    values[:] = 0.0
    for k in range(values.size - 1, -1, -1):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        most = values[k]
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                size = abs(np.float64(x[e]))
                most = size if not size <= most else most  # written so that NaN stays NaN
        values[k] = most
        if above[k] >= 0 and not most <= values[above[k]]:
            values[above[k]] = most


@njit(**SERIAL)
def largest_upwards(values, where, above):
    """Forest groups kernel: replace values[k] by the largest of the values in the subtree of node k.

    where[k] is the position in memory that values[k] comes from, and is replaced as well. A node with where[k] = -1 has
    no value. Nodes are in level order."""
    for k in range(above.size - 1, -1, -1):
        p = above[k]
        if p >= 0 and where[k] >= 0 and (where[p] < 0 or values[k] > values[p]):
            values[p], where[p] = values[k], where[k]


@njit(**SERIAL)
def own_largest(x, units, starts, width, values, where):
    """Forest groups kernel: values[k] gets the largest |x| among the entries of node k, without the nodes below.

    where[k] gets the position of this entry in x. A node without entries is unchanged."""
    for k in range(values.size):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                if where[k] < 0 or abs(x[e]) > values[k]:
                    values[k], where[k] = abs(x[e]), e


@njit(**SERIAL)
def own_squares(x, units, starts, width, cut, squares):
    """Forest groups kernel: squares[k] gets the sum of soft(x, cut)^2 over the entries of node k itself.

    Entries of the nodes below are left out. soft(x, cut) is soft thresholding of x at `cut`."""
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
    """Forest groups kernel: the sum of squares of the soft-thresholded entries in one unit (block) of memory."""
    total = 0.0
    for i in range(x.size):
        rest = np.float64(x[i] - min(max(x[i], -cut), cut))
        total += rest * rest
    return total


@njit(**SERIAL)
def _square_each(x, cut, squares):
    """Forest groups kernel: squares[k] gets the square of x[k], soft-thresholded at `cut`.

    Node k must have just this entry."""
    for k in range(squares.size):
        rest = np.float64(x[k] - min(max(x[k], -cut), cut))
        squares[k] = rest * rest


@njit(**SERIAL)
def _square_scattered(x, units, cut, squares):
    """Forest groups kernel: squares[k] gets the square of x[units[k]], soft-thresholded at `cut`.

    Node k must have just this entry."""
    for k in range(squares.size):
        rest = np.float64(x[units[k]] - min(max(x[units[k]], -cut), cut))
        squares[k] = rest * rest
