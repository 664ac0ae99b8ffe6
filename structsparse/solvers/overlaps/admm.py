"""ADMM for linear models with overlapping group lasso: Algorithm 2 of Yogatama (2015, chapter 5).

Each group g has a copy v_g of its rows of the weight table W. The multipliers u enforce v = M W, where M copies the
rows. Each iteration takes three steps:

 W <- argmin  loss + lasso + squares + rho / 2 * sum_j N_j |W_j - mu_j|^2,   mu_j the mean of v + u / rho over the
                    N_j copies of row j,
 v_g <- group prox of  M W - u / rho  with reach_g / rho,  all groups at once,
 u <- u + rho (v - M W).

Here rho is the weight of the constraint, and reach_g is the strength of the penalty on group g. The first step is a
minimisation by proximal Newton, or an approximation by a few Newton steps (inexact ADMM). As in the paper, rho refers
to the sum of losses, not to the mean.

If stopped early with a large rho, ADMM is a proximal point method in the metric N_j, the number of groups of row j. The
strength of the groups then does not matter."""

from __future__ import annotations

import numpy as np

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.solvers.overlaps.problem import Certificate, OverlapProblem

STOPS = ("change", "dual", "gap")
PASSES = 20  # largest number of coordinate descent passes in each Newton step for W
SLACK = 0.03  # the descent ends when a pass gains less than this share of the gain of the first pass
BALANCE, MOST = 2.0, 10.0  # smallest factor by which rho changes, and the largest


class Admm:
    """State of ADMM for overlapping groups: weights W, the groups' copies of rows, scaled multipliers u / rho.

    Copies and multipliers are arrays [copies, outputs]. Call `iterate` until `done`. `stop` is the stopping criterion:

    - "change", as in the paper: ||W - previous W|| <= tolerance * ||W||.
    - "dual": the relative primal residual ||v - M W|| and the relative dual residual rho ||M'(v - previous v)|| are
      within the tolerance.
    - "gap": the duality gap proved by the multipliers is within the tolerance.

    The last two criteria imply optimality, the first does not."""

    def __init__(
        self, problem: OverlapProblem, weights=None, bias=None, rho: float = 1.0, adaptive: bool = False,
        relax: float = 1.0, stop: str = "change", tolerance: float = 1e-3, inner: float = 1e-6, newton: int = 50,
    ):  # fmt: skip
        if stop not in STOPS:
            raise UserError(f"solver.stop={stop}: expected {', '.join(STOPS)}")
        self.problem, self.stop, self.tolerance = problem, stop, tolerance
        self.inner, self.newton = inner, newton
        self.point = problem.begin(weights, bias)
        self.rho, self.adaptive, self.relax = rho / problem.items, adaptive, relax
        shape = problem.rows, problem.outputs
        self.copies, self.duals = (np.zeros((len(problem.order), shape[1])) for _ in range(2))
        self.sums, self.moved = np.zeros(shape), np.zeros(shape)
        self.counts = np.diff(problem.sets.starts).astype(np.float64)  # N, the number of copies of each row: [rows]
        self.iterations, self.done = 0, False
        # relative change of W, relative primal residual and relative dual residual
        self.change = self.primal = self.dual = np.inf
        if weights is not None:
            self.copies[:] = self.point.W[problem.order]
            np.add.at(self.sums, problem.order, self.copies)

    def solve(self, iterations: int = 100) -> Certificate:
        """Iterate ADMM until the stopping criterion holds or the iterations are used up; returns the certificate."""
        while not self.done and self.iterations < iterations:
            self.iterate()
        return self.certify()

    def iterate(self) -> None:
        """One ADMM iteration: update W, then the groups' copies, then the multipliers."""
        self.iterations += 1
        before = self.point.W.copy()
        self._weights()
        problem, W = self.problem, self.point.W
        self.change = _relative(norm(W - before), norm(W))
        gap_square, copy_square, weight_square, self.zeros = row_groups.move_copies(
            problem.sets, problem.order, problem.bounds, W, self.copies, self.duals, self.rho, self.relax, self.sums,
            self.moved,
        )  # fmt: skip
        multipliers = self._gathered(self.duals)
        self.primal = _relative(np.sqrt(gap_square), np.sqrt(max(copy_square, weight_square)))
        self.dual = _relative(norm(self.moved), norm(multipliers))
        self.done = self._is_done()
        if self.adaptive and not self.done:
            self._balance(multipliers)

    def certify(self) -> Certificate:
        """The optimality certificate of W in ADMM, with the smaller of two duality gaps.

        The first gap is proved by W, the second by the multipliers."""
        certificate = self.point.certify()
        return certificate._replace(gap=min(certificate.gap, self.bound()))

    def bound(self) -> float:
        """The duality gap at W that the ADMM multipliers prove, relative to the objective at zero weights.

        After an iteration each multiplier lies in the dual ball of its group."""
        self.point.refresh()
        return self.point.gap(-self.rho * self._gathered(self.duals))

    def _weights(self) -> None:
        """ADMM update of W: at most `newton` proximal Newton steps.

        The steps end when the violation of optimality is at most `inner` times the largest gradient at zero weights."""
        problem, point = self.problem, self.point
        ridge = problem.squares + self.rho * self.counts
        numerator = self.rho * self.sums
        centre = np.divide(numerator, ridge[:, None], out=np.zeros_like(numerator), where=ridge[:, None] > 0)
        if problem.mask is not None:
            centre *= problem.mask
        for _ in range(self.newton):
            point.refresh()
            worst = point.step(problem.every, ridge, centre, PASSES, SLACK)
            if worst <= self.inner * problem.steepest:
                break

    def _is_done(self) -> bool:
        """Whether the stopping criterion of ADMM holds."""
        if self.stop == "change":
            return self.iterations > 1 and self.change <= self.tolerance
        if self.stop == "dual":
            return max(self.primal, self.dual) <= self.tolerance
        return self.iterations % 5 == 0 and self.bound() <= self.tolerance

    def _balance(self, multipliers: np.ndarray) -> None:
        """Change ADMM's rho towards equal primal and dual residuals; rho * scaled multipliers stays the same."""
        factor = float(np.clip(np.sqrt(self.primal / max(self.dual, 1e-300)), 1 / MOST, MOST))
        if 1 / BALANCE < factor < BALANCE:
            return
        self.rho *= factor
        self.duals /= factor
        self.sums += (1 / factor - 1) * multipliers

    def _gathered(self, copies: np.ndarray) -> np.ndarray:
        """The sum of an ADMM array [copies, outputs] over all copies of each row: [rows, outputs]."""
        order, rows = self.problem.order, self.problem.rows
        return np.stack([np.bincount(order, column, rows) for column in copies.T], axis=1)


def norm(x: np.ndarray) -> float:
    """The Euclidean norm for ADMM, without BLAS, as BLAS threads wait for each other on a busy machine."""
    return float(np.sqrt(np.square(x).sum()))


def _relative(size: float, unit: float) -> float:
    """A relative residual of ADMM: the ratio size / unit, where 0 / 0 is 0."""
    return float(size / unit) if unit > 0 else (0.0 if size == 0 else np.inf)
