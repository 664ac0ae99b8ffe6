"""Notes on a parameter, by which solvers and models communicate.

Notes are attributes of the parameter. They are not saved in a `state_dict`. A deep copy of the parameter has no
notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from structsparse.weights.feature_tables import GrowingTable


class BagGradient(NamedTuple):
    """The gradient of a weight table as a product X^T R, noted on the table parameter until a solver applies it.

    X [bags, rows] counts the table rows in each bag, and R [bags, labels] holds the residuals. A residual is the
    gradient of the loss with respect to the sum of a bag."""

    ids: Tensor  # int32 [occurrences], the table rows in all bags, ascending within each bag
    offsets: Tensor  # int64 [bags + 1], where each bag starts in `ids`
    residuals: Tensor  # [bags, labels], the residuals R


class ColumnGradient(NamedTuple):
    """The gradient of some columns of a table, noted on the table parameter until a solver applies it."""

    indices: Tensor  # int64 [columns], each column at most once
    gradient: Tensor  # [rows, columns]


class RowScale(NamedTuple):
    """Note on a weight table with scale factors: the weights of row group g are factors[g] times the stored rows."""

    factors: Tensor  # float64 [groups], the scale factor of each group of rows
    offsets: Tensor  # int64 [groups + 1], where the rows of each group begin


@dataclass
class ParameterNotes:
    """The notes on one parameter; each note is None unless a solver or a model has set it."""

    # if a list, `bag_sum` appends gradients by bags (lists of table rows) to it, instead of setting `.grad`
    pending: list[BagGradient] | None = None
    columns: list[ColumnGradient] | None = None  # the same for `weights.columns`, with gradients of single columns
    scale: RowScale | None = None  # set while a solver stores the table as factors times rows
    grows: GrowingTable | None = None  # the module that adds and removes rows of this weight table
    # estimated second derivatives of the loss, up to a common factor; broadcastable to the parameter
    curvature: Tensor | None = None
    # training data as a solvers.overlaps.design.Design, for solvers that do not call a loss closure
    design: object | None = None


def notes_of(parameter: Tensor) -> ParameterNotes:
    """The notes on a parameter; the first call creates them, all None."""
    attributes = vars(parameter)
    notes = attributes.get("notes")
    if notes is None:
        notes = attributes["notes"] = ParameterNotes()
    return notes
