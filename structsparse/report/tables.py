"""Tables of results, rendered as tab-separated values, as Markdown or for the console; means with standard errors."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from rich.table import Table as RichTable

_LEFT = ("group", "lives", "planted")  # columns that are aligned to the left on the console


class Table(NamedTuple):
    """Header and rows of a table of results."""

    header: tuple[str, ...]
    rows: list[tuple]


def cell(value: object) -> str:
    """The text of a table cell: floats to four digits, integers with separated thousands."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell(v).replace("|", "\\|") for v in line) + " |" for line in lines) + "\n"


def tsv(table: Table) -> str:
    """A table as tab-separated values, with all digits of its numbers."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def console_table(table: Table, title: str, most: int = 25) -> RichTable:
    """A table for the console with its first `most` rows."""
    result = RichTable(title=title, title_justify="left")
    for name in table.header:
        result.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in table.rows[:most]:
        result.add_row(*(cell(value) for value in row))
    if len(table.rows) > most:
        result.caption = f"{len(table.rows) - most} more in the report"
    return result


def without_empty_columns(table: Table) -> Table:
    """A table of strings without the columns that are empty in every row; the first column always stays."""
    columns = [k for k in range(len(table.header)) if k == 0 or any(row[k] for row in table.rows)]
    return Table(tuple(table.header[k] for k in columns), [tuple(row[k] for k in columns) for row in table.rows])


class Mean(NamedTuple):
    """The mean of a figure over runs, with its standard error (NaN for a single run)."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean:
        """The mean of the values that are not None."""
        numbers = np.array([value for value in values if value is not None], float)
        if len(numbers) == 0:
            return cls(math.nan, math.nan, 0)
        error = numbers.std(ddof=1) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
        return cls(float(numbers.mean()), float(error), len(numbers))

    def text(self, digits: int, scale: float = 1.0) -> str:
        """The mean and its standard error as a table cell, such as 93.42 ± 0.08; empty without a value."""
        if self.count == 0:
            return ""
        error = "" if math.isnan(self.error) else f" ± {self.error * scale:,.{digits}f}"
        return f"{self.mean * scale:,.{digits}f}{error}"

    def signed(self, digits: int, scale: float = 1.0) -> str:
        """The mean of a difference as a table cell with its sign, such as +1.18 ± 0.27."""
        text = self.text(digits, scale)
        return text if not text or text.startswith("-") else f"+{text}"
