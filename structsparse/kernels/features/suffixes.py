"""Tries of contexts on the CPU: built from a text, searched, collapsed, cut down to what lives or to what is needed.

A text is `codes` [positions], where V is the start of a sentence. It is built round by round: the targets that share
their last k - 1 words, a group, are sorted by the word before those. No comparison does it: `order` lists all
positions by their code, and who walks along it and puts each target at the next free slot of its group has them sorted
by group and word. The same walk, over the targets themselves, sorts what is new by context and next word.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
NONE = -1


@njit(**PLAIN)
def by_code(codes, values):
    """The positions by their code, of equals the earlier first: int32 [positions]"""
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
    """slots [members] = the positions in a group, by (group, code k places before).

    group [positions], NONE outside of all; sizes [groups] count their members, all of which have k places before."""
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
    """Number the classes of members that share group and code k places before, in the order of slots.

    group [members] becomes the class, owner [classes] the group that it was part of, places [classes + 1] where it
    begins in slots. How many classes there are."""
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
    """The nodes of round k, numbered from 0, and which of its classes go on; how many nodes are new.

    sizes, node_of [groups] are the members and the node of each group. parts are above, word, depth, chain and count
    [classes] of what is new; made [classes] gets the number of its new node or NONE, where a class is all of its group
    and joins the group's node; grows [classes] whether its contexts may be longer still."""
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
            longest += 1  # it never branches again
        made[c] = new
        above[new], word[new], count[new] = node_of[g], codes[p - k], members
        depth[new], chain[new] = longest, 1 + longest - k
        new += 1
    return new


@njit(**PLAIN)
def regroup(group, number):
    """Each member's class becomes the group of this number, NONE if it goes no further."""
    for p in range(len(group)):
        if group[p] != NONE:
            group[p] = number[group[p]]


@njit(**PLAIN)
def sort_words(order, group, made, places, slots):
    """slots = the members of those classes that made a node, by (class, own code); how many they are."""
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
    """The entries of a round, what members of its new nodes are: parts are node, word, above and count of each; entry
    [positions], the deepest so far, becomes the new one. How many are new."""
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
    """What is counted at each place and at none of those below it."""
    rest = count.copy()
    for i in range(len(above)):
        if above[i] >= 0:
            rest[above[i]] -= count[i]
    return rest


@njit(**PLAIN)
def offsets(owners, size):
    """Where the run of each owner begins in ascending owners (those below 0 are before all): [size + 1]"""
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
def search(values, begin, end, wanted):
    """Where it stands among the ascending values[begin:end], NONE if nowhere."""
    stop = end
    while begin < end:
        middle = (begin + end) >> 1
        if values[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < stop and values[begin] == wanted else NONE


@njit(**PLAIN)
def locate(codes, targets, V, order, above, word, children, entry_word, starts, node, entry):
    """The deepest node of each target's context and the deepest entry with its word; children and starts: `offsets`."""
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
    """Whether all targets of the node above are in this one; node 0 is joined by none."""
    return above[n] > 0 and count[n] == count[above[n]]


@njit(**PLAIN)
def tops(above, count, depth):
    """depth [nodes] becomes that of the first node of the chain that each one would be joined to."""
    for n in range(len(above)):
        if _joins(above, count, n):
            depth[n] = depth[above[n]]
    return depth


@njit(**PLAIN)
def collapse(above, count, depth, starts, entry_above, node_of, of, new_depth, chain):
    """Let each node whose targets are all those of the one above join it, unless that is node 0.

    node_of [nodes] and of [entries] get the numbers afterwards, new_depth and chain what a new node stands for."""
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
                of[e] = of[entry_above[e]]
            else:
                of[e] = entries
                entries += 1
    return nodes, entries


@njit(**PLAIN)
def keep_living(alive, above, entry_node, entry_above, node_alive, link):
    """Mark the nodes that have a living entry or such a node below; link [entries] = number, among the living, of the
    entry itself if it lives, else of the nearest living one above it."""
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
    """The entries of the touched nodes, ascending with all their ancestors: their rows in the whole, and what they are.

    parent [touched] is the place of the node above among the touched; begins [touched + 1] where the entries of each
    begin in the result. An entry above lies at the parent, or in a pruned trie farther up."""
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
