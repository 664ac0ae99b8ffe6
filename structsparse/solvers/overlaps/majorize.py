"""Majorize-minimise for overlapping group lasso: quadratic upper bounds of the norms, then exact Newton steps.

For any e > 0, ||w|| <= (||w||^2 / e + e) / 2, with equality at e = ||w||. W_g are the weights of group g, reach_g is
the strength of the penalty on ||W_g||, and eps > 0 smooths the norms. With e_g = sqrt(||W_g||^2 + eps^2) the group
norms become squares with the coefficients q_j = sum over the groups of row j of reach_g / e_g. A step of proximal
Newton with lasso and squares then lowers the objective smoothed by eps.

eps falls towards zero: in each iteration until eps is small, later only when most of the remaining gap is due to eps.
There is no step length and no multiplier, and rows outside the working set cost nothing.

Once eps is small and fixed, the quadratic bounds converge slowly: the remaining gain lies in groups with norms of about
eps. From then on each step is followed by a Newton step on the loss with the smoothed norms sqrt(||W_g||^2 + eps^2)
themselves.

If a group becomes zero, ||W_g|| shrinks with eps. Then reach_g W_g / e_g tends to the dual vector of the group, within
the ball of radius reach_g. The final phase guesses that groups with norms within a few eps are zero and sets them to
zero. The phase takes Newton steps with the exact norms on the nonzero rows, then verifies the guess: the dual vectors
of the zero groups must balance the gradient of the rows of these groups. If this is impossible, the guess is undone and
eps goes on falling, so that a later guess is better."""

from __future__ import annotations

import numpy as np

from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.kernels.solvers import overlaps_newton as row_polish
from structsparse.kernels.solvers import overlaps_problem as row_kernels
from structsparse.kernels.solvers.overlaps_problem import LOGISTIC, SQUARED
from structsparse.penalties import L1
from structsparse.solvers.linear import fit_linear
from structsparse.solvers.overlaps.problem import HOLD_ROUNDS, Certificate, OverlapProblem

FALL = 0.7  # factor by which eps falls per iteration
FIRST = 3.0  # first eps, in units of the typical size of weights, 1 / median norm of an item
SOON = 1e-4  # share of the first eps down to which eps falls in each iteration
ROUNDING = 1e-13  # relative increase of the objective above which a guess of zero groups is wrong
LOOK = 3  # iterations between two computations of the bound of the duality gap
VAIN = 5  # computations of the gap bound at fixed eps after which eps falls, unless the bound halves
BLUR = 0.2  # eps stays fixed while at most this share of the gap bound is due to eps
# gap at the first guess of zero groups; factor by which the gap must be smaller at each further guess
GUESS, FURTHER = 1e-3, 10.0
# norm, in units of eps, up to which a group is guessed to be zero: the norm of the group's dual vector is then at most
# 9/10 reach_g
NEAR = 2.0
# largest number of rounds that reactivate groups in a guess; factor on the norm limit of these groups
WAKINGS, WOKEN = 20, 1e-6
FEW_ROUNDS = 10  # rounds of descent over the dual vectors of zero groups, if the gap is proved and only kkt is missing
# rounds of descent over the dual vectors of zero groups, if a gap is required, which the bound may prove later
SOME_ROUNDS = 50
PASSES = 5  # passes of coordinate descent in an iteration
POLISHES = 60  # largest number of Newton steps in the final phase
# largest number of conjugate gradient rounds in a Newton step, and relative residual at which the rounds end
CONJUGATES, ACCURACY = 300, 1e-3
WARM = 1e-2  # first eps as a share of the usual first eps, if initial weights are given
SMALLEST = 1e-12  # share of the first eps below which the search gives up
ROUGH = 1e-4  # duality gap at which `fit_linear` stops and Newton steps take over, which are then faster


