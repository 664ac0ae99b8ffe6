"""Files with word vectors of other programs: word2vec text and binary, GloVe text and fastText's .vec, also gzipped.

The first line of word2vec and fastText files has the numbers of words and dimensions; GloVe files have no such line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import chunks, gunzipped, whole_lines
from structsparse.tasks.embeddings.predictor import PlainVectors

EXPECTED = "word vectors of word2vec, GloVe or fastText"
SAMPLE = 1 << 16  # bytes from which the format of a file is recognised
LINE_ENDS, TEXT_CONTROLS = b"\r\n", b"\t\n\r"


class Header(NamedTuple):
    """The first line of a file of word vectors in the formats of word2vec and fastText."""

    words: int
    dimensions: int


def read_vectors(path: Path) -> PlainVectors:
    """Read a file of word vectors of another program; the format is recognised by the content.

    Of vectors with the same word, the first is kept."""
    data = gunzipped(str(path), chunks(path, EXPECTED))
    start = b"".join(_until(data, SAMPLE))
    first, _, rest = start.partition(b"\n")
    header = _header(first)
    reading = _Reading(path, header)
    if header is None:
        reading.text(chain([start], data), 1)
    elif _is_binary(rest, header.dimensions):
        reading.binary(chain([rest], data))
    else:
        reading.text(chain([rest], data), 2)
    return reading.result()


def _until(data: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Files of word vectors: the first chunks of a byte stream, at least `size` bytes together."""
    for chunk in data:
        yield chunk
        size -= len(chunk)
        if size <= 0:
            return


def _header(line: bytes) -> Header | None:
    """Files of word vectors: the numbers of words and dimensions in the first line; None for other first lines."""
    fields = line.split()
    return Header(*map(int, fields)) if len(fields) == 2 and all(field.isdigit() for field in fields) else None


def _is_binary(sample: bytes, dimensions: int) -> bool:
    """Files of word vectors: whether numbers are binary, by a sample of the bytes after the first line."""
    line = sample.partition(b"\n")[0].split()
    if len(line) > dimensions and all(map(_is_number, line[len(line) - dimensions :])):
        return False
    if any(byte < 32 and byte not in TEXT_CONTROLS for byte in sample):
        return True
    try:
        sample[:-4].decode()  # the last character may be cut
    except UnicodeDecodeError:
        return True
    return False


def _is_number(field: bytes) -> bool:
    """Files of word vectors: whether a column of a text is a number."""
    try:
        float(field)
    except ValueError:
        return False
    return True


@dataclass
class _Reading:
    """The words and vectors read so far from a file of word vectors."""

    path: Path
    header: Header | None
    words: list[str] = field(default_factory=list)
    parts: list[np.ndarray] = field(default_factory=list)  # float32 [some words, dimensions]
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.header is not None:
            self.dimensions = self.header.dimensions
            if 0 in self.header:
                raise UserError(f"{self.path}: has no vectors, its first line promises {self._promised}")

    @property
    def _promised(self) -> str:
        """Files of word vectors: what the first line says, for messages."""
        return f"{self.header.words} words with {self.header.dimensions} numbers"

    def text(self, data: Iterable[bytes], number: int) -> None:
        """Read the lines of a text of word vectors; `number` is that of the first line."""
        for piece, _ in whole_lines(data):
            lines = piece.split(b"\n")
            rows = [self._columns(line.rstrip(), number + k) for k, line in enumerate(lines) if line.strip()]
            if rows:
                self.words += [word.decode(errors="replace") for word, _ in rows]
                self._add(self._numbers([numbers for _, numbers in rows], lines, number))
            number += len(lines) - 1

    def _columns(self, line: bytes, number: int) -> tuple[bytes, bytes]:
        """Files of word vectors: a line as word and numbers; a word may have spaces, but no number at its end."""
        if self.dimensions is None:
            self.dimensions = line.count(b" ")
        if self.dimensions == 0:
            raise UserError(f"{self.path}, line {number}: has no vector, expected {EXPECTED}")
        spaces = line.count(b" ")
        if spaces == self.dimensions:
            word, _, numbers = line.partition(b" ")
            return word, numbers
        word, *rest = line.rsplit(b" ", self.dimensions) if spaces > self.dimensions else (b"0",)
        if _is_number(word.rpartition(b" ")[2]):
            by = "its first line" if self.header else "the first line"
            raise UserError(
                f"{self.path}, line {number}: has {spaces + 1} columns, expected a word and {self.dimensions} numbers "
                f"as in {by}"
            )
        return word, b" ".join(rest)

    def _numbers(self, rows: list[bytes], lines: list[bytes], number: int) -> np.ndarray:
        """Files of word vectors: the numbers of some lines; an error names the first column that is no number."""
        try:
            texts = [row.decode() for row in rows]
            return np.loadtxt(texts, np.float32, delimiter=" ", comments=None, ndmin=2)
        except ValueError:  # a text that cannot be decoded is one, too
            for k, line in enumerate(lines):
                for column in self._columns(line.rstrip(), number + k)[1].split(b" ") if line.strip() else ():
                    if not _is_number(column):
                        shown = column[:40].decode(errors="replace")
                        raise UserError(
                            f"{self.path}, line {number + k}: {shown!r} is no number, expected {EXPECTED}"
                        ) from None
            raise

    def binary(self, data: Iterable[bytes]) -> None:
        """Read vectors of four bytes a number, each after a word and a space."""
        data, buffer, begin, size = iter(data), b"", 0, 4 * self.dimensions
        while len(self.words) < self.header.words:
            space = buffer.find(b" ", begin)
            if space < 0 or len(buffer) - space - 1 < size:
                chunk = next(data, None)
                if chunk is None:
                    raise UserError(
                        f"{self.path}: is cut short in the vector of word {len(self.words) + 1}, its first line "
                        f"promises {self._promised}"
                    )
                buffer, begin = buffer[begin:] + chunk, 0
                continue
            end = space + 1 + size
            self.words.append(buffer[begin:space].lstrip(LINE_ENDS).decode(errors="replace"))
            self._add(np.frombuffer(buffer[space + 1 : end], "<f4")[None])
            begin = end
        if buffer[begin:].strip(LINE_ENDS) or any(chunk.strip(LINE_ENDS) for chunk in data):
            raise UserError(f"{self.path}: has more bytes than the {self._promised} that its first line promises")

    def _add(self, numbers: np.ndarray) -> None:
        """Files of word vectors: keep the vectors of some words; refuses numbers that are not finite."""
        wrong = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if len(wrong):
            word = self.words[len(self.words) - len(numbers) + int(wrong[0])]
            raise UserError(f"{self.path}: the vector of {word[:40]!r} has a number that is NaN or infinite")
        self.parts.append(numbers)

    def result(self) -> PlainVectors:
        """Files of word vectors: the vectors read from a whole file, the first of each word."""
        if not self.words:
            raise UserError(f"{self.path}: has no vectors, expected {EXPECTED}")
        if self.header is not None and len(self.words) != self.header.words:
            raise UserError(f"{self.path}: has {len(self.words)} vectors, its first line promises {self._promised}")
        first = {word: k for k, word in reversed([*enumerate(self.words)])}
        vectors = np.concatenate(self.parts)
        self.parts.clear()
        if len(first) < len(self.words):
            vectors = vectors[sorted(first.values())]
        return PlainVectors(tuple(dict.fromkeys(self.words)), vectors)
