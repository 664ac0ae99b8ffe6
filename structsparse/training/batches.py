"""Batches of tagged sentences: the tokens of a corpus as arrays, and data loaders that resume within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from structsparse.base.arrays import ranges
from structsparse.base.errors import UserError
from structsparse.features.keys import Bags
from structsparse.weights.batch import BatchCache, TokenBatch

_POOL = 16  # the sentences of this number of batches are sorted by length together, to save padding


@dataclass(frozen=True)
class TokenArrays:
    """The tokens of a training corpus as arrays, from which batches of sentences are made.

    Sentence s has the tokens offsets[s] : offsets[s + 1]."""

    bags: Bags  # feature ids of each token
    gold: np.ndarray  # int64 [tokens], label codes
    offsets: np.ndarray  # int64 [sentences + 1], index of the first token of each sentence
    dense: np.ndarray  # float32 [tokens, dense columns], real-valued features
    codes: np.ndarray  # int64 [tokens, attributes], vocabulary code of each word attribute
    edges: Bags | None = None  # feature ids of each token, for features with a weight per pair of successive labels

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Batches of sentences: the token count of each sentence (int64 array [sentences])."""
        return np.diff(self.offsets)

    def followed_by(self, other: TokenArrays) -> TokenArrays:
        """Batches of sentences: the arrays of these sentences and then of the sentences of `other`, as one object."""
        return TokenArrays(
            self.bags.followed_by(other.bags),
            np.concatenate([self.gold, other.gold]),
            np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
            np.concatenate([self.dense, other.dense]),
            np.concatenate([self.codes, other.codes]),
            None if self.edges is None else self.edges.followed_by(other.edges),
        )

    def batch(self, sentences: np.ndarray, items: int) -> TokenBatch:
        """Make the batch of the training sentences with the given indices.

        `items` is the number of sentences of the training step in all processes. The loss is averaged over them."""
        lengths = self.lengths[sentences]
        time = int(lengths.max())
        tokens = ranges(self.offsets[sentences], lengths)
        ids, offsets = _at(self.bags, tokens)
        edge_ids, edge_offsets = (None, None) if self.edges is None else _at(self.edges, tokens)
        places = ranges(np.arange(len(sentences)) * time, lengths)
        gold = np.zeros(len(sentences) * time, np.int64)
        gold[places] = self.gold[tokens]
        return TokenBatch(
            ids=ids,
            offsets=offsets,
            places=torch.from_numpy(places),
            dense=torch.from_numpy(self.dense[tokens]),
            codes=torch.from_numpy(self.codes[tokens]),
            gold=torch.from_numpy(gold.reshape(len(sentences), time)),
            lengths=torch.from_numpy(lengths),
            sentences=torch.from_numpy(np.asarray(sentences, np.int64)),
            items=items,
            edge_ids=edge_ids,
            edge_offsets=edge_offsets,
        )


