"""Penalties of one parameter: a value, and the prox of that very function.

A penalty knows nothing of data and never adds to a gradient: `prox_` follows the optimizer's step instead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from structsparse import prox
from structsparse.errors import UserError
from structsparse.groups import Partition, power_sum
from structsparse.prox import Steps

ROUNDS = 100  # of Newton towards a critical strength; it ends by itself within a dozen


class Penalty(nn.Module, ABC):
    """strength * Omega(W) for one parameter W. `groups` is None where Omega is a sum over entries.

    `strength` is a float64 scalar tensor, saved with the module; assign a number to set it.
    """

    def __init__(self, strength: float, groups: Partition | None = None):
        super().__init__()
        self.groups = groups
        self.register_buffer("_strength", torch.zeros((), dtype=torch.float64))
        self.strength = strength

    @property
    def strength(self) -> Tensor:
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        self._strength.fill_(_checked(value, f"the strength of {type(self).__name__}"))

    @abstractmethod
    def value(self, W: Tensor) -> Tensor:
        """strength * Omega(W), a scalar."""

    @abstractmethod
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """W <- argmin_V  value(V) + 1/2 sum (V - W)^2 / steps; steps is a number or one per entry."""

    @abstractmethod
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """How far -grad is from the subdifferential of the value at W: one number per group, or per row of W
        where there are no groups. Zero everywhere is optimality (free entries aside)."""

    @abstractmethod
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The smallest strength at which zero is optimal for all penalised entries; None if no strength is."""

    def survivors(self, W: Tensor) -> Tensor:
        """Which entries may live on once the penalty has selected: those that are not zero. Bool, the shape of W."""
        return W != 0

    def extra_repr(self) -> str:
        return f"strength={float(self.strength):g}"


class ElasticNet(Penalty):
    """strength * (mix * sum |W_i| + (1 - mix) / 2 * sum W_i^2)"""

    def __init__(self, strength: float, mix: float):
        super().__init__(strength)
        self.mix = _checked(mix, f"the mix of {type(self).__name__}", most=1)

    def value(self, W: Tensor) -> Tensor:
        absolute = self.mix * power_sum(W, 1) if self.mix > 0 else 0.0
        squares = (1 - self.mix) / 2 * power_sum(W, 2) if self.mix < 1 else 0.0
        return self.strength * (absolute + squares)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        if self.mix > 0:
            prox.soft_threshold_(W, self.strength * self.mix, steps)
        if self.mix < 1:
            prox.shrink_(W, self.strength * (1 - self.mix), steps)
        return W

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        ridge, cut = self.strength * (1 - self.mix), self.strength * self.mix
        return _row_norms(_past_signs(grad + ridge * W, W, cut))

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        if self.mix == 0:
            return None
        largest = grad_at_zero.abs().max() if grad_at_zero.numel() else grad_at_zero.new_zeros(())
        return largest.double() / self.mix


class L1(ElasticNet):
    """strength * sum |W_i|"""

    def __init__(self, strength: float):
        super().__init__(strength, mix=1.0)


class SquaredL2(ElasticNet):
    """strength / 2 * sum W_i^2: no strength makes anything zero, so there is no critical one."""

    def __init__(self, strength: float):
        super().__init__(strength, mix=0.0)


class NoPenalty(SquaredL2):
    """0"""

    def __init__(self, strength: float = 0.0):
        if strength != 0:
            raise UserError(f"NoPenalty has strength {strength}, expected 0; choose a penalty to have one")
        super().__init__(0.0)


class SparseGroupLasso(Penalty):
    """strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|), the last over the entries of the groups"""

    groups: Partition

    def __init__(self, groups: Partition, strength: float, mix: float):
        super().__init__(strength, groups)
        self.mix = _checked(mix, f"the mix of {type(self).__name__}", most=1)

    def value(self, W: Tensor) -> Tensor:
        omega = (1 - self.mix) * (self.groups.weight * self.groups.norms(W)).sum()
        if self.mix > 0:
            omega = omega + self.mix * power_sum(self._grouped(W), 1)
        return self.strength * omega

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        if self.mix == 0:
            return prox.group_shrink_(W, self.groups, self.strength, steps)
        strength, entry_strength = self.strength * (1 - self.mix), self.strength * self.mix
        return prox.sparse_group_shrink_(W, self.groups, strength, entry_strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        norms, reach = self.groups.norms(W), self.strength * (1 - self.mix) * self.groups.weight
        pull = torch.where(norms > 0, reach / norms, 0.0)
        rest = grad + self.groups.expand(pull, fill=0.0).to(W.dtype) * W
        distance = self.groups.norms(_past_signs(rest, W, self.strength * self.mix))
        return torch.where(norms > 0, distance, (distance - reach).clamp(min=0))

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The root, largest over groups, of  ||soft(grad_g, s * mix)|| = s * (1 - mix) * weight_g  in s.

        The difference of the two sides is convex and decreasing in s, so Newton from the left of the root never
        passes it; what is left of one group's root is left of the largest.
        """
        size, weight = grad_at_zero.abs().double(), (1 - self.mix) * self.groups.weight
        critical = size.new_zeros(())
        for _ in range(ROUNDS):
            rest = (size - self.mix * critical).clamp(min=0)
            norms = self.groups.norms(rest)
            slope = weight + self.mix * self.groups.sums(rest) / norms
            moves = torch.where((norms > 0) & (slope > 0), (norms - critical * weight) / slope, 0.0)
            move = torch.cat([moves, moves.new_zeros(1)]).max()
            if move <= torch.finfo(torch.float64).eps * critical:
                break
            critical = critical + move
        return critical

    def survivors(self, W: Tensor) -> Tensor:
        """The entries of living groups; with entries penalised as well (mix > 0), only those that are not zero."""
        alive = self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)
        return alive & ((W != 0) | (self.groups.ids < 0)) if self.mix > 0 else alive

    def _grouped(self, W: Tensor) -> Tensor:
        return torch.where(self.groups.ids >= 0, W, 0.0) if self.groups.free else W


class GroupLasso(SparseGroupLasso):
    """strength * sum_g weight_g ||W_g||"""

    def __init__(self, groups: Partition, strength: float):
        super().__init__(groups, strength, mix=0.0)


def _past_signs(grad: Tensor, W: Tensor, cut: Tensor) -> Tensor:
    """The least of grad + cut * sign(W), entry by entry, where the sign of zero is anything from -1 to 1."""
    return torch.where(W != 0, grad + cut * W.sign(), grad - torch.clamp(grad, -cut, cut))


def _row_norms(X: Tensor) -> Tensor:
    return torch.linalg.vector_norm(X.flatten(1), dim=1) if X.dim() > 1 else X.abs()


def _checked(value: float, what: str, most: float = math.inf) -> float:
    """The value as a float, if it is a finite number from 0 to `most`."""
    wanted = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is {value!r}, expected {wanted}") from error
    if not (0 <= number <= most and math.isfinite(number)):
        raise UserError(f"{what} is {value}, expected {wanted}")
    return number
