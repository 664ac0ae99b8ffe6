"""A table of weights that grows and shrinks: memory in proportion to the features that live, not to those there are.

A feature has a row from the moment that a sentence first moves it until all its weights are zero again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.features.layout import TemplateLayout
from structsparse.groups import Partition
from structsparse.penalties import Penalty
from structsparse.weights.batch import Sizes, TokenBatch
from structsparse.weights.feature_tables import GrowingTable
from structsparse.weights.notes import notes_of

LEAST = 1024  # rows of the first piece of memory


class GrowingScorer(GrowingTable):
    """SparseScorer, of which only the rows held are in memory; the others are zero. Solvers that go from sentence to
    sentence (`solver=online_perceptron`, `online_mira`) make it grow; it shrinks when they next begin after a prox."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.rows = sizes.rows
        self.table = nn.Parameter(torch.zeros(0, sizes.labels))  # [held, labels]
        notes_of(self.table).grows = self  # for groups, which are of all rows
        self.register_buffer("features", torch.zeros(0, dtype=torch.int64))  # [held], whose row it is
        self.register_buffer("slots", torch.full((sizes.rows,), -1, dtype=torch.int32), persistent=False)
        self._room = torch.zeros(0, sizes.labels), torch.zeros(0, dtype=torch.int64)

    @property
    def held(self) -> int:
        return len(self.features)

    def forward(self, batch: TokenBatch) -> Tensor:
        if self.held == 0:
            zeros = self.table.new_zeros(len(batch.offsets) - 1, self.table.shape[1])
            return batch.pad(zeros + self.table.sum())  # of nothing; it depends on the table all the same
        slots = self.slots[batch.ids]  # [occurrences]
        there = (slots >= 0).to(self.table.dtype)
        sums = F.embedding_bag(
            slots.clamp(min=0),
            self.table,
            batch.offsets,
            mode="sum",
            include_last_offset=True,
            per_sample_weights=there,
        )
        return batch.pad(sums)

    def reserve(self, extra: int) -> tuple[Tensor, Tensor]:
        """Memory for weights [room, labels] and features [room], with at least so many rows beyond those held, which
        lie in it at the beginning."""
        weights, features = self._room
        mine = self.held == 0 or self.table.data_ptr() == weights.data_ptr()
        if not mine or len(weights) < self.held + extra:
            room = max(self.held + extra, 2 * self.held, LEAST)
            weights = self.table.new_zeros(room, self.table.shape[1])
            features = self.features.new_zeros(room)
            weights[: self.held], features[: self.held] = self.table.detach(), self.features
            self._room = weights, features
            self.hold(self.held)
        return self._room

    def hold(self, held: int) -> None:
        """So many rows of the reserved memory are in use."""
        weights, features = self._room
        self.table.data, self.features = weights[:held], features[:held]

    def stale(self) -> None:
        """The table is the only copy of its weights: there are no caches to invalidate."""

    def groups_of(self, make: Callable, layout: TemplateLayout, name: str) -> HeldRows:
        return self.held_of(make((self.rows, self.table.shape[1]), layout, parameter=name))

    def held_of(self, groups: Partition) -> HeldRows:
        """Groups of all rows, as this table's own."""
        if not isinstance(groups, Partition):
            raise UserError(f"model=growing knows disjoint groups (template, label), not a {type(groups).__name__}")
        return HeldRows(groups, self)

    @torch.no_grad()
    def release(self) -> Tensor | None:
        """Give up the rows that are zero. Which of the old rows are kept [kept]; None if all of them are."""
        kept = (self.table != 0).any(dim=1).nonzero().flatten()
        if len(kept) == self.held:
            return None
        weights, features = self.table.detach()[kept], self.features[kept]
        self.slots[self.features] = -1
        self.slots[features] = torch.arange(len(kept), dtype=torch.int32, device=self.slots.device)
        self.table.data, self.features = weights, features
        self._room = weights, features
        return kept

    def spread(self, penalty: Penalty) -> Tensor:
        """The survivors of a penalty among all weights: bool [rows, labels]. In a living group that survives as a whole
        those survive, too, which have no row yet."""
        weights, labels = self.table.detach(), self.table.shape[1]
        survivors = penalty.survivors(weights)
        if isinstance(penalty.groups, HeldRows):
            alive = penalty.groups.alive(weights)
            if bool((survivors == penalty.groups.expand(alive, fill=True)).all()):
                return penalty.groups.everywhere(alive, fill=True).expand(self.rows, labels)
        mask = torch.zeros(self.rows, labels, dtype=torch.bool, device=weights.device)
        mask[self.features] = survivors
        return mask

    def dense(self, rows: Tensor) -> Tensor:
        """The weights of the rows that are marked, bool [rows]: [marked, labels]"""
        place = torch.where(rows, rows.cumsum(0) - 1, -1)[self.features]
        dense = self.table.new_zeros(int(rows.sum()), self.table.shape[1])
        dense[place[place >= 0]] = self.table.detach()[place >= 0]
        return dense

    @torch.no_grad()
    def fill(self, dense: Tensor) -> None:
        """Hold the rows of all weights [rows, labels] that are not zero."""
        features = (dense != 0).any(dim=1).nonzero().flatten()
        self.table.data, self.features = dense[features].to(self.table), features.to(self.features.device)
        self.slots.fill_(-1)
        self.slots[self.features] = torch.arange(self.held, dtype=torch.int32, device=self.slots.device)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        features = state_dict[prefix + "features"]
        if len(features) and int(features.max()) >= self.rows:
            raise UserError(f"a checkpoint holds feature {int(features.max())}, but there are {self.rows} features")
        self.table.data = self.table.new_zeros(len(features), self.table.shape[1])
        self.features = torch.zeros_like(features, device=self.features.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.slots.fill_(-1)
        self.slots[self.features] = torch.arange(self.held, dtype=torch.int32, device=self.slots.device)


class HeldRows(Partition):
    """Groups of all rows, as the rows that a growing table holds see them; sizes and weights stay those of all rows."""

    offsets = None  # rows are held in no order
    aligned = False

    def __init__(self, every: Partition, scorer: GrowingScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter, self.free = every.names, every.parameter, every.free
        self.by_row = every.ids.shape[0] == scorer.rows
        self.register_buffer("every", every.ids)  # [rows or 1, labels or 1]
        self.register_buffer("size", every.size)
        self.register_buffer("weight", every.weight)
        self.scorer = [scorer]  # in a list: it is no part of this module

    @property
    def ids(self) -> Tensor:
        return self.every[self.scorer[0].features] if self.by_row else self.every

    @property
    def shape(self) -> torch.Size:
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        return [d for d, n in enumerate(self.shape) if self.ids.shape[d] == 1 < n]

    def everywhere(self, values: Tensor, fill: float) -> Tensor:
        """values [groups] -> one per entry of all rows, broadcastable against [rows, labels]; free ones get `fill`."""
        return torch.cat([values, values.new_full((1,), fill)])[self.every]
