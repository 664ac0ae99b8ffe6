"""Weight tables for observed (feature, label) pairs only: pairs that never occur in training have no weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.kernels.weights import observed_pairs as kernels
from structsparse.weights.batch import Sizes, TokenBatch
from structsparse.weights.feature_tables import Scorer


@dataclass(frozen=True, eq=False)
class Pairs:
    """The observed (feature, label) pairs of the training data, listed feature by feature.

    The labels observed with feature row r are labels[offsets[r] : offsets[r + 1]], ascending."""

    offsets: np.ndarray  # int64 [rows + 1], where the labels of each feature row start in `labels`
    labels: np.ndarray  # [pairs], the label of each pair, in the smallest integer dtype that fits
    links: np.ndarray  # bool [labels, labels], which labels were observed at a token and the next one

    @classmethod
    def observed(cls, arrays, rows: int, labels: int) -> Pairs:
        """The (feature, label) pairs observed in training sentences; `arrays` are their TokenArrays."""
        masks, counts = np.zeros((rows, -(-labels // kernels.WORD)), np.uint64), np.zeros(rows, np.int64)
        kernels.mark(arrays.bags.ids, arrays.bags.offsets, arrays.gold, masks)
        kernels.count(masks, counts)
        offsets = np.r_[0, np.cumsum(counts)]
        observed_labels = np.empty(offsets[-1], np.min_scalar_type(labels - 1))
        kernels.spell(masks, observed_labels)
        links = np.zeros((labels, labels), bool)
        inner = np.ones(len(arrays.gold), bool)
        inner[arrays.offsets[:-1]] = False  # the first token of a sentence has no label before it
        links[arrays.gold[:-1][inner[1:]], arrays.gold[1:][inner[1:]]] = True
        return cls(offsets, observed_labels, links)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def rows(self) -> np.ndarray:
        """The feature row of each observed pair, as an int64 array."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def places(self) -> np.ndarray:
        """The index of each observed pair in a flattened dense table [rows, labels], as an int64 array."""
        return self.rows * len(self.links) + self.labels

    def any(self, mask: Tensor) -> Tensor:
        """Which feature rows have at least one observed pair that is marked in `mask`, as a bool array over rows."""
        before = np.r_[0, np.cumsum(mask.cpu().numpy())]
        return torch.from_numpy(np.diff(before[self.offsets]) > 0)

    def whole(self, ids: Tensor) -> bool:
        """Whether, for every row, all observed pairs lie in the same group; ids [pairs] has the group of each pair."""
        ids = ids.cpu().numpy()
        inner = np.ones(len(self), bool)
        inner[self.offsets[:-1][np.diff(self.offsets) > 0]] = False
        return ids.shape == (len(self),) and bool((ids[1:] == ids[:-1])[inner[1:]].all())

    def of(self, rows: Tensor) -> Tensor:
        """Which observed pairs belong to the feature rows marked in `rows`, as a bool array over pairs."""
        return torch.from_numpy(np.repeat(rows.cpu().numpy(), np.diff(self.offsets)))


class PairTable(Scorer):
    """A weight for each observed (feature, label) pair, stored as one vector, feature row after feature row."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self.pairs = pairs
        self.table = nn.Parameter(torch.zeros(len(pairs)))  # [pairs], the weight of each pair
        # [pairs], the index of each pair in a flattened dense table [rows, labels]
        self.register_buffer("places", torch.from_numpy(pairs.places), persistent=False)

    def sum(self, batch: TokenBatch) -> Tensor:
        """Sums [tokens, labels] of the observed-pair weights of the features active at each token, per label."""
        return pair_sum(self.table, self.pairs, self.places, batch)

    def dense(self) -> Tensor:
        """The weights of observed pairs as a dense table [rows, labels], with zeros for all other pairs."""
        return _dense(self.table, self.pairs, self.places)

    def extra_repr(self) -> str:
        """The numbers of observed pairs and feature rows, for the printed form of the module."""
        return f"{len(self.pairs):,} pairs of {len(self.pairs.offsets) - 1:,} rows"


class PairScorer(PairTable, Scorer):
    """Scorer of labels by observed pairs: each label gets the sum of the (feature, label) weights of a token.

    score[token, label] = sum of the weights of (feature, label) over the token's active features. If `observed` is
    true, the model is the same as in crfsuite: it has transition scores only for pairs of labels that are neighbours in
    training, and no start or end scores."""

    linear = True

    def __init__(self, sizes: Sizes, observed: bool = False) -> None:
        if sizes.pairs is None:
            raise UserError(
                "model PairScorer takes its pairs from training sentences, and there are none in these sizes"
            )
        super().__init__(sizes.pairs())
        self.links = torch.from_numpy(self.pairs.links) if observed else None
        self.ends = not observed

    def forward(self, batch: TokenBatch) -> Tensor:
        """Scores of the labels of each token, from the weights of observed pairs."""
        return batch.lay(self.sum(batch))


def pairs_of(tagger: nn.Module) -> Pairs | None:
    """The observed pairs of a model's table; None if the table has a weight for every pair."""
    return next((module.pairs for module in tagger.modules() if isinstance(module, PairTable)), None)


