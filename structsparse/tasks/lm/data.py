"""The data of a language model: train, dev and test texts, tries of training contexts, and batches of targets.

A target is a word to predict, and a context is the sequence of words before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.corpora.known.texts import TextSplits
from structsparse.corpora.text import EncodedText
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.training.batches import Progress

TRAIN = "train"  # name of the part of a corpus that a model is trained on


@dataclass(frozen=True)
class LanguageData:
    """The data of a language model: train, dev and test texts with one vocabulary, and tries of the training contexts.

    A context is a sequence of words before a word to predict."""

    texts: TextSplits
    tries: dict[int, ContextTree] = field(default_factory=dict, repr=False)  # model order -> trie of contexts
    truth: tuple[str, ...] = ()  # names of groups planted in synthetic data of other tasks; empty for language models
    metric: str = "perplexity"  # name of the dev score by which models are compared

    @property
    def name(self) -> str:
        """The name of the text corpus in a language model's data."""
        return self.texts.name

    @property
    def items(self) -> int:
        """The number of training targets (words to predict) in a language model's data."""
        return len(self.texts.train.targets)

    def describe(self) -> list[str]:
        """Console lines on a language model's data: sizes of the texts and of the vocabulary."""
        return self.texts.describe()

    def trie(self, order: int) -> ContextTree:
        """Language model's data: the trie of training contexts with fewer than `order` words, built on first use."""
        if order not in self.tries:
            self.tries[order] = ContextTree.build(self.texts.train, order)
        return self.tries[order]

    def batches(self, part: str, size: int | None, **sharing) -> TargetBatches:
        """Language model's data: batches of `size` targets (words to predict) of a part (train, dev or test).

        Dev and test are always one batch. Train is one batch if `size` is None."""
        return TargetBatches(part, self.texts.parts[part], size if part == TRAIN else None, **sharing)

    def whole(self, part: str) -> TargetBatches:
        """Language model's data: all targets of a part (train, dev or test) as one batch."""
        return self.batches(part, None)


@dataclass
class TargetBatch:
    """A batch of targets (words to predict) from a language model's data."""

    part: str  # name of the text: train, dev or test
    chosen: np.ndarray | None  # int64 [targets], indices of the targets in the text; None: all targets
    items: int  # number of targets in the batch
    sentences: Tensor = field(default_factory=lambda: torch.arange(0))  # always empty; other tasks: sentence indices


class TargetBatches(Progress):
    """Data loader of batches of targets (words to predict) from a language model's data.

    The order of the targets depends only on the seed and the epoch. A run that was stopped within an epoch can continue
    with the next batch."""

    def __init__(
        self,
        part: str,
        text: EncodedText,
        size: int | None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank=0,
        world: int = 1,
    ) -> None:
        if world > 1:
            raise UserError(f"trainer.devices={world}: a language model is trained on one device")
        if size is not None and size < 1:
            raise UserError(f"batch={size}: expected a number of words, at least 1, or null for all")
        self.part, self.count, self.shuffle, self.seed = part, len(text.targets), shuffle, seed
        self.size = min(size or self.count, self.count)
        super().__init__()

    def __len__(self) -> int:
        """The number of batches of targets in an epoch."""
        return -(-self.count // self.size)

    def __iter__(self) -> Iterator[TargetBatch]:
        """The remaining batches of targets in this epoch; if none remain, a new epoch begins."""
        if self.done >= len(self):
            self.done = 0
        order = None
        while self.done < len(self):
            if order is None and len(self) > 1:
                order = self._order()
            begin = self.done * self.size
            self.done += 1
            chosen = None if order is None else order[begin : begin + self.size]
            yield TargetBatch(self.part, chosen, self.count if chosen is None else len(chosen))

    def _order(self) -> np.ndarray:
        """Language model's data: the indices of the targets, in the order of the current epoch (int64 [targets])."""
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)
