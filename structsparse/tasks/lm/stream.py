"""Text that arrives bit by bit, or is larger than memory, some sentences at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError
from structsparse.corpora.columns_streamed import pieces_of, whole_lines
from structsparse.corpora.text import Coded, Reading, code_pieces, decoded, lines_of_text, sentences_of

BLOCK = 1 << 17  # words


def sentences_of_file(path: Path, reading: Reading) -> Iterator[Coded]:
    """A file, plain or gzipped."""
    return _blocks(str(path), sentences_of(lines_of_text(path), reading), reading, lambda: False)


def sentences_of_stream(stream: BinaryIO, reading: Reading) -> Iterator[Coded]:
    """What has arrived, without waiting for more; of running text each sentence, as nobody tells which is the last."""
    lines, running = _Arriving(stream), reading.sentences == "text"
    return _blocks(lines.source, sentences_of(lines, reading), reading, lambda: running or lines.exhausted)


class _Arriving:
    """The lines of a stream; `exhausted`: the one handed out is the last that has arrived."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.source, self.exhausted = stream, str(getattr(stream, "name", "stream")), False

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        number = 0
        for data, _ in whole_lines(pieces_of(self.stream)):
            lines = data.removesuffix(b"\n").split(b"\n") if data else []
            for k, line in enumerate(lines, start=1):
                number += 1
                self.exhausted = k == len(lines)
                yield decoded(Path(self.source), number, line), True


def _blocks(
    source: str, pieces: Iterable[tuple[list[str], bool]], reading: Reading, now: Callable[[], bool]
) -> Iterator[Coded]:
    """Whole sentences, so many that they have BLOCK words, or as many as there are now. A fault is told after the
    sentences before it."""
    held, words, found, fault = [], 0, False, None
    try:
        for tokens, ends in pieces:
            held.append((tokens, ends))
            words += len(tokens)
            if ends and words and (words >= BLOCK or now()):
                coded = code_pieces(source, held, reading)
                held, words = [], 0
                if coded.tokens:  # not only marks of sentences
                    found = True
                    yield coded
    except UserError as error:
        fault = error
    coded = code_pieces(source, held, reading)
    if coded.tokens:
        yield coded
    if fault is not None:
        raise fault
    if not coded.tokens and not found:
        raise UserError(f"{source}: has no words, expected text")
