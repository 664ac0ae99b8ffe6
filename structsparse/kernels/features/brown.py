"""Kernels of Brown clustering: merge repeatedly the two word classes whose merge loses the least mutual information.

With f(x) = x log x, the mutual information times the length of the text is, up to a constant,

    sum_ij f(n_ij) - sum_i a_i log l_i - sum_j b_j log r_j

- n_ij is the number of times that class j follows class i in the text.
- l_i and r_i are the numbers of bigrams in which class i comes first and second.
- a_i = sum_j n_ij and b_j = sum_i n_ij count only bigrams of two current classes.

A merge of i and j changes all three sums. D_ij is the increase of the first sum. It is stored for all pairs of classes,
and updated at each merge.

Classes are ranked by the frequency of their most frequent word. Each class has a row of losses, which has its merges
with all classes of higher rank. The class whose merge loses least is the partner. A row stores the partner, the loss of
the merge with the partner, and a lower bound of the other losses. A row is stale if only a lower bound of its least
loss is known. A stale row is searched again when it has the lowest bound of all rows.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

PLAIN = {"cache": True, "nogil": True}
SHIFT = 30  # logarithms are integers in units of 2^-SHIFT
_NEVER = np.int64(2**62)  # infinity: larger than every loss


class Lists(NamedTuple):
    """Brown clustering kernels: the classes that follow each class in bigrams, or the classes that precede it.

    Class s has lengths[s] neighbours, in any order. A class is not its own neighbour."""

    slots: np.ndarray  # [classes, classes]: row s lists the neighbours of class s
    counts: np.ndarray  # [classes, classes]: row s has the bigram counts of class s with its neighbours
    lengths: np.ndarray  # [classes]: number of neighbours of each class


class Window(NamedTuple):
    """Brown clustering kernels: the current word classes, one per slot, and the losses of all merges of two classes.

    Classes are ranked by the frequency of their most frequent word. The row of a class i has the losses of its merges
    with all classes of higher rank. The partner of i is the class with the least loss in the row."""

    after: Lists  # the classes that follow each class
    before: Lists  # the classes that precede each class
    shared: np.ndarray  # [slots, slots]: D_ij, how much common neighbours reduce the loss of a merge of i and j
    within: np.ndarray  # [slots]: number of bigrams within each class
    inner: np.ndarray  # [2, slots]: a_i and b_i, bigram counts of each class with all current classes
    total: np.ndarray  # [2, slots]: l_i and r_i, bigram counts of each class with all words
    alone: np.ndarray  # [slots]: a_i log l_i + b_i log r_i for each class i, a part of the loss of each merge with i
    first: np.ndarray  # [slots]: frequency rank of the most frequent word of each class
    bound: np.ndarray  # [slots]: lower bound of the losses in the row of each class
    second: np.ndarray  # [slots]: lower bound of the losses of each row, except the loss of the partner
    partner: np.ndarray  # [slots]: for each class, the class with the least loss in its row; -1 for none
    exact: np.ndarray  # [slots]: whether `bound` is exactly the loss of the merge with the partner
    active: np.ndarray  # [slots]: the first number[0] elements list the slots in use
    place: np.ndarray  # [slots]: the index in `active` of each slot in use
    number: np.ndarray  # array of shape [1]: the number of current classes
    scratch: np.ndarray  # [4, slots]: work memory, zero between uses
    xlogx: np.ndarray  # table of x log x in units of 2^-SHIFT, indexed by x
    log: np.ndarray  # table of log x in units of 2^-SHIFT, indexed by x


@njit(**PLAIN)
def _lists(slots):
    """Brown clustering kernel: empty lists of the neighbours of each class."""
    pair = np.zeros((slots, slots), np.int32), np.zeros((slots, slots), np.int32)
    return Lists(pair[0], pair[1], np.zeros(slots, np.int64))


@njit(**PLAIN)
def window(slots, xlogx, log):
    """Brown clustering kernel: an empty window, with room for `slots` word classes."""
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
    """Brown clustering kernel: g(x, y) = f(x + y) - f(x) - f(y) with f(x) = x log x, for bigram counts x and y."""
    return f[x + y] - f[x] - f[y]


@njit(**PLAIN)
def loss(w, i, j):
    """Brown clustering kernel: the mutual information that a merge of classes i and j loses.

    The loss is multiplied by the length of the text, and has the unit 2^-SHIFT nats.
    """
    left = (w.inner[0, i] + w.inner[0, j]) * w.log[w.total[0, i] + w.total[0, j]]
    right = (w.inner[1, i] + w.inner[1, j]) * w.log[w.total[1, i] + w.total[1, j]]
    return left + right - w.alone[i] - w.alone[j] - w.shared[i, j]


@njit(**PLAIN)
def _update_alone(w, s):
    """Brown clustering kernel: recompute the part of all losses of class s that is the same for every merge with s."""
    w.alone[s] = w.inner[0, s] * w.log[w.total[0, s]] + w.inner[1, s] * w.log[w.total[1, s]]


@njit(**PLAIN)
def _add_shared_information(w, i, j, more):
    """Brown clustering kernel: add `more` (at least 0) to D_ij, which lowers the loss of a merge of i and j.

    D_ij is the amount by which common neighbours of the classes i and j reduce the loss."""
    w.shared[i, j] += more
    w.shared[j, i] += more
    _lower(w, i, j, loss(w, i, j))


@njit(**PLAIN)
def _lower(w, i, j, now):
    """Brown clustering kernel: record that a merge of classes i and j loses `now`.

    `now` must be the first recorded loss of this merge, or a lower one. It is stored in the row of the class whose most
    frequent word is rarer."""
    if w.first[i] < w.first[j]:
        i, j = j, i
    if now < w.bound[i] or (now == w.bound[i] and w.exact[i] and w.first[j] < w.first[w.partner[i]]):
        if w.partner[i] != j or not w.exact[i]:
            w.second[i] = w.bound[i]  # the old bound holds for all other losses of the row
        w.bound[i], w.partner[i], w.exact[i] = now, j, True
    elif now < w.second[i] and not (w.exact[i] and w.partner[i] == j):
        w.second[i] = now


@njit(**PLAIN)
def _forget_partner(w, i):
    """Brown clustering kernel: mark the row of class i as stale, because its partner is merged.

    The partner is the class with the least loss in the row. In a stale row, only a lower bound of this loss is
    known."""
    if w.exact[i]:
        w.bound[i], w.exact[i] = w.second[i], False
    w.partner[i] = -1


@njit(**PLAIN)
def _search_row(w, i):
    """Brown clustering kernel: find the partner of class i, which is the class whose merge with i loses least.

    In a tie, the class with the more frequent words wins."""
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
    """Brown clustering kernel: the pair of classes whose merge loses least; searches stale rows if necessary.

    A row is stale if only a lower bound of its least loss is known. In a tie, the pair with the more frequent words
    wins."""
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
    """Brown clustering kernel: whether row i is preferred to row `best`, which has the same lower bound of losses.

    Stale rows, whose least loss is not known exactly, come first. Among other rows, the one whose pair of classes has
    the more frequent words comes first."""
    if not w.exact[i]:
        return True
    one, other = w.partner[i], w.partner[best]
    return w.first[one] < w.first[other] or (one == other and w.first[i] < w.first[best])


@njit(**PLAIN)
def _fill_row(w, s):
    """Brown clustering kernel: compute the losses of all merges with class s from the bigram counts."""
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
    """Brown clustering kernel: add to sums[j] what common neighbours of classes s and j contribute to D_sj.

    D_sj is the amount by which common neighbours reduce the loss of a merge of s and j. Neighbours are the classes that
    follow (`side` is w.after) or precede (w.before). counts[k] gets the bigram count of s and each neighbour k."""
    for p in range(side.lengths[s]):
        k, n = side.slots[s, p], side.counts[s, p]
        counts[k] = n
        for q in range(back.lengths[k]):
            j = back.slots[k, q]
            if j != s:
                sums[j] += _gain(w.xlogx, n, back.counts[k, q])


@njit(**PLAIN)
def _append(side, s, k, n):
    """Brown clustering kernel: append neighbour k with bigram count n to the list of class s."""
    side.slots[s, side.lengths[s]], side.counts[s, side.lengths[s]] = k, n
    side.lengths[s] += 1


@njit(**PLAIN)
def _remove(side, s, k):
    """Brown clustering kernel: remove neighbour k from the list of class s; returns its bigram count, or 0."""
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
    """Brown clustering kernel: add a word to the current classes as a class of its own, in the free slot s.

    `after` and `before` are the neighbours of all words, each as three arrays (offsets, words, counts). slot_of [words]
    is the slot of each word's class, or -1. Neighbours with -1 are ignored."""
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
    touched = w.scratch[3]  # 1 for classes next to the new word, whose losses may have risen
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
    """Brown clustering kernel: list the classes that follow or precede a new word, with bigram counts by class.

    `side` is w.after for the classes that follow, and w.before for those that precede."""
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
    """Brown clustering kernel: merge the class of slot b into the class of slot a, and free slot b."""
    for p in range(w.number[0]):
        i = w.active[p]
        if w.partner[i] == a or w.partner[i] == b:
            _forget_partner(w, i)
    last = w.active[w.number[0] - 1]
    w.active[w.place[b]], w.place[last] = last, w.place[b]
    w.number[0] -= 1
    _join_contexts(w, w.after, a, b)
    _join_contexts(w, w.before, a, b)
    between = _remove(w.after, a, b) + _remove(w.before, a, b)  # number of bigrams of classes a and b, in both orders
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
    """Brown clustering kernel: update D_ij for all classes i and j that follow (or precede) the merged classes a and b.

    D_ij is the amount by which common neighbours reduce the loss of a merge of classes i and j. `side` is w.after for
    classes that follow a and b, and w.before for classes that precede them."""
    bound = side.lengths[a] + side.lengths[b]
    slots, of_a, of_b = np.empty(bound, np.int64), np.zeros(bound, np.int64), np.zeros(bound, np.int64)
    position, number = w.scratch[0], 0  # position[k] is 1 + the index of class k in `slots`, or 0
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
    """Brown clustering kernel: add the neighbours of class b to the neighbours of class a, for a merge.

    Neighbours are the classes that follow (`side` is w.after) or precede (`side` is w.before)."""
    position = w.scratch[0]  # position[k] is 1 + the index of class k in the list of class a, or 0
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
    """Brown clustering kernel: cluster all words, which are numbered by falling frequency, and return all merges.

    totals [2, words] counts how often each word comes first and second in a bigram. `after` and `before` are the
    neighbours of all words, each as three arrays (offsets, words, counts).

    - At first, each of the `classes` most frequent words is a class.
    - Each further word becomes a class, and then the pair of classes with the least loss is merged.
    - At the end the remaining classes are merged to one.

    Returns the merges in order, as an array of shape [words - 1, 2] that names each class by its most frequent word.
    Returns the losses as well, an array of shape [words - 1]."""
    words = totals.shape[1]
    w = window(min(classes + 1, words), xlogx, log)
    slot_of = np.full(words, -1, np.int64)
    following = np.full(words, -1, np.int64)  # for each word, the next word of the same class
    latest = np.arange(words)  # for the first word of each class, the last word of the class
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
            if word < words - 1:  # after the last word, the slots of words are not read again
                _move(w.first[j], i, slot_of, following)
            following[latest[one]] = other
            latest[one] = latest[other]
            merge(w, i, j)
            free = j
    return merges, costs


@njit(**PLAIN)
def _neighbours(w, s):
    """Brown clustering kernel: the number of neighbours of class s: classes after it, plus classes before it."""
    return w.after.lengths[s] + w.before.lengths[s]


@njit(**PLAIN)
def _move(first, slot, slot_of, following):
    """Brown clustering kernel: assign all words of a class to another slot.

    `first` is the first word of the class, and following[word] the next word."""
    word = first
    while word >= 0:
        slot_of[word] = slot
        word = following[word]