class Majorizer:
    """State of majorize-minimise; call `iterate` until the certificate suffices or the search is `stuck`."""

    def __init__(
        self, problem: OverlapProblem, weights: np.ndarray | None, bias: np.ndarray | None, kkt: float, gap: float = 0.0
    ):
        self.problem, self.kkt, self.gap = problem, kkt, gap
        self.point = problem.begin(weights, bias)
        self.first = self.eps = FIRST / max(_median_norm(problem), np.finfo(float).tiny)
        if weights is not None and weights.any():
            self.eps *= WARM
        self.bound, self.next_try, self.falls = np.inf, GUESS, True
        # `looks` counts the computations of the bound since eps became fixed
        self.iterations, self.looks, self.stuck = 0, 0, False
        self.certificate: Certificate | None = None

    def solve(self, iterations: int = 1000) -> Certificate:
        """Iterate majorize-minimise until the search is done or the iterations are used up; returns the certificate."""
        while not self.done and self.iterations < iterations:
            self.iterate()
        if self.certificate is None:
            self.certificate = self.certify()
        return self.certificate

    def certify(self) -> Certificate:
        """The optimality certificate of the current point of majorize-minimise, with the smaller of two duality gaps.

        The first gap is proved by the dual vectors of the exact norms, the second by the dual vectors of the smoothed
        norms."""
        certificate = self.point.certify()
        if not self.problem.grouped:
            return certificate
        return certificate._replace(gap=min(certificate.gap, self.point.bound(self.eps)[0]))

    @property
    def done(self) -> bool:
        """Whether the certificate of majorize-minimise suffices, or the search is stuck."""
        return self.stuck or self._enough(self.certificate)

    def _enough(self, certificate: Certificate | None) -> bool:
        """Whether a certificate meets the kkt violation or the gap required of majorize-minimise."""
        return certificate is not None and (certificate.kkt <= self.kkt or certificate.gap <= self.gap)

    def iterate(self) -> None:
        """One majorize-minimise step with the current eps.

        Every few steps the method computes a bound of the duality gap. If the bound is small, the method guesses which
        groups are zero."""
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
        """Whether majorize-minimise keeps eps, the smoothing of the group norms, at a small fixed value."""
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

        If the check finds groups that should be nonzero, the phase reactivates these groups and tries again. If the
        phase does not succeed, the point from before is restored."""
        problem, point = self.problem, self.point
        saved, norms, before = point.copy(), point.norms(), point.objective()
        held = problem.sets.reach / np.sqrt(norms**2 + self.eps**2), np.linalg.norm(point.W, axis=1)
        # [groups], norm up to which a group is guessed to be zero
        least = np.where(problem.sets.reach > 0, NEAR * self.eps, -1.0)
        fresh, latest = None, np.inf
        for _ in range(WAKINGS):
            self._polish(least, fresh)
            rise = point.objective() - before
            proven = max(self.bound + rise / problem.unit, 0.0)  # gap proved by the dual vectors from before the guess
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
        """Majorize-minimise: restore the weights of reactivated groups, except in rows of another zero group."""
        problem, point = self.problem, self.point
        dead = (point.norms() == 0) & (least > 0) & ~woken
        allowed, member = np.ones(problem.rows, np.bool_), np.ones(problem.rows, np.bool_)
        row_groups.rows_outside(problem.sets, dead, allowed)
        row_groups.rows_outside(problem.sets, woken, member)
        chosen = allowed & ~member
        point.W[chosen] = weights[chosen]
        point.rescore()

    def _polish(self, least: np.ndarray, fresh: np.ndarray | None = None) -> None:
        """Final Newton steps of majorize-minimise on the nonzero rows, until the rows are stationary.

        Groups with a norm of at most `least` [groups] are set to zero. Groups just reactivated (`fresh`) count with a
        norm of at least eps in the first step."""
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

    def _newton(self, rows: np.ndarray, eps: float = 0.0) -> None:
        """A Newton step of majorize-minimise on the nonzero entries of these rows, with group norms smoothed by eps."""
        problem, point = self.problem, self.point
        point.refresh()
        norms, pulls = np.sqrt(point.norms() ** 2 + eps**2), np.zeros(problem.rows)
        factors = np.divide(problem.sets.reach, norms, out=np.zeros_like(norms), where=norms > 0)
        row_groups.pulls(problem.sets, factors, rows, problem.squares, pulls)
        row_polish.polish(
            problem.data, problem.sets, point.W, point.bias, point.F, point.slope, point.bend, point.G, problem.cut,
            pulls, problem.squares, norms, rows, problem.moves_bias, CONJUGATES, ACCURACY, eps,
        )  # fmt: skip
        point.loss = row_kernels.losses(problem.data, point.F, point.slope, point.bend)

    def _without_groups(self) -> None:
        """Majorize-minimise for a penalty with lasso and squares only.

        `fit_linear` solves the problem first, if it supports the loss; then Newton steps follow."""
        problem, point = self.problem, self.point
        supported = problem.data.kind in (LOGISTIC, SQUARED) and problem.mask is None
        if self.iterations == 1 and problem.cut > 0 and supported:
            loss = "logistic" if problem.data.kind == LOGISTIC else "squared"
            start = (point.W[:, 0], float(point.bias[0] if problem.moves_bias else 0.0))
            fit = fit_linear(
                problem.design.matrix, problem.design.targets, L1(problem.cut), loss, ROUGH, start, problem.moves_bias,
                problem.squares,
            )  # fmt: skip
            point.restore((fit.weights.numpy()[:, None], np.array([fit.intercept])))
        self._polish(np.zeros(len(problem.sets.reach)) - 1)
        latest = point.certify()
        self.stuck = self.certificate is not None and not latest.kkt < self.certificate.kkt
        self.certificate = latest


def _median_norm(problem: OverlapProblem) -> float:
    """The median Euclidean norm of the items' feature vectors, a scale for the first eps of majorize-minimise."""
    squares = np.bincount(problem.data.items, problem.data.values**2, problem.items)
    return float(np.sqrt(np.median(squares)))
