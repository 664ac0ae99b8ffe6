"""`TokenBatch`, a batch of sentences as token features and gold labels, and `Sizes`, from which scorers are built."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FLAT = 256  # number of sentences from which a batch on the CPU is not padded


class BatchCache:
    """Cache of results computed from a batch that is used again in each epoch, such as the order of the features."""

    def __init__(self) -> None:
        self.results: dict[str, object] = {}

    def get(self, name: str, compute: Callable[[], object]) -> object:
        """The cached result of the batch with this name; the first call computes the result."""
        if name not in self.results:
            self.results[name] = compute()
        return self.results[name]


@dataclass
class TokenBatch:
    """A batch of sentences with token features and gold labels.

    The features of all tokens lie end to end, sentence after sentence. The gold labels are padded to sentences of equal
    length."""

    ids: Tensor  # int32 [occurrences], the active features (table rows) of all tokens, token after token
    offsets: Tensor  # int64 [tokens + 1], where the features of each token start in `ids`
    places: Tensor  # int64 [tokens], the position of each token among the padded positions [batch * time]
    dense: Tensor  # float [tokens, dense columns], real-valued features
    codes: Tensor  # int64 [tokens, coded attributes], attributes as vocabulary codes
    gold: Tensor  # int64 [batch, time], gold labels, padded
    lengths: Tensor  # int64 [batch], the number of tokens of each sentence
    sentences: Tensor  # int64 [batch], the index of each sentence in the corpus
    items: int  # number of sentences in the whole optimizer step, over all processes
    cache: BatchCache | None = None  # set if the same batch is used again in later epochs
    # int32 [occurrences], the active features of label pairs, token after token, if there are any
    edge_ids: Tensor | None = None
    edge_offsets: Tensor | None = None  # int64 [tokens + 1], where the features of each token start in `edge_ids`

    def pad(self, tokens: Tensor) -> Tensor:
        """Pad the rows of a batch's tokens to sentences of equal length: [tokens, width] -> [batch, time, width]."""
        padded = tokens.new_zeros(self.gold.numel(), tokens.shape[1])
        return padded.index_copy(0, self.places, tokens).view(*self.gold.shape, -1)

    def flat(self, scores: Tensor) -> bool:
        """Whether the scores of a batch stay end to end instead of being padded: a large float32 batch on the CPU."""
        return len(self.lengths) >= FLAT and scores.device.type == "cpu" and scores.dtype == torch.float32

    def lay(self, tokens: Tensor) -> Tensor:
        """The scores [tokens, labels] of a batch in the layout that the linear chain takes: end to end or padded."""
        return tokens if self.flat(tokens) else self.pad(tokens)

    def reverse(self, padded: Tensor) -> Tensor:
        """Reverse each sentence of a padded batch within its own length, padding unchanged: [batch, time, width]."""
        time = torch.arange(padded.shape[1], device=padded.device)
        mirrored = self.lengths[:, None] - 1 - time  # [batch, time], the position to read from; negative at padding
        return padded.gather(1, torch.where(mirrored >= 0, mirrored, time).unsqueeze(2).expand_as(padded))


class Sizes(NamedTuple):
    """Data sizes that a scorer of token batches needs before it can be built.

    Fields: the numbers of table rows, labels and dense columns; the vocabulary sizes; a function for the observed
    pairs."""

    rows: int
    labels: int
    dense: int
    vocabularies: tuple[int, ...]  # vocabulary size of each coded attribute
    pairs: Callable[[], Sized] | None = None  # computes the pairs of row and label observed in training
