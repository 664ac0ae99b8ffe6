"""The growing weight table of a parser (`model=arcs_growing`): only arc features that get a weight take memory.

A feature gets a row when a wrongly predicted tree first changes its weight. During a sweep (a pass of an online solver
over sentences), weights are in a hash table by feature key (`kernels/weights/key_table.py`). Between sweeps, weights
are in compact arrays: weight, key and template of each row."""

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
    """A growing table of a parser's weights: only features in use have a row, all other weights are zero.

    The table gets new rows under online solvers (`solver=online_perceptron`, `online_mira`). A prox (the proximal
    operator of the penalty) can make rows zero. These rows are dropped when the online solver resumes. Code that
    changes the weights in place must call `stale()`."""

    linear = True
    growth = 1.5  # factor by which the reserved memory grows

    def __init__(self, sizes: Sizes | None = None) -> None:
        # Each row has a weight, a feature key (64 unsigned bits in an int64) and a template index.
        super().__init__(1, [("keys", torch.int64), ("templates", torch.int32)])
        self.open = True  # whether features without a row may get a row
        self._slots: key_table.Slots | None = None  # the hash table from keys to weights
        self._hashed: Tensor | None = None  # the weights at the last update of `_slots`; None: `_slots` is out of date

    def forward(self, batch: ArcBatch) -> Tensor:
        """Growing table of a parser: the scores [batch, size, size] of all arcs, by sentence, modifier and head.

        `size` is the length of the longest sentence plus 1, for the root."""
        if self.table.device.type != "cpu":
            raise UserError("model=arcs_growing looks its features up on the CPU; on other devices take model=arcs")
        size = batch.gold.shape[1] + 1
        scores = self.table.detach().new_zeros(len(batch.lengths), size, size)
        keyed.score(batch.source.template_atoms, batch.chosen, self.slots(), scores.numpy())
        return scores

    # --- the hash table

    def stale(self) -> None:
        """Growing table of a parser: mark the hash table as out of date, because weights were changed in place."""
        self._hashed = None

    def slots(self, extra: int = 0) -> key_table.Slots:
        """Growing table of a parser: the hash table of all rows, with room for `extra` more features."""
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
        """Growing table of a parser: copy the weights from the hash table back to the rows."""
        key_table.collect(self._slots, self.table.detach().view(-1).numpy())
        self._hashed = self.table.data

    # --- rows in memory

    def release(self) -> Tensor | None:
        """Growing table of a parser: drop rows with weight zero, and return the old indices of the other rows.

        Returns None if no row is dropped. If `open` is false, no row is dropped, as it could not be added again."""
        return super().release() if self.open else None

    def set_rows(self, weights: Tensor, keys: Tensor, templates: Tensor) -> None:
        """Growing table of a parser: replace all rows by weights [rows, 1] with keys and templates [rows]."""
        super().set_rows(weights, keys, templates.int())
        self._slots = self._hashed = None

    def compact(self) -> None:
        """Growing table of a parser: free the hash table and the memory reserved for more rows."""
        self._slots = self._hashed = None  # free the hash table before rows are copied
        self.set_rows(*(tensor.clone() for tensor in self._rows()))

    # --- groups of rows, and rows that survive a penalty

    def groups_of(self, make: Callable, layout: ArcLayout, name: str) -> HeldTemplates:
        """Growing table of a parser: groups of the rows by arc template; other groups are refused.

        `make` is the configured function that makes groups. Only the function of groups=template is accepted."""
        kind, options = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
        if kind is not by_template:
            raise UserError("model=arcs_growing takes groups=template only; for other groups take model=arcs")
        sizes = torch.from_numpy(np.diff(layout.offsets))
        return HeldTemplates(layout.templates, sizes, options.get("weights", "sqrt_size"), name, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """Growing table of a parser: a bool array [rows, 1] that marks rows that a penalty has not set to zero."""
        return penalty.survivors(self.table.detach()).expand(self.held, 1)


class HeldTemplates(Partition):
    """Groups of the rows in a parser's growing table: one group for each arc template.

    A group has only the rows in memory. Its size and its group weight count all training features of the template."""

    offsets = None  # rows are not sorted by group
    free = aligned = False

    def __init__(self, names, sizes: Tensor, weights: str | Tensor, parameter: str, scorer: GrowingArcScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter = list(names), parameter
        self.register_buffer("size", sizes)
        self.register_buffer("weight", checked_weights(weights, sizes, self.names))
        self.scorer = [scorer]  # a list, because torch would register the scorer itself as a submodule

    @property
    def ids(self) -> Tensor:
        """Growing table of a parser: the group (index of the arc template) of each row in memory: int64 [rows, 1]."""
        return self.scorer[0].templates.long()[:, None]

    @property
    def shape(self) -> torch.Size:
        """Growing table of a parser: the shape [rows, 1] of the weights in memory."""
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        """Growing table of a parser: the dimensions along which all weights belong to one group (there are none)."""
        return []
