"""SIMD chain kernels: CRF loss and gradient of 16 sentences of similar length, processed side by side.

- Each SIMD vector holds one number per sentence. The place of a sentence in the vectors is called its lane.
- Within a group of 16, shorter sentences are padded at the end.
- Probabilities are float32. They are divided by their sum at each token. Losses are float64.
- The transition scores may differ by at most REACH. The same holds for the emissions of each token. Otherwise losses
  are NaN, and the kernels of `chain` compute these sentences again.
- Groups are distributed over chunks. The number of chunks depends on the batch alone. Results therefore do not depend
  on the number of threads.
"""

import math

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import PLAIN
from structsparse.kernels.simd import (
    LANES,
    add,
    divide,
    largest,
    load,
    multiply,
    multiply_add,
    power_of_two,
    smallest,
    spread,
    store,
    subtract,
    total,
)

REACH = 40.0  # largest allowed difference of scores; exp(-2 * REACH), the least probability, is a normal float32
MOST_CHUNKS = 16  # maximum number of chunks that a batch is split into
_DEEP = 8  # number of time steps whose normalisers are multiplied before one logarithm is taken of the product

_one, _zero = np.float32(1.0), np.float32(0.0)
_TO_BINARY = np.float32(1.4426950408889634)  # 1 / log 2
_LOG_2, _LOG_2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)  # log 2 as a sum, for precision
_ROUNDER = np.float32(1.5 * 2.0**23)  # adding it to x puts the integer nearest to x into the low bits
# Taylor coefficients of the exponential function, the highest order first
_TAYLOR = tuple(np.float32(1.0 / math.factorial(k)) for k in range(7, -1, -1))


@njit(**PLAIN)
def _exp(flat, place):
    """SIMD chain kernel: replace LANES entries of `flat`, from index `place` on, by their exponentials.

    The entries must be between -87 and 0."""
    x, rounder = load(flat, place), spread(_ROUNDER)
    shifted = multiply_add(x, spread(_TO_BINARY), rounder)
    power = subtract(shifted, rounder)
    rest = multiply_add(power, spread(-_LOG_2), x)
    rest = multiply_add(power, spread(-_LOG_2_REST), rest)
    value = spread(_TAYLOR[0])
    for k in range(1, 8):
        value = multiply_add(value, rest, spread(_TAYLOR[k]))
    store(flat, place, multiply(value, power_of_two(shifted)))


# --- scores shared by all sentences


@njit(**PLAIN)
def _tables(transitions, start, end):
    """SIMD chain kernel: exponentials of the transition, start and end scores, each divided by its largest entry.

    Returns, in this order:

    - float32 tables: transitions [to, from], transitions [from, to], start, end,
    - the logarithm of the divisor of the transitions, and the sum of the logarithms of the divisors of start and end,
    - whether the scores of each table lie within REACH of each other."""
    labels = len(start)
    width = (labels + 7) // 8 * 8  # padded to a multiple of 8 labels; the padding stays zero
    step, back = np.zeros((width, width), np.float32), np.zeros((width, width), np.float32)
    first, last = np.zeros(width, np.float32), np.zeros(width, np.float32)
    peak, first_peak, last_peak = transitions.max(), start.max(), end.max()
    near = _near(transitions, peak) and _near(start, first_peak) and _near(end, last_peak)
    for i in range(labels):
        first[i], last[i] = math.exp(start[i] - first_peak), math.exp(end[i] - last_peak)
        for j in range(labels):
            step[i, j] = back[j, i] = math.exp(transitions[i, j] - peak)
    return back, step, first, last, peak, first_peak + last_peak, near


@njit(**PLAIN)
def _near(scores, peak):
    """SIMD chain kernel: whether all scores lie within REACH of the largest score `peak`; False for NaN."""
    return peak < np.inf and peak - scores.min() <= REACH


# --- a group of 16 sentences; arrays [width, LANES] are stored flat, row after row


