"""Groups of a weight table [rows, labels] by what its rows and columns stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups import Cover, Forest, Partition, by_column, by_row_blocks
from structsparse.groups.orders import coarse_to_fine
from structsparse.groups.partition import RowNames
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.tagging.features.templates import parse

if TYPE_CHECKING:
    from structsparse.weights.observed_pairs import Pairs


class Layout(NamedTuple):
    """What the rows and columns of a table stand for."""

    templates: Sequence[str]
    offsets: np.ndarray  # int64 [templates + 1], the rows of template k are offsets[k] : offsets[k + 1]
    labels: Sequence[str]
    reduced: bool = False  # whether rows have left the table
    pairs: Pairs | None = None  # where a table is one long vector: the row and the label of each entry

    def is_pairs(self, shape: Sequence[int]) -> bool:
        return self.pairs is not None and tuple(shape) == (len(self.pairs),)

    def rows(self, shape: Sequence[int]) -> np.ndarray:
        """Where the entries of each row begin along the first dimension of a parameter: int64 [rows + 1]"""
        return self.pairs.offsets if self.is_pairs(shape) else np.arange(int(self.offsets[-1]) + 1)

    def blocks(self, shape: Sequence[int]) -> np.ndarray:
        """Where those of each template begin: int64 [templates + 1]"""
        return self.rows(shape)[self.offsets]


def by_template(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Partition:
    """All features of a template are a group."""
    _fits(shape, 0, layout, "groups=template", parameter)
    return by_row_blocks(shape, list(layout.templates), layout.blocks(shape), weights, parameter)


def by_feature(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Partition:
    """A feature, over its labels, is a group."""
    _fits(shape, 0, layout, "groups=feature", parameter)
    starts = layout.rows(shape)
    return by_row_blocks(shape, RowNames(len(starts) - 1), starts, weights, parameter)


by_template.serves = by_feature.serves = "taggers and parsers"


def by_label(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Partition:
    """A label, over its features, is a group."""
    if layout.is_pairs(shape):
        labels = torch.from_numpy(layout.pairs.labels.astype(np.int64))
        return Partition(labels, list(layout.labels), shape, weights, parameter)
    _fits(shape, 1, layout, "groups=label", parameter)
    return by_column(shape, list(layout.labels), weights, parameter)


def by_template_tree(shape: Sequence[int], layout: Layout, weights: str = "sqrt_size", parameter: str = "") -> Forest:
    """A tree for each template: the template over its features."""
    _fits(shape, 0, layout, "groups=template_tree", parameter)
    count, starts = len(layout.templates), layout.rows(shape)
    rows = len(starts) - 1
    owner = torch.repeat_interleave(torch.arange(count), torch.from_numpy(np.diff(layout.offsets)))
    parents = torch.cat([torch.full((count,), -1), owner])
    names = Names(list(layout.templates), RowNames(rows))
    own = count + torch.repeat_interleave(torch.arange(rows), torch.from_numpy(np.diff(starts)))
    ids = own if layout.is_pairs(shape) else own[:, None]
    return Forest(parents, ids, names, shape, weights, parameter)


def by_coarse_to_fine(shape: Sequence[int], layout: Layout, weights: str = "log2_size", parameter: str = "") -> Cover:
    """A template and all that are finer are a group: a fine template lives only if the coarser ones may."""
    _fits(shape, 0, layout, "groups=coarse_to_fine", parameter)
    names = list(layout.templates)
    return coarse_to_fine(shape, names, layout.blocks(shape), template_order(names), weights, parameter)


def template_order(names: Sequence[str]) -> Tensor:
    """a is below b if the parts (attribute and offset) of template a are some but not all of those of b: bool [a, b].

    word[0] is below word[0] & pos[-1] and below word[-1..0]; it knows nothing of pos[0].
    """
    parts = [set(parse(name)[0].atoms) for name in names]
    number = {part: i for i, part in enumerate(sorted(set().union(*parts)))}
    has = torch.zeros(len(names), len(number))
    for row, own in enumerate(parts):
        has[row, [number[part] for part in own]] = 1
    count = has.sum(1)
    return (has @ has.T == count[:, None]) & (count[:, None] < count)


def by_arcs_coarse_to_fine(
    shape: Sequence[int], layout: Layout, weights: str = "log2_size", parameter: str = ""
) -> Cover:
    """The same of templates of arcs, whose order has few levels: see arc_order."""
    _fits(shape, 0, layout, "groups=arcs_coarse_to_fine", parameter)
    names = list(layout.templates)
    return coarse_to_fine(shape, names, layout.blocks(shape), arc_order(names), weights, parameter)


by_arcs_coarse_to_fine.serves = "parsers"


def arc_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (finer, coarser): each template and the next coarser one that there is, so that groups are nested.

    h.word & m.upos & distance is finer than ... & direction, that than h.word & m.upos, that than h.upos & m.upos."""
    templates = {arc_templates.parse(name): name for name in names}
    found = []
    for template, name in templates.items():
        coarser = template.coarser
        while coarser is not None and coarser not in templates:
            coarser = coarser.coarser
        if coarser is not None:
            found.append((name, templates[coarser]))
    return found


class Names(Sequence):
    """Two sequences of names, one after the other, without keeping them."""

    def __init__(self, first: Sequence[str], second: Sequence[str]):
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, k):
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        k = range(len(self))[k]
        return self.first[k] if k < len(self.first) else self.second[k - len(self.first)]


def _fits(shape: Sequence[int], dimension: int, layout: Layout, groups: str, parameter: str) -> None:
    kind, expected = [("features", int(layout.offsets[-1])), ("labels", len(layout.labels))][dimension]
    if not layout.is_pairs(shape) and (len(shape) != 2 or shape[dimension] != expected):
        raise UserError(
            f"{groups} does not fit {parameter} {tuple(shape)}: expected a table with {expected:,} {kind} along "
            f"dimension {dimension}; choose another groups or reg.parameters"
        )
