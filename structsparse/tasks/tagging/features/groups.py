"""Overlapping groups of the weights of a tagger: one for each token template, with all finer templates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from structsparse.features.layout import TemplateLayout, check_table
from structsparse.groups import Cover
from structsparse.groups.layouts import over
from structsparse.groups.orders import coarse_to_fine
from structsparse.tasks.tagging.features.templates import parse


@over("templates", makes=Cover)
def by_coarse_to_fine(
    shape: Sequence[int], layout: TemplateLayout, weights: str = "log2_size", parameter: str = ""
) -> Cover:
    """Overlapping groups of a tagger's weight table: one for each token template, with all finer templates.

    With these groups, a template has nonzero weights only if all coarser templates have nonzero weights.
    """
    check_table(shape, 0, layout, "groups=coarse_to_fine", parameter)
    names = list(layout.templates)
    return coarse_to_fine(shape, names, layout.blocks(shape), template_order(names), weights, parameter)


def template_order(names: Sequence[str]) -> Tensor:
    """The partial order of token templates for groups: bool [templates, templates].

    Entry [a, b] is true if template a is coarser than template b. This means that the (attribute, offset) pairs of a
    are a proper subset of the pairs of b. For example, word[0] is coarser than word[0] & pos[-1]."""
    parts = [set(parse(name)[0].atoms) for name in names]
    number = {part: i for i, part in enumerate(sorted(set().union(*parts)))}
    has = torch.zeros(len(names), len(number))
    for row, atoms in enumerate(parts):
        has[row, [number[part] for part in atoms]] = 1
    count = has.sum(1)
    return (has @ has.T == count[:, None]) & (count[:, None] < count)
