"""Perplexity, the score of language models."""

from __future__ import annotations

import math

import numpy as np


class Perplexity:
    """Perplexity, exp of the mean negative log-probability per target, accumulated over texts.

    `perplexity` is over the targets in the vocabulary, as papers report it. `perplexity_open` is over all targets, with
    unknown words scored as `<unk>`."""

    def __init__(self) -> None:
        self.counts = np.zeros(4)  # negative log-probability and number of known, then of unknown targets

    def add(self, log_probabilities: np.ndarray, known: np.ndarray) -> None:
        """Add targets: log-probabilities [targets], and whether the vocabulary has each target, bool [targets]"""
        for place, mask in ((0, known), (2, ~known)):
            self.counts[place : place + 2] += -log_probabilities[mask].sum(), mask.sum()

    def result(self) -> dict[str, float]:
        """Both perplexities and the numbers of known and unknown targets."""
        total, known, unknown_total, unknown = self.counts.tolist()
        return {
            "perplexity": _exp_of_mean(total, known),
            "perplexity_open": _exp_of_mean(total + unknown_total, known + unknown),
            "targets": int(known),
            "unknown": int(unknown),
        }


def _exp_of_mean(total: float, count: float) -> float:
    """exp(total / count); infinity if the value is too large, as for a model that diverged in training."""
    try:
        return math.exp(total / count) if count else math.nan
    except OverflowError:
        return math.inf
