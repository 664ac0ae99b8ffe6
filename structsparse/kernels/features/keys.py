"""Keys of features on the CPU: folded from hashes, grouped by what is equal, looked up.

Keys spread evenly over 64 bits, so their high bits say nearly where they stand among the sorted ones: a look-up costs
one or two cache misses, where a binary search costs a dozen. Work goes template by template, so that what belongs to
one stays in the cache, and its rows are laid down sixteen templates at a time, a cache line of every token.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: an odd multiplier that spreads all bits
_HALF, _WORD = np.uint64(32), np.uint64(64)
TOGETHER = 16  # templates whose rows, int32, fill a cache line
_FEW = 4  # keys are seldom more that agree in the high bits


@njit(**PLAIN)
def fold(seed, attributes, shifts, hashes, starts, lengths, keys):
    """keys [tokens] of one template: its seed, into which the hashes of its atoms are folded.

    attributes, shifts [atoms]; hashes [attributes, places], where sentence s begins at starts[s] and stands between
    the hashes of its boundaries, so that a shift needs no look at where a sentence ends."""
    done = 0
    for s in range(len(starts)):
        own = keys[done : done + lengths[s]]
        own[:] = seed
        for a in range(len(shifts)):
            begin = starts[s] + shifts[a]
            values = hashes[attributes[a], begin : begin + lengths[s]]
            for t in range(len(own)):
                key = (own[t] ^ values[t]) * ODD
                own[t] = key ^ (key >> _HALF)
        done += lengths[s]


@njit(**PLAIN)
def group(keys, ordered, min_count, first_row, known, rows):
    """How many features occur min_count times; their keys, ascending, and their rows go to the front of known and rows.

    keys [tokens], and the same sorted. The most frequent feature owns first_row; of equals that which is met first goes
    first. So the rare features of a sentence lie side by side, and a cache line that one of them fetches serves many:
    in the order of their keys each would cost a cache miss."""
    features, begin, most = 0, 0, 0
    while begin < len(ordered):
        end = begin + 1
        while end < len(ordered) and ordered[end] == ordered[begin]:
            end += 1
        if end - begin >= min_count:
            known[features], rows[features] = ordered[begin], begin - end  # the count, below 0: no row yet
            features, most = features + 1, max(most, end - begin)
        begin = end
    _rank(keys, known[:features], most, first_row, rows[:features])
    return features


@njit(**PLAIN)
def _rank(keys, known, most, first_row, rows):
    """rows [known] = first_row + how many features come before; they are less than their counts until they are met."""
    before = np.zeros(most + 1, np.int64)
    for row in rows:
        before[-row] += 1
    total = first_row
    for count in range(most, -1, -1):
        here = before[count]
        before[count] = total
        total += here
    bits = _bits(len(known))
    places, shift = directory(known, bits), _WORD - np.uint64(bits)
    for key in keys:
        place = _stand(key, known, places, shift)
        if place >= 0 and rows[place] < 0:
            count = -rows[place]
            rows[place] = before[count]
            before[count] += 1


@njit(**PLAIN)
def _bits(size):
    """Of the directory of so many keys: at most one key a place."""
    bits = 1
    while size >> bits:
        bits += 1
    return bits


@njit(**PLAIN)
def directory(keys, bits):
    """places [2^bits + 1]: the keys whose high bits are b stand at places[b] : places[b + 1]."""
    places = np.zeros((1 << bits) + 1, np.int32)
    shift = _WORD - np.uint64(bits)
    for key in keys:
        places[np.int64(key >> shift) + 1] += 1
    for b in range(1 << bits):
        places[b + 1] += places[b]
    return places


@njit(inline="always")
def _stand(key, known, places, shift):
    """Where a key stands among those that are known, -1 if it does not."""
    high, latest = np.int64(key >> shift), len(known) - _FEW
    place, end = np.int64(places[high]), np.int64(places[high + 1])
    if latest < 0 or end - place > _FEW:
        while place < end and known[place] < key:
            place += 1
    else:  # no branch depends on the key: guessing wrong would cost more than all the rest
        place = min(place, latest)  # those before the place are smaller, those from the end on larger than the key
        smaller = (known[place] < key) + (known[place + 1] < key)
        place += smaller + (known[place + 2] < key) + (known[place + 3] < key)
    return place if place < end and known[place] == key else -1


@njit(**PLAIN)
def look_up(keys, known, rows, places, bits, mask, found):
    """found [keys] = the row of each key, -1 if it is unknown; what the mask leaves of a key is what counts."""
    shift = _WORD - np.uint64(bits)
    for t in range(len(keys)):
        place = _stand(keys[t] & mask, known, places, shift)
        found[t] = rows[place] if place >= 0 else -1


@njit(**PLAIN)
def find(patterns, hashes, starts, lengths, index, ids):
    """ids [tokens, templates] = the row of each token's feature, -1 for unknown ones.

    patterns: seeds [templates], bounds [templates + 1] into attributes and shifts [atoms]; index: offsets
    [templates + 1] into keys and rows, bits [templates], begins [templates + 1] into places, the directories, masks
    [templates]."""
    seeds, bounds, attributes, shifts = patterns
    offsets, known, rows, bits, begins, places, masks = index
    templates, tokens = len(seeds), len(ids)
    keys = np.empty(tokens, np.uint64)
    found = np.empty((min(TOGETHER, templates), tokens), np.int32)
    for first in range(0, templates, TOGETHER):
        last = min(first + TOGETHER, templates)
        for k in range(first, last):
            atoms = slice(bounds[k], bounds[k + 1])
            fold(seeds[k], attributes[atoms], shifts[atoms], hashes, starts, lengths, keys)
            own = slice(offsets[k], offsets[k + 1])
            mine, its_rows, where = known[own], rows[own], places[begins[k] : begins[k + 1]]
            look_up(keys, mine, its_rows, where, bits[k], masks[k], found[k - first])
        lay_down(found[: last - first], first, ids)


@njit(**PLAIN)
def lay_down(found, first, ids):
    """ids [tokens, templates] gets found [some templates, tokens] from column `first` on."""
    for t in range(len(ids)):
        row = ids[t]
        for k in range(len(found)):
            row[first + k] = found[k, t]


@njit(**PLAIN)
def squeeze(ids, offsets):
    """Move what is not -1 in ids [tokens, templates] to the front, in order; fill offsets [tokens + 1]."""
    flat, place = ids.reshape(-1), 0
    offsets[0] = 0
    for t in range(len(ids)):
        for k in range(ids.shape[1]):
            row = ids[t, k]
            flat[place] = row
            place += row >= 0
        offsets[t + 1] = place


@njit(**PLAIN)
def count_kept(ids, offsets, new_row, ends):
    """ends [bags + 1] = where bags end, once without the ids whose new row is -1."""
    ends[0] = 0
    for bag in range(len(offsets) - 1):
        kept = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            kept += new_row[ids[place]] >= 0
        ends[bag + 1] = ends[bag] + kept


@njit(**PLAIN)
def renumber(ids, new_row, found):
    """found [ids that are kept] = their new rows, in order."""
    done = 0
    for k in range(len(ids)):
        row = new_row[ids[k]]
        if row >= 0:
            found[done] = row
            done += 1


@njit(**PLAIN)
def occurrences(ids, counts):
    """Adds to counts [rows] how often each row occurs."""
    for k in range(len(ids)):
        counts[ids[k]] += 1
