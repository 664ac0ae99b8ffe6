"""Tables of results, rendered as tab-separated values, as Markdown or for the console; means with standard errors."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from structsparse.base.files import write_text

_LEFT = ("group", "lives", "planted")  # columns that are aligned to the left on the console


class Table(NamedTuple):
    """Header and rows of a table of results."""

    header: tuple[str, ...]
    rows: list[tuple]


def cell(value: object) -> str:
    """A table cell for people: floats to four digits, integers with thousands separated."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell(v).replace("|", "\\|") for v in line) + " |" for line in lines) + "\n"


def tsv(table: Table) -> str:
    """A table as tab-separated values, its numbers in full."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def console_table(table: Table, title: str, most: int = 25) -> RichTable:
    """A table for the console; of more than `most` rows the first ones."""
    result = RichTable(title=title, title_justify="left")
    for name in table.header:
        result.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in table.rows[:most]:
        result.add_row(*(cell(value) for value in row))
    if len(table.rows) > most:
        result.caption = f"{len(table.rows) - most} more in the report"
    return result


def without_empty_columns(table: Table) -> Table:
    """The first column of a table of strings, and those of the others that are not empty in every row."""
    columns = [k for k in range(len(table.header)) if k == 0 or any(row[k] for row in table.rows)]
    return Table(tuple(table.header[k] for k in columns), [tuple(row[k] for k in columns) for row in table.rows])


class Mean(NamedTuple):
    """Mean of a figure over runs, with its standard error (NaN for a single run)."""

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
        """As a table cell, such as 93.42 ± 0.08; empty without a value."""
        if self.count == 0:
            return ""
        error = "" if math.isnan(self.error) else f" ± {self.error * scale:,.{digits}f}"
        return f"{self.mean * scale:,.{digits}f}{error}"

    def signed(self, digits: int, scale: float = 1.0) -> str:
        """A difference as a table cell, such as +1.18 ± 0.27."""
        text = self.text(digits, scale)
        return text if not text or text.startswith("-") else f"+{text}"


# --- until training/finish.py has them


def write_metrics(path: Path, metrics: Mapping[str, object]) -> None:
    """Write metrics.json: one flat object; numbers that are not finite become null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in metrics.items()
    }
    write_text(path, json.dumps(finite, indent=2, ensure_ascii=False) + "\n")


def summary(console: Console, metrics: Mapping[str, object], table: Table | None, folder: Path) -> None:
    """Print the summary of a run: its living groups, its figures, its folder."""
    if table is not None and "lives" not in table.header:
        console.print(console_table(table, "what lives"))
    elif table is not None:
        lives = table.header.index("lives")
        without = [row[:lives] + row[lives + 1 :] for row in [table.header, *table.rows] if row[lives] != "no"]
        living = Table(without[0], without[1:])
        alive, every = (metrics.get(key) for key in ("groups_alive", "groups"))  # the table may have a few of very many
        title = f"living groups: {alive or len(living.rows):,} of {every or len(table.rows):,}"
        console.print(console_table(living, title))
    if table is not None and "would wake" in table.header:
        column = table.header.index("would wake")
        names = [row[0] for row in table.rows if row[column] == "yes"]
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        console.print(f"{len(names)} groups are dead only by budget or noise, the gradient would wake them: {listed}")
    result = RichTable(title="result", title_justify="left", show_header=False)
    for key, value in metrics.items():
        if value is not None:
            result.add_row(key, cell(value))
    console.print(result)
    console.print(f"everything is in [bold]{folder}[/bold]; look with: tensorboard --logdir {folder}", soft_wrap=True)


_MOVED = {"group_table", "MOST_GROUPS", "write_groups", "Groups"}


def __getattr__(name: str):
    from structsparse.report import living_groups

    if name in _MOVED:
        return getattr(living_groups, name)
    if name in ("norms_over_time", "living_groups"):
        return {"norms_over_time": living_groups.norm_heatmap, "living_groups": living_groups.norm_bars}[name]
    raise AttributeError(name)
