"""The data of a task as training uses it: the parts train, dev and test of a corpus, as batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


class Data(Protocol):
    """The interface of a corpus prepared for training: arrays of the parts train, dev and test."""

    name: str
    metric: str  # name of the score on dev that chooses among models; `scores.gain` knows whether higher is better
    items: int  # number of items of train, over which the mean loss is taken
    truth: Sequence[str]  # names of the groups that were planted in an artificial corpus

    def describe(self) -> list[str]:
        """Console lines that say what was read from the corpus, and what was left out."""

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Iterable:
        """Batches of `size` items of a part; None: one batch of all items.

        `sharing`: rank of the process and number of processes."""

    def whole(self, part: str) -> Iterable:
        """Batches for one pass over a part, in an order and of a size that suit the data."""

    def passages(self, part: str, size: int | None, seed: int) -> Iterable:
        """Blocks of `size` sentences in random order, for online solvers, which update after each sentence.

        Only tasks whose `check_solver` accepts online solvers have this method."""

    def keep(self, rows: np.ndarray) -> Data:
        """The data with the selected feature rows only (bool [rows]). Only tasks that screen rows have this method."""


class CorpusParts:
    """Base class of data made from a corpus: `splits` is the corpus, `arrays` has the arrays of each part."""

    @property
    def name(self) -> str:
        """The name of the corpus."""
        return self.splits.name

    @property
    def truth(self) -> tuple[str, ...]:
        """The names of the groups that were planted in the corpus."""
        return self.splits.truth

    @property
    def items(self) -> int:
        """The number of items of the train part."""
        return len(self.arrays["train"])
