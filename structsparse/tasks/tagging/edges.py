"""Edge features of taggers (`features.edges`): a token feature conjoined with a pair of neighbouring labels.

Such a pair of labels is called an edge. A feature and an edge have a weight only if they occur together in training.
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


class _EdgeArrays(NamedTuple):
    """Edge features of the training sentences, as an argument of `Pairs.observed`; edges take the place of labels."""

    bags: Bags  # the edge features of each token
    gold: np.ndarray  # int64 [tokens], index of the edge (label pair) that ends at each token; 0 for first tokens
    offsets: np.ndarray  # int64 array of shape [sentences + 1], the first token of each sentence and the token count


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """The edge features of a tagged corpus: feature index, label pairs of training, and features of each token."""

    index: TokenIndex  # the index of edge features
    label_pairs: np.ndarray  # int64 [2, edges], the pairs of neighbouring labels in training
    bags: dict[str, Bags]  # part (train, dev, test) -> the edge features of each token; first tokens have none
    gold: np.ndarray  # int64 [training tokens], index of the label pair that ends at each token; 0 for first tokens
    offsets: np.ndarray  # int64 array of shape [training sentences + 1], the first token of each sentence, then the end

    @classmethod
    def fit(
        cls, parts: dict[str, Sentences], gold: np.ndarray, templates: Sequence[Template], min_count: int
    ) -> EdgeFeatures:
        """Index the edge features of the training part, and look up the edge features of all parts.

        `gold`, int64 [training tokens], has the gold labels."""
        train = parts["train"]
        if train.tokens == len(train):
            raise UserError(f"{train.source}: features.edges needs a sentence of two tokens or more in training")
        label_pairs = observed(gold, train.offsets)
        index = TokenIndex.fit(train, templates, min_count)
        bags = {
            part: without_first_tokens(index.bags(sentences), sentences.offsets) for part, sentences in parts.items()
        }
        return cls(index, label_pairs, bags, numbers(label_pairs, gold, train.offsets), train.offsets)

    def relabelled(self, gold: np.ndarray) -> EdgeFeatures:
        """A copy of the edge features with other gold labels `gold` of the training tokens (int64 array [tokens])."""
        label_pairs = observed(gold, self.offsets)
        return replace(self, label_pairs=label_pairs, gold=numbers(label_pairs, gold, self.offsets))

    @cached_property
    def pairs(self) -> Pairs:
        """Edge features: the pairs (feature, edge) that occur together in training; an edge is a label pair."""
        arrays = _EdgeArrays(self.bags["train"], self.gold, self.offsets)
        return Pairs.observed(arrays, len(self.index), self.label_pairs.shape[1])

    @property
    def counts(self) -> np.ndarray:
        """Edge features: for each feature, the number of training tokens with it, except first tokens of sentences."""
        return np.bincount(self.bags["train"].ids, minlength=len(self.index))

    def layout(self, labels: Sequence[str]) -> TemplateLayout:
        """The layout of the weight table of edge features: rows are features (by template), columns are label pairs."""
        return TemplateLayout(self.index.names, self.index.offsets, self.names(labels), pairs=self.pairs)

    def keep(self, alive: np.ndarray) -> EdgeFeatures:
        """Restrict the edge features to those marked in the bool array `alive`."""
        index, new_row = self.index.keep(alive)
        return replace(self, index=index, bags={part: b.renumber(new_row) for part, b in self.bags.items()})

    def names(self, labels: Sequence[str]) -> list[str]:
        """Edge features: the names of the edges (pairs of neighbouring labels), such as `O>B-PER`."""
        return [f"{labels[before]}>{labels[after]}" for before, after in self.label_pairs.T]


def without_first_tokens(bags: Bags, offsets: np.ndarray) -> Bags:
    """Remove the edge features of the first token of each sentence, which has no label before it.

    `offsets`, of shape [sentences + 1], has the first token of each sentence."""
    counts = np.diff(bags.offsets)
    first = np.zeros(len(counts), bool)
    first[offsets[:-1]] = True
    counts = np.where(first, 0, counts)
    return Bags(bags.ids[~np.repeat(first, np.diff(bags.offsets))], np.r_[0, np.cumsum(counts)])


class EdgeScorer(PairTable):
    """Scorer of edge features: score[token, edge] = sum of weight[feature, edge] over the token's features."""

    def __init__(self, label_pairs: np.ndarray, labels: int, pairs: Pairs) -> None:
        super().__init__(pairs)
        self.chain = EdgeChain(torch.from_numpy(label_pairs), labels)

    @classmethod
    def of(cls, label_pairs: np.ndarray, labels: int, dense: np.ndarray) -> EdgeScorer:
        """A scorer of edge features with the nonzero weights of a dense table [features, edges]."""
        rows, living = np.nonzero(dense)
        offsets = np.r_[0, np.cumsum(np.bincount(rows, minlength=len(dense)))]
        links = np.ones((dense.shape[1], dense.shape[1]), bool)
        scorer = cls(label_pairs, labels, Pairs(offsets, living.astype(np.min_scalar_type(len(links))), links))
        with torch.no_grad():
            scorer.table.copy_(torch.from_numpy(dense[rows, living]))
        return scorer

    def forward(
        self, batch: TokenBatch, emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor
    ) -> EdgeScores:
        """The chain scores of a batch: the scores of edge features, together with the scores in the arguments:

        - emissions: the score of each label at each token
        - transitions [labels, labels]: the score of each label pair
        - start, end [labels]: the scores of first and last labels"""
        emissions = batch.pad(emissions) if emissions.dim() == 2 else emissions
        shared = transitions[self.chain.origins, self.chain.targets]  # [edges], the score of each label pair
        return EdgeScores(emissions, self.sum(_batch_of_edges(batch)), shared, start, end)


def _batch_of_edges(batch: TokenBatch) -> TokenBatch:
    """A copy of a batch with edge features in place of token features; the copy is cached with the batch."""
    if batch.edge_ids is None:
        raise UserError("this tagger has features of edges, the sentences come without; prepare them with edges")

    def swapped(cache: BatchCache | None) -> TokenBatch:
        """A copy of the batch with edge features in place of token features, and with the given cache."""
        return replace(batch, ids=batch.edge_ids, offsets=batch.edge_offsets, cache=cache)

    return swapped(None) if batch.cache is None else batch.cache.get("edges", lambda: swapped(BatchCache()))
