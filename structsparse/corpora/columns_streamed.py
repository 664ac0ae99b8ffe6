"""Streamed column files: sentences read one by one from a pipe, or from a file larger than memory."""

from collections.abc import Iterator, Sequence

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import Source, chunks, name_of, whole_lines
from structsparse.corpora.columns import EXPECTED, LineReader, Sentences


class ColumnStream:
    """Streamed column file or pipe: each sentence is yielded when the empty line after it has arrived.

    Columns and comments are parsed as by `read_columns`. Sentences before an error are yielded before the error is
    raised. If a piece of the stream is not UTF-8, this piece and all later text are read as Latin-1."""

    def __init__(
        self,
        source: Source,
        names: Sequence[str | None],
        *,
        comments: str = "auto",
        optional: frozenset[str] = frozenset(),
    ):
        self.source = source
        self.name = name_of(source)
        self._reader = LineReader(self.name, names, comments, optional)
        self._decoding: list[str] = []  # notes: empty, or one note that the text is not UTF-8

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the streamed columns that have been read so far."""
        return [*self._decoding, *self._reader.notes()]

    @property
    def tabbed(self) -> bool:
        """Whether the first token of the column stream has tabs between its columns."""
        return self._reader.tabbed

    def __iter__(self) -> Iterator[Sentences]:
        failure = None
        for lines, last in self._lines():
            try:
                self._reader.take(lines)
                if last:
                    self._reader.end()
            except UserError as error:
                failure = error
            if sentences := self._reader.complete():
                yield sentences
            if failure is not None:
                raise failure

    def _lines(self) -> Iterator[tuple[list[str], bool]]:
        """Yield the lines of the column stream as they arrive: pairs (list of lines, whether the stream has ended)."""
        number = 1
        for data, last in whole_lines(chunks(self.source, EXPECTED)):
            text = self._decoded(data, number)
            number += data.count(b"\n")
            lines = text.replace("\r\n", "\n").split("\n")
            yield ([*lines[:-1], lines[-1].removesuffix("\r")], True) if last else (lines[:-1], False)

    def _decoded(self, data: bytes, number: int) -> str:
        """Decode a piece of the column stream; `number` is the line number at the beginning of the piece."""
        data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
        if self._decoding:
            return data.decode("latin-1")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = number + data.count(b"\n", 0, error.start)
            self._decoding.append(f"decoded as Latin-1 from line {number} on because line {line} is not UTF-8")
            return data.decode("latin-1")
