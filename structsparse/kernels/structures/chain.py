"""Chain kernels: forward-backward, Viterbi and k best paths of linear chains, parallel over sentences.

- The recursions for sums run on float64 probabilities (fast) or in log-space (slow, but right for any scores).
- The fast recursions divide the probabilities of each token by their sum.
- A sentence is sent to log-space if the fast recursions could be inexact. Reasons are scores that differ by more than
  REACH, positive probabilities below TRACE, and sums below FLOOR or NaN.
- The sentences of a batch are distributed over chunks. The number of chunks depends on the batch alone. Results
  therefore do not depend on the number of threads.

In array shapes, `width` is the number of labels, padded to a multiple of LANES. Padding labels are forbidden, which
means that their scores are minus infinity.
"""

import math

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import EXACT, PLAIN, SUMS, exp, exp_below, log_step, log_total

REACH, TRACE, FLOOR = 200.0, 1e-40, 1e-280  # limits of fast recursions: score spread, smallest entry, smallest sum
LANES = 8  # labels are padded to a multiple of LANES
MOST_CHUNKS, LEAST_SENTENCES = 64, 8  # maximum chunks of a batch; least average number of sentences in a chunk


# --- scores shared by all sentences


@njit(**PLAIN)
def _widen(transitions, start, end):
    """Chain kernel: transition, start and end scores, padded by forbidden labels to a multiple of LANES labels."""
    labels = len(start)
    width = (labels + LANES - 1) // LANES * LANES
    steps, ends = np.full((width, width), -np.inf), np.full((2, width), -np.inf)
    for j in range(labels):
        ends[0, j], ends[1, j] = start[j], end[j]
        for i in range(labels):
            steps[i, j] = transitions[i, j]
    return steps, ends[0], ends[1]


@njit(**PLAIN)
def _exponentials(scores):
    """Chain kernel: exponentials of a table of scores, exp(scores - peak), where `peak` is the largest score.

    Returns the exponentials, `peak`, and whether all allowed scores lie within REACH of each other. A score of minus
    infinity is forbidden, and any other score is allowed."""
    flat, tame = scores.reshape(scores.size), True
    peak, lowest = -np.inf, np.inf
    for score in flat:
        if score != -np.inf:
            peak, lowest = max(peak, score), min(lowest, score)
    out = np.empty(flat.size)
    for k in range(flat.size):
        # `tame` (allowed scores within REACH) becomes False for NaN, for plus infinity, and if no score is allowed
        tame &= peak > -np.inf and (flat[k] == -np.inf or flat[k] - lowest <= REACH)
        out[k] = math.exp(flat[k] - peak)
    return out.reshape(scores.shape), peak, tame


@njit(**PLAIN)
def _tables(shared, labels):
    """Chain kernel: exponentials of the transition, start and end scores, each table divided by its largest entry.

    Returns, in this order:

    - the tables: transitions [from, to], transitions [to, from], start, end,
    - the logarithm of the divisor of the transitions, and the sum of the logarithms of the divisors of start and end,
    - whether any transition is forbidden,
    - whether the allowed scores of each table lie within REACH of each other."""
    step, step_peak, step_tame = _exponentials(shared[0])
    first, first_peak, first_tame = _exponentials(shared[1])
    last, last_peak, last_tame = _exponentials(shared[2])
    forbids = np.count_nonzero(shared[0] > -np.inf) < labels * labels
    tame = step_tame and first_tame and last_tame
    return step, step.T.copy(), first, last, step_peak, first_peak + last_peak, forbids, tame


# --- one sentence in scaled probabilities


@njit(**SUMS)
def _dots(matrix, vector, out):  # shapes [width, width], [width] -> [width]
    """Chain kernel: the matrix-vector product of a recursion step, out = matrix @ vector, eight rows at a time."""
    for i in range(0, len(vector), LANES):
        r0, r1, r2, r3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        r4, r5, r6, r7 = matrix[i + 4], matrix[i + 5], matrix[i + 6], matrix[i + 7]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(len(vector)):
            v = vector[j]
            s0 += r0[j] * v
            s1 += r1[j] * v
            s2 += r2[j] * v
            s3 += r3[j] * v
            s4 += r4[j] * v
            s5 += r5[j] * v
            s6 += r6[j] * v
            s7 += r7[j] * v
        out[i], out[i + 1], out[i + 2], out[i + 3] = s0, s1, s2, s3
        out[i + 4], out[i + 5], out[i + 6], out[i + 7] = s4, s5, s6, s7


