"""Majorize and minimise: quadratics above the norms, a step of proximal Newton under them, an exact end.

For any e > 0,  ||w|| <= (||w||^2 / e + e) / 2,  with equality at e = ||w||. With e_g = sqrt(||W_g||^2 + eps^2) groups
become squares of weight q_j = sum over the groups of row j of reach_g / e_g, and a step of proximal Newton under lasso
and squares lowers the objective but for eps, which falls towards zero: in each iteration until it is small, then only
where most of what is left to gain is due to it. No step length, no multiplier; rows outside the working set are never
visited.

Where eps has become small and stays, these squares move slowly: what is left to gain lies in groups whose norms are
about eps. From there on each step is followed by one of Newton on the loss with sqrt(||W_g||^2 + eps^2) itself.

A group that dies has ||W_g|| shrinking with eps, and reach_g W_g / e_g tends to its dual, within the ball of radius
reach_g. So the end guesses the dead as those still within a few eps, sets them to zero, takes Newton steps with the
norms themselves on what lives, and then proves the guess: the duals of the dead must hold all that pulls at them.
Where they do not, the guess is dropped, eps goes on falling, and the next guess is a better one.
"""

from __future__ import annotations

import numpy as np

from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.kernels.solvers import overlaps_newton as row_polish
from structsparse.kernels.solvers import overlaps_problem as row_kernels
from structsparse.kernels.solvers.overlaps_problem import LOGISTIC, SQUARED
from structsparse.penalties import L1
from structsparse.solvers.linear import fit_linear
from structsparse.solvers.overlaps.problem import HOLD_ROUNDS, Certificate, Problem

FALL = 0.7  # of eps in an iteration
FIRST = 3.0  # eps at first, over the inverse of the median norm of an item: the size that weights have
SOON = 1e-4  # of the first eps: down to here it falls in each iteration
ROUNDING = 1e-13  # of an objective: a guess that ends higher by more is wrong
LOOK = 3  # iterations between two looks at the bound
VAIN = 5  # looks while eps stays, after which one that finds nothing gained makes it fall
BLUR = 0.2  # share of eps in the bound below which eps waits for the rest
GUESS, FURTHER = 1e-3, 10.0  # gap at which the dead are guessed first; how much smaller for each further guess
NEAR = 2.0  # a group within so many eps is taken for dead: its dual is at most 9/10 of its ball
WAKINGS, WOKEN = 20, 1e-6  # rounds of waking in a guess; of NEAR, for what has been woken
FEW_ROUNDS = 10  # over the duals of dead groups, where the gap is proven and only kkt is asked for
SOME_ROUNDS = 50  # of the same, where a gap is asked for, which the bound will prove if they do not
PASSES = 5  # of descent in an iteration
POLISHES = 60  # Newton steps of an end
CONJUGATES, ACCURACY = 300, 1e-3  # rounds within each, and where they end
WARM = 1e-2  # of the first eps, where a start is given
SMALLEST = 1e-12  # of the first eps
ROUGH = 1e-4  # gap of working sets, from which on Newton is faster


class Majorizer:
    """The state of one search; `iterate` until `certificate` says enough, or `stuck`."""

    def __init__(
        self, problem: Problem, weights: np.ndarray | None, bias: np.ndarray | None, kkt: float, gap: float = 0.0
    ):
        self.problem, self.kkt, self.gap = problem, kkt, gap
        self.point = problem.begin(weights, bias)
        self.first = self.eps = FIRST / max(_median_norm(problem), np.finfo(float).tiny)
        if weights is not None and weights.any():
            self.eps *= WARM
        self.bound, self.next_try, self.falls = np.inf, GUESS, True
        self.iterations, self.looks, self.stuck = 0, 0, False  # looks: so many while eps stayed what it is
        self.certificate: Certificate | None = None

    def solve(self, iterations: int = 1000) -> Certificate:
        while not self.done and self.iterations < iterations:
            self.iterate()
        if self.certificate is None:
            self.certificate = self.certify()
        return self.certificate

    def certify(self) -> Certificate:
        """Of the point as it is; the gap is the better of what its own duals and those of the smoothed norms prove."""
        found = self.point.certify()
        return found._replace(gap=min(found.gap, self.point.bound(self.eps)[0])) if self.problem.grouped else found

    @property
    def done(self) -> bool:
        return self.stuck or self._enough(self.certificate)

    def _enough(self, certificate: Certificate | None) -> bool:
        return certificate is not None and (certificate.kkt <= self.kkt or certificate.gap <= self.gap)

    def iterate(self) -> None:
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
        """Whether eps is small and stays."""
        return not self.falls and self.eps <= SOON * self.first

    def _step(self) -> None:
        problem, point = self.problem, self.point
        point.refresh()
        rows = row_groups.awake(point.W, point.G, problem.cut, np.ones(problem.rows, np.bool_))
        factors = problem.sets.reach / np.sqrt(point.norms() ** 2 + self.eps**2)
        pulls = np.zeros(problem.rows)
        row_groups.pulls(problem.sets, factors, rows, problem.squares, pulls)
        point.step(rows, pulls, passes=PASSES)

    def _end(self) -> None:
        """Guess the dead, find the optimum of the rest, prove the guess; wake those that it fails for. Where that does
        not end, go on from before."""
        problem, point = self.problem, self.point
        kept, norms, before = point.copy(), point.norms(), point.objective()
        held = problem.sets.reach / np.sqrt(norms**2 + self.eps**2), np.linalg.norm(point.W, axis=1)
        least = np.where(problem.sets.reach > 0, NEAR * self.eps, -1.0)  # norm [groups] at which one is taken for dead
        fresh, latest = None, np.inf
        for _ in range(WAKINGS):
            self._polish(least, fresh)
            rise = point.objective() - before
            proven = max(self.bound + rise / problem.unit, 0.0)  # by the duals from before the guess
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
            self._wake(fresh, kept[0], least)
        point.restore(kept)

    def _wake(self, woken: np.ndarray, weights: np.ndarray, least: np.ndarray) -> None:
        """Rows of these groups, and of no other dead one, get the weights they had."""
        problem, point = self.problem, self.point
        dead = (point.norms() == 0) & (least > 0) & ~woken
        allowed, member = np.ones(problem.rows, np.bool_), np.ones(problem.rows, np.bool_)
        row_groups.rows_outside(problem.sets, dead, allowed)
        row_groups.rows_outside(problem.sets, woken, member)
        chosen = allowed & ~member
        point.W[chosen] = weights[chosen]
        point.rescore()

    def _polish(self, least: np.ndarray, fresh: np.ndarray | None = None) -> None:
        """Newton on what lives, until it is stationary; groups of at most so large a norm are set to zero, but those
        that are `fresh` not at once: eps stands in for their norm."""
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
        """Lasso and squares alone: which rows live by `fit_linear` where it knows the loss, then Newton."""
        problem, point = self.problem, self.point
        known = problem.data.kind in (LOGISTIC, SQUARED) and problem.mask is None
        if self.iterations == 1 and problem.cut > 0 and known:
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


def _median_norm(problem: Problem) -> float:
    squares = np.bincount(problem.data.items, problem.data.values**2, problem.items)
    return float(np.sqrt(np.median(squares)))
