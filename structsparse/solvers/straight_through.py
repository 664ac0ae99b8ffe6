"""Straight-through training: gradients where the weights are rounded, steps of weights that are not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse import prox
from structsparse.errors import UserError
from structsparse.penalties import Discrete
from structsparse.solvers.composite import Composite


class StraightThrough(Composite):
    """V <- soft threshold of  V - step * gradient(W)  at lasso * step,  W <- nearest value to V:  a control.

    W are the parameters, under Discrete penalties, V stays inside. The step is lr / curvature^exponent, entry by entry.
    Nothing makes the loss fall, and nothing converges: choose the best model on dev. The losses may be of
    mini-batches."""

    full_batch = False

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