@njit(**SUMS)
def _dot(xs, ys):
    """Chain kernel: the dot product of two vectors over labels."""
    total = 0.0
    for j in range(len(xs)):
        total += xs[j] * ys[j]
    return total


@njit(**SUMS)
def _normalise(row):
    """Chain kernel: divide a row of probabilities by its sum; returns this sum."""
    total = 0.0
    for j in range(len(row)):
        total += row[j]
    scale = 1.0 / total
    for j in range(len(row)):
        row[j] *= scale
    return total


@njit(**SUMS)
def _sunk(row):
    """Chain kernel: whether a row of probabilities has a positive entry below TRACE, which might underflow soon."""
    count = 0
    for j in range(len(row)):
        count += (row[j] > 0.0) & (row[j] < TRACE)
    return count > 0


@njit(**SUMS)
def _lift(emissions, lifted):  # shapes [time, labels] -> [time, width]
    """Chain kernel: exponentials of the emissions of a sentence, lifted = exp(emissions - emission of label 0).

    Returns the sum of the emissions of label 0 over the tokens, or NaN if an emission differs by more than REACH from
    that of label 0."""
    base, out_of_reach = 0.0, 0
    for t in range(len(emissions)):
        row, lifted_row = emissions[t], lifted[t]
        reference = np.float64(row[0])
        base += reference
        for j in range(len(row)):
            lifted_row[j] = row[j] - reference
            out_of_reach += not abs(lifted_row[j]) <= REACH
        lifted_row[len(row) :] = 0.0
    flat = lifted.reshape(lifted.size)
    for k in range(flat.size):
        flat[k] = exp(flat[k])
    return base if out_of_reach == 0 else np.nan


@njit(**SUMS)
def _forward(emissions, tables, lifted, alphas):
    """Chain kernel: scaled forward recursion over one sentence; returns the log-partition, or NaN if inexact.

    Fills alphas [time, width] with the forward probabilities, which sum to one at each token. `lifted` [time, width]
    gets the exponentials of the emissions."""
    _, step_back, first, last, step_peak, ends_peak, forbids, tame = tables
    if not tame:
        return np.nan
    total = _lift(emissions, lifted) + ends_peak + (len(emissions) - 1) * step_peak
    if math.isnan(total):
        return np.nan
    for t in range(len(emissions)):
        alpha, weights = alphas[t], lifted[t]
        if t > 0:
            _dots(step_back, alphas[t - 1], alpha)
        for j in range(len(alpha)):
            alpha[j] = (alpha[j] if t > 0 else first[j]) * weights[j]
        mass = _normalise(alpha)
        if not mass > FLOOR or (forbids and _sunk(alpha)):
            return np.nan
        total += math.log(mass)
    mass = _dot(alphas[-1], last)
    return total + math.log(mass) if mass > FLOOR else np.nan


@njit(**SUMS)
def _outer_sum(lefts, rights, sums):  # shapes [time, width], [time, width] -> [width, width]
    """Chain kernel: sums over time of outer products, sums = lefts^T @ rights, for the expected transitions.

    The loop takes eight time steps at once."""
    sums[:] = 0.0
    full = len(lefts) // 8 * 8
    for t in range(0, full, 8):
        b0, b1, b2, b3 = rights[t], rights[t + 1], rights[t + 2], rights[t + 3]
        b4, b5, b6, b7 = rights[t + 4], rights[t + 5], rights[t + 6], rights[t + 7]
        for i in range(len(sums)):
            a0, a1, a2, a3 = lefts[t, i], lefts[t + 1, i], lefts[t + 2, i], lefts[t + 3, i]
            a4, a5, a6, a7 = lefts[t + 4, i], lefts[t + 5, i], lefts[t + 6, i], lefts[t + 7, i]
            row = sums[i]
            for j in range(len(row)):
                row[j] += ((a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j])) + (
                    (a4 * b4[j] + a5 * b5[j]) + (a6 * b6[j] + a7 * b7[j])
                )
    for t in range(full, len(lefts)):
        right = rights[t]
        for i in range(len(sums)):
            a, row = lefts[t, i], sums[i]
            for j in range(len(row)):
                row[j] += a * right[j]


