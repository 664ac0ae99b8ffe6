"""Column text (one token a line, a blank line after a sentence) to integer columns, once, and back."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from structsparse.errors import UserError

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True, eq=False)
class Column:
    """The strings of one column as integers: token `i` reads `values[codes[i]]`."""

    values: list[str]  # distinct strings in order of first appearance
    codes: np.ndarray  # int32 [tokens]

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> "Column":
        strings = list(strings)
        values = list(dict.fromkeys(strings))
        index = {value: code for code, value in enumerate(values)}
        return cls(values, np.fromiter(map(index.__getitem__, strings), np.int32, len(strings)))

    def __len__(self) -> int:
        return len(self.codes)

    def strings(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The strings of tokens `start` to `stop`."""
        return [self.values[code] for code in self.codes[start:stop].tolist()]

    def take(self, tokens: np.ndarray) -> "Column":
        """The tokens at these positions, coded as before."""
        return Column(self.values, self.codes[tokens])

    def recoded(self, values: Sequence[str]) -> "Column":
        """The same strings under the codes of `values`; strings not among them get the codes that follow."""
        merged = list(dict.fromkeys([*values, *self.values]))
        index = {value: code for code, value in enumerate(merged)}
        table = np.fromiter(map(index.__getitem__, self.values), np.int32, len(self.values))
        return Column(merged, table[self.codes])


