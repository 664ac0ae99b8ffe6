"""Parses of documents from files: bracketed parse trees, or dependency trees in CoNLL-U.

The tokens of a parser may differ from the tokens of the documents. Trees and documents are therefore aligned by letters
and digits alone. These must be the same, in the same order, in all trees and in all texts. A token of a document
belongs to the leaf that contains the first letter of the token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import read_gunzipped
from structsparse.corpora.conllu import TreeReader
from structsparse.corpora.documents import Constituents, Documents

# matches one of: an opening bracket and its label (group 1), a closing bracket (2), a word (3)
_BRACKETED = re.compile(r"\(\s*([^\s()]*)|(\))|([^\s()]+)")
# brackets in words are escaped in trees: {escaped form: bracket}
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_TRACE = "-NONE-"  # label of leaves without a word in the text (traces)
_NO_LETTERS = re.compile(r"[\W_]+")


class Tree(NamedTuple):
    """Parse tree of a sentence: its leaves (words) and constituents."""

    line: int  # line number in the file where the tree begins
    leaves: list[str]  # words as in the text, with ( instead of -LRB-
    spans: list[tuple[int, int, str]]  # constituents: (index of the first leaf, index after the last leaf, label)


@dataclass(frozen=True, eq=False)
class Trees:
    """Many parse trees, with concatenated leaves; constituents are ranges of these leaves."""

    leaves: list[str]  # words of all trees
    lines: list[int]  # line number where each tree begins
    offsets: np.ndarray  # int64, shape [trees + 1]: index of the first leaf of each tree, then the leaf count
    begin: np.ndarray  # int64, shape [constituents]: index of the first leaf
    end: np.ndarray  # int64, shape [constituents]: index after the last leaf
    labels: list[str]  # label of each constituent

    def line_of(self, leaf: int) -> int:
        """The line number where the parse tree that contains the given leaf begins."""
        return self.lines[int(np.searchsorted(self.offsets, leaf, side="right")) - 1]


def concatenated(trees: Iterable[Tree]) -> Trees:
    """Concatenate parse trees: constituents become ranges of the leaves of all trees."""
    leaves, lines, offsets, spans, labels = [], [], [0], [], []
    for tree in trees:
        before = len(leaves)
        leaves.extend(tree.leaves)
        lines.append(tree.line)
        offsets.append(len(leaves))
        spans.extend([(begin + before, end + before) for begin, end, _ in tree.spans])
        labels.extend([label for _, _, label in tree.spans])
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    return Trees(leaves, lines, np.array(offsets, np.int64), begin, end, labels)


# --- alignment with documents


def with_parses(documents: Documents, path: Path) -> Documents:
    """Add parses to documents: constituents and sentences from a file with the parse trees of all documents.

    The trees must be in the order of the documents."""
    trees = concatenated(read_trees(path))
    alignment = _Alignment.of(documents, trees, path)
    has_tokens, _, begin, _ = alignment.tokens_of(trees.offsets[:-1], trees.offsets[1:])
    sentences = np.append(begin[has_tokens], len(documents.tokens))
    has_tokens, owner, begin, end = alignment.tokens_of(trees.begin, trees.end)
    kinds = sorted(set(trees.labels))
    code = {kind: k for k, kind in enumerate(kinds)}
    first = documents.offsets[owner]
    constituents = Constituents(
        document=owner[has_tokens].astype(np.int32),
        begin=(begin - first)[has_tokens].astype(np.int32),
        end=(end - first)[has_tokens].astype(np.int32),
        value=np.full(int(has_tokens.sum()), -1, np.int16),
        kind=np.array([code[label] for label in trees.labels], np.int16)[has_tokens],
        kinds=tuple(kinds),
    )
    return replace(documents, constituents=constituents, sentence_offsets=sentences)


@dataclass(frozen=True, eq=False)
class _Alignment:
    """Alignment of parses with documents: positions of leaves and tokens, counted in letters and digits."""

    documents: Documents
    trees: Trees
    path: Path
    leaves: np.ndarray  # int64, shape [leaves + 1]: number of letters and digits before each leaf
    tokens: np.ndarray  # int64 array: number of letters and digits before each token
    texts: np.ndarray  # int64, shape [documents + 1]: number of letters and digits before each text

    @classmethod
    def of(cls, documents: Documents, trees: Trees, path: Path) -> _Alignment:
        """Align parses with documents; an error is raised if their letters and digits differ."""
        letters = [_NO_LETTERS.sub("", text) for text in documents.texts]
        leaf_letters = [_NO_LETTERS.sub("", leaf) for leaf in trees.leaves]
        leaves, texts = (
            np.concatenate([[0], np.cumsum(np.array([len(part) for part in parts], np.int64))])
            for parts in (leaf_letters, letters)
        )
        alignment = cls(documents, trees, path, leaves, _letters_before(documents), texts)
        alignment._check("".join(leaf_letters), "".join(letters))
        return alignment

    def tokens_of(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
        """Find the document tokens that belong to ranges of parse tree leaves.

        Returns four arrays, with an entry for each range: whether the range has tokens, the document, the first token,
        and the token after the last."""
        first, last = self.leaves[begin], self.leaves[end]
        owner = np.searchsorted(self.texts[1:-1], first, side="right")
        beyond = (last > first) & (last > self.texts[owner + 1])
        if beyond.any():
            k = int(np.argmax(beyond))
            raise UserError(
                f"{self.path}, line {self.trees.line_of(begin[k])}: the tree goes beyond the end of "
                f"{self.documents.names[owner[k]]}, expected a tree to end with its document at the latest"
            )
        offsets = self.documents.offsets
        low = np.maximum(np.searchsorted(self.tokens, first), offsets[owner])  # not before the document's first token
        high = np.searchsorted(self.tokens, last)
        return (last > first) & (high > low), owner, low, high

    def _check(self, leaves: str, letters: str) -> None:
        """Refuse parses of another text; the error shows where the letters begin to differ from the documents."""
        if leaves == letters:
            return
        both = min(len(leaves), len(letters))
        differ = np.flatnonzero(_code_points(leaves[:both]) != _code_points(letters[:both]))
        place = int(differ[0]) if len(differ) else both
        leaf = min(int(np.searchsorted(self.leaves[1:], place, side="right")), len(self.trees.leaves) - 1)
        document = min(int(np.searchsorted(self.texts[1:], place, side="right")), len(self.documents) - 1)
        raise UserError(
            f"{self.path}, line {self.trees.line_of(leaf)}: {_excerpt(leaves, place)} where "
            f"{self.documents.names[document]} has {_excerpt(letters, place)}; expected trees over all "
            f"{len(self.documents):,} documents, in their order, with the same letters and digits"
        )


def _letters_before(documents: Documents) -> np.ndarray:
    """Alignment of parses: for each token, the number of letters and digits before it (int64 array).

    The number counts those of all earlier documents, too."""
    points = _code_points("".join(documents.texts))
    is_letter = np.zeros(int(points.max(initial=0)) + 1, bool)
    present = np.flatnonzero(np.bincount(points))
    is_letter[present] = [chr(point).isalnum() for point in present.tolist()]
    before = np.concatenate([[0], np.cumsum(is_letter[points])])
    starts = np.concatenate([[0], np.cumsum([len(text) for text in documents.texts])])[:-1]
    return before[documents.begins + np.repeat(starts, documents.lengths)]


def _code_points(text: str) -> np.ndarray:
    """Alignment of parses: the Unicode code points of the characters of a text (uint32 array)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _excerpt(letters: str, place: int) -> str:
    """Twenty letters from position `place` on, for error messages about parses."""
    return repr(letters[place : place + 20]) if place < len(letters) else "nothing more"


