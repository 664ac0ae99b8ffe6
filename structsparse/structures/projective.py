"""Projective dependency trees, whose arcs do not cross: Eisner's algorithm."""

import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.structures import eisner
from structsparse.structures import trees
from structsparse.structures.trees import DependencyTree, tokens_inside


class TorchRoute:
    """Eisner's algorithm for projective trees in torch operations, in log-space and float64, all spans of one width at
    a time.

    It works on any device and for any scores, without synchronisation with the host."""

    @staticmethod
    def sum(scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        """The log-partition [batch], and the marginal probability of each arc [batch, n + 1, n + 1] or None."""
        charts = _inside(scores, lengths, single_root, _log_sum)
        totals = _totals(charts, lengths)
        return totals, _outside(charts, totals, lengths, single_root, _log_share) if with_marginals else None

    @staticmethod
    def best(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        """The heads of the tokens in the best trees, [batch, n]; all 0 for a sentence without a tree."""
        charts = _inside(scores, lengths, single_root, _highest)
        arcs = _outside(charts, _totals(charts, lengths), lengths, single_root, _highest_share)
        return arcs[:, 1:].argmax(2)


class NativeRoute(trees.NativeRoute):
    """Projective trees by the compiled kernels."""

    projective, general = True, TorchRoute
    kernel = staticmethod(eisner.sums)


class ProjectiveTree(DependencyTree):
    """Projective dependency trees by Eisner's algorithm (1996), in time n^3.

    A tree is projective if all tokens between a token and its head are descendants of the head. The root is at position
    0."""

    native = NativeRoute


class _Charts:
    """The charts of Eisner's algorithm for a batch (see the kernels).

    The span i..j is at [:, i, j - i], or at [:, j, j - i] in charts named `_back`."""

    def __init__(self, shape: torch.Size, value: float, device: torch.device):
        def new():
            """An empty chart for all spans of the batch."""
            return torch.full(shape, value, dtype=torch.float64, device=device)

        self.size = shape[1]
        self.right, self.right_back, self.left, self.left_back = new(), new(), new(), new()
        self.rightward, self.leftward_back, self.gap = new(), new(), new()

    def at(self, width: int):
        """The indices of all spans of a width, in charts by left end and in charts by right end."""
        return (slice(None), slice(self.size - width), width), (slice(None), slice(width, None), width)

    def parts(self, width: int):
        """The two parts of each gap, right and left span of a width, as pairs of chart slices; the second slice must be
        reversed."""
        starts, ends = slice(self.size - width), slice(width, None)
        shorter, longer = slice(width), slice(1, width + 1)
        return (
            (self.right[:, starts, shorter], self.left_back[:, ends, shorter]),
            (self.rightward[:, starts, longer], self.right_back[:, ends, shorter]),
            (self.left[:, starts, shorter], self.leftward_back[:, ends, longer]),
        )

    def terms(self, width: int, single_root: bool):
        """The scores of all derivations of the gap, right and left spans of a width."""
        gap, right, left = (xs + ys.flip(2) for xs, ys in self.parts(width))
        if single_root:
            gap[:, 0, 1:] = -torch.inf
        return gap, right, left


def _inside(scores: Tensor, lengths: Tensor, single_root: bool, summed) -> _Charts:
    """The inside recursion of Eisner's algorithm; `summed` is the sum or the maximum over derivations."""
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
    """The chart entries of whole sentences: [batch]."""
    return charts.right[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)


def _outside(charts: _Charts, totals: Tensor, lengths: Tensor, single_root: bool, shared) -> Tensor:
    """The outside recursion of Eisner's algorithm, from wide to narrow spans: arc probabilities or best arcs [batch, n
    + 1, n + 1].

    `shared` distributes the mass of each span over its derivations."""
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
    """Add the mass of each derivation to the masses of its two parts."""
    xs, ys = parts
    xs += shares
    ys += shares.flip(2)


def _log_sum(terms: Tensor) -> Tensor:
    """The sum over derivations, in log-space."""
    return terms.logsumexp(2)


def _log_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    """The mass of each derivation: the mass of the span, divided in proportion to the derivations' weights."""
    total = torch.where(total == -torch.inf, 0.0, total)
    return mass.unsqueeze(2) * (terms - total.unsqueeze(2)).exp()


def _highest(terms: Tensor) -> Tensor:
    """The score of the best derivation."""
    return terms.amax(2)


def _highest_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    """The mass of each derivation: the best derivation takes the whole mass of the span."""
    return torch.zeros_like(terms).scatter_(2, terms.argmax(2, keepdim=True), mass.unsqueeze(2))
