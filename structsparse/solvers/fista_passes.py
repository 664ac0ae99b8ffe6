"""FISTA's vector operations on one parameter, each fused into one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.solvers import fista_passes as kernels
from structsparse.prox.steps import changed


class AcceleratedParameter:
    """Work arrays of one parameter for the fused passes of FISTA, reused in every step.

    `here` holds the weights after the last step, `point` the extrapolated weights, `metric` the step size of each
    weight."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self.here, self.point = (torch.empty_like(parameter, requires_grad=False) for _ in range(2))
        self.metric: Tensor | None = None

    def ahead_(self, before: Tensor, momentum: float) -> None:
        """Fused FISTA pass: store the weights W in `here`, then set W and `point` to W + momentum * (W - before).

        `before` holds the weights of the previous step."""
        if self._fit(before):
            arrays = (flat_array(part) for part in (self.parameter, before, self.here, self.point))
            kernels.ahead(*arrays, self._number(momentum))
            changed(self.parameter)
            return
        self.here.copy_(self.parameter)
        self.parameter.add_(self.here - before, alpha=momentum)
        self.point.copy_(self.parameter)

    def stay_(self) -> None:
        """FISTA pass that undoes the extrapolation: set the weights and `point` to `here`."""
        self.parameter.copy_(self.here)
        self.point.copy_(self.here)

    def down_(self, gradient: Tensor, step: float | Tensor, scale: float) -> float | Tensor:
        """Fused FISTA pass: set the weights to point - scale * step * gradient; returns scale * step."""
        if isinstance(step, float) or step.dim() == 0 or not self._fit(gradient, step):
            self.parameter.copy_(self.point).sub_(gradient * step, alpha=scale)
            return step * scale
        self.metric = torch.empty_like(step) if self.metric is None else self.metric
        arrays = (flat_array(part) for part in (self.parameter, self.point, gradient, step))
        kernels.down(*arrays, self._number(scale), flat_array(self.metric))
        changed(self.parameter)
        return self.metric

    def sums(self, gradient: Tensor, step: float | Tensor) -> tuple[float, float, float]:
        """Fused FISTA pass for backtracking: three sums over all weights W of a parameter.

        The summands are move^2 / step, move * gradient and -move / step * (W - here), where move is W - point."""
        if isinstance(step, Tensor) and self._fit(gradient, step):
            arrays = (flat_array(part) for part in (self.parameter, self.point, self.here, gradient, step))
            return tuple(map(float, kernels.sums(*arrays)))
        move, from_here = (self.parameter - self.point).double(), (self.parameter - self.here).double()
        scaled = move / step
        return tuple(float((a * b).sum()) for a, b in ((move, scaled), (move, gradient), (-scaled, from_here)))

    def _fit(self, *tensors: Tensor) -> bool:
        """Whether the compiled FISTA passes support these tensors."""
        W = self.parameter
        return walkable(W) and all(o.shape == W.shape and o.dtype == W.dtype and walkable(o) for o in tensors)

    def _number(self, value: float):
        """Convert a number to the dtype of the parameter, for the compiled FISTA passes."""
        return flat_array(self.parameter).dtype.type(value)