# --- files


def read_trees(path: Path) -> Iterator[Tree]:
    """Read the parse trees of a file, plain or gzipped, in brackets or in CoNLL-U.

    A file that begins with a bracket has bracketed trees."""
    text = _text(path)
    if not text.strip():
        raise UserError(f"{path}: is empty, expected bracketed trees or CoNLL-U")
    return bracketed(path, text) if text.lstrip().startswith("(") else dependencies(path, text)


def _text(path: Path) -> str:
    """The text of a file of parse trees."""
    try:
        return read_gunzipped(path, "a file of parses").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error}, expected parses in UTF-8, plain or gzipped") from None


def bracketed(path: Path, text: str | None = None) -> Iterator[Tree]:
    """Read bracketed parse trees (label (label word) ...), each on one line or on several lines."""
    text = _text(path) if text is None else text
    line, counted = 1, 0  # `line` is the line number of the character at position `counted`
    first, leaves, spans, open_, empty = 1, [], [], [], False
    for part in _BRACKETED.finditer(text):
        kind = part.lastindex
        if kind == 1:
            if not open_:
                line, counted = line + text.count("\n", counted, part.start()), part.start()
                first, leaves, spans = line, [], []
            open_.append(len(spans))
            spans.append((len(leaves), -1, part[1]))
            empty = True
        elif not open_:
            line += text.count("\n", counted, part.start())
            raise UserError(f"{path}, line {line}: {part[0]!r} stands outside of a tree, expected (")
        elif kind == 3:
            if spans[open_[-1]][2] != _TRACE:
                leaves.append(unescaped(part[3]))
            empty = False
        else:
            node = open_.pop()
            if empty:
                line += text.count("\n", counted, part.start())
                raise UserError(f"{path}, line {line}: ({spans[node][2]}) has no word, expected (label word)")
            spans[node] = (spans[node][0], len(leaves), spans[node][2])
            if not open_:
                yield Tree(first, leaves, [span for span in spans if span[1] > span[0]])
    if open_:
        raise UserError(f"{path}, line {first}: the tree is not closed, expected )")


