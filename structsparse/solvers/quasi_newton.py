"""Proximal quasi-Newton: an L-BFGS model of the loss plus the exact penalty, minimised over a working set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.kernels.solvers.quasi_newton import coordinate_descent
from structsparse.penalties import Penalty
from structsparse.penalties.base import Separable
from structsparse.solvers.composite import Composite, inner
from structsparse.solvers.flat_vector import put_, split, take, take_broadcast, where
from structsparse.solvers.secants import QuadraticModel, Secants

ENOUGH = 1e-4  # share of the predicted gain that a step must achieve
TRIES = 30  # largest number of halvings of a step
EXACT = 1e-6  # the inner solver stops when an iteration gains less than this share of the largest gain so far


def by_entry(penalty: Penalty | None) -> bool:
    """Whether proximal quasi-Newton sees a sum over entries of cut * |W_i| + ridge / 2 * W_i^2 in a penalty.

    The coefficients cut and ridge are the same for all entries."""
    return penalty is None or penalty.cut_and_ridge() is not None


def cut_and_ridge(penalty: Penalty | None) -> tuple[float, float]:
    """The coefficients of |W_i| and W_i^2 / 2 for quasi-Newton solvers, in a penalty that is a sum over entries.

    Both are zero without a penalty."""
    return (0.0, 0.0) if penalty is None else penalty.cut_and_ridge()


def separable(penalty: Penalty | None) -> Separable | None:
    """The penalty as cut * |W_i| + pull_i / 2 * (W_i - centre_i)^2 for proximal quasi-Newton, or None.

    None means that the penalty does not have this form. Without a penalty all coefficients are zero."""
    if penalty is None:
        return Separable(0.0, torch.zeros((), dtype=torch.float64), torch.zeros(()))
    return penalty.separable()


class InnerProblem(NamedTuple):
    """Inner problem of proximal quasi-Newton: minimise a quadratic model of the loss plus the penalty.

    With weights V on the working set, the objective is <slope, V - here> + 1/2 (V - here)' B (V - here) + penalty(V).
    """

    places: Tensor  # int64 [entries], the working set as indices of the concatenated parameters
    here: Tensor  # [entries], the current weights
    slope: Tensor  # [entries], the gradient of the loss with respect to the weights
    model: QuadraticModel  # the L-BFGS metric B
    scale: float  # factor of the initial metric: before any secant pairs, B is diag(scale * weights)
    weights: list[Tensor]  # one per parameter, broadcasts to the parameter: curvature^exponent


class ProximalQuasiNewton(Composite):
    """Proximal quasi-Newton: W <- W + length * (V - W), where V minimises a quadratic model plus the penalty.

    V = argmin_V <gradient, V - W> + 1/2 (V - W)' B (V - W) + penalty(V). B is the L-BFGS metric of the last `history`
    steps, starting from scale * curvature^exponent. V varies over the working set, which has the nonzero entries and
    the zeros that a gradient step would make nonzero. The inner solver is coordinate descent for separable penalties on
    the CPU, otherwise accelerated proximal gradient.

    B models the loss alone, without the pull towards ADMM copies (Copied). So B stays valid when the copies change. The
    length starts at lr and is halved until the objective falls as predicted. If the prox cannot take one step size per
    entry, the parameter has a single curvature."""

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
        """A proximal quasi-Newton step: minimise the model over the working set, then search along the line."""
        secants, weights = self._secants(), self._weights()
        scale = self.shared.get("scale") or self._first_scale(weights)
        penalties = [self.penalties.get(parameter) for parameter in self.members]
        forms = [separable(penalty) for penalty in penalties]
        all_separable = all(form is not None for form in forms)
        for masks in self._working_sets(weights, scale, all_separable):
            problem, rows = self._problem(where(masks), secants, weights, scale)
            by_coordinates = all_separable and problem.here.device.type == "cpu"
            target = self._by_coordinates(problem) if by_coordinates else self._by_gradient(problem)
            fall = self._fall(problem, target)
            if fall < 0:
                break
        self.shared.update(scale=problem.scale, steps=self.shared.get("steps", 0) + 1)
        self._search(closure, problem, target, fall, secants, rows)
        self.shared["secants"] = {"places": secants.places, "S": secants.S, "Y": secants.Y}

    def _secants(self) -> Secants:
        """The secant pairs (step, gradient change) of the last proximal quasi-Newton steps."""
        none = torch.zeros(0, dtype=torch.int64, device=self.members[0].device)
        return Secants(self.history, **self.shared.get("secants", {"places": none}))

    def _weights(self) -> list[Tensor]:
        """The initial quasi-Newton metric of each parameter without the scale: curvature^exponent."""
        curvatures = [self._curvature(parameter) for parameter in self.members]
        return [
            p.new_ones(()) if c is None else c**self.exponent for p, c in zip(self.members, curvatures, strict=True)
        ]

    def _first_scale(self, weights: list[Tensor]) -> float:
        """The initial scale of the quasi-Newton metric, with which a gradient step is predicted to gain the whole loss.

        Losses are never negative, so no step can gain more."""
        gradients, loss = self._gradients(), abs(self.shared["loss"])
        square = inner(gradients, [g / weight for g, weight in zip(gradients, weights, strict=True)])
        return square / (2 * loss) if square > 0 and loss > 0 else 1.0

    def _working_sets(self, weights: list[Tensor], scale: float, all_separable: bool):
        """Masks of the working set of proximal quasi-Newton, one mask per parameter.

        If the penalty couples entries, masks of all entries follow, as a fallback."""
        masks = []
        for parameter, gradient, weight in zip(self.members, self._gradients(), weights, strict=True):
            penalty = self.penalties.get(parameter)
            if by_entry(penalty):
                wakes = gradient.abs() > cut_and_ridge(penalty)[0]
            elif (form := separable(penalty)) is not None:
                wakes = (gradient + form.pull * (parameter - form.centre)).abs() > form.cut
            else:
                wakes = penalty.prox_(parameter - gradient / (scale * weight), 1 / (scale * weight)) != 0
            allowed = self.support.get(parameter)
            masks.append((parameter != 0) | (wakes if allowed is None else wakes & allowed))
        yield masks
        if not all_separable:
            yield [self.support.get(p, torch.ones_like(p, dtype=torch.bool)) != 0 for p in self.members]

    def _problem(self, places: Tensor, secants: Secants, weights, scale: float) -> tuple[InnerProblem, Tensor]:
        """The inner problem of proximal quasi-Newton, and the rows of the working set in the secant pairs."""
        rows = secants.join(places)
        secant_weights = take_broadcast(weights, self.members, secants.places)
        if len(secants):
            scale = secants.secant(secant_weights)
        here, slope = take(self.members, places), take(self._gradients(), places)
        return InnerProblem(places, here, slope, secants.model(rows, secant_weights, scale), scale, weights), rows

    def _fall(self, problem: InnerProblem, target: Tensor) -> float:
        """The change of the objective predicted by proximal quasi-Newton at the target; negative for a decrease.

        The prediction is of first order in the loss and exact in the penalty."""
        before = self._penalty()
        put_(self.members, problem.places, target)
        after = self._penalty()
        put_(self.members, problem.places, problem.here)
        return float(problem.slope @ (target - problem.here)) + after - before

    def _search(
        self, closure, problem: InnerProblem, target: Tensor, fall: float, secants: Secants, rows: Tensor
    ) -> None:
        """Proximal quasi-Newton line search towards the target; a successful step adds a secant pair."""
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

    def _by_coordinates(self, problem: InnerProblem) -> Tensor:
        """Solve the inner problem of proximal quasi-Newton by coordinate descent."""
        here, model, target = problem.here, problem.model, problem.here.clone()
        cuts, pulls, centres = zip(*(separable(self.penalties.get(p)) for p in self.members), strict=True)
        counts = torch.tensor([len(part) for part in split(self.members, problem.places)])
        cut = torch.tensor(cuts, dtype=torch.float64).repeat_interleave(counts)
        pull, centre = (take_broadcast(values, self.members, problem.places) for values in (pulls, centres))
        slope = problem.slope - pull * centre
        inputs = here, slope, model.base, model.Q, model.Q @ model.N, model.diagonal(), cut, pull
        arrays = [tensor.contiguous().numpy() for tensor in (target, *inputs)]
        coordinate_descent(*arrays, min(self.sweeps, 4 + self.shared.get("steps", 0) // 4), EXACT)
        return target

    def _by_gradient(self, problem: InnerProblem) -> Tensor:
        """Solve the inner problem of proximal quasi-Newton by accelerated proximal gradient (FISTA).

        The metric is the diagonal base of B, times the largest eigenvalue of B relative to this base."""
        model, largest = problem.model, problem.model.largest()
        ahead, target, momentum, first = problem.here, problem.here, 1.0, 0.0
        for _ in range(4 * self.sweeps):
            gradient_step = (problem.slope + model.times(ahead - problem.here)) / (largest * model.base)
            moved = self._prox(problem, ahead - gradient_step, largest)
            move, grown = moved - target, (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            # if the step points back against the last move, restart the momentum
            if float(((ahead - moved) * model.base) @ move) > 0:
                momentum, ahead = 1.0, moved
            else:
                momentum, ahead = grown, moved + (momentum - 1) / grown * move
            target, gained = moved, float((move * move * model.base).sum())
            first = max(first, gained)
            if gained <= EXACT * first:
                break
        return target

    def _prox(self, problem: InnerProblem, values: Tensor, largest: float) -> Tensor:
        """The prox of the penalties within proximal quasi-Newton, at values on the working set.

        All other entries are zero."""
        results, begin = [], 0
        parts = split(self.members, problem.places)
        for parameter, part, weight in zip(self.members, parts, problem.weights, strict=True):
            piece = values[begin : begin + len(part)]
            begin += len(part)
            if parameter in self.penalties:
                W = torch.zeros_like(parameter).put_(part, piece.to(parameter.dtype))
                self.penalties[parameter].prox_(W, 1 / (largest * problem.scale * weight))
                piece = W.take(part).double()
            results.append(piece)
        return torch.cat(results)
