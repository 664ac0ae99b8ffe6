"""The growing table of a tagger (`model=growing`): memory in proportion to the features that live.

A feature has a row from the moment that a sentence first changes its weights until all of them are zero again.
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
from structsparse.weights.growing import PartialTable


class GrowingScorer(PartialTable):
    """A `SparseScorer` with only the rows in memory that are in use; all other weights are zero.

    It grows under solvers that go from sentence to sentence (`solver=online_perceptron`, `online_mira`), and shrinks
    when they resume after a prox."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes.labels, [("features", torch.int64)])  # the feature of each row held
        self.rows = sizes.rows  # of all features
        self.register_buffer("slots", torch.full((sizes.rows,), -1, dtype=torch.int32), persistent=False)

    def forward(self, batch: TokenBatch) -> Tensor:
        if self.held == 0:
            zeros = self.table.new_zeros(len(batch.offsets) - 1, self.table.shape[1])
            return batch.pad(zeros + self.table.sum())  # an empty sum, but autograd sees the table
        slots = self.slots[batch.ids]  # [occurrences]
        in_memory = (slots >= 0).to(self.table.dtype)
        sums = F.embedding_bag(
            slots.clamp(min=0),
            self.table,
            batch.offsets,
            mode="sum",
            include_last_offset=True,
            per_sample_weights=in_memory,
        )
        return batch.pad(sums)

    def set_rows(self, weights: Tensor, features: Tensor) -> None:
        """Replace all rows: weights [rows, labels], the feature of each row [rows]."""
        self.slots[self.features] = -1
        super().set_rows(weights, features)
        self._number()

    def _number(self) -> None:
        """Enter the row of each feature into `slots`."""
        self.slots[self.features] = torch.arange(self.held, dtype=torch.int32, device=self.slots.device)

    def groups_of(self, make: Callable, layout: TemplateLayout, name: str) -> HeldRows:
        """Groups that `make` forms of all rows, restricted to the rows in memory."""
        return self.held_of(make((self.rows, self.table.shape[1]), layout, parameter=name))

    def held_of(self, groups: Partition) -> HeldRows:
        """Groups of all rows, restricted to the rows in memory."""
        if not isinstance(groups, Partition):
            raise UserError(f"model=growing takes disjoint groups (template, label), not a {type(groups).__name__}")
        return HeldRows(groups, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """Mask of the weights that survive a penalty: bool [all rows, labels]

        If living groups survive as wholes, their features that have no row yet survive, too."""
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
        """Weights of the rows marked in `rows`, bool [all rows]: [marked, labels]"""
        place = torch.where(rows, rows.cumsum(0) - 1, -1)[self.features]
        dense = self.table.new_zeros(int(rows.sum()), self.table.shape[1])
        dense[place[place >= 0]] = self.table.detach()[place >= 0]
        return dense

    @torch.no_grad()
    def fill(self, dense: Tensor) -> None:
        """Hold the rows that are not zero in a table of all weights [all rows, labels]."""
        features = (dense != 0).any(dim=1).nonzero().flatten()
        self.set_rows(dense[features].to(self.table), features.to(self.features.device))

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        features = state_dict[prefix + "features"]
        if len(features) and int(features.max()) >= self.rows:
            raise UserError(f"a checkpoint holds feature {int(features.max())}, but there are {self.rows} features")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.slots.fill_(-1)
        self._number()


class HeldRows(Partition):
    """Groups of all rows of a tagger's table, restricted to the rows in memory; group sizes and weights stay those of
    all rows."""

    offsets = None  # rows are held in no order
    aligned = False

    def __init__(self, every: Partition, scorer: GrowingScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter, self.free = every.names, every.parameter, every.free
        self.by_row = every.ids.shape[0] == scorer.rows
        self.register_buffer("every", every.ids)  # [all rows or 1, labels or 1]
        self.register_buffer("size", every.size)
        self.register_buffer("weight", every.weight)
        self.scorer = [scorer]  # in a list: it is no submodule

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
        """Values of groups [groups] for every entry of all rows, [all rows, labels] or broadcastable; free entries get
        `fill`."""
        return torch.cat([values, values.new_full((1,), fill)])[self.every]
