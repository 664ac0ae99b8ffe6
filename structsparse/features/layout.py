"""Layout of a feature weight table (features as rows, labels as columns), and groups of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Forest, Partition, by_column, by_row_blocks
from structsparse.groups.layouts import TableLayout, over
from structsparse.groups.partition import RowNames

if TYPE_CHECKING:
    from structsparse.weights.observed_pairs import Pairs


@dataclass(frozen=True, eq=False)
class TemplateLayout(TableLayout):
    """Layout of a feature weight table: rows are features, template after template; columns are labels."""

    kind = "templates"

    templates: Sequence[str]  # names of the feature templates
    offsets: np.ndarray  # int64, shape [templates + 1]: template k has the rows offsets[k] : offsets[k + 1]
    labels: Sequence[str]  # names of the labels
    reduced: bool = False  # whether the rows of dropped features were removed
    pairs: Pairs | None = None  # row and label of each weight, if only observed (feature, label) pairs have weights

    def is_pairs(self, shape: Sequence[int]) -> bool:
        """Feature weight layout: whether a parameter of this shape has a weight for each observed (row, label) pair."""
        return self.pairs is not None and tuple(shape) == (len(self.pairs),)

    def rows(self, shape: Sequence[int]) -> np.ndarray:
        """Feature weight layout: for each row, the index in dimension 0 of a parameter at which its weights begin.

        If only observed (row, label) pairs have weights, dimension 0 counts pairs, otherwise rows. The last entry
        is the size of dimension 0."""
        return self.pairs.offsets if self.is_pairs(shape) else np.arange(int(self.offsets[-1]) + 1)

    def blocks(self, shape: Sequence[int]) -> np.ndarray:
        """Feature weight layout: for each template, the index in dimension 0 of a parameter at which its weights begin.

        If only observed (row, label) pairs have weights, dimension 0 counts pairs, otherwise rows. The last entry
        is the size of dimension 0."""
        return self.rows(shape)[self.offsets]

    def named_rows(self) -> Mapping[str, Sequence[int]]:
        """Feature weight layout: the rows of each template, by the template's name."""
        bounds = np.asarray(self.offsets).tolist()
        return {name: range(bounds[k], bounds[k + 1]) for k, name in enumerate(self.templates)}


@over("templates", "arcs", makes=Partition)
def by_template(shape: Sequence[int], layout: TemplateLayout, weights: str = "sqrt_size", parameter: str = ""):
    """Groups of feature weights by template: the weights of all features of a template are one group."""
    check_table(shape, 0, layout, "groups=template", parameter)
    return by_row_blocks(shape, list(layout.templates), layout.blocks(shape), weights, parameter)


@over("templates", "arcs", makes=Partition)
def by_feature(shape: Sequence[int], layout: TemplateLayout, weights: str = "sqrt_size", parameter: str = ""):
    """Groups of feature weights by feature: the weights of a feature for all labels are one group."""
    check_table(shape, 0, layout, "groups=feature", parameter)
    starts = layout.rows(shape)
    return by_row_blocks(shape, RowNames(len(starts) - 1), starts, weights, parameter)


@over("templates", makes=Partition)
def by_label(shape: Sequence[int], layout: TemplateLayout, weights: str = "sqrt_size", parameter: str = ""):
    """Groups of feature weights by label: the weights of all features for a label are one group."""
    if layout.is_pairs(shape):
        labels = torch.from_numpy(layout.pairs.labels.astype(np.int64))
        return Partition(labels, list(layout.labels), shape, weights, parameter)
    check_table(shape, 1, layout, "groups=label", parameter)
    return by_column(shape, list(layout.labels), weights, parameter)


@over("templates", makes=Forest)
def by_template_tree(shape: Sequence[int], layout: TemplateLayout, weights: str = "sqrt_size", parameter: str = ""):
    """Tree-structured groups of feature weights: each template is a root, and its features are the children."""
    check_table(shape, 0, layout, "groups=template_tree", parameter)
    count, starts = len(layout.templates), layout.rows(shape)
    rows = len(starts) - 1
    template_of = torch.repeat_interleave(torch.arange(count), torch.from_numpy(np.diff(layout.offsets)))
    parents = torch.cat([torch.full((count,), -1), template_of])
    names = TemplateTreeNames(list(layout.templates), RowNames(rows))
    node = count + torch.repeat_interleave(torch.arange(rows), torch.from_numpy(np.diff(starts)))
    ids = node if layout.is_pairs(shape) else node[:, None]
    return Forest(parents, ids, names, shape, weights, parameter)


class TemplateTreeNames(Sequence):
    """Names of the groups of feature weights by template tree: first the templates, then the rows."""

    def __init__(self, templates: Sequence[str], rows: Sequence[str]):
        self.templates, self.rows = templates, rows

    def __len__(self) -> int:
        return len(self.templates) + len(self.rows)

    def __getitem__(self, k):
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        k = range(len(self))[k]
        return self.templates[k] if k < len(self.templates) else self.rows[k - len(self.templates)]


def check_table(shape: Sequence[int], dimension: int, layout: TemplateLayout, groups: str, parameter: str) -> None:
    """Refuse a parameter whose number of rows or columns does not fit the layout of the feature weight table.

    If `dimension` is 0, rows (features) are checked; if it is 1, columns (labels)."""
    noun, expected = [("features", int(layout.offsets[-1])), ("labels", len(layout.labels))][dimension]
    if not layout.is_pairs(shape) and (len(shape) != 2 or shape[dimension] != expected):
        raise UserError(
            f"{groups} does not fit {parameter} {tuple(shape)}: expected a table with {expected:,} {noun} along "
            f"dimension {dimension}; choose another groups or reg.parameters"
        )
