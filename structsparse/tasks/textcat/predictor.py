"""Use of a trained classifier: the class of a document, how probable each is, and which words say so.

Nothing here knows of training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Documents, Reading, tokenize
from structsparse.features.words import Bag, Weighting, WordLayout
from structsparse.tasks.textcat.scores import ClassScore, SquaredError

PROBABILITIES = ("logistic",)  # losses whose scores are made to be some


@dataclass(frozen=True, eq=False)
class Classifier:
    """scores = sum over the words of a document of weight * what the document weighs on them, plus bias."""

    bag: Bag  # of the words that are needed
    table: np.ndarray  # [words] or [words, classes]
    bias: np.ndarray  # [outputs]
    classes: tuple[str, ...] | None  # None: a number is predicted
    reading: Reading  # how a text becomes words
    loss: str

    @classmethod
    def of(
        cls, bag: Bag, table: np.ndarray, bias: np.ndarray, classes: Sequence[str] | None, reading: Reading, loss: str
    ) -> Classifier:
        """What lives of a model on all words of a corpus. Where documents are scaled to one length, all words count."""
        if bag.weighting.normalize:
            return cls(bag, table, bias, classes, reading, loss)
        living = table != 0 if table.ndim == 1 else (table != 0).any(axis=1)
        plain = bag.layout.plain
        extra, members = living[plain:], bag.members
        needed = living[:plain].copy()
        if members is not None:
            members = members[:, np.flatnonzero(extra)]
            needed |= np.diff(members.tocsr().indptr) > 0
        kept = np.concatenate([needed, extra])
        return cls(_kept(bag, needed, kept, members), table[kept], bias, classes, reading, loss)

    def read(self, texts: Iterable[str], names: Sequence[str] | None = None) -> Documents:
        """Texts without labels."""
        texts = list(texts)
        labels = np.zeros(len(texts), np.float64 if self.classes is None else np.int64)
        return tokenize(names or [str(k) for k in range(len(texts))], texts, labels, self.classes, self.reading)

    def scores(self, documents: Documents) -> np.ndarray:
        """float64 [documents] or [documents, classes]"""
        return self.bag.matrix(documents) @ self.table.astype(np.float64) + self.bias.astype(np.float64)

    def predict(self, documents: Documents) -> np.ndarray:
        """The code of the class of each document, or a number: [documents]"""
        return self.decide(self.scores(documents))

    def decide(self, scores: np.ndarray) -> np.ndarray:
        if self.classes is None:
            return scores
        return scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.int64)

    @property
    def probable(self) -> bool:
        """Whether scores were made to be turned into probabilities."""
        return self.classes is not None and self.loss in PROBABILITIES

    def probabilities(self, documents: Documents) -> np.ndarray:
        """float64 [documents, classes]"""
        return self.chances(self.scores(documents))

    def chances(self, scores: np.ndarray) -> np.ndarray:
        """The probabilities that scores stand for: float64 [documents, classes]"""
        if not self.probable:
            raise UserError(
                f"a model trained under loss={self.loss} tells no probabilities: expected logistic, of classes"
            )
        if scores.ndim == 1:
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def empty_score(self) -> ClassScore | SquaredError:
        return SquaredError() if self.classes is None else ClassScore(self.classes)


def _kept(bag: Bag, needed: np.ndarray, kept: np.ndarray, members: sparse.sparray | None) -> Bag:
    """The bag of some words, and of some of the further features."""
    layout = bag.layout
    row_of = np.full(len(layout.row_of), -1, np.int32)
    known = layout.row_of >= 0
    rows = np.where(needed, np.cumsum(needed) - 1, -1).astype(np.int32)
    row_of[known] = rows[layout.row_of[known]]
    extra = int(kept[layout.plain :].sum())
    words = tuple(layout.words[row] for row in np.flatnonzero(kept).tolist())
    small = replace(
        layout, words=words, row_of=row_of, counts=layout.counts[kept], documents=layout.documents[kept], extra=extra
    )
    members = sparse.csr_array(members)[np.flatnonzero(needed)] if extra else None
    return Bag(small, replace(bag.weighting, factors=bag.weighting.factors[kept]), members)


def bag_of(
    words: Sequence[str], factors: np.ndarray, kind: str, normalize: bool, extra: int, members: sparse.csr_array | None
) -> Bag:
    """A bag that has seen no training part."""
    nothing = tokenize([], [], np.zeros(0, np.int64), None)
    zeros = np.zeros(len(words), np.int64)
    layout = WordLayout(tuple(words), nothing, np.zeros(0, np.int32), zeros, zeros, None, extra)
    return Bag(layout, Weighting(kind, normalize, factors), members)
