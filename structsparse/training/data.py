"""The data of a task as training sees it: named parts, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


class Data(Protocol):
    """The corpus of a task as arrays, in the parts train, dev and test."""

    name: str
    metric: str  # the score of dev that chooses among models; `scores.gain` knows whether more of it is better
    items: int  # of train, which the mean loss is over
    truth: Sequence[str]  # the groups that were planted, where that is known

    def describe(self) -> list[str]:
        """Lines for the console: what was read, and what was left out of it."""

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Iterable:
        """A part in batches of `size` items; None: all at once. `sharing`: rank and world of the process."""

    def whole(self, part: str) -> Iterable:
        """Batches to go through a part once, in an order and of a size that suit the data."""

    def passages(self, part: str, size: int | None, seed: int) -> Iterable:
        """Sentences in random order, `size` at a time, for solvers that go from sentence to sentence. Only for tasks
        whose `check_solver` lets such solvers pass."""

    def keep(self, rows: np.ndarray) -> Data:
        """The data with only these rows of features (bool [rows]). Only for tasks that screen rows."""


class CorpusParts:
    """Data made from the splits of a corpus: `splits` holds the corpus, `arrays` its parts."""

    @property
    def name(self) -> str:
        return self.splits.name

    @property
    def truth(self) -> tuple[str, ...]:
        return self.splits.truth

    @property
    def items(self) -> int:
        return len(self.arrays["train"])
