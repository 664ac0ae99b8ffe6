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
    """Parser model: the source of arc features of an `ArcBatch`.

    A scorer of arcs reads either `bag` (feature rows) or `template_atoms` (hashed word attributes)."""

    template_atoms: TemplateAtoms  # hashed attributes and templates, which give the feature keys of any sentence

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parser model: the feature rows of all arcs of some sentences, and where the rows of each arc begin."""


@dataclass
class ArcBatch:
    """Parser model: a batch of sentences as arcs, sorted by sentence, modifier and head, with gold heads."""

    source: ArcSource  # the features of the arcs
    chosen: np.ndarray  # int64 [batch]: indices of the sentences in the corpus
    places: Tensor  # int64 [arcs]: index of each arc in the flattened result of `pad`
    gold: Tensor  # int64 [batch, longest sentence]: the gold head of each word, padded
    punctuation: Tensor  # bool [words]: whether each word is punctuation
    lengths: Tensor  # int64 [batch]: the number of words of each sentence
    sentences: Tensor  # int64 [batch]: `chosen` as a torch tensor
    items: int  # number of sentences in the training step, over all processes
    cache: BatchCache | None = None  # results computed from the batch, if it is used in every epoch
    part: str = ""  # the part of the corpus: train, dev or test

    @cached_property
    def _bag(self) -> tuple[Tensor, Tensor]:
        """Parser model: the feature rows of all arcs of a batch, and where those of each arc begin, on the device."""
        return tuple(torch.from_numpy(array).to(self.gold.device) for array in self.source.bag(self.chosen))

    @property
    def ids(self) -> Tensor:
        """Parser model: the active feature rows of all arcs of a batch, one arc after another (int32 tensor)."""
        return self._bag[0]

    @property
    def offsets(self) -> Tensor:
        """Parser model: where in `ids` the feature rows of each arc begin (int64 tensor [arcs + 1])."""
        return self._bag[1]

    def pad(self, arcs: Tensor) -> Tensor:
        """Parser model: arc scores [arcs] as a padded tensor [batch, size, size], by sentence, modifier and head.

        `size` is the length of the longest sentence plus 1, for the root."""
        batch, longest = self.gold.shape
        padded = arcs.new_zeros(batch * (longest + 1) ** 2)
        return padded.index_copy(0, self.places, arcs).view(batch, longest + 1, longest + 1)


def places_of_arcs(lengths: np.ndarray, size: int) -> np.ndarray:
    """Parser model: the index of each arc in a flattened padded tensor [sentences, size, size].

    `lengths` holds the number of words of each sentence. `size` is the maximum length + 1, for the root."""
    squares = lengths.astype(np.int64) ** 2
    sentence = np.repeat(np.arange(len(lengths)), squares)
    modifier, head = np.divmod(ranges(np.zeros_like(squares), squares), np.repeat(lengths, squares))
    return (sentence * size + modifier + 1) * size + head + (head > modifier)  # the last summand skips head = modifier


class ArcScorer(FeatureTable):
    """Parser model: a linear scorer, score[arc] = sum of table[feature] over the features of the arc."""

    linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Parameter(zeros_on_large_pages(sizes.rows, 1))  # weight of each feature: [rows, 1]

    def forward(self, batch: ArcBatch) -> Tensor:
        """Parser model: the linear scores of all arcs, as a padded tensor by sentence, modifier and head."""
        return batch.pad(bag_sum(self.table, batch.ids, batch.offsets).squeeze(1))


class Parser(nn.Module):
    """The model of a graph-based parser: a scorer of arcs, and projective or nonprojective trees."""

    def __init__(self, scorer: nn.Module, projective: bool = False, single_root: bool = False) -> None:
        super().__init__()
        self.scorer, self.linear = scorer, isinstance(scorer, Scorer) and scorer.linear
        self.structure = (ProjectiveTree if projective else NonprojectiveTree)(single_root)

    def sweeper(self, solver: Online) -> Sweeper:
        """Parser model: the sweeper, which updates the weights after each sentence for an online solver."""
        from structsparse.tasks.parsing.sweeps import GrowingTreeSweeper, TreeSweeper  # imported only in training

        return (GrowingTreeSweeper if isinstance(self.scorer, GrowingTable) else TreeSweeper)(self, solver)

    def forward(self, batch: ArcBatch) -> Tensor:
        """Parser model: the scores of all arcs, as a padded tensor by sentence, modifier and head."""
        return self.scorer(batch)
