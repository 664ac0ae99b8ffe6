"""Candidates for filters of token templates: the features of every training token, and its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from structsparse.corpora.columns import Sentences
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import Template

_AT_ONCE = 32  # templates indexed together; their features are held in memory, one number a token


@dataclass(frozen=True)
class TokenCandidates:
    """Token templates to choose from, judged by the column that a tagger predicts."""

    sentences: Sentences
    tag: str  # the column to predict
    templates: Sequence[Template]

    @property
    def gold(self) -> np.ndarray:
        """Label of each token: int32 [tokens]"""
        return self.sentences.columns[self.tag].codes

    def features(self) -> Iterator[np.ndarray]:
        """Feature of each token, for one template after another: int [tokens]"""
        for begin in range(0, len(self.templates), _AT_ONCE):
            templates = self.templates[begin : begin + _AT_ONCE]
            index = TokenIndex.fit(self.sentences, templates)
            ids = index.bags(self.sentences).ids.reshape(self.sentences.tokens, len(templates))  # one feature each
            yield from (ids[:, k] - int(index.offsets[k]) for k in range(len(templates)))
