"""Relations of arcs: a linear classifier of single arcs, trained on gold arcs and applied to predicted ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from scipy import sparse

from structsparse.artifacts.quantization import ArtifactOptions, quantize_
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.treebank import Treebank
from structsparse.kernels.solvers import online_relations as kernels
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import ArcTemplate

EPOCHS = 10
CAP = 0.01  # of the step for one arc, so that no arc is fitted at all costs


@dataclass(frozen=True, eq=False)
class Relations:
    """A classifier of relations: score[arc, relation] = sum of weights[feature, relation] over the arc's features"""

    names: tuple[str, ...]
    index: ArcIndex  # of living features
    weights: sparse.csr_array  # float32 [features, relations]

    def predict(self, sentences: Sentences, heads: np.ndarray) -> Column:
        """The best relation of the arc to each word from its head: heads [tokens], 0 for the root"""
        return Column(list(self.names), self.scores(sentences, heads).argmax(axis=1).astype(np.int32))

    def scores(self, sentences: Sentences, heads: np.ndarray) -> np.ndarray:
        """Scores of all relations of the arc to each word from its head: float32 [tokens, relations]"""
        if not len(self.index):
            return np.zeros((len(heads), len(self.names)), np.float32)
        bags = self.index.bags_chosen(sentences, heads.astype(np.int64))
        ones, shape = np.ones(len(bags.ids), np.float32), (len(heads), len(self.index))
        return (sparse.csr_array((ones, bags.ids, bags.offsets), shape) @ self.weights).toarray()

    def small(self, small: ArtifactOptions, treebank: Treebank) -> Relations:
        """The relations as a small artifact stores them: rounded weights, and keys shortened on a treebank."""
        weights, index = self.weights.copy(), self.index
        if small.bits is not None:
            quantize_(torch.from_numpy(weights.data), small.bits)
            weights.eliminate_zeros()
            alive = np.diff(weights.indptr) > 0
            weights, (index, _) = weights[np.flatnonzero(alive)], index.keep(alive)
        if small.guard is not None:
            index = index.shortened_on(treebank, small.guard, treebank.heads.astype(np.int64))
        return replace(self, index=index, weights=weights)


def fit_relations(
    treebank: Treebank, templates: Sequence[ArcTemplate], min_count: int = 1, seed: int = 0
) -> tuple[Relations, int]:
    """Relations trained on gold arcs by averaged updates, and the number of features before zero rows are dropped.

    Features and relations that were never mistaken keep weights of zero."""
    heads, gold = treebank.heads.astype(np.int64), treebank.columns["deprel"].without_unused()
    index = ArcIndex.fit_chosen(treebank, heads, templates, min_count)
    bags, codes = index.bags_chosen(treebank, heads), gold.codes.astype(np.int64)
    table = averaged(bags.ids, bags.offsets, codes, (len(index), len(gold.values)), seed)
    alive = (table != 0).any(axis=1)
    living, _ = index.keep(alive)
    return Relations(tuple(gold.values), living, sparse.csr_array(table[alive])), len(index)


def averaged(
    ids: np.ndarray, offsets: np.ndarray, gold: np.ndarray, shape: tuple[int, int], seed: int = 0, epochs: int = EPOCHS
) -> np.ndarray:
    """Weights of a classifier, averaged over all updates: float32 [features, relations]

    Arc a has the features ids[offsets[a] : offsets[a + 1]] and the relation gold[a]."""
    weights, past = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    if shape[1] < 2:
        return weights
    draw, clock = np.random.default_rng(seed), 0
    for _ in range(epochs):
        order = draw.permutation(len(gold))
        moves = kernels.sweep(ids, offsets, gold, order, CAP, weights, past, clock)
        clock += len(order)
        if not moves:
            break
    past /= clock
    weights -= past
    return weights


@dataclass(frozen=True, eq=False)
class Labelling:
    """A trained classifier of relations, with the treebanks that it is scored on."""

    model: Relations
    parts: Mapping[str, Treebank]
    features: int  # before those without weights were dropped
    seconds: float  # of training

    @classmethod
    def fit(cls, parts: Mapping[str, Treebank], templates: Sequence[ArcTemplate], min_count: int) -> Self:
        """Train a classifier on part `train`."""
        begin = time.perf_counter()
        model, features = fit_relations(parts["train"], templates, min_count)
        return cls(model, parts, features, time.perf_counter() - begin)

    def codes(self, part: str, sentences: np.ndarray, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the gold and the predicted relations of some sentences with these heads: [tokens] each"""
        treebank = self.parts[part].select(sentences)
        gold = treebank.columns["deprel"].recoded(self.model.names)
        return gold.codes, self.model.predict(treebank, heads).codes

    def figures(self) -> dict[str, object]:
        """Figures of the relations for `metrics.json`."""
        weights = self.model.weights
        return {
            "label_features": self.features,
            "label_rows_alive": weights.shape[0],
            "label_nonzero": weights.nnz,
            "label_relations": weights.shape[1],
            "seconds_labels": self.seconds,
        }
