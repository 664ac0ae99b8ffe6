"""The curvature of a loss from its last steps: the metric of L-BFGS, on the entries that live."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.kernels.solvers.quasi_newton import merge

FLAT = 1e-10  # cosine of step and change of gradient below which a pair says nothing of the curvature


class Model(NamedTuple):
    """B = diag(base) - Q N Q' on some entries."""

    base: Tensor  # [entries]
    Q: Tensor  # [entries, columns]
    N: Tensor  # [columns, columns], symmetric

    def times(self, D: Tensor) -> Tensor:
        return self.base * D - self.Q @ (self.N @ (self.Q.T @ D))

    def diagonal(self) -> Tensor:
        """Of B, kept away from the zero that rounding may make of it."""
        return torch.maximum(self.base - (self.Q * (self.Q @ self.N)).sum(1), 1e-3 * self.base)

    def largest(self) -> float:
        """The largest eigenvalue of B relative to its base, 1 at least.

        With Z = Q / sqrt(base) and Z'Z = T'T, those of Z N Z' which are not zero are those of T N T'."""
        if self.Q.shape[1] == 0:
            return 1.0
        squares, vectors = torch.linalg.eigh(self.Q.T @ (self.Q / self.base.unsqueeze(1)))
        T = squares.clamp(min=0).sqrt().unsqueeze(1) * vectors.T
        return max(1.0, 1.0 - float(torch.linalg.eigvalsh(T @ self.N @ T.T)[0]))


class Secants:
    """Pairs of step and change of gradient, kept on the entries that took part in one of the last steps or live now.

    places: int64 [kept] ascending, where they are among all entries; S, Y: float64 [kept, pairs], the oldest first.
    The change of gradient of an entry that joins later counts as zero in the older pairs, which leaves the metric
    positive definite: memory is pairs times the living."""

    def __init__(self, history: int, places: Tensor, S: Tensor | None = None, Y: Tensor | None = None) -> None:
        self.history, self.places = history, places
        empty = torch.zeros(len(places), 0, dtype=torch.float64, device=places.device)
        self.S, self.Y = empty if S is None else S, empty if Y is None else Y

    def __len__(self) -> int:
        return self.S.shape[1]

    def join(self, active: Tensor) -> Tensor:
        """Make room for the active entries, ascending; their rows."""
        kept = (self.S != 0).any(1)
        places, of_old, of_new = _merge(self.places, kept, active)
        if len(places) > len(self.places) or not bool((of_old >= 0).all()):  # else nothing joins and nothing leaves
            here = (of_old >= 0).nonzero()[:, 0]
            new = of_old[here]
            self.S, self.Y = (
                pairs.new_zeros(len(places), len(self)).index_copy_(0, new, pairs[here]) for pairs in (self.S, self.Y)
            )
        self.places = places
        return of_new

    def add(self, step: Tensor, change: Tensor) -> None:
        """A pair, in rows of the kept entries [kept]; one without positive curvature is left out."""
        along = float(step @ change)
        if along <= FLAT * float(step.norm()) * float(change.norm()):
            return
        keep = slice(max(0, len(self) + 1 - self.history), None)
        self.S = torch.cat([self.S[:, keep], step.unsqueeze(1)], dim=1)
        self.Y = torch.cat([self.Y[:, keep], change.unsqueeze(1)], dim=1)

    def forget(self) -> None:
        self.S, self.Y = self.S[:, :0], self.Y[:, :0]

    def secant(self, weights: Tensor) -> float:
        """The larger of the two scales of diag(weights) [kept] that the last pair asks for: y' D^-1 y / s' y."""
        s, y = self.S[:, -1], self.Y[:, -1]
        return float((y * y / weights).sum() / (s @ y))

    def model(self, rows: Tensor, weights: Tensor, scale: float) -> Model:
        """The metric on these rows, which starts from scale * diag(weights); weights [kept].

        The compact form: B = B0 - Q M^-1 Q' with Q = [B0 S, Y] and M = [[S' B0 S, L], [L', -D]], where D and L are
        the diagonal and what is below it of S' Y."""
        base, active = scale * weights, scale * weights[rows]
        if len(self) == 0:
            return Model(active, active.new_zeros(len(rows), 0), active.new_zeros(0, 0))
        SY = self.S.T @ self.Y
        lower, corner = SY.tril(-1), self.S.T @ (base.unsqueeze(1) * self.S)
        M = torch.cat([torch.cat([corner, lower], 1), torch.cat([lower.T, -torch.diag(SY.diagonal())], 1)])
        even = M.diagonal().abs().rsqrt()  # columns of a like size, for the inverse
        Q = torch.cat([active.unsqueeze(1) * self.S[rows], self.Y[rows]], 1) * even
        return Model(active, Q, torch.linalg.inv(even.unsqueeze(1) * M * even))


def _merge(old: Tensor, kept: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The union of the old places that are kept with the new ones, all ascending; where in it each old place is, -1 if
    it is not there; and where each new one is."""
    if old.device.type == "cpu":
        places, of_old, of_new = old.new_empty(len(old) + len(new)), torch.empty_like(old), torch.empty_like(new)
        arrays = [tensor.contiguous().numpy() for tensor in (old, kept, new, places, of_old, of_new)]
        return places[: merge(*arrays)].clone(), of_old, of_new
    places = torch.unique(torch.cat([old[kept], new]))  # ascending
    inside = torch.isin(old, places, assume_unique=True)
    of_old = torch.where(inside, torch.searchsorted(places, old), -1)
    return places, of_old, torch.searchsorted(places, new)
