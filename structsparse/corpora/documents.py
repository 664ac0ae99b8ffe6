"""Labelled documents for text categorization: texts, their tokens as integer codes, sentences and phrases.

Train, dev and test are tokenized together: a code means the same word in all three. `features.words` decides which
words are features. The character position of each token in its text is kept. Reports use it to mark tokens."""

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

# regular expression of a token for each value of the option `tokens`
TOKENS = {"words": re.compile(r"\w+"), "letters": re.compile(r"[a-zA-Z]\w*"), "spaces": re.compile(r"\S+")}


@dataclass(frozen=True)
class DocumentReading:
    """Tokenization options of documents.

    The option `tokens` says what a token is:

    - words: a run of letters, digits and underscores
    - letters: a letter from a to z or A to Z, with all letters, digits and underscores that follow it
    - spaces: a run of characters other than white space

    The option `lower` converts tokens to small letters."""

    tokens: str = "words"
    lower: bool = True
    language: str = "en"  # language code, for the rules that split sentences

    def __post_init__(self):
        if self.tokens not in TOKENS:
            raise UserError(f"data.tokens is {self.tokens!r}, expected one of {', '.join(TOKENS)}")


@dataclass(frozen=True, eq=False)
class Constituents:
    """Constituents (phrases) of parsed documents, sorted by document; a phrase precedes the phrases inside it."""

    document: np.ndarray  # int32, shape [constituents]: index of the document, ascending
    begin: np.ndarray  # int32, shape [constituents]: index of the first token within the document
    end: np.ndarray  # int32, shape [constituents]: index after the last token within the document
    value: np.ndarray  # int16, shape [constituents]: sentiment from 0 to 4, -1 if unknown
    kind: np.ndarray | None = None  # int16, shape [constituents]: index in `kinds`
    kinds: tuple[str, ...] = ()  # phrase labels (NP, VP, ...); in dependency trees, the relation of the head word

    def __len__(self) -> int:
        return len(self.document)

    def select(self, indices: np.ndarray, documents: int) -> Constituents:
        """Select the constituents of the documents at `indices`, in the order of `indices`.

        `documents` is the number of documents before the selection."""
        bounds = np.searchsorted(self.document, np.arange(documents + 1))
        sizes = np.diff(bounds)[indices]
        rows = ranges(bounds[:-1][indices], sizes)
        document = np.repeat(np.arange(len(indices), dtype=np.int32), sizes)
        kind = None if self.kind is None else self.kind[rows]
        return Constituents(document, self.begin[rows], self.end[rows], self.value[rows], kind, self.kinds)


@dataclass(frozen=True, eq=False)
class Documents:
    """Labelled documents (train, dev or test): document `k` has the tokens `offsets[k]` to `offsets[k + 1]` - 1."""

    names: list[str]  # the file, or file:line, of each document
    texts: list[str]  # texts as read from the files, not lowercased
    words: tuple[str, ...]  # all distinct words of train, dev and test, in alphabetical order
    tokens: np.ndarray  # int32 array: index in `words` of each token
    begins: np.ndarray  # int32 array: where each token begins in its text, in characters
    ends: np.ndarray  # int32 array: where each token ends in its text, in characters
    offsets: np.ndarray  # int64, shape [documents + 1]: first token of each document, then the token count
    labels: np.ndarray  # int64, shape [documents]: index in `classes`; without classes, numbers as float64
    classes: tuple[str, ...] | None = None  # names of classes; None if labels are numbers
    constituents: Constituents | None = None
    sentence_offsets: np.ndarray | None = None  # first token of each sentence, then the token count; None: unknown
    language: str = "en"  # language code, for the rules that split sentences

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each document (int64 array of shape [documents])."""
        return np.diff(self.offsets)

    def sentences(self) -> np.ndarray:
        """The index of the first token of each sentence in the documents, then the number of tokens (int64 array).

        If the corpus has no sentence boundaries, a sentence splitter finds them. No sentence is empty, and no sentence
        extends over two documents."""
        return self._sentences

    @cached_property
    def _sentences(self) -> np.ndarray:
        """The sentence offsets of the documents, which the method `sentences` returns, computed once."""
        begins = self._split() if self.sentence_offsets is None else self.sentence_offsets
        return np.union1d(begins, np.append(self.offsets, 0)).astype(np.int64)

    def _split(self) -> np.ndarray:
        """The index of the first token of each sentence that the splitter finds in the documents (int64 array)."""
        places = sentence_begins(self.texts, self.language)
        bounds = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), places, strict=True)
        firsts = [low + np.searchsorted(self.begins[low:high], begun) for low, high, begun in bounds]
        return np.concatenate([np.zeros(0, np.int64), *firsts])

    def select(self, indices: Sequence[int] | np.ndarray) -> Documents:
        """Select the documents at `indices`, with their tokens, labels, constituents and sentences."""
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
        """Describe the labels of documents: the number in each class, or the range and mean of numeric labels."""
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
    truth: tuple[str, ...] = ()  # names of the word groups that determine the labels of a planted corpus
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # word groups of a planted corpus, by name
    reading: DocumentReading = field(default_factory=DocumentReading)  # tokenization of this corpus and new texts
    unlabelled: tuple[str, ...] = ()  # texts without labels, for word clusters
    notes: tuple[str, ...] = ()  # notes for the user

    @property
    def parts(self) -> dict[str, Documents]:
        """The documents of a corpus, as a dictionary with the keys train, dev and test."""
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
    """Make documents from texts; each token is encoded as its index in the sorted list of all words."""
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
    """Make documents from lists of tokens; the text of a document is its tokens joined by spaces."""
    words, codes = coded_tokens([token for document in tokens for token in document], lower)
    offsets = np.concatenate([[0], np.cumsum(np.array([len(document) for document in tokens], np.int64))])
    sizes = np.array([len(token) for document in tokens for token in document], np.int32)
    ends = np.cumsum(sizes + 1) - 1  # character positions as if all documents were one text
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
    """All distinct words of documents in alphabetical order, and the code of each token (int32 array)."""
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
    tokens: np.ndarray  # int32 array: index in `words` of each token
    offsets: np.ndarray  # int64, shape [sequences + 1]: first token of each sequence, then the token count


def running_text(train: Documents, unlabelled: Sequence[str], reading: DocumentReading) -> RunningText:
    """The running text of training documents and of texts without labels, encoded by the words of the corpus.

    Texts without labels are cut at words that do not occur in train. These words are left out."""
    if not unlabelled:
        return RunningText(train.words, train.tokens, train.offsets)
    no_labels = np.zeros(len(unlabelled), np.int64)
    more = tokenize([""] * len(unlabelled), unlabelled, no_labels, ("",), reading)
    code_of = {train.words[code]: code for code in np.unique(train.tokens).tolist()}
    codes = np.array([code_of.get(word, -1) for word in more.words], np.int64)[more.tokens]
    in_train = codes >= 0
    # for each token: index of the sequence that the token belongs to, ascending
    sequence = np.cumsum(~in_train) + np.repeat(np.arange(len(more)), more.lengths)
    sizes = np.unique(sequence[in_train], return_counts=True)[1]
    offsets = np.concatenate([train.offsets, train.offsets[-1] + np.cumsum(sizes)])
    tokens = np.concatenate([train.tokens, codes[in_train].astype(train.tokens.dtype)])
    return RunningText(train.words, tokens, offsets)
