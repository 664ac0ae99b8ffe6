"""Columns of integer codes, read from column files and written to column files.

A column file has a line for each token and an empty line after each sentence."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import Source, name_of, read_bytes

DOCUMENT_START = "-DOCSTART-"
EXPECTED = "a file of columns"


@dataclass(frozen=True, eq=False)
class Column:
    """The strings of one column as integer codes: token `i` has the string `values[codes[i]]`."""

    values: list[str]  # distinct strings in order of first appearance
    codes: np.ndarray  # int32 array: index in `values` of the string of each token

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> "Column":
        """Make a column from a list of strings, one string for each token."""
        strings = list(strings)
        values = list(dict.fromkeys(strings))
        code_of = {value: code for code, value in enumerate(values)}
        return cls(values, np.fromiter(map(code_of.__getitem__, strings), np.int32, len(strings)))

    def __len__(self) -> int:
        return len(self.codes)

    def strings(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The strings of a column at the tokens `start` to `stop` - 1, or to the last token if `stop` is None."""
        return [self.values[code] for code in self.codes[start:stop].tolist()]

    def take(self, tokens: np.ndarray) -> "Column":
        """The column reduced to the tokens with the indices `tokens`; the codes stay the same."""
        return Column(self.values, self.codes[tokens])

    def without_unused(self) -> "Column":
        """Drop the strings that no token of the column has; the remaining strings get new codes."""
        used = np.zeros(len(self.values), bool)
        used[self.codes] = True
        if used.all():
            return self
        codes = (np.cumsum(used) - 1).astype(np.int32)
        return Column([self.values[k] for k in np.flatnonzero(used).tolist()], codes[self.codes])

    def recoded(self, values: Sequence[str]) -> "Column":
        """Recode a column by the argument `values`: the string `values[k]` gets the code k.

        Strings of the column that are not in the argument get greater codes."""
        merged = list(dict.fromkeys([*values, *self.values]))
        code_of = {value: code for code, value in enumerate(merged)}
        codes = np.fromiter(map(code_of.__getitem__, self.values), np.int32, len(self.values))
        return Column(merged, codes[self.codes])


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences as columns: sentence `i` has the tokens `offsets[i]` to `offsets[i + 1]` - 1."""

    columns: dict[str, Column]  # by name
    offsets: np.ndarray  # int64, shape [sentences + 1]: first token of each sentence, then the token count
    source: str  # the file of the sentences, for messages
    notes: tuple[str, ...] = ()  # notes for the user about reading the file

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if len(column) != self.tokens:
                raise ValueError(f"column {name} has {len(column)} tokens, the sentences hold {self.tokens}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens of all sentences, which is the length of each column."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Sentences as columns: the number of tokens of each sentence (int64 array of shape [sentences])."""
        return np.diff(self.offsets)

    def select(self, indices) -> "Sentences":
        """Select the sentences at `indices` (integers, a slice or a mask); the codes of columns stay the same."""
        tokens, offsets = self._tokens_of(np.arange(len(self))[indices])
        columns = {name: column.take(tokens) for name, column in self.columns.items()}
        return replace(self, columns=columns, offsets=offsets)

    def _tokens_of(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sentences as columns: the indices of all tokens of the chosen sentences, and new offsets.

        The new offsets are those of a `Sentences` object that holds the chosen sentences only."""
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return np.repeat(self.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets

    def with_column(self, name: str, column: Column) -> "Sentences":
        """Add a column to the sentences, or replace the column of the same name."""
        return replace(self, columns={**self.columns, name: column})


# --- reading and writing


def read_columns(
    source: Source,
    names: Sequence[str | None],
    *,
    comments: str = "auto",
    optional: frozenset[str] = frozenset(),
) -> Sentences:
    """Read a column file into sentences.

    The file has the columns `names`. A column with the name None is ignored. The last columns may be missing if their
    names are in `optional`.

    A line that has a tab is split at tabs, any other line at runs of spaces. Empty lines and -DOCSTART- lines end a
    sentence. `comments` says whether lines that begin with "#" are comments: "always", "never" or "auto". With "auto",
    such a line is a token if it has as many columns and the same separator as the first other line, else a comment."""
    name = name_of(source)
    data = read_bytes(Path(source), EXPECTED) if isinstance(source, str | os.PathLike) else source.read()
    text, notes = _decoded(data)
    reader = LineReader(name, names, comments, optional)
    reader.take(text.replace("\r\n", "\n").removesuffix("\r").split("\n"))
    reader.end()
    return replace(reader.complete(), notes=(*notes, *reader.notes()))


def write_columns(
    stream: BinaryIO, sentences: Sentences, names: Sequence[str] | None = None, tabs: bool = False
) -> None:
    """Write sentences as a column file in UTF-8: the columns `names`, or all columns.

    Columns are separated by tabs if `tabs` is true or if a value contains a space, otherwise by spaces."""
    lines, _ = token_lines([sentences.columns[name] for name in (sentences.columns if names is None else names)], tabs)
    for start, stop in pairwise(sentences.offsets.tolist()):
        stream.write("\n".join([*lines[start:stop], "", ""]).encode())


def token_lines(columns: Sequence[Column], tabs: bool = False) -> tuple[list[str], str]:
    """Format each token as a line of a column file; returns the lines and the separator of columns.

    The separator is a tab if `tabs` is true or if a value contains a space, otherwise a space."""
    spaced = any(" " in value for column in columns for value in column.values)
    separator = "\t" if tabs or spaced else " "
    return list(map(separator.join, zip(*(column.strings() for column in columns), strict=True))), separator


class LineReader:
    """Reader of the lines of a column file: parses lines as they arrive and collects sentences.

    `take` parses lines, `complete` returns the finished sentences, and `end` is called after the last line."""

    def __init__(self, name: str, names: Sequence[str | None], comments: str, optional: Iterable[str]):
        self.name, self.names, self.comments = name, tuple(names), comments
        self.widths = _widths(self.names, frozenset(optional))
        if comments not in ("auto", "always", "never"):
            raise UserError(f"comments={comments!r} is unknown, expected auto, always or never")
        # about the first token: number of columns (0: not read yet), whether the line has tabs, line number
        self.width, self.tabbed, self.first = 0, False, 0
        self.waiting: list[str] = []  # lines that arrived before the first token
        self.fields: list[str] = []  # column values of all tokens since the last call of `complete`, token after token
        self.ends: list[int] = []  # the length of `fields` at the end of each sentence
        self.number = 0  # line number of the last parsed line
        self.skipped = {"comment": 0, DOCUMENT_START: 0}  # counts of skipped comments and -DOCSTART- lines

    def take(self, lines: list[str]) -> None:
        """Parse further lines of a column file.

        Lines are kept until a first token shows the number of columns."""
        if self.width == 0:
            lines, self.waiting = [*self.waiting, *lines], []
            first = self._first_token(lines)
            if first is None:
                self.waiting = lines
                return
            self.width, self.tabbed, self.first = first
        self._take(lines)

    def end(self) -> None:
        """Finish the column file after the last line; a file without a sentence is refused."""
        if self.width == 0:
            lines, self.waiting = self.waiting, []
            first = self._first_doubtful_token(lines)
            if first is None:
                raise UserError(f"{self.name}: no sentence in it, expected lines of {self._expected()}")
            self.width, self.tabbed, self.first = first
            self._take(lines)
        self._end_sentence()

    def complete(self) -> Sentences:
        """The sentences of the column file that have ended since the last call of `complete`."""
        size = self.ends[-1] if self.ends else 0
        fields, offsets = self.fields[:size], np.array([0, *self.ends], dtype=np.int64) // max(self.width, 1)
        self.fields, self.ends = self.fields[size:], []
        columns = {
            name: Column.from_strings(fields[position :: self.width])
            for position, name in enumerate(self.names[: self.width])
            if name is not None
        }
        return Sentences(columns, offsets, self.name)

    def notes(self) -> list[str]:
        """Notes for the user: how many comments and -DOCSTART- lines of the column file were skipped."""
        counts = [(kind, count) for kind, count in self.skipped.items() if count]
        return [f"{count} {kind} line{'s' if count > 1 else ''} skipped" for kind, count in counts]

    def _take(self, lines: list[str]) -> None:
        """Parse lines of a column file; the number of columns must be known."""
        width, row = self.width, self.fields
        for line in lines:
            self.number += 1
            fields = line.split("\t" if "\t" in line else " ")
            # Fast path: most lines are plain tokens.
            if len(fields) == width and "" not in fields and line[0] not in "#-":
                row += fields
                continue
            fields = _split(line)
            if self._is_comment(line, fields):
                self.skipped["comment"] += 1
            elif fields and fields[0] != DOCUMENT_START:
                row += self._checked(fields, self.number)
            else:
                self.skipped[DOCUMENT_START] += bool(fields)
                self._end_sentence()

    def _end_sentence(self) -> None:
        """End the current sentence of the column file; without tokens, there is no sentence to end."""
        if len(self.fields) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.fields))

    def _first_token(self, lines: list[str]) -> tuple[int, bool, int] | None:
        """Find the first line of a column file that is certainly a token.

        Returns the number of columns, whether the line has tabs, and the line number; None if there is no such line."""
        for number, line in enumerate(lines, 1):
            fields = _split(line)
            if not fields or fields[0] == DOCUMENT_START or (line[0] == "#" and self.comments != "never"):
                continue
            if len(fields) not in self.widths:
                raise self._wrong_width(fields, number, self._expected())
            return len(fields), "\t" in line, number
        return None

    def _first_doubtful_token(self, lines: list[str]) -> tuple[int, bool, int] | None:
        """Find the first line of a column file that begins with "#" but may be a token.

        The method is called if no line is certainly a token. It returns the same values as `_first_token`."""
        for number, line in enumerate(lines, 1):
            fields = _split(line)
            if self.comments == "auto" and line.startswith("#") and len(fields) in self.widths:
                return len(fields), "\t" in line, number
        return None

    def _is_comment(self, line: str, fields: list[str]) -> bool:
        """Whether a line of the column file is a comment, by the option `comments`."""
        if self.comments == "never" or not line.startswith("#"):
            return False
        return self.comments == "always" or len(fields) != self.width or ("\t" in line) != self.tabbed

    def _checked(self, fields: list[str], number: int) -> list[str]:
        """Check the column values of a token in the column file, and return them.

        An error is raised if a named column is empty, or if the first token has a different number of columns."""
        if len(fields) != self.width:
            as_before = f"{self.width} as on line {self.first} ({_listed(self.names[: self.width])})"
            raise self._wrong_width(fields, number, self._expected() if len(self.widths) == 1 else as_before)
        for position, field in enumerate(fields):
            if not field and self.names[position] is not None:
                named = f"column {position + 1} ({self.names[position]})"
                raise UserError(f"{self.name}, line {number}: {named} is empty, expected a value")
        return fields

    def _wrong_width(self, fields: list[str], number: int, expected: str) -> UserError:
        """The error for a line of the column file with a wrong number of columns."""
        columns = f"{len(fields)} column{'s' if len(fields) != 1 else ''}"
        return UserError(f"{self.name}, line {number}: {columns}, expected {expected}")

    def _expected(self) -> str:
        """Text for error messages: the expected numbers of columns, and the names of the columns."""
        return f"{' or '.join(map(str, self.widths))} ({_listed(self.names)})"


def _widths(names: tuple[str | None, ...], optional: frozenset[str]) -> list[int]:
    """How many columns a line of the column file may have (ascending list), as optional columns can be missing.

    Invalid column names are an error."""
    used = [name for name in names if name is not None]
    if not used or len(set(used)) != len(used):
        raise UserError(f"column names ({_listed(names)}) must be distinct, and at least one must not be ignored")
    required = len(names)
    while required and names[required - 1] in optional:
        required -= 1
    misplaced = optional - set(names[required:])
    if misplaced or not required:
        raise UserError(
            f"optional columns ({_listed(sorted(optional))}) must come last in ({_listed(names)}), not first"
        )
    return list(range(required, len(names) + 1))


def _decoded(data: bytes) -> tuple[str, list[str]]:
    """Decode a column file; returns the text without byte order mark, and a note if the file is not UTF-8."""
    try:
        return data.decode().removeprefix("\ufeff"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        return text, [f"decoded as Latin-1 because line {line} is not UTF-8"]


def _split(line: str) -> list[str]:
    """Split a line into columns, at tabs or else at spaces; an empty line gives an empty list."""
    if not line.strip(" \t"):
        return []
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _listed(names: Sequence[str | None]) -> str:
    """The names of columns for messages; ignored columns are shown as -."""
    return " ".join("-" if name is None else name for name in names)
