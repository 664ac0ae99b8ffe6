"""Dependency trees whose arcs may cross."""

import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.structures import matrix_tree as elimination
from structsparse.structures import trees as dependency
from structsparse.structures.trees import DependencyTree, tokens_inside


class TorchRoute:
    """The elimination of the kernels by torch in log-space and float64: any device, any scores; sums read nothing
    back to the host. The best tree is looked for on the CPU."""

    @staticmethod
    def sum(scores: Tensor, lengths: Tensor, single_root: bool, wanted: bool):
        """log Z [batch], and the marginals [batch, n + 1, n + 1] where they are `wanted`."""
        weights, exits = _weights(scores.double(), lengths)
        opened = torch.full(scores.shape[:1], single_root, device=scores.device)
        totals, table, out, still = 0.0, weights, exits, opened
        for _ in range(weights.shape[1] - 1):
            pivot, _, _, table, out, still = _remove(table, out, still)
            totals = totals + pivot
        totals = totals + out[:, 0]
        return totals, _marginals(weights, exits, opened, totals, lengths) if wanted else None

    @staticmethod
    def best(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        return NativeRoute.best(scores.cpu(), lengths.cpu(), single_root).to(scores.device)


class NativeRoute(dependency.NativeRoute):
    projective, general = False, TorchRoute
    kernel = staticmethod(elimination.sums)


class NonprojectiveTree(DependencyTree):
    """Sums by the matrix-tree theorem, the best by contracting cycles, both in time that grows with n^3 at most."""

    native = NativeRoute


def _weights(scores: Tensor, lengths: Tensor):
    """Logarithms of the weights of heads [batch, n, n] and of the root [batch, n]; padding hangs on the first token."""
    n = scores.shape[1] - 1
    inside = tokens_inside(lengths, n)
    own = torch.eye(n, dtype=torch.bool, device=scores.device)
    first = torch.arange(n, device=scores.device) == 0
    allowed = inside.unsqueeze(1) & inside.unsqueeze(2) & ~own
    weights = torch.where(allowed, scores[:, 1:, 1:], -torch.inf)
    weights = torch.where(~inside.unsqueeze(2) & first, 0.0, weights)
    return weights, torch.where(inside, scores[:, 1:, 0], -torch.inf)


def _remove(weights: Tensor, exits: Tensor, opened: Tensor):
    """Eliminate the last token: its pivot, its shares of the heads and of the root, and what remains.

    `opened` [batch] says where a single root is still to be found: see the kernels."""
    rows, columns, last = weights[:, :-1, :-1], weights[:, :-1, -1], exits[:, -1]
    step = weights[:, -1, :-1]  # [batch, remaining]
    inner = step.logsumexp(1)
    closes = opened & (inner == -torch.inf)
    pivot = torch.where(opened, torch.where(closes, last, inner), torch.logaddexp(inner, last))
    shift = torch.where(pivot == -torch.inf, 0.0, pivot)
    step, out = step - shift.unsqueeze(1), last - shift
    rows = torch.logaddexp(rows, columns.unsqueeze(2) + step.unsqueeze(1))
    own = torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
    rows = rows.masked_fill(own, -torch.inf)
    exits = torch.where(closes.unsqueeze(1), -torch.inf, exits[:, :-1])
    exits = torch.logaddexp(exits, columns + out.unsqueeze(1))
    return pivot, step, out, rows, exits, opened & ~closes


def _reach(weights: Tensor, exits: Tensor, opened: Tensor):
    """log of the probability that a walk from token j ends at the root before it comes by token k [batch, k, j].

    And whether a single root was still to be found when k alone remained [batch, k]."""
    size = weights.shape[1]
    if size == 1:
        return torch.full_like(weights, -torch.inf), opened.unsqueeze(1)
    if size % 2 == 1:  # halves are of one size: one token more, which hangs on the first
        wide = F.pad(weights, (0, 1, 0, 1), value=-torch.inf)
        wide[:, size, 0] = 0.0
        reach, ends = _reach(wide, F.pad(exits, (0, 1), value=-torch.inf), opened)
        return reach[:, :size, :size], ends[:, :size]
    table = torch.stack([weights, weights.flip(1, 2)], 1).flatten(0, 1)  # the first half is to remain, and the second
    out, still = torch.stack([exits, exits.flip(1)], 1).flatten(0, 1), opened.repeat_interleave(2)
    removed = []
    for _ in range(size // 2):
        _, step, share, table, out, still = _remove(table, out, still)
        removed.append((step, share, still))
    reach, ends = _reach(table, out, still)
    for step, share, open_then in reversed(removed):
        late = open_then.unsqueeze(1) & ~ends  # the root was found later: this way to it would be a second
        direct = torch.where(late, -torch.inf, share.unsqueeze(1)).unsqueeze(2)
        ways = torch.cat([reach + step.unsqueeze(1), direct], 2)  # [2 * batch, size / 2, remaining + 1]
        reach = torch.cat([reach, ways.logsumexp(2, keepdim=True)], 2)
    first, second = reach.unflatten(0, (-1, 2)).unbind(1)
    ends = ends.unflatten(0, (-1, 2))
    return torch.cat([first, second.flip(1, 2)], 1), torch.cat([ends[:, 0], ends[:, 1].flip(1)], 1)


def _marginals(weights: Tensor, exits: Tensor, opened: Tensor, totals: Tensor, lengths: Tensor) -> Tensor:
    reach, ends = _reach(weights, exits, opened)
    root = torch.where(opened.unsqueeze(1) & ~ends, -torch.inf, exits)
    arcs = torch.cat([root.unsqueeze(2), weights + reach], 2)  # [batch, n, n + 1]
    share = (arcs - arcs.logsumexp(2, keepdim=True)).exp()
    real = tokens_inside(lengths, weights.shape[1]) & (totals > -torch.inf).unsqueeze(1)
    return F.pad(torch.where(real.unsqueeze(2), share, 0.0), (0, 0, 1, 0))
