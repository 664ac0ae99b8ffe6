"""What an accelerated step does to one parameter, in as few passes over its memory as there can be."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.solvers import fista_passes as kernels
from structsparse.prox.steps import changed


class Moves:
    """One parameter on its way: `here`, where the last step ended, `point`, which lies beyond it, and `metric`, the
    step that is tried. They are written over from step to step: new memory costs as much as a pass over it."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self.here, self.point = (torch.empty_like(parameter, requires_grad=False) for _ in range(2))
        self.metric: Tensor | None = None

    def ahead_(self, before: Tensor, momentum: float) -> None:
        """here <- where it is; it and point <- here + momentum * (here - before)."""
        if self._fit(before):
            arrays = (flat_array(part) for part in (self.parameter, before, self.here, self.point))
            kernels.ahead(*arrays, self._number(momentum))
            changed(self.parameter)
            return
        self.here.copy_(self.parameter)
        self.parameter.add_(self.here - before, alpha=momentum)
        self.point.copy_(self.parameter)

    def stay_(self) -> None:
        """point <- here."""
        self.parameter.copy_(self.here)
        self.point.copy_(self.here)

    def down_(self, gradient: Tensor, step: float | Tensor, scale: float) -> float | Tensor:
        """It <- point - scale * step * gradient; returns scale * step."""
        if isinstance(step, float) or step.dim() == 0 or not self._fit(gradient, step):
            self.parameter.copy_(self.point).sub_(gradient * step, alpha=scale)
            return step * scale
        self.metric = torch.empty_like(step) if self.metric is None else self.metric
        arrays = (flat_array(part) for part in (self.parameter, self.point, gradient, step))
        kernels.down(*arrays, self._number(scale), flat_array(self.metric))
        changed(self.parameter)
        return self.metric

    def sums(self, gradient: Tensor, step: float | Tensor) -> tuple[float, float, float]:
        """With the move from point: sum move^2 / step, sum move * gradient, and sum -move / step * (it - here)."""
        if isinstance(step, Tensor) and self._fit(gradient, step):
            arrays = (flat_array(part) for part in (self.parameter, self.point, self.here, gradient, step))
            return tuple(map(float, kernels.sums(*arrays)))
        move, way = (self.parameter - self.point).double(), (self.parameter - self.here).double()
        scaled = move / step
        return tuple(float((a * b).sum()) for a, b in ((move, scaled), (move, gradient), (-scaled, way)))

    def _fit(self, *others: Tensor) -> bool:
        """Whether all is memory of one shape that the kernels can walk."""
        mine = self.parameter
        return walkable(mine) and all(o.shape == mine.shape and o.dtype == mine.dtype and walkable(o) for o in others)

    def _number(self, value: float):
        return flat_array(self.parameter).dtype.type(value)
