"""Scores of drift models: squared error of numbers, accuracy of classes, negative log-likelihood of words."""

from __future__ import annotations

import math

import numpy as np


class DriftScore:
    """The score of a drift model: the sum of a figure over units (items or words), and their number.

    `metric` is mse (mean squared error), accuracy, or nll (nats for each word)."""

    def __init__(self, metric: str) -> None:
        self.metric, self.counts = metric, np.zeros(2)

    def add(self, total: float, units: float) -> None:
        """Score of a drift model: add a sum over some units."""
        self.counts += np.array([total, units])

    def result(self) -> dict[str, float]:
        """Score of a drift model: the mean figure by its name, and the number of units."""
        total, units = self.counts.tolist()
        return {self.metric: total / units if units else math.nan, "units": int(units)}
