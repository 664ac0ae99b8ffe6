"""Kernels of the prox of a forest of nested groups: norms or largest absolute values of subtrees, in place.

A node is a group, and its subtree has all entries of the group. Memory is flat, contiguous, float32 or float64. Numbers
per node are float64. soft(x, cut) is soft thresholding of x at `cut`.

`kernels.groups.forest` explains the orders of nodes, and `units`, `starts` and `width`, which describe the memory of
each node.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.groups.forest import own_squares
from structsparse.kernels.options import PARALLEL, SERIAL
from structsparse.kernels.prox.blocks import ALONE

HEAP = np.dtype([("value", np.float64), ("count", np.float64), ("child", np.int32), ("next", np.int32)])
STRETCH = 1 << 12  # number of nodes of a level that are processed together; their data fit the CPU cache


# --- prox of Euclidean norms: each subtree is scaled by a factor, from the leaves to the roots


@njit(**SERIAL)
def shrink_forest(x, units, starts, width, above, levels, weight, threshold, cut, squares, factor):
    """Forest prox kernel: prox of norms of subtrees, threshold * sum_k weight[k] ||V_k|| + cut * ||V||_1.

    V are all entries, and V_k those of the subtree of node k. Nodes are in level order. `squares` and `factor` [nodes]
    are work memory.

    From the leaves to the roots, each subtree is scaled by the factor max(0, 1 - threshold * weight / norm). From the
    roots to the leaves, the factors are multiplied."""
    own_squares(x, units, starts, width, cut, squares)
    for level in range(levels.size - 2, -1, -1):
        for a in range(levels[level], levels[level + 1], STRETCH):
            b = min(a + STRETCH, levels[level + 1])
            _factors(squares[a:b], weight[a:b], threshold, factor[a:b])
            if level > 0:
                _add_to_parents(squares[a:b], above[a:b], squares)
    _multiply_downwards(factor[levels[1] :], above[levels[1] :], factor)
    _scale_own(x, units, starts, width, cut, factor)


@njit(**SERIAL)
def shrink_columns(x, place, above, weight, threshold, cut, squares, factor):
    """Forest prox kernel: the prox of `shrink_forest` for every column of a table, all under the same forest.

    x is [rows, columns], and place[i] is the place of the node of row i in level order, or -1. `squares` and `factor`
    [nodes, block] are work memory, in the precision of x. Columns are processed in blocks, so that the loops over the
    columns of a block are vectorised."""
    block, zero = squares.shape[1], x.dtype.type(0)
    for a in range(0, x.shape[1], block):
        columns = min(block, x.shape[1] - a)
        squares[:] = zero
        for i in range(x.shape[0]):
            if place[i] >= 0:
                _add_squares(x[i, a : a + columns], cut, squares[place[i]])
        for k in range(above.size - 1, -1, -1):
            _column_factors(squares[k, :columns], x.dtype.type(threshold * weight[k]), factor[k])
            if above[k] >= 0:
                _add(squares[k, :columns], squares[above[k]])
        for k in range(above.size):
            if above[k] >= 0:
                _multiply(factor[k, :columns], factor[above[k]])
        for i in range(x.shape[0]):
            if place[i] >= 0:
                _scale_by_column(x[i, a : a + columns], cut, factor[place[i]])


@njit(**SERIAL)
def _add_squares(x, cut, squares):
    """Forest prox kernel for columns: add soft(x, cut)^2 to the squares of the node of a row, column by column."""
    for c in range(x.size):
        value = x[c] - min(max(x[c], -cut), cut)
        squares[c] += value * value


@njit(**SERIAL)
def _column_factors(squares, reach, factor):
    """Forest prox kernel for columns: the factor max(0, 1 - reach / norm) of a node in each column.

    As in `_factors`, `squares` is then multiplied by the squared factor."""
    one, zero = squares.dtype.type(1), squares.dtype.type(0)
    if not reach > 0:  # a reach of NaN, which comes from 0 * inf, counts as 0
        factor[: squares.size] = one
        return
    for c in range(squares.size):
        norm = np.sqrt(squares[c])
        share = one - reach / norm
        factor[c] = zero if norm <= reach else share  # written so that NaN stays NaN
        squares[c] *= factor[c] * factor[c]


@njit(**SERIAL)
def _add(values, totals):
    """Forest prox kernel for columns: add the squares of a node to those of its parent, column by column."""
    for c in range(values.size):
        totals[c] += values[c]


@njit(**SERIAL)
def _multiply(values, factors):
    """Forest prox kernel for columns: multiply the factors of a node by those of its parent, column by column."""
    for c in range(values.size):
        values[c] *= factors[c]


@njit(**SERIAL)
def _scale_by_column(x, cut, factor):
    """Forest prox kernel for columns: x <- soft(x, cut) * factor for the entries of a row, column by column."""
    zero = x.dtype.type(0)
    for c in range(x.size):
        scaled = (x[c] - min(max(x[c], -cut), cut)) * factor[c]
        x[c] = zero if factor[c] == 0 else scaled


@njit(**SERIAL)
def _factors(squares, weight, threshold, factor):
    """Forest prox kernel: the factor max(0, 1 - reach / norm) of each subtree, with reach = threshold * weight.

    On entry, `squares` holds the squared norm of each subtree. It is then multiplied by the squared factor."""
    for k in range(squares.size):
        norm, reach = np.sqrt(squares[k]), threshold * weight[k]
        share = 1 - reach / norm
        share = 0.0 if norm <= reach else share  # written so that NaN stays NaN
        factor[k] = share if reach > 0 else 1.0  # NaN, which comes from 0 * inf, counts as a reach of 0
        squares[k] *= factor[k] * factor[k]


@njit(**SERIAL)
def _add_to_parents(squares, above, parents):
    """Forest prox kernel: add the squared norm of each node of a level to the squared norm of its parent."""
    for k in range(squares.size):
        parents[above[k]] += squares[k]


@njit(**SERIAL)
def _multiply_downwards(factor, above, parents):
    """Forest prox kernel: multiply the factor of each node by the factor of its parent, from the roots down."""
    for k in range(factor.size):
        factor[k] *= parents[above[k]]


@njit(**SERIAL)
def _scale_own(x, units, starts, width, cut, factor):
    """Forest prox kernel: multiply the own entries of each node by its factor, x <- soft(x, cut) * factor.

    The own entries of a node are those that belong to no node below."""
    if width == 1 and starts.size == 0:
        if units.size == 0:
            _scale_each(x, cut, factor)
        else:
            _scale_scattered(x, units, cut, factor)
        return
    for k in range(factor.size):
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            _scale(x[unit * width : (unit + 1) * width], cut, x.dtype.type(factor[k]))


@njit(**SERIAL)
def _scale(x, cut, factor):
    """Forest prox kernel: scale one unit of memory, a part of the entries of a node: x <- soft(x, cut) * factor."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        scaled = (x[i] - min(max(x[i], -cut), cut)) * factor
        x[i] = zero if factor == 0 else scaled


