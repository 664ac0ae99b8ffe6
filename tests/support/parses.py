"""What the tests of dependency trees share: problems, both routes, and every tree of a short sentence written out."""

import functools
import itertools
import math

import torch

from structsparse.structures import nonprojective, projective
from structsparse.structures.nonprojective import NonprojectiveTree
from structsparse.structures.projective import ProjectiveTree

INF = math.inf


class TorchNonprojective(NonprojectiveTree):
    def _route(self, scores):
        return nonprojective.TorchRoute


class TorchProjective(ProjectiveTree):
    def _route(self, scores):
        return projective.TorchRoute


KINDS = {
    "nonprojective": (NonprojectiveTree, TorchNonprojective),
    "projective": (ProjectiveTree, TorchProjective),
}
TREES = {
    f"{kind}, {'single' if single else 'many'}, {route}": classes[route == "torch"](single)
    for kind, classes in KINDS.items()
    for single in (False, True)
    for route in ("native", "torch")
}


def problem(seed, batch=5, n=5, scale=2.0, bars=0.0, shortest=1, dtype=torch.float64):
    """Scores, garbage where they are ignored; a tree for every sentence; lengths with 1 and n among them.

    `bars` is the share of the arcs that are forbidden; some sentences may be left without a tree."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, n + 1, (batch,), generator=draw)
    lengths[0], lengths[-1] = shortest, n
    scores = torch.randn(batch, n + 1, n + 1, generator=draw, dtype=torch.float64) * scale
    scores[torch.rand(scores.shape, generator=draw) < bars] = -INF
    scores[~real(lengths, n)] = math.nan
    gold = (torch.rand(batch, n, generator=draw) * torch.arange(1, n + 1)).long()  # heads on the left
    return scores.to(dtype), gold, lengths


def real(lengths, n):
    """The arcs whose scores count [batch, n + 1, n + 1]."""
    position = torch.arange(n + 1)
    inside = position <= lengths[:, None]
    arcs = inside[:, :, None] & inside[:, None, :] & (position[:, None] != position)
    arcs[:, 0] = False
    return arcs


def close(left, right, tolerance=1e-10):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def _above(heads, m):
    """The tokens and the root above m; None in a cycle."""
    seen = [m]
    while seen[-1] != 0:
        head = heads[seen[-1] - 1]
        if head in seen:
            return None
        seen.append(head)
    return seen[1:]


def _nested(heads):
    return all(
        head in _above(heads, t) for m, head in enumerate(heads, 1) for t in range(min(m, head) + 1, max(m, head))
    )


@functools.cache
def all_trees(n, is_projective, single_root):  # [count, n]
    """All heads that make a tree, by looking at all heads that there are."""
    trees = [
        heads
        for heads in itertools.product(range(n + 1), repeat=n)
        if (not single_root or heads.count(0) == 1)
        and all(_above(heads, m) is not None for m in range(1, n + 1))
        and (not is_projective or _nested(heads))
    ]
    return torch.tensor(trees, dtype=torch.int64)


def enumerated(tree, scores, lengths):
    """For each sentence all its trees [count, length] and their totals [count]."""
    for sentence, n in zip(scores.double(), lengths.tolist(), strict=True):
        heads = all_trees(n, isinstance(tree, ProjectiveTree), tree.single_root)
        yield heads, sentence[torch.arange(1, n + 1), heads].sum(1)


def expected(tree, scores, lengths):
    """log Z [batch] and the marginals [batch, n + 1, n + 1]."""
    totals, marginals = [], torch.zeros(scores.shape, dtype=torch.float64)
    for b, (heads, worth) in enumerate(enumerated(tree, scores, lengths)):
        totals.append(worth.logsumexp(0))
        if totals[-1] > -INF:
            for m in range(heads.shape[1]):
                marginals[b, m + 1].index_add_(0, heads[:, m], worth.softmax(0))
    return torch.stack(totals), marginals
