"""Block-wise reading of text for a language model, from a file larger than memory or from a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import chunks, name_of, whole_lines
from structsparse.corpora.text import ProvisionalText, code_pieces
from structsparse.corpora.text_reading import TextReading, decoded, lines_of_text, sentences_of

BLOCK = 1 << 17  # number of words of a block


def sentences_of_file(path: Path, reading: TextReading) -> Iterator[ProvisionalText]:
    """Blocks of sentences of a text file, plain or gzipped."""
    return _blocks(str(path), sentences_of(lines_of_text(path), reading), reading, lambda: False)


def sentences_of_stream(stream: BinaryIO, reading: TextReading) -> Iterator[ProvisionalText]:
    """Blocks of the sentences that have arrived in a pipe, without waiting for more sentences.

    In running text each sentence is a block, because the end of the text that has arrived is not known."""
    lines, running = _ArrivingLines(stream), reading.sentences == "text"
    return _blocks(lines.source, sentences_of(lines, reading), reading, lambda: running or lines.exhausted)


class _ArrivingLines:
    """The lines of a pipe; `exhausted` is true after the last line that has arrived so far."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.source, self.exhausted = stream, name_of(stream), False

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        number = 0
        for data, _ in whole_lines(chunks(self.stream, "text")):
            lines = data.removesuffix(b"\n").split(b"\n") if data else []
            for k, line in enumerate(lines, start=1):
                number += 1
                self.exhausted = k == len(lines)
                yield decoded(Path(self.source), number, line), True


def _blocks(
    source: str, pieces: Iterable[tuple[list[str], bool]], reading: TextReading, due: Callable[[], bool]
) -> Iterator[ProvisionalText]:
    """Blocks of complete sentences with at least BLOCK words, or fewer words when `due()` is true.

    The sentences before an error in the text are yielded before the error is raised."""
    buffer, words, any_block, failure = [], 0, False, None
    try:
        for tokens, ends in pieces:
            buffer.append((tokens, ends))
            words += len(tokens)
            if ends and words and (words >= BLOCK or due()):
                coded = code_pieces(source, buffer, reading)
                buffer, words = [], 0
                if coded.tokens:  # the block has words, not only `<s>` and `</s>`
                    any_block = True
                    yield coded
    except UserError as error:
        failure = error
    coded = code_pieces(source, buffer, reading)
    if coded.tokens:
        yield coded
    if failure is not None:
        raise failure
    if not coded.tokens and not any_block:
        raise UserError(f"{source}: has no words, expected text")
