"""The data of a language model: texts, context tries of the training text, and batches of targets."""

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

TRAIN = "train"


@dataclass(frozen=True)
class LanguageData:
    """Train, dev and test texts in one vocabulary, and the context tries of the training text."""

    texts: TextSplits
    tries: dict[int, ContextTree] = field(default_factory=dict, repr=False)  # by order, built on first use
    truth: tuple[str, ...] = ()
    metric: str = "perplexity"

    @property
    def name(self) -> str:
        """The name of the text corpus."""
        return self.texts.name

    @property
    def items(self) -> int:
        """The number of training targets (words to predict)."""
        return len(self.texts.train.targets)

    def describe(self) -> list[str]:
        """Lines about the text corpus for the console."""
        return self.texts.describe()

    def trie(self, order: int) -> ContextTree:
        """The context trie of the training text, built on first use."""
        if order not in self.tries:
            self.tries[order] = ContextTree.build(self.texts.train, order)
        return self.tries[order]

    def batches(self, part: str, size: int | None, **sharing) -> TargetBatches:
        """Batches of the targets of a part; dev and test, which are only evaluated, are one batch each."""
        return TargetBatches(part, self.texts.parts[part], size if part == TRAIN else None, **sharing)

    def whole(self, part: str) -> TargetBatches:
        """All targets of a part as one batch."""
        return self.batches(part, None)


@dataclass
class TargetBatch:
    """A batch of targets (words to predict) of a text."""

    part: str
    chosen: np.ndarray | None  # int64 [targets], numbers of the targets; None: all targets of the text
    items: int  # number of targets
    sentences: Tensor = field(default_factory=lambda: torch.arange(0))  # unused: error messages name no sentence


class TargetBatches(Progress):
    """Batches of targets (words to predict) in an order that depends on seed and epoch alone; iteration can resume."""

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
        return -(-self.count // self.size)

    def __iter__(self) -> Iterator[TargetBatch]:
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
        """The order of the targets in the current epoch: int64 [targets]"""
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)
