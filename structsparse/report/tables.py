"""Report tables: results as tab-separated values, as Markdown or for the console; means with standard errors."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from rich.table import Table as RichTable

_LEFT = ("group", "lives", "planted")  # header names of columns that are aligned to the left on the console


class Table(NamedTuple):
    """Report table of results: the header and the rows."""

    header: tuple[str, ...]
    rows: list[tuple]


def cell(value: object) -> str:
    """Report table: the text of a cell, with four digits for floats and separated thousands for integers."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(table: Table) -> str:
    """The text of a report table in Markdown."""
    lines = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell(v).replace("|", "\\|") for v in line) + " |" for line in lines) + "\n"


def tsv(table: Table) -> str:
    """The text of a report table as tab-separated values; numbers have all digits."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def console_table(table: Table, title: str, most: int = 25) -> RichTable:
    """The report table for the console, with at most the first `most` rows."""
    result = RichTable(title=title, title_justify="left")
    for name in table.header:
        result.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in table.rows[:most]:
        result.add_row(*(cell(value) for value in row))
    if len(table.rows) > most:
        result.caption = f"{len(table.rows) - most} more in the report"
    return result


def without_empty_columns(table: Table) -> Table:
    """The report table without columns that are empty in every row; the first column always stays.

    All cells must be strings."""
    columns = [k for k in range(len(table.header)) if k == 0 or any(row[k] for row in table.rows)]
    return Table(tuple(table.header[k] for k in columns), [tuple(row[k] for k in columns) for row in table.rows])


class Mean(NamedTuple):
    """Report tables: the mean of a result over runs, with its standard error (NaN for a single run)."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean:
        """Report tables: the mean over runs of the values that are not None, with standard error and count."""
        numbers = np.array([value for value in values if value is not None], float)
        if len(numbers) == 0:
            return cls(math.nan, math.nan, 0)
        error = numbers.std(ddof=1) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
        return cls(float(numbers.mean()), float(error), len(numbers))

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Report tables: the mean and its standard error as a cell, such as 93.42 ± 0.08; empty without a value."""
        if self.count == 0:
            return ""
        error = "" if math.isnan(self.error) else f" ± {self.error * scale:,.{digits}f}"
        return f"{self.mean * scale:,.{digits}f}{error}"

    def signed(self, digits: int, scale: float = 1.0) -> str:
        """Report tables: the mean of a difference as a cell with a sign, such as +1.18 ± 0.27."""
        text = self.text(digits, scale)
        return text if not text or text.startswith("-") else f"+{text}"
