"""Penalties that are sums over single entries: lasso (l1), elastic net, squared l2 (ridge), no penalty."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Dual, Penalty, checked, checked_entry_weights, past_signs, row_norms
from structsparse.prox import Steps
from structsparse.prox.steps import thresholds


class ElasticNet(Penalty):
    """Elastic net penalty on entries: strength * (mix * sum weights_i |W_i| + (1 - mix) / 2 * sum weights_i W_i^2).

    W_i are the entries of the parameter. The penalty weights `weights` broadcast to W; by default all are 1."""

    def __init__(self, strength: float, mix: float, weights: Tensor | None = None):
        super().__init__(strength)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)
        self.register_buffer("weights", checked_entry_weights(weights, f"the weight of {type(self).__name__}"))

    @classmethod
    def mixed(cls, squares: float, sparse: float) -> Mapping[str, float] | None:
        """Elastic net penalty on entries: its options for given strengths of squares and of absolute values (`sparse`).

        The result is None for subclasses, which have only one of the two parts."""
        return {"strength": squares + sparse, "mix": sparse / (squares + sparse)} if cls is ElasticNet else None

    def value(self, W: Tensor) -> Tensor:
        """Elastic net penalty on entries: the value, strength times weighted absolute values and squares."""
        absolute = self.mix * self._power_sum(W, 1) if self.mix > 0 else 0.0
        squares = (1 - self.mix) / 2 * self._power_sum(W, 2) if self.mix < 1 else 0.0
        return self.strength * (absolute + squares)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Elastic net penalty on entries: the prox, in place: soft thresholding, then division.

        Soft thresholding is the prox of the absolute values, division the prox of the squares."""
        if self.weights is not None:  # the prox depends only on the product of penalty weight and step
            steps = thresholds(self._fitting(W), steps, W)
        if self.mix > 0:
            prox.soft_threshold_(W, self.strength * self.mix, steps)
        if self.mix < 1:
            prox.shrink_(W, self.strength * (1 - self.mix), steps)
        return W

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Elastic net penalty on entries: norm of the smallest subgradient of loss plus penalty in each row.

        `grad` is the gradient of the loss at W."""
        ridge, cut = self.strength * (1 - self.mix), self.strength * self.mix
        if self.weights is not None:
            weights = self._fitting(W).to(W.dtype)
            ridge, cut = ridge * weights, cut * weights
        return row_norms(past_signs(grad + ridge * W, W, cut))

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Elastic net penalty on entries: critical strength; None if only squares are penalised (mix = 0).

        It is the maximum of |gradient| / (mix * penalty weight) over all entries. `grad_at_zero` is the gradient of the
        loss at W = 0."""
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
        """Elastic net penalty on entries: whether mix is 0, so that there is no l1 part and no entry becomes zero."""
        return self.mix == 0

    def gradient(self, W: Tensor) -> Tensor:
        """Elastic net penalty on entries: the gradient with respect to W, for mix = 0 (squares only)."""
        weights = 1.0 if self.weights is None else self.weights
        return (self.strength * weights * W).to(W)

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor:
        """Elastic net penalty on entries: mask of the penalised entries, whose penalty weight is positive."""
        ones = torch.ones_like(W, dtype=torch.float64)
        return ones * (1.0 if self.weights is None else self.weights) > 0

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        """Elastic net penalty on entries: the dual at a gradient of the loss, see `base.Dual`; None if unknown."""
        return self._conjugate(gradient.abs()) if self.mix < 1 else super().conjugate(gradient)

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        """Elastic net penalty on entries: the dual at a gradient of the loss, under the constraint W >= 0."""
        return self._conjugate(-gradient) if self.mix < 1 else super().nonnegative_conjugate(gradient)

    def _conjugate(self, size: Tensor) -> Dual | None:
        """Elastic net penalty on entries with squares: the dual at a gradient of the loss; None for strength 0.

        `size` is |gradient| for each entry, or -gradient under the constraint W >= 0."""
        if not float(self.strength) > 0:
            return None
        weights = 1.0 if self.weights is None else self.weights.double().clamp(min=torch.finfo(torch.float64).tiny)
        rest = (size - self.strength * self.mix * weights).clamp(min=0)
        return Dual(1.0, float((rest.square() / (2 * self.strength * (1 - self.mix) * weights)).sum()))

    @property
    def by_entry(self) -> bool:
        """Elastic net penalty on entries: whether all entries have the same penalty weight."""
        return self.weights is None

    def cut_and_ridge(self) -> tuple[float, float] | None:
        """Elastic net penalty on entries: coefficients of |W_i| and W_i^2 / 2; None if entries have penalty weights."""
        if self.weights is not None:
            return None
        strength = float(self.strength)
        return strength * self.mix, strength * (1 - self.mix)

    def for_chains(self, lengths: Tensor) -> None:
        """Elastic net penalty on entries: multiply the penalty weight of each entry by `lengths`.

        Each entry stands for `lengths` equal weights, which model.collapse has merged."""
        self.weights = lengths if self.weights is None else self.weights * lengths

    def _power_sum(self, W: Tensor, power: int) -> Tensor:
        """Elastic net penalty on entries: the weighted sum of |W_i|^power, where power is 1 or 2."""
        if self.weights is None:
            return power_sum(W, power)
        return (self._fitting(W) * (W.abs() if power == 1 else W * W)).sum()

    def _fitting(self, W: Tensor) -> Tensor:
        """Elastic net penalty on entries: the penalty weights of the entries, checked to broadcast to W."""
        have, want = self.weights.shape, W.shape
        if len(have) > len(want) or any(h not in (1, w) for h, w in zip(reversed(have), reversed(want), strict=False)):
            raise UserError(f"{type(self).__name__} has weights {tuple(have)}, which do not fit a tensor {tuple(want)}")
        return self.weights


class L1(ElasticNet):
    """Lasso (l1) penalty on entries: strength * sum weights_i |W_i|, with penalty weights of 1 by default."""

    def __init__(self, strength: float, weights: Tensor | None = None):
        super().__init__(strength, mix=1.0, weights=weights)


class SquaredL2(ElasticNet):
    """Squared l2 penalty (ridge) on entries: strength / 2 * sum weights_i W_i^2, with penalty weights of 1 by default.

    No strength makes an entry zero, so there is no critical strength."""

    def __init__(self, strength: float, weights: Tensor | None = None):
        super().__init__(strength, mix=0.0, weights=weights)


class NoPenalty(SquaredL2):
    """The penalty that is zero for all entries."""

    binds_all = is_null = True

    def __init__(self, strength: float = 0.0):
        if strength != 0:
            raise UserError(f"NoPenalty has strength {strength}, expected 0; choose another reg to have one")
        super().__init__(0.0)

    def value(self, W: Tensor) -> Tensor:
        """Value of no penalty on the entries: zero, as a differentiable scalar."""
        return W.flatten()[:0].double().sum()  # an empty sum, so that autograd can differentiate the result

    def for_chains(self, lengths: Tensor) -> None:
        """No penalty on the entries: do nothing, as merged weights need not be counted."""
