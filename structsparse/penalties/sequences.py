"""Penalties of entries in a sequence: fused lasso (total variation) and sorted l1 norms (SLOPE, OSCAR)."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.penalties.base import Penalty, checked, checked_entry_weights, positive_, residual, row_norms
from structsparse.prox import Steps
from structsparse.prox.steps import refuse_entry_steps

ROUNDS = 100  # maximum number of iterations of Dinkelbach's method; usually fewer than 12 are needed


class Coupled(Penalty):
    """Base of sequence penalties (fused lasso, sorted l1), which couple entries without groups."""

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Sequence penalty (fused lasso, sorted l1): norm of the proximal gradient residual in each row of W."""
        return row_norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Sequence penalty (fused lasso, sorted l1): norm of the proximal gradient residual per row, under W >= 0."""
        return row_norms(residual(self.nonnegative_prox_, W, grad))


class FusedLasso(Coupled):
    """Fused lasso penalty on sequences: absolute differences of neighbours (total variation) plus l1 norm.

    The value is strength * ((1 - mix) * sum |W[t + 1] - W[t]| + mix * sum |W_i|). The position t runs along one
    dimension of W. The differences make neighbours equal. The l1 norm makes entries zero; with mix = 0 no strength
    makes all entries zero."""

    def __init__(self, strength: float, dimension: int = 0, mix: float = 0.0):
        super().__init__(strength)
        self.dimension = dimension
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def value(self, W: Tensor) -> Tensor:
        """Fused lasso penalty on sequences: the value, strength times differences of neighbours plus l1 norm."""
        differences = self._checked(W).diff(dim=self.dimension).abs().sum(dtype=torch.float64)
        return self.strength * ((1 - self.mix) * differences + self.mix * W.abs().sum(dtype=torch.float64))

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Fused lasso penalty on sequences: the prox of the differences, then soft thresholding, in place.

        The composition is exact. With an l1 norm (mix > 0), all entries must have the same step."""
        if self.mix > 0:
            refuse_entry_steps(steps, "FusedLasso with a mix above 0", "choose mix=0 or plain SGD")
        prox.smooth_(self._checked(W), self.dimension, self.strength * (1 - self.mix), steps)
        return prox.soft_threshold_(W, self.strength * self.mix, steps) if self.mix > 0 else W

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Fused lasso penalty on sequences: the critical strength; None without an l1 norm (mix = 0)."""
        return self._critical(grad_at_zero, signs=(1, -1))

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Fused lasso penalty on sequences: the prox under W >= 0, which is the positive part of the prox, in place."""
        return positive_(self.prox_(W, steps))

    @torch.no_grad()
    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Fused lasso penalty on sequences: the critical strength under the constraint W >= 0."""
        return self._critical(grad_at_zero, signs=(1,))

    def _critical(self, grad: Tensor, signs: tuple[int, ...]) -> Tensor | None:
        """Fused lasso penalty on sequences: the critical strength, the maximum of a ratio over all intervals.

        The ratio of an interval of positions is |sum of grad| / (mix * length + (1 - mix) * inner ends).
        - mix: the share of the l1 norm in the penalty.
        - inner ends: how many of the two ends of the interval lie inside the sequence.
        - `grad`: the gradient of the loss at zero.
        - `signs`: the allowed signs of the sum of -grad, (1,) for W >= 0, else (1, -1)."""
        if self.mix == 0:
            return None
        pull = -self._checked(grad).movedim(self.dimension, 0).double()[:, None].flatten(1)  # [positions, sequences]
        sums = torch.cat([pull.new_zeros(1, pull.shape[1]), pull.cumsum(0)])
        critical = sums.new_zeros(())
        for _ in range(ROUNDS if pull.numel() else 0):
            ratio = max(_weakest(sign * sums, self.mix, critical) for sign in signs)
            if not ratio > critical:
                break
            critical = ratio
        return critical

    def _checked(self, W: Tensor) -> Tensor:
        """Fused lasso penalty on sequences: W, checked to have the dimension along which the penalty runs."""
        if not -W.dim() <= self.dimension < W.dim():
            raise UserError(f"FusedLasso is along dimension {self.dimension}, got a tensor {tuple(W.shape)}")
        return W

    def extra_repr(self) -> str:
        """Fused lasso penalty on sequences: strength, dimension and mix, shown when the module is printed."""
        return f"{super().extra_repr()}, dimension={self.dimension}, mix={self.mix:g}"


def _weakest(sums: Tensor, mix: float, strength: Tensor) -> Tensor:
    """Fused lasso penalty on sequences: one iteration of Dinkelbach's method for the critical strength.

    Returns the ratio pull / cost of the interval with the largest pull - strength * cost.
    - Pull: minus the sum of the gradients of the loss over the interval.
    - Cost: mix * length + (1 - mix) * (number of ends inside the sequence).
    - mix: the share of the l1 norm in the penalty.
    - `sums`: cumulative sums of the pull, of shape [positions + 1, sequences]."""
    held = sums - strength * mix * torch.arange(len(sums), device=sums.device)[:, None]
    end = strength * (1 - mix)  # penalty of each interval end that lies inside the sequence
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
    """Base of sorted l1 penalties, on entries as a sequence from the largest to the smallest.

    The value is strength * sum_i weights_i |W|_(i). |W|_(i) is the i-th largest absolute value. The factors weights_i
    do not increase with i."""

    @abstractmethod
    def sorted_weights(self, W: Tensor) -> Tensor:
        """Sorted l1 penalty: the factor of each rank in the sequence of sorted entries (float64 tensor [entries]).

        The first factor belongs to the entry of W with the largest absolute value."""

    def value(self, W: Tensor) -> Tensor:
        """Sorted l1 penalty: the value, strength times a weighted sum of the sequence of sorted absolute entries."""
        size = W.abs().flatten().sort(descending=True).values.double()
        return self.strength * (self.sorted_weights(W) * size).sum()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Sorted l1 penalty: the prox, in place, on the sequence of sorted entries."""
        return prox.sorted_shrink_(W, self.sorted_weights(W), self.strength, steps)

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Sorted l1 penalty on a sequence of sorted entries: the critical strength.

        It is the maximum over k of (sum of the k largest absolute gradients) / (sum of the k largest penalty factors).
        """
        size = grad_at_zero.abs().flatten().double().sort(descending=True).values
        reach = self.sorted_weights(grad_at_zero).cumsum(0)
        held = torch.where(reach > 0, size.cumsum(0) / reach, 0.0)  # the sum of the first weights may be 0
        return torch.cat([held, held.new_zeros(1)]).max()


class SLOPE(Sorted):
    """SLOPE, a sorted l1 penalty on the sequence of absolute entries in descending order.

    The value is strength * sum_i weights_i |W|_(i), where |W|_(1) >= |W|_(2) >= ... The factors weights_i do not
    increase with i. The largest entries are shrunk most, and entries of equal size stay equal in size."""

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
        """SLOPE penalty: the given factors of the ranks in the sorted sequence, checked to be one per entry of W."""
        if len(self.weights) != W.numel():
            raise UserError(f"SLOPE has {len(self.weights)} weights, expected one for each entry of {tuple(W.shape)}")
        return self.weights


class OSCAR(Sorted):
    """OSCAR, a sorted l1 penalty on the sequence of sorted entries, with linearly falling factors.

    The value is strength * (mix * sum |W_i| + (1 - mix) * sum_{i < j} max(|W_i|, |W_j|)). The sum over pairs makes
    entries equal in size."""

    def __init__(self, strength: float, mix: float):
        super().__init__(strength)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def sorted_weights(self, W: Tensor) -> Tensor:
        """OSCAR penalty: the factors of the ranks in the sorted sequence, mix + (1 - mix) * (n - i) for rank i of n."""
        pairs = torch.arange(W.numel() - 1, -1, -1, dtype=torch.float64, device=W.device)
        return self.mix + (1 - self.mix) * pairs
