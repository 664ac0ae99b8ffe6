"""Sentiment by mean vectors, against a logistic regression by scipy; sentences without known words."""

import numpy as np
import pytest
from scipy.optimize import minimize

from structsparse.corpora.documents import DocumentSplits, from_tokens
from structsparse.tasks.embeddings import sentiment
from structsparse.tasks.embeddings.evaluation import SentimentSet, Vectors, evaluated
from structsparse.tasks.embeddings.sentiment import sentiment_answers
from structsparse.tasks.embeddings.similarity import unit_rows

WORDS = [f"w{k}" for k in range(40)]


def documents(rng: np.random.Generator, count: int, polarity: np.ndarray):
    """Sentences whose label is the sign of the summed polarity of their words, with noise."""
    drawn = [rng.integers(40, size=rng.integers(3, 9)) for _ in range(count)]
    labels = np.array([int(polarity[words].sum() + rng.normal() > 0) for words in drawn])
    tokens = [[WORDS[k].upper() for k in words] for words in drawn]
    return from_tokens([str(k) for k in range(count)], tokens, labels, ("negative", "positive"))


@pytest.fixture
def splits() -> DocumentSplits:
    rng = np.random.default_rng(0)
    polarity = rng.normal(size=40)
    return DocumentSplits("planted", *(documents(rng, count, polarity) for count in (400, 100, 300)))


@pytest.fixture
def unit() -> np.ndarray:
    return unit_rows(np.random.default_rng(1).normal(size=(40, 6)))


def logistic(features: np.ndarray, labels: np.ndarray, strength: float) -> np.ndarray:
    """Weights and intercept of a logistic regression with a ridge on the weights."""
    columns, signs = np.column_stack([features, np.ones(len(features))]), 2 * labels - 1

    def objective(w):
        return np.logaddexp(0, -signs * (columns @ w)).mean() + strength / 2 * (w[:-1] ** 2).sum()

    return minimize(objective, np.zeros(columns.shape[1]), method="BFGS", options={"gtol": 1e-8}).x


def test_predictions_are_those_of_a_logistic_regression_that_dev_chooses(splits, unit):
    means = [
        np.array([np.mean([unit[WORDS.index(part.words[t])] for t in part.tokens[a:b]], axis=0)
                  for a, b in zip(part.offsets[:-1], part.offsets[1:], strict=True)])
        for part in splits.parts.values()
    ]  # fmt: skip
    train, dev, test = ((part - means[0].mean(axis=0)) / means[0].std(axis=0) for part in means)
    best, expected = -1.0, None
    for strength in sentiment.STRENGTHS:
        w = logistic(train, splits.train.labels, strength)
        score = ((dev @ w[:-1] + w[-1] > 0) == splits.dev.labels).mean()
        if score > best:
            best, expected = score, (test @ w[:-1] + w[-1] > 0) == splits.test.labels
    found = sentiment_answers(unit, {word: k for k, word in enumerate(WORDS)}, splits)
    assert found.known.all()
    assert (found.values == expected).mean() > 0.99, "up to sentences on the border"
    assert found.values.mean() > 0.6


def test_sentences_without_known_words_are_left_out(splits, unit):
    few = {word: k for k, word in enumerate(WORDS[:10])}
    found = sentiment_answers(unit[:10], few, splits)
    test = splits.test
    bounds = zip(test.offsets[:-1], test.offsets[1:], strict=True)
    known = [any(test.words[t] in few for t in test.tokens[a:b]) for a, b in bounds]
    assert found.known.tolist() == known
    assert not found.values[~found.known].any()
    nothing = evaluated(Vectors(unit[:1], {"other": 0}), [SentimentSet("planted", splits)])["sets"]["planted"]
    assert np.isnan(nothing["accuracy"])
    assert (nothing["known"], nothing["sentences"]) == (0, 300)
