"""The model of a parser: a scorer of every arc from a head to a modifier, and trees over the arcs."""

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
    """The corpus of a batch. A model reads either the bags of features or the atoms of keys."""

    template_atoms: TemplateAtoms  # all that is needed to compute the keys of any sentence

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Active rows of all arcs of these sentences, and where those of each arc begin."""


@dataclass
class ArcBatch:
    """Some sentences for a parser. Arcs are laid end to end: by sentence, by modifier, by head; heads are padded."""

    source: ArcSource
    chosen: np.ndarray  # int64 [batch] which sentences of the corpus these are
    places: Tensor  # int64 [arcs] in [batch * size * size], size one more than the longest sentence
    gold: Tensor  # int64 [batch, size - 1] heads
    punctuation: Tensor  # bool [words]
    lengths: Tensor  # int64 [batch]
    sentences: Tensor  # int64 [batch] the same
    items: int  # sentences in the whole step, over all processes
    cache: BatchCache | None = None  # if the same batch comes again
    part: str = ""  # of the corpus

    @cached_property
    def _bag(self) -> tuple[Tensor, Tensor]:
        return tuple(torch.from_numpy(array).to(self.gold.device) for array in self.source.bag(self.chosen))

    @property
    def ids(self) -> Tensor:
        """Active rows of all arcs: int32 [occurrences]"""
        return self._bag[0]

    @property
    def offsets(self) -> Tensor:
        """Into ids: int64 [arcs + 1]"""
        return self._bag[1]

    def pad(self, arcs: Tensor) -> Tensor:
        """Scores of arcs as a padded tensor: [arcs] -> [batch, size, size], modifiers by heads"""
        batch, longest = self.gold.shape
        padded = arcs.new_zeros(batch * (longest + 1) ** 2)
        return padded.index_copy(0, self.places, arcs).view(batch, longest + 1, longest + 1)


def places_of_arcs(lengths: np.ndarray, size: int) -> np.ndarray:
    """The place of each arc of sentences of these lengths in [sentences * size * size]: int64 [arcs]"""
    squares = lengths.astype(np.int64) ** 2
    sentence = np.repeat(np.arange(len(lengths)), squares)
    modifier, head = np.divmod(ranges(np.zeros_like(squares), squares), np.repeat(lengths, squares))
    return (sentence * size + modifier + 1) * size + head + (head > modifier)  # without arcs from a word to itself


class ArcScorer(FeatureTable):
    """score[arc] = sum over the features of the arc of table[feature]"""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Parameter(zeros_on_large_pages(sizes.rows, 1))  # [rows, 1]

    def forward(self, batch: ArcBatch) -> Tensor:  # [batch, size, size]
        return batch.pad(bag_sum(self.table, batch.ids, batch.offsets).squeeze(1))


class Parser(nn.Module):
    """A scorer of arcs, and the structure of the trees over them."""

    def __init__(self, scorer: nn.Module, projective: bool = False, single_root: bool = False) -> None:
        super().__init__()
        self.scorer, self.linear = scorer, isinstance(scorer, Scorer) and scorer.linear
        self.structure = (ProjectiveTree if projective else NonprojectiveTree)(single_root)

    def sweeper(self, solver: Online) -> Sweeper:
        """The pass over single sentences by which an online solver moves this parser."""
        from structsparse.tasks.parsing.sweeps import GrowingTreeSweeper, TreeSweeper  # not needed for prediction

        return (GrowingTreeSweeper if isinstance(self.scorer, GrowingTable) else TreeSweeper)(self, solver)

    def forward(self, batch: ArcBatch) -> Tensor:
        return self.scorer(batch)
