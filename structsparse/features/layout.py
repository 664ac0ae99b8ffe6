"""Groups of a weight table [rows, labels] by what its rows and columns stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structsparse.errors import UserError
from structsparse.groups import Partition, by_column, by_row, by_row_blocks


class Layout(NamedTuple):
    """What the rows and columns of a table stand for."""

    templates: Sequence[str]
    offsets: np.ndarray  # int64 [templates + 1], the rows of template k are offsets[k] : offsets[k + 1]
    labels: Sequence[str]


def by_template(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Partition:
    """All features of a template are a group."""
    _fits(shape, 0, int(layout.offsets[-1]), "groups=template", parameter)
    return by_row_blocks(shape, list(layout.templates), layout.offsets, weights, parameter)


def by_feature(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Partition:
    """A feature, over its labels, is a group."""
    _fits(shape, 0, int(layout.offsets[-1]), "groups=feature", parameter)
    return by_row(shape, weights=weights, parameter=parameter)


def by_label(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Partition:
    """A label, over its features, is a group."""
    _fits(shape, 1, len(layout.labels), "groups=label", parameter)
    return by_column(shape, list(layout.labels), weights, parameter)


def _fits(shape: Sequence[int], dimension: int, expected: int, groups: str, parameter: str) -> None:
    if len(shape) != 2 or shape[dimension] != expected:
        kind = ("features", "labels")[dimension]
        raise UserError(
            f"{groups} does not fit {parameter} {tuple(shape)}: expected a table with {expected:,} {kind} along "
            f"dimension {dimension}; choose another groups or reg.parameters"
        )
