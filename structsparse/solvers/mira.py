"""MIRA as a torch optimizer: passive-aggressive steps with the step size loss / ||gradient||^2."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.sgd import RowSolver
from structsparse.weights.bags import BagGradient, concatenated, row_sums, subtract_
from structsparse.weights.notes import notes_of


class MIRA(RowSolver):
    """MIRA optimizer (passive-aggressive learning): w -= lr * min(cap, loss / ||gradient||^2) * gradient.

    The closure returns the loss. The norm is that of the gradients of all parameters together. `lr` and `cap` are
    options. Nothing changes if the gradient is zero."""

    needs_closure = True

    def __init__(self, params, cap: float = 1.0, lr: float = 1.0) -> None:
        if not cap > 0:
            raise UserError(f"solver.cap is {cap}; it must be positive")
        super().__init__(params, {"lr": lr, "taken": 0.0})
        self.cap = cap

    @torch.no_grad()
    def step(self, closure=None):
        """A passive-aggressive MIRA step; `closure` computes the loss and the gradients."""
        if closure is None:
            raise UserError("MIRA's step follows from the loss: call step(closure) with what computes it")
        with torch.enable_grad():
            loss = closure()
        members = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        pending = {p: concatenated(notes_of(p).pending) for _, p in members if notes_of(p).pending}
        length = self._length(loss, [p for _, p in members], pending)
        for group in self.param_groups:
            group["taken"] = group["lr"] * length
        for group, parameter in members:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad * group["taken"])
            if parameter in pending:
                _subtract_(parameter, pending[parameter], group["taken"])
        return loss

    def _length(self, loss, parameters: list[Tensor], pending: dict[Tensor, BagGradient]) -> Tensor:
        """The MIRA step size min(cap, loss / ||gradient||^2), as a float64 tensor on the device of the gradients."""
        squares = [p.grad.square().sum(dtype=torch.float64) for p in parameters if p.grad is not None]
        squares += [row_sums(gradient)[1].square().sum(dtype=torch.float64) for gradient in pending.values()]
        total = torch.stack([s.to(squares[0].device) for s in squares]).sum() if squares else torch.zeros(())
        loss = torch.as_tensor(loss, dtype=torch.float64, device=total.device).detach()
        return torch.where(total > 0, (loss / total).clamp(max=self.cap), 0.0)

    def rate(self, group: dict) -> float | Tensor:
        """The last step size of the MIRA optimizer, including the factor lr."""
        return group["taken"]

    def metric(self, group: dict, parameter: Tensor) -> float:
        """The metric of the MIRA optimizer: 1, the same step size for all weights."""
        return 1.0


def _subtract_(table: Tensor, gradient: BagGradient, rate: Tensor) -> None:
    """MIRA step of a weight table: subtract rate * gradient, with one gradient vector per list of table rows."""
    if table.device.type == "cpu":
        subtract_(table, gradient, float(rate))
        return
    rows, sums = row_sums(gradient)
    table.index_add_(0, rows, sums * -rate.to(sums.dtype))
