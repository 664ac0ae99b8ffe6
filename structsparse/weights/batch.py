"""`TokenBatch`, a batch of sentences as token features and gold labels; `Sizes`, the data sizes that a scorer's table
needs."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FLAT = 256  # batches on the CPU with at least this many sentences are not padded


class BatchCache:
    """Cache of results computed from a batch that is used again in each epoch, such as the order of its features."""

    def __init__(self) -> None:
        self.results: dict[str, object] = {}

    def get(self, name: str, compute: Callable[[], object]) -> object:
        """The cached result with this name; the first call computes it."""
        if name not in self.results:
            self.results[name] = compute()
        return self.results[name]


@dataclass
class TokenBatch:
    """A batch of sentences with features and gold labels. Token features lie end to end; gold labels are padded."""

    ids: Tensor  # int32 [occurrences] the active table rows (features) of all tokens
    offsets: Tensor  # int64 [tokens + 1] into ids
    places: Tensor  # int64 [tokens] the position of each token in the padded [batch * time]
    dense: Tensor  # float [tokens, dense columns]
    codes: Tensor  # int64 [tokens, coded attributes] attributes as vocabulary codes
    gold: Tensor  # int64 [batch, time]
    lengths: Tensor  # int64 [batch]
    sentences: Tensor  # int64 [batch] the number of each sentence in the corpus
    items: int  # sentences in the whole optimizer step, over all processes
    cache: BatchCache | None = None  # set if the same batch is used again
    edge_ids: Tensor | None = None  # int32 [occurrences] active rows of the features of label pairs, if any
    edge_offsets: Tensor | None = None  # int64 [tokens + 1] into edge_ids

    def pad(self, tokens: Tensor) -> Tensor:
        """Rows of tokens, padded to sentences of equal length: [tokens, width] -> [batch, time, width]."""
        padded = tokens.new_zeros(self.gold.numel(), tokens.shape[1])
        return padded.index_copy(0, self.places, tokens).view(*self.gold.shape, -1)

    def flat(self, scores: Tensor) -> bool:
        """Whether the scores of a large batch on the CPU stay end to end instead of being padded."""
        return len(self.lengths) >= FLAT and scores.device.type == "cpu" and scores.dtype == torch.float32

    def lay(self, tokens: Tensor) -> Tensor:
        """Scores [tokens, labels] in the layout that the linear chain takes: end to end or padded."""
        return tokens if self.flat(tokens) else self.pad(tokens)

    def reverse(self, padded: Tensor) -> Tensor:
        """Each sentence reversed within its own length, padding unchanged: [batch, time, width]."""
        time = torch.arange(padded.shape[1], device=padded.device)
        mirrored = self.lengths[:, None] - 1 - time  # [batch, time]
        return padded.gather(1, torch.where(mirrored >= 0, mirrored, time).unsqueeze(2).expand_as(padded))


class Sizes(NamedTuple):
    """The sizes of the data that a scorer needs before it can be built."""

    rows: int
    labels: int
    dense: int
    vocabularies: tuple[int, ...]  # one per coded attribute
    pairs: Callable[[], Sized] | None = None  # computes the pairs of row and label observed in training
