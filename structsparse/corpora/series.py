"""Series of dated numbers, such as interest rates: CSV files with a line DATE,VALUE for each date.

A value is joined to a date by what was known then: the last value whose date, and the lag until it is published, lie
before or on it. A value from later is never used."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.document_files import table_rows

STALE = 400  # days after which the last value of a series does not tell the present


@dataclass(frozen=True, eq=False)
class Series:
    """A series of numbers by day, sorted by date."""

    path: Path
    days: np.ndarray  # int64, ordinals of dates, ascending
    values: np.ndarray  # float64

    def known(self, day: int, lag: int = 0) -> float:
        """Series of numbers: the last value known on a day; values become known `lag` days after their dates."""
        place = int(np.searchsorted(self.days, day - lag, side="right")) - 1
        shown = datetime.date.fromordinal(day).isoformat()
        late = f", which become known {lag} days later" if lag else ""
        if place < 0:
            first = datetime.date.fromordinal(int(self.days[0])).isoformat()
            raise UserError(f"{self.path}: its values begin on {first}{late}, so none is known on {shown}")
        if day - lag - self.days[place] > STALE:
            last = datetime.date.fromordinal(int(self.days[place])).isoformat()
            raise UserError(f"{self.path}: its last value before {shown} is that of {last}, more than {STALE} days old")
        return float(self.values[place])

    def last_day(self) -> int:
        """Series of numbers: the ordinal of its last date."""
        return int(self.days[-1])


def read_series(path: Path) -> Series:
    """Read a series of numbers from a CSV file, whose two columns are a date and a value, with a header."""
    days, values = [], []
    for line, row in table_rows(path):
        cells = [*row.values()]
        if len(cells) != 2:
            raise UserError(f"{path}, line {line}: {len(cells)} columns, expected two: a date and a value")
        days.append(parsed(cells[0], None, f"{path}, line {line}"))
        values.append(_number(cells[1], f"{path}, line {line}"))
    if not days:
        raise UserError(f"{path}: has no values, expected lines DATE,VALUE below a header")
    order = np.argsort(days, kind="stable")
    days_sorted = np.array(days, np.int64)[order]
    twice = np.flatnonzero(np.diff(days_sorted) == 0)
    if len(twice):
        date = datetime.date.fromordinal(int(days_sorted[twice[0]])).isoformat()
        raise UserError(f"{path}: has two values for {date}, expected one for each date")
    return Series(path, days_sorted, np.array(values)[order])


def _number(cell: str | None, where: str) -> float:
    """A value of a series, which must be a finite number."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: the value {cell!r}, expected a number; leave out lines without a value")
    return value


# --- dates

FORMS = (("%Y-%m-%d", 10), ("%Y%m%d", 8), ("%Y-%m", 7), ("%Y", 4))  # formats without option, and their lengths


def parsed(cell: str | None, form: str | None, where: str) -> int:
    """The ordinal of a date. Without a format, it is YYYY-MM-DD, YYYYMMDD, YYYY-MM or YYYY."""
    text = "" if cell is None else str(cell).strip()
    fitting = [form] if form else [known for known, length in FORMS if len(text) == length]
    for candidate in fitting:
        try:
            return datetime.datetime.strptime(text, candidate).date().toordinal()
        except ValueError:
            continue
    expected = (
        f"as data.date_format={form}" if form else "YYYY-MM-DD, YYYYMMDD, YYYY-MM or YYYY, or set data.date_format"
    )
    raise UserError(f"{where}: the date {text!r}, expected {expected}")


def precision(cell: str, form: str | None) -> str:
    """What a date tells: day, month or year."""
    if form:
        return "day" if any(part in form for part in ("%d", "%j", "%x", "%c")) else "month" if "%m" in form else "year"
    return {4: "year", 7: "month"}.get(len(str(cell).strip()), "day")


# --- periods

UNITS = ("year", "quarter", "month", "week", "day")


def period_of(day: int, unit: str) -> int:
    """The number of the period that a day lies in; periods that follow each other have numbers that do."""
    date = datetime.date.fromordinal(day)
    if unit == "year":
        return date.year
    if unit == "quarter":
        return 4 * date.year + (date.month - 1) // 3
    if unit == "month":
        return 12 * date.year + date.month - 1
    return (day - 1) // 7 if unit == "week" else day


def period_name(number: int, unit: str) -> str:
    """The name of a period, such as 2004, 2004Q1, 2004-01, 2004-W05, 2004-01-31."""
    if unit == "year":
        return f"{number:04d}"
    if unit == "quarter":
        return f"{number // 4:04d}Q{number % 4 + 1}"
    if unit == "month":
        return f"{number // 12:04d}-{number % 12 + 1:02d}"
    date = datetime.date.fromordinal(7 * number + 1 if unit == "week" else number)
    return f"{date.isocalendar().year:04d}-W{date.isocalendar().week:02d}" if unit == "week" else date.isoformat()


def too_fine(precision_: str, unit: str) -> bool:
    """Whether periods are shorter than what dates of some precision tell."""
    finest = {"year": 0, "month": 2, "day": 4}[precision_]
    return UNITS.index(unit) > finest
