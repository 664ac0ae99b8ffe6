"""OWL-QN (orthant-wise limited-memory quasi-Newton): L-BFGS for lasso and elastic net."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties.base import past_signs
from structsparse.solvers.composite import Composite, inner
from structsparse.solvers.quasi_newton import by_entry, cut_and_ridge
from structsparse.solvers.secants import FLAT

ENOUGH = 1e-4  # line search: smallest allowed ratio of the achieved to the predicted decrease of the objective
TRIES = 40  # line search: largest number of halvings of the step length


class OWLQN(Composite):
    """OWL-QN of Andrew and Gao (2007), for L1, elastic net, squared L2 norm and no penalty.

    The L-BFGS inverse Hessian comes from the last `history` steps. The direction is minus this matrix times the
    pseudo-gradient (smallest subgradient of the objective). The direction is set to zero at weights where it does
    not descend. A weight that would change its sign stops at zero. The step is halved until the objective falls
    enough."""

    def __init__(self, params, lr: float = 1.0, history: int = 10, tolerance: float = 1e-7) -> None:
        if history < 1:
            raise UserError(f"solver.history is {history}; it must be at least 1")
        super().__init__(params, lr, tolerance)
        self.history = history

    def attach(self, penalties, support=None) -> None:
        """Set the penalties of OWL-QN: L1, elastic net, squared L2 norm or none, with one strength for all weights."""
        for penalty in penalties.values():
            if not by_entry(penalty):
                raise UserError(
                    "OWLQN knows L1, ElasticNet, SquaredL2 (without weights of entries) and NoPenalty, got "
                    f"{type(penalty).__name__}; choose FISTA or ProximalQuasiNewton for it"
                )
        super().attach(penalties, support)

    def _begin(self, closure: Callable) -> None:
        """Start OWL-QN: compute the loss at the initial weights, and clear the history of steps."""
        super()._begin(closure)
        self._forget()

    def _forget(self) -> None:
        """Drop OWL-QN's history of steps and gradient changes."""
        for parameter in self.members:
            self.state[parameter].update(steps=[], changes=[])
        self.shared["products"] = []  # inner product of each step with its gradient change, oldest first

    def _step(self, closure: Callable) -> None:
        """Take an OWL-QN step: an orthant-wise L-BFGS direction and a backtracking line search."""
        here, slopes = [p.clone() for p in self.members], self._slopes(self._gradients())
        pseudo = [past_signs(g, p, p.new_tensor(c)) for g, p, c in zip(slopes, here, self._cuts(), strict=True)]
        if inner(pseudo, pseudo) == 0:
            self._stall()
            return
        direction = self._direction(pseudo)
        length, pairs = self.param_groups[0]["lr"], len(self.shared["products"])
        if pairs == 0:
            length /= max(1.0, math.sqrt(inner(pseudo, pseudo)))
        for _ in range(TRIES):
            self._walk(here, pseudo, direction, length)
            moves = [p - start for p, start in zip(self.members, here, strict=True)]
            loss, gradients = self._evaluate(closure)
            if loss + self._penalty() < self.shared["objective"] + ENOUGH * inner(pseudo, moves):
                self._remember(moves, [a - b for a, b in zip(self._slopes(gradients), slopes, strict=True)])
                self._accept(loss, gradients)
                return
            length /= 2
        self._move(here)
        if pairs == 0:
            self._stall()
        self._forget()

    def _walk(self, here: list[Tensor], pseudo: list[Tensor], direction: list[Tensor], length: float) -> None:
        """Move the weights along the OWL-QN direction; weights that would change their sign become zero."""
        for parameter, start, pull, line, cut in zip(self.members, here, pseudo, direction, self._cuts(), strict=True):
            parameter.copy_(start).add_(line, alpha=length)
            if cut > 0:
                side = torch.where(start != 0, start.sign(), -pull.sign())
                parameter.mul_(parameter.sign() == side).add_(0.0)  # adding 0.0 turns -0.0 into 0.0

    def _direction(self, pseudo: list[Tensor]) -> list[Tensor]:
        """The OWL-QN direction: minus the L-BFGS inverse Hessian times the pseudo-gradient.

        With an L1 penalty, the direction is zero where its sign is not opposite to that of the pseudo-gradient."""
        products, direction = self.shared["products"], [-v for v in pseudo]
        steps, changes = ([self.state[p][key] for p in self.members] for key in ("steps", "changes"))
        shares = []
        for k in reversed(range(len(products))):
            share = inner([s[k] for s in steps], direction) / products[k]
            shares.append(share)
            for w, y in zip(direction, changes, strict=True):
                w.sub_(y[k], alpha=share)
        if products:
            last = [y[-1] for y in changes]
            direction = [w.mul_(products[-1] / inner(last, last)) for w in direction]
        for k, share in enumerate(reversed(shares)):
            correction = inner([y[k] for y in changes], direction) / products[k]
            for w, s in zip(direction, steps, strict=True):
                w.add_(s[k], alpha=share - correction)
        cuts = self._cuts()
        return [w.mul_(w * v < 0) if cut > 0 else w for w, v, cut in zip(direction, pseudo, cuts, strict=True)]

    def _remember(self, moves: list[Tensor], changes: list[Tensor]) -> None:
        """Add a step and its gradient change to OWL-QN's history, unless their inner product is too small."""
        product = inner(moves, changes)
        if product <= FLAT * math.sqrt(inner(moves, moves) * inner(changes, changes)):
            return
        self.shared["products"].append(product)
        del self.shared["products"][: -self.history]
        for parameter, move, change in zip(self.members, moves, changes, strict=True):
            for key, latest in (("steps", move), ("changes", change)):
                self.state[parameter][key].append(latest)
                del self.state[parameter][key][: -self.history]

    def _cuts(self) -> list[float]:
        """OWL-QN: the strength of the L1 penalty on each parameter."""
        return [cut_and_ridge(self.penalties.get(parameter))[0] for parameter in self.members]

    def _slopes(self, gradients: list[Tensor]) -> list[Tensor]:
        """OWL-QN: the gradients of loss plus squared L2 penalty at the current parameters."""
        ridges = [cut_and_ridge(self.penalties.get(parameter))[1] for parameter in self.members]
        return [g.add(p, alpha=ridge) for g, p, ridge in zip(gradients, self.members, ridges, strict=True)]
