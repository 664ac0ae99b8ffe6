"""Sparse codes of items by active sets, for dictionaries with many more atoms than an item uses.

`solvers.sparse_codes` defines the problem. Here the code of an item is computed over a small active set of atoms, to
which those that violate the optimality conditions are added until there are none. Time and memory of an item depend on
its active set, apart from one product with rows of the Gram matrix in each round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from structsparse.kernels.solvers import active_codes as kernels
from structsparse.penalties import Penalty
from structsparse.solvers.sparse_codes import sparse_codes

FIRST = 32  # atoms that enter an active set in the first round; later at most as many as there are
ROUNDS = 60  # at most, of additions to active sets
WITHIN = 0.3  # active sets are solved to this share of the tolerance
POWER = 60  # iterations for the largest eigenvalue of the Gram matrix


class ActiveCodes(NamedTuple):
    """Sparse codes of items, and figures of each."""

    codes: sparse.csr_array  # [items, atoms]
    gained: np.ndarray  # [items], ||x||^2 - ||x - D'a||^2
    violation: np.ndarray  # [items], as `sparse_codes.violations`


@torch.no_grad()
def active_codes(
    gram: Tensor,
    correlations: Tensor,
    penalty: Penalty,
    unit: float = 1.0,
    start: sparse.csr_array | None = None,
    tolerance: float = 1e-4,
    iterations: int = 1000,
) -> ActiveCodes:
    """Sparse codes of items, from the Gram matrix of the atoms and correlations [atoms, items], as sparse rows.

    Penalties that are no sum of an elastic net and of norms of nested groups are computed by `sparse_codes`."""
    state = _State(gram, correlations, penalty, unit, start)
    limit = tolerance * state.scale
    forest = penalty.column_forest(len(gram))
    if forest is None or not (forest.cut > 0 or forest.weight.any()):  # no code is zero
        state.solve_densely(penalty, unit, tolerance, iterations)
        return state.result(state.residual())
    for _ in range(ROUNDS):
        residual, moved = state.residual(), state.moved
        waiting = np.flatnonzero(residual > limit)
        if len(waiting) == 0:
            break
        state.extend(waiting, moved)
        state.solve(waiting, penalty, unit, WITHIN * limit, iterations)
        residual = None
    return state.result(state.residual() if residual is None else residual)


def largest_eigenvalue(gram: Tensor) -> float:
    """The largest eigenvalue of a Gram matrix by power iteration, with a margin of 1 %."""
    vector = torch.ones(len(gram), dtype=gram.dtype)
    value = 0.0
    for _ in range(POWER):
        vector = gram @ vector
        value = float(vector.norm())
        vector /= max(value, torch.finfo(gram.dtype).tiny)
    return max(1.01 * value, torch.finfo(torch.float64).tiny)


class _State:
    """Sparse codes by active sets: codes, active sets and rests of a block of items, as tables [items, atoms]."""

    def __init__(self, gram: Tensor, correlations: Tensor, penalty: Penalty, unit: float, start) -> None:
        self.gram, self.penalty, self.unit = gram.contiguous(), penalty, unit
        self.pull = correlations.T.contiguous().numpy()
        self.scale = np.abs(self.pull).max(axis=1, initial=0.0)
        self.codes = np.zeros_like(self.pull) if start is None else start.toarray().astype(self.pull.dtype)
        self.active = self.codes != 0
        self.rest = self.pull.copy()
        self.bound = largest_eigenvalue(gram)
        forest = penalty.column_forest(len(gram))
        self.order = np.arange(len(gram)) if forest is None else np.argsort(forest.place, kind="stable")
        if start is not None:
            self._subtract(np.arange(len(self.pull)))

    def residual(self) -> np.ndarray:
        """Sparse codes by active sets: the largest entry of the proximal gradient of each item.

        `moved` gets the codes after a proximal step, where atoms outside of the active sets violate the conditions."""
        point = torch.from_numpy(self.codes + self.rest / self.rest.dtype.type(self.bound)).T.contiguous()
        self.moved = self.penalty.prox_(point, self.unit / self.bound).T.contiguous().numpy()
        return self.bound * np.abs(self.codes - self.moved).max(axis=1, initial=0.0)

    def extend(self, items: np.ndarray, moved: np.ndarray) -> None:
        """Sparse codes by active sets: add the atoms with the largest codes after a proximal step."""
        sizes = np.where(self.active[items], 0, np.abs(moved[items]))
        most = np.maximum(FIRST, self.active[items].sum(axis=1))
        for item, size, count in zip(items.tolist(), sizes, most.tolist(), strict=True):
            nonzero = np.flatnonzero(size)
            if len(nonzero) > count:
                nonzero = nonzero[np.argpartition(-size[nonzero], count - 1)[:count]]
            self.active[item, nonzero] = True

    def solve(self, items: np.ndarray, penalty: Penalty, unit: float, limit: np.ndarray, iterations: int) -> None:
        """Sparse codes by active sets: compute the codes of some items over their active sets, and their rests."""
        forest = penalty.column_forest(len(self.gram))
        starts, rows = self._sets(items)
        values = self.codes[np.repeat(items, np.diff(starts)), rows]
        tree = forest.place, forest.above, unit * forest.weight
        cut, ridge = unit * forest.cut, unit * forest.ridge
        limit = limit.astype(np.float64)
        kernels.solve(self.gram.numpy(), self.pull, items, starts, rows, values, tree, cut, ridge, limit, iterations)
        self.codes[np.repeat(items, np.diff(starts)), rows] = values
        self._subtract(items)

    def solve_densely(self, penalty: Penalty, unit: float, tolerance: float, iterations: int) -> None:
        """Sparse codes of a block of items under any penalty, by FISTA over all atoms."""
        tables = torch.from_numpy(self.pull).T.contiguous(), penalty, unit, torch.from_numpy(self.codes).T.contiguous()
        self.codes = sparse_codes(self.gram, *tables, tolerance, iterations).T.contiguous().numpy()
        self.active = self.codes != 0
        self._subtract(np.arange(len(self.codes)))

    def _sets(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sparse codes by active sets: where the sets of some items begin, and their atoms by the place of nodes."""
        chosen = self.active[items][:, self.order]
        _, places = np.nonzero(chosen)
        starts = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
        return starts, self.order[places].astype(np.int32)

    def _subtract(self, items: np.ndarray) -> None:
        """Sparse codes by active sets: compute the rests of some items, correlations minus G times the code."""
        starts, rows = self._sets(items)
        values = self.codes[np.repeat(items, np.diff(starts)), rows]
        kernels.rests(self.gram.numpy(), self.pull, items, starts, rows, values, self.rest)

    def result(self, residual: np.ndarray) -> ActiveCodes:
        """Sparse codes by active sets: the codes as sparse rows, with the figures of each item."""
        gained = (self.codes * (self.pull + self.rest)).sum(axis=1)
        scale = np.where(self.scale > 0, self.scale, 1)
        return ActiveCodes(sparse.csr_array(self.codes), gained, residual / scale)
