"""Forward selection of arc templates (`filter=forward`): one after another, each for what it adds to those before.

A template that predicts much alone may repeat others, and one that memorises training predicts nothing elsewhere.
So two softmax models of the heads of words are fitted, each to half of the sentences, and a template counts for its
gain on the other half. A chosen template takes one step in both models, and then a few chosen earlier take another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from structsparse.corpora.treebank import Treebank
from structsparse.kernels.features import forward as kernels
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.templates import ArcTemplate


class ForwardModels:
    """Two softmax models of the heads of words, cross-fitted on halves of a treebank, and their templates."""

    def __init__(
        self, treebank: Treebank, templates: Sequence[ArcTemplate], ridge: float, rate: float, draw: np.random.Generator
    ) -> None:
        self.arcs, self.draw = ArcKeys(treebank, templates), draw
        self.ridge, self.rate = np.float32(ridge), np.float32(rate)
        self.gold, self.begins = treebank.heads.astype(np.int64), treebank.offsets.astype(np.int64)
        halves = (draw.permutation(len(treebank)) % 2).astype(np.int8)
        self.half = np.repeat(halves, np.diff(self.arcs.first_arcs))  # [arcs] the model that is fitted to each
        self.scores = np.zeros((2, self.arcs.count), np.float32)
        self.state = np.empty((self.arcs.count, 4), np.float32)  # slopes and curvatures of both models
        self.ids: dict[int, np.ndarray] = {}  # int32 [arcs], the features of each chosen template
        self.weights: dict[int, np.ndarray] = {}  # float32 [2, features] of each chosen template
        self._differentiate()

    def gain(self, k: int) -> float:
        """Gain in log-likelihood of the validation halves by a step of template k, in nats."""
        ids, count = self._numbered(k)
        return kernels.gain(self._sums(ids, count), self.ridge, self.rate)

    def add(self, k: int) -> None:
        """Add template k to the models, with a first step."""
        ids, count = self._numbered(k)
        self.ids[k], self.weights[k] = ids.copy(), np.zeros((2, count), np.float32)
        self.fit(k)

    def fit(self, k: int) -> None:
        """A step of the weights of template k, which has been added."""
        ids, weights = self.ids[k], self.weights[k]
        kernels.step(self._sums(ids, weights.shape[1]), ids, self.ridge, self.rate, weights, self.scores)
        self._differentiate()

    def _differentiate(self) -> None:
        kernels.differentiate(self.scores, self.gold, self.begins, self.arcs.first_arcs, self.state)

    def _sums(self, ids: np.ndarray, count: int) -> np.ndarray:
        """Slopes and curvatures by feature and half: float32 [features, 2, 4]"""
        sums = self._scratch[3][:count]
        kernels.sum_by_feature(ids, self.half, self.state, sums)
        return sums

    def _numbered(self, k: int) -> tuple[np.ndarray, int]:
        """The feature of template k on each arc, valid until the next call, and the number of features."""
        slots, distinct, ids, _ = self._scratch
        bits = len(slots).bit_length() - 1
        return ids, kernels.number_features(self.arcs.keys(k), bits, slots, distinct, ids)

    @cached_property
    def _scratch(self) -> tuple[np.ndarray, ...]:
        """Memory that is reused by every template."""
        arcs = self.arcs.count
        slots = np.empty(1 << (2 * arcs).bit_length(), np.int32)
        return slots, np.empty(arcs, np.uint64), np.empty(arcs, np.int32), np.empty((arcs, 2, 4), np.float32)


def forward_selection(models: ForwardModels, count: int, tries: float, again: int) -> tuple[list[int], list[float]]:
    """The `count` templates chosen, in order, and the gain of each.

    tries: how often each template is tried in all; each choice is among some that are drawn at random. again: how many
    of those chosen before take another step after each choice."""
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
