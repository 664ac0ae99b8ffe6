"""Stochastic proximal gradient at sampled entries of a sparse matrix (Yogatama 2015, Algorithm 1), without locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import sampled_entries as kernels
from structsparse.penalties import Penalty
from structsparse.solvers.base import Solver
from structsparse.solvers.online_dictionary import CodedModel, ItemBatch

SAMPLING = {"magnitude": kernels.MAGNITUDE, "uniform": kernels.UNIFORM, "weighted": kernels.WEIGHTED}
START = 0.1  # standard deviation of the numbers that codes and atoms start from


class SampledEntries(Solver):
    """Stochastic proximal gradient at sampled entries x of a sparse matrix, which moves one code and one atom each.

    `draws` entries are drawn for each entry in an epoch, by `sampling`:

    - magnitude: with probability in proportion to |x|
    - uniform: all entries alike
    - weighted: all entries alike, with a gradient in proportion to |x|, which approximates `magnitude`

    `negatives` random zeros of the same row follow each. `decay` times its gradient is the squared norm of an atom, in
    place of a limit. Rows and columns are split at random into `blocks` groups. Blocks that share no row and no column
    are learnt in parallel; then the prox of the penalty applies to the codes, with the threshold of their draws."""

    needs_closure = True
    carries_penalties = True
    host_only = True
    slopes = False

    def __init__(
        self,
        params,
        lr: float = 0.04,
        draws: float = 1.0,
        sampling: str = "magnitude",
        negatives: int = 3,
        decay: float = 1e-3,
        blocks: int = 16,
    ) -> None:
        if sampling not in SAMPLING:
            raise UserError(f"solver.sampling is {sampling}, expected one of {', '.join(SAMPLING)}")
        if not (lr > 0 and draws > 0 and decay >= 0):
            raise UserError("solver.lr and solver.draws must be positive, and solver.decay not below 0")
        for name, value, least in (("negatives", negatives, 0), ("blocks", blocks, 1)):
            if type(value) is not int or value < least:
                raise UserError(f"solver.{name} is {value}, expected a number of at least {least}")
        super().__init__(params, {"lr": lr})
        self.draws, self.sampling, self.negatives = draws, SAMPLING[sampling], negatives
        self.decay, self.blocks = decay, blocks
        self.penalties: dict[Tensor, Penalty] = {}

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Sampled entries: set the penalty of the codes."""
        if support:
            raise UserError(f"{self.name} keeps no entries at zero: give it one stage (recipe=direct)")
        self.penalties = dict(penalties)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Sampled entries: call the closure, which calls `sweep` with a batch."""
        if closure is None:
            raise UserError(f"{self.name} learns from batches: call step(closure) with a closure that calls sweep")
        return closure()

    @torch.no_grad()
    def sweep(self, model: CodedModel, loss: nn.Module, batch: ItemBatch) -> Tensor:
        """Sampled entries: learn from the rows of a batch; returns the mean loss of the entries drawn, for each row."""
        table, dictionary = model.table, model.dictionary
        rng = self._begin(table, dictionary)
        rows = batch.source.matrix[batch.words.numpy()]
        rows.sort_indices()
        if rows.nnz == 0:
            return table.new_zeros(())
        codes = table[:, batch.words].T.contiguous()
        atoms = dictionary.T.contiguous()
        blocks = _Blocks.of(rows, self.blocks, rng)
        counts, scale = blocks.counts(self.draws, self.sampling, rng)
        states = rng.integers(1 << 63, size=len(counts)).astype(np.uint64)
        rate = self.rate(self.group_of(table))
        options = rate, self.decay, self.sampling, self.negatives, scale
        errors = np.zeros(len(counts))
        share = rate * self.draws * batch.source.matrix.shape[0] / self.blocks
        for number in range(self.blocks):
            arrays = codes.numpy(), atoms.numpy(), blocks.entries, blocks.groups
            kernels.stratum(number, *arrays, counts, states, options, errors)
            codes = self.penalties[table].prox_(codes.T.contiguous(), share).T.contiguous()
        table[:, batch.words] = codes.T
        dictionary.copy_(atoms.T)
        return table.new_tensor(errors.sum() / max(1, counts.sum()) * rows.nnz / rows.shape[0])

    def _begin(self, table: Tensor, dictionary: Tensor) -> np.random.Generator:
        """Sampled entries: the random generator of a sweep; before the first, codes and atoms become random."""
        state, seed = self.state[table], torch.initial_seed()
        if not state:
            state["sweeps"] = 0
            generator = torch.Generator().manual_seed(seed)
            for parameter in (table, dictionary):
                parameter.normal_(0.0, START, generator=generator)
        state["sweeps"] += 1
        return np.random.default_rng([seed, state["sweeps"]])


class _Blocks:
    """Sampled entries: the entries of some rows of a matrix, sorted by blocks of rows and columns."""

    def __init__(self, entries: tuple[np.ndarray, ...], groups: tuple[np.ndarray, np.ndarray]) -> None:
        self.entries = entries  # where each block begins; row, column and value of each entry
        self.groups = groups  # the columns sorted by group, and where each group begins

    @classmethod
    def of(cls, rows: sparse.csr_array, blocks: int, rng: np.random.Generator) -> _Blocks:
        """Sampled entries: split the rows and the columns of a matrix at random into groups of nearly equal sizes."""
        row_group, column_group = (rng.permutation(size) * blocks // size for size in rows.shape)
        begins = np.empty(blocks * blocks + 1, np.int64)
        entries = np.empty(rows.nnz, np.int32), np.empty(rows.nnz, np.int32), np.empty_like(rows.data)
        kernels.by_block(rows.indptr, rows.indices, rows.data, row_group, column_group, blocks, begins, *entries)
        order = np.argsort(column_group, kind="stable")
        return cls((begins, *entries), (order, np.searchsorted(column_group[order], np.arange(blocks + 1))))

    def counts(self, draws: float, sampling: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Sampled entries: how many entries to draw from each block (int64), and the inverse mean of |x|.

        The counts are in proportion to the sums of |x| or to the numbers of entries, and rounded at random."""
        begins, values = self.entries[0], np.abs(self.entries[-1]).astype(np.float64)
        sums = np.diff(np.concatenate([[0.0], np.cumsum(values)])[begins])
        total = sums.sum()
        mass = sums if sampling == kernels.MAGNITUDE and total > 0 else np.diff(begins).astype(np.float64)
        expected = draws * len(values) * mass / mass.sum()
        return np.floor(expected + rng.random(len(mass))).astype(np.int64), len(values) / total if total > 0 else 1.0
