"""CoNLL-U, and CoNLL-X that it grew from: ten columns between tabs, a word a line, an empty line after a sentence.

Words are numbered from 1 on. In CoNLL-U a line 3-4 is the token that words 3 and 4 are written as, and a line 5.1 is a
word that the sentence leaves out and only its graph of `deps` speaks of. Both, and comments, are kept for writing and
are no tokens here; comments that an empty line follows go with the next sentence. In CoNLL-X the last two columns are
another head and its relation, in a projective tree.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column
from structsparse.corpora.columns_streamed import pieces_of, whole_lines
from structsparse.corpora.treebank import COLUMNS, UNKNOWN, Treebank

FIELDS = "id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"
ID, HEAD, DEPREL, DEPS, MISC = (FIELDS.index(name) for name in ("id", "head", "deprel", "deps", "misc"))
_KEPT = [FIELDS.index("form" if name == "word" else name) for name in COLUMNS]  # the columns of a treebank
_NUMBER = r"[1-9]\d{0,8}"
_JOINED = re.compile(rf"({_NUMBER})-({_NUMBER})", re.ASCII)
_EMPTY = re.compile(rf"(0|{_NUMBER})\.({_NUMBER})", re.ASCII)
_EXPECTED = "a file of CoNLL-U"
_ZIPPED = b"\x1f\x8b"


def read_treebank(source: str | os.PathLike | BinaryIO, *, heads: bool = True) -> Treebank:
    """All sentences of a file, plain or gzipped. Without `heads` that column is not looked at, whatever it holds."""
    stream = TreebankStream(source, heads=heads)
    for lines in stream.lines():
        stream.reader.take(lines)
    stream.reader.end()
    return stream.reader.complete()


class TreebankStream:
    """The sentences of a file or pipe as they arrive, some at a time, each once its empty line is there. A fault is
    told after the sentences before it."""

    def __init__(self, source: str | os.PathLike | BinaryIO, *, heads: bool = True):
        self.source = source
        self.place = str(getattr(source, "name", "stream") if hasattr(source, "read") else source)
        self.reader = TreeReader(self.place, heads)

    @property
    def notes(self) -> list[str]:
        """What there is to say of what has been read so far."""
        return self.reader.notes()

    def __iter__(self) -> Iterator[Treebank]:
        lines = self.lines()
        fault, last = None, False
        while not (last or fault):
            try:
                some = next(lines, None)
                last = some is None
                if last:
                    self.reader.end()
                else:
                    self.reader.take(some)
            except UserError as error:
                fault = error
            if treebank := self.reader.complete():
                yield treebank
        if fault:
            raise fault

    def lines(self) -> Iterator[list[str]]:
        """Whole lines, as many as have come."""
        number = 0  # of lines before
        for data, last in whole_lines(_unzipped(self.place, pieces_of(self.source, _EXPECTED))):
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 0 else data
            good = _readable(data)
            lines = data[:good].decode().replace("\r\n", "\n").split("\n")
            number += len(lines) - 1
            last &= good == len(data)
            yield [*lines[:-1], lines[-1].removesuffix("\r")] if last else lines[:-1]
            if good < len(data):
                raise UserError(f"{self.place}, line {number + 1}: no UTF-8, expected {_EXPECTED}")


class TreeReader:
    """Lines to trees, and what there is to say."""

    def __init__(self, place: str, heads: bool = True):
        self.place, self.wanted = place, heads
        self.number = 0  # of the last line taken
        self.sentences = 0  # that have ended
        self.many_roots = 0  # of them
        self.left_over = 0  # comments after the last sentence
        self._block: list[str] = []  # lines of the sentence that has begun
        self._words: list[list[str]] = []  # its words, as fields
        self._numbers: list[int] = []  # and the lines where they stand
        self._others = 0  # its multiword tokens and empty nodes
        self._last = 0  # line of the last of these three
        self._joined = 0  # the last word of its last multiword token
        self._empty = 0  # nodes after its last word
        self._clear()

    def take(self, lines: list[str]) -> None:
        for line in lines:
            self.number += 1
            if line.startswith("#"):
                self._block.append(line)
                continue
            fields = line.split("\t")
            if len(fields) == len(FIELDS) and "" not in fields:
                self._block.append(line)
                self._add(fields)
            elif line.strip(" \t"):
                raise self._malformed(fields)
            elif self._words or self._others:
                self._end_sentence()

    def end(self) -> None:
        """No line comes any more."""
        if self._words or self._others:
            self._end_sentence()
        self.left_over = len(self._block)
        if not self.sentences:
            raise UserError(f"{self.place}: no sentence in it, expected lines of {len(FIELDS)} columns ({_listed()})")

    def complete(self) -> Treebank:
        """The sentences that have ended since this was asked the last time."""
        width = len(COLUMNS)
        columns = {name: Column.from_strings(self._row[k::width]) for k, name in enumerate(COLUMNS)}
        found = Treebank(
            columns,
            np.array([0, *self._ends], dtype=np.int64),
            self.place,
            tuple(self.notes()),
            heads=np.array(self._heads, dtype=np.int32),
            lines=np.array(self._lines, dtype=np.int32),
            blocks=tuple(self._blocks),
        )
        self._clear()
        return found

    def notes(self) -> list[str]:
        found = []
        if self.many_roots:
            found.append(f"{self.many_roots:,} of {self.sentences:,} trees have several roots, where CoNLL-U has one")
        if self.left_over:
            found.append(f"{self.left_over} comment line{'s' * (self.left_over > 1)} after the last sentence left out")
        return found

    def _clear(self) -> None:
        """What has been handed on is gone."""
        self._row: list[str] = []  # the fields of all tokens that are kept
        self._heads: list[int] = []  # [tokens]
        self._lines: list[int] = []  # [tokens]
        self._ends: list[int] = []  # [sentences]
        self._blocks: list[str] = []  # [sentences]

    def _add(self, fields: list[str]) -> None:
        words = len(self._words)
        if fields[ID] == str(words + 1):
            self._words.append(fields)
            self._numbers.append(self.number)
            self._last = self.number
            self._empty = 0
            return
        self._others, self._last = self._others + 1, self.number
        if joined := _JOINED.fullmatch(fields[ID]):
            first, last = map(int, joined.groups())
            if first != words + 1 or last < first or self._joined > words:
                raise self._fault(f"id {fields[ID]} of a multiword token, expected one that begins at {words + 1}")
            self._joined = last
        elif empty := _EMPTY.fullmatch(fields[ID]):
            if tuple(map(int, empty.groups())) != (words, self._empty + 1):
                raise self._fault(f"id {fields[ID]} of an empty node, expected {words}.{self._empty + 1}")
            self._empty += 1
        else:
            raise self._fault(f"id {fields[ID]!r}, expected {words + 1}")

    def _end_sentence(self) -> None:
        count = len(self._words)
        if self._joined > count or not count:
            raise UserError(
                f"{self.place}, line {self._last}: the sentence ends after word {count}, expected "
                f"{f'word {self._joined} of a multiword token' if self._joined else 'a word in it'}"
            )
        self._heads += self._checked_heads() if self.wanted else [UNKNOWN] * count
        for fields in self._words:
            self._row += [fields[k] for k in _KEPT]
        self._lines += self._numbers
        self._ends.append(len(self._lines))
        self._blocks.append("\n".join(self._block))
        self.sentences += 1
        self._block, self._words, self._numbers = [], [], []
        self._others = self._joined = self._empty = 0

    def _checked_heads(self) -> list[int]:
        """The heads of a sentence, which are a tree, or several."""
        count, heads = len(self._words), []
        for word, (fields, line) in enumerate(zip(self._words, self._numbers, strict=True), 1):
            seen = fields[HEAD]
            head = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 10 else count + 1
            if head > count or head == word:
                named = f"word {word} ({fields[1]}) has itself as head" if head == word else f"head {seen!r}"
                raise self._fault(f"{named}, expected the number of another word up to {count}, or 0", line)
            heads.append(head)
        roots = heads.count(0)
        if not roots:
            begin, end = self._numbers[0], self._numbers[-1]
            raise UserError(f"{self.place}, lines {begin} to {end}: no word has head 0, expected a root")
        if circle := circle_of(heads):
            named = " -> ".join(f"{word} ({self._words[word - 1][1]})" for word in [*circle, circle[0]])
            raise self._fault(f"heads run in a circle, {named}, expected a tree", self._numbers[circle[0] - 1])
        self.many_roots += roots > 1
        return heads

    def _malformed(self, fields: list[str]) -> UserError:
        if len(fields) != len(FIELDS):
            columns = f"{len(fields)} column{'s' if len(fields) != 1 else ''} between tabs"
            return self._fault(f"{columns}, expected {len(FIELDS)} ({_listed()})")
        empty = fields.index("")
        return self._fault(f"column {empty + 1} ({FIELDS[empty]}) is empty, expected a value, or _ for none")

    def _fault(self, what: str, line: int | None = None) -> UserError:
        return UserError(f"{self.place}, line {line or self.number}: {what}")


def circle_of(heads: list[int]) -> list[int]:
    """Words each of which has the next as its head, the last the first; none if every word leads to a root.

    Heads are places from 1 on, 0 is the root."""
    visit = [0] * (len(heads) + 1)  # the word from which a word was come to first
    visit[0] = -1
    for start in range(1, len(heads) + 1):
        word = start
        while not visit[word]:
            visit[word], word = start, heads[word - 1]
        if visit[word] == start:  # come to from here, and now again
            circle = [word]
            while (word := heads[word - 1]) != circle[0]:
                circle.append(word)
            least = circle.index(min(circle))
            return circle[least:] + circle[:least]
    return []


def write_treebank(
    stream: BinaryIO,
    treebank: Treebank,
    heads: np.ndarray | None = None,
    labels: Column | None = None,
    remarks: Sequence[str] | None = None,
) -> None:
    """Write the sentences as they were read, or with other heads [tokens] and relations (without them: _), and with a
    remark on each word, which `misc` gets one more of: NAME=VALUE [tokens].

    Other heads leave no column that speaks of the old tree: `deps` of words and of empty nodes become _, because that
    graph was built upon the old heads and nobody has built another; of CoNLL-X so do both columns of the projective
    tree. Every line stays a line, so that input and output lie side by side.
    """
    if heads is None:
        stream.write("".join(f"{block}\n\n" for block in treebank.blocks).encode())
        return
    if heads.shape != (treebank.tokens,) or (labels is not None and len(labels) != treebank.tokens):
        raise ValueError(f"heads or relations of another number of tokens, expected {treebank.tokens}")
    relations = ["_"] * treebank.tokens if labels is None else labels.strings()
    remarks = [""] * treebank.tokens if remarks is None else remarks
    offsets, numbers = treebank.offsets.tolist(), [str(head) for head in heads.tolist()]
    for block, first, last in zip(treebank.blocks, offsets[:-1], offsets[1:], strict=True):
        arcs = zip(numbers[first:last], relations[first:last], remarks[first:last], strict=True)
        lines = [_with_arc(line, arcs) for line in block.split("\n")]
        stream.write("\n".join([*lines, "", ""]).encode())


def _with_arc(line: str, arcs: Iterator[tuple[str, str, str]]) -> str:
    """The line of a word with the next of these arcs; any other without a graph."""
    if line.startswith("#"):
        return line
    fields = line.split("\t")
    if fields[DEPS].isdigit():  # CoNLL-X: a head, and its relation after it
        fields[MISC] = "_"
    if fields[ID].isdigit():
        fields[HEAD], fields[DEPREL], remark = next(arcs)
        if remark:
            fields[MISC] = remark if fields[MISC] == "_" else f"{fields[MISC]}|{remark}"
    fields[DEPS] = "_"
    return "\t".join(fields)


def _unzipped(place: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, or what they are compressed from."""
    pieces = iter(pieces)
    start = b""
    while len(start) < len(_ZIPPED) and (piece := next(pieces, b"")):
        start += piece
    if start[: len(_ZIPPED)] != _ZIPPED:
        yield start
        yield from pieces
        return
    unzip, piece = zlib.decompressobj(wbits=31), start
    try:
        while piece:
            yield unzip.decompress(piece)
            piece = unzip.unused_data
            if piece:  # another one follows
                unzip = zlib.decompressobj(wbits=31)
            else:
                piece = next(pieces, b"")
        if not unzip.eof:
            raise zlib.error
    except zlib.error:
        raise UserError(f"{place}: the compressed file is cut short or damaged") from None


def _readable(data: bytes) -> int:
    """How many bytes come before the first line that is no UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data.rfind(b"\n", 0, error.start) + 1
    return len(data)


def _listed() -> str:
    return " ".join(FIELDS)
