"""Online dictionary learning (Mairal et al. 2010): codes of a batch of items, then updates of each atom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.solvers.active_codes import active_codes
from structsparse.solvers.base import Proof, Solver
from structsparse.solvers.sparse_codes import sparse_codes, violations
from structsparse.weights.sparse_columns import SparseColumns

BLOCK = 32  # atoms that are updated from one product of matrices
DEAD = 1e-6  # an atom is replaced if the sum of its squared codes is at most this share of the mean over atoms
SINGLE = 1e-5  # tolerance to which final codes are computed in float32, before they are in float64
FEW = 512  # items whose codes are computed together by active sets
ITEMS = 4096  # items whose codes are computed together at the end


class SparseItems(Protocol):
    """The items that a dictionary is learnt from: rows of a sparse matrix [items, length], float32."""

    matrix: sparse.csr_array


class ItemBatch(Protocol):
    """A batch of items for online dictionary learning."""

    source: SparseItems
    words: Tensor  # int64, the items of the batch
    epoch: int


class CodedModel(Protocol):
    """A model of items as products of sparse codes `table` [atoms, items] and atoms `dictionary` [atoms, length]."""

    table: nn.Parameter
    dictionary: nn.Parameter
    codes: SparseColumns | None  # if given, the final codes are kept there, and the table has no columns


class OnlineDictionary(Solver):
    """Online dictionary learning: the codes of a batch by FISTA, then block coordinate descent on the atoms.

    The penalty applies to the codes. Each atom has a norm of at most 1. When an epoch begins, the statistics of earlier
    batches are multiplied by `forget`, as they come from older atoms. In the last of `passes` epochs, the codes of all
    items are computed anew, to `final_tolerance` in float64."""

    needs_closure = True
    carries_penalties = True
    host_only = True
    slopes = False

    def __init__(
        self,
        params,
        passes: int = 4,
        rounds: int = 2,
        forget: float = 0.2,
        tolerance: float = 1e-3,
        iterations: int = 100,
        final_tolerance: float = 3e-7,
        final_iterations: int = 3000,
    ) -> None:
        if type(passes) is not int or passes < 1:
            raise UserError(f"solver.passes is {passes}, expected a number of epochs of at least 1")
        if type(rounds) is not int or rounds < 1:
            raise UserError(f"solver.rounds is {rounds}, expected a number of updates of at least 1")
        if not 0 <= forget <= 1:
            raise UserError(f"solver.forget is {forget}, expected a share from 0 to 1")
        if not (tolerance > 0 and final_tolerance > 0) or iterations < 1 or final_iterations < 1:
            raise UserError("solver.tolerance and solver.iterations must be positive, those of the end as well")
        super().__init__(params, {"lr": 1.0})
        self.passes, self.rounds, self.forget = passes, rounds, forget
        self.each = {"tolerance": tolerance, "iterations": iterations}
        self.last = {"tolerance": final_tolerance, "iterations": final_iterations}
        self.penalties: dict[Tensor, Penalty] = {}
        self.task: tuple[CodedModel, SparseItems] | None = None  # what the last sweep learnt, until codes are final
        self.worst: float | None = None  # largest violation of the optimality conditions of final codes

    def attach(self, penalties: Mapping[Tensor, Penalty], support: Mapping[Tensor, Tensor] | None = None) -> None:
        """Online dictionary learning: set the penalty of the codes."""
        if support:
            raise UserError(f"{self.name} keeps no entries at zero: give it one stage (recipe=direct)")
        self.penalties = dict(penalties)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Online dictionary learning: call the closure, which calls `sweep` with a batch."""
        if closure is None:
            raise UserError(f"{self.name} learns from batches: call step(closure) with a closure that calls sweep")
        return closure()

    @torch.no_grad()
    def sweep(self, model: CodedModel, loss: nn.Module, batch: ItemBatch) -> Tensor:
        """Online dictionary learning: learn from a batch; returns the mean loss of its items before the atoms move."""
        dictionary, source = model.dictionary, batch.source
        rows = source.matrix[batch.words.numpy()]
        encode = self._encode if model.codes is None else self._encode_sparsely
        gained, gram, pull = encode(model, batch, rows)
        errors = _squares(rows) - gained
        state = self._statistics(dictionary, batch.epoch)
        state["gram"] += gram
        state["pull"] += pull
        spare = iter(errors.argsort(descending=True).tolist())
        for _ in range(self.rounds):
            self._update_atoms(dictionary, state, rows, spare)
        self.task, self.worst = (model, source), None
        return errors.sum() / 2 / rows.shape[0]

    def _encode(self, model: CodedModel, batch: ItemBatch, rows: sparse.csr_array) -> tuple[Tensor, Tensor, Tensor]:
        """Online dictionary learning: compute the codes of a batch, which go to the table.

        Returns how much the squared error of each item falls, and the statistics A A' and A X' of the codes."""
        table, dictionary = model.table, model.dictionary
        pull, gram = correlations(rows, dictionary), dictionary @ dictionary.T
        start = table[:, batch.words].contiguous()
        codes = sparse_codes(gram, pull, self.penalties[table], batch.source.matrix.shape[0], start, **self.each)
        table[:, batch.words] = codes
        gained = (codes * (2 * pull - gram @ codes)).sum(dim=0)
        return gained, codes @ codes.T, torch.from_numpy(np.ascontiguousarray((rows.T @ codes.T.numpy()).T))

    def _encode_sparsely(
        self, model: CodedModel, batch: ItemBatch, rows: sparse.csr_array
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Online dictionary learning: the same by active sets, with sparse codes that are not kept."""
        dictionary, penalty, unit = model.dictionary, self.penalties[model.table], batch.source.matrix.shape[0]
        gram, found = dictionary @ dictionary.T, []
        for begin in range(0, rows.shape[0], FEW):
            pull = correlations(rows[begin : begin + FEW], dictionary)
            found.append(active_codes(gram, pull, penalty, unit, **self.each))
        codes = sparse.vstack([part.codes for part in found], format="csr")
        gained = torch.from_numpy(np.concatenate([part.gained for part in found]))
        statistics = ((codes.T @ codes).toarray(), (codes.T @ rows).toarray())
        return gained, *map(torch.from_numpy, statistics)

    def _statistics(self, dictionary: Tensor, epoch: int) -> dict:
        """Online dictionary learning: the sums over batches of A A' ("gram") and A X' ("pull"), faded by epoch."""
        state = self.state[dictionary]
        if not state:
            atoms = len(dictionary)
            state.update(gram=dictionary.new_zeros(atoms, atoms), pull=torch.zeros_like(dictionary), epoch=epoch)
        if state["epoch"] != epoch:
            state["gram"] *= self.forget
            state["pull"] *= self.forget
            state["epoch"] = epoch
        return state

    def _update_atoms(self, dictionary: Tensor, state: dict, rows: sparse.csr_array, spare: Iterator[int]) -> None:
        """Online dictionary learning: minimise the surrogate in one atom after the other, with norms of at most 1.

        Atoms that no code uses are replaced by items of the batch; `spare` yields those with large errors first."""
        gram, pull = state["gram"], state["pull"]
        used = gram.diagonal()
        dead = used <= DEAD * used.mean()
        for begin in range(0, len(dictionary), BLOCK):
            block = slice(begin, min(begin + BLOCK, len(dictionary)))
            rest = pull[block] - gram[block] @ dictionary
            own = gram[block, block]
            for k in range(len(rest)):
                atom = dictionary[begin + k]
                if dead[begin + k]:
                    moved = _replacement(rows, next(spare, None), atom)
                else:
                    moved = atom + rest[k] / own[k, k]
                    moved /= moved.norm().clamp(min=1.0)
                rest[k + 1 :].addr_(own[k + 1 :, k], moved - atom, alpha=-1)
                dictionary[begin + k] = moved
        gram[dead], gram[:, dead], pull[dead] = 0, 0, 0

    @torch.no_grad()
    def flush(self) -> None:
        """Online dictionary learning: after the last epoch, compute the codes of all items for the final atoms."""
        if self.task is None:
            return
        model, source = self.task
        dictionary = model.dictionary
        if self.state[dictionary]["epoch"] + 1 < self.passes:
            return
        self.task = None
        if model.codes is not None:
            self._finish_sparsely(model, source)
            return
        gram, unit = dictionary.double() @ dictionary.double().T, source.matrix.shape[0]
        single, first = gram.to(dictionary.dtype), {**self.last, "tolerance": max(SINGLE, self.last["tolerance"])}
        penalty, worst = self.penalties[model.table], 0.0
        for begin in range(0, unit, ITEMS):
            part = slice(begin, begin + ITEMS)
            pull = correlations(source.matrix[part], dictionary)
            start = sparse_codes(single, pull, penalty, unit, model.table[:, part].contiguous(), **first)
            pull = pull.double()
            codes = sparse_codes(gram, pull, penalty, unit, start.double(), **self.last)
            worst = max(worst, float(violations(gram, pull, codes, penalty, unit).max()))
            model.table[:, part] = codes.to(model.table.dtype)
        self.worst = worst

    def _finish_sparsely(self, model: CodedModel, source: SparseItems) -> None:
        """Online dictionary learning: compute the final codes of all items by active sets, in memory for nonzeros."""
        dictionary, penalty, unit = model.dictionary, self.penalties[model.table], source.matrix.shape[0]
        gram = dictionary.double() @ dictionary.double().T
        single, first = gram.to(dictionary.dtype), {**self.last, "tolerance": max(SINGLE, self.last["tolerance"])}
        columns, worst = [], 0.0
        for begin in range(0, unit, FEW):
            pull = correlations(source.matrix[begin : begin + FEW], dictionary)
            start = active_codes(single, pull, penalty, unit, **first).codes
            found = active_codes(gram, pull.double(), penalty, unit, start, **self.last)
            columns.append(found.codes.astype(np.float32))
            worst = max(worst, float(found.violation.max()))
        model.codes.replace(columns)
        self.worst = worst

    def proof(self) -> Proof:
        """Online dictionary learning: the largest violation of the optimality conditions over the final codes."""
        return Proof(kkt=self.worst)


def correlations(rows: sparse.csr_array, dictionary: Tensor) -> Tensor:
    """Online dictionary learning: the inner products of atoms and sparse items, [atoms, items]."""
    columns, starts, values = (torch.from_numpy(array) for array in (rows.indices, rows.indptr[:-1], rows.data))
    atoms = dictionary.detach().T.contiguous()  # not contiguous, it would take ten times as long
    sums = F.embedding_bag(columns, atoms, starts, mode="sum", per_sample_weights=values.to(atoms.dtype))
    return sums.T.contiguous()


def _squares(rows: sparse.csr_array) -> Tensor:
    """Online dictionary learning: the squared norm of each sparse item."""
    sums = np.add.reduceat(np.append(np.square(rows.data), np.float32(0)), rows.indptr[:-1])
    return torch.from_numpy(np.where(np.diff(rows.indptr) > 0, sums, np.float32(0)))


def _replacement(rows: sparse.csr_array, item: int | None, atom: Tensor) -> Tensor:
    """Online dictionary learning: an item as a new atom of norm 1; the old atom if no item is left or it is zero."""
    if item is None:
        return atom.clone()
    part = slice(rows.indptr[item], rows.indptr[item + 1])
    moved = torch.zeros_like(atom)
    moved[torch.from_numpy(rows.indices[part].astype(np.int64))] = torch.from_numpy(rows.data[part]).to(atom)
    norm = moved.norm()
    return moved / norm if norm > 0 else atom.clone()
