"""Evaluation of word vectors by sentiment: a logistic regression on the mean vector of a sentence, on held-out test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from structsparse.corpora.documents import Documents, DocumentSplits
from structsparse.penalties import SquaredL2
from structsparse.solvers.linear import fit_linear
from structsparse.tasks.embeddings.similarity import Answers, code_of

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)  # of the ridge on weights of standardised features; dev chooses
TOLERANCE = 1e-4  # relative duality gap of each fit


def sentiment_answers(unit: np.ndarray, codes: Mapping[str, int], splits: DocumentSplits) -> Answers:
    """Evaluation of word vectors by sentiment: which sentences of test are classified right.

    A sentence is the mean of the unit vectors of its known words. The strength is that with the best accuracy on dev,
    the largest of equal ones."""
    parts = [_means(unit, codes, part) for part in (splits.train, splits.dev, splits.test)]
    (train, seen), (dev, _), (test, known) = parts
    if not seen.any():
        return Answers(np.zeros(len(test), bool), np.zeros(len(test)))
    centre, spread = train.mean(axis=0), train.std(axis=0)
    train, dev, test = ((part - centre) / np.where(spread > 0, spread, 1) for part in (train, dev, test))
    fit, best, chosen = None, -1.0, None
    for strength in STRENGTHS:
        fit = fit_linear(train, 2.0 * splits.train.labels - 1, SquaredL2(strength), tolerance=TOLERANCE, start=fit)
        accuracy = float(_right(fit, dev, splits.dev).mean())
        if accuracy > best:
            best, chosen = accuracy, fit
    return Answers(known, np.where(known, _right(chosen, test, splits.test), 0.0))


def _right(fit, features: np.ndarray, documents: Documents) -> np.ndarray:
    """Evaluation of word vectors by sentiment: whether a fit gives each sentence its class, bool [sentences]."""
    return (features @ fit.weights.numpy() + fit.intercept > 0) == (documents.labels == 1)


def _means(unit: np.ndarray, codes: Mapping[str, int], documents: Documents) -> tuple[np.ndarray, np.ndarray]:
    """Evaluation of word vectors by sentiment: the mean of the known words of each sentence, and where there are any.

    Sentences without known words have zeros."""
    numbers = [code_of(word, codes) for word in documents.words]
    number = np.array([-1 if n is None else n for n in numbers], np.int64)[documents.tokens]
    owner = np.repeat(np.arange(len(documents)), documents.lengths)[number >= 0]
    number = number[number >= 0]
    counts = np.bincount(owner, minlength=len(documents))
    shape = len(documents), unit.shape[0]
    table = sparse.csr_array((1 / counts[owner], (owner, number)), shape=shape)
    means = table @ unit
    return np.asarray(means.toarray() if sparse.issparse(means) else means, np.float64), counts > 0
