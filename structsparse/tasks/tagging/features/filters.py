"""Candidate token templates for filters: the feature of each template at each training token, and gold labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from structsparse.corpora.columns import Sentences
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import Template

_AT_ONCE = 32  # the number of templates indexed together; memory has a feature number for each token and template


@dataclass(frozen=True)
class TokenCandidates:
    """Candidate token templates for a filter, with the training tokens whose labels the features should predict."""

    sentences: Sentences
    tag: str  # the column to predict
    templates: Sequence[Template]

    @property
    def gold(self) -> np.ndarray:
        """Candidates for a filter of token templates: the gold label of each training token: int32 [tokens]"""
        return self.sentences.columns[self.tag].codes

    def features(self) -> Iterator[np.ndarray]:
        """Candidates for a filter of token templates: the features int [tokens], template by template."""
        for begin in range(0, len(self.templates), _AT_ONCE):
            templates = self.templates[begin : begin + _AT_ONCE]
            index = TokenIndex.fit(self.sentences, templates)
            # Each template has exactly one feature at each token.
            ids = index.bags(self.sentences).ids.reshape(self.sentences.tokens, len(templates))
            yield from (ids[:, k] - int(index.offsets[k]) for k in range(len(templates)))
