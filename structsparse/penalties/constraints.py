"""Constraints that compose with a penalty."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from structsparse.groups import Partition
from structsparse.penalties.base import Penalty
from structsparse.prox import Steps


class Nonnegative(Penalty):
    """The penalty where every entry of W is at least 0, infinity elsewhere."""

    def __init__(self, penalty: Penalty):
        nn.Module.__init__(self)  # the strength and the groups are those of the penalty
        self.penalty = penalty

    @property
    def strength(self) -> Tensor:
        return self.penalty.strength

    @strength.setter
    def strength(self, value: float) -> None:
        self.penalty.strength = value

    @property
    def groups(self) -> Partition | None:
        return self.penalty.groups

    @property
    def convex(self) -> bool:
        return self.penalty.convex

    def value(self, W: Tensor) -> Tensor:
        return torch.where((W >= 0).all(), self.penalty.value(W), math.inf)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        return self.penalty.nonnegative_prox_(W, steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return self.penalty.nonnegative_gap(W, grad)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.penalty.nonnegative_critical(grad_at_zero)

    def survivors(self, W: Tensor) -> Tensor:
        return self.penalty.survivors(W)
