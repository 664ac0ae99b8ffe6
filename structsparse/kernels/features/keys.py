"""Kernels for feature keys of tokens: combine hashes, select frequent features, look up rows in an index; bags of rows.

- A feature template combines some attributes of a token and its neighbours. The key of a feature is a 64-bit hash of
  the values of these attributes.
- Keys are uniform. Their high bits therefore nearly give the position among the sorted keys of the index.
- The bag of a token is the list of the table rows of its features.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: an odd multiplier that spreads all bits
_HALF, _WORD = np.uint64(32), np.uint64(64)  # number of bits of half a key, and of a key
BLOCK = 16  # number of templates whose table rows are written together; they fill one cache line per token
_FEW = 4  # up to this number of sorted keys with equal high bits, the search has no branches


# --- keys of the features of tokens


@njit(**PLAIN)
def fold(seed, attributes, shifts, hashes, starts, lengths, keys):
    """Token feature keys kernel: the keys [tokens] of one template, combined from a seed and hashes of attributes.

    A place is the index of a token or a sentence boundary. For the token at place p, the template uses attribute
    attributes[a] at place p + shifts[a], for each index a. hashes[i] has the hashes of attribute i at all places.
    Sentence s begins at place starts[s] and has lengths[s] tokens."""
    done = 0
    for s in range(len(starts)):
        sentence = keys[done : done + lengths[s]]
        sentence[:] = seed
        for a in range(len(shifts)):
            begin = starts[s] + shifts[a]
            values = hashes[attributes[a], begin : begin + lengths[s]]
            for t in range(len(sentence)):
                key = (sentence[t] ^ values[t]) * ODD
                sentence[t] = key ^ (key >> _HALF)
        done += lengths[s]


@njit(**PLAIN)
def find(patterns, hashes, starts, lengths, index, ids):
    """Token feature keys kernel: look up the features of all tokens and templates in the feature index.

    ids [tokens, templates] gets the table row of each feature, or -1 if unknown. An atom of a template is an attribute
    of the token at some distance (shift).

    - `patterns` has four arrays: the seed of each template, where its atoms begin, and the attribute and the shift of
      each atom.
    - `index` has seven arrays. Three describe the features: where those of each template begin, the keys (sorted within
      a template), and the table rows. Three describe the tables made by `directory`, one per template: the number of
      key bits, where the table begins, and all tables. The last array has the key mask of each template."""
    seeds, bounds, attributes, shifts = patterns
    offsets, index_keys, rows, bits, begins, directories, masks = index
    count, size = len(seeds), len(ids)
    keys, block = np.empty(size, np.uint64), np.empty((min(BLOCK, count), size), np.int32)
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        for k in range(first, last):
            atoms, features = slice(bounds[k], bounds[k + 1]), slice(offsets[k], offsets[k + 1])
            fold(seeds[k], attributes[atoms], shifts[atoms], hashes, starts, lengths, keys)
            places = directories[begins[k] : begins[k + 1]]
            look_up(keys, index_keys[features], rows[features], places, bits[k], masks[k], block[k - first])
        write_block(block[: last - first], first, ids)


# --- the index of features: select and number the features of a template, and find the row of a key


@njit(**PLAIN)
def select_frequent(keys, ordered, min_count, first_row, distinct, rows):
    """Token feature keys kernel: select the keys of a template that occur at least min_count times.

    `ordered` holds keys [tokens] in sorted order. `distinct` gets the selected keys, ascending, and `rows` their row
    indices, from first_row on. Rows are ordered by falling frequency, then by first appearance. Returns the number of
    selected features."""
    features, begin, most = 0, 0, 0
    while begin < len(ordered):
        end = begin + 1
        while end < len(ordered) and ordered[end] == ordered[begin]:
            end += 1
        if end - begin >= min_count:
            # `rows` holds minus the count of each key, until _rank assigns row indices
            distinct[features], rows[features] = ordered[begin], begin - end
            features, most = features + 1, max(most, end - begin)
        begin = end
    _rank(keys, distinct[:features], most, first_row, rows[:features])
    return features


@njit(**PLAIN)
def _rank(keys, distinct, most, first_row, rows):
    """Feature keys kernel: number the rows of a template by falling frequency, then by first appearance.

    On entry, rows [features] holds minus the count of each feature. On return, it holds the row index."""
    next_row = np.zeros(most + 1, np.int64)  # next free row index, by the count of the feature
    for row in rows:
        next_row[-row] += 1
    total = first_row
    for count in range(most, -1, -1):
        features = next_row[count]
        next_row[count] = total
        total += features
    bits = _directory_bits(len(distinct))
    places, shift = directory(distinct, bits), _WORD - np.uint64(bits)
    for key in keys:
        place = _position(key, distinct, places, shift)
        if place >= 0 and rows[place] < 0:
            count = -rows[place]
            rows[place] = next_row[count]
            next_row[count] += 1


@njit(**PLAIN)
def _directory_bits(size):
    """Feature keys kernel: the number of high key bits by which `directory` divides `size` sorted keys.

    The number of different high bits, 2^bits, is then larger than the number of keys."""
    bits = 1
    while size >> bits:
        bits += 1
    return bits


@njit(**PLAIN)
def directory(keys, bits):
    """Feature keys kernel: a table that gives, for each value of the high bits, where the sorted keys with it begin.

    The result `places` has the shape [2^bits + 1]. The keys with the high bits b are
    keys[places[b] : places[b + 1]]."""
    places = np.zeros((1 << bits) + 1, np.int32)
    shift = _WORD - np.uint64(bits)
    for key in keys:
        places[np.int64(key >> shift) + 1] += 1
    for b in range(1 << bits):
        places[b + 1] += places[b]
    return places


@njit(inline="always")
def _position(key, index_keys, places, shift):
    """Feature keys kernel: the position of a key among the sorted keys of the index, or -1 if the key is unknown."""
    high, latest = np.int64(key >> shift), len(index_keys) - _FEW
    place, end = np.int64(places[high]), np.int64(places[high + 1])
    if latest < 0 or end - place > _FEW:
        while place < end and index_keys[place] < key:
            place += 1
    else:  # no branches, because a mispredicted branch would cost more
        # the four keys read must lie in the index; all keys before the old `place` are smaller than `key`
        place = min(place, latest)
        smaller = (index_keys[place] < key) + (index_keys[place + 1] < key)
        place += smaller + (index_keys[place + 2] < key) + (index_keys[place + 3] < key)
    return place if place < end and index_keys[place] == key else -1


@njit(**PLAIN)
def look_up(keys, index_keys, rows, places, bits, mask, result):
    """Feature keys kernel: look up keys of tokens or arcs in the feature index.

    result[i] gets the table row of key i, or -1. Only the bits of a key that are set in `mask` are compared."""
    shift = _WORD - np.uint64(bits)
    for t in range(len(keys)):
        place = _position(keys[t] & mask, index_keys, places, shift)
        result[t] = rows[place] if place >= 0 else -1


# --- bags of feature rows


@njit(**PLAIN)
def write_block(block, first, ids):
    """Feature keys kernel: copy the features of some consecutive templates to columns of ids [tokens, templates].

    `block` [some templates, tokens] holds feature ids. Its first template is column `first` of `ids`."""
    for t in range(len(ids)):
        row = ids[t]
        for k in range(len(block)):
            row[first + k] = block[k, t]


@njit(**PLAIN)
def compact(ids, offsets):
    """Feature keys kernel: remove the -1 entries from ids [tokens, templates] in place, which leaves bags of rows.

    The bag of token t is then the flattened ids at offsets[t] to offsets[t + 1] - 1. Fills offsets [tokens + 1]."""
    flat, place = ids.reshape(-1), 0
    offsets[0] = 0
    for t in range(len(ids)):
        for k in range(ids.shape[1]):
            row = ids[t, k]
            flat[place] = row
            place += row >= 0
        offsets[t + 1] = place


@njit(**PLAIN)
def kept_offsets(ids, offsets, new_row, result):
    """Feature keys kernel: offsets [bags + 1] of bags of rows after removal of the rows whose new index is -1.

    new_row [rows] holds the new indices."""
    result[0] = 0
    for bag in range(len(offsets) - 1):
        size = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            size += new_row[ids[place]] >= 0
        result[bag + 1] = result[bag] + size


@njit(**PLAIN)
def renumber(ids, new_row, renumbered):
    """Feature keys kernel: renumber the rows in bags, in order, without the rows whose new index is -1.

    `ids` are the old rows, and new_row [rows] the new indices. `renumbered` gets the result."""
    done = 0
    for k in range(len(ids)):
        row = new_row[ids[k]]
        if row >= 0:
            renumbered[done] = row
            done += 1


@njit(**PLAIN)
def count_rows(ids, counts):
    """Feature keys kernel: count the occurrences of each row in bags; adds them to counts [rows]."""
    for k in range(len(ids)):
        counts[ids[k]] += 1
