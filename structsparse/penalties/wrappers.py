"""Penalty wrappers, which add a nonnegativity constraint or a ridge (squares) to any penalty."""

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
    """Base of penalty wrappers: a penalty that contains an inner penalty and has the same strength and groups."""

    def __init__(self, penalty: Penalty):
        nn.Module.__init__(self)
        self.penalty = penalty

    @property
    def strength(self) -> Tensor:
        """Penalty wrapper: the strength of the inner penalty, a float64 scalar tensor."""
        return self.penalty.strength

    @strength.setter
    def strength(self, value: float) -> None:
        """Penalty wrapper: set the strength of the inner penalty."""
        self.penalty.strength = value

    @property
    def groups(self) -> Partition | Forest | Cover | None:
        """Penalty wrapper: the groups of the inner penalty; None if the inner penalty has no groups."""
        return self.penalty.groups

    @property
    def convex(self) -> bool:
        """Penalty wrapper: whether the inner penalty is convex."""
        return self.penalty.convex

    @property
    def by_entry(self) -> bool:
        """Penalty wrapper: whether the inner penalty is a sum of the same function of each entry."""
        return self.penalty.by_entry

    def survivors(self, W: Tensor) -> Tensor:
        """Penalty wrapper: mask of the entries that the inner penalty has selected."""
        return self.penalty.survivors(W)

    def held(self, W: Tensor) -> Tensor | None:
        """Penalty wrapper: mask of the entries that the inner penalty penalises; None if unknown."""
        return self.penalty.held(W)

    def fit(self, layout: TableLayout) -> None:
        """Penalty wrapper: let the inner penalty read the layout of the parameter's rows."""
        self.penalty.fit(layout)

    def for_chains(self, lengths: Tensor) -> None:
        """Penalty wrapper: let the inner penalty count each entry as `lengths` equal weights."""
        self.penalty.for_chains(lengths)


