"""Regularised dual averaging (RDA): online learning, with weights computed by a prox from the sum of all gradients.

Under an L1 penalty, a weight is zero whenever the mean of its past gradients is small in absolute value."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.sgd import RowSolver
from structsparse.weights.bags import adagrad_, concatenated, subtract_
from structsparse.weights.notes import notes_of


class RDA(RowSolver):
    """Regularised dual averaging (RDA) from the sum of all past gradients, with effective step lr * sqrt(t).

    After t steps with learning rate lr, the weights are W = prox(start - lr * sum of gradients / sqrt(t)). Here `start`
    are the initial weights, and the prox has the step size lr * sqrt(t).

    If a parameter has a prox, a step only adds to the sum of gradients. The weights change just before the prox."""

    from_start = True

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "taken": 0})
        self.held: set[Tensor] = set()

    def hold(self, parameters: Iterable[Tensor]) -> None:
        """Dual averaging: update these parameters only just before a prox, other parameters in each step."""
        self.held = set(parameters)

    @torch.no_grad()
    def step(self, closure=None):
        """Dual averaging step: add to the sums of gradients, and update the parameters without a prox."""
        loss = super().step(closure)
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                if parameter not in self.held:
                    self.place_(group, parameter)
        return loss

    @torch.no_grad()
    def place_(self, group: dict, parameter: Tensor) -> None:
        """Compute the weights by dual averaging: initial weights - effective step size * mean gradient."""
        state = self.state[parameter]
        if "sum" not in state:
            return
        parameter.copy_(state["sum"]).mul_(self.metric(group, parameter)).mul_(-self.rate(group) / group["taken"])
        if "start" in state:
            parameter.add_(state["start"])

    def rate(self, group: dict) -> float:
        """The effective learning rate of all dual averaging steps so far: lr * sqrt(t) after t steps."""
        return group["lr"] * group["taken"] ** 0.5

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """The metric of plain dual averaging: 1, the same step size for all weights."""
        return 1.0

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Dual averaging: add a dense gradient to the sum of gradients of a parameter."""
        self._sums(parameter)["sum"].add_(parameter.grad)

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Dual averaging: add factored gradients (one vector per list of table rows) to the sum of gradients."""
        for gradient in notes_of(parameter).pending:
            subtract_(self._sums(parameter)["sum"], gradient, -1.0)

    def _sums(self, parameter: Tensor) -> dict[str, Tensor]:
        """Dual averaging state of a parameter: the sum of gradients, and any nonzero initial weights."""
        state = self.state[parameter]
        if "sum" not in state:
            state["sum"] = torch.zeros_like(parameter)
            # initial weights that are all zero need no copy
            if parameter.is_meta or parameter.any():
                state["start"] = parameter.detach().clone()
        return state


class AdagradRDA(RDA):
    """Regularised dual averaging in the AdaGrad metric H = delta + sqrt(sum of gradient^2), one number per weight.

    The option delta is a positive constant. After t steps with learning rate lr from initial weights `start`:

        W = argmin_V  <sum of gradients / t, V> + penalty(V) + sum (V - start)^2 * H / (2 * lr * t)
    """

    def __init__(self, params, lr: float = 0.3, delta: float = 0.1) -> None:
        if not delta > 0:
            raise UserError(f"solver.delta is {delta}; it must be positive")
        super().__init__(params, lr)
        self.delta = delta

    def rate(self, group: dict) -> float:
        """The effective learning rate of all AdaGrad dual averaging steps so far: lr * t after t steps."""
        return group["lr"] * group["taken"]

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """Step size factors of AdaGrad dual averaging, one per weight: 1 / (option delta + sqrt(sum of gradient^2))."""
        state = self.state.get(parameter, {})
        return state["squares"].sqrt().add_(self.delta).reciprocal_() if "squares" in state else 1 / self.delta

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """AdaGrad dual averaging: add a dense gradient to the sums of gradients and of squared gradients."""
        super()._dense(group, parameter)
        self._sums(parameter)["squares"].addcmul_(parameter.grad, parameter.grad)

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """AdaGrad dual averaging: add factored gradients to the sums of gradients and of squared gradients.

        A factored gradient has one gradient vector per bag (list of table rows)."""
        super()._bags(group, parameter)
        state = self._sums(parameter)
        gradient = concatenated(notes_of(parameter).pending)
        no_step = 0.0  # with step size 0 the kernel updates only the sum of squares
        adagrad_(state["sum"], state["squares"], gradient, no_step, self.delta, self._slot(parameter))

    def _sums(self, parameter: Tensor) -> dict[str, Tensor]:
        """AdaGrad dual averaging state of a parameter: the RDA state and the sum of squared gradients."""
        state = super()._sums(parameter)
        if "squares" not in state:
            state["squares"] = torch.zeros_like(parameter)
        return state