@dataclass(frozen=True, eq=False)
class Sentences:
    """Columns of one corpus in sentences: sentence `i` holds tokens `offsets[i]` to `offsets[i + 1]`."""

    columns: dict[str, Column]
    offsets: np.ndarray  # int64 [sentences + 1]
    source: str  # where it came from, for messages
    notes: tuple[str, ...] = ()  # what the user should be told about the reading

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if len(column) != self.tokens:
                raise ValueError(f"column {name} has {len(column)} tokens, the sentences hold {self.tokens}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)  # int64 [sentences]

    def select(self, indices) -> "Sentences":
        """These sentences in this order (positions, a slice or a mask); the values keep their codes."""
        chosen = np.arange(len(self))[indices]
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = np.repeat(self.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
        columns = {name: column.take(tokens) for name, column in self.columns.items()}
        return replace(self, columns=columns, offsets=offsets)

    def with_column(self, name: str, column: Column) -> "Sentences":
        """The same sentences with one column more, or with this one in the place of its namesake."""
        return replace(self, columns={**self.columns, name: column})


def read_columns(
    source: str | os.PathLike | BinaryIO,
    names: Sequence[str | None],
    *,
    comments: str = "auto",
    optional: frozenset[str] = frozenset(),
) -> Sentences:
    """Read a file of `len(names)` columns; None ignores a column, trailing `optional` ones may be absent.

    Columns are parted by tabs in a line that has a tab, else by runs of spaces. Blank and -DOCSTART- lines
    end a sentence. A line that begins with "#" is a comment "always", "never", or, "auto", when it is built
    unlike the tokens: by its number of columns, or without the tabs that they have.
    """
    reader = _Reader(source, tuple(names), comments, frozenset(optional))
    fields, ends = reader.fields()
    columns = {
        name: Column.from_strings(fields[position :: reader.width])
        for position, name in enumerate(names[: reader.width])
        if name is not None
    }
    offsets = np.array([0, *ends], dtype=np.int64) // reader.width
    return Sentences(columns, offsets, reader.place, tuple(reader.notes))


def write_columns(stream: BinaryIO, sentences: Sentences, names: Sequence[str] | None = None) -> None:
    """Write these columns (or all) as UTF-8 lines, parted by spaces, or by tabs if a value holds a space."""
    columns = [sentences.columns[name] for name in (sentences.columns if names is None else names)]
    spaced = any(" " in value for column in columns for value in column.values)
    lines = list(map(("\t" if spaced else " ").join, zip(*(c.strings() for c in columns), strict=True)))
    for start, stop in pairwise(sentences.offsets.tolist()):
        stream.write("\n".join([*lines[start:stop], "", ""]).encode())


class _Reader:
    """One reading: the lines, the number of columns that the first token has, and what there is to say."""

    def __init__(self, source, names: tuple[str | None, ...], comments: str, optional: frozenset[str]):
        self.widths = _widths(names, optional)
        if comments not in ("auto", "always", "never"):
            raise UserError(f"comments={comments!r} is unknown, expected auto, always or never")
        self.names, self.comments = names, comments
        self.place, data = _read_bytes(source)
        text, self.notes = _decode(data)
        self.lines = text.replace("\r\n", "\n").removesuffix("\r").split("\n")
        self.width, self.tabbed, self.first = self._first_token()

    def fields(self) -> tuple[list[str], list[int]]:
        """The fields of all tokens in one row, and its length at the end of each sentence."""
        row: list[str] = []
        ends: list[int] = []
        comments = documents = 0
        for number, line in enumerate(self.lines, 1):
            fields = line.split("\t" if "\t" in line else " ")
            # The common line first: nothing special about it, and one test of each kind says so.
            if len(fields) == self.width and "" not in fields and line[0] not in "#-":
                row += fields
                continue
            fields = _fields(line)
            if self._is_comment(line, fields):
                comments += 1
            elif fields and fields[0] != DOCUMENT_START:
                row += self._checked(fields, number)
            else:
                documents += bool(fields)
                if len(row) > (ends[-1] if ends else 0):
                    ends.append(len(row))
        if len(row) > (ends[-1] if ends else 0):
            ends.append(len(row))
        self._note(comments, "comment")
        self._note(documents, DOCUMENT_START)
        return row, ends

    def _first_token(self) -> tuple[int, bool, int]:
        """Columns, tab or not, and line number of the first line that is no comment for certain."""
        doubtful = None
        for number, line in enumerate(self.lines, 1):
            fields = _fields(line)
            if not fields or fields[0] == DOCUMENT_START:
                continue
            found = len(fields), "\t" in line, number
            if line[0] != "#" or self.comments == "never":
                if len(fields) not in self.widths:
                    raise self._ragged(fields, number, self._expected())
                return found
            if doubtful is None and self.comments == "auto" and len(fields) in self.widths:
                doubtful = found
        if doubtful is None:
            raise UserError(f"{self.place}: no sentence in it, expected lines of {self._expected()}")
        return doubtful

    def _is_comment(self, line: str, fields: list[str]) -> bool:
        if self.comments == "never" or not line.startswith("#"):
            return False
        return self.comments == "always" or len(fields) != self.width or ("\t" in line) != self.tabbed

    def _checked(self, fields: list[str], number: int) -> list[str]:
        if len(fields) != self.width:
            as_before = f"{self.width} as on line {self.first} ({_listed(self.names[: self.width])})"
            raise self._ragged(fields, number, self._expected() if len(self.widths) == 1 else as_before)
        for position, field in enumerate(fields):
            if not field and self.names[position] is not None:
                named = f"column {position + 1} ({self.names[position]})"
                raise UserError(f"{self.place}, line {number}: {named} is empty, expected a value")
        return fields

    def _ragged(self, fields: list[str], number: int, expected: str) -> UserError:
        columns = f"{len(fields)} column{'s' if len(fields) != 1 else ''}"
        return UserError(f"{self.place}, line {number}: {columns}, expected {expected}")

    def _expected(self) -> str:
        return f"{' or '.join(map(str, self.widths))} ({_listed(self.names)})"

    def _note(self, count: int, kind: str) -> None:
        if count:
            self.notes.append(f"{count} {kind} line{'s' if count > 1 else ''} skipped")


def _widths(names: tuple[str | None, ...], optional: frozenset[str]) -> list[int]:
    """The numbers of columns that a file may have, ascending; bad names are refused."""
    wanted = [name for name in names if name is not None]
    if not wanted or len(set(wanted)) != len(wanted):
        raise UserError(f"column names ({_listed(names)}) must be distinct, and one at least not ignored")
    required = len(names)
    while required and names[required - 1] in optional:
        required -= 1
    misplaced = optional - set(names[required:])
    if misplaced or not required:
        raise UserError(
            f"optional columns ({_listed(sorted(optional))}) must come last in ({_listed(names)}), not first"
        )
    return list(range(required, len(names) + 1))


def _read_bytes(source) -> tuple[str, bytes]:
    """Name for messages, and the bytes."""
    if hasattr(source, "read"):
        return str(getattr(source, "name", "stream")), source.read()
    path = Path(source)
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a file of columns")
    try:
        return str(path), path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected a file of columns") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _decode(data: bytes) -> tuple[str, list[str]]:
    """The text without a byte order mark, and a note where it is not UTF-8."""
    try:
        return data.decode().removeprefix("\ufeff"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        return text, [f"decoded as Latin-1 because line {line} is not UTF-8"]


def _fields(line: str) -> list[str]:
    """Fields of a line, none for a blank one; other white space than space and tab is part of a word."""
    if not line.strip(" \t"):
        return []
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _listed(names: Sequence[str | None]) -> str:
    return " ".join("-" if name is None else name for name in names)
