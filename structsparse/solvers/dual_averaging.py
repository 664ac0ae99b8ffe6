"""Regularised dual averaging (RDA): online learning where the weights are a prox of the sum of all past gradients.

Weights that became nonzero in a mini-batch return to zero at once when the mean gradient is small. Proximal gradient
steps would shrink them only gradually."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.sgd import RowSolver
from structsparse.weights.bags import adagrad_, concatenated, subtract_
from structsparse.weights.notes import notes_of


class RDA(RowSolver):
    """Regularised dual averaging: after t steps  W = argmin_V  <sum of gradients / t, V> + value(V) + ||V - start||^2 /
    (2 * lr * sqrt(t)).

    The effective step counts from the start: lr * sqrt(t), so W = prox(start - lr * sum / sqrt(t)). A parameter with a
    prox is held: a step only adds to the sum of gradients, at the cost of the table rows in the batch. The weights
    change just before a prox."""

    from_start = True

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "taken": 0})
        self.held: set[Tensor] = set()

    def hold(self, parameters: Iterable[Tensor]) -> None:
        """Update these parameters only when `place_` is called, and all other parameters at each step."""
        self.held = set(parameters)

    @torch.no_grad()
    def step(self, closure=None):
        """Add the gradients to their sums; update the parameters that are not held."""
        loss = super().step(closure)
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                if parameter not in self.held:
                    self.place_(group, parameter)
        return loss

    @torch.no_grad()
    def place_(self, group: dict, parameter: Tensor) -> None:
        """Compute the weights by dual averaging: W <- start - step * mean gradient."""
        state = self.state[parameter]
        if "sum" not in state:
            return
        parameter.copy_(state["sum"]).mul_(self.metric(group, parameter)).mul_(-self.rate(group) / group["taken"])
        if "start" in state:
            parameter.add_(state["start"])

    def rate(self, group: dict) -> float:
        """The effective learning rate of all steps so far: lr * sqrt(t)."""
        return group["lr"] * group["taken"] ** 0.5

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        return 1.0

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Add a dense gradient to the sum."""
        self._sums(parameter)["sum"].add_(parameter.grad)

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Add factored gradients to the sum."""
        for gradient in notes_of(parameter).pending:
            subtract_(self._sums(parameter)["sum"], gradient, -1.0)

    def _sums(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter: the sum of gradients, and the initial weights unless they are zero."""
        state = self.state[parameter]
        if "sum" not in state:
            state["sum"] = torch.zeros_like(parameter)
            if parameter.is_meta or parameter.any():  # reading this synchronises once, but saves a copy of a zero table
                state["start"] = parameter.detach().clone()
        return state


class AdagradRDA(RDA):
    """Regularised dual averaging in the AdaGrad metric H = delta + sqrt(sum of gradient^2), per entry:

    W = argmin_V  <sum of gradients / t, V> + value(V) + sum (V - start)^2 * H / (2 * lr * t)
    """

    def __init__(self, params, lr: float = 0.3, delta: float = 0.1) -> None:
        if not delta > 0:
            raise UserError(f"solver.delta is {delta}; it must be positive")
        super().__init__(params, lr)
        self.delta = delta

    def rate(self, group: dict) -> float:
        """The effective learning rate of all steps so far: lr * t."""
        return group["lr"] * group["taken"]

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The inverse 1 / H of the AdaGrad metric, per entry."""
        state = self.state.get(parameter, {})
        return state["squares"].sqrt().add_(self.delta).reciprocal_() if "squares" in state else 1 / self.delta

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Add a dense gradient to the sum of gradients, and its square to the sum of squares."""
        super()._dense(group, parameter)
        self._sums(parameter)["squares"].addcmul_(parameter.grad, parameter.grad)

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Add factored gradients to the sum of gradients, and their squares to the sum of squares."""
        super()._bags(group, parameter)
        state = self._sums(parameter)
        gradient = concatenated(notes_of(parameter).pending)
        no_step = 0.0  # the kernel then updates the sum of squares only
        adagrad_(state["sum"], state["squares"], gradient, no_step, self.delta, self._slot(parameter))

    def _sums(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter, with the sum of squared gradients."""
        state = super()._sums(parameter)
        if "squares" not in state:
            state["squares"] = torch.zeros_like(parameter)
        return state
