"""Candidate token templates for filters: the features of all templates on the training tokens, and gold labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from structsparse.corpora.columns import Sentences
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import Template

_AT_ONCE = 32  # number of templates that are indexed together, to limit memory


@dataclass(frozen=True)
class TokenCandidates:
    """Candidate token templates for a filter, with the training tokens on which the filter compares templates."""

    sentences: Sentences
    tag: str  # name of the column to predict
    templates: Sequence[Template]

    @property
    def gold(self) -> np.ndarray:
        """Candidate token templates for a filter: the gold labels of the training tokens, int32 [tokens]."""
        return self.sentences.columns[self.tag].codes

    def features(self) -> Iterator[np.ndarray]:
        """Candidates for a filter: yields, for each token template, the array of feature ids of all training tokens."""
        for begin in range(0, len(self.templates), _AT_ONCE):
            templates = self.templates[begin : begin + _AT_ONCE]
            index = TokenIndex.fit(self.sentences, templates)
            # each template has exactly one feature at each token
            ids = index.bags(self.sentences).ids.reshape(self.sentences.tokens, len(templates))
            yield from (ids[:, k] - int(index.offsets[k]) for k in range(len(templates)))
