"""Penalties of one parameter: a value, and the prox of that very function.

A penalty knows nothing of data and never adds to a gradient: `prox_` follows the optimizer's step instead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups import Partition
from structsparse.groups.layouts import TableLayout
from structsparse.prox import Steps


class Penalty(nn.Module, ABC):
    """strength * Omega(W) for one parameter W. `groups` is None where Omega is a sum over entries.

    `strength` is a float64 scalar tensor, saved with the module; assign a number to set it.
    """

    convex = True
    takes: ClassVar[tuple[type | None, ...]] = (None,)  # forms of groups: None, Partition, Forest, Cover
    iterated = False  # whether a prox with a step per entry is iterated, up to `accuracy`
    accuracy = 0.0  # share of its value by which such a prox may err; 0: as little as rounding allows

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
        self._strength.fill_(checked(value, f"the strength of {type(self).__name__}"))

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

    def fit(self, layout: TableLayout) -> None:
        """Take what the penalty needs of the layout of its parameter's rows, such as how often each occurs."""

    def survivors(self, W: Tensor) -> Tensor:
        """Which entries may live on once the penalty has selected: those that are not zero. Bool, the shape of W."""
        return W != 0

    def nonnegative_prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox with the constraint V >= 0 added. For what does not fall as an entry grows away from zero, of
        either sign, it is the prox of the positive part."""
        return self.prox_(positive_(W), steps)

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The gap with that constraint: a zero held by it is pushed out by a negative gradient only."""
        return self.gap(W, torch.where(W > 0, grad, grad.clamp(max=0)))

    def nonnegative_critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return self.critical(grad_at_zero.clamp(max=0))

    def extra_repr(self) -> str:
        return f"strength={float(self.strength):g}"


def past_signs(grad: Tensor, W: Tensor, cut: Tensor) -> Tensor:
    """The least of grad + cut * sign(W), entry by entry, where the sign of zero is anything from -1 to 1."""
    return torch.where(W != 0, grad + cut * W.sign(), grad - torch.clamp(grad, -cut, cut))


@torch.no_grad()
def residual(prox_: Callable[[Tensor, Steps], Tensor], W: Tensor, grad: Tensor) -> Tensor:
    """What a proximal gradient step of length 1 changes: zero where W is stationary and nowhere else."""
    return W - prox_(W - grad, 1.0)


@torch.no_grad()
def positive_(W: Tensor) -> Tensor:
    """W <- max(W, 0), with plain zeros."""
    return W.clamp_(min=0).add_(0.0)


def row_norms(X: Tensor) -> Tensor:
    return torch.linalg.vector_norm(X.flatten(1), dim=1) if X.dim() > 1 else X.abs()


def checked(value: float, what: str, most: float = math.inf) -> float:
    """The value as a float, if it is a finite number from 0 to `most`."""
    wanted = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is {value!r}, expected {wanted}") from error
    if not (0 <= number <= most and math.isfinite(number)):
        raise UserError(f"{what} is {value}, expected {wanted}")
    return number


def checked_partition(groups: Partition, name: str) -> Partition:
    """The groups, if they are disjoint."""
    if not isinstance(groups, Partition):
        raise UserError(
            f"{name} is for disjoint groups (a Partition), got a {type(groups).__name__}; "
            "for a Forest take reg=tree_l2 or tree_linf, for a Cover reg=overlap"
        )
    return groups


def checked_positive(value: float, what: str) -> float:
    number = checked(value, what)
    if number == 0:
        raise UserError(f"{what} is {value}, expected a finite number above 0")
    return number


def takes_a_metric(penalty: Penalty, W: Tensor, curvature: Tensor) -> bool:
    """Penalties whose prox has no form in a diagonal metric refuse a step per entry."""
    try:
        penalty.prox_(torch.zeros_like(W), curvature.reciprocal())
    except UserError:
        return False
    return True


def checked_entry_weights(weights: Tensor | None, what: str) -> Tensor | None:
    """Weights of entries in float64, if each is a finite number of at least 0."""
    if weights is None:
        return None
    weights = torch.as_tensor(weights, dtype=torch.float64).detach().clone()
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise UserError(f"{what} at {where} is {weights[tuple(where)]}, expected a finite number of at least 0")
    return weights
