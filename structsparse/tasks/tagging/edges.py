"""Templates conjoined with a step, a pair of neighbouring labels: a weight for (feature, label before, label here).

Only what training holds has a weight: the pairs of a feature and a step that occur together there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.features.keys import Bags
from structsparse.features.layout import TemplateLayout
from structsparse.structures.edges import EdgeChain, EdgeScores, numbers, observed
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.weights.batch import BatchCache, TokenBatch
from structsparse.weights.observed_pairs import Pairs, PairTable

if TYPE_CHECKING:
    from structsparse.corpora.columns import Sentences
    from structsparse.tasks.tagging.features.templates import Template


class _Taken(NamedTuple):
    """Training as `Pairs` looks at it, with steps in the place of labels."""

    bags: Bags
    gold: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """The features that are conjoined with steps, the steps, and what goes with what in training."""

    index: TokenIndex
    steps: np.ndarray  # int64 [2, steps] from, to: those that training holds
    bags: dict[str, Bags]  # of each part, a row per token; a sentence's first token, to which no step leads, has none
    taken: np.ndarray  # int64 [tokens] the number of the step to each token of training; 0 for a sentence's first one
    offsets: np.ndarray  # int64 [sentences + 1] of training

    @classmethod
    def fit(
        cls, parts: dict[str, Sentences], gold: np.ndarray, templates: Sequence[Template], min_count: int
    ) -> EdgeFeatures:
        """From the training part, whose labels are gold [tokens]; all parts are laid into bags."""
        train = parts["train"]
        if train.tokens == len(train):
            raise UserError(f"{train.source}: features.edges needs a sentence of two tokens or more in training")
        steps = observed(gold, train.offsets)
        index = TokenIndex.fit(train, templates, min_count)
        bags = {part: inner(index.bags(sentences), sentences.offsets) for part, sentences in parts.items()}
        return cls(index, steps, bags, numbers(steps, gold, train.offsets), train.offsets)

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs of row and step that training holds."""
        return Pairs.observed(
            _Taken(self.bags["train"], self.taken, self.offsets), len(self.index), self.steps.shape[1]
        )

    @property
    def counts(self) -> np.ndarray:
        """How often each feature occurs in training, at the first token of a sentence left out: int64 [rows]"""
        return np.bincount(self.bags["train"].ids, minlength=len(self.index))

    def layout(self, labels: Sequence[str]) -> TemplateLayout:
        """What the entries of their weights stand for."""
        return TemplateLayout(self.index.names, self.index.offsets, self.names(labels), pairs=self.pairs)

    def keep(self, alive: np.ndarray) -> EdgeFeatures:
        """Only the rows that are alive [rows]."""
        index, new_row = self.index.keep(alive)
        return replace(self, index=index, bags={part: b.renumber(new_row) for part, b in self.bags.items()})

    def names(self, labels: Sequence[str]) -> list[str]:
        """The steps in words."""
        return [f"{labels[before]}>{labels[here]}" for before, here in self.steps.T]


def inner(bags: Bags, offsets: np.ndarray) -> Bags:
    """Without what is active at the first token of a sentence."""
    counts = np.diff(bags.offsets)
    first = np.zeros(len(counts), bool)
    first[offsets[:-1]] = True
    counts = np.where(first, 0, counts)
    return Bags(bags.ids[~np.repeat(first, np.diff(bags.offsets))], np.r_[0, np.cumsum(counts)])


class EdgeScorer(PairTable):
    """score[token, step] = sum over the features active at the token of the weight of (feature, step), if it has one"""

    def __init__(self, steps: np.ndarray, labels: int, pairs: Pairs) -> None:
        super().__init__(pairs)
        self.chain = EdgeChain(torch.from_numpy(steps), labels)

    @classmethod
    def of(cls, steps: np.ndarray, labels: int, dense: np.ndarray) -> EdgeScorer:
        """With the weights of a table [rows, steps], its zeros left out."""
        rows, living = np.nonzero(dense)
        offsets = np.r_[0, np.cumsum(np.bincount(rows, minlength=len(dense)))]
        links = np.ones((dense.shape[1], dense.shape[1]), bool)
        scorer = cls(steps, labels, Pairs(offsets, living.astype(np.min_scalar_type(len(links))), links))
        with torch.no_grad():
            scorer.table.copy_(torch.from_numpy(dense[rows, living]))
        return scorer

    def forward(
        self, batch: TokenBatch, emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor
    ) -> EdgeScores:
        """With the scores of labels and of pairs of labels that are the same at every token."""
        emissions = batch.pad(emissions) if emissions.dim() == 2 else emissions
        steps = transitions[self.chain.origins, self.chain.targets]
        return EdgeScores(emissions, self.sum(_of_edges(batch)), steps, start, end)


def _of_edges(batch: TokenBatch) -> TokenBatch:
    """The batch with the features of edges in the place of those of labels."""
    if batch.edge_ids is None:
        raise UserError("this tagger has features of edges, the sentences come without; prepare them with edges")
    if batch.cache is not None:
        return batch.cache.get("edges", lambda: _swapped(batch, BatchCache()))
    return _swapped(batch, None)


def _swapped(batch: TokenBatch, cache: BatchCache | None) -> TokenBatch:
    return replace(batch, ids=batch.edge_ids, offsets=batch.edge_offsets, cache=cache)
