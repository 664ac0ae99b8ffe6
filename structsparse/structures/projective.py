"""Projective tree structure: dependency trees whose arcs do not cross, by Eisner's algorithm."""

import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.structures import eisner
from structsparse.structures import trees
from structsparse.structures.trees import DependencyTree, tokens_inside


class TorchRoute:
    """Projective tree structure: the torch implementation, by Eisner's algorithm for all spans of one width at a time.

    All steps work in log-space and float64 on any device, without synchronisation between device and host."""

    @staticmethod
    def sum(scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        """Projective tree structure: the log-partition [batch], by Eisner's algorithm in torch.

        If `with_marginals` is set, the second result is the marginal probability of each arc, [batch, modifiers,
        heads]. Otherwise it is None."""
        charts = _inside(scores, lengths, single_root, _log_sum)
        totals = _totals(charts, lengths)
        return totals, _outside(charts, totals, lengths, single_root, _log_share) if with_marginals else None

    @staticmethod
    def best(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        """Projective tree structure: the heads [batch, tokens] in the best trees, by torch operations.

        All heads are 0 for a sentence without a tree."""
        charts = _inside(scores, lengths, single_root, _highest)
        arcs = _outside(charts, _totals(charts, lengths), lengths, single_root, _highest_share)
        return arcs[:, 1:].argmax(2)


class NativeRoute(trees.NativeRoute):
    """Projective tree structure: the compiled implementation, for scores on the CPU."""

    projective, general = True, TorchRoute
    kernel = staticmethod(eisner.sums)


class ProjectiveTree(DependencyTree):
    """Projective tree structure over the tokens of a sentence, by Eisner's algorithm (1996) in time n^3 for n tokens.

    A tree is projective if all tokens between a token and its head are descendants of the head. The root is at position
    0."""

    native = NativeRoute


class _Charts:
    """Projective tree structure: the charts of Eisner's algorithm for a batch (see the Eisner kernels).

    A chart has a score for each span of positions i to j, at index [:, i, j - i]. In charts named `_back`, the index is
    [:, j, j - i]."""

    def __init__(self, shape: torch.Size, value: float, device: torch.device):
        def new():
            """Projective tree structure: an empty chart for all spans of the batch."""
            return torch.full(shape, value, dtype=torch.float64, device=device)

        self.size = shape[1]
        self.right, self.right_back, self.left, self.left_back = new(), new(), new(), new()
        self.rightward, self.leftward_back, self.gap = new(), new(), new()

    def at(self, width: int):
        """Projective tree structure: the indices of all spans of one width in the charts.

        Returns an index for ordinary charts and an index for charts named `_back`."""
        return (slice(None), slice(self.size - width), width), (slice(None), slice(width, None), width)

    def parts(self, width: int):
        """Projective tree structure: the chart slices of the two parts that form each span of one width.

        Returns a pair of slices for each kind of span (see the Eisner kernels): gap, right, left. The second slice of
        a pair must be reversed to match the first."""
        starts, ends = slice(self.size - width), slice(width, None)
        shorter, longer = slice(width), slice(1, width + 1)
        return (
            (self.right[:, starts, shorter], self.left_back[:, ends, shorter]),
            (self.rightward[:, starts, longer], self.right_back[:, ends, shorter]),
            (self.left[:, starts, shorter], self.leftward_back[:, ends, longer]),
        )

    def terms(self, width: int, single_root: bool):
        """Projective tree structure: the scores of all derivations of each span of one width.

        A derivation splits the span into two parts. Returns the scores for each kind of span (see the Eisner kernels):
        gap, right, left."""
        gap, right, left = (xs + ys.flip(2) for xs, ys in self.parts(width))
        if single_root:
            gap[:, 0, 1:] = -torch.inf
        return gap, right, left


def _inside(scores: Tensor, lengths: Tensor, single_root: bool, summed) -> _Charts:
    """Projective tree structure: the inside recursion of Eisner's algorithm in torch.

    A derivation splits a span into two parts. The function `summed` combines the scores of all derivations of a span,
    by log-sum-exp or by the maximum."""
    modifiers, heads = (F.pad(tokens_inside(lengths, scores.shape[1] - 1), (1, 0), value=v) for v in (False, True))
    allowed = modifiers.unsqueeze(2) & heads.unsqueeze(1)
    scores = torch.where(allowed, scores.double(), -torch.inf)
    charts = _Charts(scores.shape, -torch.inf, scores.device)
    for chart in (charts.right, charts.right_back, charts.left, charts.left_back):
        chart[:, :, 0] = 0.0
    for width in range(1, charts.size):
        by_left, by_right = charts.at(width)
        gap = summed(charts.terms(width, single_root)[0])
        charts.gap[by_left] = gap
        charts.rightward[by_left] = gap + scores.diagonal(-width, 1, 2)
        charts.leftward_back[by_right] = gap + scores.diagonal(width, 1, 2)
        _, right, left = charts.terms(width, single_root)
        charts.right[by_left] = charts.right_back[by_right] = summed(right)
        charts.left[by_left] = charts.left_back[by_right] = summed(left)
    return charts


def _totals(charts: _Charts, lengths: Tensor) -> Tensor:  # shape [batch]
    """Projective tree structure: the score [batch] of each whole sentence in the finished charts."""
    return charts.right[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)


def _outside(charts: _Charts, totals: Tensor, lengths: Tensor, single_root: bool, shared) -> Tensor:
    """Projective tree structure: the outside recursion of Eisner's algorithm in torch.

    From wide to narrow spans, the function `shared` distributes the probability of each span over its derivations,
    which are its splits into two parts. Returns an array [batch, modifiers, heads]. If `shared` is `_log_share`, the
    array holds arc probabilities. If it is `_highest_share`, arcs of the best tree have 1, and other arcs 0."""
    masses = _Charts(charts.right.shape, 0.0, totals.device)
    masses.right[:, 0].scatter_(1, lengths.unsqueeze(1), (totals > -torch.inf).double().unsqueeze(1))
    arcs = torch.zeros_like(charts.right)
    for width in range(charts.size - 1, 0, -1):
        by_left, by_right = charts.at(width)
        (to_gap, to_right, to_left), terms = masses.parts(width), charts.terms(width, single_root)
        right = masses.right[by_left] + masses.right_back[by_right]
        _add_shares_(to_right, shared(right, charts.right[by_left], terms[1]))
        left = masses.left[by_left] + masses.left_back[by_right]
        _add_shares_(to_left, shared(left, charts.left[by_left], terms[2]))
        rightward, leftward = masses.rightward[by_left], masses.leftward_back[by_right]
        _add_shares_(to_gap, shared(rightward + leftward, charts.gap[by_left], terms[0]))
        arcs.diagonal(-width, 1, 2).copy_(rightward)
        arcs.diagonal(width, 1, 2).copy_(leftward)
    return arcs


def _add_shares_(parts: tuple[Tensor, Tensor], shares: Tensor):
    """Projective tree structure: add the probability of each split of a span to both parts of the split."""
    xs, ys = parts
    xs += shares
    ys += shares.flip(2)


def _log_sum(terms: Tensor) -> Tensor:
    """Projective tree structure: the log-sum-exp of the scores of all splits of each span into two parts."""
    return terms.logsumexp(2)


def _log_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    """Projective tree structure: the probability mass of each split of a span into two parts.

    The mass of the span is divided among its splits, in proportion to exp(score of the split)."""
    total = torch.where(total == -torch.inf, 0.0, total)
    return mass.unsqueeze(2) * (terms - total.unsqueeze(2)).exp()


def _highest(terms: Tensor) -> Tensor:
    """Projective tree structure: the score of the best split of each span into two parts."""
    return terms.amax(2)


def _highest_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    """Projective tree structure: give the whole mass of each span to the span's best split into two parts."""
    return torch.zeros_like(terms).scatter_(2, terms.argmax(2, keepdim=True), mass.unsqueeze(2))
