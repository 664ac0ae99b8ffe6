"""Solvers for weights with few distinct values: `Tied`, `StraightThrough` and `ProxOnly`.

- `Tied` optimises the values of weights that are already rounded.
- `StraightThrough` rounds the weights in every training step.
- `ProxOnly` rounds trained weights once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.solvers.composite import CALM, Composite
from structsparse.solvers.quasi_newton import by_entry, cut_and_ridge

ENOUGH = 1e-4  # line search: smallest allowed ratio of the achieved to the predicted decrease of the objective
TRIES = 30  # line search: largest number of halvings of the step length
MOST = 256  # largest number of distinct weight values


class Tied(Composite):
    """Solver for tied weights with few values: weights that are equal at the start stay equal.

    Only the few distinct values change, so as to minimise loss plus penalty. Zeros stay zero, values keep their signs,
    and parameters without a penalty do not change. The method is BFGS over the values with a backtracking line search.
    """

    def __init__(self, params, lr: float = 1.0, tolerance: float = 1e-7) -> None:
        super().__init__(params, lr, tolerance)

    def attach(self, penalties, support=None) -> None:
        """Set the penalties of the solver for few values (tied weights): L1, elastic net, squared L2 norm or none."""
        for penalty in penalties.values():
            if not by_entry(penalty):
                raise UserError(
                    "Tied knows L1, ElasticNet, SquaredL2 (without weights of entries) and NoPenalty, got "
                    f"{type(penalty).__name__}; set reg=none"
                )
        super().attach(penalties, support)
        self.tied: list[Tensor] = list(self.penalties)
        self.groups: list[Tensor] | None = None

    def _begin(self, closure: Callable) -> None:
        """Start BFGS on the few values: form groups of equal weights; the inverse Hessian is the identity."""
        self._group()
        super()._begin(closure)
        count = len(self.shared["values"])
        self.shared["inverse"] = torch.eye(count, dtype=torch.float64)

    def _group(self) -> None:
        """Collect the few distinct nonzero values of the weights, and find which value each weight has."""
        weights = [parameter.detach().flatten().double() for parameter in self.tied]
        values = torch.cat([flat[flat != 0] for flat in weights]).unique()
        if not 0 < len(values) <= MOST:
            raise UserError(f"Tied fits weights with 1 to {MOST} distinct values, not {len(values)}")
        self.shared["values"] = values
        self._find_groups()

    def _find_groups(self) -> None:
        """Find, for each weight, the index of its value among the few values; zeros get an index of their own."""
        values, self.groups = self.shared["values"], []
        for parameter in self.tied:
            flat = parameter.detach().flatten().double()
            index = torch.searchsorted(values.to(parameter.dtype).double(), flat).clamp(max=len(values) - 1)
            self.groups.append(torch.where(flat == 0, len(values), index))
        sizes = sum(torch.bincount(group, minlength=len(values) + 1) for group in self.groups)
        self.sizes = sizes[:-1].double().clamp(min=1)

    def _step(self, closure: Callable) -> None:
        """A BFGS step on the few values of tied weights, with a backtracking line search."""
        if self.groups is None:
            self._find_groups()  # a checkpoint stores the values, but not the groups
        shared, unit = self.shared, self.sizes.sqrt()
        values, before = shared["values"], self._slope(self._gradients())
        slope = before / unit
        direction = -(shared["inverse"] @ slope)
        if float(direction @ slope) >= 0:
            direction = -slope
        length = self.param_groups[0]["lr"]
        if "started" not in shared:
            length = min(length, 0.1 * float((values * unit).abs().max()) / max(float(direction.abs().max()), 1e-300))
        for _ in range(TRIES):
            moved = values + length * direction / unit
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
        """Set all weights in a group of tied weights to one value; `values` has one entry per group."""
        padded = torch.cat([values, values.new_zeros(1)])
        for parameter, group in zip(self.tied, self.groups, strict=True):
            parameter.copy_(padded[group].view_as(parameter))

    def _slope(self, gradients: list[Tensor], values: Tensor | None = None) -> Tensor:
        """The gradient (float64) of loss plus penalty with respect to the few distinct weight values."""
        values = self.shared["values"] if values is None else values
        total = torch.zeros(len(values) + 1, dtype=torch.float64)
        gradient_of = dict(zip(self.members, gradients, strict=True))
        for parameter, group in zip(self.tied, self.groups, strict=True):
            sizes = torch.bincount(group, minlength=len(total))[:-1]
            cut, ridge = cut_and_ridge(self.penalties[parameter])
            total.index_add_(0, group, gradient_of[parameter].flatten().double())
            total[:-1] += sizes * (cut * values.sign() + ridge * values)
        return total[:-1]

    def _remember(self, s: Tensor, y: Tensor) -> None:
        """BFGS update of the inverse Hessian of the few values, from a step s and the change y of the gradient."""
        product = float(s @ y)
        if product <= 1e-12 * float(s.norm() * y.norm()):
            return
        if "started" not in self.shared:
            self.shared["inverse"] *= product / float(y @ y)
        H = self.shared["inverse"]
        left = torch.eye(len(s), dtype=torch.float64) - torch.outer(s, y) / product
        self.shared["inverse"] = left @ H @ left.T + torch.outer(s, s) / product


class StraightThrough(Composite):
    """Straight-through solver for few values: latent weights V are trained, and the parameters W are V rounded.

        V <- soft threshold of V - step * gradient(W) at lasso * step,    W <- nearest value to V

    The few values are those of `Discrete` penalties, and `lasso` is the strength of an L1 penalty on V. The step size
    of a weight is lr / curvature^exponent, where curvature is the estimated second derivative of the loss. The weights
    do not converge: choose the best model on development data. Mini-batches are possible."""

    needs_full_batch = False

    def __init__(self, params, lr: float = 0.03, exponent: float = 0.8, lasso: float = 0.0) -> None:
        super().__init__(params, lr, tolerance=0.0)
        if not (lasso >= 0 and math.isfinite(lasso)):
            raise UserError(f"solver.lasso is {lasso}; it must be zero or positive")
        self.exponent, self.lasso = exponent, lasso

    @property
    def converged(self) -> bool:
        """Whether the straight-through solver for few values has converged: always false."""
        return False

    def attach(self, penalties, support=None) -> None:
        """Set the penalties of the straight-through solver; each must be a `Discrete` penalty (few values)."""
        for penalty in penalties.values():
            if not penalty.discrete:
                raise UserError(
                    f"StraightThrough rounds to the values of a Discrete penalty (reg=discrete reg.admm=null), got "
                    f"{type(penalty).__name__}"
                )
        super().attach(penalties, support)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Straight-through step: update the latent weights, and set each parameter to the nearest of the few values."""
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
        """The straight-through step of one parameter: move the latent weights, then round to few values."""
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
    """Solver for few values that applies the prox of the penalty once, with the step size lr.

    Under a `Discrete` penalty, the prox rounds trained weights to the few values of the penalty. The method is QT of
    Suzuki and Nagata (2013)."""

    needs_full_batch = False

    def __init__(self, params, lr: float = 1.0) -> None:
        super().__init__(params, lr, tolerance=0.0)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Apply the prox once, to round a trained model to few values; later steps change nothing."""
        if not self.converged:
            self._mask()
            for parameter, penalty in self.penalties.items():
                penalty.prox_(parameter, self.param_groups[0]["lr"])
            self.shared["calm"] = CALM
        return None if closure is None else self._evaluate(closure, slopes=False)[0]
