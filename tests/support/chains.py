"""What the tests of chains share: both routes, problems, weighted gradients."""

import math

import torch

from structsparse.structures.chain import Chain, ChainScores, TorchRoute

INF = math.inf
SEEDS = range(4)


class TorchChain(Chain):
    def _route(self, scores):
        return TorchRoute


CHAINS = {"native": Chain(), "torch": TorchChain()}


def problem(seed, batch=5, time=5, labels=3, scale=2.0, spread=1.0, shortest=1):
    """Scores in float64, lengths with the shortest and the longest among them, gold labels."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    lengths = torch.randint(shortest, time + 1, (batch,), generator=draw)
    lengths[0], lengths[-1] = shortest, time
    emissions, transitions = normal(batch, time, labels) * scale, normal(labels, labels) * spread
    gold = torch.randint(0, labels, (batch, time), generator=draw)
    return ChainScores(emissions, transitions, normal(labels), normal(labels)), gold, lengths


def tracked(scores, dtype=torch.float64):
    return ChainScores(*(score.detach().to(dtype, copy=True).requires_grad_() for score in scores))


def gradients(total, scores, dtype=torch.float64):
    return [gradient.to(dtype) for gradient in torch.autograd.grad(total, tuple(scores))]


def weighted_gradients(chain, scores, lengths, weights, dtype=torch.float64):
    scores = tracked(scores, dtype)
    totals = chain.log_partition(scores, lengths)
    return totals.detach(), gradients((totals * weights).sum(), scores)


def close(left, right, tolerance=1e-10):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def agree(scores, lengths, tolerance=1e-10):
    """Both routes give the same totals and gradients."""
    weights = torch.linspace(0.5, 2.0, len(lengths), dtype=torch.float64)
    native, torch_ = (weighted_gradients(chain, scores, lengths, weights) for chain in CHAINS.values())
    close(native[0], torch_[0])
    for left, right in zip(native[1], torch_[1], strict=True):
        close(left, right, tolerance)


def forbid(scores, seed, cost=-INF, share=0.4):
    """Forbid some transitions, never a label's to itself, and one label at either end."""
    draw = torch.Generator().manual_seed(seed)
    transitions, start, end = scores.transitions.clone(), scores.start.clone(), scores.end.clone()
    barred = torch.rand(transitions.shape, generator=draw) < share
    transitions[barred.fill_diagonal_(False)] = cost
    start[1], end[0] = cost, cost
    return scores._replace(transitions=transitions, start=start, end=end)