@njit(**SERIAL)
def _scale_each(x, cut, factor):
    """Forest prox kernel: x[k] <- soft(x[k], cut) * factor[k], if each node k has just the entry k."""
    zero = x.dtype.type(0)
    for k in range(factor.size):
        scaled = (x[k] - min(max(x[k], -cut), cut)) * x.dtype.type(factor[k])
        x[k] = zero if factor[k] == 0 else scaled


@njit(**SERIAL)
def _scale_scattered(x, units, cut, factor):
    """Forest prox kernel: x[u] <- soft(x[u], cut) * factor[k], if each node k has just the entry u = units[k]."""
    zero = x.dtype.type(0)
    for k in range(factor.size):
        u = units[k]
        scaled = (x[u] - min(max(x[u], -cut), cut)) * x.dtype.type(factor[k])
        x[u] = zero if factor[k] == 0 else scaled


# --- prox of largest absolute values: each subtree is clipped at a height, from the leaves to the roots


@njit(**PARALLEL)
def clip_forest(x, steps, units, starts, width, depth, weight, chunks, strength, cut, heap, limit):
    """Forest prox kernel: prox of largest entries of subtrees, strength * sum_k weight[k] max|V_k| + cut * ||V||_1.

    V are all entries, and V_k those of the subtree of node k. Nodes are in preorder. Chunk c has the whole trees from
    place chunks[c] to chunks[c + 1] - 1.

    - Each subtree is clipped at the height r at which the sum of max(|v| - r, 0) / step over its entries v equals
      strength * weight. If the sum is smaller even for r = 0, the subtree becomes zero.
    - `steps` has one step per entry. If `steps` is empty, strength and cut are already multiplied by the step.
    - `heap` (one element per entry) and `limit` (one number per node) are work memory."""
    memory, trees = (units, starts, width), (depth, weight, limit)
    if x.size <= ALONE:
        for chunk in range(chunks.size - 1):
            _clip_chunk(chunks[chunk], chunks[chunk + 1], x, steps, memory, trees, strength, cut, heap)
        return
    for chunk in prange(chunks.size - 1):
        _clip_chunk(chunks[chunk], chunks[chunk + 1], x, steps, memory, trees, strength, cut, heap)


