"""The model of a dependency parser: a scorer of every arc from a head to a modifier, and the trees over the arcs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.base.arrays import ranges
from structsparse.base.large_arrays import zeros_on_large_pages
from structsparse.kernels.solvers.online_trees_by_keys import TemplateAtoms
from structsparse.structures.nonprojective import NonprojectiveTree
from structsparse.structures.projective import ProjectiveTree
from structsparse.weights.bags import bag_sum
from structsparse.weights.batch import BatchCache, Sizes
from structsparse.weights.feature_tables import FeatureTable, GrowingTable, Scorer

if TYPE_CHECKING:
    from structsparse.solvers.online import Online, Sweeper


class ArcSource(Protocol):
    """The source of the features of an `ArcBatch`: a scorer reads either `bag` or `template_atoms`."""

    template_atoms: TemplateAtoms  # hashed attributes and templates, which give the feature keys of any sentence

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The active feature rows of all arcs of these sentences, and the offset where the rows of each arc begin."""


@dataclass
class ArcBatch:
    """A batch of sentences for a parser: arcs sorted by sentence, modifier and head; gold heads padded."""

    source: ArcSource
    chosen: np.ndarray  # int64 [batch] numbers of the sentences in the corpus
    places: Tensor  # int64 [arcs] in [batch * size * size]; size: length of the longest sentence + 1
    gold: Tensor  # int64 [batch, size - 1] gold heads
    punctuation: Tensor  # bool [words] whether each word is punctuation
    lengths: Tensor  # int64 [batch] words of each sentence
    sentences: Tensor  # int64 [batch] `chosen` as a tensor
    items: int  # number of sentences in the training step, over all processes
    cache: BatchCache | None = None  # values to reuse if the same batch comes again
    part: str = ""  # the part of the corpus: train, dev or test

    @cached_property
    def _bag(self) -> tuple[Tensor, Tensor]:
        """Active feature rows of all arcs and the offsets of arcs, on the device of the batch."""
        return tuple(torch.from_numpy(array).to(self.gold.device) for array in self.source.bag(self.chosen))

    @property
    def ids(self) -> Tensor:
        """The active feature rows of all arcs: int32 [occurrences]"""
        return self._bag[0]

    @property
    def offsets(self) -> Tensor:
        """The offset in `ids` where the feature rows of each arc begin: int64 [arcs + 1]"""
        return self._bag[1]

    def pad(self, arcs: Tensor) -> Tensor:
        """Scatter scores of arcs into a padded tensor: [arcs] -> [batch, size, size], modifiers by heads."""
        batch, longest = self.gold.shape
        padded = arcs.new_zeros(batch * (longest + 1) ** 2)
        return padded.index_copy(0, self.places, arcs).view(batch, longest + 1, longest + 1)


def places_of_arcs(lengths: np.ndarray, size: int) -> np.ndarray:
    """The index of each arc in a padded tensor [sentences * size * size], for given sentence lengths: int64 [arcs]"""
    squares = lengths.astype(np.int64) ** 2
    sentence = np.repeat(np.arange(len(lengths)), squares)
    modifier, head = np.divmod(ranges(np.zeros_like(squares), squares), np.repeat(lengths, squares))
    return (sentence * size + modifier + 1) * size + head + (head > modifier)  # skips arcs from a word to itself


class ArcScorer(FeatureTable):
    """A linear scorer of arcs: score[arc] = sum of table[feature] over the features of the arc."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Parameter(zeros_on_large_pages(sizes.rows, 1))  # [rows, 1]

    def forward(self, batch: ArcBatch) -> Tensor:  # [batch, size, size]
        """The score of every arc, modifiers by heads: [batch, size, size]."""
        return batch.pad(bag_sum(self.table, batch.ids, batch.offsets).squeeze(1))


class Parser(nn.Module):
    """A graph-based dependency parser: a scorer of arcs, and projective or nonprojective trees over the arcs."""

    def __init__(self, scorer: nn.Module, projective: bool = False, single_root: bool = False) -> None:
        super().__init__()
        self.scorer, self.linear = scorer, isinstance(scorer, Scorer) and scorer.linear
        self.structure = (ProjectiveTree if projective else NonprojectiveTree)(single_root)

    def sweeper(self, solver: Online) -> Sweeper:
        """The sweeper by which an online solver updates the weights of this parser sentence by sentence."""
        from structsparse.tasks.parsing.sweeps import GrowingTreeSweeper, TreeSweeper  # not needed for prediction

        return (GrowingTreeSweeper if isinstance(self.scorer, GrowingTable) else TreeSweeper)(self, solver)

    def forward(self, batch: ArcBatch) -> Tensor:
        """The score of every arc, modifiers by heads: [batch, size, size]."""
        return self.scorer(batch)
