"""The interfaces of scorers, which score labels or arcs from features with a weight table, held whole or growing row by
row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor, nn


class Scorer(nn.Module):
    """A module that scores the labels of tokens, or arcs, from a batch.

    Any other module may be used as a scorer; the defaults declared here then apply."""

    linear = False  # whether the scores are linear in all parameters
    links: Tensor | None = None  # bool [labels, labels], which pairs of neighbouring labels have a score; None: all
    ends = True  # whether the first and the last label of a sentence have a score


class FeatureTable(Scorer):
    """A scorer whose weights are a `table` [rows, outputs] with a row for each feature; online sweeps over sentences
    can update it."""

    table: nn.Parameter


class GrowingTable(FeatureTable):
    """A feature table with only some rows in memory; all other rows are zero."""

    @abstractmethod
    def release(self) -> Tensor | None:
        """Drop the zero rows. Returns the old numbers of the kept rows, [kept]; None if all rows are kept."""

    @abstractmethod
    def stale(self) -> None:
        """Invalidate caches of the weights, which have been changed in place."""

    @abstractmethod
    def groups_of(self, make: Callable, layout, name: str) -> nn.Module:
        """The groups that `make` forms of all rows, restricted to the rows in memory."""

    @abstractmethod
    def spread(self, penalty: nn.Module) -> Tensor:
        """Mask of the weights that survive a penalty, from the rows in memory; a subclass decides whether other rows
        are included."""
