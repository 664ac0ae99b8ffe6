"""Parse trees from files: bracketed, or CoNLL-U with the phrases that its dependencies imply.

A parser has its own tokens. Its trees are laid over documents by letters and digits alone: those of all leaves, one
after the other, must be those of all texts. A token of a document belongs to the leaf that holds its first letter.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.conllu import TreeReader
from structsparse.corpora.documents import Constituents, Documents

_PART = re.compile(r"\(\s*([^\s()]*)|(\))|([^\s()]+)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_TRACE = "-NONE-"  # the label of leaves that stand for nothing in the text
_SILENT = re.compile(r"[\W_]+")


class Tree(NamedTuple):
    line: int  # of the file, where it begins
    leaves: list[str]  # as in a text: ( for -LRB-
    spans: list[tuple[int, int, str]]  # of each constituent the first leaf, the leaf after the last, and its label


@dataclass(frozen=True, eq=False)
class Forest:
    """The constituents of many trees over one row of leaves."""

    leaves: list[str]
    lines: list[int]  # [trees]
    offsets: np.ndarray  # int64 [trees + 1] into the leaves
    begin: np.ndarray  # int64 [constituents] into the leaves
    end: np.ndarray  # int64 [constituents]
    labels: list[str]  # [constituents]

    def line_of(self, leaf: int) -> int:
        """Where the tree of a leaf begins."""
        return self.lines[int(np.searchsorted(self.offsets, leaf, side="right")) - 1]


def with_parses(documents: Documents, path: Path) -> Documents:
    """Documents with the constituents and the sentences of a file of parses over all of them, one after the other."""
    forest = gathered(read_trees(path))
    ground = Ground.of(documents, forest, path)
    some, _, begin, _ = ground.place(forest.offsets[:-1], forest.offsets[1:])
    sentences = np.append(begin[some], len(documents.tokens))
    some, owner, begin, end = ground.place(forest.begin, forest.end)
    kinds = sorted(set(forest.labels))
    code = {kind: k for k, kind in enumerate(kinds)}
    first = documents.offsets[owner]
    constituents = Constituents(
        document=owner[some].astype(np.int32),
        begin=(begin - first)[some].astype(np.int32),
        end=(end - first)[some].astype(np.int32),
        value=np.full(int(some.sum()), -1, np.int16),
        kind=np.array([code[label] for label in forest.labels], np.int16)[some],
        kinds=tuple(kinds),
    )
    return replace(documents, constituents=constituents, sentence_offsets=sentences)


@dataclass(frozen=True, eq=False)
class Ground:
    """Leaves and the tokens of documents over one row of letters and digits."""

    documents: Documents
    forest: Forest
    path: Path
    leaves: np.ndarray  # int64 [leaves + 1], letters before each leaf
    tokens: np.ndarray  # int64 [tokens], letters before each token
    texts: np.ndarray  # int64 [documents + 1], letters before each text

    @classmethod
    def of(cls, documents: Documents, forest: Forest, path: Path) -> Ground:
        letters = [_SILENT.sub("", text) for text in documents.texts]
        spoken = [_SILENT.sub("", leaf) for leaf in forest.leaves]
        leaves, texts = (
            np.concatenate([[0], np.cumsum(np.array([len(part) for part in parts], np.int64))])
            for parts in (spoken, letters)
        )
        ground = cls(documents, forest, path, leaves, _letters_before(documents), texts)
        ground._refuse_another("".join(spoken), "".join(letters))
        return ground

    def place(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of stretches of leaves: whether they have a token, their document, and the tokens they begin and end at."""
        first, last = self.leaves[begin], self.leaves[end]
        owner = np.searchsorted(self.texts[1:-1], first, side="right")
        beyond = (last > first) & (last > self.texts[owner + 1])
        if beyond.any():
            k = int(np.argmax(beyond))
            raise UserError(
                f"{self.path}, line {self.forest.line_of(begin[k])}: the tree goes beyond the end of "
                f"{self.documents.names[owner[k]]}, expected a tree to end with its document at the latest"
            )
        offsets = self.documents.offsets
        low = np.maximum(np.searchsorted(self.tokens, first), offsets[owner])  # silent tokens may end the text before
        high = np.searchsorted(self.tokens, last)
        return (last > first) & (high > low), owner, low, high

    def _refuse_another(self, leaves: str, letters: str) -> None:
        if leaves == letters:
            return
        both = min(len(leaves), len(letters))
        differ = np.flatnonzero(_points(leaves[:both]) != _points(letters[:both]))
        place = int(differ[0]) if len(differ) else both
        leaf = min(int(np.searchsorted(self.leaves[1:], place, side="right")), len(self.forest.leaves) - 1)
        document = min(int(np.searchsorted(self.texts[1:], place, side="right")), len(self.documents) - 1)
        raise UserError(
            f"{self.path}, line {self.forest.line_of(leaf)}: {_glimpse(leaves, place)} where "
            f"{self.documents.names[document]} has {_glimpse(letters, place)}; expected trees over all "
            f"{len(self.documents):,} documents, in their order, that have the same letters and digits"
        )


