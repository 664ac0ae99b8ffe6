"""Penalties that depend on an order: fused lasso along a dimension, SLOPE and OSCAR by size."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.penalties.base import Penalty, checked, checked_entry_weights, positive_, residual, row_norms
from structsparse.prox import Steps
from structsparse.prox.steps import refuse_entry_steps

ROUNDS = 100  # in the search for a critical strength, at most; a dozen are enough


class Coupled(Penalty):
    """Base of penalties that couple entries: `gap` is the norm of the change by a proximal gradient step of length 1,
    for each row."""

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return row_norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return row_norms(residual(self.nonnegative_prox_, W, grad))


class FusedLasso(Coupled):
    """Fused lasso: strength * ((1 - mix) * sum |W[t + 1] - W[t]| + mix * sum |W_i|), t along one dimension.

    Neighbours become equal. With mix = 0 no strength makes all of them zero.
    """

    def __init__(self, strength: float, dimension: int = 0, mix: float = 0.0):
        super().__init__(strength)
        self.dimension = dimension
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def value(self, W: Tensor) -> Tensor:
        differences = self._checked(W).diff(dim=self.dimension).abs().sum(dtype=torch.float64)
        return self.strength * ((1 - self.mix) * differences + self.mix * W.abs().sum(dtype=torch.float64))

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of the entries follows that of the differences, which is exact for one step for all entries."""
        if self.mix > 0:
            refuse_entry_steps(steps, "FusedLasso with a mix above 0", "choose mix=0 or plain SGD")
        prox.smooth_(self._checked(W), self.dimension, self.strength * (1 - self.mix), steps)
        return prox.soft_threshold_(W, self.strength * self.mix, steps) if self.mix > 0 else W

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self._critical(grad_at_zero, signs=(1, -1))

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The positive part of the prox (not the prox of the positive part), as it keeps the order of neighbours."""
        return positive_(self.prox_(W, steps))

    @torch.no_grad()
    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self._critical(grad_at_zero, signs=(1,))

    def _critical(self, grad: Tensor, signs: tuple[int, ...]) -> Tensor | None:
        """The largest ratio of  |sum of grad|  to  mix * length + (1 - mix) * inner ends  over all intervals, of whose
        indicators the penalty's unit ball is made. Each round (Dinkelbach's) finds, in linear time, the interval with
        the largest excess at the present strength, and sets the strength to its ratio, which only grows."""
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
        """W, if it has the dimension."""
        if not -W.dim() <= self.dimension < W.dim():
            raise UserError(f"FusedLasso is along dimension {self.dimension}, got a tensor {tuple(W.shape)}")
        return W

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dimension={self.dimension}, mix={self.mix:g}"


def _weakest(sums: Tensor, mix: float, strength: Tensor) -> Tensor:
    """The ratio pull / penalty of the interval with the largest  pull - strength * penalty; sums [time + 1, chains]."""
    held = sums - strength * mix * torch.arange(len(sums), device=sums.device)[:, None]
    end = strength * (1 - mix)  # the cost of an inner end
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
    """Base of sorted l1 norms: strength * sum_i weights_i |W|_(i), entries from the largest to the smallest, weights
    never rising."""

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
        """The largest, over k, of the strengths that hold the k largest entries together."""
        size = grad_at_zero.abs().flatten().double().sort(descending=True).values
        reach = self.sorted_weights(grad_at_zero).cumsum(0)
        held = torch.where(reach > 0, size.cumsum(0) / reach, 0.0)  # entries without weight do not count
        return torch.cat([held, held.new_zeros(1)]).max()


class SLOPE(Sorted):
    """SLOPE, the sorted l1 norm: strength * sum_i weights_i |W|_(i), |W|_(1) >= |W|_(2) >= ...

    The weights never rise, so large entries are shrunk most. Entries of equal size stay equal.
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
                "expected the largest first"
            )
        self.register_buffer("weights", weights)

    def sorted_weights(self, W: Tensor) -> Tensor:
        if len(self.weights) != W.numel():
            raise UserError(f"SLOPE has {len(self.weights)} weights, expected one for each entry of {tuple(W.shape)}")
        return self.weights


class OSCAR(Sorted):
    """OSCAR: strength * (mix * sum |W_i| + (1 - mix) * sum_{i < j} max(|W_i|, |W_j|)), SLOPE with linear weights.

    The i-th largest of n entries, i from 1, is the larger one of n - i pairs. The pairs make entries equal in size.
    """

    def __init__(self, strength: float, mix: float):
        super().__init__(strength)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def sorted_weights(self, W: Tensor) -> Tensor:
        pairs = torch.arange(W.numel() - 1, -1, -1, dtype=torch.float64, device=W.device)
        return self.mix + (1 - self.mix) * pairs
