"""Running text for word vectors: a file, a folder of files, or a planted corpus, as codes of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from structsparse.base.downloads import find_path
from structsparse.base.errors import UserError
from structsparse.corpora.planted.word_trees import planted_word_trees
from structsparse.corpora.text import ProvisionalText, coded_lines, read_coded
from structsparse.corpora.text_reading import UNKNOWN, TextReading, lines_of_text


@dataclass(frozen=True)
class RunningText:
    """Running text for word vectors: the words of all sentences in the order of the text.

    `truth` holds the words below each node of the trees of a planted corpus, by the name of the node."""

    name: str
    text: ProvisionalText
    truth: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Lines for the user about a running text: its numbers of sentences and words."""
        return [f"{self.text.source}: {len(self.text.ends):,} sentences, {self.text.tokens:,} words"]


def running_text(
    train: str | None,
    sentences: str,
    tokens: str,
    lower: bool,
    zeros: bool,
    punctuation: bool,
    limit: int | None,
    planted: Mapping[str, int],
    name: str = "running_text",
) -> RunningText:
    """Running text (data=running_text): the user's file, plain or gzipped, or all files below a folder.

    If `punctuation` is false, words without letters and digits are left out. Without a file, the text is a planted
    corpus with the options `planted`."""
    if train is None:
        text, truth = planted_word_trees(**planted)
        return RunningText("planted_word_trees", text, truth)
    path, reading = find_path(train), TextReading(sentences, tokens, lower, False, limit, zeros)
    text = _read_folder(path, reading) if path.is_dir() else read_coded(path, reading)
    if any("\0" in word for word in text.words):
        raise UserError(f"{text.source}: has bytes 0x00, expected text, not a binary file")
    return RunningText(name, text if punctuation else _without_punctuation(text))


def _without_punctuation(text: ProvisionalText) -> ProvisionalText:
    """Running text: the same text without the words that have neither letters nor digits, such as commas."""
    kept = [True, *(word == UNKNOWN or any(map(str.isalnum, word)) for word in text.words)]
    words = [word for word, keep in zip(text.words, kept[1:], strict=True) if keep]
    if not words:
        raise UserError(f"{text.source}: has no words, only punctuation")
    number = np.cumsum(kept, dtype=np.int32) - 1  # the new code of each word that is kept
    return ProvisionalText(text.source, words, number[text.codes[np.array(kept)[text.codes]]])


def _read_folder(folder: Path, reading: TextReading) -> ProvisionalText:
    """Running text: read all files below a folder, in the order of their names; hidden files are left out."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    if not paths:
        raise UserError(f"{folder}: a folder without files, expected files of text")
    return coded_lines(str(folder), _lines(paths), reading)


def _lines(paths: list[Path]) -> Iterator[tuple[str, bool]]:
    """Running text: the lines of several files; an empty line follows each file, so that its last sentence ends."""
    for path in paths:
        yield from lines_of_text(path)
        yield "", True