def gathered(trees: Iterator[Tree]) -> Forest:
    """All trees over one row of leaves."""
    leaves, lines, offsets, spans, labels = [], [], [0], [], []
    for tree in trees:
        before = len(leaves)
        leaves.extend(tree.leaves)
        lines.append(tree.line)
        offsets.append(len(leaves))
        spans.extend([(begin + before, end + before) for begin, end, _ in tree.spans])
        labels.extend([label for _, _, label in tree.spans])
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    return Forest(leaves, lines, np.array(offsets, np.int64), begin, end, labels)


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, plain or gzipped: bracketed if it begins with a bracket, else CoNLL-U."""
    text = _text(path)
    if not text.strip():
        raise UserError(f"{path}: is empty, expected bracketed trees or CoNLL-U")
    return bracketed(path, text) if text.lstrip().startswith("(") else dependencies(path, text)


def bracketed(path: Path, text: str | None = None) -> Iterator[Tree]:
    """Trees as (label (label word) ...), each on one line or on several."""
    text = _text(path) if text is None else text
    line, seen = 1, 0  # the line of the place `seen`
    first, leaves, spans, open_, empty = 1, [], [], [], False
    for part in _PART.finditer(text):
        kind = part.lastindex
        if kind == 1:
            if not open_:
                line, seen = line + text.count("\n", seen, part.start()), part.start()
                first, leaves, spans = line, [], []
            open_.append(len(spans))
            spans.append((len(leaves), -1, part[1]))
            empty = True
        elif not open_:
            line += text.count("\n", seen, part.start())
            raise UserError(f"{path}, line {line}: {part[0]!r} stands outside of a tree, expected (")
        elif kind == 3:
            if spans[open_[-1]][2] != _TRACE:
                leaves.append(unescaped(part[3]))
            empty = False
        else:
            node = open_.pop()
            if empty:
                line += text.count("\n", seen, part.start())
                raise UserError(f"{path}, line {line}: ({spans[node][2]}) has no word, expected (label word)")
            spans[node] = (spans[node][0], len(leaves), spans[node][2])
            if not open_:
                yield Tree(first, leaves, [span for span in spans if span[1] > span[0]])
    if open_:
        raise UserError(f"{path}, line {first}: the tree is not closed, expected )")


def unescaped(word: str) -> str:
    """A leaf as its text has it."""
    return _BRACKETS.get(word) or word.replace("\\/", "/").replace("\\*", "*")


def dependencies(path: Path, text: str | None = None) -> Iterator[Tree]:
    """CoNLL-U: the constituent of a word is the smallest stretch that holds it and all its descendants, longer ones
    first. A multiword token is one leaf; empty nodes are left out."""
    reader = TreeReader(str(path))
    reader.take((_text(path) if text is None else text).replace("\r\n", "\n").split("\n"))
    reader.end()
    treebank = reader.complete()
    labels, heads = treebank.columns["deprel"].strings(), treebank.heads.tolist()
    for block, (first, last) in zip(treebank.blocks, pairwise(treebank.offsets.tolist()), strict=True):
        leaves, place = _leaves(block)
        spans = _stretches(place, heads[first:last], labels[first:last])
        yield Tree(int(treebank.lines[first]), leaves, spans)


def _leaves(block: str) -> tuple[list[str], list[int]]:
    """The leaves of a sentence, and the one that each of its words is, or is a part of."""
    leaves, place, joined = [], [], 0  # the last word of the last multiword token
    for line in block.split("\n"):
        if line.startswith("#"):
            continue
        identity, form, _ = line.split("\t", 2)
        if "-" in identity:
            leaves.append(form)
            joined = int(identity.split("-")[1])
        elif "." not in identity:
            if len(place) + 1 > joined:
                leaves.append(form)
            place.append(len(leaves) - 1)
    return leaves, place


def _stretches(place: list[int], heads: list[int], labels: list[str]) -> list[tuple[int, int, str]]:
    begin, end = list(place), [leaf + 1 for leaf in place]
    for word, above in enumerate(heads):  # each word widens all above it
        while above:
            begin[above - 1] = min(begin[above - 1], place[word])
            end[above - 1] = max(end[above - 1], place[word] + 1)
            above = heads[above - 1]
    return sorted(zip(begin, end, labels, strict=True), key=lambda span: (span[0], -span[1]))


def _letters_before(documents: Documents) -> np.ndarray:
    """How many letters and digits of all texts stand before each token: int64 [tokens]"""
    points = _points("".join(documents.texts))
    loud = np.zeros(int(points.max(initial=0)) + 1, bool)
    present = np.flatnonzero(np.bincount(points))
    loud[present] = [chr(point).isalnum() for point in present.tolist()]
    before = np.concatenate([[0], np.cumsum(loud[points])])
    starts = np.concatenate([[0], np.cumsum([len(text) for text in documents.texts])])[:-1]
    return before[documents.begins + np.repeat(starts, documents.lengths)]


def _points(text: str) -> np.ndarray:
    """The characters of a text as numbers: uint32 [characters]"""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _glimpse(letters: str, place: int) -> str:
    return repr(letters[place : place + 20]) if place < len(letters) else "nothing more"


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}, expected a file of parses") from None
    try:
        return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: {error}, expected parses in UTF-8, plain or gzipped") from None
