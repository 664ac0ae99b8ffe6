"""Arc arrays of a parser: candidate arcs (head, modifier) of a treebank, in batches and in passages.

A passage is a block of sentences; an online solver updates the weights after each sentence. A sentence of n words has
n * n arcs, because the head of a word is the root or another word. Arcs are sorted by sentence, then by modifier, then
by head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from structsparse.base.arrays import ranges
from structsparse.corpora.treebank import Treebank
from structsparse.features.keys import Bags
from structsparse.kernels.solvers.online_trees_by_keys import TemplateAtoms
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.templates import ArcTemplate
from structsparse.tasks.parsing.model import ArcBatch, places_of_arcs
from structsparse.training.batches import Passages


class ArcArrays:
    """Arc arrays of a parser: the candidate arcs of one part of a treebank, with features and gold heads.

    Sentence s has the words offsets[s] : offsets[s + 1] and the arcs arcs[s] : arcs[s + 1]. A scorer reads either
    `bags` (the feature rows of each arc) or `template_atoms` (hashed word attributes). Each of the two is computed when
    first read."""

    def __init__(
        self,
        treebank: Treebank,
        templates: Sequence[ArcTemplate],
        punctuation: np.ndarray,
        make_bags: Callable[[Treebank], Bags],
        part: str = "",
    ) -> None:
        self.treebank, self.templates, self.make_bags = treebank, templates, make_bags
        self.part = part  # the part of the corpus: train, dev or test
        self.punctuation = punctuation  # bool [words]: whether each word is punctuation
        self.gold = treebank.heads.astype(np.int64)  # int64 [words]: the gold head of each word, 0 for the root
        self.offsets = treebank.offsets  # int64 [sentences + 1]: where the words of each sentence begin
        # int64 [sentences + 1]: where the arcs of each sentence begin
        self.arcs = np.concatenate([[0], np.cumsum(self.lengths.astype(np.int64) ** 2)])

    @cached_property
    def bags(self) -> Bags:
        """Arc arrays: the bag of active feature rows of every arc, computed when first read."""
        return self.make_bags(self.treebank)

    @property
    def computed_bags(self) -> Bags | None:
        """Arc arrays: the bags of all arcs if the bags have been computed already, else None."""
        return vars(self).get("bags")

    @cached_property
    def template_atoms(self) -> TemplateAtoms:
        """Arc arrays: hashed word attributes and arc templates, which give the feature keys of any sentence."""
        return ArcKeys(self.treebank, self.templates).template_atoms

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Arc arrays: the feature rows of all arcs of some sentences, and where the rows of each arc begin."""
        begins, ends = self.arcs[sentences], self.arcs[sentences + 1]
        sizes = np.diff(self.bags.offsets)[ranges(begins, ends - begins)]
        bounds = zip(self.bags.offsets[begins].tolist(), self.bags.offsets[ends].tolist(), strict=True)
        ids = np.concatenate([self.bags.ids[begin:end] for begin, end in bounds])  # slices save memory: no index array
        return ids, np.concatenate([[0], np.cumsum(sizes)])

    def with_bags(self, bags: Bags) -> ArcArrays:
        """Arc arrays of the same arcs with the given bags of features."""
        return ArcArrays(self.treebank, self.templates, self.punctuation, lambda _: bags, self.part)

    def __len__(self) -> int:
        """The number of sentences in the arc arrays."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Arc arrays: the number of words of each sentence (int64 array [sentences])."""
        return np.diff(self.offsets)

    def batch(self, sentences: np.ndarray, items: int) -> ArcBatch:
        """Arc arrays: the batch of some sentences.

        `items` is the number of sentences in the training step over all processes."""
        lengths = self.lengths[sentences]
        longest, words = int(lengths.max()), ranges(self.offsets[sentences], lengths)
        gold = np.zeros((len(sentences), longest), np.int64)
        gold[np.arange(longest) < lengths[:, None]] = self.gold[words]
        places, chosen = places_of_arcs(lengths, longest + 1), np.asarray(sentences, np.int64)
        arrays = places, gold, self.punctuation[words], lengths, chosen
        return ArcBatch(self, chosen, *map(torch.from_numpy, arrays), items, part=self.part)


@dataclass
class ArcPassage:
    """A passage of arc arrays for an online solver: the indices of some sentences; arcs are not copied."""

    source: ArcArrays  # the arcs of one part of the treebank: train, dev or test
    sentences: Tensor  # int64 [sentences of the passage]: sentence indices in the order of training
    epoch: int  # the index of the training epoch


class ArcPassages(Passages):
    """Passages of arc arrays for online solvers: blocks of the sentences of a treebank, in random order."""

    def passage(self, sentences: np.ndarray) -> ArcPassage:
        """The passage of arc arrays that consists of the sentences with the given indices."""
        return ArcPassage(self.arrays, torch.from_numpy(sentences), self.epoch)


def arrays_of_parts(
    parts: dict[str, Treebank],
    punctuation: Callable[[str], np.ndarray],
    templates: Sequence[ArcTemplate],
    make_bags: Callable[[str, Treebank], Bags],
) -> dict[str, ArcArrays]:
    """The arc arrays of all parts of a treebank; `make_bags(part, treebank)` computes the features."""
    return {
        part: ArcArrays(treebank, templates, punctuation(part), lambda tb, part=part: make_bags(part, tb), part)
        for part, treebank in parts.items()
    }
