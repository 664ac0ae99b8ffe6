"""The growing weight table of a tagger (`model=growing`): only features with nonzero weights take memory.

A feature gets a row when an online solver first changes its weights. All-zero rows are removed.
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

    Only online solvers can train such a table (`solver=online_perceptron` or `online_mira`)."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes.labels, [("features", torch.int64)])  # `features`: feature index of each row
        self.rows = sizes.rows  # number of all features
        # `slots`: the row index of each feature (int32); -1: the feature has no row in memory
        self.register_buffer("slots", torch.full((sizes.rows,), -1, dtype=torch.int32), persistent=False)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Growing table of a tagger: the score of each label at each token of a batch, [batch, time, labels]."""
        if self.held == 0:
            zeros = self.table.new_zeros(len(batch.offsets) - 1, self.table.shape[1])
            # the sum of the empty table is zero, but connects the scores to the parameter for autograd
            return batch.pad(zeros + self.table.sum())
        slots = self.slots[batch.ids]  # the row of each active feature; -1: none
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
        """Growing table of a tagger: replace all rows by `weights` [rows, labels], the weights of `features` [rows]."""
        self.slots[self.features] = -1
        super().set_rows(weights, features)
        self._number()

    def _number(self) -> None:
        """Growing table of a tagger: set `slots`, the row index of each feature."""
        self.slots[self.features] = torch.arange(self.held, dtype=torch.int32, device=self.slots.device)

    def groups_of(self, make: Callable, layout: TemplateLayout, name: str) -> HeldRows:
        """Growing table of a tagger: make groups of all features with `make`, and restrict them to rows in memory."""
        return self.held_of(make((self.rows, self.table.shape[1]), layout, parameter=name))

    def held_of(self, groups: Partition) -> HeldRows:
        """Growing table of a tagger: restrict disjoint groups of all features to the rows in memory.

        Overlapping groups are an error."""
        if not isinstance(groups, Partition):
            raise UserError(f"model=growing takes disjoint groups (template, label), not a {type(groups).__name__}")
        return HeldRows(groups, self)

    def spread(self, penalty: Penalty) -> Tensor:
        """Growing table of a tagger: a mask [all features, labels] of the weights that a penalty keeps.

        If the penalty removes only whole groups, all weights of the other groups are kept, even of features that have
        no row in memory. If it removes single weights, weights of features without a row are not kept."""
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
        """Growing table of a tagger: the dense weights of some features; `rows` is a bool array over all features."""
        place = torch.where(rows, rows.cumsum(0) - 1, -1)[self.features]
        dense = self.table.new_zeros(int(rows.sum()), self.table.shape[1])
        dense[place[place >= 0]] = self.table.detach()[place >= 0]
        return dense

    @torch.no_grad()
    def fill(self, dense: Tensor) -> None:
        """Growing table of a tagger: replace all rows by the nonzero rows of a dense table [all features, labels]."""
        features = (dense != 0).any(dim=1).nonzero().flatten()
        self.set_rows(dense[features].to(self.table), features.to(self.features.device))

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        """Growing table of a tagger: load the rows of a checkpoint, and set `slots`, the row index of each feature."""
        features = state_dict[prefix + "features"]
        if len(features) and int(features.max()) >= self.rows:
            raise UserError(f"a checkpoint holds feature {int(features.max())}, but there are {self.rows} features")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.slots.fill_(-1)
        self._number()


class HeldRows(Partition):
    """Groups of the feature weights of a tagger, restricted to the rows of a growing table in memory.

    Group sizes and group weights are those of the unrestricted groups."""

    offsets = None  # the rows in memory are not sorted by group
    aligned = False

    def __init__(self, every: Partition, scorer: GrowingScorer) -> None:
        nn.Module.__init__(self)
        self.names, self.parameter, self.free = every.names, every.parameter, every.free
        self.by_row = every.ids.shape[0] == scorer.rows
        self.register_buffer("every", every.ids)  # group of each weight, [features, labels]; a size of 1 is broadcast
        self.register_buffer("size", every.size)
        self.register_buffer("weight", every.weight)
        self.scorer = [scorer]  # in a list, so that torch does not register the scorer as a submodule

    @property
    def ids(self) -> Tensor:
        """Growing table of a tagger: the group index of each weight in memory; a dimension of size 1 is broadcast."""
        return self.every[self.scorer[0].features] if self.by_row else self.every

    @property
    def shape(self) -> torch.Size:
        """Growing table of a tagger: the shape of the weights in memory, [rows, labels]."""
        return self.scorer[0].table.shape

    @property
    def shared(self) -> list[int]:
        """Growing table of a tagger: the dimensions of the table along which all weights are in one group."""
        return [d for d, n in enumerate(self.shape) if self.ids.shape[d] == 1 < n]

    def everywhere(self, values: Tensor, fill: float) -> Tensor:
        """Growing table of a tagger: expand `values`, one number per group, to the weights of all features.

        Returns an array [all features, labels], where a size of 1 is broadcast. Weights in no group get `fill`."""
        return torch.cat([values, values.new_full((1,), fill)])[self.every]
