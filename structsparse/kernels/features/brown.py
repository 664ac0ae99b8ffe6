"""Brown clustering: merge the two classes of words that cost the least average mutual information, again and again.

With n_ij how often class j follows class i, l_i and r_i how often i comes first and second in a bigram of the text,
and a_i = sum_j n_ij, b_j = sum_i n_ij over the classes of the window alone, the mutual information times the length is

    sum_ij f(n_ij) - sum_i a_i log l_i - sum_j b_j log r_j + const,    f(x) = x log x,

so that a merge of i and j costs  (a_i + a_j) log(l_i + l_j) - a_i log l_i - a_j log l_j  +  the same of b, r  -  D_ij,

    D_ij = sum_{k != i, j} g(n_ik, n_jk) + g(n_ki, n_kj)  +  f(n_ii + n_ij + n_ji + n_jj) - f(each of the four),

    g(x, y) = f(x + y) - f(x) - f(y),  zero where x or y is.

D is kept for all pairs. A merge of b into a changes it only for pairs of which one has b for a neighbour and the other
has a or b, and in the row of a: so a step costs the product of two short lists, not the square of the window.
Logarithms are whole numbers of 2^-SHIFT: sums are exact in any order, nothing drifts, and equal losses are equal.

A pair stands in the row of the class whose most frequent word comes later, so that a new word is in no row but its own.
Of each row the least loss is kept, and a lower bound of all others in it. Where losses fall both follow at once; where
the least one may have risen the row is stale, has nothing but a lower bound of all, and is searched again when no other
row is below it.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
SHIFT = 30
_NEVER = np.int64(2**62)


class Lists(NamedTuple):
    """The neighbours of each slot on one side, other than itself, in no order: slots and counts [slots, slots], where
    row s is filled up to lengths[s]."""

    slots: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray


class Window(NamedTuple):
    """The classes under way, each in a slot."""

    after: Lists  # who follows
    before: Lists  # who precedes
    shared: np.ndarray  # D [slots, slots], symmetric
    own: np.ndarray  # n_ii [slots]
    inner: np.ndarray  # a, b [2, slots]
    whole: np.ndarray  # l, r [2, slots]
    alone: np.ndarray  # a log l + b log r [slots]
    first: np.ndarray  # rank of its most frequent word [slots]
    bound: np.ndarray  # of the losses in a row [slots]
    second: np.ndarray  # of those other than the partner's [slots]
    partner: np.ndarray  # [slots]
    exact: np.ndarray  # whether partner has the loss bound [slots]
    active: np.ndarray  # the slots in use, up to number[0]
    place: np.ndarray  # where a slot stands in active
    number: np.ndarray  # [1]
    scratch: np.ndarray  # [4, slots], zero between uses
    xlogx: np.ndarray  # f, fixed point
    log: np.ndarray


@njit(**PLAIN)
def _lists(slots):
    pair = np.zeros((slots, slots), np.int32), np.zeros((slots, slots), np.int32)
    return Lists(pair[0], pair[1], np.zeros(slots, np.int64))


@njit(**PLAIN)
def window(slots, xlogx, log):
    side = np.int64(slots)
    return Window(
        _lists(slots), _lists(slots), np.zeros((side, side), np.int64), np.zeros(side, np.int64),
        np.zeros((2, side), np.int64), np.zeros((2, side), np.int64), np.zeros(side, np.int64),
        np.zeros(side, np.int64), np.full(side, _NEVER), np.full(side, _NEVER), np.full(side, -1, np.int64),
        np.ones(side, np.bool_), np.zeros(side, np.int64), np.zeros(side, np.int64), np.zeros(1, np.int64),
        np.zeros((4, side), np.int64), xlogx, log,
    )  # fmt: skip


@njit(**PLAIN)
def _both(f, x, y):
    return f[x + y] - f[x] - f[y]


@njit(**PLAIN)
def loss(w, i, j):
    """What a merge of two slots costs, in 2^-SHIFT nats of the whole text."""
    left = (w.inner[0, i] + w.inner[0, j]) * w.log[w.whole[0, i] + w.whole[0, j]]
    right = (w.inner[1, i] + w.inner[1, j]) * w.log[w.whole[1, i] + w.whole[1, j]]
    return left + right - w.alone[i] - w.alone[j] - w.shared[i, j]


@njit(**PLAIN)
def _weigh(w, s):
    w.alone[s] = w.inner[0, s] * w.log[w.whole[0, s]] + w.inner[1, s] * w.log[w.whole[1, s]]


@njit(**PLAIN)
def _share(w, i, j, more):
    """D_ij grows."""
    w.shared[i, j] += more
    w.shared[j, i] += more
    _lower(w, i, j, loss(w, i, j))


@njit(**PLAIN)
def _lower(w, i, j, now):
    """The loss of a pair is now what it is: less than before, or that of a new class."""
    if w.first[i] < w.first[j]:
        i, j = j, i
    if now < w.bound[i] or (now == w.bound[i] and w.exact[i] and w.first[j] < w.first[w.partner[i]]):
        if w.partner[i] != j or not w.exact[i]:
            w.second[i] = w.bound[i]  # if the row is stale no loss in it is below that
        w.bound[i], w.partner[i], w.exact[i] = now, j, True
    elif now < w.second[i] and not (w.exact[i] and w.partner[i] == j):
        w.second[i] = now


@njit(**PLAIN)
def _forget(w, i):
    """The partner of a row is another class now, and its loss has still to be told."""
    if w.exact[i]:
        w.bound[i], w.exact[i] = w.second[i], False
    w.partner[i] = -1


@njit(**PLAIN)
def _search(w, i):
    """The cheapest partner of a row; of equals the one whose most frequent word comes first."""
    best, second, partner = _NEVER, _NEVER, np.int64(-1)
    for p in range(w.number[0]):
        j = w.active[p]
        if w.first[j] >= w.first[i]:
            continue
        now = loss(w, i, j)
        if now < best or (now == best and w.first[j] < w.first[partner]):
            best, second, partner = now, best, j
        elif now < second:
            second = now
    w.bound[i], w.second[i], w.partner[i], w.exact[i] = best, second, partner, True


@njit(**PLAIN)
def _cheapest(w):
    """The pair whose merge costs the least; of equals the one whose most frequent words come first."""
    while True:
        best = w.active[0]
        for p in range(1, w.number[0]):
            i = w.active[p]
            if w.bound[i] < w.bound[best] or (w.bound[i] == w.bound[best] and w.exact[best] and _before(w, i, best)):
                best = i
        if w.exact[best]:
            return best, w.partner[best]
        _search(w, best)


@njit(**PLAIN)
def _before(w, i, best):
    """Of two rows with the same bound a stale one goes first: it may turn out to be dearer."""
    if not w.exact[i]:
        return True
    one, other = w.partner[i], w.partner[best]
    return w.first[one] < w.first[other] or (one == other and w.first[i] < w.first[best])


@njit(**PLAIN)
def _fill_row(w, s):
    """D of one slot with all others, from the start; then its losses."""
    sums, follows, precedes = w.scratch[0], w.scratch[1], w.scratch[2]
    _add_shared(w, w.after, w.before, s, sums, follows)
    _add_shared(w, w.before, w.after, s, sums, precedes)
    f, own = w.xlogx, w.own
    w.bound[s], w.second[s], w.partner[s], w.exact[s] = _NEVER, _NEVER, -1, True
    for p in range(w.number[0]):
        j = w.active[p]
        if j == s:
            continue
        x, y = follows[j], precedes[j]
        block = f[own[s] + own[j] + x + y] - f[own[s]] - f[own[j]] - f[x] - f[y]
        w.shared[s, j] = w.shared[j, s] = sums[j] + block
    for p in range(w.number[0]):
        j = w.active[p]
        sums[j] = follows[j] = precedes[j] = 0
        if j != s:
            _lower(w, s, j, loss(w, s, j))


@njit(**PLAIN)
def _add_shared(w, side, back, s, sums, counts):
    """sums [slots] += what s shares with each other slot through its neighbours on one side; counts = those."""
    for p in range(side.lengths[s]):
        k, n = side.slots[s, p], side.counts[s, p]
        counts[k] = n
        for q in range(back.lengths[k]):
            j = back.slots[k, q]
            if j != s:
                sums[j] += _both(w.xlogx, n, back.counts[k, q])


@njit(**PLAIN)
def _append(side, s, k, n):
    side.slots[s, side.lengths[s]], side.counts[s, side.lengths[s]] = k, n
    side.lengths[s] += 1


@njit(**PLAIN)
def _remove(side, s, k):
    """The count of k among the neighbours of s, which it leaves; 0 if it is none."""
    last = side.lengths[s] - 1
    for p in range(last + 1):
        if side.slots[s, p] == k:
            n = side.counts[s, p]
            side.slots[s, p], side.counts[s, p] = side.slots[s, last], side.counts[s, last]
            side.lengths[s] = last
            return n
    return np.int32(0)


@njit(**PLAIN)
def include(w, s, word, whole, slot_of, after, before):
    """A word becomes a class of its own in the free slot s. after, before: (offsets, words, counts) of all words'
    neighbours, of which those in no slot yet (slot_of = -1) do not count."""
    w.own[s], w.first[s] = 0, word
    w.inner[:, s] = 0
    w.whole[:, s] = whole[:, word]
    slot_of[word] = s
    w.active[w.number[0]], w.place[s] = s, w.number[0]
    w.number[0] += 1
    _meet(w, w.after, w.before, 0, s, word, slot_of, after)
    _meet(w, w.before, w.after, 1, s, word, slot_of, before)
    w.inner[:, s] += w.own[s]
    _weigh(w, s)
    touched = w.scratch[3]  # their sums have grown, and with them perhaps their losses
    for side in (w.after, w.before):
        for p in range(side.lengths[s]):
            touched[side.slots[s, p]] = 1
    for p in range(w.number[0]):
        i = w.active[p]
        if touched[i] or (w.partner[i] >= 0 and touched[w.partner[i]]):
            w.exact[i] = False  # the bound stays one: so far nothing has become less
    for side in (w.after, w.before):
        for p in range(side.lengths[s]):
            touched[side.slots[s, p]] = 0
            for q in range(p):
                more = _both(w.xlogx, side.counts[s, p], side.counts[s, q])
                _share(w, np.int64(side.slots[s, p]), np.int64(side.slots[s, q]), more)
    _fill_row(w, s)


@njit(**PLAIN)
def _meet(w, side, back, direction, s, word, slot_of, neighbours):
    """The neighbours of a new word on one side, class by class."""
    offsets, words, counts = neighbours
    side.lengths[s] = 0
    found = w.scratch[0]
    for p in range(offsets[word], offsets[word + 1]):
        k = slot_of[words[p]]
        if k == s:
            w.own[s] = counts[p]
        elif k >= 0:
            if found[k] == 0:
                _append(side, s, k, 0)
            found[k] += counts[p]
    for p in range(side.lengths[s]):
        k = side.slots[s, p]
        n = found[k]
        side.counts[s, p], found[k] = n, 0
        _append(back, k, s, n)
        w.inner[direction, s] += n
        w.inner[1 - direction, k] += n
        _weigh(w, k)


@njit(**PLAIN)
def merge(w, a, b):
    """Slot b goes into slot a and is free."""
    for p in range(w.number[0]):
        i = w.active[p]
        if w.partner[i] == a or w.partner[i] == b:
            _forget(w, i)
    last = w.active[w.number[0] - 1]
    w.active[w.place[b]], w.place[last] = last, w.place[b]
    w.number[0] -= 1
    _join_contexts(w, w.after, a, b)
    _join_contexts(w, w.before, a, b)
    between = _remove(w.after, a, b) + _remove(w.before, a, b)  # n_ab and n_ba
    _remove(w.after, b, a)
    _remove(w.before, b, a)
    w.own[a] += w.own[b] + between
    _join_lists(w, w.after, w.before, a, b)
    _join_lists(w, w.before, w.after, a, b)
    w.inner[:, a] += w.inner[:, b]
    w.whole[:, a] += w.whole[:, b]
    w.first[a] = min(w.first[a], w.first[b])
    _weigh(w, a)
    _fill_row(w, a)


@njit(**PLAIN)
def _join_contexts(w, side, a, b):
    """Classes that are neighbours of b share more with those of a and b once these are one."""
    bound = side.lengths[a] + side.lengths[b]
    slots, of_a, of_b = np.empty(bound, np.int64), np.zeros(bound, np.int64), np.zeros(bound, np.int64)
    found, number = w.scratch[0], 0  # 1 + the place in slots
    for p in range(side.lengths[b]):
        k = side.slots[b, p]
        if k != a:
            slots[number], of_b[number] = k, side.counts[b, p]
            number += 1
            found[k] = number
    most = number
    for p in range(side.lengths[a]):
        k = side.slots[a, p]
        if k == b:
            continue
        if found[k]:
            of_a[found[k] - 1] = side.counts[a, p]
        else:
            slots[number], of_a[number] = k, side.counts[a, p]
            number += 1
    f = w.xlogx
    for p in range(most):
        found[slots[p]] = 0
        x, y = of_a[p], of_b[p]
        for q in range(p + 1, number):
            more = _both(f, x + y, of_a[q] + of_b[q]) - _both(f, x, of_a[q]) - _both(f, y, of_b[q])
            if more:
                _share(w, slots[p], slots[q], more)


@njit(**PLAIN)
def _join_lists(w, side, back, a, b):
    """The neighbours of b become those of a; neither is one of the other any more."""
    found = w.scratch[0]
    for p in range(side.lengths[a]):
        found[side.slots[a, p]] = p + 1
    before = side.lengths[a]
    for p in range(side.lengths[b]):
        k, n = side.slots[b, p], side.counts[b, p]
        _remove(back, k, b)
        if found[k]:
            side.counts[a, found[k] - 1] += n
            for q in range(back.lengths[k]):
                if back.slots[k, q] == a:
                    back.counts[k, q] += n
                    break
        else:
            _append(side, a, k, n)
            _append(back, k, a, n)
    for p in range(before):
        found[side.slots[a, p]] = 0
    side.lengths[b] = 0


@njit(**PLAIN)
def cluster(whole, after, before, classes, xlogx, log):
    """Brown clustering of words numbered by falling frequency.

    whole [2, words]: how often a word comes first, second; after, before: (offsets, words, counts) of its neighbours.
    The first `classes` words are classes of their own; each further one joins them and the cheapest pair is merged.
    Then the classes are merged to one. Returns all merges in order [words - 1, 2], each class named by its most
    frequent word, and what they cost [words - 1]; the first words - classes of them are those of the window."""
    words = whole.shape[1]
    w = window(min(classes + 1, words), xlogx, log)
    slot_of = np.full(words, -1, np.int64)
    following = np.full(words, -1, np.int64)  # the next word of the same class
    latest = np.arange(words)  # the last word of the class of a first word
    merges, costs = np.empty((words - 1, 2), np.int32), np.empty(words - 1, np.int64)
    free, done = np.int64(0), 0
    for word in range(words):
        include(w, free, word, whole, slot_of, after, before)
        free = np.int64(word + 1)
        while w.number[0] > classes or (word == words - 1 and w.number[0] > 1):
            i, j = _cheapest(w)
            costs[done] = w.bound[i]
            one, other = min(w.first[i], w.first[j]), max(w.first[i], w.first[j])
            merges[done, 0], merges[done, 1] = one, other
            done += 1
            if _neighbours(w, i) < _neighbours(w, j):
                i, j = j, i
            if word < words - 1:  # else nobody asks any more
                _move(w.first[j], i, slot_of, following)
            following[latest[one]] = other
            latest[one] = latest[other]
            merge(w, i, j)
            free = j
    return merges, costs


@njit(**PLAIN)
def _neighbours(w, s):
    return w.after.lengths[s] + w.before.lengths[s]


@njit(**PLAIN)
def _move(first, slot, slot_of, following):
    word = first
    while word >= 0:
        slot_of[word] = slot
        word = following[word]
