"""Torch optimizers for linear models with overlapping group lasso: `Majorize`, `ADMM`, `StoppedEarly`.

Each optimizer needs a `Design`, which holds the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import NoPenalty, Penalty
from structsparse.solvers.base import Proof, Solver
from structsparse.solvers.overlaps.admm import Admm
from structsparse.solvers.overlaps.design import Design
from structsparse.solvers.overlaps.majorize import Majorizer
from structsparse.solvers.overlaps.problem import Certificate, OverlapProblem
from structsparse.weights.notes import notes_of


class DesignOptimizer(Solver):
    """Base of the torch optimizers for overlapping groups, which read the data from a design, not a closure.

    These optimizers minimise the mean loss of `notes_of(table).design` plus the penalty of the table. The search starts
    at the current table and bias. A step makes up to `inner` iterations and ends with one call of the closure, which
    returns the loss at the new weights.

    `certificate`, computed on demand, certifies the weights after the last step; `proof()` returns the same numbers.
    `converged` tells whether the search is done."""

    needs_closure = True
    needs_full_batch = True
    carries_penalties = True
    host_only = True

    def __init__(self, params, inner: int, lr: float = 1.0, **defaults) -> None:
        if not (isinstance(inner, int) and inner > 0):
            raise UserError(f"solver.inner is {inner}; it must be a whole number above 0")
        super().__init__(params, {"lr": lr, "inner": inner, **defaults})
        self.penalties: dict[Tensor, Penalty] = {}
        self.support: dict[Tensor, Tensor] = {}
        self.search = None
        # the last search, and the certificate of the weights that the search found
        self._latest, self._certificate = None, None

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Set the penalty of the optimizer's table; entries outside the support stay zero."""
        self.check_members((*penalties, *(support or {})))
        self.penalties, self.support, self.search = dict(penalties), dict(support or {}), None

    @property
    def converged(self) -> bool:
        """Whether the search of the optimizer for overlapping groups is done."""
        return self.search is not None and self.search.done

    @property
    def certificate(self) -> Certificate | None:
        """The optimizer's optimality certificate of the weights after the last step, computed on demand.

        The result is None before the first step."""
        if self._certificate is None and self._latest is not None:
            self._certificate = self._certified(self._latest)
        return self._certificate

    def proof(self) -> Proof:
        """The certificate of the optimizer for overlapping groups as a `Proof`: gap, kkt violation and absolute gap."""
        certificate = self.certificate
        if certificate is None:
            return Proof()
        return Proof(certificate.gap, certificate.kkt, certificate.gap * self._latest.problem.unit)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """A torch step of the optimizer for overlapping groups: up to `inner` iterations, then write the solution."""
        if closure is None:
            raise UserError(f"{type(self).__name__} evaluates the loss within a step: call step(closure)")
        table = self._table()
        if self.search is None:
            self.search = self._begin(table, notes_of(table).design)
        for _ in range(self.param_groups[0]["inner"]):
            if self.search.done:
                break
            self.search.iterate()
        self._latest, self._certificate = self.search, None
        self._settle()
        notes_of(table).design.write_(table, *self._solution())
        with torch.enable_grad():
            loss = closure()
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            parameter.grad = None
        return loss

    def _settle(self) -> None:
        """Adjust the solution at the end of an optimizer step for overlapping groups; by default nothing."""

    def _solution(self) -> tuple[np.ndarray, np.ndarray]:
        """The weights and the bias that the search of the optimizer for overlapping groups has found."""
        return self.search.point.W, self.search.point.bias

    def _table(self) -> Tensor:
        """The only parameter of the optimizer that has a design."""
        tables = [parameter for parameter in self.members if notes_of(parameter).design is not None]
        if len(tables) != 1:
            raise UserError(
                f"{type(self).__name__} needs one parameter with a design (task=textcat gives one), got {len(tables)}; "
                "choose another solver, such as solver=fista"
            )
        return tables[0]

    def _problem(self, table: Tensor, design: Design, penalty: Penalty) -> OverlapProblem:
        """The optimizer's problem with overlapping groups, from table, design, penalty and support."""
        return OverlapProblem(design, table, penalty, self.support.get(table))

    def _penalty(self, table: Tensor) -> Penalty:
        """The penalty that the optimizer for overlapping groups applies to the table."""
        return self.penalties.get(table) or NoPenalty()

    def _begin(self, table: Tensor, design: Design):
        """Start the search of an optimizer for overlapping groups at the current table and bias."""
        raise NotImplementedError

    def _certified(self, search) -> Certificate:
        """The optimality certificate of the weights that the optimizer's search has found."""
        raise NotImplementedError

    def _start(self, table: Tensor, design: Design) -> tuple[np.ndarray, np.ndarray]:
        """The initial weights and bias of the optimizer's search, as arrays."""
        bias = np.zeros(design.outputs(table)) if design.bias is None else design.bias.detach().cpu().double().numpy()
        return table.detach().cpu().double().numpy(), bias


