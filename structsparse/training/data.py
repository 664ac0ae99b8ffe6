"""The interface of training data of any task: batches of the parts train, dev and test of a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


class Data(Protocol):
    """The interface of training data of any task: a corpus as arrays of the parts train, dev and test."""

    name: str
    metric: str  # name of the score on dev by which models are compared
    items: int  # number of items (such as sentences) of the train part; the mean loss is over these items
    truth: Sequence[str]  # names of the groups planted in a synthetic corpus, else empty

    def describe(self) -> list[str]:
        """Training data of any task: console lines that say what was read from the corpus, and what was left out."""

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Iterable:
        """Training data of any task: batches of `size` items from a part of the corpus.

        If `size` is None, one batch has all items. `sharing` holds the rank of this process and the number of
        processes."""

    def whole(self, part: str) -> Iterable:
        """Training data of any task: batches for one pass over a part of the corpus.

        The task chooses the order and the size of the batches."""

    def passages(self, part: str, size: int | None, seed: int) -> Iterable:
        """Training data of any task: blocks of `size` sentences in random order, for online solvers.

        An online solver updates the weights after each sentence. Only tasks whose `check_solver` accepts online
        solvers have this method."""

    def with_dev(self) -> Data | None:
        """Training data of any task: the same data, with the items of dev added to train, for a last fit.

        The result is None unless dev was drawn at random from the training items."""

    def keep(self, rows: np.ndarray) -> Data:
        """Training data of any task: the same data with only the feature rows that the mask `rows` selects.

        Only tasks that can leave out feature rows have this method."""


class CorpusParts:
    """Base class of training data made from a corpus, with the parts train, dev and test.

    A subclass has two attributes: `splits`, the corpus, and `arrays`, the arrays of each part by name."""

    @property
    def name(self) -> str:
        """Training data of any task: the name of the corpus."""
        return self.splits.name

    @property
    def truth(self) -> tuple[str, ...]:
        """Training data of any task: the names of the groups planted in a synthetic corpus, else none."""
        return self.splits.truth

    @property
    def items(self) -> int:
        """Training data of any task: the number of items of the train part."""
        return len(self.arrays["train"])

    def with_dev(self) -> Data | None:
        """Training data of any task: None by default, which means that dev cannot be added to train."""
        return None
