"""Bags of words: the choice of words as features of documents, and the values of these features.

Each row of a classifier's weight table stands for a word. The words come from train or, as in some papers, from train,
dev and test. Weightings such as tf-idf are estimated on train alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentReading, Documents, DocumentSplits
from structsparse.groups.layouts import TableLayout

INVERSE = "tfidf", "sublinear"  # weightings in which rare words count more
WEIGHTINGS, VOCABULARIES = ("counts", "binary", "log", *INVERSE), ("train", "all")


@dataclass(frozen=True, eq=False)
class WordLayout(TableLayout):
    """Layout of a bag-of-words weight table: a row for each word, then a row for each weighted sum of words."""

    kind = "words"

    words: tuple[str, ...]  # the word of each row; the last `extra` rows have names of groups of words
    train: Documents
    row_of: np.ndarray  # int32: the row of each distinct word of the corpus, -1 if it is not a feature
    counts: np.ndarray  # int64 array: number of occurrences of each row's word in train
    documents: np.ndarray  # int64 array: number of train documents that have each row's word
    classes: tuple[str, ...] | None  # names of the classes; None: labels are numbers
    extra: int = 0  # number of rows (the last ones) that stand for weighted sums of words
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # groups of words of a planted corpus, by name
    unlabelled: tuple[str, ...] = ()  # further texts, without labels, for learning word clusters
    reading: DocumentReading = field(default_factory=DocumentReading)  # how texts are split into words

    def __len__(self) -> int:
        return len(self.words)

    def named_rows(self) -> Mapping[str, Sequence[int]]:
        """Bag-of-words layout: the row of each word in the classifier's weight table, by word."""
        return {word: (row,) for row, word in enumerate(self.words)}

    def frequency(self, name: str) -> Tensor | None:
        """Bag-of-words layout: how often the word of each row occurs in train (float64 tensor of shape [rows]).

        `name` is `counts`, the number of occurrences, or `documents`, the number of documents with the word. For other
        names the result is None."""
        columns = {"counts": self.counts, "documents": self.documents}
        return torch.from_numpy(columns[name]).double() if name in columns else None

    @property
    def plain(self) -> int:
        """Bag-of-words layout: the number of rows that stand for single words."""
        return len(self.words) - self.extra


@dataclass(frozen=True, eq=False)
class Weighting:
    """The weighting of a bag of words, which turns the count c of a word into the value of a feature.

    The value depends on `kind`:

    - counts: c
    - binary: 1 if the word occurs in the document
    - log: log(1 + c)
    - tfidf: c (1 + log((1 + N) / (1 + d))), as in scikit-learn
    - sublinear: (1 + log(c)) (1 + log((1 + N) / (1 + d))), as in scikit-learn with sublinear_tf=True

    N is the number of documents in train. d is the number of documents in train that have the word. The value is then
    multiplied by the word's log-count ratio to the power `log_ratio`, see `log_ratios`. Finally, `normalize` scales
    each document to l2 norm 1.
    """

    kind: str
    normalize: bool
    factors: np.ndarray  # float64 array: factor of each word, which combines tf-idf and log-count ratio
    log_ratio: float = 0.0  # power of the log-count ratio in the factors; 0: factors without this ratio

    def __call__(self, counts: sparse.csr_array) -> sparse.csr_array:
        """Weighting of a bag of words: turn word counts into feature values (float64, shape [documents, rows])."""
        values = counts.astype(np.float64)
        if self.kind == "log":
            np.log1p(values.data, out=values.data)
        elif self.kind == "binary":
            np.sign(values.data, out=values.data)
        elif self.kind == "sublinear":
            values.data = 1 + np.log(values.data)
        values.data *= self.factors[values.indices]
        if self.normalize:
            sizes = np.diff(values.indptr)
            owner = np.repeat(np.arange(len(sizes)), sizes)
            norms = np.sqrt(np.bincount(owner, values.data**2, minlength=len(sizes)))
            values.data /= np.where(norms > 0, norms, 1)[owner]  # a norm is 0 if all words have factor 0
        return values


