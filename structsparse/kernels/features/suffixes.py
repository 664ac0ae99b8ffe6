"""Kernels of suffix tries, which hold the contexts of a language model: build, search, collapse, prune, cut out.

- A text is an array `codes` of word codes. The code V is the start of a sentence.
- A target is a position whose word is predicted from the words before it.
- A node of the trie is a context. In a collapsed trie, a node may stand for several contexts with the same targets.
- An entry is a pair of a context and a next word.

The trie is built level by level. At level k, a group is the set of targets that share the last k - 1 words before them.
It is split into classes, which share the last k words. Each class becomes a node of the trie, or is merged into the
node of its group.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
NONE = -1  # index that means no node, no entry or no group


@njit(**PLAIN)
def by_code(codes, values):
    """Suffix trie kernel: the positions of a text, sorted by word code (counting sort): int32 [positions].

    Codes are less than `values`. Positions with equal codes keep their order."""
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
    """Suffix trie kernel: sort the targets of a text by (group, code k places before); returns the number of targets.

    - `order` lists all positions of the text by code.
    - group [positions] is the group of each position, or NONE. Positions in groups have k positions before them.
    - sizes [groups] are the numbers of targets of all groups.
    - `slots` gets the sorted targets."""
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

    A class is the set of targets of a group that share this code. Classes are numbered in the order of `slots`, the
    targets as sorted by `sort_groups`.

    - group [positions] becomes the class of each target.
    - owner [classes] gets the group that each class comes from.
    - `places` gets the index in `slots` of the first target of each class, followed by the number of targets."""
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

    A class has the targets of a group that share the word k places before.

    - V is the code of a sentence start. Contexts have fewer than `order` words.
    - `slots` and `places` are those of `split_groups`, and `owner` is the group of each class.
    - sizes and node_of [groups] are the number of targets and the trie node of each group.
    - If `collapse` is true, a node may stand for several contexts with the same targets. A class with all targets of
      its group then makes no node, but joins the node of the group.
    - `parts` are five arrays with one element per new node: parent, word code, number of words of the longest context
      that the node stands for, number of these contexts, number of targets.
    - made [classes] gets the index of the new node, from 0, or NONE.
    - grows [classes] gets whether the contexts of the class may get longer."""
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
            longest += 1  # the class has one target; the node stands for all longer contexts of this target as well
        made[c] = new
        above[new], word[new], count[new] = node_of[g], codes[p - k], members
        depth[new], chain[new] = longest, 1 + longest - k
        new += 1
    return new


@njit(**PLAIN)
def regroup(group, number):
    """Suffix trie kernel: turn classes of targets into the groups of the next level of the trie.

    group [positions] holds the class of each text position, or NONE. Each class c is replaced by number[c], the index
    of the new group. number[c] is NONE if the contexts of the class do not get longer."""
    for p in range(len(group)):
        if group[p] != NONE:
            group[p] = number[group[p]]


@njit(**PLAIN)
def sort_words(order, group, made, places, slots):
    """Suffix trie kernel: sort targets by (class, word code of the target), and return their number.

    Classes without a new node are left out. `made` and `places` are those of `make_nodes`. `slots` gets the sorted
    targets."""
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

    - `slots` lists the targets by class, then by word code.
    - `made` [classes] is the index of the new node of each class.
    - `parts` are four arrays with one element per new entry: node, word code, the entry of the same word in the next
      shorter context, and number of targets.
    - entry [positions] is the entry of each target in the longest context so far. It becomes the new entry.
    - `first_node` and `first_entry` are the indices of the first new node and entry in the whole trie."""
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

    above[i] is the parent of node (or entry) i, or negative for none."""
    rest = count.copy()
    for i in range(len(above)):
        if above[i] >= 0:
            rest[above[i]] -= count[i]
    return rest


@njit(**PLAIN)
def offsets(owners, size):
    """Suffix trie kernel: offsets [size + 1] of the run of each owner in an ascending list of owners.

    `owners` has one element per item. The items of owner i are those from offsets[i] to offsets[i + 1] - 1. Items with
    a negative owner come first."""
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
    """Suffix trie kernel: for each target, find the node of the longest matching context, and the matching entry.

    node [targets] gets the deepest node that matches the words before the target. entry [targets] gets the entry of the
    target word at this node, or else at the nearest ancestor that has one. `children` and `starts` are the offsets of
    the child nodes and of the entries of each node."""
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
    """Suffix trie kernel: whether `collapse` merges node n into its parent, because both have the same targets.

    No node is merged into the root, node 0."""
    return above[n] > 0 and count[n] == count[above[n]]


@njit(**PLAIN)
def tops(above, count, depth):
    """Suffix trie kernel: replace the depth of each node by the depth of the first node in its chain.

    A chain is a path of nodes that `collapse` merges into one node."""
    for n in range(len(above)):
        if _joins(above, count, n):
            depth[n] = depth[above[n]]
    return depth


@njit(**PLAIN)
def collapse(above, count, depth, starts, entry_above, node_of, entry_of, new_depth, chain):
    """Suffix trie kernel: collapse a context trie by merging nodes into parents that have the same targets.

    No node is merged into the root. node_of [nodes] and entry_of [entries] get the indices of nodes and entries in the
    collapsed trie. For each node of the collapsed trie, new_depth gets the depth, and chain the number of merged nodes.
    Returns the number of nodes and the number of entries of the collapsed trie."""
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
    """Suffix trie kernel: mark in node_alive the nodes with a living entry in their subtree; count living entries.

    Returns this count. alive [entries] marks the living entries. link [entries] gets their new indices, 0, 1, ... in
    the same order. Other entries get the new index of the nearest living entry of the same word in a shorter
    context."""
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

    - touched [nodes] are the nodes to copy, ascending, with all their ancestors.
    - parent [nodes] is the index in `touched` of the parent of each node.
    - begins [nodes + 1] are the offsets of the entries of each node in the result.

    For each copied entry, `rows` gets its index in the full trie, `node` the index of its node in `touched`, and `word`
    the next word. `over` gets the copied entry of the same word in the nearest shorter context, or NONE."""
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
