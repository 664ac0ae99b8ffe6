"""Plain text as one long row of codes, sentence by sentence, for language models.

A file, plain or gzipped, is read once as a stream: every new word gets a provisional code, so that memory holds four
bytes a word beside the vocabulary; codes by frequency are laid over them at the end.

`<s>` and `</s>` in a text are the marks that they look like: a sentence begins or ends there. `<unk>` is a word.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NUMBER, PROPER_NOUN = "#n", "<proper_noun>"
_PIECE = 1 << 20  # bytes of a line that are taken at once: a line may be the whole file
_PARAGRAPH = 1 << 16  # characters of a paragraph after which its complete sentences are handed on
_MOST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Vocabulary:
    """The words that can be predicted, by falling count in training, of equals the first seen first, `</s>` last;
    `<unk>` is always one of them. Code len(vocabulary) is `<s>`, which stands in contexts only."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def codes(self) -> dict[str, int]:
        return {word: code for code, word in enumerate(self.words)}

    @property
    def unknown(self) -> int:
        return self.codes[UNKNOWN]

    @property
    def end(self) -> int:
        return len(self.words) - 1

    @property
    def start(self) -> int:
        return len(self.words)

    def name(self, code: int) -> str:
        return START if code == len(self.words) else self.words[code]


@dataclass(frozen=True)
class Text:
    """Sentences, each as `<s>`, its words and `</s>`."""

    vocabulary: Vocabulary
    codes: np.ndarray  # int32 [positions]
    known: np.ndarray  # bool [positions], False where a word outside the vocabulary stands as <unk>
    source: str = "text"

    @cached_property
    def history(self) -> np.ndarray:
        """int32 [positions], how many words stand before each in its sentence, its start included"""
        place = np.arange(len(self.codes), dtype=np.int32)
        return place - np.maximum.accumulate(np.where(self.codes == self.vocabulary.start, place, np.int32(0)))

    @cached_property
    def targets(self) -> np.ndarray:
        """int64 [tokens], the positions that are predicted: all but the starts"""
        return np.flatnonzero(self.codes != self.vocabulary.start)

    @property
    def sentences(self) -> int:
        return len(self.codes) - len(self.targets)

    @property
    def unknowns(self) -> int:
        """How many targets are outside the vocabulary."""
        return int((~self.known).sum())

    def describe(self) -> str:
        words = len(self.targets) - self.sentences
        share = f", {self.unknowns:,} of them unknown ({self.unknowns / words:.2%})" if self.unknowns else ""
        return f"{self.source}: {self.sentences:,} sentences, {words:,} words{share}"


@dataclass(frozen=True)
class Reading:
    """How text becomes sentences and words.

    sentences: `lines` (one a line) or `text` (running text: paragraphs between empty lines, in them sentences by their
    punctuation); tokens: `spaces` or `words` (words, numbers and punctuation apart). `classes` puts `#n` for numbers
    and `<proper_noun>` for capitalised words inside a sentence, `lower` comes after that."""

    sentences: str = "lines"
    tokens: str = "spaces"
    lower: bool = False
    classes: bool = False
    limit: int | None = None  # words read at most, up to the end of a sentence

    def __post_init__(self):
        _one_of("data.sentences", self.sentences, ("lines", "text"))
        _one_of("data.tokens", self.tokens, ("spaces", "words"))
        if self.limit is not None and self.limit < 1:
            raise UserError(f"data.limit is {self.limit}, expected null or a number of words of at least 1")

    def split(self, text: str) -> list[str]:
        return text.split() if self.tokens == "spaces" else _TOKEN.findall(text)

    def opening(self, tokens: Sequence[str]) -> int:
        """How many tokens open a sentence, its first word and the quotation marks before it, where that matters."""
        if not self.classes:
            return 0
        words = (k for k, token in enumerate(tokens, 1) if token != START and any(map(str.isalnum, token)))
        return next(words, 0)

    def word(self, token: str, inside: bool) -> str:
        """What stands for a token; `inside`: it comes after the opening of its sentence."""
        if token in _RESERVED:
            return token
        if self.classes and _IS_NUMBER.fullmatch(token):
            return NUMBER
        if self.classes and inside and token[0].isupper() and _FIRST_PERSON.fullmatch(token) is None:
            return PROPER_NOUN
        return token.lower() if self.lower else token


