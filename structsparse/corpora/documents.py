"""Documents with labels, for text categorization: texts, their tokens as codes, and what is known of their structure.

A corpus is tokenized once. All its parts share one row of word types, so that a code means the same in each; which of
them are features is for `features.words` to say. Where a token stands in its text is kept: what a model looked at can
be shown in the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.sentence_splitter import sentence_begins

TOKENS = {"words": re.compile(r"\w+"), "letters": re.compile(r"[a-zA-Z]\w*"), "spaces": re.compile(r"\S+")}


@dataclass(frozen=True)
class Reading:
    """How a text becomes tokens: `words` are runs of letters, digits and underscores, `letters` those from their first
    letter of a to z on, `spaces` is what stands between spaces."""

    tokens: str = "words"
    lower: bool = True
    language: str = "en"  # of the rules for sentences

    def __post_init__(self):
        if self.tokens not in TOKENS:
            raise UserError(f"data.tokens is {self.tokens!r}, expected one of {', '.join(TOKENS)}")


@dataclass(frozen=True, eq=False)
class Constituents:
    """Phrases of documents, in the order of the documents, in each a phrase before those inside it."""

    document: np.ndarray  # int32 [constituents]
    begin: np.ndarray  # int32 [constituents], the first token, 0 where its document begins
    end: np.ndarray  # int32 [constituents], the token after the last
    value: np.ndarray  # int16 [constituents], a sentiment from 0 to 4, -1 where it has none
    kind: np.ndarray | None = None  # int16 [constituents], codes into kinds, where they have any
    kinds: tuple[str, ...] = ()  # NP, VP, ...; of dependency trees the relation of the head word

    def __len__(self) -> int:
        return len(self.document)

    def select(self, indices: np.ndarray, documents: int) -> Constituents:
        """Those of some of so many documents, in the order of `indices`."""
        bounds = np.searchsorted(self.document, np.arange(documents + 1))
        sizes = np.diff(bounds)[indices]
        rows = _ranges(bounds[:-1][indices], sizes)
        document = np.repeat(np.arange(len(indices), dtype=np.int32), sizes)
        kind = None if self.kind is None else self.kind[rows]
        return Constituents(document, self.begin[rows], self.end[rows], self.value[rows], kind, self.kinds)


@dataclass(frozen=True, eq=False)
class Documents:
    """One part of a corpus."""

    names: list[str]  # a file, or file:line
    texts: list[str]  # as they were tokenized, but for their case
    words: tuple[str, ...]  # all word types of the whole corpus, in alphabetical order
    tokens: np.ndarray  # int32 [tokens], codes into words, document after document
    begins: np.ndarray  # int32 [tokens], where a token begins in its text
    ends: np.ndarray  # int32 [tokens]
    offsets: np.ndarray  # int64 [documents + 1], where documents begin among the tokens
    labels: np.ndarray  # int64 [documents], codes into classes; float64 where there are no classes
    classes: tuple[str, ...] | None = None  # None: labels are numbers
    constituents: Constituents | None = None
    sentence_offsets: np.ndarray | None = None  # int64 [sentences + 1] into the tokens, where the corpus says them
    language: str = "en"  # of the rules by which sentences are found where it does not

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [documents], how many tokens each has"""
        return np.diff(self.offsets)

    def sentences(self) -> np.ndarray:
        """int64 [sentences + 1], where sentences begin among the tokens; those of the corpus, else as a splitter finds
        them. No sentence is empty, none goes beyond its document."""
        return self._sentences

    @cached_property
    def _sentences(self) -> np.ndarray:
        known = self.sentence_offsets
        return np.union1d(self._split() if known is None else known, np.append(self.offsets, 0)).astype(np.int64)

    def _split(self) -> np.ndarray:
        """Of each place where a sentence begins, the first token from there on: int64 [sentences]"""
        places = sentence_begins(self.texts, self.language)
        bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), places, strict=True)
        firsts = [low + np.searchsorted(self.begins[low:high], begun) for low, high, begun in bounds]
        return np.concatenate([np.zeros(0, np.int64), *firsts])

    def select(self, indices: Sequence[int] | np.ndarray) -> Documents:
        """Some of the documents, in the order of `indices`."""
        indices = np.asarray(indices, np.int64)
        sizes = self.lengths[indices]
        rows = _ranges(self.offsets[:-1][indices], sizes)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        sentences = self.sentence_offsets
        if sentences is not None:
            first = np.zeros(len(self.tokens) + 1, bool)
            first[sentences] = True
            sentences = np.append(np.flatnonzero(first[rows]), len(rows))
        return replace(
            self,
            names=[self.names[k] for k in indices.tolist()],
            texts=[self.texts[k] for k in indices.tolist()],
            tokens=self.tokens[rows],
            begins=self.begins[rows],
            ends=self.ends[rows],
            offsets=offsets,
            labels=self.labels[indices],
            constituents=None if self.constituents is None else self.constituents.select(indices, len(self)),
            sentence_offsets=sentences,
        )

    def describe(self) -> str:
        """How many, how long, of which classes."""
        trees = "" if self.constituents is None else f", {len(self.constituents):,} constituents"
        return f"{len(self):,} documents, {len(self.tokens):,} words{trees}, {self._labels()}"

    def _labels(self) -> str:
        if self.classes is None:
            if not len(self):
                return "no numbers"
            return f"numbers from {self.labels.min():g} to {self.labels.max():g}, mean {self.labels.mean():.4g}"
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return ", ".join(f"{name} {count:,}" for name, count in zip(self.classes, counts.tolist(), strict=True))


