"""Wrappers that add a nonnegativity constraint or a ridge (squares) to any penalty."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups import Cover, Forest, Partition
from structsparse.groups.layouts import TableLayout
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Dual, Penalty, checked
from structsparse.prox import Steps
from structsparse.prox.entries import shrink_and_shorten_
from structsparse.prox.steps import is_scalar


class _Around(Penalty):
    """Base of wrappers: a penalty that contains another one and shares the strength and groups of the inner penalty."""

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
    def groups(self) -> Partition | Forest | Cover | None:
        return self.penalty.groups

    @property
    def convex(self) -> bool:
        return self.penalty.convex

    @property
    def by_entry(self) -> bool:
        return self.penalty.by_entry

    def survivors(self, W: Tensor) -> Tensor:
        return self.penalty.survivors(W)

    def held(self, W: Tensor) -> Tensor | None:
        return self.penalty.held(W)

    def fit(self, layout: TableLayout) -> None:
        self.penalty.fit(layout)

    def for_chains(self, lengths: Tensor) -> None:
        self.penalty.for_chains(lengths)


class Nonnegative(_Around):
    """The inner penalty under the constraint that every entry of W is at least 0; infinity elsewhere."""

    def value(self, W: Tensor) -> Tensor:
        """The value of the inner penalty; infinity if an entry is negative."""
        return torch.where((W >= 0).all(), self.penalty.value(W), math.inf)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of the inner penalty under the constraint V >= 0, in place."""
        return self.penalty.nonnegative_prox_(W, steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The optimality gap of the inner penalty under the constraint W >= 0."""
        return self.penalty.nonnegative_gap(W, grad)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength of the inner penalty under the constraint W >= 0."""
        return self.penalty.nonnegative_critical(grad_at_zero)

    def conjugate(self, gradient: Tensor) -> Dual | None:
        """The dual of the inner penalty at a gradient, under the constraint W >= 0."""
        return self.penalty.nonnegative_conjugate(gradient)

    @property
    def ridge(self) -> float:
        return self.penalty.ridge

    @ridge.setter
    def ridge(self, value: float) -> None:
        self.penalty.ridge = value


class Ridged(_Around):
    """The inner penalty plus a ridge: ridge / 2 * sum W_i^2 over all entries, independent of the strength.

    The prox is that of the inner penalty at W / (1 + ridge * step), with steps of 1 / (1 / step + ridge)."""

    def __init__(self, penalty: Penalty, ridge: float):
        super().__init__(penalty)
        self.ridge = checked(ridge, f"the ridge of {type(penalty).__name__}")
        self.takes_steps = False  # whether the inner penalty is known to accept a step per entry

    def value(self, W: Tensor) -> Tensor:
        """The value of the inner penalty plus the ridge."""
        return self.penalty.value(W) + self.ridge / 2 * power_sum(W, 2)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of the inner penalty plus ridge, in place."""
        return self.penalty.prox_(W, self._shrink_(W, steps))

    @torch.no_grad()
    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        return self.penalty.nonnegative_prox_(W, self._shrink_(W, steps))

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The optimality gap of the inner penalty, where the gradient includes the ridge."""
        return self.penalty.gap(W, grad + self.ridge * W)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        return self.penalty.nonnegative_gap(W, grad + self.ridge * W)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.penalty.critical(grad_at_zero)

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.penalty.nonnegative_critical(grad_at_zero)

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor | None:
        """Mask of the penalised entries: all, as the ridge penalises each."""
        if self.ridge == 0:
            return self.penalty.held(W)
        return torch.ones_like(W, dtype=torch.bool) if self.convex else None

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        return self._conjugate(gradient, self.penalty.prox_) if self.ridge > 0 else self.penalty.conjugate(gradient)

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        if self.ridge > 0:
            return self._conjugate(gradient, self.penalty.nonnegative_prox_)
        return self.penalty.nonnegative_conjugate(gradient)

    def _conjugate(self, gradient: Tensor, prox_: Callable[[Tensor, Steps], Tensor]) -> Dual:
        """The dual at a gradient. With a ridge the conjugate at -gradient is finite.

        It is attained at the prox, with steps of 1 / ridge, of -gradient / ridge."""
        best = prox_(gradient / -self.ridge, 1 / self.ridge)
        pulled = -float((gradient * best).sum()) - self.ridge / 2 * float(best.square().sum())
        return Dual(1.0, pulled - float(self.penalty.value(best)))

    def for_chains(self, lengths: Tensor) -> None:
        raise UserError("a ridge does not count the weights that a collapsed one stands for; set model.collapse=false")

    def extra_repr(self) -> str:
        return f"ridge={self.ridge:g}"

    def _shrink_(self, W: Tensor, steps: Steps) -> Steps:
        """Apply the ridge's part of the prox to W; returns the shortened steps for the inner penalty."""
        if not is_scalar(steps) and not self.takes_steps:
            self.penalty.prox_(torch.zeros_like(W), steps)  # so that an error is raised before W is changed
            self.takes_steps = True
        return shrink_and_shorten_(W, self.ridge, steps)