@njit(**PLAIN)
def _lift(flat, labels, begins, lengths, t, weights, peaks):
    """SIMD chain kernel: exponentials of the emissions of 16 sentences at time t; returns False if out of range.

    Fills weights [labels, LANES] with exp(emission - peak), where `peak` is the largest emission of the token. Beyond
    the end of a sentence, the weights are 1. Fills peaks [LANES] with `peak`. Emissions are out of range if those of
    one token differ by more than REACH."""
    for lane in range(LANES):
        place = (begins[lane] + t) * labels
        if t < lengths[lane]:
            for j in range(labels):
                weights[j * LANES + lane] = flat[place + j]
        else:
            for j in range(labels):
                weights[j * LANES + lane] = _zero
    peak = lowest = load(weights, 0)
    for j in range(1, labels):
        values = load(weights, j * LANES)
        peak, lowest = largest(values, peak), smallest(values, lowest)
    store(peaks, 0, subtract(peak, lowest))
    for lane in range(LANES):
        if not peaks[lane] <= REACH:  # this test is True for NaN as well
            return False
    store(peaks, 0, peak)
    for j in range(labels):
        store(weights, j * LANES, subtract(load(weights, j * LANES), peak))
        _exp(weights, j * LANES)
    return True


@njit(**PLAIN)
def _mix(matrix, values, labels, out):
    """SIMD chain kernel: one step of a recursion for 16 sentences, out = matrix @ values.

    `matrix` has the shape [width, width]. `values` and `out` have the shape [width, LANES], with one sentence per lane.
    """
    width = len(matrix)
    for j in range(0, width, 8):
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = spread(_zero)
        for i in range(labels):
            value = load(values, i * LANES)
            s0 = multiply_add(spread(matrix[j, i]), value, s0)
            s1 = multiply_add(spread(matrix[j + 1, i]), value, s1)
            s2 = multiply_add(spread(matrix[j + 2, i]), value, s2)
            s3 = multiply_add(spread(matrix[j + 3, i]), value, s3)
            s4 = multiply_add(spread(matrix[j + 4, i]), value, s4)
            s5 = multiply_add(spread(matrix[j + 5, i]), value, s5)
            s6 = multiply_add(spread(matrix[j + 6, i]), value, s6)
            s7 = multiply_add(spread(matrix[j + 7, i]), value, s7)
        place = j * LANES
        store(out, place, s0)
        store(out, place + LANES, s1)
        store(out, place + 2 * LANES, s2)
        store(out, place + 3 * LANES, s3)
        store(out, place + 4 * LANES, s4)
        store(out, place + 5 * LANES, s5)
        store(out, place + 6 * LANES, s6)
        store(out, place + 7 * LANES, s7)


@njit(**PLAIN)
def _product(left, right, labels, out, sums):
    """SIMD chain kernel: entrywise product of two arrays [labels, LANES], out = left * right.

    sums [LANES] gets the sum of the product over the labels."""
    sums_of_labels = spread(_zero)
    for j in range(labels):
        value = multiply(load(left, j * LANES), load(right, j * LANES))
        store(out, j * LANES, value)
        sums_of_labels = add(sums_of_labels, value)
    store(sums, 0, sums_of_labels)


@njit(**PLAIN)
def _divide(values, labels, sums):
    """SIMD chain kernel: divide the values [labels, LANES] of each lane by its entry in sums [LANES]."""
    factor = divide(spread(_one), load(sums, 0))
    for j in range(labels):
        store(values, j * LANES, multiply(load(values, j * LANES), factor))


@njit(**PLAIN)
def _forward(flat, labels, begins, lengths, shared, lifted, alphas, totals):
    """SIMD chain kernel: forward recursion over 16 sentences; returns False if emissions are out of range.

    Emissions are out of range if those of one token differ by more than REACH. Fills totals [LANES] with the
    log-partition of each sentence. Fills lifted [time, width * LANES] with exponentials of emissions. Fills alphas
    [time, width * LANES] with the forward probabilities, which sum to one at each token."""
    back, _, first, last, step_peak, ends_peak, _ = shared
    peaks, sums, products = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.ones(LANES)
    for lane in range(LANES):
        totals[lane] = ends_peak + (lengths[lane] - 1) * step_peak
    for t in range(lengths[0]):
        weights, alpha = lifted[t], alphas[t]
        if not _lift(flat, labels, begins, lengths, t, weights, peaks):
            return False
        for lane in range(LANES):
            if t == lengths[lane] - 1:
                for j in range(labels):
                    weights[j * LANES + lane] *= last[j]
        if t == 0:
            for j in range(labels):
                store(alpha, j * LANES, spread(first[j]))
        else:
            _mix(back, alphas[t - 1], labels, alpha)
        _product(alpha, weights, labels, alpha, sums)
        _divide(alpha, labels, sums)
        for lane in range(LANES):
            if t < lengths[lane]:
                totals[lane] += peaks[lane]
                products[lane] *= sums[lane]
        if t % _DEEP == _DEEP - 1:
            for lane in range(LANES):
                totals[lane] += math.log(products[lane])
                products[lane] = 1.0
    for lane in range(LANES):
        totals[lane] += math.log(products[lane])
    return True


