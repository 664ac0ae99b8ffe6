"""Overlapping groups of the weights of a parser (coarse to fine): one for each arc template and all finer templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from structsparse.features.layout import TemplateLayout, check_table
from structsparse.groups import Cover
from structsparse.groups.layouts import over
from structsparse.groups.orders import coarse_to_fine
from structsparse.tasks.parsing.features.templates import parse


@dataclass(frozen=True, eq=False)
class ArcLayout(TemplateLayout):
    """The layout of a parser's weight table for groups: a row for each arc feature, by template, and one column."""

    kind = "arcs"


@over("arcs", makes=Cover)
def by_arcs_coarse_to_fine(
    shape: Sequence[int], layout: ArcLayout, weights: str = "log2_size", parameter: str = ""
) -> Cover:
    """Overlapping groups of the weight table of a parser: one for each arc template, with all finer templates.

    `arc_order` defines which templates are finer."""
    check_table(shape, 0, layout, "groups=arcs_coarse_to_fine", parameter)
    names = list(layout.templates)
    return coarse_to_fine(shape, names, layout.blocks(shape), arc_order(names), weights, parameter)


def arc_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """The order of arc templates for groups: pairs (template, next coarser template among `names`).

    For example, from fine to coarse: h.word & m.upos & distance, h.word & m.upos & direction, h.word & m.upos, h.upos &
    m.upos. A template has at most one next coarser template."""
    templates = {parse(name): name for name in names}
    pairs = []
    for template, name in templates.items():
        coarser = template.coarser
        while coarser is not None and coarser not in templates:
            coarser = coarser.coarser
        if coarser is not None:
            pairs.append((name, templates[coarser]))
    return pairs
