"""Brute-force twins: every structure of a tiny problem, written out. Differentiable where the real thing is."""

import itertools

import torch


def labelings(labels, length):  # [labels ** length, length]
    """All label sequences, in the order in which ties are broken: the last label counts first."""
    backwards = list(itertools.product(range(labels), repeat=length))
    return torch.tensor(backwards, dtype=torch.int64).flip(1)


def chain_totals(scores, lengths):
    """For each sentence all its labelings [count, length] and their totals [count]."""
    emissions, transitions, start, end = scores
    for sentence, length in zip(emissions, lengths.tolist(), strict=True):
        paths = labelings(sentence.shape[1], length)
        totals = start[paths[:, 0]] + end[paths[:, -1]]
        for t in range(length):
            totals = totals + sentence[t, paths[:, t]]
            if t > 0:
                totals = totals + transitions[paths[:, t - 1], paths[:, t]]
        yield paths, totals


def chain_log_partition(scores, lengths):  # [batch]
    return torch.stack([totals.logsumexp(0) for _, totals in chain_totals(scores, lengths)])


def chain_best(scores, lengths):
    """The best labels, 0 beyond the length [batch, time], and their totals [batch]."""
    best = torch.zeros(scores.emissions.shape[:2], dtype=torch.int64)
    highest = []
    for b, (paths, totals) in enumerate(chain_totals(scores, lengths)):
        first = int((totals == totals.max()).nonzero()[0])
        best[b, : lengths[b]] = paths[first]
        highest.append(totals[first])
    return best, torch.stack(highest)


def chain_marginals(scores, lengths):  # [batch, time, labels]
    marginals = torch.zeros_like(scores.emissions)
    for b, (paths, totals) in enumerate(chain_totals(scores, lengths)):
        probabilities = totals.softmax(0)
        for t in range(int(lengths[b])):
            marginals[b, t].index_add_(0, paths[:, t], probabilities)
    return marginals


def chain_scores_of(scores, gold, lengths):  # [batch]
    """Total of the given labels, one term at a time."""
    emissions, transitions, start, end = scores
    totals = []
    for sentence, labels, length in zip(emissions, gold.tolist(), lengths.tolist(), strict=True):
        total = start[labels[0]] + end[labels[length - 1]]
        for t in range(length):
            total = total + sentence[t, labels[t]]
        for t in range(1, length):
            total = total + transitions[labels[t - 1], labels[t]]
        totals.append(total)
    return torch.stack(totals)
