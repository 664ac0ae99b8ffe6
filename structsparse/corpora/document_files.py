"""Files of labelled documents: a folder with one folder per label, or a table in CSV, TSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from structsparse.base.downloads import find_path
from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import read_gunzipped
from structsparse.corpora.documents import DocumentReading, Documents, DocumentSplits, tokenize
from structsparse.corpora.parses import with_parses
from structsparse.corpora.splits import PARTS, completed

# separator of columns for each file suffix; empty for JSON lines
SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": ""}


@dataclass
class RawDocuments:
    """Labelled documents as read from files: names, texts, and labels as strings."""

    names: list[str] = field(default_factory=list)  # the file of each document; for a table, file:line
    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def add(self, name: str, text: str, label: str) -> None:
        """Append a document read from a file, with its name, text and label."""
        self.names.append(name)
        self.texts.append(text)
        self.labels.append(label)

    @classmethod
    def concatenated(cls, parts: Iterable[RawDocuments]) -> RawDocuments:
        """Concatenate the raw documents of several files or folders."""
        columns = ((part.names, part.texts, part.labels) for part in parts)
        return cls(*(list(chain(*column)) for column in zip(*columns, strict=True)))

    def only(self, labels: Sequence[str]) -> RawDocuments:
        """Select the raw documents whose label is one of `labels`."""
        chosen = [k for k, label in enumerate(self.labels) if label in labels]
        return RawDocuments(*([column[k] for k in chosen] for column in (self.names, self.texts, self.labels)))


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
) -> DocumentSplits:
    """Read labelled documents from the user's files, as train, dev and test (data=documents).

    `text` and `label` name the columns of a table. A missing dev or test part is drawn from train: `held_out` is the
    share of train that is drawn, and `split` is the random seed. `parses` maps train, dev or test to a file of parse
    trees. `unlabelled` is a file or folder of texts without labels, from which word clusters are learnt."""
    reading = DocumentReading(tokens, lower, language)
    paths = {part: path for part, path in zip(PARTS, (train, dev, test), strict=True) if path is not None}
    raw = {part: read(find_path(path), text, label) for part, path in paths.items()}
    parts = assembled(raw, numbers, classes, reading, parses)
    parts = completed(parts, held_out, split, "documents")
    texts = () if unlabelled is None else texts_of(find_path(unlabelled))
    return DocumentSplits("documents", *(parts[part] for part in PARTS), reading=reading, unlabelled=texts)


# --- reading


def read(path: Path, text: str = "text", label: str = "label") -> RawDocuments:
    """Read labelled documents from a table file, or from a folder that has a folder for each label.

    A table has a column of texts named `text` and a column of labels named `label`."""
    raw = RawDocuments()
    if path.is_dir():
        for name, content, kind in _folder(path):
            raw.add(name, content, kind)
    else:
        for line, row in _rows(path, _separator(path), (text, label)):
            raw.add(f"{path}:{line}", row[text], row[label])
    if not raw.names:
        raise UserError(f"{path}: has no documents, expected some")
    return raw


def content_of(path: Path) -> str:
    """The text of a document file, plain or gzipped, in UTF-8 or else Latin-1.

    Windows line ends (\\r\\n) become \\n."""
    data = read_gunzipped(path, "a readable file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n")


def files_of(folder: Path) -> list[Path]:
    """The document files of a folder, sorted by name; hidden files are left out."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def texts_of(path: Path) -> tuple[str, ...]:
    """Texts without labels: the text of a document file, or of each file below a folder."""
    if not path.is_dir():
        return (content_of(path),)
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise UserError(f"{path}: has no files, expected texts")
    return tuple(map(content_of, files))


