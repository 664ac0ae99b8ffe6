"""Attributes of tokens from word lists: entries of lexicons (gazetteers), and clusters of words in a binary tree.

- The attribute `lexicon` gives the class of the lexicon entry that a token belongs to. It is B-CITY at the first token
  of an entry of class CITY, I-CITY at its other tokens, and O outside of entries. Entries are matched from left to
  right; of several entries at a token, the longest is taken.
- The attributes `cluster4`, `cluster6`, `cluster10` and `cluster20` are the first 4, 6, 10 and 20 bits of the cluster
  of the word. The bits are the path to the cluster in a binary tree, such as a tree of Brown clusters. The attributes
  are empty for a word without a cluster.

An artifact stores the word lists, so that prediction needs no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structsparse.base.downloads import find_path
from structsparse.base.errors import UserError
from structsparse.corpora.byte_streams import read_gunzipped
from structsparse.corpora.columns import Column, Sentences
from structsparse.features.clusters.brown import brown_tree

BROWN = "brown"  # value of features.clusters: clusters are made by Brown clustering
LEXICON = "lexicon"  # name of the attribute for lexicon entries
PREFIXES = (4, 6, 10, 20)  # for each number, an attribute with this number of first bits of the cluster
CLUSTERS = tuple(f"cluster{size}" for size in PREFIXES)
LISTED = "1-grams of {}[-1..1]"  # template line for an attribute of word lists
OUTSIDE = "O"  # value of `lexicon` for a token without an entry
_BITS = re.compile(r"[01]+")


@dataclass(frozen=True, eq=False)
class WordLists:
    """Word lists: lexicons and clusters, which give further attributes to the tokens of sentences."""

    entries: Mapping[str, str] = field(default_factory=dict)  # lexicon entry (words separated by spaces) -> class
    lower: bool = True  # whether entries and tokens are compared in lower case
    clusters: Mapping[str, str] = field(default_factory=dict)  # word -> bits of its cluster

    @classmethod
    def read(
        cls,
        lexicons: Sequence[str] = (),
        clusters: str | None = None,
        lower: bool = True,
        make: Callable[[], Mapping[str, str]] | None = None,
    ) -> WordLists:
        """Read word lists: lexicon files have an entry in each line, a cluster file has lines `bits TAB word`.

        If `clusters` is "brown", the function `make` makes the clusters, see `brown_clusters`. If an entry has several
        classes, these are joined by +."""
        if isinstance(lexicons, str) or not isinstance(lower, bool):
            raise UserError("features.lexicons expects a list of files, and features.lexicons_lower true or false")
        entries: dict[str, str] = {}
        for path in lexicons:
            for entry, kind in _read_lexicon(str(path)):
                entry = entry.lower() if lower else entry
                kinds = {kind, *entries[entry].split("+")} if entry in entries else {kind}
                entries[entry] = "+".join(sorted(kinds))
        if clusters == BROWN and make is not None:
            return cls(entries, lower, make())
        return cls(entries, lower, {} if clusters is None else _read_clusters(str(clusters)))

    @property
    def attributes(self) -> tuple[str, ...]:
        """Word lists: the names of the attributes that they give to tokens."""
        return (*((LEXICON,) if self.entries else ()), *(CLUSTERS if self.clusters else ()))

    @property
    def templates(self) -> list[str]:
        """Word lists: lines of feature templates that read the attributes of these lists."""
        return [LISTED.format(name) for name in self.attributes]

    def added(self, sentences: Sentences) -> Sentences:
        """Word lists: the sentences with an added column for each attribute of these lists."""
        if not self.attributes:
            return sentences
        if "word" not in sentences.columns:
            raise UserError(f"{sentences.source}: no column word, which lexicons and clusters need")
        for name in self.attributes:
            if name in sentences.columns:
                raise UserError(f"{sentences.source}: a column has the name {name}, which the word lists need")
        words = sentences.columns["word"]
        if self.entries:
            sentences = sentences.with_column(LEXICON, self._matched(sentences))
        if self.clusters:
            bits = [self._bits(word) for word in words.values]
            for name, size in zip(CLUSTERS, PREFIXES, strict=True):
                column = Column.from_strings([path[:size] for path in bits])
                sentences = sentences.with_column(name, Column(column.values, column.codes[words.codes]))
        return sentences

    def _bits(self, word: str) -> str:
        """Word lists: the cluster bits of a word, or else of the word in lower case; empty if neither has a cluster."""
        return self.clusters.get(word) or self.clusters.get(word.lower(), "")

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """Word lists: for each first word of lexicon entries, the numbers of words of these entries, longest first."""
        lengths: dict[str, set[int]] = {}
        for entry in self.entries:
            words = entry.split(" ")
            lengths.setdefault(words[0], set()).add(len(words))
        return {word: sorted(sizes, reverse=True) for word, sizes in lengths.items()}

    def _matched(self, sentences: Sentences) -> Column:
        """Word lists: the column `lexicon` of sentences: B-CLASS or I-CLASS inside lexicon entries, O elsewhere."""
        column = sentences.columns["word"]
        spelled = [word.lower() if self.lower else word for word in column.values]
        words = [spelled[code] for code in column.codes.tolist()]
        values, bounds = [OUTSIDE] * len(words), sentences.offsets.tolist()
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
            place = begin
            while place < end:
                size = self._longest(words, place, end)
                if size:
                    kind = self.entries[" ".join(words[place : place + size])]
                    values[place : place + size] = [f"B-{kind}"] + [f"I-{kind}"] * (size - 1)
                place += max(size, 1)
        return Column.from_strings(values)

    def _longest(self, words: Sequence[str], place: int, end: int) -> int:
        """Word lists: the number of words of the longest lexicon entry that begins at a token; 0 if there is none."""
        for size in self._lengths.get(words[place], ()):
            if place + size <= end and " ".join(words[place : place + size]) in self.entries:
                return size
        return 0

    # --- storage in an artifact

    def described(self) -> dict[str, object]:
        """Word lists: the fields that an artifact stores; entries are listed by class, words by cluster."""
        return {"lower": self.lower, "lexicon": _grouped(self.entries), "clusters": _grouped(self.clusters)}

    @classmethod
    def restored(cls, stored: Mapping[str, object]) -> WordLists:
        """Word lists from the fields of an artifact; the fields must have passed `are_word_lists`."""
        entries = {item: name for name, items in stored["lexicon"].items() for item in items}
        clusters = {item: name for name, items in stored["clusters"].items() for item in items}
        return cls(entries, stored["lower"], clusters)


def brown_clusters(train: Sentences, text: str | None, classes: int, megabytes: int) -> dict[str, str]:
    """Word lists: the bits of the Brown cluster of each word, learnt from the training sentences or from a text.

    `text` is a file with a sentence in each line and spaces between tokens; None means the training sentences.
    `classes` is the number of clusters, and `megabytes` the size limit of the disk cache."""
    if text is None:
        if "word" not in train.columns:
            raise UserError(f"{train.source}: no column word, which clusters need")
        words = train.columns["word"].without_unused()
        documents = Tokens(words.values, words.codes, train.offsets)
    else:
        lines = [" ".join(fields).split() for _, fields in _lines(text, "text, with a sentence in each line")]
        words = Column.from_strings(word for line in lines for word in line)
        documents = Tokens(words.values, words.codes, np.cumsum([0, *map(len, lines)]))
    tree = brown_tree(documents, classes, megabytes)
    return {word: tree.bits[leaf] or "0" for word, leaf in zip(tree.words, tree.leaf.tolist(), strict=True)}


class Tokens(NamedTuple):
    """Word lists: the words of sentences as integer codes, for Brown clustering."""

    words: Sequence[str]
    tokens: np.ndarray  # code of each token
    offsets: np.ndarray  # index of the first token of each sentence, then the number of tokens


def are_word_lists(value: object) -> bool:
    """Whether a field of an artifact holds word lists as `WordLists.described` writes them."""
    if not isinstance(value, dict) or {*value} != {"lower", "lexicon", "clusters"} or type(value["lower"]) is not bool:
        return False
    lists = [value["lexicon"], value["clusters"]]
    if not all(isinstance(of, dict) and all(isinstance(items, list) for items in of.values()) for of in lists):
        return False
    strings = all(isinstance(item, str) and item for of in lists for items in of.values() for item in items)
    return strings and all(map(_BITS.fullmatch, value["clusters"]))


def _grouped(names: Mapping[str, str]) -> dict[str, list[str]]:
    """Word lists: invert a dictionary: for each class (or cluster), the list of its entries (or words)."""
    groups: dict[str, list[str]] = {}
    for item, name in names.items():
        groups.setdefault(name, []).append(item)
    return groups


def _read_lexicon(path: str) -> list[tuple[str, str]]:
    """Word lists: the entries of a lexicon file with their classes; the default class is the name of the file."""
    entries, stem = [], re.sub(r"\W", "_", Path(path).name.partition(".")[0])
    for number, fields in _lines(path, "a lexicon"):
        words = fields[0].split()
        if len(fields) > 2 or not words or (len(fields) == 2 and not re.fullmatch(r"[^\s+]+", fields[1].strip())):
            raise UserError(f"{path}, line {number}: expected an entry, or an entry, a tab and a class without spaces")
        entries.append((" ".join(words), fields[1].strip() if len(fields) == 2 else stem))
    return entries


def _read_clusters(path: str) -> dict[str, str]:
    """Word lists: the bits of the cluster of each word, from lines `bits TAB word` (a third column is ignored)."""
    clusters = {}
    for number, fields in _lines(path, "clusters"):
        if len(fields) not in (2, 3) or not _BITS.fullmatch(fields[0]) or not fields[1]:
            raise UserError(f"{path}, line {number}: expected bits such as 0110, a tab and a word")
        clusters[fields[1]] = fields[0]
    return clusters


def _lines(path: str, expected: str) -> list[tuple[int, list[str]]]:
    """Word lists: the nonempty lines of a file, each as a pair: line number, and fields between tabs."""
    try:
        text = read_gunzipped(find_path(path), f"a file of {expected}").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8, expected a file of {expected}") from None
    lines = [(number, line.split("\t")) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise UserError(f"{path}: nothing in it, expected a file of {expected}")
    return lines
