"""Proximal gradient with momentum: of the whole corpus, and stochastic."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from structsparse.errors import UserError
from structsparse.solvers.composite import Composite, inner

SHORTER, LONGER, MUCH_LONGER = (
    0.6,
    1.03,
    2.0,
)  # what the step is multiplied by; the last where the loss bends but little
GROWN = (1 + math.sqrt(5)) / 2  # what a momentum of 1 grows to
TRIES = 80  # of shorter steps, a factor of 1e17; past them no step is short enough


class FISTA(Composite):
    """W <- prox(Z - step * gradient at Z), where Z = W + momentum * (W - W before).

    The step is lr / curvature times one factor, which shrinks until the quadratic model with it lies above the loss,
    and grows again. Where a step turns back on itself the momentum begins anew, and where one leads uphill it is taken
    back: the objective never rises. A penalty that takes no step per entry has one step for its parameter, that of
    the entry with the largest curvature."""

    def __init__(self, params, lr: float = 1.0, tolerance: float = 1e-7) -> None:
        super().__init__(params, lr, tolerance)

    def _begin(self, closure: Callable) -> None:
        super()._begin(closure)
        self.shared.update(scale=1.0, momentum=1.0)

    def _step(self, closure: Callable) -> None:
        shared, here, steps = self.shared, [p.clone() for p in self.members], self._steps()
        point, loss, gradients = self._extrapolated(closure, here)
        found = self._descend(closure, steps, point, loss, gradients)
        uphill = found is None or found[0] + self._penalty() > shared["objective"]
        if uphill and point is not here:
            shared["momentum"] = GROWN
            point, loss, gradients = here, shared["loss"], self._gradients()
            found = self._descend(closure, steps, point, loss, gradients)
            uphill = found is None or found[0] + self._penalty() > shared["objective"]
        if uphill:
            self._move(here)
            self._stall()
            return
        self._accept(*found)
        self._turn(steps, point, here)

    def _steps(self) -> list[float | Tensor]:
        """Of each parameter, up to the common factor."""
        steps = []
        for group in self.param_groups:
            for parameter in group["params"]:
                curvature = self._curvature(parameter)
                steps.append(group["lr"] if curvature is None else group["lr"] / curvature)
        return steps

    def _extrapolated(self, closure, here: list[Tensor]) -> tuple[list[Tensor], float, list[Tensor]]:
        """A point beyond the last one, loss and gradients there."""
        momentum = self.shared["momentum"]
        grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        if momentum > 1:
            for parameter, now in zip(self.members, here, strict=True):
                parameter.add_(now - self.state[parameter]["before"], alpha=(momentum - 1) / grown)
            point = [p.clone() for p in self.members]
            loss, gradients = self._evaluate(closure)
            if math.isfinite(loss):
                self.shared["momentum"] = grown
                return point, loss, gradients
            self._move(here)
        self.shared["momentum"] = GROWN
        return here, self.shared["loss"], self._gradients()

    def _descend(self, closure, steps, point, loss: float, gradients) -> tuple[float, list[Tensor]] | None:
        """To prox(point - step * gradient) with a step short enough; loss and gradients there."""
        shared = self.shared
        for _ in range(TRIES):
            self._prox_step(steps, point, gradients)
            found, slopes = self._evaluate(closure)
            moves = [p - start for p, start in zip(self.members, point, strict=True)]
            length = inner(moves, [move / step for move, step in zip(moves, steps, strict=True)])
            model = length / (2 * shared["scale"])
            bend = inner(moves, slopes) - inner(moves, gradients)  # twice the rise above the tangent, for a parabola
            rise = found - loss - inner(moves, gradients)
            clear = model > self._noise(loss)  # or else the difference of two losses says nothing, but slopes do
            if math.isfinite(found) and (rise <= model if clear else bend <= 2 * model):
                shared["scale"] *= LONGER if bend > model / 2 else MUCH_LONGER
                return found, slopes
            shared["scale"] *= SHORTER
        return None

    def _prox_step(self, steps, point, gradients) -> None:
        scale = self.shared["scale"]
        for parameter, step, start, gradient in zip(self.members, steps, point, gradients, strict=True):
            parameter.copy_(start).sub_(gradient * step, alpha=scale)
            if parameter in self.penalties:
                self.penalties[parameter].prox_(parameter, step * scale)
        self._mask()

    def _turn(self, steps, point: list[Tensor], here: list[Tensor]) -> None:
        """Keep the last point for the momentum, unless the step went against the way it came."""
        moves = [p - now for p, now in zip(self.members, here, strict=True)]
        pulls = [(start - p) / step for p, start, step in zip(self.members, point, steps, strict=True)]
        if inner(pulls, moves) > 0:
            self.shared["momentum"] = 1.0
        for parameter, now in zip(self.members, here, strict=True):
            self.state[parameter]["before"] = now


class AcceleratedSGD(Optimizer):
    """The accelerated stochastic method of Hu, Kwok and Pan (2009):

        X = (1 - a) Y + a Z;  Y <- prox(X - gradient at X / L)
        Z <- Z - (L (X - Y) + convexity (Z - X)) / (L a + convexity)

    The parameters hold Y. Of a loss that is curved nowhere for certain (convexity 0), a = 2 / (t + 2) and
    L = 1 / lr + noise * (t + 1)^1.5 for t = 0, 1, ...; otherwise L = 1 / lr + convexity / d, and a is the root of
    a^2 = d (1 - a), with d = 1, then the product of all (1 - a). 1 / lr is the Lipschitz constant of the gradient,
    `convexity` the least curvature of loss plus penalty."""

    evaluates = True
    each_step = True

    def __init__(self, params, lr: float = 0.1, noise: float = 0.01, convexity: float = 0.0) -> None:
        for name, value in (("noise", noise), ("convexity", convexity)):
            if not value >= 0:
                raise UserError(f"solver.{name} is {value}; it must be zero or positive")
        if not lr > 0:
            raise UserError(f"solver.lr is {lr}; it must be positive")
        super().__init__(params, {"lr": lr, "noise": noise, "convexity": convexity, "taken": 0, "d": 1.0})
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.pending = None  # X is dense anyway

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
