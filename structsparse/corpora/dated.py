"""Dated items: documents or rows of numbers, each in a period of time, with a response or without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentReading, Documents

DEAD, CONSTANT, DRIFTING = 0, 1, 2  # classes of features
LEVEL = "(level)"  # name of the feature that is 1 for every text
SPARSEST = 100  # periods for each item at most
KINDS = ("dead", "constant", "drifting")  # their names


@dataclass(frozen=True)
class HeldOut:
    """Which of the last periods are held out of a dated corpus: `test` periods, and `dev` periods before them."""

    test: int = 1
    dev: int = 1
    join_dev: bool = True  # dev is also trained on

    def __post_init__(self) -> None:
        for name, number in (("test", self.test), ("dev", self.dev)):
            if type(number) is not int or number < 1:
                raise UserError(f"data.{name} is {number}, expected a number of periods of at least 1")


@dataclass(frozen=True, eq=False)
class DatedCorpus:
    """A corpus of dated items. Periods without items keep their place."""

    name: str
    names: list[str]  # of the items, such as file:line
    period: np.ndarray  # int64 [items]
    periods: tuple[str, ...]  # names of all periods, in order of time
    held_out: HeldOut
    response: np.ndarray | None = None  # float64 [items]; class codes 0 and 1 if there are classes; None: no response
    classes: tuple[str, ...] | None = None
    documents: Documents | None = None  # the texts of the items
    reading: DocumentReading = field(default_factory=DocumentReading)
    effects: tuple[str, ...] = ()  # names of further columns of numbers
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # float64 [items, effects]
    known: np.ndarray | None = None  # int64 [items], the period in which a response becomes known; None: its own
    truth: Mapping[str, int] = field(default_factory=dict)  # planted class of each feature, by name
    columns: Mapping[str, str] = field(default_factory=lambda: {"text": "text", "response": "number"})  # of tables
    unit: str = "period"  # what a period is: year, quarter, month, week, day
    notes: tuple[str, ...] = ()  # lines for the user about what was read

    def __post_init__(self) -> None:
        if len(self.periods) < 3:
            raise UserError(
                f"{self.name}: the items lie in {len(self.periods)} period{'s' * (len(self.periods) != 1)}, expected "
                "at least 3: two to train on and one to forecast; choose a shorter data.period"
            )
        first_held = self.train_periods
        if first_held < 2:
            raise UserError(
                f"{self.name}: {len(self.periods)} periods leave {max(first_held, 0)} to train on, expected at least "
                "2; lower data.test and data.dev, or choose a shorter data.period"
            )

        if SPARSEST * len(self) < len(self.periods):
            raise UserError(
                f"{self.name}: {len(self):,} items in {len(self.periods):,} periods (data.period={self.unit}), "
                f"expected at least one for {SPARSEST} periods; choose a longer data.period"
            )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def train_periods(self) -> int:
        """Dated corpus: the number of periods that are trained on, the first ones."""
        return self._begin("test" if self.held_out.join_dev else "dev")

    def _begin(self, part: str) -> int:
        """Dated corpus: the first period of dev or test; only periods with items count as held out."""
        filled, held = np.unique(self.period), self.held_out
        count = held.test + (held.dev if part == "dev" else 0)
        return int(filled[-count]) if count <= len(filled) else 0

    def parts(self) -> dict[str, np.ndarray]:
        """Dated corpus: the numbers of the items of train, dev and test, in ascending order.

        An item whose response becomes known only when test begins is not trained on: it would tell the future."""
        dev, test, period = self._begin("dev"), self._begin("test"), self.period
        known = period if self.known is None else np.maximum(period, self.known)
        masks = {"train": known < self.train_periods, "dev": (period >= dev) & (period < test), "test": period >= test}
        parts = {part: np.flatnonzero(mask) for part, mask in masks.items()}
        for part, chosen in parts.items():
            if len(chosen) == 0:
                raise UserError(f"{self.name}: {part} has no items; change data.test, data.dev or data.period")
        return parts

    def describe(self) -> list[str]:
        """Console lines on a dated corpus."""
        counts = np.bincount(self.period, minlength=len(self.periods))
        spread = f"{counts.min():,} to {counts.max():,} in each"
        span = self._span(0, len(self.periods))
        lines = [f"{len(self):,} items in {len(self.periods):,} periods ({span}), {spread}"]
        test = self._begin("test")
        last = self.periods[self.train_periods - 1]
        lines.append(f"trained on {self.periods[0]} to {last}, tested on {self._span(test, len(self.periods))}")
        if self.known is not None:
            late = int(((self.period < self.train_periods) & (self.known >= self.train_periods)).sum())
            lines.append(f"{late:,} items not trained on, whose responses become known only after {last}")
        return [*lines, *self.notes]

    def _span(self, begin: int, end: int) -> str:
        """Dated corpus: the names of the first and the last of some periods."""
        return self.periods[begin] if end == begin + 1 else f"{self.periods[begin]} to {self.periods[end - 1]}"