@dataclass(frozen=True, eq=False)
class Bag:
    """A bag of words: turns documents into sparse vectors of feature values."""

    layout: WordLayout
    weighting: Weighting
    members: sparse.csr_array | None = None  # shape [words, extra features]: factor of each word count

    def matrix(self, documents: Documents) -> sparse.csr_array:
        """Bag of words: the feature values of documents (sparse float64 matrix of shape [documents, rows]).

        Words that are not features are ignored."""
        counts = self.count(documents)
        if self.members is not None:
            counts = sparse.hstack([counts, counts @ self.members], format="csr")
        return self.weighting(counts)

    def count(self, documents: Documents) -> sparse.csr_array:
        """Bag of words: the count of each word in each document (sparse int64 matrix of shape [documents, words])."""
        return count(documents, rows_of(documents, self.layout), self.layout.plain)


def rows_of(documents: Documents, layout: WordLayout) -> np.ndarray:
    """Bag of words: the table row of each distinct word of documents, -1 for words that are not features."""
    if documents.words is layout.train.words:
        return layout.row_of
    rows = {word: row for row, word in enumerate(layout.words[: layout.plain])}
    return np.array([rows.get(word, -1) for word in documents.words], np.int32)


def count(documents: Documents, row_of: np.ndarray, rows: int) -> sparse.csr_array:
    """Count a bag of words: how often the word of each table row occurs in each document.

    `row_of` has the row of each distinct word, -1 for words that are not features."""
    owner = np.repeat(np.arange(len(documents), dtype=np.int32), documents.lengths)
    row = row_of[documents.tokens]
    known = row >= 0
    ones = np.ones(int(known.sum()), np.int64)
    return sparse.coo_array((ones, (owner[known], row[known])), shape=(len(documents), rows)).tocsr()


def bag(
    documents: DocumentSplits,
    weighting: str = "counts",
    normalize: bool | None = None,
    min_count: int = 1,
    vocabulary: str = "train",
    log_ratio: float = 0.0,
) -> Bag:
    """Make the bag of words of a corpus; the features are the words in at least `min_count` documents of train."""
    _one_of("features.weighting", weighting, WEIGHTINGS)
    _one_of("features.vocabulary", vocabulary, VOCABULARIES)
    if min_count < 1:
        raise UserError(f"features.min_count is {min_count}, expected at least 1")
    train = documents.train
    _check_log_ratio(log_ratio, train.classes)
    parts = [train] if vocabulary == "train" else [*documents.parts.values()]
    types = len(train.words)
    counts = count(train, np.arange(types, dtype=np.int32), types)
    frequency = np.bincount(counts.indices, minlength=types)  # number of train documents with each word
    chosen = np.zeros(types, bool)
    for part in parts:
        chosen[part.tokens] = True
    chosen &= frequency >= (min_count if min_count > 1 else 0)  # with min_count=1, words only in dev or test stay
    codes = np.flatnonzero(chosen)
    if not len(codes):
        raise UserError(f"no word is in {min_count} documents of train; lower features.min_count")
    row_of = np.full(types, -1, np.int32)
    row_of[codes] = np.arange(len(codes), dtype=np.int32)
    layout = WordLayout(
        words=tuple(train.words[code] for code in codes.tolist()),
        train=train,
        row_of=row_of,
        counts=np.bincount(train.tokens, minlength=types)[codes],
        documents=frequency[codes],
        classes=train.classes,
        groups=documents.groups,
        unlabelled=documents.unlabelled,
        reading=documents.reading,
    )
    factors = _factors(weighting, log_ratio, counts[:, codes], train)
    normalize = weighting in INVERSE if normalize is None else normalize
    return Bag(layout, Weighting(weighting, normalize, factors, log_ratio))


