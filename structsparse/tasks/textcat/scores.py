"""The scores of text classifiers: accuracy and macro F1 of classes, mean squared error of numbers."""

from __future__ import annotations

import math

import numpy as np

from structsparse.training.scores import AccuracyScore


class ClassScore(AccuracyScore):
    """The scores of a text classifier that predicts classes: accuracy and macro F1.

    Macro F1 is the unweighted mean F1 of all classes that occur as gold or predicted class."""

    numbers = False  # whether labels are numbers, not classes

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray | None = None) -> None:
        """Scores of a text classifier: add the gold and predicted class codes of documents (arrays [documents]).

        A gold code that stands for no class counts as an error."""
        super().add(gold, predicted, np.array([0, len(gold)]) if offsets is None else offsets)

    def result(self) -> dict:
        """Scores of a text classifier: accuracy and macro F1 as fractions, and the scores by class.

        The field `types` has precision, recall, F1 and counts of each class."""
        result = super().result()
        counted = [of["f1"] for of in result["types"].values() if of["gold"] + of["predicted"]]
        macro_f1 = sum(counted) / max(1, len(counted))
        return {"accuracy": result["accuracy"], "macro_f1": macro_f1, "types": result["types"]}


class SquaredError:
    """The score of a text classifier that predicts numbers: the mean squared error."""

    numbers = True  # whether labels are numbers, not classes

    def __init__(self) -> None:
        self.counts = np.zeros(2)  # the sum of squared errors, and the number of documents

    def add(self, gold: np.ndarray, predicted: np.ndarray) -> None:
        """Scores of a text classifier: add the gold and predicted numbers of documents (arrays [documents])."""
        self.counts += np.square(predicted - gold).sum(), len(gold)

    def result(self) -> dict[str, float]:
        """Scores of a text classifier: the mean squared error and the number of documents."""
        total, documents = self.counts.tolist()
        return {"mse": total / documents if documents else math.nan, "documents": int(documents)}
