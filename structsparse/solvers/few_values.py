"""Solvers of weights with few distinct values: fit the values (Tied), train through the rounding, or round once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.penalties import Discrete
from structsparse.solvers.composite import CALM, Composite
from structsparse.solvers.quasi_newton import by_entry, cut_and_ridge

ENOUGH = 1e-4  # share of the gain to first order that a step must bring
TRIES = 30  # of shorter steps
MOST = 256  # values


class Tied(Composite):
    """Minimises loss + penalty over v, where  W_i = v[group of i]: the groups are the entries, of all parameters that
    bear a penalty, that are equal in the beginning; zeros stay zero, and so does the sign of a value. Parameters
    without a penalty stay as they are.

    BFGS on the values, in units in which each counts as its entries do; a step is halved until the objective falls."""

    def __init__(self, params, lr: float = 1.0, tolerance: float = 1e-7) -> None:
        super().__init__(params, lr, tolerance)

    def attach(self, penalties, support=None) -> None:
        for penalty in penalties.values():
            if not by_entry(penalty):
                raise UserError(
                    f"Tied knows L1, ElasticNet, SquaredL2 and NoPenalty, got {type(penalty).__name__}; set reg=none"
                )
        super().attach(penalties, support)
        self.tied: list[Tensor] = list(self.penalties)
        self.groups: list[Tensor] | None = None

    def _begin(self, closure: Callable) -> None:
        self._group()
        super()._begin(closure)
        count = len(self.shared["values"])
        self.shared["inverse"] = torch.eye(count, dtype=torch.float64)

    def _group(self) -> None:
        weights = [parameter.detach().flatten().double() for parameter in self.tied]
        values = torch.cat([some[some != 0] for some in weights]).unique()
        if not 0 < len(values) <= MOST:
            raise UserError(
                f"Tied fits the values of weights that have few of them, from 1 to {MOST}, not {len(values)}"
            )
        self.shared["values"] = values
        self._find_groups()

    def _find_groups(self) -> None:
        """For each entry the place of its value, one past the last for zeros."""
        values, self.groups = self.shared["values"], []
        for parameter in self.tied:
            flat = parameter.detach().flatten().double()
            found = torch.searchsorted(values.to(parameter.dtype).double(), flat).clamp(max=len(values) - 1)
            self.groups.append(torch.where(flat == 0, len(values), found))
        sizes = sum(torch.bincount(group, minlength=len(values) + 1) for group in self.groups)
        self.sizes = sizes[:-1].double().clamp(min=1)

    def _step(self, closure: Callable) -> None:
        if self.groups is None:
            self._find_groups()  # after a checkpoint
        shared, unit = self.shared, self.sizes.sqrt()
        values, before = shared["values"], self._slope(self._gradients())
        pulled = before / unit
        way = -(shared["inverse"] @ pulled)
        if float(way @ pulled) >= 0:
            way = -pulled
        length = self.param_groups[0]["lr"]
        if "started" not in shared:
            length = min(length, 0.1 * float((values * unit).abs().max()) / max(float(way.abs().max()), 1e-300))
        for _ in range(TRIES):
            moved = values + length * way / unit
            moved = torch.where(moved * values > 0, moved, values / 2)
            self._put(moved)
            loss, gradients = self._evaluate(closure)
            if loss + self._penalty() < shared["objective"] + ENOUGH * float(before @ (moved - values)):
                self._remember((moved - values) * unit, (self._slope(gradients, moved) - before) / unit)
                shared.update(values=moved, started=True)
                self._accept(loss, gradients)
                return
            length /= 2
        self._put(values)
        self._stall()

    def _put(self, values: Tensor) -> None:
        known = torch.cat([values, values.new_zeros(1)])
        for parameter, group in zip(self.tied, self.groups, strict=True):
            parameter.copy_(known[group].view_as(parameter))

    def _slope(self, gradients: list[Tensor], values: Tensor | None = None) -> Tensor:
        """Of loss and penalty in the values."""
        values = self.shared["values"] if values is None else values
        total, own = torch.zeros(len(values) + 1, dtype=torch.float64), dict(zip(self.members, gradients, strict=True))
        for parameter, group in zip(self.tied, self.groups, strict=True):
            many = torch.bincount(group, minlength=len(total))[:-1]
            cut, ridge = cut_and_ridge(self.penalties[parameter])
            total.index_add_(0, group, own[parameter].flatten().double())
            total[:-1] += many * (cut * values.sign() + ridge * values)
        return total[:-1]

    def _remember(self, s: Tensor, y: Tensor) -> None:
        """BFGS of the inverse."""
        product = float(s @ y)
        if product <= 1e-12 * float(s.norm() * y.norm()):
            return
        if "started" not in self.shared:
            self.shared["inverse"] *= product / float(y @ y)
        H, whole = self.shared["inverse"], torch.eye(len(s), dtype=torch.float64)
        left = whole - torch.outer(s, y) / product
        self.shared["inverse"] = left @ H @ left.T + torch.outer(s, s) / product


class StraightThrough(Composite):
    """V <- soft threshold of  V - step * gradient(W)  at lasso * step,  W <- nearest value to V:  a control.

    W are the parameters, under Discrete penalties, V stays inside. The step is lr / curvature^exponent, entry by entry.
    Nothing makes the loss fall, and nothing converges: choose the best model on dev. The losses may be of
    mini-batches."""

    needs_full_batch = False

    def __init__(self, params, lr: float = 0.03, exponent: float = 0.8, lasso: float = 0.0) -> None:
        super().__init__(params, lr, tolerance=0.0)
        if not (lasso >= 0 and math.isfinite(lasso)):
            raise UserError(f"solver.lasso is {lasso}; it must be zero or positive")
        self.exponent, self.lasso = exponent, lasso

    @property
    def converged(self) -> bool:
        return False

    def attach(self, penalties, support=None) -> None:
        for penalty in penalties.values():
            if not isinstance(penalty, Discrete):
                raise UserError(
                    f"StraightThrough rounds to the values of a Discrete penalty (reg=discrete reg.admm=null), got "
                    f"{type(penalty).__name__}"
                )
        super().attach(penalties, support)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        if closure is None:
            raise UserError("StraightThrough evaluates the loss within a step: call step(closure)")
        self._mask()
        for parameter, penalty in self.penalties.items():
            if "latent" not in self.state[parameter]:
                self.state[parameter]["latent"] = parameter.clone()
                penalty.prox_(parameter, 0.0)
        loss, gradients = self._evaluate(closure)
        for parameter, gradient in zip(self.members, gradients, strict=True):
            self._move_one(parameter, gradient)
        return loss

    def _move_one(self, parameter: Tensor, gradient: Tensor) -> None:
        curvature = self._curvature(parameter)
        steps = self.param_groups[0]["lr"] * (1.0 if curvature is None else curvature**-self.exponent)
        penalty = self.penalties.get(parameter)
        if penalty is None:
            parameter.sub_(gradient * steps)
            return
        latent = self.state[parameter]["latent"]
        latent.sub_(gradient * steps)
        prox.soft_threshold_(latent, self.lasso, steps)
        penalty.prox_(parameter.copy_(latent), steps)


class ProxOnly(Composite):
    """W <- prox of the penalty at W with a step of lr, and nothing more: what rounds a trained model to the values of
    a Discrete penalty (the QT of Suzuki and Nagata, 2013), or cuts it by the threshold of another."""

    needs_full_batch = False

    def __init__(self, params, lr: float = 1.0) -> None:
        super().__init__(params, lr, tolerance=0.0)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        if not self.converged:
            self._mask()
            for parameter, penalty in self.penalties.items():
                penalty.prox_(parameter, self.param_groups[0]["lr"])
            self.shared["calm"] = CALM
        return None if closure is None else self._evaluate(closure, slopes=False)[0]
