"""A parser's table of weights that grows and shrinks: no feature of training is looked up before a wrong tree has moved
it, none is kept whose template has died.

While sentences are gone through the weights lie in a table that is searched by keys (`kernels/key_table.py`). Between
sweeps the truth is compact: a weight, a key and a template for each row that is held.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.features.layout import by_template
from structsparse.groups import Partition
from structsparse.groups.group_weights import checked_weights
from structsparse.kernels.solvers import online_trees_by_keys as key_walk
from structsparse.kernels.weights import key_table
from structsparse.penalties import Penalty
from structsparse.tasks.parsing.features.groups import ArcLayout
from structsparse.tasks.parsing.model import ArcBatch
from structsparse.weights.batch import Sizes
from structsparse.weights.feature_tables import GrowingTable
from structsparse.weights.notes import notes_of

LEAST = 1024  # rows of the first piece of memory


class GrowingArcScorer(GrowingTable):
    """ArcScorer, of which only the rows held are in memory; the others are zero. Solvers that go from sentence to
    sentence (`solver=online_perceptron`, `online_mira`) make it grow; it shrinks when they next begin after a prox.

    Whoever changes weights in place says so by `stale()`."""

    linear = True

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(0, 1))  # [held, 1]
        notes_of(self.table).grows = self  # for groups, which are of all rows
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64))  # [held], bits of an unsigned number
        self.register_buffer("templates", torch.zeros(0, dtype=torch.int32))  # [held]
        self.open = True  # whether features may come into being
        self._room: tuple[Tensor, Tensor, Tensor] | None = None
        self._slots: key_table.Slots | None = None
        self._poured: Tensor | None = None  # the weights that are in the slots

    @property
    def held(self) -> int:
        return len(self.keys)

    def forward(self, batch: ArcBatch) -> Tensor:  # [batch, size, size]
        if self.table.device.type != "cpu":
            raise UserError("model=arcs_growing looks its features up on the CPU; on other devices take model=arcs")
        size = batch.gold.shape[1] + 1
        scores = self.table.detach().new_zeros(len(batch.lengths), size, size)
        key_walk.score(batch.source.says, batch.chosen, self.slots(), scores.numpy())
        return scores

    # --- the table to search

    def stale(self) -> None:
        """The weights have changed: slots are to be told."""
        self._poured = None

    def slots(self, extra: int = 0) -> key_table.Slots:
        """The rows held, with room for so many more."""
        weights = self.table.detach().view(-1).numpy()
        if self._slots is None or key_table.room(self._slots) < self.held + extra:
            self._slots = None  # two at once are too many
            self._slots = key_table.slots_for(self.held + extra)
            key_table.fill(self._slots, self.keys.numpy().view(np.uint64), weights)
        elif self._poured is None or self._poured.data_ptr() != self.table.data_ptr():
            key_table.pour(self._slots, weights)
        self._poured = self.table.data
        return self._slots

    def reserve(self, extra: int) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for weights [room, 1], keys and templates [room], with at least so many rows beyond those held, which
        lie in it at the beginning."""
        mine = self._room is not None and (self.held == 0 or self.table.data_ptr() == self._room[0].data_ptr())
        if not mine or len(self._room[1]) < self.held + extra:
            room = max(self.held + extra, self.held + self.held // 2, LEAST)
            known = self.table.detach(), self.keys, self.templates
            self._room = tuple(torch.empty(room, *own.shape[1:], dtype=own.dtype) for own in known)
            for new, own in zip(self._room, known, strict=True):
                new[: self.held] = own
            self.hold(self.held)
        return self._room

    def hold(self, held: int) -> None:
        """So many rows of the reserved memory are in use."""
        self.table.data, self.keys, self.templates = (own[:held] for own in self._room)

    def collect(self) -> None:
        """Take the weights back from the slots."""
        key_table.collect(self._slots, self.table.detach().view(-1).numpy())
        self._poured = self.table.data

    @torch.no_grad()
    def release(self) -> Tensor | None:
        """Give up the rows that are zero. Which of the old rows are kept [kept]; None if all of them are."""
        if not self.open:
            return None
        kept = self.table.view(-1).nonzero().flatten()
        if len(kept) == self.held:
            return None
        self.become(self.table.detach()[kept], self.keys[kept], self.templates[kept])
        return kept

    def become(self, weights: Tensor, keys: Tensor, templates: Tensor) -> None:
        """Hold these rows: weights [rows, 1]"""
        self.table.data, self.keys, self.templates = weights, keys, templates.int()
        self._room = self._slots = self._poured = None

    def rest(self) -> None:
        """Give up what a table is searched and grown with, several times its rows, until it is asked for again."""
        self._slots = self._poured = None  # before anything is copied
        self.become(self.table.detach().clone(), self.keys.clone(), self.templates.clone())

    # --- what others ask

    def groups_of(self, make: Callable, layout: ArcLayout, name: str) -> HeldTemplates:
        """Groups of all rows, as this table's own."""
        kind, options = getattr(make, "func", make), getattr(make, "keywords", {})
        if kind is not by_template:
            raise UserError("model=arcs_growing knows groups=template alone; for other groups take model=arcs")
        sizes = torch.from_numpy(np.diff(layout.offsets))
        return HeldTemplates(layout.templates, sizes, options.get("weights", "sqrt_size"), name, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """The survivors of a penalty among the rows held: bool [held, 1]"""
        return penalty.survivors(self.table.detach()).expand(self.held, 1)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        held = len(state_dict[prefix + "keys"])
        self.become(self.table.new_zeros(held, 1), self.keys.new_zeros(held), self.templates.new_zeros(held))
        super()._load_from_state_dict(state_dict, prefix, *args)


class HeldTemplates(Partition):
    """Templates as groups of the rows that a growing table of arcs holds; sizes and weights are those of all rows that
    training could have."""

    offsets = None  # rows are held in no order
    free = aligned = False

    def __init__(self, names, sizes: Tensor, weights: str | Tensor, parameter: str, scorer: GrowingArcScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter = list(names), parameter
        self.register_buffer("size", sizes)
        self.register_buffer("weight", checked_weights(weights, sizes, self.names))
        self.scorer = [scorer]  # in a list: it is no part of this module

    @property
    def ids(self) -> Tensor:
        return self.scorer[0].templates.long()[:, None]

    @property
    def shape(self) -> torch.Size:
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        return []
