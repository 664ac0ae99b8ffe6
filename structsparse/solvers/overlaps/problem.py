"""Problem of linear models with overlapping group lasso, as arrays for the kernels: data, point, certificate.

 minimise over W and b:  mean loss(X W + b)  +  sum_g reach_g ||W_g||  +  cut * |W|_1  +  1/2 sum_j squares_j |W_j|^2

W [rows, outputs] is the weight table, b the bias and X the design matrix. W_g are the rows of W in group g, and W_j is
row j. The penalty has the strengths reach_g (groups), cut (lasso) and squares_j (squared weights).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups import Cover
from structsparse.kernels.solvers import overlaps_groups as row_groups
from structsparse.kernels.solvers import overlaps_newton as row_polish
from structsparse.kernels.solvers import overlaps_problem as row_kernels
from structsparse.kernels.solvers.overlaps_groups import RowGroups
from structsparse.kernels.solvers.overlaps_problem import HINGE, LOGISTIC, SOFTMAX, SQUARED, LinearData
from structsparse.penalties import Penalty
from structsparse.penalties.base import RowParts
from structsparse.solvers.overlaps.design import Design

KINDS = {"logistic": LOGISTIC, "squared": SQUARED, "squared_hinge": HINGE}
HOLD_ROUNDS = 3000  # maximum number of passes of descent over the dual vectors of zero groups
FREE_ROUNDS = 60  # largest number of Newton steps that fit the bias alone


class Certificate(NamedTuple):
    """Optimality certificate for the weights of an overlap problem: bounds on the distance from the optimum."""

    objective: float
    gap: float  # duality gap, relative to the objective at zero weights with the best bias
    kkt: float  # largest violation of the optimality conditions, relative to the largest gradient at zero weights
    woken: np.ndarray  # bool [groups], true for zero groups that should be nonzero


class OverlapProblem:
    """Overlap problem: the data and the penalty of a linear model with overlapping groups, as arrays.

    Weights outside the mask `support` stay zero."""

    def __init__(self, design: Design, table: Tensor, penalty: Penalty, support: Tensor | None = None):
        self.outputs = design.outputs(table)
        X, kind = design.matrix, KINDS[design.loss]
        kind = SOFTMAX if kind == LOGISTIC and self.outputs > 1 else kind
        self.design, self.penalty, self.moves_bias = design, penalty, design.bias is not None
        self.data = LinearData(X.data, X.indices, X.indptr, design.targets, kind)
        self.items, self.rows = X.shape
        self.every = np.arange(self.rows)
        self.mask = None
        if support is not None:
            self.mask = np.broadcast_to(support.cpu().numpy(), tuple(table.shape)).reshape(self.rows, self.outputs)
        parts = _parts(penalty, self.rows)
        self.cut, self.squares, reach = parts.cut, parts.squares.numpy(), parts.reach.numpy()
        self.sets, self.order, self.bounds = _sets(parts.cover, reach, self.rows)
        self.grouped = len(reach) > 0 and bool((reach > 0).any())
        self._check_bound()

    def _check_bound(self) -> None:
        """Raise an error if a row of the overlap problem has no penalty, as no finite duality gap could be computed."""
        if self.cut > 0 or not self.grouped:
            return
        bears = np.zeros(self.rows)
        row_groups.pulls(self.sets, self.sets.reach, self.every, self.squares, bears)
        bare = (bears == 0) & (np.diff(self.data.starts) > 0)
        if bare.any():
            raise UserError(
                f"{int(bare.sum())} rows of the table lie in no group and have neither lasso nor squares: expected "
                "reg.lasso or reg.squares above 0"
            )

    def begin(self, weights: np.ndarray | None = None, bias: np.ndarray | None = None) -> OverlapPoint:
        """The initial point of the overlap problem, with the given weights and bias.

        First computes the units of duality gaps and gradients: the objective and the largest gradient at zero weights
        with the best bias."""
        zero = OverlapPoint(self)
        zero.fit_bias()
        zero.refresh()
        self.unit = max(zero.loss, np.finfo(float).tiny)
        self.steepest = max(float(np.abs(zero.G).max(initial=0)), np.finfo(float).tiny)
        if weights is None or not weights.any():
            return zero
        point = OverlapPoint(self, weights, bias)
        point.refresh()
        return point


class OverlapPoint:
    """A point of an overlap problem: weights W [rows, outputs] and bias, with scores, loss and gradient.

    F [outputs, items] holds the scores. `slope` and `bend` hold the first and second derivatives of the loss with
    respect to the scores. G is the gradient of the loss with respect to W."""

    def __init__(self, problem: OverlapProblem, weights: np.ndarray | None = None, bias: np.ndarray | None = None):
        self.problem = problem
        shape = problem.rows, problem.outputs
        self.W = np.zeros(shape) if weights is None else weights.reshape(shape).astype(np.float64)
        if problem.mask is not None:
            self.W *= problem.mask
        self.bias = np.zeros(shape[1]) if bias is None else bias.reshape(-1).astype(np.float64)
        self.F, self.slope, self.bend = (np.empty((shape[1], problem.items)) for _ in range(3))
        self.G, self.loss = np.zeros(shape), np.inf
        self.rescore()

    def copy(self) -> tuple[np.ndarray, np.ndarray]:
        """A copy of the weights and the bias at this point of the overlap problem."""
        return self.W.copy(), self.bias.copy()

    def restore(self, saved: tuple[np.ndarray, np.ndarray]) -> None:
        """Set the weights and the bias at this point of the overlap problem to saved copies."""
        self.W[:], self.bias[:] = saved
        self.rescore()

    def rescore(self) -> None:
        """Recompute the scores and the loss at this point of the overlap problem from the weights."""
        row_kernels.scores(self.problem.data, self.W, self.bias, self.F)
        self.loss = row_kernels.losses(self.problem.data, self.F, self.slope, self.bend)

    def refresh(self) -> None:
        """Compute the gradient of the loss with respect to the weights at this point of the overlap problem."""
        self.gradient_of(self.slope)

    def gradient_of(self, slope: np.ndarray) -> None:
        """Overlap problem: compute the gradient for the weights from `slope`, the gradient for the scores."""
        row_kernels.gradient(self.problem.data, slope, self.G)
        if self.problem.mask is not None:
            self.G[~self.problem.mask] = 0

    def fit_bias(self) -> None:
        """Minimise the loss of the overlap problem over the bias alone."""
        nothing = np.empty(0, np.int64)
        for _ in range(FREE_ROUNDS if self.problem.moves_bias else 0):
            before = self.loss
            self.step(nothing, self.problem.squares, passes=20 * self.problem.outputs, slack=1e-3)
            if not self.loss < before:
                break

    def step(self, rows: np.ndarray, ridge: np.ndarray, centre=None, passes: int = 5, slack: float = 0.03) -> float:
        """Take a proximal Newton step on `rows` of the overlap problem; returns the previous violation of optimality.

        The step lowers loss + lasso + sum over j of ridge_j * |W_j - centre_j|^2 / 2. W_j is row j of the weights,
        ridge_j element j of `ridge`, and centre_j row j of `centre` (zero by default)."""
        problem = self.problem
        self.loss, worst = row_kernels.newton(
            problem.data, self.W, self.bias, self.F, self.slope, self.bend, self.G, problem.cut, ridge,
            _zeros(self.W.shape) if centre is None else centre, rows, problem.moves_bias, passes, slack,
        )  # fmt: skip
        return worst

    def norms(self) -> np.ndarray:
        """The Euclidean norm of each group of weights at this point of the overlap problem: array [groups]."""
        squares = np.empty(len(self.problem.sets.reach))
        row_groups.group_squares(self.problem.sets, self.W, squares)
        return np.sqrt(squares)

    def objective(self) -> float:
        """The objective of the overlap problem at this point: the loss plus the penalty."""
        problem = self.problem
        norms = np.empty(len(problem.sets.reach))
        living = np.flatnonzero(self.W.any(1))
        return self.loss + row_polish.true_penalty(problem.sets, self.W, living, problem.cut, problem.squares, norms)

    def certify(
        self,
        held: tuple[np.ndarray, np.ndarray] | None = None,
        tolerance: float = 1e-13,
        rounds: int = HOLD_ROUNDS,
    ) -> Certificate:
        """The optimality certificate of this point of the overlap problem.

        It bounds the distance from the optimum. The dual vectors of zero groups are computed by descent, in at most
        `rounds` passes over the groups. The optional `held` is a pair of arrays for a warm start, factors [groups] and
        sizes [rows]. In row j, the dual vector of group g then starts with the norm factors[g] * sizes[j]."""
        problem, norms = self.problem, self.norms()
        self.refresh()
        slope_of_bias = float(np.abs(self.slope.mean(1)).max()) if problem.moves_bias else 0.0
        pull = self._pull(norms)
        dead, living = (norms == 0) & (problem.sets.reach > 0), self.W != 0
        rest = self.G + (pull + problem.squares)[:, None] * self.W
        rest = _past_cut(rest, self.W, problem.cut)
        left, woken = self._held(rest, dead, held, tolerance, rounds)
        kkt = max(float(np.abs(left).max(initial=0)), slope_of_bias) / problem.steepest
        # `taken` is an array [rows, outputs], the sum of the dual vectors of all groups
        taken = np.where(living, pull[:, None] * self.W, left - rest)
        return Certificate(self.objective(), self.gap(taken), kkt, woken)

    def bound(self, eps: float) -> tuple[float, float]:
        """The duality gap of the overlap problem for smoothed group norms, and the part of the gap due to smoothing.

        A group with weights w and penalty strength r has the dual vector r * w / sqrt(|w|^2 + eps^2)."""
        norms = self.norms()
        wide = np.sqrt(norms**2 + eps**2)
        blur = float((self.problem.sets.reach * norms * (1 - norms / wide)).sum()) / self.problem.unit
        return self.gap(self._pull(wide)[:, None] * self.W), blur

    def _pull(self, norms: np.ndarray) -> np.ndarray:
        """Overlap problem: for each row, the sum of penalty strength / norm over its groups of nonzero norm."""
        problem, pull = self.problem, np.zeros(self.problem.rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.where(norms > 0, problem.sets.reach / norms, 0.0)
        row_groups.pulls(problem.sets, factors, np.flatnonzero(self.W.any(1)), np.zeros(problem.rows), pull)
        return pull

    def _held(self, rest, dead, held, tolerance, rounds) -> tuple[np.ndarray, np.ndarray]:
        """The part of the gradient of the overlap problem that dual vectors of zero groups cannot balance.

        The second result is a bool array that marks the zero groups that should be nonzero."""
        sizes = np.where(self.W.any(1), 0.0, np.linalg.norm(rest, axis=1))
        before = sizes.copy()
        factors, guess = held if held is not None else (np.zeros(len(dead)), np.zeros(len(sizes)))
        woken = row_groups.hold(
            self.problem.sets, dead, sizes, guess, factors, tolerance * self.problem.steepest, rounds
        )
        share = np.divide(sizes, before, out=np.ones_like(sizes), where=before > 0)
        return rest * share[:, None], woken

    def gap(self, taken: np.ndarray) -> float:
        """The duality gap of the overlap problem at this point, relative to the objective at zero weights.

        `taken` [rows, outputs] is the sum of the dual vectors of all groups. The dual point is computed from the
        derivatives of the loss with respect to the scores, scaled to be feasible."""
        problem = self.problem
        objective, slope = self.objective(), self._orthogonal()
        self.gradient_of(slope)
        total, cut = self.G + taken, problem.cut
        has_squares = problem.squares > 0
        excess = np.maximum(np.abs(total) - cut, 0)[~has_squares]
        scale = 1.0
        if cut > 0:
            scale = 1 / (1 + float(excess.max(initial=0)) / cut)
        elif problem.grouped and excess.any():
            scale = 1 / (1 + self._excess_of_groups(np.where(has_squares[:, None], 0.0, total)))
        dual = -row_kernels.conjugates(problem.data, slope, scale)
        over = np.maximum(scale * np.abs(total) - cut, 0)[has_squares]
        dual -= float((over**2 / (2 * problem.squares[has_squares][:, None])).sum())
        return max(objective - dual, 0.0) / problem.unit if np.isfinite(dual) else np.inf

    def _excess_of_groups(self, total: np.ndarray) -> float:
        """Overlap problem: the largest ratio of unbalanced gradient to penalty strength over all groups.

        `total` [rows, outputs] is the part of the gradient that the dual vectors do not balance. Each row is assigned
        to its group of the largest penalty strength. The ratio of a group is the norm of its assigned rows in `total`,
        divided by the penalty strength of the group."""
        sets, lengths = self.problem.sets, np.diff(self.problem.sets.starts)
        bearers = np.flatnonzero((lengths > 0) & total.any(1))
        rank = np.argsort(sets.reach[sets.groups], kind="stable")
        owner = np.repeat(np.arange(len(lengths)), lengths)
        heaviest = np.zeros(len(lengths), np.int64)
        heaviest[owner[rank]] = sets.groups[rank]
        squares = np.bincount(heaviest[bearers], (total[bearers] ** 2).sum(1), len(sets.reach))
        used = squares > 0
        return float((np.sqrt(squares[used]) / sets.reach[used]).max(initial=0)) if used.any() else 0.0

    def _orthogonal(self) -> np.ndarray:
        """Overlap problem: derivatives of the loss with respect to the scores, adjusted to sum to zero over items.

        The dual point needs this property if the model has a bias."""
        slope, bend = self.slope.copy(), self.bend
        if not self.problem.moves_bias:
            return slope
        for _ in range(2):
            sums = slope.sum(1)
            if self.problem.data.kind == SOFTMAX:
                move = np.linalg.lstsq(np.diag(bend.sum(1)) - bend @ bend.T, sums, rcond=None)[0]
                slope -= bend * (move[:, None] - move @ bend)
            else:
                total = bend.sum(1)
                slope -= bend * np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)[:, None]
        return slope


def _past_cut(rest: np.ndarray, W: np.ndarray, cut: float) -> np.ndarray:
    """The smallest subgradient of the overlap problem, including the lasso with strength `cut`.

    `rest` is the gradient without the lasso."""
    return np.where(W != 0, rest + cut * np.sign(W), rest - np.clip(rest, -cut, cut))


def _zeros(shape) -> np.ndarray:
    """An array of zeros, the default centre of the ridge in Newton steps on overlap problems."""
    return np.zeros(shape)


def _parts(penalty: Penalty, rows: int) -> RowParts:
    """Split the penalty of an overlap problem into group norms over rows, lasso and squares, or raise an error."""
    parts = penalty.row_parts(rows)
    if parts is None:
        raise UserError(
            f"this solver does not support {type(penalty).__name__}; expected StructuredElasticNet "
            "(reg=structured), L1, SquaredL2 or an ElasticNet without weights"
        )
    return parts


def _sets(cover: Cover | None, reach: np.ndarray, rows: int) -> tuple[RowGroups, np.ndarray, np.ndarray]:
    """The groups of an overlap problem as arrays, by row and by group.

    Returns the groups of each row, the rows of all groups in one array, and the offset of each group in this array."""
    if cover is None:
        empty = np.zeros(0, np.int32)
        return RowGroups(np.zeros(rows + 1, np.int64), empty, reach), empty, np.zeros(1, np.int64)
    by_rows = cover.atoms.shape[0] == rows == len(cover.atoms) and cover.atoms.aligned
    if not by_rows:
        raise UserError(
            f"the groups of {cover.parameter} are not of whole rows of a table of {rows}: this solver takes groups of "
            "rows"
        )
    members, bounds = cover.members.cpu().numpy(), cover.offsets.cpu().numpy()
    owner = np.repeat(np.arange(len(cover), dtype=np.int32), np.diff(bounds))
    starts = np.concatenate([[0], np.bincount(members, minlength=rows).cumsum()]).astype(np.int64)
    return RowGroups(starts, owner[np.argsort(members, kind="stable")], reach), members, bounds
