"""Column text (one token a line, a blank line after a sentence) to integer columns, once, and back."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from structsparse.base.errors import UserError

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

    def without_unused(self) -> "Column":
        """The same strings, without the values that no token has."""
        used = np.zeros(len(self.values), bool)
        used[self.codes] = True
        if used.all():
            return self
        codes = (np.cumsum(used) - 1).astype(np.int32)
        return Column([self.values[k] for k in np.flatnonzero(used).tolist()], codes[self.codes])

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
        tokens, offsets = self._tokens_of(np.arange(len(self))[indices])
        columns = {name: column.take(tokens) for name, column in self.columns.items()}
        return replace(self, columns=columns, offsets=offsets)

    def _tokens_of(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these sentences, one after the other, and where each sentence begins among them."""
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return np.repeat(self.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets

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
    place, data = _read_bytes(source)
    text, notes = _decode(data)
    reader = LineReader(place, names, comments, optional)
    reader.take(text.replace("\r\n", "\n").removesuffix("\r").split("\n"))
    reader.end()
    return replace(reader.complete(), notes=(*notes, *reader.notes()))


def write_columns(
    stream: BinaryIO, sentences: Sentences, names: Sequence[str] | None = None, tabs: bool = False
) -> None:
    """Write these columns (or all) as UTF-8 lines, parted by spaces, or by tabs if told so or if a value holds a
    space."""
    lines, _ = lines_of([sentences.columns[name] for name in (sentences.columns if names is None else names)], tabs)
    for start, stop in pairwise(sentences.offsets.tolist()):
        stream.write("\n".join([*lines[start:stop], "", ""]).encode())


def lines_of(columns: Sequence[Column], tabs: bool = False) -> tuple[list[str], str]:
    """A line for every token, and what parts its columns: tabs if told so or if a value holds a space, else spaces."""
    spaced = any(" " in value for column in columns for value in column.values)
    separator = "\t" if tabs or spaced else " "
    return list(map(separator.join, zip(*(column.strings() for column in columns), strict=True))), separator


class LineReader:
    """Lines to sentences: the number of columns that the first token has, and what there is to say."""

    def __init__(self, place: str, names: Sequence[str | None], comments: str, optional: Iterable[str]):
        self.place, self.names, self.comments = place, tuple(names), comments
        self.widths = _widths(self.names, frozenset(optional))
        if comments not in ("auto", "always", "never"):
            raise UserError(f"comments={comments!r} is unknown, expected auto, always or never")
        self.width, self.tabbed, self.first = 0, False, 0  # columns, tabs and line number of the first token
        self.waiting: list[str] = []  # lines before it
        self.row: list[str] = []  # the fields of all tokens since `complete`
        self.ends: list[int] = []  # and its length at the end of each sentence
        self.number = 0  # of the last line taken
        self.skipped = {"comment": 0, DOCUMENT_START: 0}

    def take(self, lines: list[str]) -> None:
        if self.width == 0:
            lines, self.waiting = [*self.waiting, *lines], []
            found = self._first_token(lines)
            if found is None:
                self.waiting = lines
                return
            self.width, self.tabbed, self.first = found
        self._take(lines)

    def end(self) -> None:
        """No line comes any more."""
        if self.width == 0:
            lines, self.waiting = self.waiting, []
            found = self._doubtful_token(lines)
            if found is None:
                raise UserError(f"{self.place}: no sentence in it, expected lines of {self._expected()}")
            self.width, self.tabbed, self.first = found
            self._take(lines)
        self._end_sentence()

    def complete(self) -> Sentences:
        """The sentences that have ended since this was asked the last time."""
        size = self.ends[-1] if self.ends else 0
        row, offsets = self.row[:size], np.array([0, *self.ends], dtype=np.int64) // max(self.width, 1)
        self.row, self.ends = self.row[size:], []
        columns = {
            name: Column.from_strings(row[position :: self.width])
            for position, name in enumerate(self.names[: self.width])
            if name is not None
        }
        return Sentences(columns, offsets, self.place)

    def notes(self) -> list[str]:
        counts = [(kind, count) for kind, count in self.skipped.items() if count]
        return [f"{count} {kind} line{'s' if count > 1 else ''} skipped" for kind, count in counts]

    def _take(self, lines: list[str]) -> None:
        width, row = self.width, self.row
        for line in lines:
            self.number += 1
            fields = line.split("\t" if "\t" in line else " ")
            # The common line first: nothing special about it, and one test of each kind says so.
            if len(fields) == width and "" not in fields and line[0] not in "#-":
                row += fields
                continue
            fields = _fields(line)
            if self._is_comment(line, fields):
                self.skipped["comment"] += 1
            elif fields and fields[0] != DOCUMENT_START:
                row += self._checked(fields, self.number)
            else:
                self.skipped[DOCUMENT_START] += bool(fields)
                self._end_sentence()

    def _end_sentence(self) -> None:
        if len(self.row) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.row))

    def _first_token(self, lines: list[str]) -> tuple[int, bool, int] | None:
        """Columns, tab or not, and line number of the first line that is no comment for certain."""
        for number, line in enumerate(lines, 1):
            fields = _fields(line)
            if not fields or fields[0] == DOCUMENT_START or (line[0] == "#" and self.comments != "never"):
                continue
            if len(fields) not in self.widths:
                raise self._ragged(fields, number, self._expected())
            return len(fields), "\t" in line, number
        return None

    def _doubtful_token(self, lines: list[str]) -> tuple[int, bool, int] | None:
        """The same of the first line that may be a comment or not, which matters where all lines are such."""
        for number, line in enumerate(lines, 1):
            fields = _fields(line)
            if self.comments == "auto" and line.startswith("#") and len(fields) in self.widths:
                return len(fields), "\t" in line, number
        return None

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
