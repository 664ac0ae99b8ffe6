"""Sums over entries."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse import prox
from structsparse.errors import UserError
from structsparse.memory import power_sum
from structsparse.penalties.base import Penalty, checked, past_signs, row_norms
from structsparse.prox import Steps


class ElasticNet(Penalty):
    """strength * (mix * sum |W_i| + (1 - mix) / 2 * sum W_i^2)"""

    def __init__(self, strength: float, mix: float):
        super().__init__(strength)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

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
        return row_norms(past_signs(grad + ridge * W, W, cut))

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
