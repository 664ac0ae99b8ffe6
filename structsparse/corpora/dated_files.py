"""Files of dated items: tables with columns of texts, dates, numbers and effects, or folders of dated text files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from structsparse.base.downloads import find_path
from structsparse.base.errors import UserError
from structsparse.corpora.dated import DatedCorpus, HeldOut
from structsparse.corpora.document_files import content_of, table_rows
from structsparse.corpora.documents import DocumentReading, tokenize
from structsparse.corpora.series import UNITS, parsed, period_name, period_of, precision, read_series, too_fine

IN_NAME = r"(\d{4}-\d{2}-\d{2}|\d{8}|\d{4})"  # the first date in a file name


@dataclass
class RawItems:
    """Dated items as read from files: the cells of columns, by item."""

    names: list[str] = field(default_factory=list)  # of items, for messages: "file, line 7", or a file
    rows: list[Mapping[str, str | None]] = field(default_factory=list)
    days: list[int] = field(default_factory=list)  # ordinals of dates

    def add(self, name: str, row: Mapping[str, str | None], day: int) -> None:
        """Append a dated item."""
        self.names.append(name)
        self.rows.append(row)
        self.days.append(day)

    def only(self, chosen: Sequence[int]) -> RawItems:
        """Select some dated items."""
        return RawItems(*([column[k] for k in chosen] for column in (self.names, self.rows, self.days)))


@dataclass(frozen=True)
class DatedOptions:
    """Options of dated items, see conf/data/dated.yaml."""

    text: str | None
    date: str
    date_format: str | None
    response: str | None
    classes: Sequence[str] | None
    effects: Sequence[str]
    series: Sequence[str]
    lag: int
    response_series: Mapping[str, object] | None
    period: str
    until: str | int | None
    min_documents: int
    min_words: int
    test: int
    dev: int
    join_dev: bool
    tokens: str
    lower: bool

    def __post_init__(self) -> None:
        if self.period not in UNITS:
            raise UserError(f"data.period is {self.period!r}, expected one of {', '.join(UNITS)}")
        for name, number in (("lag", self.lag), ("min_words", self.min_words), ("min_documents", self.min_documents)):
            if type(number) is not int or number < 0:
                extra = "; a series value would be used before it was known" if name == "lag" else ""
                raise UserError(f"data.{name} is {number}, expected a number of at least 0{extra}")
        if self.response is not None and self.response_series is not None:
            raise UserError("data.response names a column and data.response_series a file; set one of them to null")
        if self.classes is not None and len({*map(str, self.classes)}) != 2:
            raise UserError(f"data.classes is {list(self.classes)}, expected two classes; several are not supported")


# --- reading


def table_items(path: Path, options: DatedOptions) -> RawItems:
    """Read dated items from a table in CSV, TSV or JSON lines."""
    items = RawItems()
    columns = [options.date, *options.effects]
    columns += [name for name in (options.text, options.response) if name is not None]
    for line, row in table_rows(path):
        missing = next((name for name in columns if row.get(name) is None), None)
        if missing is not None:
            raise UserError(
                f"{path}, line {line}: has no {missing!r} ({', '.join([*row][:10])}); expected the columns of "
                "data.date, data.text, data.response and data.effects (text or response may be null)"
            )
        cell, where = row[options.date], f"{path}, line {line}, column {options.date!r}"
        items.add(f"{path}, line {line}", row, _day(cell, options, where))
    if not items.names:
        raise UserError(f"{path}: has no items, expected rows with dates")
    return items


def folder_items(folder: Path, options: DatedOptions) -> RawItems:
    """Read dated items from all text files below a folder, whose names contain their dates."""
    pattern = options.date if "(" in options.date else IN_NAME
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise UserError(f"data.date={pattern}: {error}, expected a regular expression with a group") from None
    items = RawItems()
    for file in sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")):
        found = search(file.name)
        if found is None:
            raise UserError(f"{file}: its name has no date that matches {pattern} (data.date)")
        items.add(str(file), {options.text or "text": content_of(file)}, _day(found[1], options, f"{file}, its name"))
    if not items.names:
        raise UserError(f"{folder}: has no files, expected texts with dates in their names")
    if options.effects or options.response is not None:
        raise UserError(
            f"{folder}: a folder of texts has no columns; set data.response=null (words are forecast) or "
            "data.response_series, and leave out data.effects"
        )
    return items


def _day(cell: str | None, options: DatedOptions, where: str) -> int:
    """The ordinal of the date in a cell; periods must not be shorter than the date tells."""
    day = parsed(cell, options.date_format, where)
    told = precision(cell, options.date_format)
    if too_fine(told, options.period):
        raise UserError(f"{where}: the date {cell!r} tells the {told} alone; data.period={options.period} is too short")
    return day


# --- from items to a corpus


def corpus_of(name: str, items: RawItems, options: DatedOptions) -> DatedCorpus:
    """Make a dated corpus from items as read from files: periods, responses, effects and texts."""
    reading, notes = DocumentReading(options.tokens, options.lower), []
    items, documents = _texts(items, options, reading, notes)
    if not items.names:
        raise UserError(f"{name}: every text has fewer than data.min_words={options.min_words} words; lower it")
    numbers = np.array([period_of(day, options.period) for day in items.days])
    if options.until is not None:
        early = np.flatnonzero([period_name(k, options.period) <= str(options.until) for k in numbers.tolist()])
        if len(early) == 0:
            raise UserError(f"{name}: no item lies in data.until={options.until} or before; the first is in "
                            f"{period_name(int(numbers.min()), options.period)}")  # fmt: skip
        items, numbers = items.only(early.tolist()), numbers[early]
        documents = None if documents is None else documents.select(early)
    first = int(numbers.min())
    periods = tuple(period_name(k, options.period) for k in range(first, int(numbers.max()) + 1))
    response, known = _response(items, options)
    kept = np.flatnonzero(np.isfinite(response)) if response is not None else np.arange(len(numbers))
    if len(kept) < len(numbers):
        notes.append(f"{len(numbers) - len(kept):,} items left out, whose response lies after the end of its series")
    effects, values = _effects(items, options)
    order = kept[np.argsort(numbers[kept], kind="stable")]
    counts = np.bincount(numbers[order] - first, minlength=len(periods))
    few = np.flatnonzero((counts > 0) & (counts < options.min_documents))
    if len(few):
        raise UserError(
            f"{name}: {periods[few[0]]} has {counts[few[0]]} items, expected at least data.min_documents="
            f"{options.min_documents} in each period with items; lower it, or choose a longer data.period"
        )
    return DatedCorpus(
        name=name,
        names=[items.names[k] for k in order.tolist()],
        period=numbers[order] - first,
        periods=periods[: int((numbers[order] - first).max()) + 1],
        held_out=HeldOut(options.test, options.dev, options.join_dev),
        response=None if response is None else response[order],
        classes=None if options.classes is None else tuple(map(str, options.classes)),
        documents=None if documents is None else documents.select(order),
        reading=reading,
        effects=effects,
        values=values[order],
        known=None if known is None else np.array([period_of(day, options.period) - first for day in known[order]]),
        columns={"text": options.text or "text", "response": options.response or "response"},
        unit=options.period,
        notes=tuple(notes),
    )


def _texts(items: RawItems, options: DatedOptions, reading: DocumentReading, notes: list[str]):
    """Split the texts of items into words; shorter texts than `min_words` are left out, with their items."""
    if options.text is None:
        return items, None
    texts = [row[options.text] for row in items.rows]
    documents = tokenize(items.names, texts, np.zeros(len(texts)), None, reading)
    long = np.flatnonzero(documents.lengths >= options.min_words)
    if len(long) == len(texts):
        return items, documents
    notes.append(f"{len(texts) - len(long):,} texts left out, which have fewer than {options.min_words} words")
    return items.only(long.tolist()), documents.select(long)


def _response(items: RawItems, options: DatedOptions) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The responses of items, and the days when they are known; no days for responses known at once.

    A response after the end of its series is NaN."""
    if options.response_series is not None:
        return _changes(items, options.response_series)
    if options.response is None:
        return None, None
    cells = [row[options.response] for row in items.rows]
    where = zip(items.names, cells, strict=True)
    if options.classes is not None:
        names = [*map(str, options.classes)]
        wrong = next((pair for pair in where if pair[1] not in names), None)
        if wrong is not None:
            raise UserError(f"{wrong[0]}: the response {wrong[1]!r}, expected one of data.classes, {', '.join(names)}")
        return np.array([float(names.index(cell)) for cell in cells]), None
    return np.array([_number(cell, f"{name}: the response") for name, cell in where]), None


