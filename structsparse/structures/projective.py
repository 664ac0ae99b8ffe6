"""Projective dependency trees, whose arcs do not cross: Eisner's algorithm."""

import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.structures import eisner
from structsparse.structures import trees
from structsparse.structures.trees import DependencyTree, tokens_inside


class TorchRoute:
    """Eisner's charts in torch operations, in log-space and float64, all spans of a width at once.

    Any device and any scores, no synchronisation with the host."""

    @staticmethod
    def sum(scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        """log Z [batch], and the marginals [batch, n + 1, n + 1] or None."""
        charts = _inside(scores, lengths, single_root, _log_sum)
        totals = _totals(charts, lengths)
        return totals, _outside(charts, totals, lengths, single_root, _log_share) if with_marginals else None

    @staticmethod
    def best(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        """Heads of the best trees; all 0 if there is none."""
        charts = _inside(scores, lengths, single_root, _highest)
        arcs = _outside(charts, _totals(charts, lengths), lengths, single_root, _highest_share)
        return arcs[:, 1:].argmax(2)


class NativeRoute(trees.NativeRoute):
    """Projective trees by the compiled kernels."""

    projective, general = True, TorchRoute
    kernel = staticmethod(eisner.sums)


class ProjectiveTree(DependencyTree):
    """Projective trees by Eisner's algorithm (1996), in time n^3.

    A tree is projective if all tokens between a token and its head are below the head, the root being position 0."""

    native = NativeRoute


class _Charts:
    """Eisner's charts of a batch (see the kernels). A span i..j is at [:, i, j - i], in charts named `_back` at
    [:, j, j - i]."""

    def __init__(self, shape: torch.Size, value: float, device: torch.device):
        def new():
            return torch.full(shape, value, dtype=torch.float64, device=device)

        self.size = shape[1]
        self.right, self.right_back, self.left, self.left_back = new(), new(), new(), new()
        self.rightward, self.leftward_back, self.gap = new(), new(), new()

    def at(self, width: int):
        """Indices of the spans of a width, in charts by left ends and in charts by right ends."""
        return (slice(None), slice(self.size - width), width), (slice(None), slice(width, None), width)

    def parts(self, width: int):
        """The parts of gap, right and left spans of a width: pairs of chart slices, the second to be reversed."""
        starts, ends = slice(self.size - width), slice(width, None)
        shorter, longer = slice(width), slice(1, width + 1)
        return (
            (self.right[:, starts, shorter], self.left_back[:, ends, shorter]),
            (self.rightward[:, starts, longer], self.right_back[:, ends, shorter]),
            (self.left[:, starts, shorter], self.leftward_back[:, ends, longer]),
        )

    def terms(self, width: int, single_root: bool):
        """The scores of all derivations of gap, right and left spans of a width."""
        gap, right, left = (xs + ys.flip(2) for xs, ys in self.parts(width))
        if single_root:
            gap[:, 0, 1:] = -torch.inf
        return gap, right, left


def _inside(scores: Tensor, lengths: Tensor, single_root: bool, summed) -> _Charts:
    """Inside recursion, with `summed` as the sum or the maximum over derivations."""
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


def _totals(charts: _Charts, lengths: Tensor) -> Tensor:  # [batch]
    """The chart entries of whole sentences."""
    return charts.right[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)


def _outside(charts: _Charts, totals: Tensor, lengths: Tensor, single_root: bool, shared) -> Tensor:
    """Outside recursion: arcs [batch, n + 1, n + 1]; the mass of a span is distributed over the parts of its
    derivations."""
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
    """Add the shares of derivations to the masses of both parts."""
    xs, ys = parts
    xs += shares
    ys += shares.flip(2)


def _log_sum(terms: Tensor) -> Tensor:
    """The sum over derivations."""
    return terms.logsumexp(2)


def _log_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    """The share of each derivation in the mass, in proportion to its weight."""
    total = torch.where(total == -torch.inf, 0.0, total)
    return mass.unsqueeze(2) * (terms - total.unsqueeze(2)).exp()


def _highest(terms: Tensor) -> Tensor:
    """The best derivation."""
    return terms.amax(2)


def _highest_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    """The whole mass for the best derivation."""
    return torch.zeros_like(terms).scatter_(2, terms.argmax(2, keepdim=True), mass.unsqueeze(2))
