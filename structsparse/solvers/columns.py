"""AdamW that moves only the columns of a table that the batch has, such as the codes of its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.solvers.base import Solver
from structsparse.weights.notes import ColumnGradient, notes_of


class _Last(NamedTuple):
    """AdamW on columns: what the last step moved in a table, for the prox after it."""

    columns: Tensor  # int64, indices
    metric: Tensor  # [rows, columns], 1 / (sqrt(mean squared gradient) + eps)


class ColumnAdamW(Solver):
    """AdamW, which moves the columns of a table only where the batch has a gradient, each with its own count of steps.

    Tables that `weights.columns` reads have such gradients; other parameters have a step of AdamW as a whole. If an
    epoch has each of n columns once, in batches of b, the mean loss of a batch has n / b times the share of a column in
    the objective. The prox of the penalty is therefore of the columns of the batch, with n / b times the step.

    `whole` is the learning rate of the other parameters, as a share of `lr`. If it is None, a table with several
    rows has 1 / sqrt(columns), the size of an entry of a row of norm 1, and any other parameter has 1."""

    needs_each_prox = True

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        whole: float | None = 1.0,
    ) -> None:
        if not (min(lr, weight_decay, whole or 0.0) >= 0 and eps > 0):
            raise UserError("solver.lr, whole and weight_decay must be zero or positive, and solver.eps positive")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise UserError(f"solver.betas is {[*betas]}, expected two numbers from 0 to less than 1")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})
        self.whole = whole
        self.last: dict[Tensor, _Last] = {}
        for parameter in self.members:
            notes_of(parameter).columns = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """AdamW on columns: delete the gradients, those of parameters and those of columns."""
        super().zero_grad(set_to_none)
        for parameter in self.members:
            notes_of(parameter).columns.clear()

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """AdamW on columns: move the columns of the batch, and parameters with a dense gradient as a whole."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self._state(parameter, ())
                    _, moved = _moved(group, group["lr"] * self._share(parameter), parameter, parameter.grad, **state)
                    parameter.copy_(moved)
                pending = notes_of(parameter).columns
                if pending:
                    self._move_columns(group, parameter, pending)
        return loss

    def _share(self, parameter: Tensor) -> float:
        """AdamW on columns: the learning rate of a parameter that moves as a whole, as a share of `lr`."""
        if self.whole is not None:
            return self.whole
        return parameter.shape[1] ** -0.5 if parameter.dim() == 2 and len(parameter) > 1 else 1.0

    def _move_columns(self, group: dict, table: Tensor, pending: list[ColumnGradient]) -> None:
        """AdamW on columns: the step of some columns of a table."""
        indices = torch.cat([part.indices for part in pending])
        gradient = torch.cat([part.gradient for part in pending], dim=1)
        stored = self._state(table, table.shape[1:])
        state = {name: values.index_select(-1, indices) for name, values in stored.items()}
        metric, moved = _moved(group, group["lr"], table.index_select(1, indices), gradient, **state)
        table.index_copy_(1, indices, moved)
        for name, values in stored.items():
            values.index_copy_(values.dim() - 1, indices, state[name])
        self.last[table] = _Last(indices, metric)

    def _state(self, parameter: Tensor, counted: tuple[int, ...]) -> dict[str, Tensor]:
        """AdamW on columns: the moments of a parameter, and the counts of steps, one or one for each column."""
        state = self.state[parameter]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["steps"] = parameter.new_zeros(counted)
        return state

    def metric(self, group: dict, parameter: Tensor) -> float | Tensor:
        """AdamW on columns: the metric of the columns of the last step, in the unit of their share of the objective."""
        last = self.last.get(parameter)
        return 0.0 if last is None else last.metric * (parameter.shape[1] / len(last.columns))

    def prox_(self, penalty: Penalty, parameter: Tensor, steps: float | Tensor) -> None:
        """AdamW on columns: apply the prox of a penalty to the columns that the last step has moved."""
        last = self.last.pop(parameter, None)
        if last is not None:
            moved = penalty.prox_(parameter.index_select(1, last.columns), steps)
            parameter.index_copy_(1, last.columns, moved)


def _moved(
    group: dict, lr: float, values: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, steps: Tensor
) -> tuple[Tensor, Tensor]:
    """Step of AdamW: the metric and the new values; the moments and the counts of steps change in place."""
    first, second = group["betas"]
    steps += 1
    mean.lerp_(gradient, 1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    metric = (square / (1 - second**steps)).sqrt_().add_(group["eps"]).reciprocal_()
    moved = values * (1 - lr * group["weight_decay"])
    return metric, moved - lr * metric * mean / (1 - first**steps)
