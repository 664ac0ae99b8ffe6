"""ADMM for linear models with overlapping group lasso: Algorithm 2 of Yogatama (2015, chapter 5).

Each group has a copy of its rows of the weight table W. Multipliers u enforce that all copies v equal the rows. Each
iteration has three steps:

- Update W: minimise loss + lasso + squares + rho / 2 * sum over all copied rows of |row of W - v - u / rho|^2.
- Update the copies v of each group: the prox of the group norm at (rows of W - u / rho).
- Update the multipliers: u <- u + rho * (v - rows of W).

The option rho, the weight of the constraint, refers to the sum of the losses of all items, not to their mean."""

from __future__ import annotations

import numpy as np

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.solvers.overlaps.problem import Certificate, OverlapProblem

STOPS = ("change", "dual", "gap")
PASSES = 20  # largest number of coordinate descent passes in each Newton step for W
SLACK = 0.03  # coordinate descent ends when a pass gains less than this share of the gain of the first pass
BALANCE, MOST = 2.0, 10.0  # rho (weight of the constraint) grows or falls by a factor between these two


class Admm:
    """State of ADMM for overlapping groups: weights W, copies of the rows of each group, and scaled multipliers.

    Copies and multipliers are arrays [copied rows, outputs]. Call `iterate` until `done`. `stop` is the stopping
    criterion:

    - "change", as in the paper: the relative change of W is within the tolerance. This does not imply optimality.
    - "dual": the relative primal residual and the relative dual residual are within the tolerance.
    - "gap": the relative duality gap is within the tolerance."""

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
        self.counts = np.diff(problem.sets.starts).astype(np.float64)  # array [rows], the number of copies of each row
        self.iterations, self.done = 0, False
        # in the last iteration: relative change of W, relative primal residual and relative dual residual
        self.change = self.primal = self.dual = np.inf
        if weights is not None:
            self.copies[:] = self.point.W[problem.order]
            np.add.at(self.sums, problem.order, self.copies)

    def solve(self, iterations: int = 100) -> Certificate:
        """Iterate ADMM until `done`, at most `iterations` times.

        Returns a certificate of optimality: bounds on the distance of the weights from the optimum."""
        while not self.done and self.iterations < iterations:
            self.iterate()
        return self.certify()

    def iterate(self) -> None:
        """Make one ADMM iteration: update the weights W, the copies of the rows of each group, and the multipliers."""
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
        """The optimality certificate of the ADMM weights, with the smaller of two duality gaps.

        One gap uses a dual point computed from the weights, the other gap uses the multipliers."""
        certificate = self.point.certify()
        return certificate._replace(gap=min(certificate.gap, self.bound()))

    def bound(self) -> float:
        """The duality gap of the ADMM weights, with the multipliers as dual point.

        The gap is relative to the objective at zero weights."""
        self.point.refresh()
        return self.point.gap(-self.rho * self._gathered(self.duals))

    def _weights(self) -> None:
        """ADMM update of the weights W: at most `newton` proximal Newton steps.

        The steps end when the optimality conditions are violated by at most `inner` times the largest gradient at zero
        weights."""
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
        """Change rho, the weight of the ADMM constraint, to bring primal and dual residuals closer together."""
        factor = float(np.clip(np.sqrt(self.primal / max(self.dual, 1e-300)), 1 / MOST, MOST))
        if 1 / BALANCE < factor < BALANCE:
            return
        self.rho *= factor
        self.duals /= factor
        self.sums += (1 / factor - 1) * multipliers

    def _gathered(self, copies: np.ndarray) -> np.ndarray:
        """Sum an ADMM array [copied rows, outputs] over all copies of each row; returns an array [rows, outputs]."""
        order, rows = self.problem.order, self.problem.rows
        return np.stack([np.bincount(order, column, rows) for column in copies.T], axis=1)


def norm(x: np.ndarray) -> float:
    """The Euclidean norm for ADMM; does not use BLAS, as BLAS threads are slow on a busy machine."""
    return float(np.sqrt(np.square(x).sum()))


def _relative(size: float, unit: float) -> float:
    """A relative residual of ADMM: size / unit, with 0 / 0 = 0."""
    return float(size / unit) if unit > 0 else (0.0 if size == 0 else np.inf)
