"""Proximal quasi-Newton: a model of the loss from its last steps, the penalty exact in it, on the entries that live."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.kernels.solvers.quasi_newton import coordinate_descent
from structsparse.penalties import L1, Copied, ElasticNet, NoPenalty, Penalty, SquaredL2
from structsparse.solvers.composite import Composite, inner
from structsparse.solvers.flat_vector import put_, split, take, take_broadcast, where
from structsparse.solvers.secants import Model, Secants

BY_ENTRY = (L1, ElasticNet, NoPenalty, SquaredL2)
ENOUGH = 1e-4  # share of the predicted gain that a step must bring
TRIES = 30  # of shorter steps
EXACT = 1e-6  # of the inner problem: a sweep that lowers the model by so little of what the first did is the last


def by_entry(penalty: Penalty | None) -> bool:
    """Whether it is cut * |W_i| + ridge / 2 * W_i^2, summed over entries, with one cut and one ridge for all."""
    return penalty is None or (type(penalty) in BY_ENTRY and penalty.weights is None)


def cut_and_ridge(penalty: Penalty | None) -> tuple[float, float]:
    if penalty is None:
        return 0.0, 0.0
    strength = float(penalty.strength)
    return strength * penalty.mix, strength * (1 - penalty.mix)


def cut_and_pull(penalty: Penalty | None) -> tuple[float, Tensor, Tensor]:
    """Of cut * |W_i| + pull_i / 2 * (W_i - centre_i)^2: the pull broadcasts to the parameter, as the centre does."""
    if isinstance(penalty, Copied):
        return penalty.lasso, penalty.pull, penalty.centre
    cut, ridge = cut_and_ridge(penalty)
    return cut, torch.tensor(ridge, dtype=torch.float64), torch.zeros(())


class Inner(NamedTuple):
    """Minimise  <slope, V - here> + 1/2 (V - here)' B (V - here) + value(V)  over the entries at some places."""

    places: Tensor  # int64 [entries]
    here: Tensor  # [entries]
    slope: Tensor  # [entries]
    model: Model  # B
    scale: float  # the base of B is scale * weights
    weights: list[Tensor]  # broadcast to the parameters


