"""Forward selection of arc templates (`filter=forward`): templates are chosen one by one, by held-out gain.

Two softmax models predict the head of each word. Each model is fitted to one half of the sentences and validated on the
other half. The gain of a template is the increase of the log-likelihood on the held-out halves. The weights of a chosen
template take one Newton step in both models. Then the weights of a few templates chosen earlier take another step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from structsparse.corpora.treebank import Treebank
from structsparse.kernels.features import forward as kernels
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.templates import ArcTemplate


class ForwardModels:
    """Forward selection of arc templates: two softmax models that predict the head of each word.

    Each model is fitted to one half of a treebank and validated on the other half."""

    def __init__(
        self, treebank: Treebank, templates: Sequence[ArcTemplate], ridge: float, rate: float, draw: np.random.Generator
    ) -> None:
        self.arcs, self.draw = ArcKeys(treebank, templates), draw
        self.ridge, self.rate = np.float32(ridge), np.float32(rate)
        self.gold, self.begins = treebank.heads.astype(np.int64), treebank.offsets.astype(np.int64)
        halves = (draw.permutation(len(treebank)) % 2).astype(np.int8)
        self.half = np.repeat(halves, np.diff(self.arcs.first_arcs))  # int8 [arcs]: half of the treebank (0 or 1)
        self.scores = np.zeros((2, self.arcs.count), np.float32)  # the score of each arc by each model
        self.state = np.empty((self.arcs.count, 4), np.float32)  # [arcs, 4]: slope and curvature for both models
        self.ids: dict[int, np.ndarray] = {}  # template index -> feature index on each arc, int32 [arcs]
        self.weights: dict[int, np.ndarray] = {}  # template index -> weights, float32 [models, features]
        self._differentiate()

    def gain(self, k: int) -> float:
        """Forward selection: the gain in held-out log-likelihood (in nats) by one Newton step of template k.

        The step would change all weights of the template, in both models."""
        ids, count = self._numbered(k)
        return kernels.gain(self._sums(ids, count), self.ridge, self.rate)

    def add(self, k: int) -> None:
        """Forward selection: add template k to both models, and take a first Newton step of its weights."""
        ids, count = self._numbered(k)
        self.ids[k], self.weights[k] = ids.copy(), np.zeros((2, count), np.float32)
        self.fit(k)

    def fit(self, k: int) -> None:
        """Forward selection: take one more Newton step of the weights of template k in both models."""
        ids, weights = self.ids[k], self.weights[k]
        kernels.step(self._sums(ids, weights.shape[1]), ids, self.ridge, self.rate, weights, self.scores)
        self._differentiate()

    def _differentiate(self) -> None:
        """Forward selection: compute the derivatives of both models' log-likelihoods with respect to the arc scores.

        Sets `state` [arcs, 4]: first and second derivative (slope, curvature) for the first, then the second model."""
        kernels.differentiate(self.scores, self.gold, self.begins, self.arcs.first_arcs, self.state)

    def _sums(self, ids: np.ndarray, count: int) -> np.ndarray:
        """Forward selection: the derivatives, summed by feature and by half of the treebank.

        The result is a float32 array [features, halves, 4]. The four derivatives are slope and curvature of the
        log-likelihood of each model."""
        sums = self._scratch[3][:count]
        kernels.sum_by_feature(ids, self.half, self.state, sums)
        return sums

    def _numbered(self, k: int) -> tuple[np.ndarray, int]:
        """Forward selection: number the features of template k; return the feature index on each arc, and the count.

        The next call overwrites the array of feature indices."""
        slots, distinct, ids, _ = self._scratch
        bits = len(slots).bit_length() - 1
        return ids, kernels.number_features(self.arcs.keys(k), bits, slots, distinct, ids)

    @cached_property
    def _scratch(self) -> tuple[np.ndarray, ...]:
        """Forward selection: work arrays of the kernels, reused for every template."""
        arcs = self.arcs.count
        slots = np.empty(1 << (2 * arcs).bit_length(), np.int32)
        return slots, np.empty(arcs, np.uint64), np.empty(arcs, np.int32), np.empty((arcs, 2, 4), np.float32)


def forward_selection(models: ForwardModels, count: int, tries: float, again: int) -> tuple[list[int], list[float]]:
    """Forward selection of `count` arc templates; return their indices, in order of choice, and their gains.

    Each choice is among templates drawn at random. `tries` is the mean number of times that a template is drawn. After
    each choice, the weights of `again` chosen templates take another Newton step."""
    left, chosen, gains = list(range(len(models.arcs.templates))), [], []
    drawn_each = max(1, round(tries * len(left) / count))
    for _ in range(count):
        drawn = models.draw.choice(len(left), min(drawn_each, len(left)), replace=False).tolist()
        candidates = [models.gain(left[k]) for k in drawn]
        best = int(np.argmax(candidates))
        chosen.append(left.pop(drawn[best]))
        gains.append(candidates[best])
        models.add(chosen[-1])
        for k in models.draw.choice(chosen, min(again, len(chosen)), replace=False).tolist():
            models.fit(k)
    return chosen, gains
