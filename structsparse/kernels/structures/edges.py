"""Edges kernels: forward-backward and Viterbi for chains over listed label pairs, parallel over sentences.

A step is a pair of neighbouring labels. Only the steps in a given list are allowed. Every token has a score for each
listed step from the previous token. Sums are in log-space.

- The forward recursion stores the share of each step in the probability of the step's second label.
- The backward recursion distributes probabilities by these shares.

Arrays, with the sentences of a batch end to end in the dimension `tokens`:

- `emissions` [batch, time, labels] are the label scores.
- `edges` [tokens, steps] are the step scores. The first row of each sentence is ignored.
- `begins` and `lengths` [batch] are the first token and the token count of each sentence.
- `step_list` has three arrays: origins [steps] and targets [steps] are the first and second label of each step. The
  steps to label j are arrivals[j] to arrivals[j + 1] - 1.
- `shared` has the score arrays transitions [steps], start [labels] and end [labels], in float64.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import EXACT, PLAIN, exp_below
from structsparse.kernels.structures.chain import chunk_count


@njit(**EXACT)
def _arrive(alpha, edge, transitions, step_list, work, out):
    """Edges kernel: the forward recursion over one token, from the log-sums `alpha` of the previous token to `out`.

    Element j of `out` is the logarithm of the sum over the listed steps (label pairs) to label j. work [steps] gets the
    share of each step in this sum."""
    origins, targets, arrivals = step_list
    peaks, sums = out, np.zeros(len(out))
    for k in range(len(work)):
        work[k] = alpha[origins[k]] + (edge[k] + transitions[k])
    for j in range(len(peaks)):
        peak = -np.inf
        for k in range(arrivals[j], arrivals[j + 1]):
            peak = work[k] if work[k] > peak else peak
        peaks[j] = peak if peak > -np.inf else 0.0
    for k in range(len(work)):
        work[k] = exp_below(work[k] - peaks[targets[k]])
    for j in range(len(peaks)):
        for k in range(arrivals[j], arrivals[j + 1]):
            sums[j] += work[k]
        out[j] = peaks[j] + np.log(sums[j])
        sums[j] = 1.0 / sums[j] if sums[j] != 0.0 else 0.0  # if no step leads to label j, the shares of its steps are 0
    for k in range(len(work)):
        work[k] *= sums[targets[k]]


@njit(**EXACT)
def _forward(emissions, edges, shared, step_list, shares, last):
    """Edges kernel: forward recursion over one chain; returns the log-partition log Z.

    A step is a pair of neighbouring labels. Fills shares [time, steps] with the share of each step in the probability
    of its second label. Fills last [labels] with the marginal probabilities of the labels at the last token."""
    transitions, start, end = shared
    labels = len(start)
    alpha, arrived, work = np.empty(labels), np.empty(labels), np.empty(len(transitions))
    for t in range(len(emissions)):
        if t > 0:
            _arrive(alpha, edges[t], transitions, step_list, work, arrived)
        share = shares[t]
        for k in range(len(work)):
            share[k] = work[k] if t > 0 else 0.0
        for j in range(labels):
            alpha[j] = (arrived[j] if t > 0 else start[j]) + emissions[t, j]
    peak, total = -np.inf, 0.0
    for j in range(labels):
        alpha[j] += end[j]
        peak = alpha[j] if alpha[j] > peak else peak
    peak = peak if peak > -np.inf else 0.0
    for j in range(labels):
        last[j] = exp_below(alpha[j] - peak)
        total += last[j]
    for j in range(labels):
        last[j] /= total if total != 0.0 else 1.0
    return peak + np.log(total)


@njit(**PLAIN)
def _forward_chunk(sentences, emissions, edges, begins, lengths, shared, step_list, shares, last, totals):
    """Edges kernel: forward recursion over the given sentences, one chunk of the batch."""
    for b in sentences:
        size, tokens = lengths[b], slice(begins[b], begins[b] + lengths[b])
        totals[b] = _forward(emissions[b, :size], edges[tokens], shared, step_list, shares[tokens], last[b])


@njit(parallel=True, **PLAIN)
def forward(emissions, edges, begins, lengths, shared, step_list, shares, last, totals):
    """Edges kernel: forward recursion over chains of listed label pairs; fills totals [batch] with log-partitions.

    Fills two arrays that `backward` needs. shares [tokens, steps] gets the share of each step (label pair) in the
    probability of its second label. last [batch, labels] gets the marginal probabilities of the labels at the last
    token."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _forward_chunk(range(len(lengths)), emissions, edges, begins, lengths, shared, step_list, shares, last, totals)
        return
    for c in prange(chunks):
        sentences = range(c, len(lengths), chunks)
        _forward_chunk(sentences, emissions, edges, begins, lengths, shared, step_list, shares, last, totals)


