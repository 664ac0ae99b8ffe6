"""Language models: the next word from the words before it, scored by perplexity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.corpora.known.texts import Texts
from structsparse.corpora.text import Text
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.training.batches import Progress

TRAIN = "train"


@dataclass(frozen=True)
class LanguageData:
    """Three texts in one vocabulary, and the trees of contexts made of the first."""

    texts: Texts
    trees: dict[int, ContextTree] = field(default_factory=dict, repr=False)  # tries by order, made when asked for
    truth: tuple[str, ...] = ()
    metric: str = "perplexity"

    @property
    def name(self) -> str:
        return self.texts.name

    @property
    def items(self) -> int:
        return len(self.texts.train.targets)

    def describe(self) -> list[str]:
        return self.texts.describe()

    def trie(self, order: int) -> ContextTree:
        if order not in self.trees:
            self.trees[order] = ContextTree.build(self.texts.train, order)
        return self.trees[order]

    def batches(self, part: str, size: int | None, **sharing) -> Targets:
        """Targets of a part; dev and test, which are scored and not learnt from, come at once."""
        return Targets(part, self.texts.parts[part], size if part == TRAIN else None, **sharing)

    def whole(self, part: str) -> Targets:
        return self.batches(part, None)


@dataclass
class Target:
    """Some targets of a text, by their numbers; of all of them, none is named."""

    part: str
    chosen: np.ndarray | None  # int64 [targets]
    items: int
    sentences: Tensor = field(default_factory=lambda: torch.arange(0))  # an error message has none to name


class Targets(Progress):
    """Batches of the words to be predicted, in an order that depends on the seed and the epoch alone; it remembers how
    far it is."""

    def __init__(
        self, part: str, text: Text, size: int | None, *, shuffle: bool = False, seed: int = 0, rank=0, world: int = 1
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

    def __iter__(self) -> Iterator[Target]:
        if self.done >= len(self):
            self.done = 0
        order = None
        while self.done < len(self):
            if order is None and len(self) > 1:
                order = self._order()
            begin = self.done * self.size
            self.done += 1
            chosen = None if order is None else order[begin : begin + self.size]
            yield Target(self.part, chosen, self.count if chosen is None else len(chosen))

    def _order(self) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)