@dataclass(frozen=True)
class Labelled:
    """Documents with their train, dev and test part."""

    name: str
    train: Documents
    dev: Documents
    test: Documents
    truth: tuple[str, ...] = ()  # names of the word groups that decide, where that is known
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a planted corpus: all its word groups by name
    reading: Reading = field(default_factory=Reading)  # how more text is to be read
    unlabelled: tuple[str, ...] = ()  # further texts, which word classes are made of as well
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, Documents]:
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.train.classes

    def describe(self) -> list[str]:
        """What there is to know of the corpus, a line each."""
        types = len(np.unique(self.train.tokens))
        size = f"vocabulary: {types:,} different words in train, {len(self.train.words):,} in all"
        return [*(f"{part}: {documents.describe()}" for part, documents in self.parts.items()), size, *self.notes]


def tokenize(
    names: Sequence[str],
    texts: Sequence[str],
    labels: np.ndarray,
    classes: tuple[str, ...] | None,
    reading: Reading | None = None,
) -> Documents:
    """Texts in the codes of all their words."""
    reading = Reading() if reading is None else reading
    finditer, places, sizes = TOKENS[reading.tokens].finditer, [], []
    found: list[str] = []
    for text in texts:
        spans = [match.span() for match in finditer(text)]
        found.extend([text[begin:end] for begin, end in spans])
        places.extend(spans)
        sizes.append(len(spans))
    begins, ends = np.array(places, np.int32).reshape(-1, 2).T
    words, codes = coded(found, reading.lower)
    return Documents(
        names=list(names),
        texts=list(texts),
        words=words,
        tokens=codes,
        begins=np.ascontiguousarray(begins),
        ends=np.ascontiguousarray(ends),
        offsets=np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]),
        labels=labels,
        classes=classes,
        language=reading.language,
    )


class Running(NamedTuple):
    """Nothing but words that follow each other, in stretches."""

    words: tuple[str, ...]
    tokens: np.ndarray  # codes into words
    offsets: np.ndarray  # int64 [stretches + 1]


def running(train: Documents, further: Sequence[str], reading: Reading) -> Running:
    """The words of training, and those of further texts: what training lacks is left out and ends a stretch."""
    if not further:
        return Running(train.words, train.tokens, train.offsets)
    nobody = np.zeros(len(further), np.int64)
    more = tokenize([""] * len(further), further, nobody, ("",), reading)
    code_of = {train.words[code]: code for code in np.unique(train.tokens).tolist()}
    codes = np.array([code_of.get(word, -1) for word in more.words], np.int64)[more.tokens]
    known = codes >= 0
    stretch = np.cumsum(~known) + np.repeat(np.arange(len(more)), more.lengths)  # ascends wherever one ends
    sizes = np.unique(stretch[known], return_counts=True)[1]
    offsets = np.concatenate([train.offsets, train.offsets[-1] + np.cumsum(sizes)])
    return Running(train.words, np.concatenate([train.tokens, codes[known].astype(train.tokens.dtype)]), offsets)


def spaced(
    names: Sequence[str],
    tokens: Sequence[Sequence[str]],
    labels: np.ndarray,
    classes: tuple[str, ...] | None,
    lower: bool = True,
) -> Documents:
    """Documents that come as tokens: a text is its tokens, a space between them."""
    words, codes = coded([token for document in tokens for token in document], lower)
    offsets = np.concatenate([[0], np.cumsum(np.array([len(document) for document in tokens], np.int64))])
    sizes = np.array([len(token) for document in tokens for token in document], np.int32)
    ends = np.cumsum(sizes + 1) - 1  # as if all documents were one text
    first = np.repeat(np.concatenate([[0], ends + 1])[offsets[:-1]], np.diff(offsets))
    return Documents(
        names=list(names),
        texts=[" ".join(document) for document in tokens],
        words=words,
        tokens=codes,
        begins=(ends - sizes - first).astype(np.int32),
        ends=(ends - first).astype(np.int32),
        offsets=offsets,
        labels=labels,
        classes=classes,
    )


def coded(tokens: Iterable[str], lower: bool) -> tuple[tuple[str, ...], np.ndarray]:
    """All word types in alphabetical order, and the tokens as codes: int32 [tokens]"""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(token, len(numbers)) for token in tokens], np.int32)
    spelled = [token.lower() for token in numbers] if lower else [*numbers]
    words = sorted(set(spelled))
    place = {word: code for code, word in enumerate(words)}
    return tuple(words), np.array([place[word] for word in spelled], np.int32)[codes]


def _ranges(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """begins[0], begins[0] + 1, ..., so many of each, one after the other."""
    ends = np.cumsum(sizes)
    return np.repeat(begins - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
