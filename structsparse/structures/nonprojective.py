"""Nonprojective tree structure: dependency trees whose arcs may cross.

Sums use the matrix-tree theorem, and best trees use the algorithm of Chu, Liu and Edmonds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.structures import matrix_tree
from structsparse.structures import trees
from structsparse.structures.trees import DependencyTree, tokens_inside


class TorchRoute:
    """Nonprojective tree structure: the torch implementation, by the matrix-tree theorem and elimination.

    Sums are computed in log-space and float64 on any device, without synchronisation between device and host. The best
    tree is computed on the CPU."""

    @staticmethod
    def sum(scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        """Nonprojective tree structure: the log-partition [batch], by elimination in torch.

        If `with_marginals` is set, the second result is the marginal probability of each arc, [batch, modifiers,
        heads]. Otherwise it is None."""
        weights, exits = _weights(scores.double(), lengths)
        opened = torch.full(scores.shape[:1], single_root, device=scores.device)
        totals, table, out, still = 0.0, weights, exits, opened
        for _ in range(weights.shape[1] - 1):
            pivot, _, _, table, out, still = _remove(table, out, still)
            totals = totals + pivot
        totals = totals + out[:, 0]
        return totals, _marginals(weights, exits, opened, totals, lengths) if with_marginals else None

    @staticmethod
    def best(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        """Nonprojective tree structure: the heads [batch, tokens] in the best trees, computed on the CPU."""
        return NativeRoute.best(scores.cpu(), lengths.cpu(), single_root).to(scores.device)


class NativeRoute(trees.NativeRoute):
    """Nonprojective tree structure: the compiled implementation, for scores on the CPU."""

    projective, general = False, TorchRoute
    kernel = staticmethod(matrix_tree.sums)


class NonprojectiveTree(DependencyTree):
    """Nonprojective tree structure over the tokens of a sentence; n tokens take time O(n^3).

    Sums use the matrix-tree theorem, and the best tree uses the algorithm of Chu, Liu and Edmonds."""

    native = NativeRoute


def _weights(scores: Tensor, lengths: Tensor):
    """Nonprojective tree structure: the log weights of the arcs from tokens and from the root.

    Returns [batch, modifiers, heads] for arcs between tokens, and [batch, modifiers] for arcs from the root. Padding
    tokens get the first token as head."""
    n = scores.shape[1] - 1
    inside = tokens_inside(lengths, n)
    diagonal = torch.eye(n, dtype=torch.bool, device=scores.device)
    first = torch.arange(n, device=scores.device) == 0
    allowed = inside.unsqueeze(1) & inside.unsqueeze(2) & ~diagonal
    weights = torch.where(allowed, scores[:, 1:, 1:], -torch.inf)
    weights = torch.where(~inside.unsqueeze(2) & first, 0.0, weights)
    return weights, torch.where(inside, scores[:, 1:, 0], -torch.inf)


def _remove(weights: Tensor, exits: Tensor, opened: Tensor):
    """Nonprojective tree structure: eliminate the last token from the matrix-tree system, in log-space.

    Returns the pivot, the shares of the other tokens as head of the last token, the share of the root as head of the
    last token, and the remaining system. With a single root, `opened` (bool [batch]) stays true until the child of the
    root is eliminated."""
    rows, columns, last = weights[:, :-1, :-1], weights[:, :-1, -1], exits[:, -1]
    step = weights[:, -1, :-1]  # shape [batch, remaining tokens]
    inner = step.logsumexp(1)
    closes = opened & (inner == -torch.inf)
    pivot = torch.where(opened, torch.where(closes, last, inner), torch.logaddexp(inner, last))
    shift = torch.where(pivot == -torch.inf, 0.0, pivot)
    step, out = step - shift.unsqueeze(1), last - shift
    rows = torch.logaddexp(rows, columns.unsqueeze(2) + step.unsqueeze(1))
    diagonal = torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
    rows = rows.masked_fill(diagonal, -torch.inf)
    exits = torch.where(closes.unsqueeze(1), -torch.inf, exits[:, :-1])
    exits = torch.logaddexp(exits, columns + out.unsqueeze(1))
    return pivot, step, out, rows, exits, opened & ~closes


def _reach(weights: Tensor, exits: Tensor, opened: Tensor):
    """Nonprojective tree structure: log-probabilities that a random walk reaches the root and avoids a given token.

    The walk steps from a token to one of its heads. Entry [b, k, j] is for the walk from token j that avoids token k,
    in sentence b. The second result is a mask [batch, tokens]. With a single root, it tells which tokens can be the
    child of the root; otherwise it is false everywhere."""
    size = weights.shape[1]
    if size == 1:
        return torch.full_like(weights, -torch.inf), opened.unsqueeze(1)
    if size % 2 == 1:  # the halves must be equal: add a dummy token whose only head is the first token
        wide = F.pad(weights, (0, 1, 0, 1), value=-torch.inf)
        wide[:, size, 0] = 0.0
        reach, ends = _reach(wide, F.pad(exits, (0, 1), value=-torch.inf), opened)
        return reach[:, :size, :size], ends[:, :size]
    # one copy of the system keeps the first half of the tokens, the other copy keeps the second half
    table = torch.stack([weights, weights.flip(1, 2)], 1).flatten(0, 1)
    out, still = torch.stack([exits, exits.flip(1)], 1).flatten(0, 1), opened.repeat_interleave(2)
    removed = []
    for _ in range(size // 2):
        _, step, share, table, out, still = _remove(table, out, still)
        removed.append((step, share, still))
    reach, ends = _reach(table, out, still)
    for step, share, open_then in reversed(removed):
        # the eliminated token cannot step to the root if the single child of the root was eliminated after it
        late = open_then.unsqueeze(1) & ~ends
        direct = torch.where(late, -torch.inf, share.unsqueeze(1)).unsqueeze(2)
        paths = torch.cat([reach + step.unsqueeze(1), direct], 2)  # shape [2 * batch, size / 2, remaining tokens + 1]
        reach = torch.cat([reach, paths.logsumexp(2, keepdim=True)], 2)
    first, second = reach.unflatten(0, (-1, 2)).unbind(1)
    ends = ends.unflatten(0, (-1, 2))
    return torch.cat([first, second.flip(1, 2)], 1), torch.cat([ends[:, 0], ends[:, 1].flip(1)], 1)


def _marginals(weights: Tensor, exits: Tensor, opened: Tensor, totals: Tensor, lengths: Tensor) -> Tensor:
    """Nonprojective tree structure: the marginal probability of each arc, [batch, modifiers, heads]."""
    reach, ends = _reach(weights, exits, opened)
    root = torch.where(opened.unsqueeze(1) & ~ends, -torch.inf, exits)
    arcs = torch.cat([root.unsqueeze(2), weights + reach], 2)  # shape [batch, tokens, tokens + 1]
    share = (arcs - arcs.logsumexp(2, keepdim=True)).exp()
    real = tokens_inside(lengths, weights.shape[1]) & (totals > -torch.inf).unsqueeze(1)
    return F.pad(torch.where(real.unsqueeze(2), share, 0.0), (0, 0, 1, 0))
