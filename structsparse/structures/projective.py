"""Dependency trees whose arcs do not cross."""

import torch
import torch.nn.functional as F
from torch import Tensor

from structsparse.kernels.structures import eisner
from structsparse.structures import trees as dependency
from structsparse.structures.trees import DependencyTree, tokens_inside


class TorchRoute:
    """The charts of the kernels by torch in log-space and float64, all spans of a width at once: any device, any
    scores, nothing read back to the host."""

    @staticmethod
    def sum(scores: Tensor, lengths: Tensor, single_root: bool, wanted: bool):
        """log Z [batch], and the marginals [batch, n + 1, n + 1] where they are `wanted`."""
        charts = _inside(scores, lengths, single_root, _log_sum)
        totals = _wholes(charts, lengths)
        return totals, _outside(charts, totals, lengths, single_root, _log_share) if wanted else None

    @staticmethod
    def best(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        """Heads of the best trees; all 0 where there is none."""
        charts = _inside(scores, lengths, single_root, _highest)
        arcs = _outside(charts, _wholes(charts, lengths), lengths, single_root, _highest_share)
        return arcs[:, 1:].argmax(2)


class NativeRoute(dependency.NativeRoute):
    projective, general = True, TorchRoute
    kernel = staticmethod(eisner.sums)


class ProjectiveTree(DependencyTree):
    """Sums and the best by the charts of Eisner (1996), in time n^3. A tree is projective if all tokens between a
    token and its head are below the head, the root counted as the position 0."""

    native = NativeRoute


class _Charts:
    """See the kernels. A span i..j is at [:, i, j - i], in charts that end on `_back` at [:, j, j - i]."""

    def __init__(self, shape: torch.Size, value: float, device: torch.device):
        def new():
            return torch.full(shape, value, dtype=torch.float64, device=device)

        self.size = shape[1]
        self.right, self.right_back, self.left, self.left_back = new(), new(), new(), new()
        self.rightward, self.leftward_back, self.gap = new(), new(), new()

    def at(self, width: int):
        """Where spans of a width are: in charts by left ends, and in charts by right ends."""
        return (slice(None), slice(self.size - width), width), (slice(None), slice(width, None), width)

    def ways(self, width: int):
        """What a gap, a right and a left span of a width are summed from: two charts, the second read backwards."""
        starts, ends = slice(self.size - width), slice(width, None)
        shorter, longer = slice(width), slice(1, width + 1)
        return (
            (self.right[:, starts, shorter], self.left_back[:, ends, shorter]),
            (self.rightward[:, starts, longer], self.right_back[:, ends, shorter]),
            (self.left[:, starts, shorter], self.leftward_back[:, ends, longer]),
        )

    def terms(self, width: int, single_root: bool):
        gap, right, left = (xs + ys.flip(2) for xs, ys in self.ways(width))
        if single_root:
            gap[:, 0, 1:] = -torch.inf
        return gap, right, left


def _inside(scores: Tensor, lengths: Tensor, single_root: bool, summed) -> _Charts:
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


def _wholes(charts: _Charts, lengths: Tensor) -> Tensor:  # [batch]
    return charts.right[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)


def _outside(charts: _Charts, totals: Tensor, lengths: Tensor, single_root: bool, shared) -> Tensor:
    """Arcs [batch, n + 1, n + 1]: the mass of the whole is dealt to the spans that it is put together from."""
    masses = _Charts(charts.right.shape, 0.0, totals.device)
    masses.right[:, 0].scatter_(1, lengths.unsqueeze(1), (totals > -torch.inf).double().unsqueeze(1))
    arcs = torch.zeros_like(charts.right)
    for width in range(charts.size - 1, 0, -1):
        by_left, by_right = charts.at(width)
        (to_gap, to_right, to_left), terms = masses.ways(width), charts.terms(width, single_root)
        right = masses.right[by_left] + masses.right_back[by_right]
        _deal_(to_right, shared(right, charts.right[by_left], terms[1]))
        left = masses.left[by_left] + masses.left_back[by_right]
        _deal_(to_left, shared(left, charts.left[by_left], terms[2]))
        rightward, leftward = masses.rightward[by_left], masses.leftward_back[by_right]
        _deal_(to_gap, shared(rightward + leftward, charts.gap[by_left], terms[0]))
        arcs.diagonal(-width, 1, 2).copy_(rightward)
        arcs.diagonal(width, 1, 2).copy_(leftward)
    return arcs


def _deal_(ways: tuple[Tensor, Tensor], shares: Tensor):
    xs, ys = ways
    xs += shares
    ys += shares.flip(2)


def _log_sum(terms: Tensor) -> Tensor:
    return terms.logsumexp(2)


def _log_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    total = torch.where(total == -torch.inf, 0.0, total)
    return mass.unsqueeze(2) * (terms - total.unsqueeze(2)).exp()


def _highest(terms: Tensor) -> Tensor:
    return terms.amax(2)


def _highest_share(mass: Tensor, total: Tensor, terms: Tensor) -> Tensor:
    return torch.zeros_like(terms).scatter_(2, terms.argmax(2, keepdim=True), mass.unsqueeze(2))
