"""Accelerated proximal gradient methods: FISTA on the full batch, and a stochastic FISTA on mini-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.base import Solver
from structsparse.solvers.composite import Composite
from structsparse.solvers.fista_passes import AcceleratedParameter
from structsparse.weights.notes import notes_of

# factors on the step size: after a rejected step, an accepted step, and an accepted step with a nearly linear loss
SHORTER, LONGER, MUCH_LONGER = 0.6, 1.03, 2.0
GROWN = (1 + math.sqrt(5)) / 2  # second value of FISTA's momentum parameter t, after t = 1
# if no step lowers the objective, the allowed error of iterative proxes is divided by SHARPER; an error of at most
# FINEST becomes zero
SHARPER, FINEST = 1000.0, 1e-9
TRIES = 80  # largest number of step sizes tried in one step


class FISTA(Composite):
    """FISTA, accelerated proximal gradient with backtracking and restarts: W <- prox(Z - step * gradient at Z).

    Here Z = W + momentum * (W - previous W) is the extrapolated point. The step size of a weight is lr / curvature
    times a common factor, where curvature is the estimated second derivative of the loss. Backtracking reduces the
    factor until a quadratic model is an upper bound of the loss at the new weights. The momentum restarts if a step
    points against the previous step."""

    accuracy = 1e-5

    def __init__(self, params, lr: float = 1.0, tolerance: float = 1e-7) -> None:
        super().__init__(params, lr, tolerance)
        self.moves: list[AcceleratedParameter] = []
        self.cached_steps: dict[Tensor, tuple] = {}

    def _begin(self, closure: Callable) -> None:
        """Start FISTA: compute the loss at the initial weights; start without momentum."""
        super()._begin(closure)
        self.shared.update(scale=1.0, momentum=1.0)

    def _step(self, closure: Callable) -> None:
        """Take one FISTA step; a step that raises the objective is repeated without momentum, or finally undone."""
        shared, steps, moves = self.shared, self._steps(), self._moves()
        self._allow(shared.get("accuracy", self.accuracy))
        end = self._descend(closure, moves, steps, *self._extrapolated(closure, moves))
        if _uphill(end, shared) and shared["momentum"] > GROWN:
            shared["momentum"] = GROWN
            for move in moves:
                move.stay_()
            end = self._descend(closure, moves, steps, *self._here(closure))
        if _uphill(end, shared):
            for move in moves:
                move.stay_()
            if not self._sharpen():
                self._stall()
            return
        shared.update(loss=end.loss, objective=end.objective)
        if end.turns:
            shared["momentum"] = 1.0
        for place, move in enumerate(moves):
            state = self.state[move.parameter]
            state["before"], move.here = move.here, state.get("before", torch.empty_like(move.here))
            state["gradient"] = None if end.slopes is None else end.slopes[place]

    def _sharpen(self) -> bool:
        """Reduce the allowed error of FISTA's iterative proxes; returns False if the allowed error is already 0."""
        allowed = self.shared.get("accuracy", self.accuracy if self.iterated else 0.0)
        if allowed == 0:
            return False
        self.shared["accuracy"] = allowed / SHARPER if allowed > FINEST else 0.0
        self.shared["scale"] = 1.0
        return True

    def _steps(self) -> list[float | Tensor]:
        """The FISTA step size lr / curvature of each parameter."""
        return [self._step_of(parameter, group["lr"]) for group in self.param_groups for parameter in group["params"]]

    def _step_of(self, parameter: Tensor, lr: float) -> float | Tensor:
        """The FISTA step size lr / curvature of a parameter, cached until curvature, penalty or lr change."""
        curvature, penalty = notes_of(parameter).curvature, self.penalties.get(parameter)
        cached = self.cached_steps.get(parameter)
        if cached is None or cached[0] is not curvature or cached[1] is not penalty or cached[2] != lr:
            estimate = self._curvature(parameter)
            step = lr if estimate is None else lr / estimate
            if estimate is not None and estimate.dim() > 0:
                step = step.expand_as(parameter).contiguous()
            cached = self.cached_steps[parameter] = curvature, penalty, lr, step
        return cached[3]

    def _moves(self) -> list[AcceleratedParameter]:
        """FISTA's work arrays, one object per parameter; allocated at the first call."""
        if [move.parameter for move in self.moves] != self.members:
            self.moves = [AcceleratedParameter(parameter) for parameter in self.members]
        return self.moves

    def _extrapolated(self, closure: Callable, moves: list[AcceleratedParameter]) -> tuple[float, list[Tensor]]:
        """Move the parameters to FISTA's extrapolated point Z; returns the loss and the gradients at Z."""
        momentum = self.shared["momentum"]
        grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        for move in moves:
            move.ahead_(self.state[move.parameter].get("before", move.parameter), (momentum - 1) / grown)
        if momentum > 1:
            loss, gradients = self._evaluate(closure)
            if math.isfinite(loss):
                self.shared["momentum"] = grown
                return loss, gradients
            for move in moves:
                move.stay_()
        self.shared["momentum"] = GROWN
        return self._here(closure)

    def _here(self, closure: Callable) -> tuple[float, list[Tensor]]:
        """The loss and its gradients after the last FISTA step, at the current parameters."""
        if any(self.state[parameter]["gradient"] is None for parameter in self.members):
            self._store(self._evaluate(closure)[1])
        return self.shared["loss"], self._gradients()

    def _descend(
        self, closure, moves: list[AcceleratedParameter], steps, loss: float, gradients: list[Tensor]
    ) -> StepEnd | None:
        """FISTA backtracking: a proximal gradient step with a small enough step size; None if all tried sizes fail."""
        shared = self.shared
        for _ in range(TRIES):
            length, along, turn = self._try(moves, steps, gradients)
            model = length / (2 * shared["scale"])
            # whether the change of the loss exceeds rounding errors; otherwise gradients are compared, not losses
            clear = model > self._noise(loss)
            value, slopes = self._evaluate(closure, slopes=not clear)
            rise = value - loss - along
            if slopes is None:
                bend = 2 * rise
            else:  # `bend` is the inner product of the gradient change and the step
                bend = sum(move.sums(*pair)[1] for move, *pair in zip(moves, slopes, steps, strict=True)) - along
            if math.isfinite(value) and (rise <= model if clear else bend <= 2 * model):
                shared["scale"] *= LONGER if bend > model / 2 else MUCH_LONGER
                return StepEnd(value, value + self._penalty(), slopes, turn > 0)
            shared["scale"] *= SHORTER
        return None

    def _try(self, moves: list[AcceleratedParameter], steps, gradients: list[Tensor]) -> list[float]:
        """FISTA's trial step: a proximal gradient step of all parameters with the current step size.

        Let move be the new weights W minus the extrapolated point. Returns three sums over all weights. The
        summands are move^2 / step size, move * gradient, and -move / step size * (W - weights before the step)."""
        scale = self.shared["scale"]
        for move, step, gradient in zip(moves, steps, gradients, strict=True):
            taken = move.down_(gradient, step, scale)
            if move.parameter in self.penalties:
                self.penalties[move.parameter].prox_(move.parameter, taken)
        self._mask()
        each = [move.sums(*pair) for move, *pair in zip(moves, gradients, steps, strict=True)]
        return [sum(part) for part in zip(*each, strict=True)]


