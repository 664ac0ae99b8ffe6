"""No training: the weights as they are, through the prox of their penalty."""

from __future__ import annotations

from collections.abc import Callable

import torch

from structsparse.solvers.composite import CALM, Composite


class ProxOnly(Composite):
    """W <- prox of the penalty at W with a step of lr, and nothing more: what rounds a trained model to the values of
    a Discrete penalty (the QT of Suzuki and Nagata, 2013), or cuts it by the threshold of another."""

    full_batch = False

    def __init__(self, params, lr: float = 1.0) -> None:
        super().__init__(params, lr, tolerance=0.0)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        if not self.converged:
            self._mask()
            for parameter, penalty in self.penalties.items():
                penalty.prox_(parameter, self.param_groups[0]["lr"])
            self.shared["calm"] = CALM
        return None if closure is None else self._evaluate(closure, slopes=False)[0]
