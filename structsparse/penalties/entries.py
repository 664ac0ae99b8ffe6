"""Penalties that are sums over entries: lasso (l1), elastic net, squared l2, no penalty."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Dual, Penalty, checked, checked_entry_weights, past_signs, row_norms
from structsparse.prox import Steps
from structsparse.prox.steps import thresholds


class ElasticNet(Penalty):
    """Elastic net: strength * (mix * sum weights_i |W_i| + (1 - mix) / 2 * sum weights_i W_i^2).

    `weights` broadcast to W; by default all are 1."""

    def __init__(self, strength: float, mix: float, weights: Tensor | None = None):
        super().__init__(strength)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)
        self.register_buffer("weights", checked_entry_weights(weights, f"the weight of {type(self).__name__}"))

    def value(self, W: Tensor) -> Tensor:
        """The value of the elastic net: weighted absolute values and squares, times the strength."""
        absolute = self.mix * self._power_sum(W, 1) if self.mix > 0 else 0.0
        squares = (1 - self.mix) / 2 * self._power_sum(W, 2) if self.mix < 1 else 0.0
        return self.strength * (absolute + squares)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of the elastic net, in place: soft thresholding, then division by 1 + a multiple of the step."""
        if self.weights is not None:  # a longer step and a larger weight have the same effect
            steps = thresholds(self._fitting(W), steps, W)
        if self.mix > 0:
            prox.soft_threshold_(W, self.strength * self.mix, steps)
        if self.mix < 1:
            prox.shrink_(W, self.strength * (1 - self.mix), steps)
        return W

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The norm of the smallest subgradient of loss plus elastic net, in each row."""
        ridge, cut = self.strength * (1 - self.mix), self.strength * self.mix
        if self.weights is not None:
            weights = self._fitting(W).to(W.dtype)
            ridge, cut = ridge * weights, cut * weights
        return row_norms(past_signs(grad + ridge * W, W, cut))

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength: the largest weighted absolute gradient, divided by mix; None without l1."""
        if self.mix == 0:
            return None
        size = grad_at_zero.abs()
        if self.weights is not None:
            weights = self._fitting(grad_at_zero)
            size = torch.where(weights > 0, size / weights, 0.0)  # entries with weight 0 are not penalised
        largest = size.max() if size.numel() else size.new_zeros(())
        return largest.double() / self.mix

    @property
    def selects_nothing(self) -> bool:
        """Whether there is no l1 part, so that no entry becomes zero."""
        return self.mix == 0

    def gradient(self, W: Tensor) -> Tensor:
        """The gradient of the squares with respect to W."""
        weights = 1.0 if self.weights is None else self.weights
        return (self.strength * weights * W).to(W)

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor:
        """Mask of the penalised entries: all except those with weight 0."""
        ones = torch.ones_like(W, dtype=torch.float64)
        return ones * (1.0 if self.weights is None else self.weights) > 0

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        """The dual of the elastic net at a gradient: the squares can balance any gradient; pure l1 is a norm."""
        return self._conjugate(gradient.abs()) if self.mix < 1 else super().conjugate(gradient)

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        """The dual of the elastic net at a gradient under the constraint W >= 0."""
        return self._conjugate(-gradient) if self.mix < 1 else super().nonnegative_conjugate(gradient)

    def _conjugate(self, size: Tensor) -> Dual | None:
        """The dual of the elastic net with squares, where `size` is how strongly the gradient pulls each entry."""
        if not float(self.strength) > 0:
            return None
        weights = 1.0 if self.weights is None else self.weights.double().clamp(min=torch.finfo(torch.float64).tiny)
        rest = (size - self.strength * self.mix * weights).clamp(min=0)
        return Dual(1.0, float((rest.square() / (2 * self.strength * (1 - self.mix) * weights)).sum()))

    @property
    def by_entry(self) -> bool:
        """Whether all entries have the same weight."""
        return self.weights is None

    def cut_and_ridge(self) -> tuple[float, float] | None:
        """The coefficients of |W_i| and of W_i^2 / 2; None if entries have weights."""
        if self.weights is not None:
            return None
        strength = float(self.strength)
        return strength * self.mix, strength * (1 - self.mix)

    def for_chains(self, lengths: Tensor) -> None:
        """Multiply the weight of each entry by the number of weights that collapsing has merged into it."""
        self.weights = lengths if self.weights is None else self.weights * lengths

    def _power_sum(self, W: Tensor, power: int) -> Tensor:
        """The weighted sum of |W_i|^power; power is 1 or 2."""
        if self.weights is None:
            return power_sum(W, power)
        return (self._fitting(W) * (W.abs() if power == 1 else W * W)).sum()

    def _fitting(self, W: Tensor) -> Tensor:
        """The penalty weights of the entries, checked to broadcast to W."""
        have, want = self.weights.shape, W.shape
        if len(have) > len(want) or any(h not in (1, w) for h, w in zip(reversed(have), reversed(want), strict=False)):
            raise UserError(f"{type(self).__name__} has weights {tuple(have)}, which do not fit a tensor {tuple(want)}")
        return self.weights


class L1(ElasticNet):
    """Lasso: strength * sum weights_i |W_i|."""

    def __init__(self, strength: float, weights: Tensor | None = None):
        super().__init__(strength, mix=1.0, weights=weights)


class SquaredL2(ElasticNet):
    """Squared l2 penalty (ridge): strength / 2 * sum weights_i W_i^2. No strength makes an entry zero, so none is
    critical."""

    def __init__(self, strength: float, weights: Tensor | None = None):
        super().__init__(strength, mix=0.0, weights=weights)


class NoPenalty(SquaredL2):
    """The penalty that is zero everywhere."""

    binds_all = is_null = True

    def __init__(self, strength: float = 0.0):
        if strength != 0:
            raise UserError(f"NoPenalty has strength {strength}, expected 0; choose another reg to have one")
        super().__init__(0.0)

    def value(self, W: Tensor) -> Tensor:
        """Zero, as a differentiable scalar."""
        return W.flatten()[:0].double().sum()  # differentiable, and no value is read

    def for_chains(self, lengths: Tensor) -> None:
        """Do nothing: without a penalty, collapsed weights need not be counted."""