class Nonnegative(_Around):
    """Penalty wrapper: the inner penalty under the constraint that all weights are nonnegative.

    The value is infinite if an entry of W is negative."""

    def value(self, W: Tensor) -> Tensor:
        """Nonnegative penalty wrapper: the value of the inner penalty; infinity if an entry of W is negative."""
        return torch.where((W >= 0).all(), self.penalty.value(W), math.inf)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Nonnegative penalty wrapper: the prox of the inner penalty under the constraint W >= 0, in place."""
        return self.penalty.nonnegative_prox_(W, steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Nonnegative penalty wrapper: the optimality gap of the inner penalty under the constraint W >= 0."""
        return self.penalty.nonnegative_gap(W, grad)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Nonnegative penalty wrapper: the critical strength of the inner penalty under the constraint W >= 0."""
        return self.penalty.nonnegative_critical(grad_at_zero)

    def conjugate(self, gradient: Tensor) -> Dual | None:
        """Nonnegative penalty wrapper: the dual of the inner penalty at a gradient, under the constraint W >= 0."""
        return self.penalty.nonnegative_conjugate(gradient)

    @property
    def ridge(self) -> float:
        """Nonnegative penalty wrapper: the ridge coefficient of the inner penalty."""
        return self.penalty.ridge

    @ridge.setter
    def ridge(self, value: float) -> None:
        """Nonnegative penalty wrapper: set the ridge coefficient of the inner penalty."""
        self.penalty.ridge = value


class Ridged(_Around):
    """Penalty wrapper: the inner penalty plus a ridge, ridge / 2 * sum W_i^2 over all entries.

    The ridge does not depend on the strength. To compute the prox, W is divided by 1 + ridge * step. Then the prox of
    the inner penalty follows, with steps of 1 / (1 / step + ridge)."""

    def __init__(self, penalty: Penalty, ridge: float):
        super().__init__(penalty)
        self.ridge = checked(ridge, f"the ridge of {type(penalty).__name__}")
        self.takes_steps = False  # whether the inner penalty is known to accept a step per entry

    def value(self, W: Tensor) -> Tensor:
        """Ridge penalty wrapper: the value of the inner penalty plus the ridge."""
        return self.penalty.value(W) + self.ridge / 2 * power_sum(W, 2)

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Ridge penalty wrapper: the prox of the inner penalty plus ridge, in place."""
        return self.penalty.prox_(W, self._shrink_(W, steps))

    @torch.no_grad()
    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Ridge penalty wrapper: the prox of the inner penalty plus ridge under the constraint W >= 0, in place."""
        return self.penalty.nonnegative_prox_(W, self._shrink_(W, steps))

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Ridge penalty wrapper: the optimality gap of the inner penalty at the gradient of loss plus ridge."""
        return self.penalty.gap(W, grad + self.ridge * W)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Ridge penalty wrapper: the optimality gap at the gradient of loss plus ridge, under W >= 0."""
        return self.penalty.nonnegative_gap(W, grad + self.ridge * W)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Ridge penalty wrapper: the critical strength of the inner penalty, which a ridge does not change."""
        return self.penalty.critical(grad_at_zero)

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Ridge penalty wrapper: the critical strength of the inner penalty under the constraint W >= 0."""
        return self.penalty.nonnegative_critical(grad_at_zero)

    @torch.no_grad()
    def held(self, W: Tensor) -> Tensor | None:
        """Ridge penalty wrapper: mask of the penalised entries; all entries if the ridge is above 0.

        The result is None if the inner penalty is not convex."""
        if self.ridge == 0:
            return self.penalty.held(W)
        return torch.ones_like(W, dtype=torch.bool) if self.convex else None

    @torch.no_grad()
    def conjugate(self, gradient: Tensor) -> Dual | None:
        """Ridge penalty wrapper: the `Dual` of inner penalty plus ridge at a gradient: share and convex conjugate."""
        return self._conjugate(gradient, self.penalty.prox_) if self.ridge > 0 else self.penalty.conjugate(gradient)

    @torch.no_grad()
    def nonnegative_conjugate(self, gradient: Tensor) -> Dual | None:
        """Ridge penalty wrapper: the `Dual` of inner penalty plus ridge at a gradient, under the constraint W >= 0."""
        if self.ridge > 0:
            return self._conjugate(gradient, self.penalty.nonnegative_prox_)
        return self.penalty.nonnegative_conjugate(gradient)

    def _conjugate(self, gradient: Tensor, prox_: Callable[[Tensor, Steps], Tensor]) -> Dual:
        """Ridge penalty wrapper: the convex conjugate of (inner penalty + ridge) at -gradient, for a ridge above 0.

        The conjugate is the maximum over V of -<gradient, V> - penalty(V) - ridge / 2 * ||V||^2. The prox of the inner
        penalty at -gradient / ridge, with the step 1 / ridge, is the V of the maximum. The result is a `Dual`, with a
        share of 1: any gradient is feasible in the dual problem."""
        best = prox_(gradient / -self.ridge, 1 / self.ridge)
        pulled = -float((gradient * best).sum()) - self.ridge / 2 * float(best.square().sum())
        return Dual(1.0, pulled - float(self.penalty.value(best)))

    def for_chains(self, lengths: Tensor) -> None:
        """Ridge penalty wrapper: raise UserError: a ridge does not support entries that stand for several weights."""
        raise UserError("a ridge does not count the weights that a collapsed one stands for; set model.collapse=false")

    def extra_repr(self) -> str:
        """Ridge penalty wrapper: the ridge coefficient, shown when the module is printed."""
        return f"ridge={self.ridge:g}"

    def _shrink_(self, W: Tensor, steps: Steps) -> Steps:
        """Ridge penalty wrapper: apply the prox of the ridge to W in place.

        Returns the shortened steps for the prox of the inner penalty."""
        if not is_scalar(steps) and not self.takes_steps:
            self.penalty.prox_(torch.zeros_like(W), steps)  # test call on zeros: an error must come before W changes
            self.takes_steps = True
        return shrink_and_shorten_(W, self.ridge, steps)