@njit(**SUMS)
def _backward(emissions, tables, weight, alphas, lifted, nodes, edges):
    """Chain kernel: scaled backward recursion over one sentence, for expected counts times `weight`.

    Fills nodes [time, labels] with the expected counts of labels, and edges [width, width] with those of transitions.
    `alphas` (forward probabilities) comes from `_forward`, and `lifted` is work memory. Returns False if, at some
    token, the sum of forward times backward probability over the labels is not above FLOOR."""
    step, last = tables[0], tables[3]
    _lift(emissions, lifted)
    beta = last.copy()
    for t in range(len(emissions) - 1, -1, -1):
        alpha, right, node = alphas[t], lifted[t], nodes[t]
        mass = _dot(alpha, beta)
        scale = weight / mass
        for j in range(len(node)):
            node[j] = alpha[j] * beta[j] * scale
        if not mass > FLOOR:
            return False
        if t == 0:
            break
        for j in range(len(beta)):
            right[j] *= beta[j]
        _dots(step, right, beta)
        mass = _dot(alphas[t - 1], beta)
        scale = weight / mass
        for j in range(len(right)):
            right[j] *= scale
        if not mass > FLOOR:
            return False
        _normalise(beta)
    _outer_sum(alphas[:-1], lifted[1:], edges)
    for i in range(len(edges)):
        edge, row = edges[i], step[i]
        for j in range(len(edge)):
            edge[j] *= row[j]
    return True


# --- one sentence in log-space, for any scores, including minus infinity and NaN


@njit(**EXACT)
def _log_forward(emissions, shared, lifted, alphas):
    """Chain kernel: forward recursion over one sentence in log-space; returns the log-partition log Z.

    alphas[t, j] gets the logarithm of the sum over all label sequences up to token t that end in label j. The first row
    of `lifted` is work memory."""
    steps, start, end = shared
    peaks = lifted[0]
    for t in range(len(emissions)):
        alpha, emission = alphas[t], emissions[t]
        if t > 0:
            log_step(alphas[t - 1], steps, peaks, alpha)
        for j in range(len(alpha)):
            alpha[j] = alpha[j] if t > 0 else start[j]
        for j in range(len(emission)):
            alpha[j] += emission[j]
    return log_total(alphas[-1], end)


@njit(**EXACT)
def _log_backward(emissions, shared, weight, alphas, nodes, edges):
    """Chain kernel: backward recursion over one sentence in log-space, from the alphas of `_log_forward`.

    Fills nodes [time, labels] with the expected counts of labels, and edges [width, width] with those of transitions.
    The counts are multiplied by `weight`."""
    steps, _, end = shared
    total = log_total(alphas[-1], end)
    edges[:] = 0.0
    if total == -np.inf:  # no label sequence is allowed, so the gradient is zero
        nodes[:] = 0.0
        return
    back, beta = steps.T.copy(), end.copy()
    right, peaks = np.empty(len(end)), np.empty(len(end))
    for t in range(len(emissions) - 1, -1, -1):
        alpha, emission, node = alphas[t], emissions[t], nodes[t]
        for j in range(len(beta)):  # a loop, because a slice assignment takes numba a second to compile
            right[j] = beta[j]
        for j in range(len(node)):
            node[j] = weight * exp_below(alpha[j] + beta[j] - total)
            right[j] += emission[j]
        if t == 0:
            break
        for i in range(len(beta)):
            arrived, row, edge = alphas[t - 1, i] - total, steps[i], edges[i]
            for j in range(len(beta)):
                edge[j] += weight * exp_below(arrived + row[j] + right[j])
        log_step(right, back, peaks, beta)


# --- the batch