@njit(**SERIAL)
def clip_forest_in_levels(x, steps, width, above, weight, strength, cut, heap, tops, mass, limit):
    """Forest prox kernel: prox of largest entries of subtrees, for nodes in level order with `width` own entries each.

    The entries of the node at place k begin at x[k * width]. The penalty is that of `clip_forest`. `heap`, `tops`,
    `mass` and `limit` are work memory."""
    tops[:], mass[:] = -1, 0.0
    for k in range(above.size - 1, -1, -1):
        top = tops[k]
        for e in range(k * width, (k + 1) * width):
            top, entry_mass = _with_entry(heap, top, e, x, steps, cut, e)
            mass[k] += entry_mass
        limit[k], top, mass[k] = _limit(heap, top, mass[k], strength * weight[k])
        p = above[k]
        if p >= 0 and top >= 0:
            tops[p] = top if tops[p] < 0 else _link(heap, tops[p], top)
            mass[p] += mass[k]
    for k in range(above.size):
        if above[k] >= 0 and limit[above[k]] < limit[k]:
            limit[k] = limit[above[k]]
        for e in range(k * width, (k + 1) * width):
            _clip_entry(x, e, steps, cut, x.dtype.type(limit[k]))


@njit(**SERIAL)
def _clip_chunk(a, b, x, steps, memory, trees, strength, cut, heap):
    """Forest prox kernel: clip the trees of one chunk, which are the nodes at places a to b - 1 in preorder."""
    (units, starts, width), (depth, weight, limit) = memory, trees
    first, last = (starts[a] * width, starts[b] * width) if starts.size > 0 else (a * width, b * width)
    if starts.size > 0:
        starts = starts[a : b + 1]
    elif units.size > 0:
        units = units[a:b]
    else:  # node k has just unit k; the memory of the chunk is contiguous
        x, steps = x[first:last], steps[first:last]
    memory, trees = (units, starts, width), (depth[a:b], weight[a:b], limit[a:b])
    _limits(x, steps, memory, trees, strength, cut, heap[first:last])
    _clip_own(x, steps, memory, trees, cut)


@njit(**SERIAL)
def _limits(x, steps, memory, trees, strength, cut, heap):
    """Forest prox kernel: limit[k] gets the height at which node k clips the entries of its subtree.

    Its ancestors may clip them at a lower height."""
    (units, starts, width), (depth, weight, limit) = memory, trees
    deepest = depth.max() + 2
    # One heap per depth holds the entries of finished subtrees whose parent is not finished. `tops` has the array index
    # of the largest element of each heap, `masses` the sum of value / step over its entries.
    tops, masses = np.full(deepest, -1, np.int32), np.zeros(deepest)
    slot = heap.size
    for k in range(depth.size - 1, -1, -1):
        d = depth[k]
        top, mass = tops[d + 1], masses[d + 1]
        tops[d + 1], masses[d + 1] = -1, 0.0
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                slot -= 1
                top, entry_mass = _with_entry(heap, top, slot, x, steps, cut, e)
                mass += entry_mass
        limit[k], top, mass = _limit(heap, top, mass, strength * weight[k])
        if top >= 0:
            tops[d] = top if tops[d] < 0 else _link(heap, tops[d], top)
            masses[d] += mass


@njit(**SERIAL)
def _with_entry(heap, top, slot, x, steps, cut, e):
    """Forest prox kernel: add entry e of x to a heap of the entries of a subtree, sorted by size.

    The size of the entry is its absolute value after soft thresholding at `cut`. The heap is a pairing heap in the
    array `heap`; `top` is the array index of its largest element, -1 if empty. The entry is stored at index `slot`.
    Returns the index of the new largest element, and the size divided by the step of the entry."""
    value, count = abs(np.float64(x[e])), 1.0
    if steps.size > 0:
        count = 1 / np.float64(steps[e])
    value = _less(value, steps, e, cut)
    if not (value > 0 and count > 0):  # an entry with an infinite step has mass 0
        return top, 0.0
    slot = np.int32(slot)
    heap[slot].value, heap[slot].count, heap[slot].child = value, count, -1
    return (slot if top < 0 else _link(heap, top, slot)), value * count


