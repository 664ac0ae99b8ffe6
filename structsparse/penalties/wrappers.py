"""What composes with any penalty: a constraint, and squares."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from structsparse.groups import Partition
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, checked
from structsparse.prox import Steps
from structsparse.prox.entries import shrink_and_shorten_
from structsparse.prox.steps import is_scalar


class _Around(Penalty):
    """A penalty around another one, whose strength and groups are its own."""

    def __init__(self, penalty: Penalty):
        nn.Module.__init__(self)
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

    def survivors(self, W: Tensor) -> Tensor:
        return self.penalty.survivors(W)


class Nonnegative(_Around):
    """The penalty where every entry of W is at least 0, infinity elsewhere."""

    def value(self, W: Tensor) -> Tensor:
        return torch.where((W >= 0).all(), self.penalty.value(W), math.inf)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        return self.penalty.nonnegative_prox_(W, steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return self.penalty.nonnegative_gap(W, grad)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.penalty.nonnegative_critical(grad_at_zero)


class Ridged(_Around):
    """The penalty plus ridge / 2 * sum W_i^2 over all entries, whatever the strength.

    Its prox is that of the penalty at W / (1 + ridge * step), with a step of 1 / (1 / step + ridge)."""

    def __init__(self, penalty: Penalty, ridge: float):
        super().__init__(penalty)
        self.ridge = checked(ridge, f"the ridge of {type(penalty).__name__}")
        self.takes_steps = False  # one for each entry, as far as is known

    def value(self, W: Tensor) -> Tensor:
        return self.penalty.value(W) + self.ridge / 2 * power_sum(W, 2)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        return self.penalty.prox_(W, self._shrink_(W, steps))

    @torch.no_grad()
    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        return self.penalty.nonnegative_prox_(W, self._shrink_(W, steps))

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return self.penalty.gap(W, grad + self.ridge * W)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return self.penalty.nonnegative_gap(W, grad + self.ridge * W)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.penalty.critical(grad_at_zero)

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.penalty.nonnegative_critical(grad_at_zero)

    def extra_repr(self) -> str:
        return f"ridge={self.ridge:g}"

    def _shrink_(self, W: Tensor, steps: Steps) -> Steps:
        """Shrinks W; returns the steps of the penalty."""
        if not is_scalar(steps) and not self.takes_steps:
            self.penalty.prox_(torch.zeros_like(W), steps)  # before W is changed, if it refuses them
            self.takes_steps = True
        return shrink_and_shorten_(W, self.ridge, steps)


def unwrapped(penalty: Penalty) -> tuple[Penalty, float, bool]:
    """The penalty within, its ridge (0 without one), and whether weights are held at 0 or above."""
    ridge, nonnegative = 0.0, False
    while isinstance(penalty, _Around):
        ridge += penalty.ridge if isinstance(penalty, Ridged) else 0.0
        nonnegative = nonnegative or isinstance(penalty, Nonnegative)
        penalty = penalty.penalty
    return penalty, ridge, nonnegative