@njit(**PLAIN)
def _backward(flat, labels, begins, lengths, shared, lifted, alphas, rights):
    """SIMD chain kernel: backward recursion over 16 sentences; fills `flat` with the marginals of labels.

    `flat` gets the probability of each label at each token. Fills rights [time, width * LANES], which `_outer_sum`
    needs to compute the expected transitions."""
    step = shared[1]
    beta, node = np.zeros(len(step) * LANES, np.float32), np.empty(len(step) * LANES, np.float32)
    sums = np.empty(LANES, np.float32)
    for j in range(labels):
        store(beta, j * LANES, spread(_one))
    for t in range(lengths[0] - 1, -1, -1):
        for lane in range(LANES):
            if t == lengths[lane] - 1:
                for j in range(labels):
                    beta[j * LANES + lane] = _one
        _product(alphas[t], beta, labels, node, sums)
        _divide(node, labels, sums)
        for lane in range(LANES):
            if t < lengths[lane]:
                place = (begins[lane] + t) * labels
                for j in range(labels):
                    flat[place + j] = node[j * LANES + lane]
        if t == 0:
            break
        right = rights[t - 1]
        _product(beta, lifted[t], labels, right, sums)
        _divide(right, labels, sums)
        _mix(step, right, labels, beta)
        _product(alphas[t - 1], beta, labels, node, sums)
        for lane in range(LANES):
            if t >= lengths[lane]:
                sums[lane] = np.inf  # the sentence ends before t: division by infinity leaves no transition
        _divide(right, labels, sums)


@njit(**PLAIN)
def _outer_sum(lefts, rights, time, width, sums):  # lefts, rights: [time, width * LANES]; sums: [width, width]
    """SIMD chain kernel: expected transitions of 16 sentences, not yet multiplied by exp(transition score).

    sums[i, j] gets the sum of lefts[t, i] * rights[t, j] over all times t and all sentences."""
    for i in range(0, width, 4):
        for j in range(0, width, 4):
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = spread(_zero)
            s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = spread(_zero)
            for t in range(time):
                left, right = lefts[t], rights[t]
                a0, a1 = load(left, i * LANES), load(left, (i + 1) * LANES)
                a2, a3 = load(left, (i + 2) * LANES), load(left, (i + 3) * LANES)
                b0, b1 = load(right, j * LANES), load(right, (j + 1) * LANES)
                b2, b3 = load(right, (j + 2) * LANES), load(right, (j + 3) * LANES)
                s00, s01 = multiply_add(a0, b0, s00), multiply_add(a0, b1, s01)
                s02, s03 = multiply_add(a0, b2, s02), multiply_add(a0, b3, s03)
                s10, s11 = multiply_add(a1, b0, s10), multiply_add(a1, b1, s11)
                s12, s13 = multiply_add(a1, b2, s12), multiply_add(a1, b3, s13)
                s20, s21 = multiply_add(a2, b0, s20), multiply_add(a2, b1, s21)
                s22, s23 = multiply_add(a2, b2, s22), multiply_add(a2, b3, s23)
                s30, s31 = multiply_add(a3, b0, s30), multiply_add(a3, b1, s31)
                s32, s33 = multiply_add(a3, b2, s32), multiply_add(a3, b3, s33)
            sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3] = total(s00), total(s01), total(s02), total(s03)
            i1, i2, i3 = i + 1, i + 2, i + 3
            sums[i1, j], sums[i1, j + 1], sums[i1, j + 2], sums[i1, j + 3] = (
                total(s10),
                total(s11),
                total(s12),
                total(s13),
            )
            sums[i2, j], sums[i2, j + 1], sums[i2, j + 2], sums[i2, j + 3] = (
                total(s20),
                total(s21),
                total(s22),
                total(s23),
            )
            sums[i3, j], sums[i3, j + 1], sums[i3, j + 2], sums[i3, j + 3] = (
                total(s30),
                total(s31),
                total(s32),
                total(s33),
            )


# --- the batch


