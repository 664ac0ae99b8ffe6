"""The growing weight table of a tagger (`model=growing`): only features with nonzero weights take memory.

A feature gets a row when an online update first changes its weights. Rows whose weights are all zero are dropped.
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
    """A growing table of a tagger's weights: only features in use have a row, all other weights are zero.

    The table gets new rows under online solvers (`solver=online_perceptron`, `online_mira`). Rows of zeros are dropped
    when an online solver resumes after a prox (the proximal operator of the penalty)."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes.labels, [("features", torch.int64)])  # the feature number of each row in memory
        self.rows = sizes.rows  # the number of all features, with and without a row in memory
        # int32 [features] the number of the row of each feature; -1: the feature has no row in memory
        self.register_buffer("slots", torch.full((sizes.rows,), -1, dtype=torch.int32), persistent=False)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Growing table of a tagger: the score of each label at each token, from the features that have a row.

        Returns [batch, time, labels]."""
        if self.held == 0:
            zeros = self.table.new_zeros(len(batch.offsets) - 1, self.table.shape[1])
            # The sum of an empty table is zero; with the sum, the scores depend on the parameter for autograd.
            return batch.pad(zeros + self.table.sum())
        slots = self.slots[batch.ids]  # [occurrences] the row of each active feature, -1: none
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
        """Growing table of a tagger: replace all rows by weights [rows, labels] of some features [rows]."""
        self.slots[self.features] = -1
        super().set_rows(weights, features)
        self._number()

    def _number(self) -> None:
        """Growing table of a tagger: set `slots`, which has the row number of each feature."""
        self.slots[self.features] = torch.arange(self.held, dtype=torch.int32, device=self.slots.device)

    def groups_of(self, make: Callable, layout: TemplateLayout, name: str) -> HeldRows:
        """Growing table of a tagger: groups of all rows, formed by `make`, restricted to the rows in memory."""
        return self.held_of(make((self.rows, self.table.shape[1]), layout, parameter=name))

    def held_of(self, groups: Partition) -> HeldRows:
        """Growing table of a tagger: disjoint groups of all rows, restricted to the rows in memory.

        Overlapping groups are refused."""
        if not isinstance(groups, Partition):
            raise UserError(f"model=growing takes disjoint groups (template, label), not a {type(groups).__name__}")
        return HeldRows(groups, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """Growing table of a tagger: the mask of weights not set to zero by a penalty: bool [all rows, labels]

        If the penalty selects whole groups, features of a living group that have no row in memory survive too."""
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
        """Growing table of a tagger: the dense weights of the rows marked in `rows`: [marked rows, labels]

        rows: bool [all rows]."""
        place = torch.where(rows, rows.cumsum(0) - 1, -1)[self.features]
        dense = self.table.new_zeros(int(rows.sum()), self.table.shape[1])
        dense[place[place >= 0]] = self.table.detach()[place >= 0]
        return dense

    @torch.no_grad()
    def fill(self, dense: Tensor) -> None:
        """Growing table of a tagger: replace all rows by the nonzero rows of a dense table [all rows, labels]."""
        features = (dense != 0).any(dim=1).nonzero().flatten()
        self.set_rows(dense[features].to(self.table), features.to(self.features.device))

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        """Growing table of a tagger: load the rows of a checkpoint, and number the rows in `slots`."""
        features = state_dict[prefix + "features"]
        if len(features) and int(features.max()) >= self.rows:
            raise UserError(f"a checkpoint holds feature {int(features.max())}, but there are {self.rows} features")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.slots.fill_(-1)
        self._number()


class HeldRows(Partition):
    """Groups of the feature rows of a tagger, restricted to the rows of a growing table that are in memory.

    Group sizes and group weights count all feature rows."""

    offsets = None  # the rows in memory are not sorted by group
    aligned = False

    def __init__(self, every: Partition, scorer: GrowingScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter, self.free = every.names, every.parameter, every.free
        self.by_row = every.ids.shape[0] == scorer.rows
        self.register_buffer("every", every.ids)  # int64 [all rows or 1, labels or 1] the group of each weight
        self.register_buffer("size", every.size)
        self.register_buffer("weight", every.weight)
        self.scorer = [scorer]  # in a list, so that torch does not register the scorer as a submodule

    @property
    def ids(self) -> Tensor:
        """Growing table of a tagger: the group of each weight in memory: int64 [rows or 1, labels or 1]"""
        return self.every[self.scorer[0].features] if self.by_row else self.every

    @property
    def shape(self) -> torch.Size:
        """Growing table of a tagger: the shape of the weights in memory: [rows, labels]"""
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        """Growing table of a tagger: the dimensions along which all weights are in the same group."""
        return [d for d, n in enumerate(self.shape) if self.ids.shape[d] == 1 < n]

    def everywhere(self, values: Tensor, fill: float) -> Tensor:
        """Growing table of a tagger: the values of groups [groups] at every weight of all rows.

        Returns [all rows or 1, labels or 1]. Weights that are in no group get `fill`."""
        return torch.cat([values, values.new_full((1,), fill)])[self.every]
