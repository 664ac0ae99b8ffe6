"""Scores of classifiers against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

from structsparse.tasks.textcat.scores import ClassScore, SquaredError
from structsparse.training.scores import gain


def test_scores_equal_those_of_scikit_learn():
    draw = np.random.default_rng(0)
    gold, predicted = draw.choice(4, 60, p=[0.6, 0.3, 0.1, 0.0]), draw.choice(4, 60, p=[0.5, 0.3, 0.2, 0.0])
    score = ClassScore(("a", "b", "c", "never"))
    for part in np.array_split(np.arange(60), 3):
        score.add(gold[part], predicted[part])
    result = score.result()
    assert result["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert result["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))
    numbers = draw.normal(size=(2, 60))
    error = SquaredError()
    for part in np.array_split(np.arange(60), 3):
        error.add(numbers[0, part], numbers[1, part])
    assert error.result()["mse"] == pytest.approx(mean_squared_error(*numbers))
    assert gain("dev/mse", 2.0) < gain("dev_mse", 1.0)
    assert np.isnan(SquaredError().result()["mse"])
