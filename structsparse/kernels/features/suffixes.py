"""Kernels of suffix tries, which hold the contexts of a language model: build, search, collapse, prune, cut out.

A text is `codes` [positions], where the code V is the start of a sentence. A target is a position whose word is
predicted from the words before. A trie node is a context. A trie entry is a pair of a context and a next word.

The trie is built level by level. At level k a group is the set of targets that share the last k - 1 words before the
target. Each group is sorted by the word k places before the target.

The sorting takes no comparisons. `order` lists all positions by code. A loop over `order` puts each target at the next
free slot of its group. This leaves the targets sorted by (group, word). The same loop over the targets themselves sorts
the new entries by (context, next word).
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
NONE = -1  # no node, no entry or no group


@njit(**PLAIN)
def by_code(codes, values):
    """Suffix trie kernel: counting sort of the positions of a text by word code.

    Codes lie below `values`, and equal codes keep their order. Returns the sorted positions: int32 [positions].
    """
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
    """Suffix trie kernel: sort the targets of a text by (group, code k places before) into `slots` [members].

    `order` lists all positions by code. group [positions] is NONE for positions outside all groups, and sizes [groups]
    are the numbers of members. Each member has k positions before it. Returns the number of members.
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
    """Suffix trie kernel: split groups of targets by the code k places before; returns the number of classes.

    A class is the set of targets of a group that share this code. Classes are numbered in the order of `slots`. For
    each target, group [positions] becomes the class. owner [classes] becomes the group that contains the class. places
    [classes + 1] becomes the first slot of each class, and at the end the number of slots.
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
    """Suffix trie kernel: make the nodes of level k from classes of targets; returns the number of new nodes.

    V is the code of a sentence start, and contexts have fewer than `order` words. For each group, sizes and node_of
    [groups] are the number of members and the trie node. `parts` are arrays with one element per new node: above
    (parent), word (code), depth (words of the longest context), chain (number of contexts), count (targets).

    If `collapse`, a class with all members of its group makes no node but joins the node of the group. made [classes]
    becomes the number of the new node, from 0, or NONE for a class without a new node. grows [classes] becomes whether
    the contexts of the class may get longer.
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
            longest += 1  # the contexts of a single target do not branch
        made[c] = new
        above[new], word[new], count[new] = node_of[g], codes[p - k], members
        depth[new], chain[new] = longest, 1 + longest - k
        new += 1
    return new


@njit(**PLAIN)
def regroup(group, number):
    """Suffix trie kernel: replace the class of each text position in `group` by the new group, number[class].

    number[class] is NONE if the contexts of the class do not get longer.
    """
    for p in range(len(group)):
        if group[p] != NONE:
            group[p] = number[group[p]]


@njit(**PLAIN)
def sort_words(order, group, made, places, slots):
    """Suffix trie kernel: sort the targets of all classes with a new node by (class, code of the target).

    `slots` receives the sorted targets. Returns the number of these targets.
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
    """Suffix trie kernel: make the (context, next word) entries of the new nodes; returns the number of new entries.

    `slots` lists the targets by class, then by code. `parts` are arrays with one element per new entry: node, word
    (code), above (the entry of the same word at a shorter context) and count (targets). entry [positions] is the
    deepest entry of each target so far, and becomes the new entry. `first_node` and `first_entry` are the numbers of
    the first new node and of the first new entry.
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
    """Suffix trie kernel: the count of each node (or entry) minus the counts of its children.

    above[i] is the parent of node (or entry) i, -1 for none.
    """
    rest = count.copy()
    for i in range(len(above)):
        if above[i] >= 0:
            rest[above[i]] -= count[i]
    return rest


@njit(**PLAIN)
def offsets(owners, size):
    """Suffix trie kernel: offsets [size + 1] of the run of each owner in an ascending list of owners.

    The run of owner i is at offsets[i] : offsets[i + 1]. Elements with an owner below 0 come before all runs.
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
    """Suffix trie kernel: binary search for `target` in ascending values[begin:end]; returns the index, or NONE."""
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
    """Suffix trie kernel: find the deepest node that matches the words before each target, and the deepest entry.

    node [targets] becomes the deepest matching node. entry [targets] becomes the entry of the target word at this node,
    or at the nearest ancestor that has one. The entries of the root are numbered by word code. `children` and `starts`
    are `offsets` of the child nodes and of the entries of each node.
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
    """Suffix trie kernel: whether node n has all targets of its parent, so that `collapse` merges both.

    No node is merged into the root, node 0.
    """
    return above[n] > 0 and count[n] == count[above[n]]


@njit(**PLAIN)
def tops(above, count, depth):
    """Suffix trie kernel: replace the depth of each node by the depth of the first node in the same chain.

    A chain is a path of nodes that `collapse` would merge into one node.
    """
    for n in range(len(above)):
        if _joins(above, count, n):
            depth[n] = depth[above[n]]
    return depth


@njit(**PLAIN)
def collapse(above, count, depth, starts, entry_above, node_of, entry_of, new_depth, chain):
    """Suffix trie kernel: collapse a context trie by merging nodes into parents that have the same targets.

    No node is merged into node 0. node_of [nodes] and entry_of [entries] become the numbers of nodes and entries in the
    collapsed trie. new_depth and chain become the depth and the number of merged nodes of each node in the collapsed
    trie. Returns the numbers of nodes and of entries in the collapsed trie.
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
    """Suffix trie kernel: mark nodes with a living entry at the node or below; returns the number of living entries.

    alive [entries] marks the living entries. link [entries] becomes the number, among the living entries, of the entry
    or else of the nearest living entry above.
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
    """Suffix trie kernel: copy the entries of some nodes, in the order of the nodes, into arrays of a smaller trie.

    touched [nodes] are the nodes to copy, ascending, with all ancestors. parent [nodes] is the index in `touched` of
    the parent of each node. begins [nodes + 1] are the offsets of the entries of each node in the result. For each
    copied entry, `rows` becomes the number of the entry in the full trie. node, word and over become the index of the
    node in `touched`, the next word, and the copied entry above. The entry above lies at the parent, or at a higher
    ancestor in a pruned trie.
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
