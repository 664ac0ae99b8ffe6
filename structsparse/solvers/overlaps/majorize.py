"""Majorize-minimise for overlapping group lasso: quadratic upper bounds of the norms, then exact Newton steps.

Let w be the weights of a group. The method replaces the norm |w| by the smoothed norm sqrt(|w|^2 + eps^2), where eps is
a small positive number that falls towards zero. Each iteration has these steps:

- Replace each smoothed group norm by a quadratic upper bound that touches it at the current weights.
- Take a proximal Newton step on the loss, these quadratic bounds, the lasso and the squares.
- Once eps is small, take a further Newton step on the loss with the smoothed norms themselves.
- Reduce eps, unless the smoothing causes only a small part of the duality gap.

When the duality gap is small, a final phase starts:

- Guess that groups with a norm of at most a few eps are zero.
- Take Newton steps with the exact norms on the rows outside these groups.
- Verify the guess: dual vectors of the zero groups must balance the gradient. Otherwise undo the guess and continue."""

from __future__ import annotations

import numpy as np

from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.kernels.solvers import overlaps_newton as row_polish
from structsparse.kernels.solvers import overlaps_problem as row_kernels
from structsparse.kernels.solvers.overlaps_problem import LOGISTIC, SQUARED
from structsparse.penalties import L1
from structsparse.solvers.linear import fit_linear
from structsparse.solvers.overlaps.problem import HOLD_ROUNDS, Certificate, OverlapProblem

FALL = 0.7  # factor by which the smoothing eps of the group norms falls per iteration
FIRST = 3.0  # the initial smoothing eps is this number divided by the median norm of the items' feature vectors
SOON = 1e-4  # the smoothing eps falls in every iteration until it reaches this share of the initial eps
ROUNDING = 1e-13  # relative increase of the objective above which a guess of zero groups is wrong
LOOK = 3  # number of iterations between two computations of the duality gap
VAIN = 5  # while eps is kept fixed: number of computed duality gaps without progress after which eps falls again
BLUR = 0.2  # the smoothing eps stays fixed while it causes at most this share of the duality gap
# GUESS: duality gap at which zero groups are first guessed; FURTHER: divisor of this gap for each further guess
GUESS, FURTHER = 1e-3, 10.0
NEAR = 2.0  # largest norm, in multiples of the smoothing eps, of a group that is guessed to be zero
# WAKINGS: maximum number of guesses of zero groups per final phase; WOKEN: if a group was wrongly guessed to be zero,
# factor on the largest norm at which this group is guessed to be zero again
WAKINGS, WOKEN = 20, 1e-6
# maximum number of passes of descent over the dual vectors of zero groups in the final phase. FEW_ROUNDS: the duality
# gap is already at most the option `gap`; SOME_ROUNDS: it is not yet, and the option `gap` is positive
FEW_ROUNDS = 10
SOME_ROUNDS = 50
PASSES = 5  # number of passes of coordinate descent in an iteration
POLISHES = 60  # largest number of Newton steps in the final phase
# CONJUGATES: maximum number of conjugate gradient steps in a Newton step; ACCURACY: relative residual at their end
CONJUGATES, ACCURACY = 300, 1e-3
ROUGH_ACCURACY = 0.1  # relative residual at which the first Newton steps without groups end
WARM = 1e-2  # factor on the initial smoothing eps if initial weights are given
SMALLEST = 1e-12  # share of the initial smoothing eps below which the search gives up
ROUGH = 1e-4  # duality gap at which `fit_linear` stops and Newton steps take over if no gap is asked for
SURE = 0.5  # share of the gap asked for at which `fit_linear` stops: the certificate computes the gap in another way


