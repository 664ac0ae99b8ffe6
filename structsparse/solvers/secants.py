"""Secant pairs (step, gradient change) of a quasi-Newton solver, and the L-BFGS Hessian that the pairs define."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.kernels.solvers.quasi_newton import merge

FLAT = 1e-10  # a secant pair is dropped if the cosine between step and gradient change is at most this


class QuadraticModel(NamedTuple):
    """L-BFGS Hessian approximation that secant pairs define, in compact form: B = diag(base) - Q N Q'."""

    base: Tensor  # [weights], diagonal of the initial Hessian approximation
    Q: Tensor  # [weights, 2 * pairs], two columns for each secant pair
    N: Tensor  # [2 * pairs, 2 * pairs], a symmetric matrix

    def times(self, D: Tensor) -> Tensor:
        """The product of the L-BFGS Hessian from secant pairs with a vector D [weights]."""
        return self.base * D - self.Q @ (self.N @ (self.Q.T @ D))

    def diagonal(self) -> Tensor:
        """The diagonal of the L-BFGS Hessian from secant pairs, kept positive despite rounding errors."""
        return torch.maximum(self.base - (self.Q * (self.Q @ self.N)).sum(1), 1e-3 * self.base)

    def largest(self) -> float:
        """The largest eigenvalue of the L-BFGS Hessian from secant pairs, relative to diag(base); at least 1."""
        if self.Q.shape[1] == 0:
            return 1.0
        squares, vectors = torch.linalg.eigh(self.Q.T @ (self.Q / self.base.unsqueeze(1)))
        T = squares.clamp(min=0).sqrt().unsqueeze(1) * vectors.T
        return max(1.0, 1.0 - float(torch.linalg.eigvalsh(T @ self.N @ T.T)[0]))


class Secants:
    """Secant pairs (step, gradient change) of L-BFGS, stored only for weights in recent working sets.

    - `places` (int64) has the ascending indices of the stored weights among all weights.
    - `S` and `Y` (float64 [stored weights, pairs]) have the steps and the gradient changes, oldest pair first.

    If a weight is added later, its entries in older pairs are zero."""

    def __init__(self, history: int, places: Tensor, S: Tensor | None = None, Y: Tensor | None = None) -> None:
        self.history, self.places = history, places
        empty = torch.zeros(len(places), 0, dtype=torch.float64, device=places.device)
        self.S, self.Y = empty if S is None else S, empty if Y is None else Y

    def __len__(self) -> int:
        return self.S.shape[1]

    def join(self, active: Tensor) -> Tensor:
        """Extend the secant pairs to the weights in `active`, and drop other weights that no step has changed.

        `active` has ascending indices among all weights. Returns the row of each of them in `S` and `Y`."""
        kept = (self.S != 0).any(1)
        places, of_old, of_new = _merge(self.places, kept, active)
        if len(places) > len(self.places) or not bool((of_old >= 0).all()):  # the set of stored weights changes
            here = (of_old >= 0).nonzero()[:, 0]
            new = of_old[here]
            self.S, self.Y = (
                pairs.new_zeros(len(places), len(self)).index_copy_(0, new, pairs[here]) for pairs in (self.S, self.Y)
            )
        self.places = places
        return of_new

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add a secant pair (step and gradient change of the stored weights) if their inner product is positive."""
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
        """Scale of the initial L-BFGS Hessian from the last secant pair: (sum of y^2 / d) / (sum of s * y).

        Here s is the step, y the gradient change, and d (`weights`) the diagonal of the unscaled initial Hessian."""
        s, y = self.S[:, -1], self.Y[:, -1]
        return float((y * y / weights).sum() / (s @ y))

    def model(self, rows: Tensor, weights: Tensor, scale: float) -> QuadraticModel:
        """The L-BFGS Hessian that the secant pairs define, for the stored weights in `rows`.

        `weights` times `scale` is the diagonal of the initial Hessian. The result is in the compact form of Byrd,
        Nocedal and Schnabel (1994)."""
        base, active = scale * weights, scale * weights[rows]
        if len(self) == 0:
            return QuadraticModel(active, active.new_zeros(len(rows), 0), active.new_zeros(0, 0))
        SY = self.S.T @ self.Y
        lower, corner = SY.tril(-1), self.S.T @ (base.unsqueeze(1) * self.S)
        M = torch.cat([torch.cat([corner, lower], 1), torch.cat([lower.T, -torch.diag(SY.diagonal())], 1)])
        even = M.diagonal().abs().rsqrt()  # scales the matrix to a unit diagonal, for an accurate inverse
        Q = torch.cat([active.unsqueeze(1) * self.S[rows], self.Y[rows]], 1) * even
        return QuadraticModel(active, Q, torch.linalg.inv(even.unsqueeze(1) * M * even))


def _merge(old: Tensor, kept: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Merge two ascending lists of weight indices of secant pairs: the `old` ones marked in `kept`, and `new`.

    Returns the merged indices, the position of each old index among them (-1: not kept), and that of each new index.
    """
    if old.device.type == "cpu":
        places, of_old, of_new = old.new_empty(len(old) + len(new)), torch.empty_like(old), torch.empty_like(new)
        arrays = [tensor.contiguous().numpy() for tensor in (old, kept, new, places, of_old, of_new)]
        return places[: merge(*arrays)].clone(), of_old, of_new
    places = torch.unique(torch.cat([old[kept], new]))  # `unique` sorts the indices
    inside = torch.isin(old, places, assume_unique=True)
    of_old = torch.where(inside, torch.searchsorted(places, old), -1)
    return places, of_old, torch.searchsorted(places, new)
