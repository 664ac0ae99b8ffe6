"""The predictor of text categorization: classes of documents, class probabilities, and evaluation.

This module does not import the training code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.corpora.document_files import content_of, read
from structsparse.corpora.documents import DocumentReading, Documents, tokenize
from structsparse.features.words import Bag, Weighting, WordLayout
from structsparse.tasks.textcat.scores import ClassScore, SquaredError

PROBABILISTIC = ("logistic",)  # training losses for which scores give class probabilities
Texts = str | os.PathLike | Iterable[str]  # one document, a file with one document per line, or several documents


class RankedClass(NamedTuple):
    """Text classifier predictor: one of the best classes of a document, with score and probability."""

    label: str
    score: float
    probability: float | None  # None: the training loss gives no probabilities


@dataclass(frozen=True, eq=False)
class Classifier:
    """The predictor of a trained text classifier, which gives the class of a document, or a number.

        score = bias + sum over the words of a document of weight[word] * value of the word

    The value of a word is computed from its count in the document."""

    bag: Bag  # the vocabulary, and the weighting of word counts
    table: np.ndarray  # weights, [words], or [words, classes] for more than two classes
    bias: np.ndarray  # one bias for each score of a document
    classes: tuple[str, ...] | None  # names of the classes; None: the model predicts a number
    reading: DocumentReading  # how a text is split into words
    loss: str  # name of the training loss

    def __repr__(self) -> str:
        target = "numbers" if self.classes is None else f"{len(self.classes)} classes"
        return f"Classifier({target}, {len(self.table):,} words)"

    @classmethod
    def of(
        cls,
        bag: Bag,
        table: np.ndarray,
        bias: np.ndarray,
        classes: Sequence[str] | None,
        reading: DocumentReading,
        loss: str,
    ) -> Classifier:
        """Make a text classifier predictor from a trained model, without the words that have only zero weights.

        If document vectors are scaled to length 1, all words are kept."""
        if bag.weighting.normalize:
            return cls(bag, table, bias, classes, reading, loss)
        living = table != 0 if table.ndim == 1 else (table != 0).any(axis=1)
        plain = bag.layout.plain
        extra, members = living[plain:], bag.members
        needed = living[:plain].copy()
        if members is not None:
            members = members[:, np.flatnonzero(extra)]
            needed |= np.diff(members.tocsr().indptr) > 0
        rows = np.concatenate([needed, extra])
        return cls(_part_of_bag(bag, needed, rows, members), table[rows], bias, classes, reading, loss)

    # --- methods that predictors of all tasks have

    def predict(self, texts: Texts) -> list[str] | list[float]:
        """Text classifier predictor: predict the class, or the number, of each document.

        `texts` is one document (str), a list of documents, or the `Path` of a file with one document per line."""
        decisions = self.decide(self.scores(self._documents(texts)))
        return decisions.tolist() if self.classes is None else [self.classes[code] for code in decisions.tolist()]

    def nbest(self, texts: Texts, count: int = 10) -> list[list[RankedClass]]:
        """Text classifier predictor: the `count` best classes of each document, best first; `texts` as in `predict`."""
        if self.classes is None:
            raise UserError("this model predicts a number for each document, it has no classes to rank")
        if type(count) is not int or count < 1:
            raise UserError(f"the {count} best classes were requested, expected a number from 1 on")
        scores = self.scores(self._documents(texts))
        probabilities = self.probabilities(scores) if self.probabilistic else None
        scores = scores if scores.ndim == 2 else np.stack([-scores, scores], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        return [
            [
                RankedClass(
                    self.classes[code],
                    float(scores[k, code]),
                    None if probabilities is None else float(probabilities[k, code]),
                )
                for code in codes
            ]
            for k, codes in enumerate(order.tolist())
        ]

    def marginals(self, texts: Texts) -> list[dict[str, float]]:
        """Text classifier predictor: the probability of every class for each document; `texts` as in `predict`."""
        rows = self.probabilities(self.scores(self._documents(texts))).tolist()
        return [dict(zip(self.classes, row, strict=True)) for row in rows]

    def evaluate(
        self, source: Texts, labels: Sequence[str | float] | None = None, text: str = "text", label: str = "label"
    ) -> dict[str, object]:
        """Text classifier predictor: accuracy and F1, or mean squared error, on labelled documents.

        `source` is a list of documents, whose labels are in `labels`, or a path. The path is a folder with a subfolder
        for each label, or a table (.csv, .tsv, .jsonl, also compressed as .gz). `text` and `label` are the names of the
        table columns. Labels unknown to the model count as wrong."""
        if labels is None:
            if not isinstance(source, str | os.PathLike):
                raise UserError("labels are missing: evaluate(texts, labels), or the path of labelled documents")
            raw = read(existing(Path(source)), text, label)
            source, labels = raw.texts, raw.labels
        documents, score = self._documents(source), self.empty_score()
        gold = self._gold(labels)
        if len(gold) != len(documents):
            raise UserError(f"{len(documents)} documents and {len(gold)} labels, expected as many of each")
        score.add(gold, self.decide(self.scores(documents)))
        return {**score.result(), "documents": len(documents)}

    # --- scores of documents

    def read(self, texts: Iterable[str], names: Sequence[str] | None = None) -> Documents:
        """Text classifier predictor: split texts into words, in the same way as the training documents were split.

        The labels in the result are zeros."""
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"a classifier reads documents (str), got {text!r:.60}")
        labels = np.zeros(len(texts), np.float64 if self.classes is None else np.int64)
        return tokenize(names or [str(k) for k in range(len(texts))], texts, labels, self.classes, self.reading)

    def scores(self, documents: Documents) -> np.ndarray:
        """Text classifier predictor: scores before any softmax (float64, [documents] or [documents, classes])."""
        return self.bag.matrix(documents) @ self.table.astype(np.float64) + self.bias.astype(np.float64)

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """Text classifier predictor: the code of the best class of each document, from scores.

        If the model predicts numbers, the scores are returned unchanged."""
        if self.classes is None:
            return scores
        return scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.int64)

    @property
    def probabilistic(self) -> bool:
        """Text classifier predictor: whether the model gives class probabilities.

        This needs a model of classes that was trained with the logistic loss."""
        return self.classes is not None and self.loss in PROBABILISTIC

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Text classifier predictor: class probabilities from scores, by softmax (float64 [documents, classes])."""
        if not self.probabilistic:
            kind = "a number" if self.classes is None else f"classes with loss={self.loss}"
            raise UserError(f"this model predicts {kind}: it has no probabilities; train classes with loss=logistic")
        if scores.ndim == 1:
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def empty_score(self) -> ClassScore | SquaredError:
        """Text classifier predictor: an empty evaluation score, for classes or for numbers."""
        return SquaredError() if self.classes is None else ClassScore(self.classes)

    def unknown_labels(self, labels: Iterable[str]) -> list[str]:
        """Text classifier predictor: the gold labels that are not a class of the model, sorted."""
        return [] if self.classes is None else sorted({*labels} - {*self.classes})

    def _gold(self, labels: Sequence[str | float]) -> np.ndarray:
        """Text classifier predictor: convert gold labels to numbers, or to class codes.

        An unknown label gets a code that is never predicted."""
        if self.classes is None:
            try:
                return np.array(labels, float)
            except ValueError as error:
                raise UserError(f"{error}; expected numbers as labels, which the model predicts") from None
        codes = {name: code for code, name in enumerate(self.classes)}
        return np.array([codes.get(str(label), len(codes)) for label in labels], np.int64)

    def _documents(self, texts: Texts) -> Documents:
        """Text classifier predictor: read documents and split them into words; `texts` as in `predict`."""
        if isinstance(texts, os.PathLike):
            texts = content_of(existing(Path(texts))).removesuffix("\n").split("\n")
        if not isinstance(texts, Iterable):
            raise UserError(f"a classifier reads documents (str), got {texts!r:.60}")
        return self.read([texts] if isinstance(texts, str) else texts)