_RESERVED = frozenset([START, END, UNKNOWN, NUMBER, PROPER_NOUN])
_IS_NUMBER = re.compile(r"[-+]?[$£€]?\d[\d.,:/]*(?:st|nd|rd|th|s|%)?")
_FIRST_PERSON = re.compile(r"I(?:['’]\w+)?")
_TOKEN = re.compile(
    r"</?s>|<unk>|<proper_noun>|#n\b"
    r"|\d+(?:[.,:]\d+)+(?![^\W_])"  # 1,000.5
    r"|[^\W_]+(?:['’_-][^\W_]+)*"  # don't, mother-in-law; underscores around a word are emphasis
    r"|-+|\.+|[^\w\s]"
)
_SENTENCE_END = re.compile(  # where the next sentence begins: not by a small letter
    r"[.!?…]+[\"'”’)\]]*(\s+)(?=\S)(?![\"'“‘(\[]*[a-zß-öø-ÿ])"
)
_ABBREVIATIONS = (
    "Mr Mrs Ms Dr St Prof Rev Hon Capt Col Gen Lt Sgt Maj Messrs Mme Mlle vs e.g i.e cf [A-HJ-Z]"  # and initials
)
_NO_END = re.compile(rf"(?<![^\s\"'“‘(\[.-])(?:{_ABBREVIATIONS.replace('.', '[.]').replace(' ', '|')})[.]$")


class Coded:
    """Text in provisional codes: 0 where a sentence ends, 1 + k for the k-th word of `words`."""

    def __init__(self, source: str, words: Sequence[str], codes: np.ndarray):
        marks = codes == 0  # drop those that end nothing
        keep = ~marks
        keep[1:] |= marks[1:] & ~marks[:-1]
        self.source, self.words, self.codes = source, words, codes[keep]
        self.ends = np.flatnonzero(self.codes == 0) + 1  # [sentences]

    @property
    def tokens(self) -> int:
        """How many words there are, ends of sentences not counted."""
        return len(self.codes) - len(self.ends)

    def part(self, begin: int, end: int, name: str) -> Coded:
        """Sentences begin to end - 1."""
        first, last = (0 if k == 0 else int(self.ends[k - 1]) for k in (begin, end))
        return Coded(f"{self.source} ({name})", self.words, self.codes[first:last])

    def until(self, words: int, begin: int = 0) -> int:
        """The first sentence after those from `begin` on that have so many words, or the number of sentences."""
        before = self.ends - np.arange(1, len(self.ends) + 1)  # words up to the end of each sentence
        start = int(before[begin - 1]) if begin else 0
        return min(int(np.searchsorted(before, start + words)) + 1, len(self.ends))

    def vocabulary(self, min_count: int = 1) -> Vocabulary:
        """Words that occur so often, and `<unk>` for the others."""
        if min_count < 1:
            raise UserError(f"data.min_count is {min_count}, expected at least 1")
        words = [*self.words] if UNKNOWN in self.words else [*self.words, UNKNOWN]
        counts = np.bincount(self.codes, minlength=len(words) + 1)[1:]
        first = np.full(len(words) + 1, len(self.codes))
        first[self.codes[::-1]] = np.arange(len(self.codes))[::-1]  # of equal codes the last one written stays
        rare, unknown = counts < min_count, words.index(UNKNOWN)
        rare[unknown] = False
        counts[unknown] += counts[rare].sum()
        chosen = np.flatnonzero(~rare)
        order = chosen[np.lexsort((first[1:][chosen], -counts[chosen]))]
        return Vocabulary((*(words[k] for k in order.tolist()), END))

    def text(self, vocabulary: Vocabulary) -> Text:
        """The same in the codes of a vocabulary, with the starts of sentences."""
        known = vocabulary.codes
        code = np.array([vocabulary.end, *(known.get(word, -1) for word in self.words)], np.int32)
        sentences = len(self.ends)
        codes = np.full(len(self.codes) + sentences, vocabulary.start, np.int32)
        inside = np.ones(len(codes), bool)
        inside[np.append(0, self.ends[:-1])[:sentences] + np.arange(sentences)] = False
        codes[inside] = code[self.codes]
        unknown = codes < 0
        codes[unknown] = vocabulary.unknown
        return Text(vocabulary, codes, ~unknown, self.source)


def encode(sentences: Iterable[Sequence[str]], vocabulary: Vocabulary | None = None, source: str = "text") -> Text:
    """Sentences of words; without a vocabulary, in their own."""
    pieces = ((list(sentence), True) for sentence in sentences)
    coded = code_pieces(source, pieces, Reading())
    return coded.text(coded.vocabulary() if vocabulary is None else vocabulary)


def read_text(path: str | os.PathLike, vocabulary: Vocabulary, reading: Reading | None = None) -> Text:
    """A file, plain or gzipped, in the codes of a vocabulary."""
    return read_coded(path, Reading() if reading is None else reading).text(vocabulary)


def read_coded(path: str | os.PathLike, reading: Reading) -> Coded:
    """A file, plain or gzipped, in provisional codes."""
    return coded_lines(str(path), lines_of_text(Path(path)), reading)