@njit(**PLAIN)
def chunk_count(sentences):
    """Chain kernel: the number of chunks into which a batch of sentences is split for threads."""
    return max(1, min(MOST_CHUNKS, sentences // LEAST_SENTENCES))


@njit(**PLAIN)
def _forward_chunk(sentences, emissions, lengths, shared, tables, alphas, in_logs, totals):
    """Chain kernel: forward recursion over the given sentences, one chunk of the batch; in log-space if necessary."""
    lifted = np.empty(alphas.shape[1:])
    for b in sentences:
        size = lengths[b]
        sentence, work, alpha = emissions[b, :size], lifted[:size], alphas[b, :size]
        totals[b] = _forward(sentence, tables, work, alpha)
        in_logs[b] = math.isnan(totals[b])
        if in_logs[b]:
            totals[b] = _log_forward(sentence, shared, work, alpha)


@njit(parallel=True, **PLAIN)
def forward(emissions, lengths, transitions, start, end, alphas, in_logs, totals):
    """Chain kernel: forward recursion over a batch of linear chains; fills totals [batch] with log-partitions.

    Fills alphas [batch, time, width] with the forward probabilities of labels. in_logs [batch] gets whether the alphas
    of a sentence are logarithms instead. `backward` needs both arrays."""
    shared = _widen(transitions, start, end)
    tables = _tables(shared, len(start))
    chunks = chunk_count(len(lengths))
    if chunks == 1:  # one thread is faster for one chunk
        _forward_chunk(range(len(lengths)), emissions, lengths, shared, tables, alphas, in_logs, totals)
        return
    for c in prange(chunks):
        sentences = range(c, len(lengths), chunks)
        _forward_chunk(sentences, emissions, lengths, shared, tables, alphas, in_logs, totals)


@njit(**PLAIN)
def _backward_chunk(sentences, emissions, lengths, shared, tables, alphas, in_logs, weights, nodes, steps, ends):
    """Chain kernel: backward recursion over the given sentences, one chunk of the batch; in log-space if necessary."""
    lifted = np.empty(alphas.shape[1:])
    edges = np.empty(shared[0].shape)
    labels = len(steps)
    for b in sentences:
        size, weight = lengths[b], weights[b]
        sentence, work, alpha, node = emissions[b, :size], lifted[:size], alphas[b, :size], nodes[b, :size]
        if not in_logs[b] and not _backward(sentence, tables, weight, alpha, work, node, edges):
            _log_forward(sentence, shared, work, alpha)
            in_logs[b] = True
        if in_logs[b]:
            _log_backward(sentence, shared, weight, alpha, node, edges)
        nodes[b, size:] = 0.0
        for i in range(labels):
            ends[0, i] += node[0, i]
            ends[1, i] += node[-1, i]
            for j in range(labels):
                steps[i, j] += edges[i, j]


@njit(parallel=True, **PLAIN)
def backward(emissions, lengths, transitions, start, end, alphas, in_logs, weights, nodes, steps, ends):
    """Chain kernel: backward recursion over a batch of linear chains, the gradient of sum_b weights[b] log Z_b.

    log Z_b is the log-partition of sentence b. Fills nodes [batch, time, labels] with the gradient in the emissions,
    and with 0 beyond the length of a sentence. Adds the gradient in the transition scores to steps [chunks, labels,
    labels]. Adds the gradient in the start and end scores to ends [chunks, 2, labels]. The caller sums `steps` and
    `ends` over the chunks."""
    shared = _widen(transitions, start, end)
    tables = _tables(shared, len(start))
    chunks = len(steps)
    if chunks == 1:
        args = (emissions, lengths, shared, tables, alphas, in_logs, weights, nodes, steps[0], ends[0])
        _backward_chunk(range(len(lengths)), *args)
        return
    for c in prange(chunks):
        args = (emissions, lengths, shared, tables, alphas, in_logs, weights, nodes, steps[c], ends[c])
        _backward_chunk(range(c, len(lengths), chunks), *args)


@njit(**PLAIN)
def _best(emissions, transitions, start, end, scores, arrivals, origins, path):
    """Chain kernel: Viterbi search on one sentence; fills path [time] with the best labels.

    Among sequences with equal scores, the one with the lowest last label wins. If the last labels are equal, the labels
    before them decide, and so on."""
    for j in range(len(end)):
        scores[j] = start[j] + emissions[0, j]
    for t in range(1, len(emissions)):
        emission, origin, row = emissions[t], origins[t], transitions[0]
        for j in range(len(end)):
            arrivals[j] = scores[0] + row[j]
            origin[j] = 0
        for i in range(1, len(end)):
            score, row = scores[i], transitions[i]
            for j in range(len(end)):
                better = score + row[j] > arrivals[j]
                arrivals[j] = score + row[j] if better else arrivals[j]
                origin[j] = i if better else origin[j]
        for j in range(len(end)):
            scores[j] = arrivals[j] + emission[j]
    label = 0
    for j in range(1, len(end)):
        if scores[j] + end[j] > scores[label] + end[label]:
            label = j
    for t in range(len(emissions) - 1, 0, -1):
        path[t] = label
        label = origins[t, label]
    path[0] = label


@njit(**PLAIN)
def _best_chunk(sentences, emissions, lengths, transitions, start, end, paths):
    """Chain kernel: Viterbi search on the given sentences, one chunk of the batch."""
    scores, arrivals = np.empty(len(start)), np.empty(len(start))
    origins = np.empty(emissions.shape[1:], np.int64)
    for b in sentences:
        size = lengths[b]
        sentence, path = emissions[b, :size], paths[b, :size]
        _best(sentence, transitions, start, end, scores, arrivals, origins, path)
        paths[b, size:] = 0


@njit(parallel=True, **PLAIN)
def best(emissions, lengths, transitions, start, end, paths):
    """Chain kernel: Viterbi search on a batch; fills paths [batch, time] with the best labels.

    Entries beyond the length of a sentence are 0."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _best_chunk(range(len(lengths)), emissions, lengths, transitions, start, end, paths)
        return
    for c in prange(chunks):
        _best_chunk(range(c, len(lengths), chunks), emissions, lengths, transitions, start, end, paths)


# --- the k best paths


@njit(**PLAIN)
def _merge(before, steps, heads, scores, origins):
    """Chain kernel: merge the sorted path scores of all preceding labels into the best scores of one label.

    A path is a label sequence.

    - before [labels, ranks] holds the path scores of each preceding label, in descending order.
    - steps[i] is the score of the step from label i.
    - scores [ranks] gets the highest values of before[i, rank] + steps[i], in descending order.
    - origins [ranks] gets i * ranks + rank for each of these values, or -1 if no allowed path is left.

    Among equal scores the lowest label wins, then the lowest rank."""
    labels, ranks = before.shape
    heads[:] = 0
    for rank in range(ranks):
        highest, origin = -np.inf, -1
        for i in range(labels):
            if heads[i] < ranks and before[i, heads[i]] + steps[i] > highest:
                highest, origin = before[i, heads[i]] + steps[i], i
        scores[rank], origins[rank] = highest, -1
        if origin >= 0:
            origins[rank] = origin * ranks + heads[origin]
            heads[origin] += 1


@njit(**PLAIN)
def _best_k(emissions, back, start, end, before, after, heads, origins, paths, totals):
    """Chain kernel: fill paths [ranks, time] and totals [ranks] with the k best label sequences and their scores.

    All belong to one sentence, and `ranks` is k. `back` holds the transition scores as an array [to, from]."""
    time, ranks = len(emissions), len(totals)
    before[:] = -np.inf
    for j in range(len(end)):
        before[j, 0] = start[j] + emissions[0, j]
    for t in range(1, time):
        for j in range(len(end)):
            _merge(before, back[j], heads, after[j], origins[t, j])
            for rank in range(ranks):
                after[j, rank] += emissions[t, j]
        before, after = after, before
    _merge(before, end, heads, totals, origins[0, 0])
    for rank in range(ranks):
        place = origins[0, 0, rank]
        paths[rank] = 0
        if place >= 0:
            for t in range(time - 1, 0, -1):
                paths[rank, t] = place // ranks
                place = origins[t, place // ranks, place % ranks]
            paths[rank, 0] = place // ranks


@njit(**PLAIN)
def _best_k_chunk(sentences, emissions, lengths, back, start, end, paths, totals):
    """Chain kernel: fill `paths` with the k best label sequences of the given sentences, one chunk of the batch."""
    labels, ranks = len(end), totals.shape[1]
    before, after = np.empty((labels, ranks)), np.empty((labels, ranks))
    heads, origins = np.empty(labels, np.int64), np.empty((emissions.shape[1], labels, ranks), np.int32)
    for b in sentences:
        size = lengths[b]
        sentence = emissions[b, :size], back, start, end
        _best_k(*sentence, before, after, heads, origins, paths[b, :, :size], totals[b])
        paths[b, :, size:] = 0


@njit(parallel=True, **PLAIN)
def best_k(emissions, lengths, transitions, start, end, paths, totals):
    """Chain kernel: fill paths [batch, ranks, time] and totals [batch, ranks] with the k best label sequences.

    `ranks` is k, and totals are the scores of the sequences. Paths are 0 beyond the length of a sentence. If a sentence
    has fewer than k label sequences, the remaining totals are minus infinity and the remaining paths are 0."""
    back = transitions.T.copy()
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _best_k_chunk(range(len(lengths)), emissions, lengths, back, start, end, paths, totals)
        return
    for c in prange(chunks):
        _best_k_chunk(range(c, len(lengths), chunks), emissions, lengths, back, start, end, paths, totals)
