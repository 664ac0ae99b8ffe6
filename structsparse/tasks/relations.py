"""The second stage of a parser: relations, which are learnt from gold arcs and predicted of predicted ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from structsparse.corpora.treebank import Treebank
from structsparse.features.arc_templates import ArcTemplate
from structsparse.parsing.relations import Relations, fitted


@dataclass(frozen=True, eq=False)
class Labelling:
    """What tells relations, and the parts of the corpus that it is scored on."""

    model: Relations
    parts: Mapping[str, Treebank]
    features: int  # before those without weights were left out
    seconds: float  # that it took to learn

    @classmethod
    def learnt(cls, parts: Mapping[str, Treebank], templates: Sequence[ArcTemplate], min_count: int) -> Self:
        begin = time.perf_counter()
        model, features = fitted(parts["train"], templates, min_count)
        return cls(model, parts, features, time.perf_counter() - begin)

    def codes(self, part: str, sentences: np.ndarray, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gold and predicted relations of some sentences with these heads, in one code: [tokens] each"""
        treebank = self.parts[part].select(sentences)
        gold = treebank.columns["deprel"].recoded(self.model.names)
        return gold.codes, self.model.predict(treebank, heads).codes

    def figures(self) -> dict[str, object]:
        weights = self.model.weights
        return {
            "label_features": self.features,
            "label_rows_alive": weights.shape[0],
            "label_nonzero": weights.nnz,
            "label_relations": weights.shape[1],
            "seconds_labels": self.seconds,
        }