class Majorize(DesignOptimizer):
    """Torch optimizer for overlapping group lasso by majorize-minimise with proximal Newton (see `majorize`).

    Dual vectors prove that zero groups are zero at the optimum. The search ends when the smallest subgradient is at
    most `kkt` times the largest gradient at zero weights. The search also ends when a duality gap of at most `gap`
    times the objective at zero weights is proved. Without groups the optimizer uses `fit_linear`, then Newton steps."""

    def __init__(self, params, inner: int = 10, kkt: float = 1e-9, gap: float = 0.0, lr: float = 1.0) -> None:
        if not (kkt > 0 and math.isfinite(kkt)):
            raise UserError(f"solver.kkt is {kkt}; it must be a positive number")
        if not 0 <= gap < math.inf:
            raise UserError(f"solver.gap is {gap}; it must be a number of at least 0")
        super().__init__(params, inner, lr, kkt=kkt, gap=float(gap))

    def _begin(self, table: Tensor, design: Design) -> Majorizer:
        """Start the optimizer's search by majorize-minimise."""
        problem = self._problem(table, design, self._penalty(table))
        group = self.param_groups[0]
        return Majorizer(problem, *self._start(table, design), group["kkt"], group["gap"])

    def _certified(self, search: Majorizer) -> Certificate:
        """The optimality certificate of the optimizer's majorize-minimise search, computed if there is none yet."""
        return search.certificate if search.done and search.certificate else search.certify()


class ADMM(DesignOptimizer):
    """Torch optimizer for overlapping group lasso by ADMM, Algorithm 2 of Yogatama (see `admm`).

    The search ends by the criterion `stop` at `tolerance`, or after `iterations`. The table is w of the paper, with
    zeros that come from the lasso. With `zeros`, rows of groups whose copy v_g is zero are set to zero too at the end,
    as v = w at the optimum. The gap is that of the resulting table."""

    def __init__(
        self, params, inner: int = 10, rho: float = 1.0, adaptive: bool = False, relax: float = 1.0,
        stop: str = "change", tolerance: float = 1e-3, iterations: int = 100, w_tolerance: float = 1e-6,
        w_steps: int = 50, zeros: bool = True, lr: float = 1.0,
    ) -> None:  # fmt: skip
        for name, value in (("rho", rho), ("tolerance", tolerance), ("w_tolerance", w_tolerance)):
            if not (value > 0 and math.isfinite(value)):
                raise UserError(f"solver.{name} is {value}; it must be a positive number")
        for name, count in (("iterations", iterations), ("w_steps", w_steps)):
            if not (isinstance(count, int) and count > 0):
                raise UserError(f"solver.{name} is {count}; it must be a whole number above 0")
        if not 0 < relax < 2:
            raise UserError(f"solver.relax is {relax}; it must lie between 0 and 2")
        options = {"rho": rho, "adaptive": adaptive, "relax": relax, "stop": stop, "tolerance": tolerance}
        options |= {"iterations": iterations, "w_tolerance": w_tolerance, "w_steps": w_steps, "zeros": zeros}
        super().__init__(params, inner, lr, **options)

    @property
    def converged(self) -> bool:
        """Whether the ADMM optimizer's search is done, or has used up its iterations."""
        return super().converged or (
            self.search is not None and self.search.iterations >= self.param_groups[0]["iterations"]
        )

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """A torch step of the ADMM optimizer; after convergence nothing changes."""
        if self.search is not None and self.converged:
            self.search.done = True
        return super().step(closure)

    def _begin(self, table: Tensor, design: Design) -> Admm:
        """Start the optimizer's search by ADMM."""
        group = self.param_groups[0]
        options = {key: group[key] for key in ("rho", "adaptive", "relax", "stop", "tolerance")}
        problem = self._problem(table, design, self._penalty(table))
        options |= {"inner": group["w_tolerance"], "newton": group["w_steps"]}
        return Admm(problem, *self._start(table, design), **options)

    def _settle(self) -> None:
        """At the end of the ADMM optimizer's search, set the rows of groups with zero copies to zero."""
        if self.converged and self.param_groups[0]["zeros"] and self.search.problem.grouped:
            self.search.point.W[self._dead_rows()] = 0
            self.search.point.rescore()

    def _certified(self, search: Admm) -> Certificate:
        """The optimality certificate of the weights that the ADMM optimizer's search has found."""
        return search.certify()

    def _dead_rows(self) -> np.ndarray:
        """The rows of groups whose copies in the ADMM optimizer's search are zero: bool [rows]."""
        search = self.search
        lengths = np.diff(search.problem.bounds)
        living = np.add.reduceat(search.copies.any(1).astype(np.int64), search.problem.bounds[:-1]) > 0
        rows = np.zeros(search.problem.rows, np.bool_)
        rows[search.problem.order[np.repeat(~living, lengths)]] = True
        return rows


class StoppedEarly(ADMM):
    """Torch optimizer that stops ADMM for overlapping groups early, with the strength of the groups set to zero.

    The optimizer does not minimise the penalty. The iterations approach the minimum of loss, lasso and squares. They
    are a proximal point method in the metric N_j, the number of groups that contain word j. Frequent words move little,
    rare words move far. The penalty weight rho of ADMM and the number of iterations determine the model."""

    def _penalty(self, table: Tensor) -> Penalty:
        """The penalty of the table for the early-stopped optimizer, with the strength of the groups set to zero."""
        penalty = super()._penalty(table).without_groups()
        if penalty is None:
            raise UserError("solver=early takes its metric from groups: expected a penalty such as reg=sentences")
        return penalty
