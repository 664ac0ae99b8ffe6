"""Notes on a parameter, by which solvers and models communicate.

There are notes for pending factored gradients, scale factors of rows and the module of a growing table. Further notes
are the curvature of the loss and the design with the data. Notes are stored on the parameter itself, so they are not
part of a `state_dict`. A deep copy of a parameter has no notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from structsparse.weights.feature_tables import GrowingTable


class BagGradient(NamedTuple):
    """The gradient X'R of a weight table in factored form, noted on the table parameter until a solver applies it.

    X [bags, rows] counts the table rows in each bag, and R [bags, labels] holds the residuals. A residual is the
    gradient of the loss with respect to the sum of a bag."""

    ids: Tensor  # int32 [occurrences], the table rows in all bags, ascending within each bag
    offsets: Tensor  # int64 [bags + 1], where each bag starts in `ids`
    residuals: Tensor  # [bags, labels], the residuals R


class RowScale(NamedTuple):
    """Note on a weight table with scale factors: the true weights of group g are factors[g] times the stored rows."""

    factors: Tensor  # float64 [groups], the scale factor of each group of rows
    offsets: Tensor  # int64 [groups + 1], where the rows of each group begin


@dataclass
class ParameterNotes:
    """The notes on one parameter; each note is None unless a solver or a model has set it."""

    # if a list, `bag_sum` appends factored gradients to this list instead of setting `.grad`
    pending: list[BagGradient] | None = None
    scale: RowScale | None = None  # set while a solver stores the table as factors times rows
    grows: GrowingTable | None = None  # the module that adds and removes rows of this table
    # estimate of the loss's second derivative in each entry, up to a common factor; broadcasts to the parameter
    curvature: Tensor | None = None
    # a solvers.overlaps.design.Design: the data, for solvers that read no gradients from a closure
    design: object | None = None


def notes_of(parameter: Tensor) -> ParameterNotes:
    """The notes on a parameter; empty notes are created at the first call."""
    attributes = vars(parameter)
    notes = attributes.get("notes")
    if notes is None:
        notes = attributes["notes"] = ParameterNotes()
    return notes
