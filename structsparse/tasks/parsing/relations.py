"""Dependency relations of a parser: a linear classifier of arcs, trained on gold arcs and applied to predicted arcs."""

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

EPOCHS = 10  # maximum number of passes over the gold arcs
CAP = 0.01  # maximum step size for one arc; limits the effect of a mislabelled arc


@dataclass(frozen=True, eq=False)
class Relations:
    """A relation classifier: score[arc, relation] = sum of weights[feature, relation] over features of the arc."""

    names: tuple[str, ...]  # the names of the relations
    index: ArcIndex  # the index of arc features with nonzero weights
    weights: sparse.csr_array  # float32 [features, relations]

    def predict(self, sentences: Sentences, heads: np.ndarray) -> Column:
        """Relation classifier: predict the relation of each word to its given head (0 for the root)."""
        return Column(list(self.names), self.scores(sentences, heads).argmax(axis=1).astype(np.int32))

    def scores(self, sentences: Sentences, heads: np.ndarray) -> np.ndarray:
        """Relation classifier: the scores of all relations for the arc to each word from its given head.

        The result is float32 [tokens, relations]."""
        if not len(self.index):
            return np.zeros((len(heads), len(self.names)), np.float32)
        bags = self.index.bags_chosen(sentences, heads.astype(np.int64))
        ones, shape = np.ones(len(bags.ids), np.float32), (len(heads), len(self.index))
        return (sparse.csr_array((ones, bags.ids, bags.offsets), shape) @ self.weights).toarray()

    def small(self, small: ArtifactOptions, treebank: Treebank) -> Relations:
        """Relation classifier as a small artifact stores it: rounded weights, and shortened feature keys.

        Keys are shortened so that few features on the arcs of the treebank are mistaken for another feature."""
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
    """Train a relation classifier on gold arcs by averaged online updates.

    Returns the classifier, and the number of features before features with zero weights are dropped."""
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
    """The weights of a relation classifier, averaged over all updates (float32 array [features, relations]).

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
    """A trained relation classifier, with the train, dev and test treebanks on which it predicts relations."""

    model: Relations
    parts: Mapping[str, Treebank]  # the treebank of each part: train, dev, test
    features: int  # number of features, including those with zero weights
    seconds: float  # the training time in seconds

    @classmethod
    def fit(cls, parts: Mapping[str, Treebank], templates: Sequence[ArcTemplate], min_count: int) -> Self:
        """Train a relation classifier on the gold arcs of part `train`."""
        begin = time.perf_counter()
        model, features = fit_relations(parts["train"], templates, min_count)
        return cls(model, parts, features, time.perf_counter() - begin)

    def codes(self, part: str, sentences: np.ndarray, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Relation classifier: codes of the gold and the predicted relations, for all tokens of some sentences.

        `heads` holds the given head of each token. The relations seen in training have the codes from 0 on; unknown
        relations follow."""
        treebank = self.parts[part].select(sentences)
        gold = treebank.columns["deprel"].recoded(self.model.names)
        return gold.codes, self.model.predict(treebank, heads).codes

    def figures(self) -> dict[str, object]:
        """Relation classifier: counts and training time, for `metrics.json`."""
        weights = self.model.weights
        return {
            "label_features": self.features,
            "label_rows_alive": weights.shape[0],
            "label_nonzero": weights.nnz,
            "label_relations": weights.shape[1],
            "seconds_labels": self.seconds,
        }