class StepEnd(NamedTuple):
    """The result of a FISTA step: loss, objective and gradients at the new point."""

    loss: float
    objective: float
    slopes: list[Tensor] | None  # gradients of the loss at the new point, one per parameter; None: not computed
    turns: bool  # whether the step points against the previous step; the momentum then restarts


def _uphill(end: StepEnd | None, shared: dict) -> bool:
    """Whether a FISTA step failed or raised the objective."""
    return end is None or end.objective > shared["objective"]


class AcceleratedSGD(Solver):
    """Stochastic variant of FISTA for mini-batches: accelerated proximal gradient of Hu, Kwok and Pan (2009).

        X = (1 - a) Y + a Z;  Y <- prox(X - gradient at X / L)
        Z <- Z - (L (X - Y) + convexity (Z - X)) / (L a + convexity)

    The parameters hold Y, Z is a second sequence of weights, and 1 / L is the step size. The option `convexity` is a
    lower bound of the second derivatives of loss plus penalty. The constants of step t = 0, 1, ... are
    - without convexity: a = 2 / (t + 2) and L = 1 / lr + noise * (t + 1)^1.5;
    - with convexity > 0: a = sqrt(d + d^2 / 4) - d / 2 (a = 1 if t = 0) and L = 1 / lr + convexity / d. The number d is
      1 at first; each step t > 0 multiplies it by 1 - a."""

    needs_closure = True
    needs_each_prox = True

    def __init__(self, params, lr: float = 0.1, noise: float = 0.01, convexity: float = 0.0) -> None:
        for name, value in (("noise", noise), ("convexity", convexity)):
            if not value >= 0:
                raise UserError(f"solver.{name} is {value}; it must be zero or positive")
        if not lr > 0:
            raise UserError(f"solver.lr is {lr}; it must be positive")
        super().__init__(params, {"lr": lr, "noise": noise, "convexity": convexity, "taken": 0, "d": 1.0})
        for group in self.param_groups:
            for parameter in group["params"]:
                notes_of(parameter).pending = None  # None: backward passes make dense gradients in `.grad`

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Stochastic FISTA: a gradient step from the point X. The prox that follows makes the new weights Y."""
        if closure is None:
            raise UserError("AcceleratedSGD evaluates the gradient away from the weights: call step(closure)")
        for group in self.param_groups:
            for parameter in group["params"]:
                self._look_ahead(group, parameter)
            _next(group)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._to_x(group, parameter)
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=1 / group["L"])
        return loss

    def _look_ahead(self, group: dict, parameter: Tensor) -> None:
        """Stochastic FISTA: update the second sequence of weights Z, after the prox has made the new weights Y."""
        state = self.state[parameter]
        if "z" not in state:
            state["z"] = parameter.detach().clone()
            return
        L, a, convexity = group["L"], group["a"], group["convexity"]
        pull = (state["x"] - parameter).mul_(L).add_(state["z"] - state["x"], alpha=convexity)
        state["z"].sub_(pull, alpha=1 / (L * a + convexity))

    def _to_x(self, group: dict, parameter: Tensor) -> None:
        """Stochastic FISTA: move the parameter from Y to the accelerated point X = (1 - a) Y + a Z."""
        state = self.state[parameter]
        parameter.lerp_(state["z"], group["a"])
        state["x"] = parameter.detach().clone()

    def rate(self, group: dict) -> float:
        """The last step size of stochastic FISTA."""
        return 1 / group["L"] if group["taken"] else 0.0

    def metric(self, group: dict, parameter: Tensor) -> float:
        """The metric of stochastic FISTA: 1, the same step size for all weights."""
        return 1.0


def _next(group: dict) -> None:
    """Stochastic FISTA: compute the constants of the next step, the inverse step size L and the weight a of Z."""
    t, convexity, d = group["taken"], group["convexity"], group["d"]
    if convexity == 0:
        group["L"], group["a"] = 1 / group["lr"] + group["noise"] * (t + 1) ** 1.5, 2 / (t + 2)
    else:
        group["L"] = 1 / group["lr"] + convexity / d
        group["a"] = 1.0 if t == 0 else math.sqrt(d + d * d / 4) - d / 2
        group["d"] = d if t == 0 else d * (1 - group["a"])
    group["taken"] = t + 1
