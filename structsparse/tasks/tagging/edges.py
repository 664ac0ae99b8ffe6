"""Edge features of taggers (`features.edges`): a token feature conjoined with an edge, a pair of neighbouring labels.

Only pairs of a feature and an edge that occur together in training have a weight.
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
    """Edge features of the training sentences as `Pairs.observed` takes them: bags, with edges as gold labels."""

    bags: Bags  # the edge features of each token
    gold: np.ndarray  # int64 [tokens] number of the edge into each token; 0 for first tokens
    offsets: np.ndarray  # int64 [sentences + 1] where each sentence begins


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """The edge features of a tagged corpus: feature index, label pairs of training, and bags of features."""

    index: TokenIndex  # the index of edge features
    label_pairs: np.ndarray  # int64 [2, edges] (from, to): the pairs of neighbouring labels in training
    bags: dict[str, Bags]  # by part: a bag for each token, empty for the first token of a sentence
    gold: np.ndarray  # int64 [training tokens] number of the edge into each token; 0 for first tokens
    offsets: np.ndarray  # int64 [training sentences + 1] where each sentence begins

    @classmethod
    def fit(
        cls, parts: dict[str, Sentences], gold: np.ndarray, templates: Sequence[Template], min_count: int
    ) -> EdgeFeatures:
        """Index the edge features of part `train`, and make the bags of all parts.

        gold: int64 [training tokens], gold labels."""
        train = parts["train"]
        if train.tokens == len(train):
            raise UserError(f"{train.source}: features.edges needs a sentence of two tokens or more in training")
        label_pairs = observed(gold, train.offsets)
        index = TokenIndex.fit(train, templates, min_count)
        bags = {
            part: without_first_tokens(index.bags(sentences), sentences.offsets) for part, sentences in parts.items()
        }
        return cls(index, label_pairs, bags, numbers(label_pairs, gold, train.offsets), train.offsets)

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs of edge feature and edge (pair of neighbouring labels) that occur together in training."""
        arrays = _EdgeArrays(self.bags["train"], self.gold, self.offsets)
        return Pairs.observed(arrays, len(self.index), self.label_pairs.shape[1])

    @property
    def counts(self) -> np.ndarray:
        """Edge features: the number of training tokens with each feature, first tokens excluded: int64 [rows]"""
        return np.bincount(self.bags["train"].ids, minlength=len(self.index))

    def layout(self, labels: Sequence[str]) -> TemplateLayout:
        """The layout of the weight table of edge features: features as rows, by template; edges as columns."""
        return TemplateLayout(self.index.names, self.index.offsets, self.names(labels), pairs=self.pairs)

    def keep(self, alive: np.ndarray) -> EdgeFeatures:
        """The edge features that are marked in `alive`, bool [rows]."""
        index, new_row = self.index.keep(alive)
        return replace(self, index=index, bags={part: b.renumber(new_row) for part, b in self.bags.items()})

    def names(self, labels: Sequence[str]) -> list[str]:
        """Edge features: the names of the edges (pairs of neighbouring labels), such as `O>B-PER`."""
        return [f"{labels[before]}>{labels[after]}" for before, after in self.label_pairs.T]


def without_first_tokens(bags: Bags, offsets: np.ndarray) -> Bags:
    """The bags of edge features by token; a first token, to which no edge leads, gets an empty bag.

    offsets [sentences + 1]: where each sentence begins."""
    counts = np.diff(bags.offsets)
    first = np.zeros(len(counts), bool)
    first[offsets[:-1]] = True
    counts = np.where(first, 0, counts)
    return Bags(bags.ids[~np.repeat(first, np.diff(bags.offsets))], np.r_[0, np.cumsum(counts)])


class EdgeScorer(PairTable):
    """Scorer of edge features: score[token, edge] = sum of weight[feature, edge] over the features of the token."""

    def __init__(self, label_pairs: np.ndarray, labels: int, pairs: Pairs) -> None:
        super().__init__(pairs)
        self.chain = EdgeChain(torch.from_numpy(label_pairs), labels)

    @classmethod
    def of(cls, label_pairs: np.ndarray, labels: int, dense: np.ndarray) -> EdgeScorer:
        """A scorer of edge features with the nonzero weights of a dense table [rows, edges]."""
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
        """The chain scores of a batch with edge features: scores of labels, label pairs and edges.

        emissions: scores of labels at each token. transitions [labels, labels]; start, end [labels]: scores of first
        and last labels."""
        emissions = batch.pad(emissions) if emissions.dim() == 2 else emissions
        shared = transitions[self.chain.origins, self.chain.targets]  # [edges] the transition score of each edge
        return EdgeScores(emissions, self.sum(_batch_of_edges(batch)), shared, start, end)


def _batch_of_edges(batch: TokenBatch) -> TokenBatch:
    """The batch with edge features in place of token features; the result is cached with the batch."""
    if batch.edge_ids is None:
        raise UserError("this tagger has features of edges, the sentences come without; prepare them with edges")

    def swapped(cache: BatchCache | None) -> TokenBatch:
        """The batch with edge features in place of token features, and with the given cache."""
        return replace(batch, ids=batch.edge_ids, offsets=batch.edge_offsets, cache=cache)

    return swapped(None) if batch.cache is None else batch.cache.get("edges", lambda: swapped(BatchCache()))
