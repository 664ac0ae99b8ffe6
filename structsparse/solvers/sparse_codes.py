"""Sparse codes of many items under one dictionary: FISTA on all columns at once, with a certificate for each.

The code a of an item x under the atoms D minimises 1/2 ||x - D'a||^2 + unit * penalty(a). Only the Gram matrix G = D D'
and the correlations b = D x are needed, so that x may be sparse and long. Codes and correlations are columns of tables
[atoms, items]. `unit` converts the strength of a penalty, for example that of a mean loss to that of one item."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse.kernels.solvers import sparse_codes as kernels
from structsparse.penalties import Penalty

EVERY = 4  # iterations between two searches for columns that have converged
FULL = 0.75  # converged columns are dropped when at most this share of the columns waits
RIDGE = 0.02  # of the codes to begin with, as a share of the largest eigenvalue of the Gram matrix


@torch.no_grad()
def sparse_codes(
    gram: Tensor,
    correlations: Tensor,
    penalty: Penalty,
    unit: float = 1.0,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    iterations: int = 1000,
) -> Tensor:
    """Sparse codes of items, from the Gram matrix of the atoms and their correlations with the items.

    FISTA with restarts runs on all columns at once; converged columns are dropped. A column has converged if no entry
    of its proximal gradient exceeds `tolerance` times its largest correlation. Columns of zeros in `start`, and all
    without it, begin from ridge codes. The groups of the penalty must accept tables with any number of columns. If the
    penalty has squares only, the codes solve linear equations."""
    squares = penalty.cut_and_ridge()
    if squares is not None and squares[0] == 0:
        return _linear(gram, correlations, unit * squares[1])
    bound = lipschitz(gram)
    if bound == 0:
        return torch.zeros_like(correlations)
    result = _beginning(gram, correlations, penalty, unit, start, bound)
    matrix = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) - gram / bound  # a gradient step, before D x
    limit = tolerance * correlations.abs().amax(dim=0)
    state = _State(result.clone(), correlations / bound)
    for iteration in range(1, iterations + 1):
        new = torch.addmm(state.pull, matrix, state.point, out=state.spare)
        penalty.prox_(new, unit / bound)
        state.advance(new)
        if iteration == iterations:
            state.store(state.waiting, result)
        elif iteration % EVERY == 0 and not state.wait(bound * state.residual > limit[state.columns], result):
            break
    return result


def _beginning(
    gram: Tensor, correlations: Tensor, penalty: Penalty, unit: float, start: Tensor | None, bound: float
) -> Tensor:
    """Sparse codes to begin with: those given or, where these are zero, ridge codes after a proximal step."""
    zero = correlations.new_ones(correlations.shape[1]).bool() if start is None else ~start.any(dim=0)
    if not zero.any():
        return start.clone()
    ridge = RIDGE * bound * torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    inverse = torch.linalg.inv(gram.double() + ridge).to(gram)
    guess = inverse @ (correlations if zero.all() else correlations[:, zero])
    penalty.prox_(guess, unit / float(gram.diagonal().mean()))
    if zero.all():
        return guess
    result = start.clone()
    result[:, zero] = guess
    return result


def lipschitz(gram: Tensor) -> float:
    """Sparse codes: the largest eigenvalue of a Gram matrix, with a margin for rounding."""
    return float(torch.linalg.eigvalsh(gram.double())[-1].clamp(min=0)) * (1 + 1e-5)


def _linear(gram: Tensor, correlations: Tensor, ridge: float) -> Tensor:
    """Sparse codes under a penalty of squares: the solution of (G + ridge) a = b, in float64."""
    gram = gram.double()
    if ridge == 0:
        return (torch.linalg.pinv(gram, hermitian=True) @ correlations.double()).to(correlations)
    factor = torch.linalg.cholesky(gram + ridge * torch.eye(len(gram), dtype=torch.float64, device=gram.device))
    return torch.cholesky_solve(correlations.double(), factor).to(correlations)


class _State:
    """Sparse codes: the FISTA state of the columns that have not converged."""

    def __init__(self, codes: Tensor, pull: Tensor) -> None:
        self.codes, self.point, self.pull, self.spare = codes, codes.clone(), pull, torch.empty_like(codes)
        self.momentum = torch.ones(codes.shape[1], dtype=codes.dtype, device=codes.device)
        self.residual = torch.zeros_like(self.momentum)
        self.columns = torch.arange(codes.shape[1], device=codes.device)  # their numbers in the table of the result
        self.waiting = torch.ones_like(self.columns, dtype=torch.bool)

    def advance(self, new: Tensor) -> None:
        """Sparse codes: accept the proximal step of each column, and extrapolate."""
        if new.device.type == "cpu":
            tables = new, self.codes, self.point, self.momentum, self.residual
            kernels.extrapolate(*(table.numpy() for table in tables))
            return
        back, move = self.point - new, new - self.codes
        before = torch.where((back * move).sum(dim=0) > 0, 1.0, self.momentum)
        self.momentum = (1 + torch.sqrt(1 + 4 * before.square())) / 2
        self.codes, self.point = new.clone(), new + (before - 1) / self.momentum * move
        self.residual = back.abs().amax(dim=0)

    def store(self, chosen: Tensor, result: Tensor) -> None:
        """Sparse codes: put some columns into the result; `chosen` is a mask."""
        places = chosen.nonzero().flatten()
        result.index_copy_(1, self.columns[places], self.codes.index_select(1, places))

    def wait(self, waiting: Tensor, result: Tensor) -> bool:
        """Sparse codes: put the columns that wait no longer into the result; returns whether any column waits.

        A column keeps the codes with which it converged, even if it goes on among the others for some time."""
        self.store(self.waiting & ~waiting, result)
        self.waiting &= waiting
        left = self.waiting.nonzero().flatten()
        if 0 < len(left) <= FULL * len(self.columns):
            self.codes, self.point, self.pull = (x.index_select(1, left) for x in (self.codes, self.point, self.pull))
            self.spare = torch.empty_like(self.codes)
            self.momentum, self.residual, self.columns, self.waiting = (
                x[left] for x in (self.momentum, self.residual, self.columns, self.waiting)
            )
        return len(left) > 0


@torch.no_grad()
def violations(gram: Tensor, correlations: Tensor, codes: Tensor, penalty: Penalty, unit: float = 1.0) -> Tensor:
    """Certificate of sparse codes: how far each column is from its optimality (KKT) conditions, [items].

    The result is the largest absolute entry of the proximal gradient divided by the largest absolute correlation, which
    is the gradient at zero. It is computed in float64, and is 0 exactly at an optimum."""
    gram, correlations, codes = gram.double(), correlations.double(), codes.double()
    bound = max(lipschitz(gram), torch.finfo(torch.float64).tiny)
    moved = penalty.prox_(codes - (gram @ codes - correlations) / bound, unit / bound)
    scale = correlations.abs().amax(dim=0)
    return bound * (codes - moved).abs().amax(dim=0) / torch.where(scale > 0, scale, 1.0)


@torch.no_grad()
def objective(gram: Tensor, correlations: Tensor, codes: Tensor, penalty: Penalty, unit: float = 1.0) -> float:
    """The objective of sparse codes, summed over the items, without the constant 1/2 ||x||^2 (float64)."""
    gram, correlations, codes = gram.double(), correlations.double(), codes.double()
    fit = (codes * (gram @ codes)).sum() / 2 - (codes * correlations).sum()
    return float(fit + unit * penalty.value(codes))