def rows_of(tagger: nn.Module, mask: Tensor) -> Tensor:
    """Which rows of a table, dense or with observed pairs, have at least one weight marked in `mask`.

    `mask` marks single weights, or whole rows of a dense table. The result is a bool tensor over rows."""
    pairs = pairs_of(tagger)
    if pairs is not None:
        return pairs.any(mask)
    return mask.flatten(1).any(dim=1) if mask.dim() > 1 else mask


def entries_of(tagger: nn.Module, rows: Tensor) -> Tensor:
    """Mask of the weights in the rows marked in `rows`.

    For a table of observed pairs, the mask is a bool tensor over pairs. For a dense table, it is `rows` itself."""
    pairs = pairs_of(tagger)
    return rows if pairs is None else pairs.of(rows)


def on_rows(tagger: nn.Module, values: Tensor, rows: Tensor) -> Tensor:
    """The values in the rows marked in `rows`; `values` is laid out as a table of observed pairs or a dense table."""
    return values[entries_of(tagger, rows).to(values.device)]


def pair_sum(table: Tensor, pairs: Pairs, places: Tensor, batch: TokenBatch) -> Tensor:
    """Sums [tokens, labels] of the observed-pair weights of the features active at each token, per label."""
    if table.device.type == "cpu" and table.is_contiguous() and table.dtype in (torch.float32, torch.float64):
        return _PairSum.apply(table, pairs, batch)
    dense = _dense(table, pairs, places)
    return F.embedding_bag(batch.ids, dense, batch.offsets, mode="sum", include_last_offset=True)


def _dense(table: Tensor, pairs: Pairs, places: Tensor) -> Tensor:
    """The weights of observed pairs as a dense table [rows, labels], with zeros for all other pairs."""
    rows, labels = len(pairs.offsets) - 1, len(pairs.links)
    return table.new_zeros(rows * labels).index_copy(0, places, table).view(rows, labels)


class _PairSum(torch.autograd.Function):
    """The autograd function of `pair_sum`, the sums of observed-pair weights, by the compiled kernels."""

    @staticmethod
    def forward(ctx, table: Tensor, pairs: Pairs, batch: TokenBatch) -> Tensor:
        """The sums of observed-pair weights per token and label, by the compiled kernels."""
        ctx.pairs, ctx.batch = pairs, batch
        values, labels = table.detach().numpy(), len(pairs.links)
        numbers = np.empty(len(pairs.offsets) - 1, np.int32)
        living = kernels.number_living(values, pairs.offsets, numbers)
        dense = np.zeros((living + 1, labels), values.dtype)
        kernels.lay_out(values, pairs.offsets, pairs.labels, numbers, dense)
        sums = table.new_zeros(len(batch.offsets) - 1, labels)
        kernels.total(batch.ids.numpy(), batch.offsets.numpy(), numbers, dense, sums.numpy())
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx, residuals: Tensor):
        """The gradient of the sums with respect to the weights of observed pairs.

        If the batch has a cache, the sorted order of its features is computed only once."""
        pairs, batch = ctx.pairs, ctx.batch
        gradient = residuals.new_zeros(len(pairs))
        arrays = residuals.contiguous().numpy(), pairs.offsets, pairs.labels, gradient.numpy()
        if batch.cache is None:
            kernels.gradient_of_tokens(batch.ids.numpy(), batch.offsets.numpy(), *arrays)
        else:
            rows = len(pairs.offsets) - 1
            frequent, rare = batch.cache.get(f"order of {rows} rows", lambda: _order(batch, rows))
            kernels.gradient_of_frequent(*frequent, *arrays)
            kernels.gradient_of_rare(*rare, *arrays)
        return gradient, None, None


def _order(batch: TokenBatch, rows: int) -> tuple[tuple, tuple]:
    """The feature occurrences of a batch, sorted as the observed-pair kernels need them.

    Returns two parts: the occurrences of frequent features by token, and those of rare features by feature."""
    ids, offsets = batch.ids.numpy(), batch.offsets.numpy()
    counts = np.bincount(ids, minlength=rows)
    frequent = counts >= kernels.FREQUENT
    inside, number = frequent[ids], (np.cumsum(frequent) - 1).astype(np.int32)
    by_token = number[ids[inside]], np.r_[0, np.cumsum(inside)][offsets], np.flatnonzero(frequent)
    counts[frequent] = 0
    starts, tokens = np.empty(rows + 1, np.int64), np.empty(int(counts.sum()), np.int32)
    kernels.by_row(ids, offsets, counts, starts, tokens)
    return by_token, (starts, tokens)
