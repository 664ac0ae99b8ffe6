"""Linear chains whose steps are scored anew at every token: forward, backward, best path on the CPU; parallel over
sentences.

A step is a pair of neighbouring labels; only the steps that are listed may be taken, those to the same label one after
the other. Sums are taken in log-space: each score has an exponential of its own anyway. Forward leaves, for each step,
the share of the sequences now at its second label that came by it; backward deals the probabilities out by these
shares, without another exponential, so no score is too large for it.

Arrays: emissions [batch, time, labels]; edges [tokens, steps], sentences end to end, of which a sentence's first row is
ignored; begins, lengths [batch]; origins, targets [steps]; arrivals [labels + 1], the steps to label j are
arrivals[j] : arrivals[j + 1]; shared: transitions [steps], start and end [labels] in float64.
"""

import numpy as np
from numba import njit, prange

from structsparse.kernels.logspace import EXACT, PLAIN, exp_below
from structsparse.kernels.structures.chain import chunk_count


@njit(**EXACT)
def _arrive(alpha, edge, transitions, way, work, out):
    """work = each step's share in its target, out = log of the sums over the steps to each label."""
    origins, targets, arrivals = way
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
        sums[j] = 1.0 / sums[j] if sums[j] != 0.0 else 0.0  # nothing arrives: no shares
    for k in range(len(work)):
        work[k] *= sums[targets[k]]


@njit(**EXACT)
def _forward(emissions, edges, shared, way, shares, last):
    """Fill shares [time, steps] and last [labels], the probabilities at the end; returns log Z."""
    transitions, start, end = shared
    labels = len(start)
    alpha, arrived, work = np.empty(labels), np.empty(labels), np.empty(len(transitions))
    for t in range(len(emissions)):
        if t > 0:
            _arrive(alpha, edges[t], transitions, way, work, arrived)
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
def _forward_chunk(mine, emissions, edges, begins, lengths, shared, way, shares, last, totals):
    for b in mine:
        size, here = lengths[b], slice(begins[b], begins[b] + lengths[b])
        totals[b] = _forward(emissions[b, :size], edges[here], shared, way, shares[here], last[b])


@njit(parallel=True, **PLAIN)
def forward(emissions, edges, begins, lengths, shared, way, shares, last, totals):
    """Fill totals [batch] with log Z, and shares [tokens, steps] and last [batch, labels] for `backward`."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _forward_chunk(range(len(lengths)), emissions, edges, begins, lengths, shared, way, shares, last, totals)
        return
    for c in prange(chunks):
        mine = range(c, len(lengths), chunks)
        _forward_chunk(mine, emissions, edges, begins, lengths, shared, way, shares, last, totals)


@njit(**EXACT)
def _backward(weight, way, shares, last, nodes, taken, steps, ends):
    """Fill nodes [time, labels] and taken [time, steps], add to steps [steps] and ends [2, labels]."""
    origins, targets, _ = way
    node, before = weight * last, np.empty(len(last))
    for j in range(len(node)):
        ends[1, j] += node[j]
    for t in range(len(nodes) - 1, -1, -1):
        share, take = shares[t], taken[t]
        for j in range(len(node)):
            nodes[t, j], before[j] = node[j], 0.0
        for k in range(len(share)):
            count = share[k] * node[targets[k]]  # zero at the first token, whose shares are
            before[origins[k]] += count
            steps[k] += count
            take[k] = count
        if t > 0:
            node, before = before, node
    for j in range(len(node)):
        ends[0, j] += node[j]


@njit(**PLAIN)
def _backward_chunk(mine, begins, lengths, weights, way, shares, last, nodes, taken, steps, ends):
    for b in mine:
        size, here = lengths[b], slice(begins[b], begins[b] + lengths[b])
        nodes[b, size:] = 0.0
        _backward(weights[b], way, shares[here], last[b], nodes[b, :size], taken[here], steps, ends)


@njit(parallel=True, **PLAIN)
def backward(begins, lengths, weights, way, shares, last, nodes, taken, steps, ends):
    """Gradient of sum_b weights[b] log Z_b.

    Fills nodes [batch, time, labels], zero beyond the length, and taken [tokens, steps]; adds to steps [chunks, steps]
    and ends [chunks, 2, labels], whose sums over the chunks belong to the transitions, the start and the end."""
    chunks = len(steps)
    if chunks == 1:
        mine = range(len(lengths))
        _backward_chunk(mine, begins, lengths, weights, way, shares, last, nodes, taken, steps[0], ends[0])
        return
    for c in prange(chunks):
        mine = range(c, len(lengths), chunks)
        _backward_chunk(mine, begins, lengths, weights, way, shares, last, nodes, taken, steps[c], ends[c])


@njit(**PLAIN)
def _best(emissions, edges, shared, way, path):
    """Fill path [time] with the best labels; of equals the lowest."""
    transitions, start, end = shared
    sources, _, arrivals = way
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
def _best_chunk(mine, emissions, edges, begins, lengths, shared, way, paths):
    for b in mine:
        size, here = lengths[b], slice(begins[b], begins[b] + lengths[b])
        _best(emissions[b, :size], edges[here], shared, way, paths[b, :size])
        paths[b, size:] = 0


@njit(parallel=True, **PLAIN)
def best(emissions, edges, begins, lengths, shared, way, paths):
    """Fill paths [batch, time] with the best label sequences, 0 beyond the length."""
    chunks = chunk_count(len(lengths))
    if chunks == 1:
        _best_chunk(range(len(lengths)), emissions, edges, begins, lengths, shared, way, paths)
        return
    for c in prange(chunks):
        _best_chunk(range(c, len(lengths), chunks), emissions, edges, begins, lengths, shared, way, paths)
