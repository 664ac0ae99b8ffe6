"""Groups of the dimensions of word vectors: trees that are the same for every word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups.cover import Cover
from structsparse.groups.forest import Forest
from structsparse.groups.layouts import TableLayout, over
from structsparse.groups.repeated import RepeatedCover, RepeatedForest


@dataclass(frozen=True)
class DimensionLayout(TableLayout):
    """Layout of the codes of word vectors: a row for each dimension, a column for each word."""

    kind = "dimensions"


@over("dimensions", makes=Forest)
def trees_of_dimensions(
    shape: Sequence[int],
    layout: DimensionLayout | None = None,
    trees: int = 4,
    branching: Sequence[int] = (3, 3),
    nested: bool = True,
    weights: str | Tensor = "one",
    parameter: str = "the codes",
) -> RepeatedForest:
    """Groups of dimensions of word vectors: trees whose dimensions go from coarse to fine.

    Each root has branching[0] children, each child branching[1], and so on. Each dimension has a group with all
    dimensions below it. The roots of all trees come first, then their children, and so on. If `nested` is false, each
    tree is a single group."""
    levels = level_sizes(trees, branching)
    if sum(levels) != shape[0]:
        raise UserError(
            f"groups=forest: {trees} trees with branching {[*branching]} have {sum(levels)} dimensions, the model has "
            f"{shape[0]}; leave out model.dimensions, or change groups.trees and groups.branching"
        )
    names, parents = [f"{t}" for t in range(1, trees + 1)], [-1] * trees
    begin = 0
    for size, children in zip(levels, branching, strict=False):
        for node in range(begin, begin + size):
            names += [f"{names[node]}.{c}" for c in range(1, children + 1)]
            parents += [node] * children
        begin += size
    ids = torch.arange(len(names))
    if not nested:
        ids = torch.tensor([int(name.partition(".")[0]) - 1 for name in names])
        names, parents = names[:trees], [-1] * trees
    return RepeatedForest(parents, ids, [f"tree {name}" for name in names], shape, weights, parameter)


@over("dimensions", makes=Cover)
def random_groups_of_dimensions(
    shape: Sequence[int],
    layout: DimensionLayout | None = None,
    trees: int = 4,
    branching: Sequence[int] = (3, 3),
    seed: int = 0,
    weights: str = "one",
    parameter: str = "the codes",
) -> RepeatedCover:
    """Groups of dimensions of word vectors: random groups with the sizes of the groups of trees, a control.

    The groups of a level of the trees are disjoint, and drawn anew for each level, so that those of different levels
    overlap and are not nested."""
    levels = level_sizes(trees, branching)
    if sum(levels) != shape[0]:
        raise UserError(
            f"groups=random_dimensions: {trees} trees with branching {[*branching]} have {sum(levels)} dimensions, the "
            f"model has {shape[0]}; leave out model.dimensions, or change groups.trees and groups.branching"
        )
    rng, groups, names = torch.Generator().manual_seed(seed), [], []
    for level, count in enumerate(levels):
        size = sum(levels[level:]) // count  # of a node with all nodes below it
        order = torch.randperm(shape[0], generator=rng).tolist()
        groups += [order[k * size : (k + 1) * size] for k in range(count)]
        names += [f"random group {level + 1}.{k + 1}" for k in range(count)]
    return RepeatedCover(groups, names, shape, weights, parameter)


def level_sizes(trees: int, branching: Sequence[int]) -> list[int]:
    """Groups of dimensions of word vectors: the number of nodes of each level of all trees."""
    if type(trees) is not int or trees < 1:
        raise UserError(f"groups.trees is {trees}, expected a number of at least 1")
    if not all(type(children) is int and children >= 1 for children in branching):
        raise UserError(f"groups.branching is {[*branching]}, expected numbers of children of at least 1, as in [3,3]")
    return [trees * math.prod(branching[:level]) for level in range(len(branching) + 1)]
