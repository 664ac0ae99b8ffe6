"""Your own documents with labels: a folder of folders, or a table of CSV, TSV or JSON lines."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Documents, Labelled, Reading, tokenize
from structsparse.corpora.known.texts import found
from structsparse.corpora.parses import with_parses
from structsparse.corpora.splits import PARTS, completed

TABLES = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": ""}


@dataclass
class Raw:
    """Documents as read, with the names of their classes, or numbers."""

    names: list[str] = field(default_factory=list)  # a file, or file:line
    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def add(self, name: str, text: str, label: str) -> None:
        self.names.append(name)
        self.texts.append(text)
        self.labels.append(label)

    def only(self, labels: Sequence[str]) -> Raw:
        """The documents with these labels."""
        kept = [k for k, label in enumerate(self.labels) if label in labels]
        return Raw(*([column[k] for k in kept] for column in (self.names, self.texts, self.labels)))


def documents(
    train: str,
    dev: str | None,
    test: str | None,
    text: str,
    label: str,
    numbers: bool,
    classes: Sequence[str] | None,
    tokens: str,
    lower: bool,
    language: str,
    parses: Mapping[str, str] | None,
    held_out: float,
    split: int,
    unlabelled: str | None,
) -> Labelled:
    """Folders or tables of documents. Of dev and test, what has no file is drawn from train."""
    reading = Reading(tokens, lower, language)
    given = {part: path for part, path in zip(PARTS, (train, dev, test), strict=True) if path is not None}
    raw = {part: read(found(path), text, label) for part, path in given.items()}
    parts = assembled(raw, numbers, classes, reading, parses)
    parts = completed(parts, held_out, split, "documents")
    further = () if unlabelled is None else texts_of(found(unlabelled))
    return Labelled("documents", *(parts[part] for part in PARTS), reading=reading, unlabelled=further)


def read(path: Path, text: str = "text", label: str = "label") -> Raw:
    """A folder of folders, named after their labels, or a table with a column of texts and one of labels."""
    raw = Raw()
    if path.is_dir():
        for name, content, kind in _folder(path):
            raw.add(name, content, kind)
    else:
        for line, row in _rows(path, _format(path), (text, label)):
            raw.add(f"{path}:{line}", row[text], row[label])
    if not raw.names:
        raise UserError(f"{path}: has no documents, expected some")
    return raw


def assembled(
    raw: Mapping[str, Raw],
    numbers: bool,
    classes: Sequence[str] | None,
    reading: Reading,
    parses: Mapping[str, str] | None = None,
) -> dict[str, Documents]:
    """The parts of a corpus, tokenized at once. `classes` are those to keep, in their order; without them all of train
    in alphabetical order, numbers by size."""
    for part in set(parses or {}) - set(raw):
        raise UserError(f"data.parses has {part}, which is drawn from train; expected only {', '.join(raw)}")
    if numbers and classes is not None:
        raise UserError("data.classes names classes where data.numbers=true asks for numbers; leave out one of them")
    if classes is not None:
        raw = {part: documents.only(list(map(str, classes))) for part, documents in raw.items()}
    names = None if numbers else _classes(raw["train"], classes)
    every = Raw(*(sum((getattr(part, key) for part in raw.values()), []) for key in ("names", "texts", "labels")))
    labels = _numbers(every) if numbers else _codes(every, names)
    whole = tokenize(every.names, every.texts, labels, names, reading)
    bounds = np.concatenate([[0], np.cumsum([len(part.names) for part in raw.values()])])
    parts = {part: whole.select(np.arange(*bounds[k : k + 2])) for k, part in enumerate(raw)}
    return {
        part: with_parses(documents, found(parses[part])) if part in (parses or {}) else documents
        for part, documents in parts.items()
    }


def decoded(data: bytes) -> str:
    """Text in UTF-8 if it is that, else in Latin-1; lines end with \\n."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n")


