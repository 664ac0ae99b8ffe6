"""Secant pairs (step, gradient change) of active parameter entries, and the L-BFGS metric that the pairs define."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.kernels.solvers.quasi_newton import merge

FLAT = 1e-10  # cosine of step and gradient change up to which a pair has no usable curvature


class QuadraticModel(NamedTuple):
    """L-BFGS metric (Hessian approximation) that secant pairs define, in compact form: B = diag(base) - Q N Q'."""

    base: Tensor  # [entries], diagonal of the initial metric
    Q: Tensor  # [entries, columns], two columns per secant pair
    N: Tensor  # [columns, columns], symmetric

    def times(self, D: Tensor) -> Tensor:
        """The product B D of the L-BFGS metric B of secant pairs with a vector D [entries]."""
        return self.base * D - self.Q @ (self.N @ (self.Q.T @ D))

    def diagonal(self) -> Tensor:
        """The diagonal of the L-BFGS metric B of secant pairs, kept positive against rounding errors."""
        return torch.maximum(self.base - (self.Q * (self.Q @ self.N)).sum(1), 1e-3 * self.base)

    def largest(self) -> float:
        """The largest eigenvalue, at least 1, of the L-BFGS metric B of secant pairs relative to diag(base).

        With Z = Q / sqrt(base) and Z'Z = T'T, the nonzero eigenvalues of Z N Z' are the nonzero eigenvalues of T N T'.
        """
        if self.Q.shape[1] == 0:
            return 1.0
        squares, vectors = torch.linalg.eigh(self.Q.T @ (self.Q / self.base.unsqueeze(1)))
        T = squares.clamp(min=0).sqrt().unsqueeze(1) * vectors.T
        return max(1.0, 1.0 - float(torch.linalg.eigvalsh(T @ self.N @ T.T)[0]))


class Secants:
    """Secant pairs (step, gradient change) of L-BFGS, stored for the entries of recent steps and the working set.

    places: int64 [stored], the ascending indices of the stored entries among all entries of the parameters.

    S, Y: float64 [stored, pairs], the steps and the gradient changes, the oldest first.

    For an entry that is added later, the gradient changes of older pairs count as zero, which keeps the metric positive
    definite. Memory is the number of pairs times the number of stored entries."""

    def __init__(self, history: int, places: Tensor, S: Tensor | None = None, Y: Tensor | None = None) -> None:
        self.history, self.places = history, places
        empty = torch.zeros(len(places), 0, dtype=torch.float64, device=places.device)
        self.S, self.Y = empty if S is None else S, empty if Y is None else Y

    def __len__(self) -> int:
        return self.S.shape[1]

    def join(self, active: Tensor) -> Tensor:
        """Add the active entries to the secant pairs, and drop entries that are zero in all steps.

        `active` holds the ascending indices of the active entries among all entries. Returns the rows of the active
        entries in the pairs."""
        kept = (self.S != 0).any(1)
        places, of_old, of_new = _merge(self.places, kept, active)
        if len(places) > len(self.places) or not bool((of_old >= 0).all()):  # the stored entries change
            here = (of_old >= 0).nonzero()[:, 0]
            new = of_old[here]
            self.S, self.Y = (
                pairs.new_zeros(len(places), len(self)).index_copy_(0, new, pairs[here]) for pairs in (self.S, self.Y)
            )
        self.places = places
        return of_new

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add a secant pair, step [stored] and gradient change [stored], unless the curvature is not positive."""
        along = float(step @ change)
        if along <= FLAT * float(step.norm()) * float(change.norm()):
            return
        keep = slice(max(0, len(self) + 1 - self.history), None)
        self.S = torch.cat([self.S[:, keep], step.unsqueeze(1)], dim=1)
        self.Y = torch.cat([self.Y[:, keep], change.unsqueeze(1)], dim=1)

    def forget(self) -> None:
        """Drop all secant pairs."""
        self.S, self.Y = self.S[:, :0], self.Y[:, :0]

    def secant(self, weights: Tensor) -> float:
        """The scale of the initial metric diag(weights) from the last secant pair: y' diag(weights)^-1 y / s' y.

        Here s and y are the last step and the last gradient change. The scale is the larger of the two usual choices;
        weights [stored]."""
        s, y = self.S[:, -1], self.Y[:, -1]
        return float((y * y / weights).sum() / (s @ y))

    def model(self, rows: Tensor, weights: Tensor, scale: float) -> QuadraticModel:
        """The L-BFGS metric of the secant pairs on some rows, starting from scale * diag(weights); weights [stored].

        The compact form is B = B0 - Q M^-1 Q' with B0 = scale * diag(weights), Q = [B0 S, Y] and
        M = [[S' B0 S, L], [L', -D]]. D and L are the diagonal and the strictly lower part of S' Y."""
        base, active = scale * weights, scale * weights[rows]
        if len(self) == 0:
            return QuadraticModel(active, active.new_zeros(len(rows), 0), active.new_zeros(0, 0))
        SY = self.S.T @ self.Y
        lower, corner = SY.tril(-1), self.S.T @ (base.unsqueeze(1) * self.S)
        M = torch.cat([torch.cat([corner, lower], 1), torch.cat([lower.T, -torch.diag(SY.diagonal())], 1)])
        even = M.diagonal().abs().rsqrt()  # scale factors of rows and columns of M, for an accurate inverse
        Q = torch.cat([active.unsqueeze(1) * self.S[rows], self.Y[rows]], 1) * even
        return QuadraticModel(active, Q, torch.linalg.inv(even.unsqueeze(1) * M * even))


def _merge(old: Tensor, kept: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the kept old indices of secant pairs with the new indices, all ascending.

    Returns the union; the position in the union of each old index, or -1 if not kept; the position of each new index.
    """
    if old.device.type == "cpu":
        places, of_old, of_new = old.new_empty(len(old) + len(new)), torch.empty_like(old), torch.empty_like(new)
        arrays = [tensor.contiguous().numpy() for tensor in (old, kept, new, places, of_old, of_new)]
        return places[: merge(*arrays)].clone(), of_old, of_new
    places = torch.unique(torch.cat([old[kept], new]))  # `unique` returns ascending indices
    inside = torch.isin(old, places, assume_unique=True)
    of_old = torch.where(inside, torch.searchsorted(places, old), -1)
    return places, of_old, torch.searchsorted(places, new)