def restricted(bag: Bag, rows: np.ndarray) -> Bag:
    """A bag of words with only some of its words; `rows` has their rows, in ascending order."""
    layout, weighting = bag.layout, bag.weighting
    number = np.full(len(layout) + 1, -1, np.int32)
    number[rows] = np.arange(len(rows), dtype=np.int32)
    layout = replace(
        layout,
        words=tuple(layout.words[row] for row in rows.tolist()),
        row_of=number[layout.row_of],
        counts=layout.counts[rows],
        documents=layout.documents[rows],
    )
    return Bag(layout, replace(weighting, factors=weighting.factors[rows]))


def _factors(weighting: str, log_ratio: float, counts: sparse.csr_array, train: Documents) -> np.ndarray:
    """The factors of words in a bag of words (float64 [columns]); `counts` [documents, columns] has train counts."""
    presence = sparse.csr_array((np.ones(counts.nnz), counts.indices, counts.indptr), counts.shape)
    factors = np.ones(counts.shape[1])
    if weighting in INVERSE:
        factors *= inverse_frequencies(presence.sum(axis=0), len(train))
    if log_ratio > 0:
        factors *= log_ratios(presence, train.labels) ** log_ratio
    return factors


def inverse_frequencies(documents: np.ndarray, count: int) -> np.ndarray:
    """The tf-idf factor of each word in a bag of words.

    `documents` has the number of documents with each word, and `count` is the number of all documents."""
    return 1 + np.log((1 + count) / (1 + documents))


def log_ratios(presence: sparse.csr_array, labels: np.ndarray) -> np.ndarray:
    """The log-count ratio of each word in a bag of words: how much its share differs between classes (float64 [words]).

    `presence` [documents, words] is 1 if a document has a word, else 0. For a class and a word, let n be 1 plus the
    number of documents of the class with the word. The share of the word in the class is n, divided by the sum of n
    over all words. The log-count ratio of a word is the maximum over all classes of |log(share in the class / share in
    all other classes together)| (Wang and Manning 2012)."""
    largest = np.zeros(presence.shape[1])
    for label in np.unique(labels):
        inside, outside = (1 + presence[labels == label].sum(axis=0), 1 + presence[labels != label].sum(axis=0))
        ratio = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
        largest = np.maximum(largest, np.abs(ratio))
    return largest


def extended(bag: Bag, names: Sequence[str], members: sparse.sparray) -> Bag:
    """Extend a bag of words by extra features, each a weighted sum of word counts.

    `members` has the factor of each word's count in each extra feature (shape [words, extra features])."""
    layout = bag.layout
    members = sparse.csr_array(members)
    if members.shape != (layout.plain, len(names)) or layout.extra:
        raise UserError(f"members are {members.shape}, expected ({layout.plain}, {len(names)}) of a bag of words alone")
    counts = bag.count(layout.train) @ members
    documents = np.bincount(counts.indices, minlength=len(names))
    layout = replace(
        layout,
        words=(*layout.words, *names),
        counts=np.concatenate([layout.counts, np.asarray(counts.sum(axis=0), np.int64)]),
        documents=np.concatenate([layout.documents, documents]),
        extra=len(names),
    )
    factors = _factors(bag.weighting.kind, bag.weighting.log_ratio, counts, layout.train)
    weighting = replace(bag.weighting, factors=np.concatenate([bag.weighting.factors, factors]))
    return Bag(layout, weighting, members)


def _check_log_ratio(power: float, classes: tuple[str, ...] | None) -> None:
    """Raise an error if the power of log-count ratios in bags of words is negative, or positive without classes."""
    if not 0 <= power < np.inf:
        raise UserError(f"features.log_ratio is {power}, expected a number of at least 0")
    if power > 0 and classes is None:
        raise UserError("features.log_ratio compares classes, but the labels are numbers; set features.log_ratio=0")


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option of bags of words that is not one of the choices."""
    if value not in choices:
        raise UserError(f"{key} is {value!r}, expected one of {', '.join(choices)}")
