"""CoNLL-U and CoNLL-X treebank files: one word per line in ten columns between tabs, an empty line after a sentence.

Words are numbered from 1 on. CoNLL-U has two other kinds of numbered lines:

- A multiword token, such as 3-4, is the common spelling of the words 3 and 4.
- An empty node, such as 5.1, is an omitted word. Only the column `deps` refers to it.

Lines of these kinds and comments are kept for writing, but are not tokens. In CoNLL-X, the last two columns have the
head and the relation of each word in a second tree, which is projective."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import Source, chunks, gunzipped, name_of, whole_lines
from structsparse.corpora.columns import Column
from structsparse.corpora.treebank import COLUMNS, UNKNOWN, Treebank

FIELDS = "id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"
ID, HEAD, DEPREL, DEPS, MISC = (FIELDS.index(name) for name in ("id", "head", "deprel", "deps", "misc"))
# indices in FIELDS of the fields that become columns of a Treebank
_TREEBANK_FIELDS = [FIELDS.index("form" if name == "word" else name) for name in COLUMNS]
_NUMBER = r"[1-9]\d{0,8}"
_MULTIWORD = re.compile(rf"({_NUMBER})-({_NUMBER})", re.ASCII)
_EMPTY = re.compile(rf"(0|{_NUMBER})\.({_NUMBER})", re.ASCII)
_EXPECTED = "a file of CoNLL-U"


# --- reading


def read_treebank(source: Source, *, heads: bool = True) -> Treebank:
    """Read the treebank of a CoNLL-U file, plain or gzipped.

    If `heads` is false, the column of heads is ignored."""
    stream = TreebankStream(source, heads=heads)
    for lines in stream.lines():
        stream.reader.take(lines)
    stream.reader.end()
    return stream.reader.complete()


class TreebankStream:
    """CoNLL-U stream: sentences of a file or pipe, each yielded when the empty line after it has arrived.

    Sentences before an error are yielded before the error is raised."""

    def __init__(self, source: Source, *, heads: bool = True):
        self.source = source
        self.name = name_of(source)
        self.reader = TreeReader(self.name, heads)

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the CoNLL-U sentences read so far."""
        return self.reader.notes()

    def __iter__(self) -> Iterator[Treebank]:
        blocks = self.lines()
        failure, last = None, False
        while not (last or failure):
            try:
                lines = next(blocks, None)
                last = lines is None
                if last:
                    self.reader.end()
                else:
                    self.reader.take(lines)
            except UserError as error:
                failure = error
            if treebank := self.reader.complete():
                yield treebank
        if failure:
            raise failure

    def lines(self) -> Iterator[list[str]]:
        """Yield lists of whole lines of the CoNLL-U stream, as soon as they arrive."""
        number = 0  # number of lines before the current piece
        for data, last in whole_lines(gunzipped(self.name, chunks(self.source, _EXPECTED))):
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 0 else data
            valid = _valid_utf8(data)
            lines = data[:valid].decode().replace("\r\n", "\n").split("\n")
            number += len(lines) - 1
            last &= valid == len(data)
            yield [*lines[:-1], lines[-1].removesuffix("\r")] if last else lines[:-1]
            if valid < len(data):
                raise UserError(f"{self.name}, line {number + 1}: not UTF-8, expected {_EXPECTED}")


