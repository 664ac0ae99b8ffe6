"""Kernels for context tries (suffix tries of a text) of language models: build, search, collapse, prune, cut out.

A text is `codes` [positions], where the code V is the start of a sentence. A target is a position whose word is
predicted from the words before. The trie is built level by level. At level k a group is the set of targets that share
their last k - 1 words. Each group is sorted by the word k places before the target.

The sorting takes no comparisons. `order` lists all positions by code. A loop over `order` puts each target at the next
free slot of its group. This leaves the targets sorted by (group, word). The same loop over the targets themselves sorts
the new entries by (context, next word).
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
NONE = -1


@njit(**PLAIN)
def by_code(codes, values):
    """Counting sort of the positions of a text by code; equal codes keep their order: int32 [positions]."""
    free = np.zeros(values + 1, np.int64)
    for code in codes:
        free[code + 1] += 1
    for code in range(values):
        free[code + 1] += free[code]
    order = np.empty(len(codes), np.int32)
    for p in range(len(codes)):
        order[free[codes[p]]] = p
        free[codes[p]] += 1
    return order


@njit(**PLAIN)
def sort_groups(order, k, group, sizes, slots):
    """Sort the targets of a text by (group, code k places before) into slots [members].

    group [positions] is NONE for positions outside all groups. sizes [groups] are the numbers of members. Each member
    has k positions before it.
    """
    free = np.empty(len(sizes), np.int64)
    total = 0
    for g in range(len(sizes)):
        free[g] = total
        total += sizes[g]
    positions = len(group)
    for q in order:
        p = q + k
        if p < positions and group[p] != NONE:
            slots[free[group[p]]] = p
            free[group[p]] += 1
    return total


@njit(**PLAIN)
def split_groups(codes, k, slots, group, owner, places):
    """Split groups of targets into classes that also share the code k places before; returns the number of classes.

    Classes are numbered in the order of slots. group [members] becomes the class, owner [classes] the group that
    contains the class, places [classes + 1] the first slot of each class.
    """
    classes, word = 0, NONE
    for i in range(len(slots)):
        p = slots[i]
        if classes == 0 or group[p] != owner[classes - 1] or codes[p - k] != word:
            owner[classes], places[classes], word = group[p], i, codes[p - k]
            classes += 1
        group[p] = classes - 1
    places[classes] = len(slots)
    return classes


@njit(**PLAIN)
def make_nodes(codes, V, k, order, collapse, slots, places, owner, sizes, node_of, parts, made, grows):
    """Make the trie nodes of level k and mark the classes that get longer contexts; returns the number of nodes.

    sizes, node_of [groups] are the number of members and the node of each group. parts are above, word, depth, chain
    and count [classes] of the new nodes. made [classes] becomes the number of the new node, from 0. It is NONE where a
    class has all members of its group and joins the node of the group. grows [classes] tells whether the contexts of
    the class may be longer still.
    """
    above, word, depth, chain, count = parts
    new = 0
    for c in range(len(owner)):
        p, g, members = slots[places[c]], owner[c], places[c + 1] - places[c]
        grows[c] = codes[p - k] != V and not (collapse and members == 1)
        made[c] = NONE
        if collapse and members == sizes[g] and node_of[g] > 0:
            continue
        longest = k
        while collapse and members == 1 and longest < order - 1 and codes[p - longest] != V:
            longest += 1  # a context with a single target has no further branches
        made[c] = new
        above[new], word[new], count[new] = node_of[g], codes[p - k], members
        depth[new], chain[new] = longest, 1 + longest - k
        new += 1
    return new


@njit(**PLAIN)
def regroup(group, number):
    """Replace the class of each text position by the group number[class]; NONE if its contexts do not get longer."""
    for p in range(len(group)):
        if group[p] != NONE:
            group[p] = number[group[p]]


@njit(**PLAIN)
def sort_words(order, group, made, places, slots):
    """Sort the targets of the classes that made a trie node by (class, code of the target) into slots.

    Returns the number of targets.
    """
    free = np.empty(len(made), np.int64)
    total = 0
    for c in range(len(made)):
        free[c] = total
        if made[c] != NONE:
            total += places[c + 1] - places[c]
    for p in order:
        c = group[p]
        if c != NONE and made[c] != NONE:
            slots[free[c]] = p
            free[c] += 1
    return total


@njit(**PLAIN)
def make_entries(codes, slots, group, made, first_node, first_entry, entry, parts):
    """Make the (context, next word) entries of the new trie nodes of a level; returns the number of new entries.

    parts are node, word, above and count of each entry. entry [positions], the deepest entry of each target so far,
    becomes the new entry.
    """
    node, word, above, count = parts
    new, last = NONE, NONE
    for p in slots:
        if group[p] != last or codes[p] != word[new]:
            new, last = new + 1, group[p]
            node[new], word[new], above[new], count[new] = first_node + made[last], codes[p], entry[p], 0
        count[new] += 1
        entry[p] = first_entry + new
    return new + 1


@njit(**PLAIN)
def left_over(count, above):
    """The count of each trie node minus the counts of its children."""
    rest = count.copy()
    for i in range(len(above)):
        if above[i] >= 0:
            rest[above[i]] -= count[i]
    return rest


@njit(**PLAIN)
def offsets(owners, size):
    """Offsets of the run of each owner in a list of ascending owners: [size + 1].

    Owners below 0 come before all runs.
    """
    begins = np.zeros(size + 1, np.int32)
    before = 0
    for owner in owners:
        if owner < 0:
            before += 1
        else:
            begins[owner + 1] += 1
    begins[0] = before
    for i in range(size):
        begins[i + 1] += begins[i]
    return begins


@njit(**PLAIN)
def search(values, begin, end, target):
    """Binary search in ascending values[begin:end]: the index of target, or NONE."""
    stop = end
    while begin < end:
        middle = (begin + end) >> 1
        if values[middle] < target:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < stop and values[begin] == target else NONE


@njit(**PLAIN)
def locate(codes, targets, V, order, above, word, children, entry_word, starts, node, entry):
    """Find the deepest trie node that matches the context of each target, and the deepest entry with the target word.

    children and starts are `offsets` of the child nodes and of the entries of each node.
    """
    for t in range(len(targets)):
        p = targets[t]
        n, k = 0, 1
        while k < order:
            c = search(word, children[n], children[n + 1], codes[p - k])
            if c == NONE:
                break
            n = c
            if codes[p - k] == V:
                break
            k += 1
        node[t] = n
        e = NONE
        while n > 0 and e == NONE:
            e = search(entry_word, starts[n], starts[n + 1], codes[p])
            n = above[n]
        entry[t] = codes[p] if e == NONE else e


@njit(**PLAIN)
def _joins(above, count, n):
    """Whether trie node n has all targets of its parent and is merged into it; no node is merged into node 0."""
    return above[n] > 0 and count[n] == count[above[n]]


@njit(**PLAIN)
def tops(above, count, depth):
    """Replace the depth of each trie node by the depth of the first node of the chain that it would be merged into."""
    for n in range(len(above)):
        if _joins(above, count, n):
            depth[n] = depth[above[n]]
    return depth


@njit(**PLAIN)
def collapse(above, count, depth, starts, entry_above, node_of, entry_of, new_depth, chain):
    """Collapse a context trie: merge each node that has all targets of its parent into the parent (unless node 0).

    node_of [nodes] and entry_of [entries] become the numbers in the collapsed trie. new_depth and chain describe the
    nodes of the collapsed trie. Returns its numbers of nodes and entries.
    """
    nodes, entries = 0, 0
    for n in range(len(above)):
        joins = _joins(above, count, n)
        if joins:
            m = node_of[above[n]]
            chain[m] += 1
        else:
            m = nodes
            nodes += 1
            chain[m] = 1
        node_of[n], new_depth[m] = m, depth[n]
        for e in range(starts[n], starts[n + 1]):
            if joins:
                entry_of[e] = entry_of[entry_above[e]]
            else:
                entry_of[e] = entries
                entries += 1
    return nodes, entries


@njit(**PLAIN)
def keep_living(alive, above, entry_node, entry_above, node_alive, link):
    """Mark the trie nodes that have a living entry themselves or below; returns the number of living entries.

    link [entries] becomes the number, among the living entries, of the entry itself or of the nearest living entry
    above.
    """
    for e in range(len(alive)):
        if alive[e]:
            node_alive[entry_node[e]] = True
    for n in range(len(above) - 1, 0, -1):
        if node_alive[n]:
            node_alive[above[n]] = True
    living = 0
    for e in range(len(alive)):
        if alive[e]:
            link[e] = living
            living += 1
        else:
            link[e] = link[entry_above[e]]
    return living


@njit(**PLAIN)
def cut_out(touched, parent, begins, above, starts, entry_above, entry_word, rows, node, word, over):
    """Copy the entries of some nodes out of a context trie: row in the trie, node, word and entry above.

    touched are these nodes, ascending, with all their ancestors. parent [touched] is the index in `touched` of the
    parent node. begins [touched + 1] are the offsets of the entries of each node in the result. The entry above lies at
    the parent, or at a higher ancestor in a pruned trie.
    """
    for i in range(len(touched)):
        n, shift = touched[i], begins[i]
        for e in range(starts[n], starts[n + 1]):
            new = shift + e - starts[n]
            rows[new], node[new], word[new], over[new] = e, i, entry_word[e], NONE
            a, j = entry_above[e], parent[i]
            if a >= 0:
                while a < starts[touched[j]]:
                    j = parent[j]
                over[new] = begins[j] + a - starts[touched[j]]
