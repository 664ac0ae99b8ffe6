"""Columns of integer codes, read from column files and written: a token per line, an empty line after a sentence."""

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
    codes: np.ndarray  # int32 [tokens], positions in `values`

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
        """The strings of a column at tokens `start` to `stop` - 1; None: to the last token."""
        return [self.values[code] for code in self.codes[start:stop].tolist()]

    def take(self, tokens: np.ndarray) -> "Column":
        """The column at the given token positions; the codes stay the same."""
        return Column(self.values, self.codes[tokens])

    def without_unused(self) -> "Column":
        """The column without the values (strings) that no token has; the codes are renumbered."""
        used = np.zeros(len(self.values), bool)
        used[self.codes] = True
        if used.all():
            return self
        codes = (np.cumsum(used) - 1).astype(np.int32)
        return Column([self.values[k] for k in np.flatnonzero(used).tolist()], codes[self.codes])

    def recoded(self, values: Sequence[str]) -> "Column":
        """The column in which the string `values[k]` has the code k, and all other strings have greater codes."""
        merged = list(dict.fromkeys([*values, *self.values]))
        code_of = {value: code for code, value in enumerate(merged)}
        codes = np.fromiter(map(code_of.__getitem__, self.values), np.int32, len(self.values))
        return Column(merged, codes[self.codes])


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences as columns: sentence `i` has the tokens `offsets[i]` to `offsets[i + 1]` - 1."""

    columns: dict[str, Column]  # by name
    offsets: np.ndarray  # int64 [sentences + 1], position of the first token of each sentence
    source: str  # the file of the sentences, for messages
    notes: tuple[str, ...] = ()  # notes for the user about the reading of the file

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
        """The number of tokens of each sentence in columns: int64 [sentences]."""
        return np.diff(self.offsets)

    def select(self, indices) -> "Sentences":
        """The sentences at `indices` (positions, a slice or a mask), in that order; columns keep their codes."""
        tokens, offsets = self._tokens_of(np.arange(len(self))[indices])
        columns = {name: column.take(tokens) for name, column in self.columns.items()}
        return replace(self, columns=columns, offsets=offsets)

    def _tokens_of(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The token positions of the chosen sentences in the columns, and the sentence offsets among these tokens."""
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return np.repeat(self.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets

    def with_column(self, name: str, column: Column) -> "Sentences":
        """The sentences with a further column, which replaces an existing column of the same name."""
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

    Columns are separated by tabs in a line that has a tab, else by runs of spaces. Empty and -DOCSTART- lines
    end a sentence. `comments` says whether lines that begin with "#" are comments: "always", "never" or "auto". With
    "auto", such a line is a comment if its number of columns or its use of tabs differs from the first token.
    """
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

    A tab separates columns if `tabs` is true or a value has a space, else a space."""
    lines, _ = token_lines([sentences.columns[name] for name in (sentences.columns if names is None else names)], tabs)
    for start, stop in pairwise(sentences.offsets.tolist()):
        stream.write("\n".join([*lines[start:stop], "", ""]).encode())


def token_lines(columns: Sequence[Column], tabs: bool = False) -> tuple[list[str], str]:
    """The line of every token in a column file, and the separator of columns.

    The separator is a tab if `tabs` is true or a value has a space, else a space."""
    spaced = any(" " in value for column in columns for value in column.values)
    separator = "\t" if tabs or spaced else " "
    return list(map(separator.join, zip(*(column.strings() for column in columns), strict=True))), separator


class LineReader:
    """Reader of the lines of a column file: parses lines as they arrive and collects sentences.

    `take` parses lines, `complete` returns the sentences that have ended, and `end` ends the file."""

    def __init__(self, name: str, names: Sequence[str | None], comments: str, optional: Iterable[str]):
        self.name, self.names, self.comments = name, tuple(names), comments
        self.widths = _widths(self.names, frozenset(optional))
        if comments not in ("auto", "always", "never"):
            raise UserError(f"comments={comments!r} is unknown, expected auto, always or never")
        # of the first token: number of columns, whether it has tabs, line number
        self.width, self.tabbed, self.first = 0, False, 0
        self.waiting: list[str] = []  # lines that arrived before the first token
        self.fields: list[str] = []  # strings of all tokens since the last `complete`, token after token
        self.ends: list[int] = []  # the length of `fields` at the end of each sentence
        self.number = 0  # number of the last line parsed
        self.skipped = {"comment": 0, DOCUMENT_START: 0}  # number of skipped lines by kind

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
        """End the column file: the last sentence needs no empty line; a file without a sentence is refused."""
        if self.width == 0:
            lines, self.waiting = self.waiting, []
            first = self._first_doubtful_token(lines)
            if first is None:
                raise UserError(f"{self.name}: no sentence in it, expected lines of {self._expected()}")
            self.width, self.tabbed, self.first = first
            self._take(lines)
        self._end_sentence()

    def complete(self) -> Sentences:
        """The sentences of the column file that have ended since the last call."""
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
        """Notes for the user: how many comments and other lines of the column file were skipped."""
        counts = [(kind, count) for kind, count in self.skipped.items() if count]
        return [f"{count} {kind} line{'s' if count > 1 else ''} skipped" for kind, count in counts]

    def _take(self, lines: list[str]) -> None:
        """Parse lines of the column file when the number of columns is known."""
        width, row = self.width, self.fields
        for line in lines:
            self.number += 1
            fields = line.split("\t" if "\t" in line else " ")
            # Most lines are plain tokens, which a few cheap tests recognise.
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
        """End the current sentence of the column file, if the sentence has tokens."""
        if len(self.fields) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.fields))

    def _first_token(self, lines: list[str]) -> tuple[int, bool, int] | None:
        """The first line of a column file that is certainly a token.

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
        """The first line of a column file that begins with "#" and may be a token.

        The method is called if no line is certainly a token. The result is the same as that of `_first_token`."""
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
        """Check the columns of a token in the column file, and return them.

        An error is raised if the number of columns differs from the first token, or if a column with a name is
        empty."""
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
        """The expected numbers of columns and the names of the columns, for messages."""
        return f"{' or '.join(map(str, self.widths))} ({_listed(self.names)})"


def _widths(names: tuple[str | None, ...], optional: frozenset[str]) -> list[int]:
    """The numbers of columns that the column file may have, ascending; invalid column names are refused."""
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
    """The text of a column file without a byte order mark, and a note if the file is not UTF-8."""
    try:
        return data.decode().removeprefix("\ufeff"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        return text, [f"decoded as Latin-1 because line {line} is not UTF-8"]


def _split(line: str) -> list[str]:
    """The columns of a line, split at tabs or else at spaces; an empty list for an empty line."""
    if not line.strip(" \t"):
        return []
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _listed(names: Sequence[str | None]) -> str:
    """The names of columns for messages, with - for ignored columns."""
    return " ".join("-" if name is None else name for name in names)
