"""Column text that arrives bit by bit, or is larger than memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError
from structsparse.corpora.columns import LineReader, Sentences

_PIECE = 1 << 18  # bytes read at once: some ten thousand tokens


class ColumnStream:
    """The sentences of a file or pipe of columns as they arrive, some at a time, each once its empty line is there.

    Columns and comments are those of `read_columns`; a fault is told after the sentences before it. Text that is no
    UTF-8 is taken as Latin-1 from there on: what came before is gone."""

    def __init__(
        self,
        source: str | os.PathLike | BinaryIO,
        names: Sequence[str | None],
        *,
        comments: str = "auto",
        optional: frozenset[str] = frozenset(),
    ):
        self.source = source
        self.place = str(getattr(source, "name", "stream") if hasattr(source, "read") else source)
        self._reader = LineReader(self.place, names, comments, optional)
        self._decoding: list[str] = []

    @property
    def notes(self) -> list[str]:
        """What there is to say of what has been read so far."""
        return [*self._decoding, *self._reader.notes()]

    @property
    def tabbed(self) -> bool:
        """Whether the first token's columns are parted by tabs."""
        return self._reader.tabbed

    def __iter__(self) -> Iterator[Sentences]:
        fault = None
        for lines, last in self._lines():
            try:
                self._reader.take(lines)
                if last:
                    self._reader.end()
            except UserError as error:
                fault = error
            if sentences := self._reader.complete():
                yield sentences
            if fault is not None:
                raise fault

    def _lines(self) -> Iterator[tuple[list[str], bool]]:
        """Whole lines, as many as have come, and whether they are the last."""
        number = 1
        for data, last in whole_lines(pieces_of(self.source)):
            text = self._decode(data, number)
            number += data.count(b"\n")
            lines = text.replace("\r\n", "\n").split("\n")
            yield ([*lines[:-1], lines[-1].removesuffix("\r")], True) if last else (lines[:-1], False)

    def _decode(self, data: bytes, number: int) -> str:
        data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
        if self._decoding:
            return data.decode("latin-1")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = number + data.count(b"\n", 0, error.start)
            self._decoding.append(f"decoded as Latin-1 from line {number} on because line {line} is not UTF-8")
            return data.decode("latin-1")


def pieces_of(source, expected: str = "a file of columns") -> Iterator[bytes]:
    """What a file or pipe holds, piece by piece, each handed on as soon as it comes."""
    if hasattr(source, "read"):
        read = getattr(source, "read1", source.read)
        while data := read(_PIECE):
            yield data
        return
    path = Path(source)
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected {expected}")
    try:
        with path.open("rb") as file:
            yield from pieces_of(file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected {expected}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def whole_lines(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The same bytes cut behind the ends of lines, and whether they are the last."""
    begun: list[bytes] = []
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if end:
            yield b"".join([*begun, piece[:end]]), False
            begun = []
        begun.append(piece[end:])
    yield b"".join(begun), True
