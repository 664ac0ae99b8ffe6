"""What solvers and models attach to a parameter: gradients not yet formed, factors of rows, curvature, data.

A note lies on the parameter itself, so it is not part of a `state_dict`, and a deep copy of the parameter begins
without any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from structsparse.weights.feature_tables import GrowingTable


class BagGradient(NamedTuple):
    """The gradient X'R of a table as its factors: X says which rows each bag holds, R is the residual of its sum."""

    ids: Tensor  # int32 [occurrences], ascending within each bag
    offsets: Tensor  # int64 [bags + 1] into ids
    residuals: Tensor  # [bags, labels]


class RowScale(NamedTuple):
    """Factors of a table: the rows of group g stand for factors[g] times what they hold."""

    factors: Tensor  # float64 [groups]
    offsets: Tensor  # int64 [groups + 1] where each group's rows begin


@dataclass
class ParameterNotes:
    """The notes on one parameter; each is None unless a solver or a model has set it."""

    pending: list[BagGradient] | None = None  # a list asks `bag_sum` for factored gradients instead of `.grad`
    scale: RowScale | None = None  # set while a solver keeps the table as factors times rows
    grows: GrowingTable | None = None  # the module that adds and removes rows of this table
    curvature: Tensor | None = None  # estimates the second derivative of the loss, up to one factor; broadcastable
    design: object | None = None  # a solvers.overlaps.design.Design: the data, for solvers that take no closure


def notes_of(parameter: Tensor) -> ParameterNotes:
    """The notes on a parameter, empty ones if it has none yet."""
    attributes = vars(parameter)
    notes = attributes.get("notes")
    if notes is None:
        notes = attributes["notes"] = ParameterNotes()
    return notes
