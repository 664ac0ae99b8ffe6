"""Torch optimizers for linear models with overlapping group lasso: `Majorize`, `ADMM`, `StoppedEarly`.

Each optimizer reads the data from a `Design`."""

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
    """Base of the torch optimizers for overlapping groups; the data come from a design, not from a closure.

    The optimizers minimise the mean loss of the design `notes_of(table).design` plus the penalty of the table. A step
    makes up to `inner` iterations and sets the weights. Then it calls the closure once, to return the loss."""

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
        # the search in the last step, and the certificate of optimality for its weights
        self._latest, self._certificate = None, None

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Set the penalty of the optimizer's weight table, and the mask of weights that may be nonzero (support)."""
        self.check_members((*penalties, *(support or {})))
        self.penalties, self.support, self.search = dict(penalties), dict(support or {}), None

    @property
    def converged(self) -> bool:
        """Whether the search of the optimizer for overlapping groups is done."""
        return self.search is not None and self.search.done

    @property
    def certificate(self) -> Certificate | None:
        """The optimizer's certificate of optimality for the weights after the last step; None before the first step."""
        if self._certificate is None and self._latest is not None:
            self._certificate = self._certified(self._latest)
        return self._certificate

    def proof(self) -> Proof:
        """The certificate of the optimizer for overlapping groups, as a `Proof` for the training loop."""
        certificate = self.certificate
        if certificate is None:
            return Proof()
        return Proof(certificate.gap, certificate.kkt, certificate.gap * self._latest.problem.unit)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Take a torch step of the optimizer for overlapping groups: `inner` iterations, then set the parameters."""
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
        """Adjust the weights at the end of an optimizer step for overlapping groups; does nothing by default."""

    def _solution(self) -> tuple[np.ndarray, np.ndarray]:
        """The weights and the bias that the search of the optimizer for overlapping groups has found."""
        return self.search.point.W, self.search.point.bias

    def _table(self) -> Tensor:
        """The weight table of the optimizer: its only parameter with a design."""
        tables = [parameter for parameter in self.members if notes_of(parameter).design is not None]
        if len(tables) != 1:
            raise UserError(
                f"{type(self).__name__} needs one parameter with a design (task=textcat gives one), got {len(tables)}; "
                "choose another solver, such as solver=fista"
            )
        return tables[0]

    def _problem(self, table: Tensor, design: Design, penalty: Penalty) -> OverlapProblem:
        """The optimizer's problem with overlapping groups, for the given table, design and penalty."""
        return OverlapProblem(design, table, penalty, self.support.get(table))

    def _penalty(self, table: Tensor) -> Penalty:
        """The penalty that the optimizer for overlapping groups applies to the table."""
        return self.penalties.get(table) or NoPenalty()

    def _begin(self, table: Tensor, design: Design):
        """Start the search of an optimizer for overlapping groups at the current table and bias."""
        raise NotImplementedError

    def _certified(self, search) -> Certificate:
        """The certificate of optimality for the weights that the optimizer's search has found."""
        raise NotImplementedError

    def _start(self, table: Tensor, design: Design) -> tuple[np.ndarray, np.ndarray]:
        """The initial weights and bias of the optimizer's search, as arrays."""
        bias = np.zeros(design.outputs(table)) if design.bias is None else design.bias.detach().cpu().double().numpy()
        return table.detach().cpu().double().numpy(), bias


class Majorize(DesignOptimizer):
    """Torch optimizer for overlapping group lasso by majorize-minimise with proximal Newton (see `majorize`).

    The search ends when one of two conditions holds:

    - The smallest subgradient of the objective is at most `kkt` times the largest gradient at zero weights.
    - The proved duality gap is at most `gap` times the objective at zero weights."""

    def __init__(self, params, inner: int = 10, kkt: float = 1e-9, gap: float = 0.0, lr: float = 1.0) -> None:
        if not (kkt > 0 and math.isfinite(kkt)):
            raise UserError(f"solver.kkt is {kkt}; it must be a positive number")
        if not 0 <= gap < math.inf:
            raise UserError(f"solver.gap is {gap}; it must be a number of at least 0")
        super().__init__(params, inner, lr, kkt=kkt, gap=float(gap))

    def _begin(self, table: Tensor, design: Design) -> Majorizer:
        """Start the search by majorize-minimise at the optimizer's current table and bias."""
        problem = self._problem(table, design, self._penalty(table))
        group = self.param_groups[0]
        return Majorizer(problem, *self._start(table, design), group["kkt"], group["gap"])

    def _certified(self, search: Majorizer) -> Certificate:
        """The certificate of optimality from the optimizer's majorize-minimise search."""
        return search.certificate if search.done and search.certificate else search.certify()


class ADMM(DesignOptimizer):
    """Torch optimizer for overlapping group lasso by ADMM, Algorithm 2 of Yogatama (see `admm`).

    The search ends when the criterion `stop` holds at `tolerance`, or after `iterations` iterations. ADMM keeps copies
    of the rows of each group. With `zeros`, if all copies of a group are zero, its rows are set to zero at the end."""

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
        """Whether the ADMM optimizer's search is done or has made the maximum number of iterations."""
        return super().converged or (
            self.search is not None and self.search.iterations >= self.param_groups[0]["iterations"]
        )

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Take a torch step of the ADMM optimizer; after convergence, the weights no longer change."""
        if self.search is not None and self.converged:
            self.search.done = True
        return super().step(closure)

    def _begin(self, table: Tensor, design: Design) -> Admm:
        """Start the search by ADMM at the optimizer's current table and bias."""
        group = self.param_groups[0]
        options = {key: group[key] for key in ("rho", "adaptive", "relax", "stop", "tolerance")}
        problem = self._problem(table, design, self._penalty(table))
        options |= {"inner": group["w_tolerance"], "newton": group["w_steps"]}
        return Admm(problem, *self._start(table, design), **options)

    def _settle(self) -> None:
        """Set the rows of groups with all-zero copies to zero, at the end of the ADMM optimizer's search."""
        if self.converged and self.param_groups[0]["zeros"] and self.search.problem.grouped:
            self.search.point.W[self._dead_rows()] = 0
            self.search.point.rescore()

    def _certified(self, search: Admm) -> Certificate:
        """The certificate of optimality for the weights that the ADMM optimizer's search has found."""
        return search.certify()

    def _dead_rows(self) -> np.ndarray:
        """A mask of the rows that the ADMM optimizer sets to zero: the rows of all groups with all-zero copies."""
        search = self.search
        lengths = np.diff(search.problem.bounds)
        living = np.add.reduceat(search.copies.any(1).astype(np.int64), search.problem.bounds[:-1]) > 0
        rows = np.zeros(search.problem.rows, np.bool_)
        rows[search.problem.order[np.repeat(~living, lengths)]] = True
        return rows


class StoppedEarly(ADMM):
    """Torch optimizer that stops ADMM for overlapping groups early, with the strength of the groups set to zero.

    The iterations minimise the loss with lasso and squares, but stop before convergence. Each row of the weight
    table has a copy in each of its groups, and each copy holds the row back. Rows in many groups change least."""

    def _penalty(self, table: Tensor) -> Penalty:
        """The penalty of the weight table for the early-stopped optimizer, with zero strength of the groups."""
        penalty = super()._penalty(table).without_groups()
        if penalty is None:
            raise UserError("solver=early takes its metric from groups: expected a penalty such as reg=sentences")
        return penalty