class TreeReader:
    """CoNLL-U reader: parses lines as they arrive and collects sentences with trees.

    `take` parses lines, `complete` returns the finished sentences, and `end` is called after the last line."""

    def __init__(self, name: str, heads: bool = True):
        self.name, self.with_heads = name, heads
        self.number = 0  # line number of the last parsed line
        self.sentences = 0  # number of sentences that have ended so far
        self.many_roots = 0  # number of sentences so far whose tree has several roots
        self.trailing_comments = 0  # number of comments after the last sentence
        self._block: list[str] = []  # lines of the current sentence
        self._words: list[list[str]] = []  # words of the current sentence, each a list of ten fields
        self._numbers: list[int] = []  # line number of each word of the current sentence
        self._other_tokens = 0  # count of multiword tokens and empty nodes in the current sentence
        self._last = 0  # line number of the last word, multiword token or empty node of the current sentence
        self._multiword_end = 0  # in the current sentence, the word number at which the last multiword token ends
        self._empty_nodes = 0  # count of empty nodes after the last word of the current sentence
        self._clear()

    def take(self, lines: list[str]) -> None:
        """Parse further lines of CoNLL-U."""
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
            elif self._words or self._other_tokens:
                self._end_sentence()

    def end(self) -> None:
        """Finish the CoNLL-U file after the last line; a file without a sentence is refused."""
        if self._words or self._other_tokens:
            self._end_sentence()
        self.trailing_comments = len(self._block)
        if not self.sentences:
            raise UserError(f"{self.name}: no sentence in it, expected lines of {len(FIELDS)} columns ({_listed()})")

    def complete(self) -> Treebank:
        """The treebank of the CoNLL-U sentences that have ended since the last call of `complete`."""
        width = len(COLUMNS)
        columns = {name: Column.from_strings(self._fields[k::width]) for k, name in enumerate(COLUMNS)}
        treebank = Treebank(
            columns,
            np.array([0, *self._ends], dtype=np.int64),
            self.name,
            tuple(self.notes()),
            heads=np.array(self._heads, dtype=np.int32),
            lines=np.array(self._lines, dtype=np.int32),
            blocks=tuple(self._blocks),
        )
        self._clear()
        return treebank

    def notes(self) -> list[str]:
        """CoNLL-U notes for the user: how many trees have several roots, and how many comments were left out."""
        notes = []
        if self.many_roots:
            notes.append(f"{self.many_roots:,} of {self.sentences:,} trees have several roots, where CoNLL-U has one")
        if self.trailing_comments:
            plural = "s" * (self.trailing_comments > 1)
            notes.append(f"{self.trailing_comments} comment line{plural} after the last sentence left out")
        return notes

    def _clear(self) -> None:
        """CoNLL-U reader: forget the sentences that `complete` has returned."""
        self._fields: list[str] = []  # fields that become columns of a Treebank, token after token
        self._heads: list[int] = []  # for each token: the word number of the head, 0 for a root
        self._lines: list[int] = []  # for each token: the line number
        self._ends: list[int] = []  # for each sentence: the number of tokens up to its end
        self._blocks: list[str] = []  # for each sentence: all its lines

    def _add(self, fields: list[str]) -> None:
        """Add a word, multiword token or empty node to the current CoNLL-U sentence."""
        words = len(self._words)
        if fields[ID] == str(words + 1):
            self._words.append(fields)
            self._numbers.append(self.number)
            self._last = self.number
            self._empty_nodes = 0
            return
        self._other_tokens, self._last = self._other_tokens + 1, self.number
        if multiword := _MULTIWORD.fullmatch(fields[ID]):
            first, last = map(int, multiword.groups())
            if first != words + 1 or last < first or self._multiword_end > words:
                raise self._error(f"id {fields[ID]} of a multiword token, expected one that begins at {words + 1}")
            self._multiword_end = last
        elif empty := _EMPTY.fullmatch(fields[ID]):
            if tuple(map(int, empty.groups())) != (words, self._empty_nodes + 1):
                raise self._error(f"id {fields[ID]} of an empty node, expected {words}.{self._empty_nodes + 1}")
            self._empty_nodes += 1
        else:
            raise self._error(f"id {fields[ID]!r}, expected {words + 1}")

    def _end_sentence(self) -> None:
        """End the current CoNLL-U sentence, and check its dependency tree."""
        count = len(self._words)
        if self._multiword_end > count or not count:
            expected = f"word {self._multiword_end} of a multiword token" if self._multiword_end else "a word in it"
            raise UserError(
                f"{self.name}, line {self._last}: the sentence ends after word {count}, expected {expected}"
            )
        self._heads += self._checked_heads() if self.with_heads else [UNKNOWN] * count
        for fields in self._words:
            self._fields += [fields[k] for k in _TREEBANK_FIELDS]
        self._lines += self._numbers
        self._ends.append(len(self._lines))
        self._blocks.append("\n".join(self._block))
        self.sentences += 1
        self._block, self._words, self._numbers = [], [], []
        self._other_tokens = self._multiword_end = self._empty_nodes = 0

    def _checked_heads(self) -> list[int]:
        """Parse the heads of the current CoNLL-U sentence, and check that they form one or several trees."""
        count, heads = len(self._words), []
        for word, (fields, line) in enumerate(zip(self._words, self._numbers, strict=True), 1):
            text = fields[HEAD]
            head = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else count + 1
            if head > count or head == word:
                named = f"word {word} ({fields[1]}) has itself as head" if head == word else f"head {text!r}"
                raise self._error(f"{named}, expected the number of another word up to {count}, or 0", line)
            heads.append(head)
        roots = heads.count(0)
        if not roots:
            begin, end = self._numbers[0], self._numbers[-1]
            raise UserError(f"{self.name}, lines {begin} to {end}: no word has head 0, expected a root")
        if cycle := cycle_of(heads):
            named = " -> ".join(f"{word} ({self._words[word - 1][1]})" for word in [*cycle, cycle[0]])
            raise self._error(f"heads form a cycle, {named}, expected a tree", self._numbers[cycle[0] - 1])
        self.many_roots += roots > 1
        return heads

    def _malformed(self, fields: list[str]) -> UserError:
        """The error for a CoNLL-U line that does not have ten columns or that has an empty column."""
        if len(fields) != len(FIELDS):
            columns = f"{len(fields)} column{'s' if len(fields) != 1 else ''} between tabs"
            return self._error(f"{columns}, expected {len(FIELDS)} ({_listed()})")
        empty = fields.index("")
        return self._error(f"column {empty + 1} ({FIELDS[empty]}) is empty, expected a value, or _ for none")

    def _error(self, problem: str, line: int | None = None) -> UserError:
        """An error that names the CoNLL-U file and a line, by default the line that is being parsed."""
        return UserError(f"{self.name}, line {line or self.number}: {problem}")