def _at(bags: Bags, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Batches of sentences: the feature ids of the given tokens, concatenated, and offsets into these ids.

    The k-th given token has the feature ids ids[offsets[k] : offsets[k + 1]]."""
    sizes = np.diff(bags.offsets)[tokens]
    ids = bags.ids[ranges(bags.offsets[tokens], sizes)]
    return torch.from_numpy(ids), torch.from_numpy(np.r_[0, np.cumsum(sizes)])


@dataclass
class Passage:
    """A batch for online solvers: a block of sentences; the weights are updated after each sentence.

    `sentences` says which sentences belong to the block. The other tensors describe the whole corpus."""

    ids: torch.Tensor  # int32 [occurrences], row of the weight table for each feature of each token
    offsets: torch.Tensor  # int64 [tokens + 1], where the features of each token begin in `ids`
    begins: torch.Tensor  # int64 [sentences + 1], index of the first token of each sentence
    gold: torch.Tensor  # int64 [tokens], gold labels
    sentences: torch.Tensor  # int64 [sentences of the block], sentence indices in the order of training
    epoch: int


class Progress:
    """Base class of data loaders of batches: it keeps the position in the epoch.

    A run that was stopped within an epoch continues with the next batch."""

    def __init__(self) -> None:
        self.sampler, self.batch_sampler = self, None  # Lightning calls `sampler.set_epoch`
        self.epoch = self.done = 0

    def set_epoch(self, epoch: int) -> None:
        """Data loader of batches: start an epoch from the first batch, unless this epoch has already begun."""
        if epoch != self.epoch:
            self.epoch, self.done = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Data loader of batches: the position for a checkpoint: index of the epoch, and count of batches done."""
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Data loader of batches: restore the position in the epoch from a checkpoint."""
        self.epoch, self.done = state["epoch"], state["done"]


class Batches(Progress):
    """A data loader of batches of sentences, in an order that depends only on the seed and the epoch.

    The processes share the sentences of each step. Which sentences form a step does not depend on the number of
    processes."""

    def __init__(
        self, arrays: TokenArrays, size: int | None, *, shuffle: bool, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        if size is not None and size < world:
            raise UserError(f"batch={size} cannot be shared by {world} processes; each needs a sentence of every step")
        self.arrays, self.shuffle, self.seed, self.rank, self.world = arrays, shuffle, seed, rank, world
        self.size = min(size or len(arrays), len(arrays))
        super().__init__()
        self.whole: TokenBatch | None = None  # the batch of all sentences, if an epoch has a single step

    def __len__(self) -> int:
        """The number of steps of an epoch.

        Sentences left after the last full batch make one more step. If they are fewer than the processes, they join the
        last full batch."""
        full, rest = divmod(len(self.arrays), self.size)
        return max(1, full + (rest >= self.world))

    def __iter__(self) -> Iterator[TokenBatch]:
        """Data loader of batches: the remaining batches of the present epoch."""
        if self.done >= len(self):
            self.done = 0
        order = self.order()
        while self.done < len(order):
            step = order[self.done]
            self.done += 1
            yield self._whole(step) if len(order) == 1 else self._batch(step)

    def _batch(self, step: np.ndarray) -> TokenBatch:
        """Data loader of batches: the batch of this process, which is its share of the sentences of one step."""
        return self.arrays.batch(step[self.rank :: self.world], items=len(step))

    def _whole(self, step: np.ndarray) -> TokenBatch:
        """Data loader of batches: the batch of all sentences, for epochs with a single step; made once and reused."""
        if self.whole is None:
            self.whole = replace(self._batch(step), cache=BatchCache())
        return self.whole

    def order(self) -> list[np.ndarray]:
        """Data loader of batches: the sentence indices of each step of the present epoch."""
        lengths = self.arrays.lengths
        if not self.shuffle or len(self) == 1:
            return self._cut(np.argsort(-lengths, kind="stable"))
        draw = np.random.default_rng([self.seed, self.epoch])
        shuffled = draw.permutation(len(lengths))
        pools = np.arange(len(lengths)) // (self.size * _POOL)
        by_length = shuffled[np.lexsort((lengths[shuffled], pools))]
        steps = self._cut(by_length)
        return [steps[k] for k in draw.permutation(len(steps))]

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        """Data loader of batches: split sentence indices into the steps of an epoch."""
        return np.split(order, np.arange(1, len(self)) * self.size)


class Passages(Batches):
    """A data loader of batches for online solvers: blocks of sentences in random order."""

    def __iter__(self) -> Iterator[Passage]:
        """Data loader of batches for online solvers: the remaining blocks of the present epoch."""
        if self.done >= len(self):
            self.done = 0
        order = self.order()
        while self.done < len(order):
            sentences = order[self.done]
            self.done += 1
            yield self.passage(sentences)

    def passage(self, sentences: np.ndarray) -> Passage:
        """Data loader of batches for online solvers: the block of the sentences with the given indices."""
        return Passage(*self._corpus, torch.from_numpy(sentences), self.epoch)

    @cached_property
    def _corpus(self) -> list[torch.Tensor]:
        """Data loader of batches for online solvers: feature ids, offsets and gold labels of the whole corpus.

        All blocks share these tensors."""
        arrays = self.arrays
        whole = arrays.bags.ids, arrays.bags.offsets, arrays.offsets, arrays.gold
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in whole]

    def order(self) -> list[np.ndarray]:
        """Data loader of batches for online solvers: the shuffled sentence indices of each block of the epoch."""
        draw = np.random.default_rng([self.seed, self.epoch])
        return self._cut(draw.permutation(len(self.arrays)))