def _folder(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (name, text, label) of each document file in a folder that has a folder for each label."""
    folders = sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    if not folders:
        raise UserError(f"{path}: has no folders, expected one for each label, with a file for each document")
    for folder in folders:
        for file in files_of(folder):
            yield str(file), content_of(file), folder.name


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield the rows of a table file: the line number where a row begins, and {column: cell}."""
    separator, content = _separator(path), content_of(path)
    yield from _separated(path, content, separator) if separator else _json_lines(path, content)


def _separator(path: Path) -> str:
    """The separator of columns in a table file of documents, by the file suffix; empty for JSON lines."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in SEPARATORS:
        endings = ", ".join(SEPARATORS)
        raise UserError(f"{path}: expected a folder, or a file that ends with {endings}, perhaps with .gz")
    return SEPARATORS[suffix.lower()]


def _rows(path: Path, separator: str, columns: tuple[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table file of documents: the line number where a row begins, the text and the label."""
    content = content_of(path)
    rows = _separated(path, content, separator) if separator else _json_lines(path, content)
    for line, row in rows:
        for column in columns:
            if row.get(column) is None:
                raise UserError(
                    f"{path}, line {line}: has no {column!r} ({_listed(row)}); expected the columns of data.text and "
                    "data.label"
                )
        yield line, {column: row[column] for column in columns}


def _separated(path: Path, content: str, separator: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV or TSV file of documents: the line number where a row begins, and {column: cell}."""
    csv.field_size_limit(1 << 30)  # maximum number of characters in a cell
    quoting = csv.QUOTE_MINIMAL if separator == "," or '\t"' in content else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, quoting=quoting, strict=True)
    line = 1
    try:
        header = next(reader, [])
        for fields in reader:
            line, before = reader.line_num, line
            if not fields:
                continue
            if len(fields) != len(header):
                columns = f"{len(fields)} column{'s' * (len(fields) != 1)}"
                raise UserError(f"{path}, line {before + 1}: {columns}, expected {len(header)} as in the first line")
            yield before + 1, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {line + 1}: {error}, expected a table") from None


def _json_lines(path: Path, content: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a file of documents in JSON lines: the line number and {column: cell}."""
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: {error}, expected a JSON object") from None
        except (ValueError, RecursionError):
            problem = "has a number with too many digits, or too many brackets inside each other"
            raise UserError(f"{path}, line {number}: {problem}, expected a JSON object") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: {type(row).__name__}, expected a JSON object")
        yield number, {key: _cell(value) for key, value in row.items()}


def _cell(value: object) -> str | None:
    """Convert a JSON value to a cell in a table file of documents; None for a list, an object or null."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value) if isinstance(value, (int, float)) else None


# --- train, dev and test, and their labels


def assembled(
    raw: Mapping[str, RawDocuments],
    numbers: bool,
    classes: Sequence[str] | None,
    reading: DocumentReading,
    parses: Mapping[str, str] | None = None,
) -> dict[str, Documents]:
    """Make train, dev and test from the raw documents of files; the three parts are tokenized together.

    Documents with a label outside of `classes` are left out; by default, the classes are all labels of train. With
    `numbers`, labels are numbers, not classes. `parses` maps train, dev or test to a file of parse trees."""
    for part in set(parses or {}) - set(raw):
        raise UserError(f"data.parses has {part}, which is drawn from train; expected only {', '.join(raw)}")
    if numbers and classes is not None:
        raise UserError("data.classes names classes where data.numbers=true asks for numbers; leave out one of them")
    if classes is not None:
        raw = {part: documents.only(list(map(str, classes))) for part, documents in raw.items()}
    names = None if numbers else _classes(raw["train"], classes)
    together = RawDocuments.concatenated(raw.values())
    labels = _numbers(together) if numbers else _codes(together, names)
    corpus = tokenize(together.names, together.texts, labels, names, reading)
    bounds = np.concatenate([[0], np.cumsum([len(part.names) for part in raw.values()])])
    parts = {part: corpus.select(np.arange(*bounds[k : k + 2])) for k, part in enumerate(raw)}
    return {
        part: with_parses(documents, find_path(parses[part])) if part in (parses or {}) else documents
        for part, documents in parts.items()
    }


def _classes(train: RawDocuments, requested: Sequence[str] | None) -> tuple[str, ...]:
    """The classes of raw documents from files, at least two: the requested classes, or all labels of train."""
    present = set(train.labels)
    if requested is None:
        names = sorted(present, key=int if all(_is_integer(name) for name in present) else None)
    else:
        names = [str(name) for name in requested]
        missing = [name for name in names if name not in present]
        if missing:
            raise UserError(f"data.classes has {', '.join(missing)}, which no document of train has")
    if len(names) < 2:
        raise UserError(f"all documents of train are {''.join(names) or 'left out'}, expected at least two classes")
    return tuple(names)


def _is_integer(name: str) -> bool:
    """Whether a label in a document file is an integer."""
    return name.removeprefix("-").isdecimal() and len(name) < 100


def _codes(raw: RawDocuments, classes: tuple[str, ...]) -> np.ndarray:
    """The labels of raw documents from files, as indices of classes (int64 array of shape [documents])."""
    code = {name: k for k, name in enumerate(classes)}
    for name, label in zip(raw.names, raw.labels, strict=True):
        if label not in code:
            raise UserError(
                f"{_position(name)}: label {label!r} is in no document of train, expected one of {_listed(classes)}; "
                "data.classes=[...] leaves out the others"
            )
    return np.array([code[label] for label in raw.labels], np.int64)


def _numbers(raw: RawDocuments) -> np.ndarray:
    """The labels of raw documents from files, as numbers (float64 array of shape [documents])."""
    numbers = np.zeros(len(raw.labels))
    for k, label in enumerate(raw.labels):
        try:
            numbers[k] = float(label)
        except ValueError:
            numbers[k] = np.nan
        if not np.isfinite(numbers[k]):
            raise UserError(f"{_position(raw.names[k])}: label {label!r}, expected a number (data.numbers=true)")
    return numbers


def _position(name: str) -> str:
    """Format the position of a document in error messages about files: "file:7" becomes "file, line 7"."""
    path, colon, line = name.rpartition(":")
    return f"{path}, line {line}" if colon and line.isdecimal() else name


def _listed(names: Mapping[str, object] | Sequence[str]) -> str:
    """At most ten names of classes or columns, for messages about document files."""
    names = list(names)
    return ", ".join(names[:10]) + (f", ... ({len(names)})" if len(names) > 10 else "")
