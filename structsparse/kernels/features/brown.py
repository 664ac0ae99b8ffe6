"""Kernels of Brown clustering: merge repeatedly the two word classes whose merge loses the least mutual information.

n_ij counts how often class j follows class i. l_i and r_i count how often class i comes first and second in a bigram of
the text. a_i = sum_j n_ij and b_j = sum_i n_ij are sums over the classes of the window only. The mutual information
times the length of the text is

    sum_ij f(n_ij) - sum_i a_i log l_i - sum_j b_j log r_j + const,    f(x) = x log x,

so that a merge of i and j costs (a_i + a_j) log(l_i + l_j) - a_i log l_i - a_j log l_j + the same of b, r - D_ij,

    D_ij = sum_{k != i, j} g(n_ik, n_jk) + g(n_ki, n_kj)  +  f(n_ii + n_ij + n_ji + n_jj) - f(each of the four),

    g(x, y) = f(x + y) - f(x) - f(y),  zero where x or y is.

D is stored for all pairs. A merge of b into a changes D in the row of a. It also changes D of a pair if one class of
the pair neighbours b and the other neighbours a or b. So a merge costs the product of two short lists, not the square
of the window. Logarithms are integers in units of 2^-SHIFT. So sums are exact in any order, without drift, and equal
losses compare as equal.

A pair of classes is stored in one row: that of the class whose most frequent word is rarer. So a new word occurs in no
other row. Each row stores its least loss, and a lower bound of all its other losses. When a loss falls, both are
updated at once. When the least loss may have risen, the row is stale: only a lower bound of all its losses is known. A
stale row is searched again when no other row is below its bound.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
SHIFT = 30
_NEVER = np.int64(2**62)


class Lists(NamedTuple):
    """Neighbours of each class in bigrams, on one side (after or before), in any order.

    Row s has lengths[s] neighbours; a class is not its own neighbour.
    """

    slots: np.ndarray  # [slots, slots] the neighbours
    counts: np.ndarray  # [slots, slots] bigram counts of the neighbours
    lengths: np.ndarray  # [slots] number of neighbours


class Window(NamedTuple):
    """The current classes of Brown clustering, one per slot, with the losses of their merges."""

    after: Lists  # the classes that follow each class
    before: Lists  # the classes that precede each class
    shared: np.ndarray  # D of the module docstring [slots, slots], symmetric
    within: np.ndarray  # n_ii, bigrams within a class [slots]
    inner: np.ndarray  # a and b, bigrams with classes of the window [2, slots]
    total: np.ndarray  # l and r, bigrams with all words [2, slots]
    alone: np.ndarray  # a log l + b log r [slots]
    first: np.ndarray  # rank of the most frequent word of a class [slots]
    bound: np.ndarray  # lower bound of the losses in a row [slots]
    second: np.ndarray  # lower bound of the losses with all classes but the partner [slots]
    partner: np.ndarray  # the class with the least loss in a row [slots]
    exact: np.ndarray  # whether `bound` is the loss with the partner; False: the row is stale [slots]
    active: np.ndarray  # the slots in use, up to number[0]
    place: np.ndarray  # the place of a slot in active
    number: np.ndarray  # number of classes [1]
    scratch: np.ndarray  # [4, slots], zero between uses
    xlogx: np.ndarray  # table of f(x) = x log x, fixed point
    log: np.ndarray  # table of log x, fixed point


@njit(**PLAIN)
def _lists(slots):
    """Empty lists of neighbours of classes."""
    pair = np.zeros((slots, slots), np.int32), np.zeros((slots, slots), np.int32)
    return Lists(pair[0], pair[1], np.zeros(slots, np.int64))


@njit(**PLAIN)
def window(slots, xlogx, log):
    """A Brown clustering window without classes, with this number of slots."""
    side = np.int64(slots)
    return Window(
        _lists(slots), _lists(slots), np.zeros((side, side), np.int64), np.zeros(side, np.int64),
        np.zeros((2, side), np.int64), np.zeros((2, side), np.int64), np.zeros(side, np.int64),
        np.zeros(side, np.int64), np.full(side, _NEVER), np.full(side, _NEVER), np.full(side, -1, np.int64),
        np.ones(side, np.bool_), np.zeros(side, np.int64), np.zeros(side, np.int64), np.zeros(1, np.int64),
        np.zeros((4, side), np.int64), xlogx, log,
    )  # fmt: skip


@njit(**PLAIN)
def _gain(f, x, y):
    """The gain in mutual information g(x, y) = f(x + y) - f(x) - f(y), for bigram counts x and y."""
    return f[x + y] - f[x] - f[y]


@njit(**PLAIN)
def loss(w, i, j):
    """The mutual information lost by the merge of two Brown classes, times the length of the text.

    The unit is 2^-SHIFT nats.
    """
    left = (w.inner[0, i] + w.inner[0, j]) * w.log[w.total[0, i] + w.total[0, j]]
    right = (w.inner[1, i] + w.inner[1, j]) * w.log[w.total[1, i] + w.total[1, j]]
    return left + right - w.alone[i] - w.alone[j] - w.shared[i, j]


@njit(**PLAIN)
def _update_alone(w, s):
    """Recompute a log l + b log r of a Brown class."""
    w.alone[s] = w.inner[0, s] * w.log[w.total[0, s]] + w.inner[1, s] * w.log[w.total[1, s]]


@njit(**PLAIN)
def _add_shared_information(w, i, j, more):
    """Add `more` (>= 0) to D_ij of a pair of Brown classes, and update the loss of their merge."""
    w.shared[i, j] += more
    w.shared[j, i] += more
    _lower(w, i, j, loss(w, i, j))


@njit(**PLAIN)
def _lower(w, i, j, now):
    """Update the row of a pair of Brown classes whose loss has fallen or is new."""
    if w.first[i] < w.first[j]:
        i, j = j, i
    if now < w.bound[i] or (now == w.bound[i] and w.exact[i] and w.first[j] < w.first[w.partner[i]]):
        if w.partner[i] != j or not w.exact[i]:
            w.second[i] = w.bound[i]  # a lower bound, even if the row is stale
        w.bound[i], w.partner[i], w.exact[i] = now, j, True
    elif now < w.second[i] and not (w.exact[i] and w.partner[i] == j):
        w.second[i] = now


@njit(**PLAIN)
def _forget_partner(w, i):
    """Mark the row of a Brown class as stale, as its cheapest partner is merged."""
    if w.exact[i]:
        w.bound[i], w.exact[i] = w.second[i], False
    w.partner[i] = -1


@njit(**PLAIN)
def _search_row(w, i):
    """Find the partner of a Brown class whose merge loses least.

    In a tie, the partner with the most frequent first word wins.
    """
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
    """The pair of Brown classes whose merge loses least.

    In a tie, the pair with the most frequent first words wins.
    """
    while True:
        best = w.active[0]
        for p in range(1, w.number[0]):
            i = w.active[p]
            if w.bound[i] < w.bound[best] or (w.bound[i] == w.bound[best] and w.exact[best] and _before(w, i, best)):
                best = i
        if w.exact[best]:
            return best, w.partner[best]
        _search_row(w, best)


@njit(**PLAIN)
def _before(w, i, best):
    """Whether row i comes before row `best`, which has the same bound.

    Stale rows come first, as they have to be searched again.
    """
    if not w.exact[i]:
        return True
    one, other = w.partner[i], w.partner[best]
    return w.first[one] < w.first[other] or (one == other and w.first[i] < w.first[best])


@njit(**PLAIN)
def _fill_row(w, s):
    """Compute D and the losses of one Brown class with all other classes from scratch."""
    sums, follows, precedes = w.scratch[0], w.scratch[1], w.scratch[2]
    _add_shared(w, w.after, w.before, s, sums, follows)
    _add_shared(w, w.before, w.after, s, sums, precedes)
    f, within = w.xlogx, w.within
    w.bound[s], w.second[s], w.partner[s], w.exact[s] = _NEVER, _NEVER, -1, True
    for p in range(w.number[0]):
        j = w.active[p]
        if j == s:
            continue
        x, y = follows[j], precedes[j]
        block = f[within[s] + within[j] + x + y] - f[within[s]] - f[within[j]] - f[x] - f[y]
        w.shared[s, j] = w.shared[j, s] = sums[j] + block
    for p in range(w.number[0]):
        j = w.active[p]
        sums[j] = follows[j] = precedes[j] = 0
        if j != s:
            _lower(w, s, j, loss(w, s, j))


@njit(**PLAIN)
def _add_shared(w, side, back, s, sums, counts):
    """Add to sums [slots] the part of D of class s that comes from its neighbours on one side.

    `counts` becomes the bigram counts of these neighbours.
    """
    for p in range(side.lengths[s]):
        k, n = side.slots[s, p], side.counts[s, p]
        counts[k] = n
        for q in range(back.lengths[k]):
            j = back.slots[k, q]
            if j != s:
                sums[j] += _gain(w.xlogx, n, back.counts[k, q])


@njit(**PLAIN)
def _append(side, s, k, n):
    """Append a neighbour with its bigram count to the list of Brown class s."""
    side.slots[s, side.lengths[s]], side.counts[s, side.lengths[s]] = k, n
    side.lengths[s] += 1


@njit(**PLAIN)
def _remove(side, s, k):
    """Remove neighbour k from the list of Brown class s; returns its bigram count, 0 if k is not in the list."""
    last = side.lengths[s] - 1
    for p in range(last + 1):
        if side.slots[s, p] == k:
            n = side.counts[s, p]
            side.slots[s, p], side.counts[s, p] = side.slots[s, last], side.counts[s, last]
            side.lengths[s] = last
            return n
    return np.int32(0)


@njit(**PLAIN)
def include(w, s, word, totals, slot_of, after, before):
    """Add a word to the Brown clustering window as a class of its own, in the free slot s.

    after, before: (offsets, words, counts) of the neighbours of all words. Neighbours without a slot (slot_of = -1) are
    ignored.
    """
    w.within[s], w.first[s] = 0, word
    w.inner[:, s] = 0
    w.total[:, s] = totals[:, word]
    slot_of[word] = s
    w.active[w.number[0]], w.place[s] = s, w.number[0]
    w.number[0] += 1
    _count_neighbours(w, w.after, w.before, 0, s, word, slot_of, after)
    _count_neighbours(w, w.before, w.after, 1, s, word, slot_of, before)
    w.inner[:, s] += w.within[s]
    _update_alone(w, s)
    touched = w.scratch[3]  # classes whose a or b has grown, so that their losses may have risen
    for side in (w.after, w.before):
        for p in range(side.lengths[s]):
            touched[side.slots[s, p]] = 1
    for p in range(w.number[0]):
        i = w.active[p]
        if touched[i] or (w.partner[i] >= 0 and touched[w.partner[i]]):
            w.exact[i] = False  # `bound` is still a lower bound, as no loss has fallen
    for side in (w.after, w.before):
        for p in range(side.lengths[s]):
            touched[side.slots[s, p]] = 0
            for q in range(p):
                more = _gain(w.xlogx, side.counts[s, p], side.counts[s, q])
                _add_shared_information(w, np.int64(side.slots[s, p]), np.int64(side.slots[s, q]), more)
    _fill_row(w, s)


@njit(**PLAIN)
def _count_neighbours(w, side, back, direction, s, word, slot_of, neighbours):
    """Add up the bigram counts of a new word on one side by the class of the neighbour."""
    offsets, words, counts = neighbours
    side.lengths[s] = 0
    total = w.scratch[0]
    for p in range(offsets[word], offsets[word + 1]):
        k = slot_of[words[p]]
        if k == s:
            w.within[s] = counts[p]
        elif k >= 0:
            if total[k] == 0:
                _append(side, s, k, 0)
            total[k] += counts[p]
    for p in range(side.lengths[s]):
        k = side.slots[s, p]
        n = total[k]
        side.counts[s, p], total[k] = n, 0
        _append(back, k, s, n)
        w.inner[direction, s] += n
        w.inner[1 - direction, k] += n
        _update_alone(w, k)


@njit(**PLAIN)
def merge(w, a, b):
    """Merge the Brown class of slot b into the class of slot a; slot b is free afterwards."""
    for p in range(w.number[0]):
        i = w.active[p]
        if w.partner[i] == a or w.partner[i] == b:
            _forget_partner(w, i)
    last = w.active[w.number[0] - 1]
    w.active[w.place[b]], w.place[last] = last, w.place[b]
    w.number[0] -= 1
    _join_contexts(w, w.after, a, b)
    _join_contexts(w, w.before, a, b)
    between = _remove(w.after, a, b) + _remove(w.before, a, b)  # n_ab + n_ba, the bigrams of a and b
    _remove(w.after, b, a)
    _remove(w.before, b, a)
    w.within[a] += w.within[b] + between
    _join_lists(w, w.after, w.before, a, b)
    _join_lists(w, w.before, w.after, a, b)
    w.inner[:, a] += w.inner[:, b]
    w.total[:, a] += w.total[:, b]
    w.first[a] = min(w.first[a], w.first[b])
    _update_alone(w, a)
    _fill_row(w, a)


@njit(**PLAIN)
def _join_contexts(w, side, a, b):
    """Update D of pairs of neighbours of a and b on one side, for the merge of Brown class b into a."""
    bound = side.lengths[a] + side.lengths[b]
    slots, of_a, of_b = np.empty(bound, np.int64), np.zeros(bound, np.int64), np.zeros(bound, np.int64)
    position, number = w.scratch[0], 0  # position[k]: 1 + the index of class k in `slots`
    for p in range(side.lengths[b]):
        k = side.slots[b, p]
        if k != a:
            slots[number], of_b[number] = k, side.counts[b, p]
            number += 1
            position[k] = number
    most = number
    for p in range(side.lengths[a]):
        k = side.slots[a, p]
        if k == b:
            continue
        if position[k]:
            of_a[position[k] - 1] = side.counts[a, p]
        else:
            slots[number], of_a[number] = k, side.counts[a, p]
            number += 1
    f = w.xlogx
    for p in range(most):
        position[slots[p]] = 0
        x, y = of_a[p], of_b[p]
        for q in range(p + 1, number):
            more = _gain(f, x + y, of_a[q] + of_b[q]) - _gain(f, x, of_a[q]) - _gain(f, y, of_b[q])
            if more:
                _add_shared_information(w, slots[p], slots[q], more)


@njit(**PLAIN)
def _join_lists(w, side, back, a, b):
    """Add the neighbours of b on one side to the neighbours of a, for the merge of Brown class b into a."""
    position = w.scratch[0]  # position[k]: 1 + the index of class k in the list of a
    for p in range(side.lengths[a]):
        position[side.slots[a, p]] = p + 1
    before = side.lengths[a]
    for p in range(side.lengths[b]):
        k, n = side.slots[b, p], side.counts[b, p]
        _remove(back, k, b)
        if position[k]:
            side.counts[a, position[k] - 1] += n
            for q in range(back.lengths[k]):
                if back.slots[k, q] == a:
                    back.counts[k, q] += n
                    break
        else:
            _append(side, a, k, n)
            _append(back, k, a, n)
    for p in range(before):
        position[side.slots[a, p]] = 0
    side.lengths[b] = 0


@njit(**PLAIN)
def cluster(totals, after, before, classes, xlogx, log):
    """Kernel: Brown clustering of words that are numbered by falling frequency.

    totals [2, words]: how often a word comes first and second in a bigram. after, before: (offsets, words, counts) of
    the neighbours of each word. The first `classes` words are classes of their own. Each further word becomes a class,
    and then the cheapest pair of classes is merged. In the end the remaining classes are merged to one.

    Returns all merges in order [words - 1, 2], each class identified by its most frequent word, and their losses [words
    - 1]. The first words - classes merges are those of the window.
    """
    words = totals.shape[1]
    w = window(min(classes + 1, words), xlogx, log)
    slot_of = np.full(words, -1, np.int64)
    following = np.full(words, -1, np.int64)  # the next word of the same class
    latest = np.arange(words)  # the last word of the class of a first word
    merges, costs = np.empty((words - 1, 2), np.int32), np.empty(words - 1, np.int64)
    free, done = np.int64(0), 0
    for word in range(words):
        include(w, free, word, totals, slot_of, after, before)
        free = np.int64(word + 1)
        while w.number[0] > classes or (word == words - 1 and w.number[0] > 1):
            i, j = _cheapest(w)
            costs[done] = w.bound[i]
            one, other = min(w.first[i], w.first[j]), max(w.first[i], w.first[j])
            merges[done, 0], merges[done, 1] = one, other
            done += 1
            if _neighbours(w, i) < _neighbours(w, j):
                i, j = j, i
            if word < words - 1:  # after the last word the slots of words are not used any more
                _move(w.first[j], i, slot_of, following)
            following[latest[one]] = other
            latest[one] = latest[other]
            merge(w, i, j)
            free = j
    return merges, costs


@njit(**PLAIN)
def _neighbours(w, s):
    """The number of neighbours of a Brown class on both sides."""
    return w.after.lengths[s] + w.before.lengths[s]


@njit(**PLAIN)
def _move(first, slot, slot_of, following):
    """Assign all words of a Brown class, linked by `following`, to another slot."""
    word = first
    while word >= 0:
        slot_of[word] = slot
        word = following[word]
