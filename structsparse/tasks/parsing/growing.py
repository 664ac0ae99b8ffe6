"""The growing weight table of a parser (`model=arcs_growing`): only arc features that get a weight take memory.

A feature gets a row when a wrong tree first changes its weight. During a sweep, weights are in a hash table of feature
keys (`kernels/weights/key_table.py`). Between sweeps, weights are in compact arrays: weight, key and template of each
row.
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
    """An `ArcScorer` that has memory only for the feature rows in use; the weights of all other features are zero.

    The table gets new rows under online solvers (`solver=online_perceptron`, `online_mira`). Rows of zeros are dropped
    when an online solver resumes after a prox (the proximal operator of the penalty). Code that changes the weights
    in place must call `stale()`."""

    linear = True
    growth = 1.5

    def __init__(self, sizes: Sizes | None = None) -> None:
        # Each row has a weight, a feature key (64 unsigned bits in an int64) and a template number.
        super().__init__(1, [("keys", torch.int64), ("templates", torch.int32)])
        self.open = True  # whether features without a row may get a row
        self._slots: key_table.Slots | None = None  # the hash table from keys to weights
        self._hashed: Tensor | None = None  # the weights that the hash table holds

    def forward(self, batch: ArcBatch) -> Tensor:  # [batch, size, size]
        """The score of every arc, modifiers by heads: [batch, size, size]."""
        if self.table.device.type != "cpu":
            raise UserError("model=arcs_growing looks its features up on the CPU; on other devices take model=arcs")
        size = batch.gold.shape[1] + 1
        scores = self.table.detach().new_zeros(len(batch.lengths), size, size)
        keyed.score(batch.source.template_atoms, batch.chosen, self.slots(), scores.numpy())
        return scores

    # --- the hash table

    def stale(self) -> None:
        """Mark the hash table as out of date, because the weights were changed in place."""
        self._hashed = None

    def slots(self, extra: int = 0) -> key_table.Slots:
        """The hash table of the keys and weights of all rows, with room for `extra` more features."""
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

    # --- rows in memory

    def release(self) -> Tensor | None:
        """Drop rows of zeros, unless the features are fixed; return the old numbers of kept rows, None if all stay."""
        return super().release() if self.open else None

    def set_rows(self, weights: Tensor, keys: Tensor, templates: Tensor) -> None:
        """Replace all rows in memory: weights [rows, 1], and the key and the template of each row [rows]."""
        super().set_rows(weights, keys, templates.int())
        self._slots = self._hashed = None

    def compact(self) -> None:
        """Free the hash table and the reserved memory, which take several times the memory of the rows."""
        self._slots = self._hashed = None  # the hash table is freed before rows are copied
        self.set_rows(*(tensor.clone() for tensor in self._rows()))

    # --- groups of rows, and rows that survive a penalty

    def groups_of(self, make: Callable, layout: ArcLayout, name: str) -> HeldTemplates:
        """Groups of the rows in memory by arc template; `make` must be the maker groups=template."""
        kind, options = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
        if kind is not by_template:
            raise UserError("model=arcs_growing takes groups=template only; for other groups take model=arcs")
        sizes = torch.from_numpy(np.diff(layout.offsets))
        return HeldTemplates(layout.templates, sizes, options.get("weights", "sqrt_size"), name, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """The mask of the rows in memory that a penalty has not set to zero: bool [rows in memory, 1]"""
        return penalty.survivors(self.table.detach()).expand(self.held, 1)


class HeldTemplates(Partition):
    """Groups of the rows of a growing arc table that are in memory, one group for each arc template.

    Group sizes and group weights are those of all features of training.
    """

    offsets = None  # the rows in memory are in no order
    free = aligned = False

    def __init__(self, names, sizes: Tensor, weights: str | Tensor, parameter: str, scorer: GrowingArcScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter = list(names), parameter
        self.register_buffer("size", sizes)
        self.register_buffer("weight", checked_weights(weights, sizes, self.names))
        self.scorer = [scorer]  # in a list, so that torch does not register the scorer as a submodule

    @property
    def ids(self) -> Tensor:
        """The template of each row in memory: int64 [rows, 1]."""
        return self.scorer[0].templates.long()[:, None]

    @property
    def shape(self) -> torch.Size:
        """The shape of the weights in memory: [rows, 1]."""
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        """The dimensions along which all weights are in the same group: none."""
        return []
