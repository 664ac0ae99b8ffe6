"""Proximal quasi-Newton: minimise an L-BFGS model of the loss plus the exact penalty, over a working set."""

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

ENOUGH = 1e-4  # line search: smallest allowed ratio of the achieved to the predicted decrease of the objective
TRIES = 30  # line search: largest number of halvings of the step length
EXACT = 1e-6  # the inner solver ends when an iteration gains less than this share of the largest gain so far


def by_entry(penalty: Penalty | None) -> bool:
    """Whether a penalty is the sum of cut * |w| + ridge / 2 * w^2 over all weights w, for quasi-Newton solvers.

    The coefficients cut and ridge must be the same for all weights."""
    return penalty is None or penalty.cut_and_ridge() is not None


def cut_and_ridge(penalty: Penalty | None) -> tuple[float, float]:
    """The coefficients of |w| and w^2 / 2 in a penalty on each weight w, for quasi-Newton solvers; (0, 0) for None."""
    return (0.0, 0.0) if penalty is None else penalty.cut_and_ridge()


def separable(penalty: Penalty | None) -> Separable | None:
    """The penalty of each weight w as cut * |w| + pull / 2 * (w - centre)^2, for proximal quasi-Newton.

    `pull` and `centre` may differ between weights. Returns None if the penalty does not have this form."""
    if penalty is None:
        return Separable(0.0, torch.zeros((), dtype=torch.float64), torch.zeros(()))
    return penalty.separable()


class InnerProblem(NamedTuple):
    """Inner problem of proximal quasi-Newton: minimise a quadratic model of the loss plus the penalty.

    The objective is <slope, V - here> + 1/2 (V - here)' B (V - here) + penalty(V), over the weights V in the working
    set. Here `here` has the current weights, `slope` the gradient of the loss, and B approximates the Hessian.
    """

    places: Tensor  # indices (int64) of the weights in the working set, among all weights
    here: Tensor  # the current weights in the working set
    slope: Tensor  # the gradient of the loss for the weights in the working set
    model: QuadraticModel  # the Hessian approximation B of L-BFGS
    scale: float  # factor of the initial Hessian approximation, a diagonal matrix
    weights: list[Tensor]  # for each parameter, the diagonal of the initial Hessian approximation, divided by `scale`


class ProximalQuasiNewton(Composite):
    """Proximal quasi-Newton: W <- W + length * (V - W), where V minimises a quadratic model plus the penalty.

    - The quadratic model of the loss is <gradient, V - W> + 1/2 (V - W)' B (V - W).
    - B is the L-BFGS approximation of the Hessian from the last `history` steps. The initial approximation is diagonal,
      scale * curvature^exponent, where curvature is an estimated second derivative of the loss.
    - V differs from W only in a working set: nonzero weights, and zeros that a gradient step would make nonzero.
    - On the CPU, coordinate descent finds V if the penalty is an L1 norm plus weighted squares. In all other
      cases, accelerated proximal gradient finds V.
    - `length` starts at lr and is halved until the objective falls enough."""

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
        """Make a proximal quasi-Newton step: minimise model plus penalty on the working set, then search the line."""
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
        """Initial diagonal of the quasi-Newton Hessian, without its scale factor: curvature^exponent per weight."""
        curvatures = [self._curvature(parameter) for parameter in self.members]
        return [
            p.new_ones(()) if c is None else c**self.exponent for p, c in zip(self.members, curvatures, strict=True)
        ]

    def _first_scale(self, weights: list[Tensor]) -> float:
        """The initial scale of the quasi-Newton Hessian, at which the quadratic model of the loss has the minimum 0.

        The loss itself is usually not negative. The scale is 1 if loss or gradient is zero."""
        gradients, loss = self._gradients(), abs(self.shared["loss"])
        square = inner(gradients, [g / weight for g, weight in zip(gradients, weights, strict=True)])
        return square / (2 * loss) if square > 0 and loss > 0 else 1.0

    def _working_sets(self, weights: list[Tensor], scale: float, all_separable: bool):
        """Yields the working set of proximal quasi-Newton as a list of masks, one mask per parameter.

        If a penalty is not an L1 norm plus weighted squares, then yields masks of all weights as a fallback."""
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
        """The inner problem of proximal quasi-Newton, and row indices of its weights.

        The secant pairs are stored as matrices with a row per stored weight. The second result has, for each weight of
        the problem, the index of its row."""
        rows = secants.join(places)
        secant_weights = take_broadcast(weights, self.members, secants.places)
        if len(secants):
            scale = secants.secant(secant_weights)
        here, slope = take(self.members, places), take(self._gradients(), places)
        return InnerProblem(places, here, slope, secants.model(rows, secant_weights, scale), scale, weights), rows

    def _fall(self, problem: InnerProblem, target: Tensor) -> float:
        """The predicted change of the objective by a full proximal quasi-Newton step; negative for a decrease.

        The loss is predicted by its gradient; the change of the penalty is exact."""
        before = self._penalty()
        put_(self.members, problem.places, target)
        after = self._penalty()
        put_(self.members, problem.places, problem.here)
        return float(problem.slope @ (target - problem.here)) + after - before

    def _search(
        self, closure, problem: InnerProblem, target: Tensor, fall: float, secants: Secants, rows: Tensor
    ) -> None:
        """Proximal quasi-Newton line search from the current weights to `target`; adds a secant pair on success."""
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
        """Solve the inner problem of proximal quasi-Newton by accelerated proximal gradient (FISTA)."""
        model, largest = problem.model, problem.model.largest()
        ahead, target, momentum, first = problem.here, problem.here, 1.0, 0.0
        for _ in range(4 * self.sweeps):
            gradient_step = (problem.slope + model.times(ahead - problem.here)) / (largest * model.base)
            moved = self._prox(problem, ahead - gradient_step, largest)
            move, grown = moved - target, (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            # restart the momentum if the step points against the last step
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
        """The prox of the penalties in the inner problem of proximal quasi-Newton, for values of the working set.

        The prox treats all other weights as zero."""
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
