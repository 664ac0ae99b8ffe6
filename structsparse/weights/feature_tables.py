"""Interfaces of scorers with a feature table: modules that score labels or arcs by a table of weights.

The table has a row for each feature. A growing table has only some of these rows in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor, nn


class Scorer(nn.Module):
    """Interface of all scorers, with or without a feature table: a module that scores labels or arcs of a batch.

    For a scorer without this base class, the default attributes of this class hold."""

    linear = False  # whether the scores are linear in all parameters
    # bool [labels, labels], the pairs of neighbouring labels that have a score; None: all pairs
    links: Tensor | None = None
    ends = True  # whether there are scores for the first label and for the last label of a sentence


class FeatureTable(Scorer):
    """Interface of scorers with a feature table: weights `table` [rows, outputs], a row for each feature.

    Training by online sweeps over the sentences needs this interface."""

    table: nn.Parameter


class GrowingTable(FeatureTable):
    """Interface of feature tables that grow: only some rows are in memory, and all other rows are zero."""

    @abstractmethod
    def release(self) -> Tensor | None:
        """Feature-table interface: drop the rows with only zero weights; returns the old indices of the other rows.

        Returns None if no row is dropped."""

    @abstractmethod
    def stale(self) -> None:
        """Feature-table interface: invalidate caches of the weights, because the weights have changed in place."""

    @abstractmethod
    def groups_of(self, make: Callable, layout, name: str) -> nn.Module:
        """Feature-table interface: the groups that `make` forms of all rows, restricted to the rows in memory."""

    @abstractmethod
    def spread(self, penalty: nn.Module) -> Tensor:
        """Feature-table interface: the mask of the weights that a penalty has selected (bool [rows, outputs]).

        A subclass decides whether the mask has all rows or only the rows in memory."""
