"""`fit_linear`: sparse linear models by proximal Newton with working sets, to a certified duality gap.

 minimise over w and b:  (1/N) sum_i loss(y_i, x_i w + b)  +  strength * penalty(w)  +  1/2 sum_j quadratic_j w_j^2

- w are the weights of the features, b is the intercept, and quadratic_j is the ridge coefficient of feature j.
- Item i of the N items has the features x_i, the target y_i and the score f = x_i w + b.
- The loss is log(1 + exp(-y f)) with y in {-1, +1} ("logistic"), or (f - y)^2 / 2 ("squared").
- The duality gap is an upper bound of the objective minus its minimum.

The method combines working sets (Johnson and Guestrin 2015) with gap-safe screening (Ndiaye et al. 2017), extended to
losses other than squared (Massias et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import linear_problem as kernels
from structsparse.kernels.solvers import linear_ridge
from structsparse.kernels.solvers.linear_newton import solve
from structsparse.kernels.solvers.linear_problem import LinearProblem
from structsparse.penalties import Penalty
from structsparse.solvers.linear.problem import make_blocks, make_problem, numbers, shape_of

FREE = 1000  # largest number of features with neither penalty nor ridge
FIRST = 60  # least number of feature blocks in the first working set
# The first working set has all blocks that violate their optimality conditions if they hold few entries of the data
# matrix: at most this number for each item. Passes over it then cost about as much as computing the loss and the gap.
CHEAP = 20
GROWTH = 2  # a working set has at least this number of blocks for each nonzero block
INNER = 0.2  # duality gap to which a working set is solved, as a share of the gap over all blocks
ROUNDS = 100  # maximum number of Newton iterations for one working set
STALLED = 10  # the search ends after more than this number of successive working sets without progress


@dataclass
class LinearFit:
    """The result of `fit_linear`: a fitted sparse linear model with its certified duality gap.

    The gap is divided by the objective of the model that has only an intercept."""

    weights: Tensor  # float64 [features]
    intercept: float
    objective: float
    gap: float
    converged: bool  # whether the gap is within the tolerance
    iterations: int  # number of working sets solved
    passes: int  # number of coordinate descent passes over working sets
    groups: Tensor  # indices (int64) of nonzero groups or, without groups, of nonzero features
    history: list[float] = field(repr=False)  # the duality gap before each working set, and at the end


def fit_linear(
    X,
    y,
    penalty: Penalty,
    loss: str = "logistic",
    tolerance: float = 1e-6,
    start: LinearFit | tuple | None = None,
    intercept: bool = True,
    quadratic=None,
    iterations: int = 200,
) -> LinearFit:
    """Fit a sparse linear model to X [items, features] and y [items], to a relative duality gap of `tolerance`.

    X may be sparse or dense. `start` is another fit, or a pair of weights and intercept. `quadratic` [features] holds
    ridge coefficients; None means no ridge. The search ends without convergence after `iterations` working sets, or
    when it makes no more progress."""
    if not (isinstance(tolerance, int | float) and 0 < tolerance < np.inf):
        raise UserError(f"the tolerance of fit_linear is {tolerance!r}, expected a finite number above 0")
    blocks = make_blocks(penalty, _features(X))
    search = _WorkingSets(make_problem(X, y, blocks, loss, intercept, quadratic), intercept)
    search.begin(_checked_start(start, len(blocks.ridge), intercept))
    while not search.done(tolerance) and search.iterations < iterations:
        search.step(tolerance)
    return search.result(penalty, tolerance)


def critical_strength(X, y, penalty: Penalty, loss: str = "logistic", intercept: bool = True) -> float | None:
    """The smallest penalty strength at which all penalised weights of a linear fit are zero; None if unknown."""
    blocks = make_blocks(penalty, _features(X), strength=1.0)
    search = _WorkingSets(make_problem(X, y, blocks, loss, intercept, None), intercept)
    if len(search.free) < len(search.unpenalised):
        return None
    search.begin(None)
    kernels.total_loss(search.problem, search.scores, search.slope, search.curvature)
    kernels.gradient(search.problem, search.slope, search.blocks, search.grad)
    grad = torch.from_numpy(search.grad[: len(blocks.ridge)])
    return float(penalty.critical(grad if penalty.groups is None else grad.view(penalty.groups.shape)))


class _WorkingSets:
    """Working-set search of `fit_linear`: weights (the intercept last), scores, dual bound and candidate blocks.

    Candidates are the feature blocks that may be nonzero at the optimum. The dual bound is the best dual objective so
    far."""

    def __init__(self, problem: LinearProblem, intercept: bool):
        self.problem, self.intercept = problem, intercept
        self.blocks = np.arange(len(problem.cut))
        first = problem.members[problem.bounds[:-1]]
        unpenalised = (problem.cut == 0) & (problem.reach == 0)
        self.unpenalised = self.blocks[unpenalised]
        # `free`: features with neither penalty nor ridge; a feasible dual point must be orthogonal to their columns
        self.free = self.blocks[unpenalised & (problem.ridge[first] == 0)]
        if len(self.free) > FREE:
            raise UserError(
                f"{len(self.free)} features have neither penalty nor quadratic weight, expected at most {FREE}: "
                "a dual point orthogonal to more of them costs too much"
            )
        items = len(problem.targets)
        self.w, self.grad = np.zeros(len(problem.ridge)), np.zeros(len(problem.ridge))
        self.scores, self.slope, self.curvature = np.zeros(items), np.empty(items), np.empty(items)
        self.norms, self.distance = np.empty(len(self.blocks)), np.empty(len(self.blocks))
        kernels.block_norms(problem, self.norms)
        self.basis = self._columns(first[self.free])
        # `rows`: the data matrix by items if all blocks are unpenalised or have ridge only, which needs no working sets
        ridged = len(self.free) < len(self.unpenalised) == len(self.blocks)
        self.rows = linear_ridge.rows_of(problem) if ridged else None
        self.iterations = self.passes = self.idle = 0
        self.least, self.objective, self.history = FIRST, np.inf, []
        self._unscreen()

    def begin(self, start: np.ndarray | None) -> None:
        """Start `fit_linear` at the weights `start`; if None, first fit the features with neither penalty nor ridge."""
        if self.intercept:
            self._solve(self.blocks[-1:], 0.0)
        objective = self._objective()
        self.unit = objective if objective > 0 else 1.0
        if start is not None:
            self.w = start
            self._rescore()
        elif len(self.free) > self.intercept:
            self._solve(self.free, 0.0)

    def done(self, tolerance: float) -> bool:
        """Whether `fit_linear` is done: the duality gap is within the tolerance, or the search makes no progress.

        Each call recomputes the duality gap and screens blocks."""
        gap = self._gap()
        if gap <= tolerance * self.unit and self._is_indirect():
            self._unscreen()
            self._rescore()
            gap = self._gap()
        self.history.append(gap / self.unit)
        return gap <= tolerance * self.unit or self.idle > STALLED

    def step(self, tolerance: float) -> None:
        """Fit the weights of one working set: the nonzero blocks and the blocks nearest to becoming nonzero."""
        before, gap = self.history[-2:-1], self.history[-1]
        if before and gap > before[0] / 2:
            self.least *= 2
        near = self.distance[self.candidates]
        if not self.iterations:
            self.least = self._first_size()
        size = max(self.least, GROWTH * int((near == -np.inf).sum()))
        chosen = self.candidates if size >= len(near) else self.candidates[np.argpartition(near, size - 1)[:size]]
        goal = max(0.0 if self.rows else INNER * min(gap, 1.0), tolerance / 2) * self.unit
        self._solve(np.sort(chosen), goal / 4**self.idle)
        self.iterations += 1

    def _first_size(self) -> int:
        """The number of blocks in the first working set of `fit_linear`."""
        violated = kernels.violations(self.problem, self.grad, self.w, self.candidates)
        cheap = CHEAP * len(self.slope) * len(self.blocks) // max(len(self.problem.values), 1)
        return max(FIRST, min(violated, cheap))

    def result(self, penalty: Penalty, tolerance: float) -> LinearFit:
        """The result of `fit_linear` at the current weights."""
        features = len(self.w) - self.intercept
        weights = torch.from_numpy(self.w[:features].copy())
        living = (
            weights != 0 if penalty.groups is None else penalty.groups.cpu().alive(weights.view(penalty.groups.shape))
        )
        gap = self.history[-1]
        return LinearFit(
            weights=weights,
            intercept=float(self.w[-1]) if self.intercept else 0.0,
            objective=self.objective,
            gap=gap,
            converged=gap <= tolerance,
            iterations=self.iterations,
            passes=self.passes,
            groups=living.nonzero()[:, 0],
            history=self.history,
        )

    def _gap(self) -> float:
        """Compute the duality gap of `fit_linear`, and remove candidate blocks that must be zero.

        Each call updates the gradient and the distance of each block from becoming nonzero."""
        problem, candidates = self.problem, self.candidates
        objective = self._objective()
        self._make_orthogonal()
        kernels.gradient(problem, self.slope, candidates, self.grad)
        scale = 1 / max(1.0, kernels.gauge(problem, self.grad, self.w, candidates))
        self.latest = kernels.dual_value(problem, self.slope, scale, self.grad, self.w, candidates)
        least = 1e-15 * abs(objective)
        self.idle = 0 if objective < self.objective - least or self.latest > self.bound + least else self.idle + 1
        self.objective, self.bound = objective, max(self.bound, self.latest)
        kernels.distances(problem, self.grad, self.w, scale, self.norms, candidates, self.distance)
        radius = np.sqrt(2 * max(objective - self.latest, 0.0) / (len(self.slope) * (4 if problem.logistic else 1)))
        self.candidates = candidates[self.distance[candidates] <= radius]
        return max(objective - self.bound, 0.0)

    def _is_indirect(self) -> bool:
        """Whether the duality gap of `fit_linear` ignores screened blocks or comes from an earlier dual point."""
        return len(self.candidates) < len(self.blocks) or self.bound > self.latest

    def _unscreen(self) -> None:
        """Undo the screening of `fit_linear`: all blocks become candidates, and the dual bound is reset."""
        self.candidates, self.bound = self.blocks, -np.inf

    def _objective(self) -> float:
        """Compute the objective of `fit_linear`, and update the first and second derivatives of the loss."""
        loss = kernels.total_loss(self.problem, self.scores, self.slope, self.curvature)
        return loss + kernels.penalty_value(self.problem, self.w, self.candidates)

    def _make_orthogonal(self) -> None:
        """Make the dual point of `fit_linear` orthogonal to the features with neither penalty nor ridge.

        The dual point is the vector of derivatives of the loss with respect to the scores."""
        for _ in range(2 if self.basis.shape[1] else 0):
            curved = self.curvature[:, None] * self.basis
            move = np.linalg.lstsq(self.basis.T @ curved, self.basis.T @ self.slope, rcond=None)[0]
            self.slope -= curved @ move

    def _solve(self, chosen: np.ndarray, goal: float) -> None:
        """Fit the weights of the chosen blocks of the linear model, up to a duality gap of `goal`."""
        if self.rows and len(chosen) == len(self.blocks):
            self.passes += linear_ridge.solve(self.problem, self.rows, self.w, self.scores, goal, ROUNDS)
            return
        part, features = kernels.restrict(self.problem, chosen)
        w = self.w[features]
        self.passes += solve(part, w, self.scores, goal, ROUNDS)
        self.w[features] = w

    def _rescore(self) -> None:
        """Recompute the scores of the linear fit from the weights, to remove accumulated rounding errors."""
        self.scores[:] = 0
        kernels.add_columns(self.problem, self.w, self.blocks, self.scores)

    def _columns(self, features: np.ndarray) -> np.ndarray:
        """Some columns (features) of the data matrix of a linear fit, as a dense array [items, features]."""
        problem, basis = self.problem, np.zeros((len(self.problem.targets), len(features)))
        for column, j in enumerate(features):
            entries = slice(problem.starts[j], problem.starts[j + 1])
            basis[problem.items[entries], column] = problem.values[entries]
        return basis


def _features(X) -> int:
    """The number of columns of the data matrix X of a linear fit; 0 if X is not a matrix."""
    shape = shape_of(X)
    return int(shape[1]) if len(shape) == 2 else 0


def _checked_start(start, features: int, intercept: bool) -> np.ndarray | None:
    """Check the initial weights of a linear fit, and append the intercept; None if no weights are given."""
    if start is None:
        return None
    if isinstance(start, LinearFit):
        start = start.weights, start.intercept
    try:
        weights, constant = start
    except (TypeError, ValueError) as error:
        raise UserError(f"start is {type(start).__name__}, expected a LinearFit or (weights, intercept)") from error
    weights = numbers(weights, "the weights of start", features, "one for each feature")
    if not intercept:
        return weights
    return np.append(weights, numbers([float(constant)], "the intercept of start", 1, "one"))
