"""Proximal gradient with momentum: of the whole corpus, and stochastic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.base import Solver
from structsparse.solvers.composite import Composite
from structsparse.solvers.fista_passes import Moves
from structsparse.weights.notes import notes_of

SHORTER, LONGER, MUCH_LONGER = (
    0.6,
    1.03,
    2.0,
)  # what the step is multiplied by; the last where the loss bends but little
GROWN = (1 + math.sqrt(5)) / 2  # what a momentum of 1 grows to
SHARPER, FINEST = 1000.0, 1e-9  # of the accuracy of a prox that is iterated; beyond the finest it is exact
TRIES = 80  # of shorter steps, a factor of 1e17; past them no step is short enough


class FISTA(Composite):
    """W <- prox(Z - step * gradient at Z), where Z = W + momentum * (W - W before).

    The step is lr / curvature times one factor, which shrinks until the quadratic model with it lies above the loss,
    and grows again. Where a step turns back on itself the momentum begins anew, and where one leads uphill it is taken
    back: the objective never rises. A penalty that takes no step per entry has one step for its parameter, that of
    the entry with the largest curvature."""

    accuracy = 1e-5

    def __init__(self, params, lr: float = 1.0, tolerance: float = 1e-7) -> None:
        super().__init__(params, lr, tolerance)
        self.moves: list[Moves] = []
        self.known_steps: dict[Tensor, tuple] = {}

    def _begin(self, closure: Callable) -> None:
        super()._begin(closure)
        self.shared.update(scale=1.0, momentum=1.0)

    def _step(self, closure: Callable) -> None:
        shared, steps, moves = self.shared, self._steps(), self._moves()
        self._allow(shared.get("accuracy", self.accuracy))
        found = self._descend(closure, moves, steps, *self._extrapolated(closure, moves))
        if _uphill(found, shared) and shared["momentum"] > GROWN:
            shared["momentum"] = GROWN
            for move in moves:
                move.stay_()
            found = self._descend(closure, moves, steps, *self._here(closure))
        if _uphill(found, shared):
            for move in moves:
                move.stay_()
            if not self._sharpen():
                self._stall()
            return
        shared.update(loss=found.loss, objective=found.objective)
        if found.turns:
            shared["momentum"] = 1.0
        for place, move in enumerate(moves):
            state = self.state[move.parameter]
            state["before"], move.here = move.here, state.get("before", torch.empty_like(move.here))
            state["gradient"] = None if found.slopes is None else found.slopes[place]

    def _sharpen(self) -> bool:
        """Where no step leads downhill it may be for a prox that was not exact."""
        allowed = self.shared.get("accuracy", self.accuracy if self.iterated else 0.0)
        if allowed == 0:
            return False
        self.shared["accuracy"] = allowed / SHARPER if allowed > FINEST else 0.0
        self.shared["scale"] = 1.0
        return True

    def _steps(self) -> list[float | Tensor]:
        """Of each parameter, up to the common factor; made once for each curvature and rate."""
        return [self._step_of(parameter, group["lr"]) for group in self.param_groups for parameter in group["params"]]

    def _step_of(self, parameter: Tensor, lr: float) -> float | Tensor:
        curvature, penalty = notes_of(parameter).curvature, self.penalties.get(parameter)
        known = self.known_steps.get(parameter)
        if known is None or known[0] is not curvature or known[1] is not penalty or known[2] != lr:
            found = self._curvature(parameter)
            step = lr if found is None else lr / found
            if found is not None and found.dim() > 0:
                step = step.expand_as(parameter).contiguous()
            known = self.known_steps[parameter] = curvature, penalty, lr, step
        return known[3]

    def _moves(self) -> list[Moves]:
        if [move.parameter for move in self.moves] != self.members:
            self.moves = [Moves(parameter) for parameter in self.members]
        return self.moves

    def _extrapolated(self, closure: Callable, moves: list[Moves]) -> tuple[float, list[Tensor]]:
        """To a point beyond the last one; loss and gradients there."""
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
        """Loss and gradients where the last step ended, which is where the parameters are."""
        if any(self.state[parameter]["gradient"] is None for parameter in self.members):
            self._keep(self._evaluate(closure)[1])
        return self.shared["loss"], self._gradients()

    def _descend(self, closure, moves: list[Moves], steps, loss: float, gradients: list[Tensor]) -> Found | None:
        """To prox(point - step * gradient) with a step short enough."""
        shared = self.shared
        for _ in range(TRIES):
            length, along, turn = self._try(moves, steps, gradients)
            model = length / (2 * shared["scale"])
            clear = model > self._noise(loss)  # or else the difference of two losses says nothing, but slopes do
            found, slopes = self._evaluate(closure, slopes=not clear)
            rise = found - loss - along
            if slopes is None:
                bend = 2 * rise
            else:  # twice the rise above the tangent, for a parabola
                bend = sum(move.sums(*pair)[1] for move, *pair in zip(moves, slopes, steps, strict=True)) - along
            if math.isfinite(found) and (rise <= model if clear else bend <= 2 * model):
                shared["scale"] *= LONGER if bend > model / 2 else MUCH_LONGER
                return Found(found, found + self._penalty(), slopes, turn > 0)
            shared["scale"] *= SHORTER
        return None

    def _try(self, moves: list[Moves], steps, gradients: list[Tensor]) -> list[float]:
        """Take the step; what `Moves.sums` says of it, over all parameters."""
        scale = self.shared["scale"]
        for move, step, gradient in zip(moves, steps, gradients, strict=True):
            taken = move.down_(gradient, step, scale)
            if move.parameter in self.penalties:
                self.penalties[move.parameter].prox_(move.parameter, taken)
        self._mask()
        each = [move.sums(*pair) for move, *pair in zip(moves, gradients, steps, strict=True)]
        return [sum(part) for part in zip(*each, strict=True)]


class Found(NamedTuple):
    """Where a step ends."""

    loss: float
    objective: float
    slopes: list[Tensor] | None  # if they were asked for, or told anyway
    turns: bool  # against the way it came


def _uphill(found: Found | None, shared: dict) -> bool:
    return found is None or found.objective > shared["objective"]


class AcceleratedSGD(Solver):
    """The accelerated stochastic method of Hu, Kwok and Pan (2009):

        X = (1 - a) Y + a Z;  Y <- prox(X - gradient at X / L)
        Z <- Z - (L (X - Y) + convexity (Z - X)) / (L a + convexity)

    The parameters hold Y. Of a loss that is curved nowhere for certain (convexity 0), a = 2 / (t + 2) and
    L = 1 / lr + noise * (t + 1)^1.5 for t = 0, 1, ...; otherwise L = 1 / lr + convexity / d, and a is the root of
    a^2 = d (1 - a), with d = 1, then the product of all (1 - a). 1 / lr is the Lipschitz constant of the gradient,
    `convexity` the least curvature of loss plus penalty."""

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
                notes_of(parameter).pending = None  # X is dense anyway

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        if closure is None:
            raise UserError(
                "AcceleratedSGD takes the gradient elsewhere than where the weights are: call step(closure)"
            )
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
        """Z, now that the prox has made Y."""
        state = self.state[parameter]
        if "z" not in state:
            state["z"] = parameter.detach().clone()
            return
        L, a, convexity = group["L"], group["a"], group["convexity"]
        pull = (state["x"] - parameter).mul_(L).add_(state["z"] - state["x"], alpha=convexity)
        state["z"].sub_(pull, alpha=1 / (L * a + convexity))

    def _to_x(self, group: dict, parameter: Tensor) -> None:
        state = self.state[parameter]
        parameter.lerp_(state["z"], group["a"])
        state["x"] = parameter.detach().clone()

    def rate(self, group: dict) -> float:
        """The step taken last."""
        return 1 / group["L"] if group["taken"] else 0.0

    def metric(self, group: dict, parameter: Tensor) -> float:
        """Step over rate."""
        return 1.0


def _next(group: dict) -> None:
    """L and a of the coming step."""
    t, convexity, d = group["taken"], group["convexity"], group["d"]
    if convexity == 0:
        group["L"], group["a"] = 1 / group["lr"] + group["noise"] * (t + 1) ** 1.5, 2 / (t + 2)
    else:
        group["L"] = 1 / group["lr"] + convexity / d
        group["a"] = 1.0 if t == 0 else math.sqrt(d + d * d / 4) - d / 2
        group["d"] = d if t == 0 else d * (1 - group["a"])
    group["taken"] = t + 1
