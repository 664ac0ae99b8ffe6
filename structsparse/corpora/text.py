"""Encoded text of language models: a vocabulary, and the words of all sentences as one array of integer codes.

A file is read once, as a stream. Every new word gets a provisional code, because word frequencies are not known yet. At
the end, the words get final codes in the order of their frequency. Memory holds the vocabulary and four
bytes for each word of the text."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text_reading import END, START, UNKNOWN, TextReading, lines_of_text, sentences_of

_MOST = np.iinfo(np.int32).max  # largest int32; a text is limited to half as many codes, to leave room for `<s>`


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of a text: the words that a language model can predict.

    Words are sorted by falling frequency in training, then by first appearance. `</s>` is the last word. `<unk>` is
    always in the vocabulary. The code len(vocabulary) stands for `<s>`, which is never predicted."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def codes(self) -> dict[str, int]:
        """The code of each word in the vocabulary of a text."""
        return {word: code for code, word in enumerate(self.words)}

    @property
    def unknown(self) -> int:
        """The code of `<unk>` (a word outside the vocabulary) in a text."""
        return self.codes[UNKNOWN]

    @property
    def end(self) -> int:
        """The code of `</s>` (the end of a sentence) in a text."""
        return len(self.words) - 1

    @property
    def start(self) -> int:
        """The code of `<s>` (the beginning of a sentence) in a text."""
        return len(self.words)

    def name(self, code: int) -> str:
        """The word that a code of an encoded text stands for, `<s>` included."""
        return START if code == len(self.words) else self.words[code]


@dataclass(frozen=True)
class EncodedText:
    """Encoded text in the codes of a vocabulary: each sentence is `<s>`, the words and `</s>`."""

    vocabulary: Vocabulary
    codes: np.ndarray  # int32 array: the code at each position of the text
    known: np.ndarray  # bool array: False where <unk> replaces a word outside the vocabulary
    source: str = "text"  # the file of the text, for messages

    @cached_property
    def history(self) -> np.ndarray:
        """Encoded text: how many words precede each position in its sentence, `<s>` included (int32 array)."""
        place = np.arange(len(self.codes), dtype=np.int32)
        return place - np.maximum.accumulate(np.where(self.codes == self.vocabulary.start, place, np.int32(0)))

    @cached_property
    def targets(self) -> np.ndarray:
        """Encoded text: the positions of the words to predict, which are all words but `<s>` (int64 array)."""
        return np.flatnonzero(self.codes != self.vocabulary.start)

    @property
    def sentences(self) -> int:
        """The number of sentences of an encoded text."""
        return len(self.codes) - len(self.targets)

    @property
    def unknowns(self) -> int:
        """The number of words of an encoded text that are outside the vocabulary."""
        return int((~self.known).sum())

    def describe(self) -> str:
        """A line for the user: numbers of sentences, words and unknown words of an encoded text."""
        words = len(self.targets) - self.sentences
        share = f", {self.unknowns:,} of them unknown ({self.unknowns / words:.2%})" if self.unknowns else ""
        return f"{self.source}: {self.sentences:,} sentences, {words:,} words{share}"


class ProvisionalText:
    """Provisional text: a text before it is encoded with a vocabulary; its words have codes in order of first reading.

    The code 0 ends a sentence. The code k + 1 stands for the word `words[k]`."""

    def __init__(self, source: str, words: Sequence[str], codes: np.ndarray):
        ends = codes == 0
        keep = ~ends
        keep[1:] |= ends[1:] & ~ends[:-1]  # drop empty sentences: of consecutive ends, keep the first
        self.source, self.words, self.codes = source, words, codes[keep]
        self.ends = np.flatnonzero(self.codes == 0) + 1  # the index in `codes` after each sentence

    @property
    def tokens(self) -> int:
        """The number of words of a provisional text, without ends of sentences."""
        return len(self.codes) - len(self.ends)

    def part(self, begin: int, end: int, name: str) -> ProvisionalText:
        """The provisional text of the sentences `begin` to `end` - 1."""
        first, last = (0 if k == 0 else int(self.ends[k - 1]) for k in (begin, end))
        return ProvisionalText(f"{self.source} ({name})", self.words, self.codes[first:last])

    def until(self, words: int, begin: int = 0) -> int:
        """Provisional text: the smallest `end` such that sentences `begin` to `end` - 1 have at least `words` words.

        If the text is too short, the result is the number of sentences."""
        before = self.ends - np.arange(1, len(self.ends) + 1)  # number of words up to the end of each sentence
        start = int(before[begin - 1]) if begin else 0
        return min(int(np.searchsorted(before, start + words)) + 1, len(self.ends))

    def vocabulary(self, min_count: int = 1) -> Vocabulary:
        """The vocabulary of a provisional text: all words that occur at least `min_count` times.

        All other words become `<unk>`."""
        if min_count < 1:
            raise UserError(f"data.min_count is {min_count}, expected at least 1")
        words = [*self.words] if UNKNOWN in self.words else [*self.words, UNKNOWN]
        counts = np.bincount(self.codes, minlength=len(words) + 1)[1:]
        first = np.full(len(words) + 1, len(self.codes))
        # the first position of each code: later positions are assigned first, then overwritten by earlier ones
        first[self.codes[::-1]] = np.arange(len(self.codes))[::-1]
        rare, unknown = counts < min_count, words.index(UNKNOWN)
        rare[unknown] = False
        counts[unknown] += counts[rare].sum()
        chosen = np.flatnonzero(~rare)
        order = chosen[np.lexsort((first[1:][chosen], -counts[chosen]))]
        return Vocabulary((*(words[k] for k in order.tolist()), END))

    def text(self, vocabulary: Vocabulary) -> EncodedText:
        """Encode a provisional text in the codes of a vocabulary, with `<s>` before each sentence."""
        code_of = vocabulary.codes
        code = np.array([vocabulary.end, *(code_of.get(word, -1) for word in self.words)], np.int32)
        sentences = len(self.ends)
        codes = np.full(len(self.codes) + sentences, vocabulary.start, np.int32)
        inside = np.ones(len(codes), bool)
        inside[np.append(0, self.ends[:-1])[:sentences] + np.arange(sentences)] = False
        codes[inside] = code[self.codes]
        unknown = codes < 0
        codes[unknown] = vocabulary.unknown
        return EncodedText(vocabulary, codes, ~unknown, self.source)


# --- reading


def encode(
    sentences: Iterable[Sequence[str]], vocabulary: Vocabulary | None = None, source: str = "text"
) -> EncodedText:
    """Encode a text (lists of words) by a vocabulary; without a vocabulary, one is made from the text."""
    pieces = ((list(sentence), True) for sentence in sentences)
    coded = code_pieces(source, pieces, TextReading())
    return coded.text(coded.vocabulary() if vocabulary is None else vocabulary)


def read_text(path: str | os.PathLike, vocabulary: Vocabulary, reading: TextReading | None = None) -> EncodedText:
    """Read a text file, plain or gzipped, as an encoded text in the codes of a vocabulary."""
    return read_coded(path, TextReading() if reading is None else reading).text(vocabulary)


def read_coded(path: str | os.PathLike, reading: TextReading) -> ProvisionalText:
    """Read a text file, plain or gzipped, as word codes that do not depend on a vocabulary (`ProvisionalText`)."""
    return coded_lines(str(path), lines_of_text(Path(path)), reading)


def coded_lines(source: str, lines: Iterable[tuple[str, bool]], reading: TextReading) -> ProvisionalText:
    """Code the words of a text as in `code_pieces`.

    `lines` has pairs: a piece of a line, and whether the line ends after this piece."""
    coded = code_pieces(source, sentences_of(lines, reading), reading)
    if not len(coded.ends):
        raise UserError(f"{source}: has no words, expected text")
    return coded


class _CodeOf(dict):
    """Dictionary from the tokens of a text to provisional codes; a new token gets a code on first use."""

    def __init__(self, word: Callable[[str], str], numbers: dict[str, int]):
        super().__init__()
        self.word, self.numbers = word, numbers

    def __missing__(self, token: str) -> int:
        word = self.word(token)
        code = 0 if word in (START, END) else self.numbers.setdefault(word, len(self.numbers) + 1)
        self[token] = code
        return code


def code_pieces(source: str, pieces: Iterable[tuple[list[str], bool]], reading: TextReading) -> ProvisionalText:
    """Code the words of a text in order of first occurrence, without a vocabulary.

    `pieces` yields pairs: a list of tokens, and whether the sentence ends after these tokens."""
    numbers: dict[str, int] = {}
    inside = _CodeOf(lambda token: reading.word(token, True), numbers)
    first = _CodeOf(lambda token: reading.word(token, False), numbers)
    # begun: whether the current sentence has tokens; complete: number of codes of all complete sentences
    codes, begun, complete, words = array("i"), False, 0, 0
    for tokens, ends in pieces:
        opening = 0 if begun else reading.opening(tokens)
        codes.extend(map(first.__getitem__, tokens[:opening]))
        codes.extend(map(inside.__getitem__, tokens[opening:] if opening else tokens))
        words, begun = words + len(tokens), not ends and (begun or bool(tokens))
        if reading.limit is not None and words > reading.limit:
            if not complete:
                raise UserError(f"{source}: the first sentence has over data.limit={reading.limit} words")
            del codes[complete:]
            break
        if ends:
            codes.append(0)
            complete = len(codes)
        if len(codes) > _MOST // 2:
            raise UserError(f"{source}: over {_MOST // 2:,} words; read fewer with data.limit")
    else:
        codes.append(0)
    return ProvisionalText(source, list(numbers), np.array(codes, np.int32))
