"""`TokenBatch`, a batch of sentences as token features and gold labels, and `Sizes`, from which scorers are built."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FLAT = 256  # CPU batches of at least this number of sentences are not padded


class BatchCache:
    """Cache of results computed from a batch that is used again in each epoch, such as a sorted order of features."""

    def __init__(self) -> None:
        self.results: dict[str, object] = {}

    def get(self, name: str, compute: Callable[[], object]) -> object:
        """The result that is cached for the batch under `name`; the first call gets it from `compute`."""
        if name not in self.results:
            self.results[name] = compute()
        return self.results[name]


@dataclass
class TokenBatch:
    """A batch of sentences with token features and gold labels.

    The features of all tokens lie end to end, sentence after sentence. The gold labels are padded to the length of the
    longest sentence."""

    ids: Tensor  # int32 [occurrences], the active features (table rows) of all tokens, token after token
    offsets: Tensor  # int64 [tokens + 1], where the features of each token start in `ids`
    places: Tensor  # int64 [tokens], the index of each token in the flattened padded batch [batch * time]
    dense: Tensor  # float [tokens, number of real-valued features], the values of these features
    codes: Tensor  # int64 [tokens, attributes], vocabulary index of each attribute, such as the word
    gold: Tensor  # int64 [batch, time], gold labels, padded
    lengths: Tensor  # int64 [batch], the number of tokens of each sentence
    sentences: Tensor  # int64 [batch], the index of each sentence in the corpus
    items: int  # number of sentences in the optimizer step, summed over all processes
    cache: BatchCache | None = None  # set if the same batch is used again in later epochs
    # int32 [occurrences], the active features that score label pairs, token after token; None: there are none
    edge_ids: Tensor | None = None
    edge_offsets: Tensor | None = None  # int64 [tokens + 1], where the features of each token start in `edge_ids`

    def pad(self, tokens: Tensor) -> Tensor:
        """Pad a tensor [tokens, width] of a batch to sentences of equal length: [batch, time, width]."""
        padded = tokens.new_zeros(self.gold.numel(), tokens.shape[1])
        return padded.index_copy(0, self.places, tokens).view(*self.gold.shape, -1)

    def flat(self, scores: Tensor) -> bool:
        """Whether the scores of a batch stay unpadded, as in a large float32 batch on the CPU."""
        return len(self.lengths) >= FLAT and scores.device.type == "cpu" and scores.dtype == torch.float32

    def lay(self, tokens: Tensor) -> Tensor:
        """The scores [tokens, labels] of a batch in the layout that the linear chain takes: unpadded or padded."""
        return tokens if self.flat(tokens) else self.pad(tokens)

    def reverse(self, padded: Tensor) -> Tensor:
        """Reverse each sentence of a padded batch [batch, time, width]; the padding stays in place."""
        time = torch.arange(padded.shape[1], device=padded.device)
        mirrored = self.lengths[:, None] - 1 - time  # [batch, time], the position to read from; negative at padding
        return padded.gather(1, torch.where(mirrored >= 0, mirrored, time).unsqueeze(2).expand_as(padded))


class Sizes(NamedTuple):
    """Data sizes that a scorer of token batches needs before it can be built.

    `rows`, `labels` and `dense` are the numbers of table rows, labels and real-valued features."""

    rows: int
    labels: int
    dense: int
    vocabularies: tuple[int, ...]  # vocabulary size of each attribute in TokenBatch.codes
    pairs: Callable[[], Sized] | None = None  # computes the (feature row, label) pairs observed in training