@njit(**EXACT)
def _backward(weight, step_list, shares, last, nodes, taken, steps, ends):
    """Edges kernel: backward recursion over one chain, for expected counts times `weight`.

    A step is a pair of neighbouring labels. Fills nodes [time, labels] with the expected counts of labels. Fills taken
    [time, steps] with the expected counts of steps, and adds their sums over the tokens to steps [steps]. Adds the
    counts of the first and the last label to ends [2, labels]."""
    origins, targets, _ = step_list
    node, before = weight * last, np.empty(len(last))
    for j in range(len(node)):
        ends[1, j] += node[j]
    for t in range(len(nodes) - 1, -1, -1):
        share, take = shares[t], taken[t]
        for j in range(len(node)):
            nodes[t, j], before[j] = node[j], 0.0
        for k in range(len(share)):
            count = share[k] * node[targets[k]]  # this is 0 at the first token, where all shares are 0
            before[origins[k]] += count
            steps[k] += count
            take[k] = count
        if t > 0:
            node, before = before, node
    for j in range(len(node)):
        ends[0, j] += node[j]


@njit(**PLAIN)
def _backward_chunk(sentences, begins, lengths, weights, step_list, shares, last, nodes, taken, steps, ends):
    """Edges kernel: backward recursion over the given sentences, one chunk of the batch."""
    for b in sentences:
        size, tokens = lengths[b], slice(begins[b], begins[b] + lengths[b])
        nodes[b, size:] = 0.0
        _backward(weights[b], step_list, shares[tokens], last[b], nodes[b, :size], taken[tokens], steps, ends)


@njit(parallel=True, **PLAIN)
def backward(begins, lengths, weights, step_list, shares, last, nodes, taken, steps, ends):
    """Edges kernel: backward recursion over chains of listed label pairs, the gradient of sum_b weights[b] log Z_b.

    log Z_b is the log-partition of sentence b. Fills nodes [batch, time, labels] with the gradient in the emissions,
    and with 0 beyond the length of a sentence. Fills taken [tokens, steps] with the gradient in the edges. Adds the
    gradient in the transition scores to steps [chunks, steps]. Adds the gradient in the start and end scores to ends
    [chunks, 2, labels]. The caller sums `steps` and `ends` over the chunks."""
    chunks = len(steps)
    if chunks == 1:
        sentences = range(len(lengths))
        _backward_chunk(sentences, begins, lengths, weights, step_list, shares, last, nodes, taken, steps[0], ends[0])
        return
    for c in prange(chunks):
        sentences = range(c, len(lengths), chunks)
        _backward_chunk(sentences, begins, lengths, weights, step_list, shares, last, nodes, taken, steps[c], ends[c])


@njit(**PLAIN)
def _best(emissions, edges, shared, step_list, path):
    """Edges kernel: Viterbi over the listed label pairs of one chain; fills path [time] with the best labels.

    Among sequences with equal scores, the one with the lowest last label wins. If the last labels are equal, the labels
    before them decide, and so on."""
    transitions, start, end = shared
    sources, _, arrivals = step_list
    labels = len(start)
    scores, arrived = np.empty(labels), np.empty(labels)
    origins = np.zeros((len(emissions), labels), np.int64)
    for j in range(labels):
        scores[j] = start[j] + emissions[0, j]
    for t in range(1, len(emissions)):
        for j in range(labels):
            arrived[j] = -np.inf
            for k in range(arrivals[j], arrivals[j + 1]):
                score = scores[sources[k]] + (edges[t, k] + transitions[k])
                if score > arrived[j]:
                    arrived[j], origins[t, j] = score, sources[k]
        for j in range(labels):
            scores[j] = arrived[j] + emissions[t, j]
    label = 0
    for j in range(1, labels):
        if scores[j] + end[j] > scores[label] + end[label]:
            label = j
    for t in range(len(emissions) - 1, 0, -1):
        path[t] = label
        label = origins[t, label]
    path[0] = label


@njit(**PLAIN)
def _best_chunk(sentences, emissions, edges, begins, lengths, shared, step_list, paths):
    """Edges kernel: Viterbi over listed label pairs for the given sentences, one chunk of the batch."""
    for b in sentences:
        size, tokens = lengths[b], slice(begins[b], begins[b] + lengths[b])
        _best(emissions[b, :size], edges[tokens], shared, step_list, paths[b, :size])
        paths[b, size:] = 0


@njit(parallel=True, **PLAIN)
def best(emissions, edges, begins, lengths, shared, step_list, paths):
    """Edges kernel: Viterbi over chains of listed label pairs; fills paths [batch, time] with the best labels.

    Entries beyond the length of a sentence are 0."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _best_chunk(range(len(lengths)), emissions, edges, begins, lengths, shared, step_list, paths)
        return
    for c in prange(chunks):
        _best_chunk(range(c, len(lengths), chunks), emissions, edges, begins, lengths, shared, step_list, paths)
