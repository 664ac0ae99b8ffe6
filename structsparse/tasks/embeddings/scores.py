"""The scores of word vectors in training: share of the associations explained, similarity, analogies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class VectorScore:
    """The scores of word vectors on dev or test: figures by name.

    - explained: the share of the squares of the associations that codes and dictionary reconstruct
    - similarity: the mean of Spearman's correlations over the sets of pairs of this part, and one for each set
    - analogies: the accuracy on questions of analogy by kind, on test
    - sentiment: the accuracy of a classifier over mean vectors of sentences, on test"""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.counts = np.full(len(self.names), np.nan)

    def add(self, figures: dict[str, float]) -> None:
        """Scores of word vectors: set the figures of the part."""
        self.counts = np.array([figures.get(name, math.nan) for name in self.names])

    def result(self) -> dict[str, float]:
        """Scores of word vectors: the figures that are known, by name."""
        return {name: value for name, value in zip(self.names, self.counts.tolist(), strict=True) if value == value}