def _changes(items: RawItems, options: Mapping[str, object]) -> tuple[np.ndarray, np.ndarray]:
    """Responses that are changes of a series over so many days after each item's date; NaN after its end."""
    if {*options} != {"file", "days"} or type(options["days"]) is not int or options["days"] < 1:
        raise UserError(
            f"data.response_series is {dict(options)}, expected {{file: FILE, days: a number of at least 1}}"
        )
    series, days = read_series(find_path(str(options["file"]))), np.array(items.days)
    later = days + options["days"]
    ends = series.last_day()
    pairs = zip(days.tolist(), later.tolist(), strict=True)
    return np.array([series.known(b) - series.known(a) if b <= ends else np.nan for a, b in pairs]), later


def _effects(items: RawItems, options: DatedOptions) -> tuple[tuple[str, ...], np.ndarray]:
    """The columns of effects: numbers, indicators of values (`column=value`), and the series known at each date."""
    names, columns = [], []
    for effect in options.effects:
        cells = [row[effect] for row in items.rows]
        if all(_is_number(cell) for cell in cells):
            names.append(effect)
            columns.append(np.array([_number(cell, effect) for cell in cells]))
            continue
        several = [{part.strip() for part in cell.split(";")} - {""} for cell in cells]
        for value in sorted(set().union(*several)):
            names.append(f"{effect}={value}")
            columns.append(np.array([float(value in of) for of in several]))
    for file in options.series:
        series = read_series(find_path(str(file)))
        names.append(series.path.stem)
        dates = zip(items.days, items.names, strict=True)
        columns.append(np.array([_joined(series, day, options.lag, item) for day, item in dates]))
    return tuple(names), np.column_stack(columns) if columns else np.zeros((len(items.names), 0))


def _joined(series, day: int, lag: int, name: str) -> float:
    """The value of a series that was known at the date of an item; the error names the item."""
    try:
        return series.known(day, lag)
    except UserError as error:
        raise UserError(f"{error} ({name})") from None


def _is_number(cell: str) -> bool:
    """Whether the cell of an effect is a finite number."""
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _number(cell: str, where: str) -> float:
    """A cell as a finite number."""
    if not _is_number(cell):
        raise UserError(f"{where} is {cell!r}, expected a number")
    return float(cell)
