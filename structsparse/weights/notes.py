"""Notes on a parameter, by which solvers and models communicate: pending factored gradients, row scales, curvature, the
data.

Notes are stored on the parameter itself, so they are not part of a `state_dict`. A deep copy of a parameter has no
notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from structsparse.weights.feature_tables import GrowingTable


class BagGradient(NamedTuple):
    """The gradient X'R of a weight table in factored form: X has the rows in each bag, R the residuals.

    A residual is the gradient of the loss with respect to the sum of a bag."""

    ids: Tensor  # int32 [occurrences], ascending within each bag
    offsets: Tensor  # int64 [bags + 1] into ids
    residuals: Tensor  # [bags, labels]


class RowScale(NamedTuple):
    """Scale factors of a weight table: the true weights of group g are factors[g] times its stored rows."""

    factors: Tensor  # float64 [groups]
    offsets: Tensor  # int64 [groups + 1] where the rows of each group begin


@dataclass
class ParameterNotes:
    """The notes on one parameter; each is None unless a solver or a model has set it."""

    # if a list, `bag_sum` appends factored gradients to it instead of setting `.grad`
    pending: list[BagGradient] | None = None
    scale: RowScale | None = None  # set while a solver stores the table as factors times rows
    grows: GrowingTable | None = None  # the module that adds and removes rows of this table
    # estimate, up to a common factor, of the loss's second derivative in each entry; broadcasts
    curvature: Tensor | None = None
    design: object | None = None  # a solvers.overlaps.design.Design: the data, for solvers that take no closure


def notes_of(parameter: Tensor) -> ParameterNotes:
    """The notes on a parameter; empty notes are created at the first call."""
    attributes = vars(parameter)
    notes = attributes.get("notes")
    if notes is None:
        notes = attributes["notes"] = ParameterNotes()
    return notes