def cycle_of(heads: list[int]) -> list[int]:
    """Find a cycle in the heads of a CoNLL-U sentence, as a list of word numbers; empty if the heads form trees.

    In the list, the head of each word is the next word, and the head of the last word is the first."""
    visited_from = [0] * (len(heads) + 1)  # for each word: the first word of the walk that visited it; 0: not visited
    visited_from[0] = -1
    for start in range(1, len(heads) + 1):
        word = start
        while not visited_from[word]:
            visited_from[word], word = start, heads[word - 1]
        if visited_from[word] == start:  # the walk from `start` has reached the word twice
            cycle = [word]
            while (word := heads[word - 1]) != cycle[0]:
                cycle.append(word)
            least = cycle.index(min(cycle))
            return cycle[least:] + cycle[:least]
    return []


def _valid_utf8(data: bytes) -> int:
    """The number of bytes before the first CoNLL-U line that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data.rfind(b"\n", 0, error.start) + 1
    return len(data)


def _listed() -> str:
    """The names of the ten columns of CoNLL-U, for messages."""
    return " ".join(FIELDS)


# --- writing


def write_treebank(
    stream: BinaryIO,
    treebank: Treebank,
    heads: np.ndarray | None = None,
    labels: Column | None = None,
    remarks: Sequence[str] | None = None,
) -> None:
    """Write a treebank as CoNLL-U: the sentences as they were read, or with predicted `heads`.

    With predicted heads, the relations are `labels`, or _ if `labels` is None. `deps` becomes _. The last column,
    `misc`, keeps its value if the file is CoNLL-U. In CoNLL-X, the last column has relations of the old tree, and
    becomes _. `remarks` has a string NAME=VALUE for each token, which is then added to the last column."""
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
    """Put an arc into a CoNLL-U line; the column DEPS becomes _.

    `arcs` yields (head, relation, remark) for one word after the other. Comments and other lines that are not words
    take no arc."""
    if line.startswith("#"):
        return line
    fields = line.split("\t")
    if fields[DEPS].isdigit():  # in CoNLL-X, DEPS and MISC are head and relation in the projective tree
        fields[MISC] = "_"
    if fields[ID].isdigit():
        fields[HEAD], fields[DEPREL], remark = next(arcs)
        if remark:
            fields[MISC] = remark if fields[MISC] == "_" else f"{fields[MISC]}|{remark}"
    fields[DEPS] = "_"
    return "\t".join(fields)
