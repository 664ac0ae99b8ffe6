"""SGD and AdaGrad with factored gradients of weight tables: a step updates only the table rows in the batch.

A bag is a list of table rows, such as the features of a token. A factored gradient has one gradient vector per bag."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.base import Solver
from structsparse.weights.bags import adagrad_, concatenated, subtract_
from structsparse.weights.notes import notes_of


class RowSolver(Solver):
    """Base of SGD and AdaGrad on table rows, from dense gradients and factored gradients.

    A factored gradient has one gradient vector per bag (list of table rows). Dense gradients are in `.grad`, factored
    gradients in the list `notes_of(parameter).pending`."""

    def __init__(self, params, defaults: dict) -> None:
        if not defaults["lr"] >= 0:
            raise UserError(f"solver.lr is {defaults['lr']}; it must be zero or positive")
        super().__init__(params, defaults)
        self.slots: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                notes_of(parameter).pending = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Delete the gradients of an SGD or AdaGrad solver: dense, and factored (one vector per list of table rows)."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for parameter in group["params"]:
                notes_of(parameter).pending.clear()

    @torch.no_grad()
    def step(self, closure=None):
        """SGD or AdaGrad step: update all parameters with the dense and the factored gradients.

        A factored gradient has one gradient vector per bag (list of table rows)."""
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
        """SGD or AdaGrad step of a parameter with a dense gradient."""
        raise NotImplementedError

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """SGD or AdaGrad step of the table rows in factored gradients, with one vector per list of rows."""
        raise NotImplementedError

    def _slot(self, parameter: Tensor) -> Tensor:
        """Work array of the kernel for SGD with AdaGrad step sizes: int32, one element for each table row.

        During a step, it has the index of the row in the list of rows of the batch; -1 for all rows not in the list.
        Between steps all elements are -1."""
        if parameter not in self.slots:
            self.slots[parameter] = torch.full(parameter.shape[:1], -1, dtype=torch.int32, device=parameter.device)
        return self.slots[parameter]


class RowSGD(RowSolver):
    """SGD that updates only the table rows in the batch: w -= lr * gradient."""

    prox_every = 8  # number of steps per prox; a prox is slower than a step, as it changes all rows

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """The SGD step of a parameter with a dense gradient."""
        parameter.sub_(parameter.grad, alpha=group["lr"])

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """The SGD step of the table rows in factored gradients, which have one vector per list of rows."""
        for gradient in notes_of(parameter).pending:
            subtract_(parameter, gradient, group["lr"])

    def metric(self, group: dict, parameter: Tensor) -> float:
        """The metric of SGD: 1, the same step size for all weights."""
        return 1.0


class RowAdagrad(RowSolver):
    """SGD with AdaGrad step sizes, one per weight; updates only the table rows in the batch.

        sum += gradient^2;  w -= lr * gradient / (sqrt(sum) + eps)

    The result is that of torch.optim.Adagrad without learning-rate decay."""

    prox_every = 8

    def __init__(self, params, lr: float = 0.1, eps: float = 1e-10, initial_accumulator_value: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial_accumulator_value})

    def _dense(self, group: dict, parameter: Tensor) -> None:
        """SGD with AdaGrad step sizes: the step of a parameter with a dense gradient."""
        total = self._sum(group, parameter).addcmul_(parameter.grad, parameter.grad)
        parameter.addcdiv_(parameter.grad, total.sqrt().add_(group["eps"]), value=-group["lr"])

    def _bags(self, group: dict, parameter: Tensor) -> None:
        """SGD with AdaGrad step sizes: the step of the rows in factored gradients (one vector per list of rows)."""
        total = self._sum(group, parameter)
        gradient = concatenated(notes_of(parameter).pending)
        adagrad_(parameter, total, gradient, group["lr"], group["eps"], self._slot(parameter))

    def _sum(self, group: dict, parameter: Tensor) -> Tensor:
        """SGD with AdaGrad step sizes: the sum of squared gradients of each weight."""
        state = self.state[parameter]
        if "sum" not in state:
            state["sum"] = torch.full_like(parameter, group["initial"])
        return state["sum"]

    def metric(self, group: dict, parameter: Tensor) -> Tensor:
        """SGD with AdaGrad step sizes: the metric 1 / (sqrt(sum of squared gradients) + eps) of each weight."""
        return 1.0 / (self._sum(group, parameter).sqrt() + group["eps"])
