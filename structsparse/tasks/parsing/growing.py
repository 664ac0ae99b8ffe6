"""The growing table of a parser (`model=arcs_growing`): a feature gets a row when a wrong tree first moves its weight.

During a sweep the weights lie in a hash table of feature keys (`kernels/weights/key_table.py`). Between sweeps they lie
in compact arrays: the weight, the key and the template of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.features.layout import by_template
from structsparse.groups import Partition
from structsparse.groups.group_weights import checked_weights
from structsparse.kernels.solvers import online_trees_by_keys as keyed
from structsparse.kernels.weights import key_table
from structsparse.penalties import Penalty
from structsparse.tasks.parsing.features.groups import ArcLayout
from structsparse.tasks.parsing.model import ArcBatch
from structsparse.weights.batch import Sizes
from structsparse.weights.growing import PartialTable


class GrowingArcScorer(PartialTable):
    """An `ArcScorer` with only the rows in memory that are in use; all other weights are zero.

    It grows under solvers that go from sentence to sentence (`solver=online_perceptron`, `online_mira`), and shrinks
    when they resume after a prox. Code that changes the weights in place calls `stale()`."""

    linear = True
    growth = 1.5

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__(1, [("keys", torch.int64), ("templates", torch.int32)])  # of each row; keys are unsigned bits
        self.open = True  # whether features without a row may get one
        self._slots: key_table.Slots | None = None  # the hash table
        self._hashed: Tensor | None = None  # the weights that the hash table holds

    def forward(self, batch: ArcBatch) -> Tensor:  # [batch, size, size]
        if self.table.device.type != "cpu":
            raise UserError("model=arcs_growing looks its features up on the CPU; on other devices take model=arcs")
        size = batch.gold.shape[1] + 1
        scores = self.table.detach().new_zeros(len(batch.lengths), size, size)
        keyed.score(batch.source.template_atoms, batch.chosen, self.slots(), scores.numpy())
        return scores

    # --- the hash table

    def stale(self) -> None:
        """Note that the weights were changed in place: the hash table is refreshed before its next use."""
        self._hashed = None

    def slots(self, extra: int = 0) -> key_table.Slots:
        """The hash table of all rows, with room for `extra` more."""
        weights = self.table.detach().view(-1).numpy()
        if self._slots is None or key_table.room(self._slots) < self.held + extra:
            self._slots = None  # free the old table before the new one is allocated
            self._slots = key_table.slots_for(self.held + extra)
            key_table.fill(self._slots, self.keys.numpy().view(np.uint64), weights)
        elif self._hashed is None or self._hashed.data_ptr() != self.table.data_ptr():
            key_table.pour(self._slots, weights)
        self._hashed = self.table.data
        return self._slots

    def collect(self) -> None:
        """Copy the weights from the hash table back to the rows."""
        key_table.collect(self._slots, self.table.detach().view(-1).numpy())
        self._hashed = self.table.data

    # --- rows

    def release(self) -> Tensor | None:
        """Drop zero rows, unless the features are fixed. The old numbers of the rows that stay; None if all stay."""
        return super().release() if self.open else None

    def set_rows(self, weights: Tensor, keys: Tensor, templates: Tensor) -> None:
        """Replace all rows: weights [rows, 1], the key and the template of each row [rows]."""
        super().set_rows(weights, keys, templates.int())
        self._slots = self._hashed = None

    def compact(self) -> None:
        """Free the hash table and the reserved memory, which take several times the memory of the rows."""
        self._slots = self._hashed = None  # before anything is copied
        self.set_rows(*(tensor.clone() for tensor in self._rows()))

    # --- groups and survivors

    def groups_of(self, make: Callable, layout: ArcLayout, name: str) -> HeldTemplates:
        """Templates as groups of the rows in memory; `make` must be groups=template."""
        kind, options = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
        if kind is not by_template:
            raise UserError("model=arcs_growing takes groups=template only; for other groups take model=arcs")
        sizes = torch.from_numpy(np.diff(layout.offsets))
        return HeldTemplates(layout.templates, sizes, options.get("weights", "sqrt_size"), name, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """Mask of the rows in memory that survive a penalty: bool [held, 1]"""
        return penalty.survivors(self.table.detach()).expand(self.held, 1)


class HeldTemplates(Partition):
    """Templates as groups of the rows of a growing parser that are in memory; group sizes and weights are those of all
    features of training."""

    offsets = None  # rows are held in no order
    free = aligned = False

    def __init__(self, names, sizes: Tensor, weights: str | Tensor, parameter: str, scorer: GrowingArcScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter = list(names), parameter
        self.register_buffer("size", sizes)
        self.register_buffer("weight", checked_weights(weights, sizes, self.names))
        self.scorer = [scorer]  # in a list: it is no submodule

    @property
    def ids(self) -> Tensor:
        return self.scorer[0].templates.long()[:, None]

    @property
    def shape(self) -> torch.Size:
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        return []
