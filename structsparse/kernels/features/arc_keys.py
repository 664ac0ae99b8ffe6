"""Kernels for arc keys, the hashed features of dependency arcs: sums of hashes of head, modifier, distance, words.

- The parts of an arc are the head, the modifier, the direction with the distance, and the words between head and
  modifier. The key of a feature is the sum of the hashes of these parts. A finaliser then mixes the bits of the sum.
- The root of a sentence is a token before its words.
- A sentence of n words has n * n arcs, sorted by modifier, then by head.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from structsparse.kernels.features.keys import BLOCK, PLAIN, look_up, write_block

SPREAD = np.uint64(0xD6E8FEB86659FD93)  # multiplier of the hash finaliser, which mixes the bits of a key
_HALF = np.uint64(32)  # half of the number of bits of a key
BINS = 7  # number of distance bins between head and modifier: 1, 2, 3, 4, 5, 6 to 10, more
NEAR, FAR = 5, 10  # distances up to NEAR words have a bin each; those beyond FAR words share the last bin
REQUESTED = -2  # mark of a feature row whose first arc is still to be found by `first_places`


@njit(inline="always")
def finalized(key):
    """Arc keys kernel: the hash finaliser, which mixes all bits of the key of an arc feature."""
    key = (key ^ (key >> _HALF)) * SPREAD
    key = (key ^ (key >> _HALF)) * SPREAD
    return key ^ (key >> _HALF)


@njit(inline="always")
def side_and_distance(head, modifier):
    """Arc keys kernel: the direction of an arc and the bin of its length, as one number less than 2 * BINS."""
    apart = abs(head - modifier)
    bin = apart - 1 if apart <= NEAR else NEAR + (apart > FAR)
    return BINS * (head > modifier) + bin


@njit(**PLAIN)
def fold(starts, arcs, heads, modifiers, between, places, keys):
    """Arc keys kernel: the keys [arcs] of one template on all arcs, by adding up hashes of their parts.

    - Sentence s has its root at token index starts[s], and its first arc at index arcs[s].
    - `heads` and `modifiers` [tokens] hold the hash of each token as head and as modifier.
    - `between` [arcs] holds the hash of the words between head and modifier; if empty, these words are left out.
    - `places` [2 * BINS] holds a hash for each pair of direction and distance bin."""
    for s in range(len(starts) - 1):
        root, tokens, k = starts[s], starts[s + 1] - starts[s], arcs[s]
        for m in range(1, tokens):
            modifier = modifiers[root + m]
            for h in range(tokens):
                if h != m:
                    keys[k] = modifier + heads[root + h] + places[side_and_distance(h, m)]
                    k += 1
    if len(between):
        for k in range(len(keys)):
            keys[k] += between[k]
    for k in range(len(keys)):
        keys[k] = finalized(keys[k])


@njit(**PLAIN)
def find(templates, starts, arcs, values, between, index, ids):
    """Arc keys kernel: look up the features of all arcs and templates in the feature index of a parser.

    ids [arcs, templates] gets the table row of each feature, or -1 if unknown.

    - `templates` has four arrays. Two hold the attributes of all templates, and where those of each template begin. The
      third holds, for each template, the index of a summary in `between`, or -1 for none. The fourth holds hashes of
      direction and distance.
    - `values` [attributes, tokens] holds the hash of each attribute at each token.
    - `between` [summaries, arcs] holds the hashed summaries of the words between head and modifier.
    - `index` is described at the function `kernels.features.keys.find`."""
    atoms, bounds, gaps, places = templates
    offsets, index_keys, rows, bits, begins, directories, masks = index
    count, size = len(gaps), len(ids)
    keys, ends = np.empty(size, np.uint64), np.empty((2, values.shape[1]), np.uint64)
    block = np.empty((min(BLOCK, count), size), np.int32)
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        for k in range(first, last):
            token_sums(atoms, bounds[k], values, ends)
            fold(starts, arcs, ends[0], ends[1], between[gaps[k]] if gaps[k] >= 0 else keys[:0], places[k], keys)
            features = slice(offsets[k], offsets[k + 1])
            entries = directories[begins[k] : begins[k + 1]]
            look_up(keys, index_keys[features], rows[features], entries, bits[k], masks[k], block[k - first])
        write_block(block[: last - first], first, ids)


@njit(**PLAIN)
def token_sums(atoms, bounds, values, ends):
    """Arc keys kernel: sum up the attribute hashes of each token as head of an arc, and as modifier, for one template.

    `values` [attributes, tokens] holds the hashes. `atoms` lists attribute indices: atoms[bounds[0] : bounds[1]] for
    heads, and atoms[bounds[1] : bounds[2]] for modifiers. ends[0] gets the sums for heads, ends[1] those for modifiers.
    """
    ends[:] = 0
    for end in range(2):
        for a in range(bounds[end], bounds[end + 1]):
            row = values[atoms[a]]
            for p in range(len(row)):
                ends[end, p] += row[p]


@njit(**PLAIN)
def between(starts, arcs, parts, classes, salts, hashes):
    """Arc keys kernel: hashes [5, arcs] of summaries of the words between head and modifier of each arc.

    The five summaries are: the set of parts of speech; the number of verbs; the number of punctuation marks; both
    numbers together; whether there is a conjunction.

    - parts [tokens] has one bit set for the part of speech.
    - classes [tokens] has bits that mark verbs, punctuation and conjunctions.
    - salts [5] make the hashes of the summaries different."""
    for s in range(len(starts) - 1):
        root, tokens = starts[s], starts[s + 1] - starts[s]
        for m in range(1, tokens):
            first = arcs[s] + (m - 1) * (tokens - 1)
            for side in (-1, 1):
                tags, verbs, marks, links = np.uint64(0), 0, 0, 0
                h = m + side
                while 0 <= h < tokens:
                    k = first + h - (h > m)
                    hashes[0, k] = finalized(salts[0] + tags)
                    hashes[1, k] = finalized(salts[1] + np.uint64(min(verbs, 2)))
                    hashes[2, k] = finalized(salts[2] + np.uint64(min(marks, 2)))
                    hashes[3, k] = finalized(salts[3] + np.uint64(3 * min(verbs, 2) + min(marks, 2)))
                    hashes[4, k] = finalized(salts[4] + np.uint64(min(links, 1)))
                    tags |= parts[root + h]
                    verbs += classes[root + h] & 1
                    marks += (classes[root + h] >> 1) & 1
                    links += (classes[root + h] >> 2) & 1
                    h += side


@njit(**PLAIN)
def first_places(ids, offsets, place, count):
    """Arc keys kernel: find the first arc that has each requested feature row.

    An element of `place` [rows] that is REQUESTED is replaced by the index of the first arc. There are `count` such
    elements. ids[offsets[a] : offsets[a + 1]] are the feature rows of arc a."""
    for bag in range(len(offsets) - 1):
        if count == 0:
            return
        for row in ids[offsets[bag] : offsets[bag + 1]]:
            if place[row] == REQUESTED:
                place[row] = bag
                count -= 1
