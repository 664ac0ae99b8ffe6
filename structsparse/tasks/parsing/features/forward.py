"""Templates of arcs chosen one after another, each for what it adds to those that are chosen already.

A template that says much by itself may say what others have said, and one that knows every arc of training by heart
says nothing of others. So two models choose heads of words, each fitted to half of the sentences, and a template counts
for what the sentences of the other half gain by it. A model grows by small steps: the template that is taken takes one,
and then a few of those that have been taken before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from structsparse.corpora.treebank import Treebank
from structsparse.kernels.features import forward as kernels
from structsparse.tasks.parsing.features.index import Looks
from structsparse.tasks.parsing.features.templates import ArcTemplate


class Forward:
    """Two models of the heads of words and the templates in them."""

    def __init__(
        self, treebank: Treebank, templates: Sequence[ArcTemplate], ridge: float, rate: float, draw: np.random.Generator
    ) -> None:
        self.look, self.draw = Looks(treebank, templates), draw
        self.ridge, self.rate = np.float32(ridge), np.float32(rate)
        self.gold, self.begins = treebank.heads.astype(np.int64), treebank.offsets.astype(np.int64)
        halves = (draw.permutation(len(treebank)) % 2).astype(np.int8)
        self.half = np.repeat(halves, np.diff(self.look.first_arcs))  # [arcs] by which model they are fitted
        self.scores = np.zeros((2, self.look.arcs), np.float32)
        self.state = np.empty((self.look.arcs, 4), np.float32)
        self.ids: dict[int, np.ndarray] = {}  # int32 [arcs] of each template that is taken
        self.weights: dict[int, np.ndarray] = {}  # float32 [2, features]
        self._update()

    def gain(self, k: int) -> float:
        """What the sentences that are held out would gain by template k, in nats."""
        ids, count = self._numbered(k)
        return kernels.gain(self._sums(ids, count), self.ridge, self.rate)

    def take(self, k: int) -> None:
        ids, count = self._numbered(k)
        self.ids[k], self.weights[k] = ids.copy(), np.zeros((2, count), np.float32)
        self.fit(k)

    def fit(self, k: int) -> None:
        """A step of template k, which has been taken."""
        ids, weights = self.ids[k], self.weights[k]
        kernels.step(self._sums(ids, weights.shape[1]), ids, self.ridge, self.rate, weights, self.scores)
        self._update()

    def _update(self) -> None:
        kernels.differentiate(self.scores, self.gold, self.begins, self.look.first_arcs, self.state)

    def _sums(self, ids: np.ndarray, count: int) -> np.ndarray:
        sums = self._room[3][:count]
        kernels.sum_by_feature(ids, self.half, self.state, sums)
        return sums

    def _numbered(self, k: int) -> tuple[np.ndarray, int]:
        """The feature of template k on each arc, until the next call, and how many there are."""
        slots, known, ids, _ = self._room
        bits = len(slots).bit_length() - 1
        return ids, kernels.number_features(self.look.keys(k), bits, slots, known, ids)

    @cached_property
    def _room(self) -> tuple[np.ndarray, ...]:
        arcs = self.look.arcs
        slots = np.empty(1 << (2 * arcs).bit_length(), np.int32)
        return slots, np.empty(arcs, np.uint64), np.empty(arcs, np.int32), np.empty((arcs, 2, 4), np.float32)


def forward(model: Forward, count: int, tries: float, again: int) -> tuple[list[int], list[float]]:
    """The templates taken, in order, and the gain of each. `tries`: how often each is looked at in all, since one of
    some that are drawn is taken; `again`: how many of those taken make another step after each that is taken."""
    left, taken, gains = list(range(len(model.look.templates))), [], []
    some = max(1, round(tries * len(left) / count))
    for _ in range(count):
        drawn = model.draw.choice(len(left), min(some, len(left)), replace=False).tolist()
        found = [model.gain(left[k]) for k in drawn]
        best = int(np.argmax(found))
        taken.append(left.pop(drawn[best]))
        gains.append(found[best])
        model.take(taken[-1])
        for k in model.draw.choice(taken, min(again, len(taken)), replace=False).tolist():
            model.fit(k)
    return taken, gains