class ProximalQuasiNewton(Composite):
    """W <- W + length * (V - W),  V = argmin_V  <gradient, V - W> + 1/2 (V - W)' B (V - W) + value(V),

    where B is the L-BFGS metric of the last `history` steps over scale * curvature^exponent. The model is minimised
    over the working set, the entries that are not zero or that a gradient step would wake: by coordinate descent under
    penalties of entries on the CPU, else by accelerated proximal gradient. What pulls weights towards copies of them
    (Copied) is no part of the metric, which is of the loss alone and stays true when the copies move. The length starts
    at lr and is halved until the objective falls as foreseen. A penalty that takes no step per entry has one curvature
    for its parameter."""

    def __init__(
        self,
        params,
        lr: float = 1.0,
        history: int = 10,
        exponent: float = 0.6,
        sweeps: int = 20,
        tolerance: float = 1e-7,
    ) -> None:
        if history < 1 or sweeps < 1:
            raise UserError(f"solver.history={history} and solver.sweeps={sweeps} must be at least 1")
        if not 0 <= exponent <= 1:
            raise UserError(f"solver.exponent is {exponent}; it must be from 0 to 1")
        super().__init__(params, lr, tolerance)
        self.history, self.exponent, self.sweeps = history, exponent, sweeps

    def _step(self, closure: Callable) -> None:
        secants, weights = self._secants(), self._weights()
        scale = self.shared.get("scale") or self._first_scale(weights)
        penalties = [self.penalties.get(parameter) for parameter in self.members]
        separable = all(by_entry(penalty) or isinstance(penalty, Copied) for penalty in penalties)
        for masks in self._working_sets(weights, scale, separable):
            problem, rows = self._problem(where(masks), secants, weights, scale)
            by_coordinates = separable and problem.here.device.type == "cpu"
            target = self._by_coordinates(problem) if by_coordinates else self._by_gradient(problem)
            fall = self._fall(problem, target)
            if fall < 0:
                break
        self.shared.update(scale=problem.scale, steps=self.shared.get("steps", 0) + 1)
        self._search(closure, problem, target, fall, secants, rows)
        self.shared["secants"] = {"places": secants.places, "S": secants.S, "Y": secants.Y}

    def _secants(self) -> Secants:
        none = torch.zeros(0, dtype=torch.int64, device=self.members[0].device)
        return Secants(self.history, **self.shared.get("secants", {"places": none}))

    def _weights(self) -> list[Tensor]:
        """curvature^exponent of each parameter."""
        curvatures = [self._curvature(parameter) for parameter in self.members]
        return [
            p.new_ones(()) if c is None else c**self.exponent for p, c in zip(self.members, curvatures, strict=True)
        ]

    def _first_scale(self, weights: list[Tensor]) -> float:
        """A step by the gradient alone must not promise to gain more than the whole loss, which is never negative."""
        gradients, loss = self._gradients(), abs(self.shared["loss"])
        square = inner(gradients, [g / weight for g, weight in zip(gradients, weights, strict=True)])
        return square / (2 * loss) if square > 0 and loss > 0 else 1.0

    def _working_sets(self, weights: list[Tensor], scale: float, separable: bool):
        """Masks of what a step moves; last, where a penalty may wake what its prox alone does not, of everything."""
        masks = []
        for parameter, gradient, weight in zip(self.members, self._gradients(), weights, strict=True):
            penalty = self.penalties.get(parameter)
            if by_entry(penalty):
                wakes = gradient.abs() > cut_and_ridge(penalty)[0]
            elif isinstance(penalty, Copied):
                wakes = penalty.slope(parameter, gradient).abs() > penalty.lasso
            else:
                wakes = penalty.prox_(parameter - gradient / (scale * weight), 1 / (scale * weight)) != 0
            allowed = self.support.get(parameter)
            masks.append((parameter != 0) | (wakes if allowed is None else wakes & allowed))
        yield masks
        if not separable:
            yield [self.support.get(p, torch.ones_like(p, dtype=torch.bool)) != 0 for p in self.members]

    def _problem(self, places: Tensor, secants: Secants, weights, scale: float) -> tuple[Inner, Tensor]:
        """And the rows of the places among those that the secants keep."""
        rows = secants.join(places)
        kept = take_broadcast(weights, self.members, secants.places)
        if len(secants):
            scale = secants.secant(kept)
        here, slope = take(self.members, places), take(self._gradients(), places)
        return Inner(places, here, slope, secants.model(rows, kept, scale), scale, weights), rows

    def _fall(self, problem: Inner, target: Tensor) -> float:
        """What the objective changes by to first order, below zero if it falls."""
        before = self._penalty()
        put_(self.members, problem.places, target)
        after = self._penalty()
        put_(self.members, problem.places, problem.here)
        return float(problem.slope @ (target - problem.here)) + after - before

    def _search(self, closure, problem: Inner, target: Tensor, fall: float, secants: Secants, rows: Tensor) -> None:
        """Shorter and shorter steps towards the target, until one gains its share; a pair for the metric from it."""
        before, length = self._gradients(), self.param_groups[0]["lr"]
        for _ in range(TRIES if fall < 0 else 0):
            put_(self.members, problem.places, torch.lerp(problem.here, target, length))
            loss, gradients = self._evaluate(closure)
            if loss + self._penalty() <= self.shared["objective"] + ENOUGH * length * fall:
                step = torch.zeros_like(secants.S[:, 0]) if len(secants) else secants.S.new_zeros(len(secants.places))
                step[rows] = take(self.members, problem.places) - problem.here
                secants.add(step, take(gradients, secants.places) - take(before, secants.places))
                self._accept(loss, gradients)
                return
            length /= 2
        put_(self.members, problem.places, problem.here)
        if len(secants) == 0:
            self._stall()
        secants.forget()

    def _by_coordinates(self, problem: Inner) -> Tensor:
        here, model, target = problem.here, problem.model, problem.here.clone()
        cuts, pulls, centres = zip(*(cut_and_pull(self.penalties.get(p)) for p in self.members), strict=True)
        counts = torch.tensor([len(part) for part in split(self.members, problem.places)])
        cut = torch.tensor(cuts, dtype=torch.float64).repeat_interleave(counts)
        pull, centre = (take_broadcast(some, self.members, problem.places) for some in (pulls, centres))
        slope = problem.slope - pull * centre
        given = here, slope, model.base, model.Q, model.Q @ model.N, model.diagonal(), cut, pull
        arrays = [tensor.contiguous().numpy() for tensor in (target, *given)]
        coordinate_descent(*arrays, min(self.sweeps, 4 + self.shared.get("steps", 0) // 4), EXACT)
        return target

    def _by_gradient(self, problem: Inner) -> Tensor:
        """FISTA on the model, in the metric of its base times its largest eigenvalue."""
        model, largest = problem.model, problem.model.largest()
        ahead, target, momentum, first = problem.here, problem.here, 1.0, 0.0
        for _ in range(4 * self.sweeps):
            pull = (problem.slope + model.times(ahead - problem.here)) / (largest * model.base)
            moved = self._prox(problem, ahead - pull, largest)
            move, grown = moved - target, (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            if float(((ahead - moved) * model.base) @ move) > 0:  # it turns back
                momentum, ahead = 1.0, moved
            else:
                momentum, ahead = grown, moved + (momentum - 1) / grown * move
            target, gained = moved, float((move * move * model.base).sum())
            first = max(first, gained)
            if gained <= EXACT * first:
                break
        return target

    def _prox(self, problem: Inner, values: Tensor, largest: float) -> Tensor:
        """Of entries that stand in parameters which are zero everywhere else."""
        found, begin = [], 0
        parts = split(self.members, problem.places)
        for parameter, part, weight in zip(self.members, parts, problem.weights, strict=True):
            piece = values[begin : begin + len(part)]
            begin += len(part)
            if parameter in self.penalties:
                W = torch.zeros_like(parameter).put_(part, piece.to(parameter.dtype))
                self.penalties[parameter].prox_(W, 1 / (largest * problem.scale * weight))
                piece = W.take(part).double()
            found.append(piece)
        return torch.cat(found)