@njit(**PLAIN)
def _gold(emissions, begin, gold, transitions, start, end, nodes, steps, ends, with_gradient):
    """SIMD chain kernel: the score of the gold labels of one sentence.

    If `with_gradient` is set, subtracts the counts of the gold labels and gold transitions from the gradient."""
    last = len(gold) - 1
    total = start[gold[0]] + end[gold[last]]
    for t in range(len(gold)):
        total += emissions[begin + t, gold[t]]
        if t > 0:
            total += transitions[gold[t - 1], gold[t]]
    if with_gradient:
        for t in range(len(gold)):
            nodes[begin + t, gold[t]] -= _one
            if t > 0:
                steps[gold[t - 1], gold[t]] -= 1.0
        for j in range(len(start)):
            ends[0, j] += nodes[begin, j]
            ends[1, j] += nodes[begin + last, j]
    return total


@njit(**PLAIN)
def _chunk(groups, order, emissions, begins, lengths, gold, scores, shared, losses, nodes, steps, ends, with_gradient):
    """SIMD chain kernel: CRF losses and gradient of some groups of 16 sentences, one chunk of the batch, for `crf`."""
    labels, width, longest = emissions.shape[1], len(shared[0]), lengths[order[0]]
    transitions, start, end = scores
    flat, gradient = emissions.reshape(emissions.size), nodes.reshape(nodes.size)
    lifted, alphas, rights = np.zeros((3, longest, width * LANES), np.float32)
    totals, edges = np.empty(LANES), np.empty((width, width))
    group_begins, group_lengths = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    for group in groups:
        first = group * LANES
        size = min(LANES, len(order) - first)
        for lane in range(LANES):
            group_lengths[lane] = lengths[order[first + lane]] if lane < size else 0
            group_begins[lane] = begins[order[first + lane]] if lane < size else 0
        if not _forward(flat, labels, group_begins, group_lengths, shared, lifted, alphas, totals):
            for b in order[first : first + size]:
                losses[b] = np.nan
            continue
        if with_gradient:
            _backward(gradient, labels, group_begins, group_lengths, shared, lifted, alphas, rights)
            _outer_sum(alphas, rights, group_lengths[0] - 1, width, edges)
            for i in range(labels):
                for j in range(labels):
                    steps[i, j] += edges[i, j] * shared[1][i, j]
        for lane in range(size):
            b = order[first + lane]
            labels_of_gold = gold[b, : lengths[b]]
            score = _gold(
                emissions, begins[b], labels_of_gold, transitions, start, end, nodes, steps, ends, with_gradient
            )
            losses[b] = totals[lane] - score


def chunk_count(sentences):
    """SIMD chain kernel: the number of chunks into which a batch of sentences is split for threads."""
    return max(1, min(MOST_CHUNKS, sentences // (8 * LANES)))


@njit(parallel=True, **PLAIN)
def crf(order, emissions, begins, lengths, gold, transitions, start, end, losses, nodes, steps, ends, with_gradient):
    """SIMD chain kernel: CRF losses of a batch of sentences, and optionally the gradient of the summed losses.

    Inputs:

    - `order` lists the sentences by descending length.
    - `emissions` is float32 [tokens, labels]. The rows of sentence b begin at begins[b].
    - `gold` holds the gold labels, int64 [sentences, time].
    - `transitions`, `start` and `end` are scores in float64.

    losses [sentences] gets the negative log-likelihood of the gold labels, or NaN if scores are out of range. If
    `with_gradient` is set, nodes [tokens, labels] gets the gradient in the emissions. The gradient in the transition
    scores is added to steps [chunks, labels, labels]. The gradient in the start and end scores is added to ends
    [chunks, 2, labels]. The caller sums `steps` and `ends` over the chunks."""
    chunks, groups = len(steps), (len(order) + LANES - 1) // LANES
    scores, shared = (transitions, start, end), _tables(transitions, start, end)
    if not shared[-1]:
        losses[:] = np.nan
        return
    if chunks == 1:
        groups_of_chunk = range(groups)
        _chunk(
            groups_of_chunk,
            order,
            emissions,
            begins,
            lengths,
            gold,
            scores,
            shared,
            losses,
            nodes,
            steps[0],
            ends[0],
            with_gradient,
        )
        return
    for c in prange(chunks):
        groups_of_chunk = range(c, groups, chunks)
        _chunk(
            groups_of_chunk,
            order,
            emissions,
            begins,
            lengths,
            gold,
            scores,
            shared,
            losses,
            nodes,
            steps[c],
            ends[c],
            with_gradient,
        )
