"""Keys of features of arcs on the CPU: a sum of what is said of the head, of the modifier, of what is between and of
where the two stand to each other, each a 64-bit hash, and a finaliser that spreads all its bits.

What is said of a token is summed up once for each token, so a template costs an arc three additions however many
atoms it has. Tokens of a sentence follow a root; the arcs of a sentence of n words go by modifier, then by head:
n * n of them, the root's own and a word's to itself left out.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.features.keys import PLAIN, TOGETHER, lay_down, look_up

SPREAD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
BINS = 7  # of distance: 1, 2, 3, 4, 5, 6 to 10, more
NEAR, FAR = 5, 10  # up to NEAR each distance is a bin
WANTED = -2


@njit(inline="always")
def _final(key):
    key = (key ^ (key >> _HALF)) * SPREAD
    key = (key ^ (key >> _HALF)) * SPREAD
    return key ^ (key >> _HALF)


@njit(inline="always")
def _place(head, modifier):
    """Side and distance as one number, below 2 * BINS."""
    apart = abs(head - modifier)
    bin = apart - 1 if apart <= NEAR else NEAR + (apart > FAR)
    return BINS * (head > modifier) + bin


@njit(**PLAIN)
def fold(starts, arcs, heads, modifiers, between, places, keys):
    """keys [arcs] of one template.

    Sentence s has its root at place starts[s] and its first arc at arcs[s]; heads, modifiers [places] are what the
    template says of a token as either end; between [arcs], or [0] if it says nothing of that; places [2 * BINS]."""
    for s in range(len(starts) - 1):
        root, tokens, k = starts[s], starts[s + 1] - starts[s], arcs[s]
        for m in range(1, tokens):
            own = modifiers[root + m]
            for h in range(tokens):
                if h != m:
                    keys[k] = own + heads[root + h] + places[_place(h, m)]
                    k += 1
    if len(between):
        for k in range(len(keys)):
            keys[k] += between[k]
    for k in range(len(keys)):
        keys[k] = _final(keys[k])


@njit(**PLAIN)
def find(templates, starts, arcs, values, between, index, ids):
    """ids [arcs, templates] = the row of each arc's feature, -1 for unknown ones.

    templates: (atoms, bounds [templates + 1, 2], gaps, places) as features/arcs.py makes them; values
    [atoms, places]; between [kinds, arcs]; index as in kernels.keys.find."""
    atoms, bounds, gaps, places = templates
    offsets, known, rows, bits, begins, directories, masks = index
    count, size = len(gaps), len(ids)
    keys, ends = np.empty(size, np.uint64), np.empty((2, values.shape[1]), np.uint64)
    found = np.empty((min(TOGETHER, count), size), np.int32)
    for first in range(0, count, TOGETHER):
        last = min(first + TOGETHER, count)
        for k in range(first, last):
            sums(atoms, bounds[k], values, ends)
            fold(starts, arcs, ends[0], ends[1], between[gaps[k]] if gaps[k] >= 0 else keys[:0], places[k], keys)
            own = slice(offsets[k], offsets[k + 1])
            where = directories[begins[k] : begins[k + 1]]
            look_up(keys, known[own], rows[own], where, bits[k], masks[k], found[k - first])
        lay_down(found[: last - first], first, ids)


@njit(**PLAIN)
def sums(atoms, bounds, values, ends):
    """ends [2, places] = what a template says of each token as head and as modifier: atoms[bounds[0] : bounds[1]] and
    atoms[bounds[1] : bounds[2]] are its rows of values."""
    ends[:] = 0
    for end in range(2):
        for a in range(bounds[end], bounds[end + 1]):
            row = values[atoms[a]]
            for p in range(len(row)):
                ends[end, p] += row[p]


@njit(**PLAIN)
def between(starts, arcs, parts, classes, salts, found):
    """found [kinds, arcs]: hashes of what stands between the ends of each arc, of five kinds (BETWEEN).

    parts [places]: one bit for each part of speech; classes [places]: bits for verb, punctuation, conjunction; salts
    [kinds]. Walks away from each modifier, on either side."""
    for s in range(len(starts) - 1):
        root, tokens = starts[s], starts[s + 1] - starts[s]
        for m in range(1, tokens):
            first = arcs[s] + (m - 1) * (tokens - 1)
            for side in (-1, 1):
                seen, verbs, marks, links = np.uint64(0), 0, 0, 0
                h = m + side
                while 0 <= h < tokens:
                    k = first + h - (h > m)
                    found[0, k] = _final(salts[0] + seen)
                    found[1, k] = _final(salts[1] + np.uint64(min(verbs, 2)))
                    found[2, k] = _final(salts[2] + np.uint64(min(marks, 2)))
                    found[3, k] = _final(salts[3] + np.uint64(3 * min(verbs, 2) + min(marks, 2)))
                    found[4, k] = _final(salts[4] + np.uint64(min(links, 1)))
                    seen |= parts[root + h]
                    verbs += classes[root + h] & 1
                    marks += (classes[root + h] >> 1) & 1
                    links += (classes[root + h] >> 2) & 1
                    h += side


@njit(**PLAIN)
def first_places(ids, offsets, place, wanted):
    """place [rows]: the first bag that has a row, of those, `wanted` many, where WANTED stands."""
    for bag in range(len(offsets) - 1):
        if wanted == 0:
            return
        for row in ids[offsets[bag] : offsets[bag + 1]]:
            if place[row] == WANTED:
                place[row] = bag
                wanted -= 1
