"""The scores of classifiers of documents: accuracy and mean F1 of classes, mean squared error of numbers."""

from __future__ import annotations

import math

import numpy as np

from structsparse.training.scores import AccuracyScore


class ClassScore(AccuracyScore):
    """Accuracy over documents, and macro F1: the mean F1 of the classes that occur, in which each counts the same."""

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray | None = None) -> None:
        """Add documents: codes of classes [documents]; a gold code beyond the names is never right."""
        super().add(gold, predicted, np.array([0, len(gold)]) if offsets is None else offsets)

    def result(self) -> dict:
        """Accuracy and macro F1 as fractions; `types`: precision, recall, F1 and counts of each class."""
        result = super().result()
        counted = [of["f1"] for of in result["types"].values() if of["gold"] + of["predicted"]]
        macro_f1 = sum(counted) / max(1, len(counted))
        return {"accuracy": result["accuracy"], "macro_f1": macro_f1, "types": result["types"]}


class SquaredError:
    """Mean squared error of predicted numbers."""

    def __init__(self) -> None:
        self.counts = np.zeros(2)  # sum of squares, documents

    def add(self, gold: np.ndarray, predicted: np.ndarray) -> None:
        """Add documents: their numbers and the predicted ones [documents]"""
        self.counts += np.square(predicted - gold).sum(), len(gold)

    def result(self) -> dict[str, float]:
        """The mean squared error and the number of documents."""
        total, documents = self.counts.tolist()
        return {"mse": total / documents if documents else math.nan, "documents": int(documents)}
