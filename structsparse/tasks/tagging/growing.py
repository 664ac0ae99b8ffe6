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
    """A `SparseScorer` that has memory only for the feature rows in use; the weights of all other features are zero.

    The table gets new rows under online solvers (`solver=online_perceptron`, `online_mira`). Rows of zeros are dropped
    when an online solver resumes after a prox (the proximal operator of the penalty)."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes.labels, [("features", torch.int64)])  # the feature number of each row in memory
        self.rows = sizes.rows  # the number of all features, with and without a row in memory
        self.register_buffer("slots", torch.full((sizes.rows,), -1, dtype=torch.int32), persistent=False)

    def forward(self, batch: TokenBatch) -> Tensor:
        """The score of each label at each token: the sum of the weights of the token's features that have a row."""
        if self.held == 0:
            zeros = self.table.new_zeros(len(batch.offsets) - 1, self.table.shape[1])
            # The sum of an empty table is zero; autograd then sees the parameter.
            return batch.pad(zeros + self.table.sum())
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
        """Replace all rows in memory: weights [rows, labels], and the feature number of each row [rows]."""
        self.slots[self.features] = -1
        super().set_rows(weights, features)
        self._number()

    def _number(self) -> None:
        """Set `slots`: for each feature, the number of its row in memory."""
        self.slots[self.features] = torch.arange(self.held, dtype=torch.int32, device=self.slots.device)

    def groups_of(self, make: Callable, layout: TemplateLayout, name: str) -> HeldRows:
        """The groups that the function `make` forms of all feature rows, restricted to the rows in memory."""
        return self.held_of(make((self.rows, self.table.shape[1]), layout, parameter=name))

    def held_of(self, groups: Partition) -> HeldRows:
        """Groups of all feature rows, restricted to the rows in memory; overlapping groups are refused."""
        if not isinstance(groups, Partition):
            raise UserError(f"model=growing takes disjoint groups (template, label), not a {type(groups).__name__}")
        return HeldRows(groups, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """The mask of the weights that a penalty has not set to zero: bool [all rows, labels]

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
        """The dense weights of the feature rows marked in `rows`, bool [all rows]: [marked rows, labels]"""
        place = torch.where(rows, rows.cumsum(0) - 1, -1)[self.features]
        dense = self.table.new_zeros(int(rows.sum()), self.table.shape[1])
        dense[place[place >= 0]] = self.table.detach()[place >= 0]
        return dense

    @torch.no_grad()
    def fill(self, dense: Tensor) -> None:
        """Replace all rows in memory by the nonzero rows of a dense weight table [all rows, labels]."""
        features = (dense != 0).any(dim=1).nonzero().flatten()
        self.set_rows(dense[features].to(self.table), features.to(self.features.device))

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        """Load the rows of a checkpoint, and number them in `slots`."""
        features = state_dict[prefix + "features"]
        if len(features) and int(features.max()) >= self.rows:
            raise UserError(f"a checkpoint holds feature {int(features.max())}, but there are {self.rows} features")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.slots.fill_(-1)
        self._number()


class HeldRows(Partition):
    """Groups of the feature rows of a tagger, restricted to the rows of a growing table that are in memory.

    Group sizes and group weights are those of all feature rows.
    """

    offsets = None  # the rows in memory are in no order
    aligned = False

    def __init__(self, every: Partition, scorer: GrowingScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter, self.free = every.names, every.parameter, every.free
        self.by_row = every.ids.shape[0] == scorer.rows
        self.register_buffer("every", every.ids)  # [all rows or 1, labels or 1]
        self.register_buffer("size", every.size)
        self.register_buffer("weight", every.weight)
        self.scorer = [scorer]  # in a list, so that torch does not register the scorer as a submodule

    @property
    def ids(self) -> Tensor:
        """The group of each weight in memory: int64 [rows in memory or 1, labels or 1]."""
        return self.every[self.scorer[0].features] if self.by_row else self.every

    @property
    def shape(self) -> torch.Size:
        """The shape of the weights in memory: [rows, labels]."""
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        """The dimensions along which all weights are in the same group."""
        return [d for d, n in enumerate(self.shape) if self.ids.shape[d] == 1 < n]

    def everywhere(self, values: Tensor, fill: float) -> Tensor:
        """The values of groups [groups] at every weight of all rows: [all rows, labels] or broadcastable.

        Weights that are in no group get `fill`.
        """
        return torch.cat([values, values.new_full((1,), fill)])[self.every]