class Majorizer:
    """State of majorize-minimise for overlapping groups; call `iterate` until `done`."""

    def __init__(
        self, problem: OverlapProblem, weights: np.ndarray | None, bias: np.ndarray | None, kkt: float, gap: float = 0.0
    ):
        self.problem, self.kkt, self.gap = problem, kkt, gap
        self.point = problem.begin(weights, bias)
        self.first = self.eps = FIRST / max(_median_norm(problem), np.finfo(float).tiny)
        if weights is not None and weights.any():
            self.eps *= WARM
        self.bound, self.next_try, self.falls = np.inf, GUESS, True
        # `looks` is the number of computed duality gaps since the smoothing eps became fixed
        self.iterations, self.looks, self.stuck = 0, 0, False
        self.certificate: Certificate | None = None

    def solve(self, iterations: int = 1000) -> Certificate:
        """Iterate majorize-minimise until `done`, at most `iterations` times.

        Returns a certificate of optimality: bounds on the distance of the weights from the optimum."""
        while not self.done and self.iterations < iterations:
            self.iterate()
        if self.certificate is None:
            self.certificate = self.certify()
        return self.certificate

    def certify(self) -> Certificate:
        """The optimality certificate of the current weights of majorize-minimise, with the smaller of two duality gaps.

        One gap uses dual vectors of the exact group norms, the other gap uses those of the smoothed group norms."""
        certificate = self.point.certify()
        if not self.problem.grouped:
            return certificate
        return certificate._replace(gap=min(certificate.gap, self.point.bound(self.eps)[0]))

    @property
    def done(self) -> bool:
        """Whether majorize-minimise has proved the required optimality, or cannot make further progress."""
        return self.stuck or self._enough(self.certificate)

    def _enough(self, certificate: Certificate | None) -> bool:
        """Whether a certificate proves the optimality required of majorize-minimise (by `kkt` or `gap`)."""
        return certificate is not None and (certificate.kkt <= self.kkt or certificate.gap <= self.gap)

    def iterate(self) -> None:
        """Make one majorize-minimise step with the current smoothing of the group norms.

        Every few steps the duality gap is computed. If the gap is small, the final phase is tried."""
        self.iterations += 1
        if not self.problem.grouped:
            self._without_groups()
            return
        self._step()
        if self.waits:
            self._newton(np.flatnonzero(self.point.W.any(1)), self.eps)
        if self.iterations % LOOK == 0:
            before, waits = self.bound, self.waits
            self.bound, blur = self.point.bound(self.eps)
            self.looks = self.looks + 1 if waits else 0
            self.falls = blur > BLUR * self.bound or (self.looks >= VAIN and self.bound > before / 2)
            if self.bound <= max(self.next_try, self.gap / 2):
                self.next_try = min(self.next_try, self.bound) / FURTHER
                self._end()
        if self.falls or self.eps > SOON * self.first:
            self.eps *= FALL
        self.stuck = self.eps < SMALLEST * self.first

    @property
    def waits(self) -> bool:
        """Whether majorize-minimise keeps the smoothing of the group norms at a small fixed value."""
        return not self.falls and self.eps <= SOON * self.first

    def _step(self) -> None:
        """Majorize-minimise: a proximal Newton step with the quadratic upper bounds of the group norms."""
        problem, point = self.problem, self.point
        point.refresh()
        rows = row_groups.awake(point.W, point.G, problem.cut, np.ones(problem.rows, np.bool_))
        factors = problem.sets.reach / np.sqrt(point.norms() ** 2 + self.eps**2)
        pulls = np.zeros(problem.rows)
        row_groups.pulls(problem.sets, factors, rows, problem.squares, pulls)
        point.step(rows, pulls, passes=PASSES)

    def _end(self) -> None:
        """Final phase of majorize-minimise: guess the zero groups, optimise the other weights, verify the guess.

        Groups that should be nonzero are reactivated, and the phase tries again. If the phase fails, the previous
        weights are restored."""
        problem, point = self.problem, self.point
        saved, norms, before = point.copy(), point.norms(), point.objective()
        held = problem.sets.reach / np.sqrt(norms**2 + self.eps**2), np.linalg.norm(point.W, axis=1)
        # array [groups]: for each group, the largest norm at which it is guessed to be zero
        least = np.where(problem.sets.reach > 0, NEAR * self.eps, -1.0)
        fresh, latest = None, np.inf
        for _ in range(WAKINGS):
            self._polish(least, fresh)
            rise = point.objective() - before
            proven = max(self.bound + rise / problem.unit, 0.0)  # duality gap proved before this phase
            if rise > ROUNDING * abs(before) and proven > self.gap:
                break
            patience = SOME_ROUNDS if self.gap > 0 else HOLD_ROUNDS
            certificate = point.certify(held, 0.01 * self.kkt, patience if proven > self.gap else FEW_ROUNDS)
            certificate = certificate._replace(gap=min(certificate.gap, proven))
            if self._enough(certificate):
                self.certificate = certificate
                return
            if not certificate.woken.any() or certificate.kkt > latest / 2:
                break
            latest = certificate.kkt
            fresh = certificate.woken
            least[fresh] *= WOKEN
            self._wake(fresh, saved[0], least)
        point.restore(saved)

    def _wake(self, woken: np.ndarray, weights: np.ndarray, least: np.ndarray) -> None:
        """Majorize-minimise: restore the weights of reactivated groups, except rows that also lie in zero groups."""
        problem, point = self.problem, self.point
        dead = (point.norms() == 0) & (least > 0) & ~woken
        allowed, member = np.ones(problem.rows, np.bool_), np.ones(problem.rows, np.bool_)
        row_groups.rows_outside(problem.sets, dead, allowed)
        row_groups.rows_outside(problem.sets, woken, member)
        chosen = allowed & ~member
        point.W[chosen] = weights[chosen]
        point.rescore()

    def _polish(self, least: np.ndarray, fresh: np.ndarray | None = None) -> None:
        """Final Newton steps of majorize-minimise on the nonzero rows, until these weights are optimal.

        `least` has a norm for each group; a group with at most this norm is set to zero. The bool array `fresh` marks
        groups that have just been reactivated."""
        problem, point = self.problem, self.point
        allowed = np.ones(problem.rows, np.bool_)
        calm = 0
        for _ in range(POLISHES):
            norms = point.norms()
            if fresh is not None:
                norms, fresh = np.where(fresh, np.maximum(norms, self.eps), norms), None
            row_groups.rows_outside(problem.sets, norms <= least, allowed)
            if point.W[~allowed].any():
                point.W[~allowed] = 0
                point.rescore()
                continue
            point.refresh()
            rows = row_groups.awake(point.W, point.G, problem.cut, allowed)
            factors = np.divide(problem.sets.reach, norms, out=np.zeros_like(norms), where=norms > 0)
            pulls = np.zeros(problem.rows)
            row_groups.pulls(problem.sets, factors, rows, problem.squares, pulls)
            worst = point.step(rows, pulls, passes=2)
            calm = calm + 1 if worst <= 0.01 * self.kkt * problem.steepest else 0
            if calm == 2:
                break
            self._newton(rows)

    def _newton(self, rows: np.ndarray, eps: float = 0.0, accuracy: float = ACCURACY) -> None:
        """A Newton step of majorize-minimise on the nonzero weights of some rows; eps > 0 smooths the group norms."""
        problem, point = self.problem, self.point
        point.refresh()
        norms, pulls = np.sqrt(point.norms() ** 2 + eps**2), np.zeros(problem.rows)
        factors = np.divide(problem.sets.reach, norms, out=np.zeros_like(norms), where=norms > 0)
        row_groups.pulls(problem.sets, factors, rows, problem.squares, pulls)
        row_polish.polish(
            problem.data, problem.sets, point.W, point.bias, point.F, point.slope, point.bend, point.G, problem.cut,
            pulls, problem.squares, norms, rows, problem.moves_bias, CONJUGATES, accuracy, eps,
        )  # fmt: skip
        point.loss = row_kernels.losses(problem.data, point.F, point.slope, point.bend)

    def _without_groups(self) -> None:
        """Majorize-minimise for a penalty with lasso and squares only: Newton steps until the certificate suffices.

        If `fit_linear` supports the problem, it comes first; often nothing is left to do."""
        problem, point = self.problem, self.point
        if self.iterations == 1:
            self._begin_without_groups()
        latest, vain = point.certify(), 0
        for _ in range(POLISHES):
            if self._enough(latest) or vain == 2:
                break
            point.refresh()
            rows = row_groups.awake(point.W, point.G, problem.cut, np.ones(problem.rows, np.bool_))
            if problem.cut > 0 or not point.W[rows].all():  # Newton steps alone move nonzero weights
                point.step(rows, problem.squares, passes=2 if point.W.any() else PASSES)
            self._newton(rows, accuracy=min(max(np.sqrt(latest.kkt), ACCURACY), ROUGH_ACCURACY))
            before, latest = latest, point.certify()
            lower = latest.objective < before.objective - ROUNDING * abs(before.objective)
            vain = 0 if lower or latest.gap < before.gap or latest.kkt < before.kkt / 2 else vain + 1
        self.stuck = vain == 2
        self.certificate = latest

    def _begin_without_groups(self) -> None:
        """Majorize-minimise without groups: start at the solution of `fit_linear`, if that supports the problem."""
        problem, point = self.problem, self.point
        penalised = problem.cut > 0 or bool((problem.squares > 0).all())
        if not (penalised and problem.data.kind in (LOGISTIC, SQUARED) and problem.mask is None):
            return
        loss = "logistic" if problem.data.kind == LOGISTIC else "squared"
        start = (point.W[:, 0], float(point.bias[0] if problem.moves_bias else 0.0))
        tolerance = SURE * self.gap if self.gap > 0 else ROUGH
        fit = fit_linear(
            problem.design.matrix, problem.design.targets, L1(problem.cut), loss, tolerance, start, problem.moves_bias,
            problem.squares,
        )  # fmt: skip
        point.restore((fit.weights.numpy()[:, None], np.array([fit.intercept])))


def _median_norm(problem: OverlapProblem) -> float:
    """The median norm of the items' feature vectors, for the initial smoothing of majorize-minimise."""
    squares = np.bincount(problem.data.items, problem.data.values**2, problem.items)
    return float(np.sqrt(np.median(squares)))
