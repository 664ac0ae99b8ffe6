"""Scorers, and those whose weights are a table with a row for each feature, held whole or growing row by row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor, nn


class Scorer(nn.Module):
    """A module that scores the labels of tokens, or arcs, from a batch. Any other module may take its place and gets
    the defaults declared here."""

    linear = False  # whether the scores are linear in all parameters
    links: Tensor | None = None  # bool [labels, labels], which neighbouring labels have a score; None: all
    ends = True  # whether the first and the last label of a sentence have a score


class FeatureTable(Scorer):
    """A scorer whose `table` [rows, outputs] sums the rows of active features; sweeps over sentences can move it."""

    table: nn.Parameter


class GrowingTable(FeatureTable):
    """A feature table that holds only the rows that live. Its groups and survivors are those of all rows."""

    @abstractmethod
    def release(self) -> Tensor | None:
        """Drop the rows that are zero. Returns which of the old rows are kept [kept]; None if all are."""

    @abstractmethod
    def stale(self) -> None:
        """The weights have been changed in place: caches of them are invalid."""

    @abstractmethod
    def groups_of(self, make: Callable, layout, name: str) -> nn.Module:
        """The groups that `make` forms of all rows, as they apply to the rows held."""

    @abstractmethod
    def spread(self, penalty: nn.Module) -> Tensor:
        """The survivors of a penalty as a mask."""