def files_of(folder: Path) -> list[Path]:
    """The files of a folder by name, hidden ones left out."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def content_of(path: Path) -> str:
    """The text of a file, plain or gzipped."""
    try:
        data = path.read_bytes()
        return decoded(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except (EOFError, gzip.BadGzipFile):
        raise UserError(f"{path}: the compressed file is cut short or damaged") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}, expected a readable file") from None


def texts_of(path: Path) -> tuple[str, ...]:
    """A file, or all files of a folder and of the folders in it: a text each."""
    if not path.is_dir():
        return (content_of(path),)
    every = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    if not every:
        raise UserError(f"{path}: has no files, expected texts")
    return tuple(map(content_of, every))


def _folder(path: Path) -> Iterator[tuple[str, str, str]]:
    folders = sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    if not folders:
        raise UserError(f"{path}: has no folders, expected one for each label, with a file for each document")
    for folder in folders:
        for file in files_of(folder):
            yield str(file), content_of(file), folder.name


def _format(path: Path) -> str:
    """Between the columns of a table; nothing for JSON lines."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in TABLES:
        raise UserError(f"{path}: expected a folder, or a file that ends with {', '.join(TABLES)}, perhaps with .gz")
    return TABLES[suffix.lower()]


def _rows(path: Path, delimiter: str, wanted: tuple[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The line where each row begins, and the columns wanted of it."""
    content = content_of(path)
    rows = _delimited(path, content, delimiter) if delimiter else _json_lines(path, content)
    for line, row in rows:
        for key in wanted:
            if row.get(key) is None:
                raise UserError(
                    f"{path}, line {line}: has no {key!r} ({_listed(row)}); expected the columns of data.text and "
                    "data.label"
                )
        yield line, {key: row[key] for key in wanted}


def _delimited(path: Path, content: str, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(1 << 30)  # bytes of a document
    quoting = csv.QUOTE_MINIMAL if delimiter == "," or '\t"' in content else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    line = 1
    try:
        header = next(reader, [])
        for fields in reader:
            line, before = reader.line_num, line
            if not fields:
                continue
            if len(fields) != len(header):
                found = f"{len(fields)} column{'s' * (len(fields) != 1)}"
                raise UserError(f"{path}, line {before + 1}: {found}, expected {len(header)} as in the first line")
            yield before + 1, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {line + 1}: {error}, expected a table") from None


def _json_lines(path: Path, content: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: {error}, expected a JSON object") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: {type(row).__name__}, expected a JSON object")
        yield number, {key: _spelled(value) for key, value in row.items()}


def _spelled(value: object) -> str | None:
    """A JSON value as a table would have it; None for what is no text and no number."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value) if isinstance(value, (int, float)) else None


def _classes(train: Raw, wanted: Sequence[str] | None) -> tuple[str, ...]:
    there = set(train.labels)
    if wanted is None:
        names = sorted(there, key=int if all(_is_integer(name) for name in there) else None)
    else:
        names = [str(name) for name in wanted]
        missing = [name for name in names if name not in there]
        if missing:
            raise UserError(f"data.classes has {', '.join(missing)}, which no document of train has")
    if len(names) < 2:
        raise UserError(f"all documents of train are {''.join(names) or 'left out'}, expected at least two classes")
    return tuple(names)


def _is_integer(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _codes(raw: Raw, classes: tuple[str, ...]) -> np.ndarray:
    code = {name: k for k, name in enumerate(classes)}
    for name, label in zip(raw.names, raw.labels, strict=True):
        if label not in code:
            raise UserError(
                f"{_place(name)}: label {label!r} is in no document of train, expected one of {_listed(classes)}; "
                "data.classes=[...] leaves out the others"
            )
    return np.array([code[label] for label in raw.labels], np.int64)


def _numbers(raw: Raw) -> np.ndarray:
    numbers = np.zeros(len(raw.labels))
    for k, label in enumerate(raw.labels):
        try:
            numbers[k] = float(label)
        except ValueError:
            numbers[k] = np.nan
        if not np.isfinite(numbers[k]):
            raise UserError(f"{_place(raw.names[k])}: label {label!r}, expected a number (data.numbers=true)")
    return numbers


def _place(name: str) -> str:
    """file:line as other errors write it."""
    path, colon, line = name.rpartition(":")
    return f"{path}, line {line}" if colon and line.isdecimal() else name


def _listed(names: Mapping[str, object] | Sequence[str]) -> str:
    names = list(names)
    return ", ".join(names[:10]) + (f", ... ({len(names)})" if len(names) > 10 else "")
