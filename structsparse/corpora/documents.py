"""Labelled documents for text categorization: texts, their tokens as integer codes, sentences and phrases.

A corpus is tokenized once. Train, dev and test share one list of word types, so that a code means the same word in
each part. `features.words` decides which word types are features. The position of each token in the text of the
document is kept, so that reports can mark tokens in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from structsparse.base.arrays import ranges
from structsparse.base.errors import UserError
from structsparse.corpora.sentence_splitter import sentence_begins

# regular expression of a token, by the option `tokens`
TOKENS = {"words": re.compile(r"\w+"), "letters": re.compile(r"[a-zA-Z]\w*"), "spaces": re.compile(r"\S+")}


@dataclass(frozen=True)
class DocumentReading:
    """Tokenization options of documents.

    With `tokens` = "words", tokens are runs of letters, digits and underscores. With "letters", each such run is cut
    to the part from its first letter a to z on. With "spaces", tokens are runs of characters other than white space.
    `lower` converts tokens to small letters."""

    tokens: str = "words"
    lower: bool = True
    language: str = "en"  # language whose sentence-splitting rules are used

    def __post_init__(self):
        if self.tokens not in TOKENS:
            raise UserError(f"data.tokens is {self.tokens!r}, expected one of {', '.join(TOKENS)}")


@dataclass(frozen=True, eq=False)
class Constituents:
    """Constituents (phrases) in parse trees of documents, by document; a phrase precedes the phrases inside it."""

    document: np.ndarray  # int32 [constituents], number of the document, ascending
    begin: np.ndarray  # int32 [constituents], the first token, counted within the document
    end: np.ndarray  # int32 [constituents], the token after the last token, counted within the document
    value: np.ndarray  # int16 [constituents], sentiment from 0 to 4, -1 if unknown
    kind: np.ndarray | None = None  # int16 [constituents], codes into kinds
    kinds: tuple[str, ...] = ()  # names of kinds: NP, VP, ...; in dependency trees, relations of head words

    def __len__(self) -> int:
        return len(self.document)

    def select(self, indices: np.ndarray, documents: int) -> Constituents:
        """The constituents of the documents at `indices`, in that order.

        `documents` is the number of documents before the selection."""
        bounds = np.searchsorted(self.document, np.arange(documents + 1))
        sizes = np.diff(bounds)[indices]
        rows = ranges(bounds[:-1][indices], sizes)
        document = np.repeat(np.arange(len(indices), dtype=np.int32), sizes)
        kind = None if self.kind is None else self.kind[rows]
        return Constituents(document, self.begin[rows], self.end[rows], self.value[rows], kind, self.kinds)


@dataclass(frozen=True, eq=False)
class Documents:
    """Labelled documents, one part of a corpus: document `k` has the tokens `offsets[k]` to `offsets[k + 1]` - 1."""

    names: list[str]  # the file, or file:line, of each document
    texts: list[str]  # as read from the files, not lowercased
    words: tuple[str, ...]  # all word types of all parts of the corpus, in alphabetical order
    tokens: np.ndarray  # int32 [tokens], codes into words
    begins: np.ndarray  # int32 [tokens], position of the first character of each token in the document's text
    ends: np.ndarray  # int32 [tokens], position after the last character of each token in the document's text
    offsets: np.ndarray  # int64 [documents + 1], position of the first token of each document
    labels: np.ndarray  # int64 [documents], codes into classes; float64 if there are no classes
    classes: tuple[str, ...] | None = None  # names of classes; None if labels are numbers
    constituents: Constituents | None = None
    sentence_offsets: np.ndarray | None = None  # int64 [sentences + 1] into the tokens; None: not known
    language: str = "en"  # language whose sentence-splitting rules are used

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each document: int64 [documents]."""
        return np.diff(self.offsets)

    def sentences(self) -> np.ndarray:
        """Offsets of the sentences among the tokens of all documents: int64 [sentences + 1].

        If the corpus has no sentence boundaries, a sentence splitter finds them. No sentence is empty, and no sentence
        extends over two documents."""
        return self._sentences

    @cached_property
    def _sentences(self) -> np.ndarray:
        """Offsets of the sentences among the tokens of all documents, computed once: int64 [sentences + 1]."""
        begins = self._split() if self.sentence_offsets is None else self.sentence_offsets
        return np.union1d(begins, np.append(self.offsets, 0)).astype(np.int64)

    def _split(self) -> np.ndarray:
        """The first token of each sentence that the splitter finds in the documents: int64 [sentences]."""
        places = sentence_begins(self.texts, self.language)
        bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), places, strict=True)
        firsts = [low + np.searchsorted(self.begins[low:high], begun) for low, high, begun in bounds]
        return np.concatenate([np.zeros(0, np.int64), *firsts])

    def select(self, indices: Sequence[int] | np.ndarray) -> Documents:
        """The documents at `indices`, in that order, with their tokens, labels, constituents and sentences."""
        indices = np.asarray(indices, np.int64)
        sizes = self.lengths[indices]
        rows = ranges(self.offsets[:-1][indices], sizes)
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
        """A line for the user about documents: numbers of documents, words and constituents, and the labels."""
        trees = "" if self.constituents is None else f", {len(self.constituents):,} constituents"
        return f"{len(self):,} documents, {len(self.tokens):,} words{trees}, {self._labels()}"

    def _labels(self) -> str:
        """For the user: the number of documents in each class, or the range and mean of numeric labels."""
        if self.classes is None:
            if not len(self):
                return "no numbers"
            return f"numbers from {self.labels.min():g} to {self.labels.max():g}, mean {self.labels.mean():.4g}"
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return ", ".join(f"{name} {count:,}" for name, count in zip(self.classes, counts.tolist(), strict=True))