@njit(**SERIAL)
def _limit(heap, top, mass, reach):
    """Forest prox kernel: the height at which a subtree is clipped, computed from the heap of its entries.

    `top` is the array index of the largest element of the heap, -1 if empty. `mass` is the sum of |v| / step over the
    entries v of the subtree. Clipping lowers it by `reach` (strength * weight). Returns the height, and the new `top`
    and `mass`."""
    if not reach > 0:
        return np.inf, top, mass
    if not mass > reach:
        return 0.0, np.int32(-1), 0.0
    limit, top = _lower_top(heap, top, reach)
    return (limit, top, mass - reach) if limit > 0 else (limit, np.int32(-1), 0.0)


@njit(**SERIAL)
def _less(value, steps, e, cut):
    """Forest prox kernel: the absolute value of entry e after soft thresholding, from its absolute value `value`."""
    if cut == 0:
        return value
    reach = cut * steps[e] if steps.size > 0 else cut
    return value - min(value, reach)


@njit(**SERIAL)
def _lower_top(heap, top, reach):
    """Forest prox kernel: clip the largest entries in a heap, until the sum of value / step has fallen by `reach`.

    `top` is the array index of the largest element of the heap. Returns the height at which entries are clipped, and
    the array index of the new largest element."""
    first, mass, count, limit = top, 0.0, 0.0, -1.0
    while top >= 0:
        value = heap[top].value
        if count > 0 and mass - reach >= value * count:
            break
        mass += value * heap[top].count
        count += heap[top].count
        top = _without_top(heap, top)
        if count == np.inf:  # the height is the value of an entry with step 0, which cannot move
            limit = value
            break
    limit = limit if limit >= 0 else (mass - reach) / count
    heap[first].value, heap[first].count, heap[first].child = limit, count, top
    if top >= 0:
        heap[top].next = -1
    return limit, first


@njit(**SERIAL)
def _link(heap, a, b):
    """Forest prox kernel: merge two pairing heaps; returns the array index of the largest element of the result.

    `a` and `b` are the array indices of the largest elements of the two heaps."""
    if heap[a].value < heap[b].value:
        a, b = b, a
    heap[b].next = heap[a].child
    heap[a].child = b
    return a


@njit(**SERIAL)
def _without_top(heap, top):
    """Forest prox kernel: remove the largest element from a pairing heap; returns the index of the new largest element.

    `top` is the array index of the element to remove. Its children are merged in pairs. The pairs are then merged from
    the last to the first."""
    a, pairs = heap[top].child, np.int32(-1)
    while a >= 0:
        b = heap[a].next
        if b < 0:
            heap[a].next = pairs
            pairs = a
            break
        following = heap[b].next
        a = _link(heap, a, b)
        heap[a].next = pairs
        pairs = a
        a = following
    if pairs < 0:
        return pairs
    top, pairs = pairs, heap[pairs].next
    while pairs >= 0:
        following = heap[pairs].next
        top = _link(heap, top, pairs)
        pairs = following
    return top


@njit(**SERIAL)
def _clip_own(x, steps, memory, trees, cut):
    """Forest prox kernel: soft-threshold and clip the entries of each node of a chunk.

    An entry is clipped at the lowest height on the path from its node to the root.
    """
    (units, starts, width), (depth, _, limit) = memory, trees
    path = np.full(depth.max() + 1, np.inf)
    for k in range(depth.size):
        d = depth[k]
        path[d] = limit[k] if d == 0 else min(limit[k], path[d - 1])
        most = x.dtype.type(path[d])
        a, b = (starts[k], starts[k + 1]) if starts.size > 0 else (k, k + 1)
        for u in range(a, b):
            unit = units[u] if units.size > 0 else u
            for e in range(unit * width, (unit + 1) * width):
                _clip_entry(x, e, steps, cut, most)


@njit(**SERIAL)
def _clip_entry(x, e, steps, cut, most):
    """Forest prox kernel: soft-threshold one entry, then clip its absolute value at the height `most`."""
    if cut > 0:
        reach = x.dtype.type(cut * steps[e] if steps.size > 0 else cut)
        x[e] -= min(max(x[e], -reach), reach)
    if x[e] > most:
        x[e] = most
    elif x[e] < -most:
        x[e] = -most if most > 0 else most
