"""Penalties of an order: of time along a dimension, or of size."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.penalties.base import Penalty, checked, checked_entry_weights, positive_, residual, row_norms
from structsparse.prox import Steps
from structsparse.prox.steps import refuse_entry_steps

ROUNDS = 100  # towards a critical strength; it ends by itself within a dozen


class Coupled(Penalty):
    """A sum in which entries depend on each other: `gap` is the norm, for each row, of what a proximal gradient step
    of length 1 changes there."""

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return row_norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return row_norms(residual(self.nonnegative_prox_, W, grad))


class FusedLasso(Coupled):
    """strength * ((1 - mix) * sum |W[t + 1] - W[t]| + mix * sum |W_i|), t along one dimension

    Neighbours become equal; with a mix above 0 they become zero as well, which no strength brings about without.
    """

    def __init__(self, strength: float, dimension: int = 0, mix: float = 0.0):
        super().__init__(strength)
        self.dimension = dimension
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def value(self, W: Tensor) -> Tensor:
        differences = self._checked(W).diff(dim=self.dimension).abs().sum(dtype=torch.float64)
        return self.strength * ((1 - self.mix) * differences + self.mix * W.abs().sum(dtype=torch.float64))

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The entries after the differences: their prox keeps an order that one step for all leaves as it is."""
        if self.mix > 0:
            refuse_entry_steps(steps, "FusedLasso with a mix above 0", "choose mix=0 or plain SGD")
        prox.smooth_(self._checked(W), self.dimension, self.strength * (1 - self.mix), steps)
        return prox.soft_threshold_(W, self.strength * self.mix, steps) if self.mix > 0 else W

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self._critical(grad_at_zero, signs=(1, -1))

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The positive part of the prox, and not the other way round: it keeps the order of neighbours."""
        return positive_(self.prox_(W, steps))

    @torch.no_grad()
    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self._critical(grad_at_zero, signs=(1,))

    def _critical(self, grad: Tensor, signs: tuple[int, ...]) -> Tensor | None:
        """The largest ratio of  |sum of grad|  to  mix * length + (1 - mix) * inner ends  over all intervals, which
        are what the penalty is made of. Each round (Dinkelbach's) finds the interval that a strength holds least, in
        linear time, and sets the strength to its ratio: that only grows."""
        if self.mix == 0:
            return None
        pull = -self._checked(grad).movedim(self.dimension, 0).double()[:, None].flatten(1)  # [time, chains]
        sums = torch.cat([pull.new_zeros(1, pull.shape[1]), pull.cumsum(0)])
        critical = sums.new_zeros(())
        for _ in range(ROUNDS if pull.numel() else 0):
            ratio = max(_weakest(sign * sums, self.mix, critical) for sign in signs)
            if not ratio > critical:
                break
            critical = ratio
        return critical

    def _checked(self, W: Tensor) -> Tensor:
        if not -W.dim() <= self.dimension < W.dim():
            raise UserError(f"FusedLasso is along dimension {self.dimension}, got a tensor {tuple(W.shape)}")
        return W

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dimension={self.dimension}, mix={self.mix:g}"


def _weakest(sums: Tensor, mix: float, strength: Tensor) -> Tensor:
    """Pull over penalty of the interval for which  pull - strength * penalty  is largest; sums [time + 1, chains]."""
    held = sums - strength * mix * torch.arange(len(sums), device=sums.device)[:, None]
    end = strength * (1 - mix)  # what an inner end costs
    starts, stops = held[:-1].clone(), held[1:].clone()
    starts[1:] += end
    stops[:-1] -= end
    least, start = starts.cummin(0)
    stop = int((stops - least).argmax())
    chain, stop = stop % sums.shape[1], stop // sums.shape[1]
    start = int(start[stop, chain])
    cost = mix * (stop + 1 - start) + (1 - mix) * ((start > 0) + (stop + 2 < len(sums)))
    return (sums[stop + 1, chain] - sums[start, chain]) / cost


class Sorted(Coupled):
    """strength * sum_i weights_i |W|_(i), the entries from the largest to the smallest, the weights never rising"""

    @abstractmethod
    def sorted_weights(self, W: Tensor) -> Tensor:
        """One weight for each entry of W, in float64."""

    def value(self, W: Tensor) -> Tensor:
        size = W.abs().flatten().sort(descending=True).values.double()
        return self.strength * (self.sorted_weights(W) * size).sum()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        return prox.sorted_shrink_(W, self.sorted_weights(W), self.strength, steps)

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The strength that holds the k largest entries together, for each k."""
        size = grad_at_zero.abs().flatten().double().sort(descending=True).values
        reach = self.sorted_weights(grad_at_zero).cumsum(0)
        held = torch.where(reach > 0, size.cumsum(0) / reach, 0.0)  # what has no weight has no say
        return torch.cat([held, held.new_zeros(1)]).max()


class SLOPE(Sorted):
    """strength * sum_i weights_i |W|_(i), |W|_(1) >= |W|_(2) >= ...: the sorted l1 norm

    The weights never rise: large entries are pulled most. Those of equal size stay so.
    """

    def __init__(self, strength: float, weights: Tensor):
        super().__init__(strength)
        weights = checked_entry_weights(weights, "the weight of SLOPE")
        rises = weights.diff() > 0 if weights.dim() == 1 else torch.ones(1)
        if weights.dim() != 1:
            raise UserError(f"the weights of SLOPE have shape {tuple(weights.shape)}, expected one dimension")
        if rises.any():
            i = int(rises.nonzero()[0])
            raise UserError(
                f"the weights of SLOPE rise from {weights[i]:g} at {i} to {weights[i + 1]:g}, "
                "expected the largest first and none above the one before"
            )
        self.register_buffer("weights", weights)

    def sorted_weights(self, W: Tensor) -> Tensor:
        if len(self.weights) != W.numel():
            raise UserError(f"SLOPE has {len(self.weights)} weights, expected one for each entry of {tuple(W.shape)}")
        return self.weights


class OSCAR(Sorted):
    """strength * (mix * sum |W_i| + (1 - mix) * sum_{i < j} max(|W_i|, |W_j|)): SLOPE with weights on a line

    The i-th largest of n entries, i from 1, is the larger one of n - i pairs. The pairs make entries equal in size.
    """

    def __init__(self, strength: float, mix: float):
        super().__init__(strength)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def sorted_weights(self, W: Tensor) -> Tensor:
        pairs = torch.arange(W.numel() - 1, -1, -1, dtype=torch.float64, device=W.device)
        return self.mix + (1 - self.mix) * pairs
