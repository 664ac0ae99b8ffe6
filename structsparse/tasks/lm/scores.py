"""Perplexity, the score of language models."""

from __future__ import annotations

import math

import numpy as np


class Perplexity:
    """The score of a language model: perplexity, exp of the mean negative log-probability of the targets.

    A target is a word or sentence end to predict. `perplexity` is over the targets in the vocabulary. `perplexity_open`
    is over all targets, with unknown words scored as `<unk>`."""

    def __init__(self) -> None:
        # summed negative log-probability and count of the targets in the vocabulary, then of all other targets
        self.counts = np.zeros(4)

    def add(self, log_probabilities: np.ndarray, known: np.ndarray) -> None:
        """Add targets (words to predict) to the perplexity score of a language model.

        - `log_probabilities`: array of natural logarithms, one for each target
        - `known`: bool array, whether each target is in the vocabulary"""
        for place, mask in ((0, known), (2, ~known)):
            self.counts[place : place + 2] += -log_probabilities[mask].sum(), mask.sum()

    def result(self) -> dict[str, float]:
        """The perplexity scores of a language model, and the counts of known and unknown words."""
        total, known, unknown_total, unknown = self.counts.tolist()
        return {
            "perplexity": _exp_of_mean(total, known),
            "perplexity_open": _exp_of_mean(total + unknown_total, known + unknown),
            "targets": int(known),
            "unknown": int(unknown),
        }


def _exp_of_mean(total: float, count: float) -> float:
    """Perplexity score: exp(total / count), where `total` is a summed negative log-probability.

    The result is NaN if the count is zero, and infinity if the value is too large for a float."""
    try:
        return math.exp(total / count) if count else math.nan
    except OverflowError:
        return math.inf