def unescaped(word: str) -> str:
    """Undo the escapes in a leaf of a bracketed parse tree: -LRB- becomes (, and \\/ becomes /."""
    return _BRACKETS.get(word) or word.replace("\\/", "/").replace("\\*", "*")


def dependencies(path: Path, text: str | None = None) -> Iterator[Tree]:
    """Read parse trees from CoNLL-U: each word makes a constituent of the word and its descendants.

    A constituent is a range of leaves that contains these words. A multiword token is one leaf."""
    reader = TreeReader(str(path))
    reader.take((_text(path) if text is None else text).replace("\r\n", "\n").split("\n"))
    reader.end()
    treebank = reader.complete()
    labels, heads = treebank.columns["deprel"].strings(), treebank.heads.tolist()
    for block, (first, last) in zip(treebank.blocks, pairwise(treebank.offsets.tolist()), strict=True):
        leaves, leaf_of = _leaves(block)
        spans = _subtree_spans(leaf_of, heads[first:last], labels[first:last])
        yield Tree(int(treebank.lines[first]), leaves, spans)


def _leaves(block: str) -> tuple[list[str], list[int]]:
    """The leaves of a parse tree in CoNLL-U, and the index of the leaf that contains each word."""
    leaves, leaf_of, multiword_end = [], [], 0  # multiword_end: word number at which the last multiword token ends
    for line in block.split("\n"):
        if line.startswith("#"):
            continue
        identity, form, _ = line.split("\t", 2)
        if "-" in identity:
            leaves.append(form)
            multiword_end = int(identity.split("-")[1])
        elif "." not in identity:
            if len(leaf_of) + 1 > multiword_end:
                leaves.append(form)
            leaf_of.append(len(leaves) - 1)
    return leaves, leaf_of


def _subtree_spans(leaf_of: list[int], heads: list[int], labels: list[str]) -> list[tuple[int, int, str]]:
    """The constituent of each word in a parse tree: the range of leaves of the word and its descendants.

    `leaf_of` has the leaf index of each word. Constituents are sorted by first leaf, then from long to short."""
    begin, end = list(leaf_of), [leaf + 1 for leaf in leaf_of]
    for word, head in enumerate(heads):  # extend the range of each ancestor to the word
        while head:
            begin[head - 1] = min(begin[head - 1], leaf_of[word])
            end[head - 1] = max(end[head - 1], leaf_of[word] + 1)
            head = heads[head - 1]
    return sorted(zip(begin, end, labels, strict=True), key=lambda span: (span[0], -span[1]))