def existing(path: Path) -> Path:
    """Text classifier predictor: return a path unchanged; raise an error if no file or folder exists there."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    return path


def _part_of_bag(bag: Bag, needed: np.ndarray, rows: np.ndarray, members: sparse.sparray | None) -> Bag:
    """Text classifier predictor: a bag of words with only the needed words and features.

    - `needed`: bool array, whether each word is kept
    - `rows`: bool array, whether each feature (word or group of words) is kept
    - `members`: 0/1 matrix [words, kept groups], the words of each group"""
    layout = bag.layout
    row_of = np.full(len(layout.row_of), -1, np.int32)
    known = layout.row_of >= 0
    new_rows = np.where(needed, np.cumsum(needed) - 1, -1).astype(np.int32)
    row_of[known] = new_rows[layout.row_of[known]]
    extra = int(rows[layout.plain :].sum())
    words = tuple(layout.words[row] for row in np.flatnonzero(rows).tolist())
    small = replace(
        layout, words=words, row_of=row_of, counts=layout.counts[rows], documents=layout.documents[rows], extra=extra
    )
    members = sparse.csr_array(members)[np.flatnonzero(needed)] if extra else None
    return Bag(small, replace(bag.weighting, factors=bag.weighting.factors[rows]), members)


def bag_of(
    words: Sequence[str], factors: np.ndarray, kind: str, normalize: bool, extra: int, members: sparse.csr_array | None
) -> Bag:
    """Text classifier predictor: make a bag of words (vocabulary and weighting) from stored arrays."""
    nothing = tokenize([], [], np.zeros(0, np.int64), None)
    zeros = np.zeros(len(words), np.int64)
    layout = WordLayout(tuple(words), nothing, np.zeros(0, np.int32), zeros, zeros, None, extra)
    return Bag(layout, Weighting(kind, normalize, factors), members)
