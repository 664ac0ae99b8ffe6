"""Text reading for language models: plain text files become lines, then sentences, then tokens.

Lines, sentences and paragraphs are read in pieces, because a line may be larger than memory. If a file has the tokens
`<s>` and `</s>`, they separate sentences. The token `<unk>` is read as a word."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import damaged

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NUMBER, PROPER_NOUN, ZERO = "#n", "<proper_noun>", "0"  # words that replace numbers and proper nouns
_PIECE = 1 << 20  # maximum number of bytes that one read takes from a line
_PARAGRAPH = 1 << 16  # if a paragraph has more characters, sentences are yielded before its end

_RESERVED = frozenset([START, END, UNKNOWN, NUMBER, PROPER_NOUN])
_IS_NUMBER = re.compile(r"[-+]?[$£€]?\d[\d.,:/]*(?:st|nd|rd|th|s|%)?")
_FIRST_PERSON = re.compile(r"I(?:['’]\w+)?")
_TOKEN = re.compile(
    r"</?s>|<unk>|<proper_noun>|#n\b"
    r"|\d+(?:[.,:]\d+)+(?![^\W_])"  # a number, such as 1,000.5
    r"|[^\W_]+(?:['’_-][^\W_]+)*"  # a word, such as don't or mother-in-law, without underscores around it
    r"|-+|\.+|[^\w\s]"
)
_SENTENCE_END = re.compile(  # punctuation at the end of a sentence; the next word must not begin with a small letter
    r"[.!?…]+[\"'”’)\]]*(\s+)(?=\S)(?![\"'“‘(\[]*[a-zß-öø-ÿ])"
)
_ABBREVIATIONS = (  # words before a period that ends no sentence; [A-HJ-Z] is an initial of a name
    "Mr Mrs Ms Dr St Prof Rev Hon Capt Col Gen Lt Sgt Maj Messrs Mme Mlle vs e.g i.e cf [A-HJ-Z]"
)
_NO_END = re.compile(rf"(?<![^\s\"'“‘(\[.-])(?:{_ABBREVIATIONS.replace('.', '[.]').replace(' ', '|')})[.]$")


@dataclass(frozen=True)
class TextReading:
    """Text reading rules, by which text for a language model becomes sentences and words.

    - `sentences` is "lines" (a sentence per line) or "text". In "text", empty lines separate paragraphs, and
      punctuation separates sentences.
    - `tokens` is "spaces" (split at spaces) or "words" (words, numbers and punctuation are separate tokens).
    - `classes` replaces numbers by `#n`, and capitalised words inside a sentence by `<proper_noun>`.
    - `zeros` replaces numbers by `0`.
    - `lower` converts words to small letters."""

    sentences: str = "lines"
    tokens: str = "spaces"
    lower: bool = False
    classes: bool = False
    limit: int | None = None  # maximum number of words; only whole sentences are read
    zeros: bool = False

    def __post_init__(self):
        _check("data.sentences", self.sentences, ("lines", "text"))
        _check("data.tokens", self.tokens, ("spaces", "words"))
        if self.limit is not None and self.limit < 1:
            raise UserError(f"data.limit is {self.limit}, expected null or a number of words of at least 1")

    def split(self, text: str) -> list[str]:
        """Text reading: split a line or sentence into tokens."""
        return text.split() if self.tokens == "spaces" else _TOKEN.findall(text)

    def opening(self, tokens: Sequence[str]) -> int:
        """Text reading: the number of tokens of a sentence up to and including its first word.

        The first word is capitalised anyway, and is therefore not replaced as a proper noun. If the option `classes` is
        off, no token is replaced by a word class, and the result is 0."""
        if not self.classes:
            return 0
        words = (k for k, token in enumerate(tokens, 1) if token != START and any(map(str.isalnum, token)))
        return next(words, 0)

    def word(self, token: str, inside: bool) -> str:
        """Text reading: the word that replaces a token.

        `inside` says whether the token comes after the first word of the sentence."""
        if token in _RESERVED:
            return token
        if self.classes and _IS_NUMBER.fullmatch(token):
            return NUMBER
        if self.zeros and _IS_NUMBER.fullmatch(token):
            return ZERO
        if self.classes and inside and token[0].isupper() and _FIRST_PERSON.fullmatch(token) is None:
            return PROPER_NOUN
        return token.lower() if self.lower else token


def _check(name: str, value: object, choices: Sequence) -> None:
    """Refuse a value of a text reading option that is not one of the choices."""
    if value not in choices:
        raise UserError(f"{name} is {value!r}, expected one of {', '.join(map(str, choices))}")


# --- lines to sentences


def sentences_of(lines: Iterable[tuple[str, bool]], reading: TextReading) -> Iterator[tuple[list[str], bool]]:
    """Text reading: split lines into sentences and tokens.

    `lines` has pairs (piece of a line, whether the line ends there). Yields pairs (tokens, whether the sentence ends
    there)."""
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
            *complete, rest = _split_sentences(" ".join(paragraph))
            for sentence in complete:
                yield reading.split(sentence), True
            if len(rest) > _PARAGRAPH:  # a very long sentence: all but the last word are yielded
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
    """Text reading: split a paragraph into sentences by punctuation.

    The last sentence may be incomplete."""
    sentences, begin = [], 0
    for end in _SENTENCE_END.finditer(paragraph):
        stop = end.start(1)
        if paragraph[end.start()] != "." or _NO_END.search(paragraph, max(begin, stop - 12), stop) is None:
            sentences.append(paragraph[begin:stop])
            begin = end.end()
    return [*sentences, paragraph[begin:]]


# --- files to lines


def lines_of_text(path: Path) -> Iterator[tuple[str, bool]]:
    """Text reading: the lines of a file, in pieces.

    Yields pairs (piece of a line, whether the line ends there). A very long line is cut at spaces."""
    number, rest = 1, b""
    for data in _pieces(path):
        ends = data.endswith(b"\n")
        data, rest = rest + data, b""
        if not ends:
            *begun, rest = data.rpartition(b" ")
            data = b"".join(begun)
        yield decoded(path, number, data), ends
        number += ends
    yield decoded(path, number, rest), True


def decoded(path: Path, number: int, data: bytes) -> str:
    """Text reading: decode line `number` of a file; an error is raised if the line is not UTF-8."""
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise UserError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8, expected text in UTF-8") from None


def _pieces(path: Path) -> Iterator[bytes]:
    """Text reading: the lines of a plain or gzipped file as bytes, very long lines in pieces."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a file of text")
    try:
        with path.open("rb") as file:
            gzipped = file.peek(2)[:2] == b"\x1f\x8b"  # `peek`, because a pipe cannot be read twice
            with gzip.GzipFile(fileobj=file) if gzipped else file as plain:
                while data := plain.readline(_PIECE):
                    yield data
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected a file of text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise damaged(str(path)) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