@dataclass(frozen=True)
class DocumentSplits:
    """A corpus of labelled documents: train, dev and test."""

    name: str
    train: Documents
    dev: Documents
    test: Documents
    truth: tuple[str, ...] = ()  # in a planted corpus, the names of the word groups that determine labels
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # in a planted corpus, all word groups by name
    reading: DocumentReading = field(default_factory=DocumentReading)  # tokenization of this corpus and of new texts
    unlabelled: tuple[str, ...] = ()  # texts without labels, for word clusters
    notes: tuple[str, ...] = ()  # notes for the user

    @property
    def parts(self) -> dict[str, Documents]:
        """The documents of train, dev and test by the name of the part."""
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of documents; None if labels are numbers."""
        return self.train.classes

    def describe(self) -> list[str]:
        """Lines for the user about documents: train, dev and test, the size of the vocabulary, and notes."""
        types = len(np.unique(self.train.tokens))
        size = f"vocabulary: {types:,} different words in train, {len(self.train.words):,} in all"
        return [*(f"{part}: {documents.describe()}" for part, documents in self.parts.items()), size, *self.notes]


# --- tokenization


def tokenize(
    names: Sequence[str],
    texts: Sequence[str],
    labels: np.ndarray,
    classes: tuple[str, ...] | None,
    reading: DocumentReading | None = None,
) -> Documents:
    """Make documents from texts: tokens become codes into the sorted word types of all texts."""
    reading = DocumentReading() if reading is None else reading
    finditer, places, sizes = TOKENS[reading.tokens].finditer, [], []
    tokens: list[str] = []
    for text in texts:
        spans = [match.span() for match in finditer(text)]
        tokens.extend([text[begin:end] for begin, end in spans])
        places.extend(spans)
        sizes.append(len(spans))
    begins, ends = np.array(places, np.int32).reshape(-1, 2).T
    words, codes = coded_tokens(tokens, reading.lower)
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


def from_tokens(
    names: Sequence[str],
    tokens: Sequence[Sequence[str]],
    labels: np.ndarray,
    classes: tuple[str, ...] | None,
    lower: bool = True,
) -> Documents:
    """Make documents from lists of tokens; the text of a document has its tokens joined by spaces."""
    words, codes = coded_tokens([token for document in tokens for token in document], lower)
    offsets = np.concatenate([[0], np.cumsum(np.array([len(document) for document in tokens], np.int64))])
    sizes = np.array([len(token) for document in tokens for token in document], np.int32)
    ends = np.cumsum(sizes + 1) - 1  # positions as if all documents were one text
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


def coded_tokens(tokens: Iterable[str], lower: bool) -> tuple[tuple[str, ...], np.ndarray]:
    """All word types of documents in alphabetical order, and the tokens as codes: int32 [tokens]."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(token, len(numbers)) for token in tokens], np.int32)
    spellings = [token.lower() for token in numbers] if lower else [*numbers]
    words = sorted(set(spellings))
    code_of = {word: code for code, word in enumerate(words)}
    return tuple(words), np.array([code_of[word] for word in spellings], np.int32)[codes]


# --- running text, for word clusters


class RunningText(NamedTuple):
    """Running text of documents, from which word clusters are learnt: sequences of consecutive words."""

    words: tuple[str, ...]
    tokens: np.ndarray  # int32 [tokens], codes into words
    offsets: np.ndarray  # int64 [sequences + 1], position of the first token of each sequence


def running_text(train: Documents, unlabelled: Sequence[str], reading: DocumentReading) -> RunningText:
    """The running text of training documents and of texts without labels, in the vocabulary of training.

    In texts without labels, a word that training lacks is left out and ends a sequence."""
    if not unlabelled:
        return RunningText(train.words, train.tokens, train.offsets)
    no_labels = np.zeros(len(unlabelled), np.int64)
    more = tokenize([""] * len(unlabelled), unlabelled, no_labels, ("",), reading)
    code_of = {train.words[code]: code for code in np.unique(train.tokens).tolist()}
    codes = np.array([code_of.get(word, -1) for word in more.words], np.int64)[more.tokens]
    in_train = codes >= 0
    # [tokens], number of the sequence of each token, ascending
    sequence = np.cumsum(~in_train) + np.repeat(np.arange(len(more)), more.lengths)
    sizes = np.unique(sequence[in_train], return_counts=True)[1]
    offsets = np.concatenate([train.offsets, train.offsets[-1] + np.cumsum(sizes)])
    tokens = np.concatenate([train.tokens, codes[in_train].astype(train.tokens.dtype)])
    return RunningText(train.words, tokens, offsets)
