"""SGD and AdaGrad on factored gradients of tables: a step costs the rows that it touches, not the whole table."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.base import Solver
from structsparse.weights.bags import adagrad_, concatenated, subtract_
from structsparse.weights.notes import notes_of


class RowSolver(Solver):
    """Base of solvers that take dense gradients from `.grad` and factored ones from the note `pending` (see `bags`)."""

    def __init__(self, params, defaults: dict) -> None:
        if not defaults["lr"] >= 0:
            raise UserError(f"solver.lr is {defaults['lr']}; it must be zero or positive")
        super().__init__(params, defaults)
        self.slots: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                notes_of(parameter).pending = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget dense and factored gradients."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for parameter in group["params"]:
                notes_of(parameter).pending.clear()

    @torch.no_grad()
    def step(self, closure=None):
        """Take the steps of dense and factored gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._dense(group, parameter)
                if notes_of(parameter).pending:
                    self._bags(group, parameter)
        return loss

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """Take the step of a dense gradient."""
        raise NotImplementedError

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """Take the step of factored gradients."""
        raise NotImplementedError

    def _slot(self, parameter: Tensor) -> Tensor:
        """Work memory of the AdaGrad kernel: int32 [rows]."""
        if parameter not in self.slots:
            self.slots[parameter] = torch.full(parameter.shape[:1], -1, dtype=torch.int32, device=parameter.device)
        return self.slots[parameter]


class RowSGD(RowSolver):
    """SGD by rows: w -= lr * gradient"""

    prox_every = 8  # a step costs the rows it touches, a prox all of them

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """The SGD step of a dense gradient."""
        parameter.sub_(parameter.grad, alpha=group["lr"])

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """The SGD step of factored gradients."""
        for gradient in notes_of(parameter).pending:
            subtract_(parameter, gradient, group["lr"])

    def metric(self, group: dict, parameter: Tensor) -> float:
        return 1.0


class RowAdagrad(RowSolver):
    """AdaGrad by rows: sum += gradient^2; w -= lr * gradient / (sqrt(sum) + eps), as torch.optim.Adagrad without
    decay."""

    prox_every = 8

    def __init__(self, params, lr: float = 0.1, eps: float = 1e-10, initial_accumulator_value: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial_accumulator_value})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """The AdaGrad step of a dense gradient."""
        total = self._sum(group, parameter).addcmul_(parameter.grad, parameter.grad)
        parameter.addcdiv_(parameter.grad, total.sqrt().add_(group["eps"]), value=-group["lr"])

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """The AdaGrad step of factored gradients."""
        total = self._sum(group, parameter)
        gradient = concatenated(notes_of(parameter).pending)
        adagrad_(parameter, total, gradient, group["lr"], group["eps"], self._slot(parameter))

    def _sum(self, group: dict, parameter: Tensor) -> Tensor:
        """The sum of squared gradients of each entry."""
        state = self.state[parameter]
        if "sum" not in state:
            state["sum"] = torch.full_like(parameter, group["initial"])
        return state["sum"]

    def metric(self, group: dict, parameter: Tensor) -> Tensor:
        return 1.0 / (self._sum(group, parameter).sqrt() + group["eps"])