def coded_lines(source: str, lines: Iterable[tuple[str, bool]], reading: Reading) -> Coded:
    """Lines, or pieces of lines each with whether its line ends there, in provisional codes."""
    coded = code_pieces(source, sentences_of(lines, reading), reading)
    if not len(coded.ends):
        raise UserError(f"{source}: has no words, expected text")
    return coded


class _Codes(dict):
    """token -> provisional code of the word that stands for it, which a new one gets when it is asked for."""

    def __init__(self, word: Callable[[str], str], numbers: dict[str, int]):
        super().__init__()
        self.word, self.numbers = word, numbers

    def __missing__(self, token: str) -> int:
        word = self.word(token)
        code = 0 if word in (START, END) else self.numbers.setdefault(word, len(self.numbers) + 1)
        self[token] = code
        return code


def code_pieces(source: str, pieces: Iterable[tuple[list[str], bool]], reading: Reading) -> Coded:
    """Pieces of sentences, each with whether its sentence ends there, as codes."""
    numbers: dict[str, int] = {}
    inside = _Codes(lambda token: reading.word(token, True), numbers)
    first = _Codes(lambda token: reading.word(token, False), numbers)
    codes, begun, whole, words = array("i"), False, 0, 0  # whole: codes in complete sentences
    for tokens, ends in pieces:
        opening = 0 if begun else reading.opening(tokens)
        codes.extend(map(first.__getitem__, tokens[:opening]))
        codes.extend(map(inside.__getitem__, tokens[opening:] if opening else tokens))
        words, begun = words + len(tokens), not ends and (begun or bool(tokens))
        if reading.limit is not None and words > reading.limit:
            if not whole:
                raise UserError(f"{source}: the first sentence has over data.limit={reading.limit} words")
            del codes[whole:]
            break
        if ends:
            codes.append(0)
            whole = len(codes)
        if len(codes) > _MOST // 2:
            raise UserError(f"{source}: over {_MOST // 2:,} words; read fewer with data.limit")
    else:
        codes.append(0)
    return Coded(source, list(numbers), np.array(codes, np.int32))


def sentences_of(lines: Iterable[tuple[str, bool]], reading: Reading) -> Iterator[tuple[list[str], bool]]:
    """The tokens of sentences in pieces, each with whether its sentence ends there."""
    if reading.sentences == "lines":
        for line, ends in lines:
            yield reading.split(line), ends
        return
    paragraph, size = [], 0
    for line, ends in lines:
        if line.strip() or not ends:
            paragraph.append(line)
            size += len(line)
        if size > _PARAGRAPH:
            *whole, rest = _split_sentences(" ".join(paragraph))
            for sentence in whole:
                yield reading.split(sentence), True
            if len(rest) > _PARAGRAPH:  # no end in sight, but perhaps after the last word
                begun, _, rest = rest.rstrip().rpartition(" ")
                yield reading.split(begun), False
            paragraph, size = [rest], len(rest)
        elif ends and not line.strip():
            for sentence in _split_sentences(" ".join(paragraph)):
                yield reading.split(sentence), True
            paragraph, size = [], 0
    for sentence in _split_sentences(" ".join(paragraph)):
        yield reading.split(sentence), True


def _split_sentences(paragraph: str) -> list[str]:
    sentences, begin = [], 0
    for end in _SENTENCE_END.finditer(paragraph):
        stop = end.start(1)
        if paragraph[end.start()] != "." or _NO_END.search(paragraph, max(begin, stop - 12), stop) is None:
            sentences.append(paragraph[begin:stop])
            begin = end.end()
    return [*sentences, paragraph[begin:]]


def lines_of_text(path: Path) -> Iterator[tuple[str, bool]]:
    """The lines of a file, very long ones in pieces cut at spaces, each with whether the line ends there."""
    number, held = 1, b""
    for data in _pieces(path):
        ends = data.endswith(b"\n")
        data, held = held + data, b""
        if not ends:
            *begun, held = data.rpartition(b" ")
            data = b"".join(begun)
        yield decoded(path, number, data), ends
        number += ends
    yield decoded(path, number, held), True


def decoded(path: Path, number: int, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise UserError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8, expected text in UTF-8") from None


def _pieces(path: Path) -> Iterator[bytes]:
    """The lines of a file, plain or gzipped; very long ones in pieces."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a file of text")
    try:
        with path.open("rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"  # a pipe cannot go back
            with gzip.GzipFile(fileobj=file) if zipped else file as plain:
                while data := plain.readline(_PIECE):
                    yield data
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected a file of text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path}: the compressed file is cut short or damaged") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _one_of(name: str, value, choices: Sequence) -> None:
    if value not in choices:
        raise UserError(f"{name} is {value!r}, expected one of {', '.join(map(str, choices))}")
