"""Streams of text for a language model: a file larger than memory, or a pipe, is read in blocks of sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import chunks, name_of, whole_lines
from structsparse.corpora.text import ProvisionalText, code_pieces
from structsparse.corpora.text_reading import TextReading, decoded, lines_of_text, sentences_of

BLOCK = 1 << 17  # minimum number of words in a block; the last block may have fewer


def sentences_of_file(path: Path, reading: TextReading) -> Iterator[ProvisionalText]:
    """Text stream for a language model: the sentences of a text file, plain or gzipped, in blocks."""
    return _blocks(str(path), sentences_of(lines_of_text(path), reading), reading, lambda: False)


def sentences_of_stream(stream: BinaryIO, reading: TextReading) -> Iterator[ProvisionalText]:
    """Text stream for a language model: the sentences that have arrived in a pipe, in blocks, without waiting for more.

    If the text is not one sentence per line, each sentence is a block: it is yielded as soon as its end is known."""
    lines, running = _ArrivingLines(stream), reading.sentences == "text"
    return _blocks(lines.source, sentences_of(lines, reading), reading, lambda: running or lines.exhausted)


class _ArrivingLines:
    """Text stream for a language model: the lines of a pipe as they arrive.

    `exhausted` is true when all lines that have arrived so far were yielded."""

    def __init__(self, stream: BinaryIO):
        self.stream, self.source, self.exhausted = stream, name_of(stream), False

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """Text stream for a language model: yield each line of the pipe as a pair (line, True).

        The second element says that the line is complete, which `sentences_of` needs to know."""
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
    """Text stream for a language model: group sentences into blocks of at least BLOCK words.

    `pieces` yields pairs: a list of tokens, and whether the sentence ends after these tokens. `due()` says after
    each sentence whether the block ends there even if it is smaller. If the text has an error, the sentences before the
    error are yielded first."""
    buffer, words, any_block, failure = [], 0, False, None
    try:
        for tokens, ends in pieces:
            buffer.append((tokens, ends))
            words += len(tokens)
            if ends and words and (words >= BLOCK or due()):
                coded = code_pieces(source, buffer, reading)
                buffer, words = [], 0
                if coded.tokens:  # false if the block has no words, only `<s>` and `</s>`
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
