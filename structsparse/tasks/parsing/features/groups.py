"""Layout of a parser's table of arc templates, and its groups from their order: coarse before fine."""

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
    """Layout of a parser's table: a row for each feature of an arc, template after template, and one column."""

    kind = "arcs"


@over("arcs", makes=Cover)
def by_arcs_coarse_to_fine(
    shape: Sequence[int], layout: ArcLayout, weights: str = "log2_size", parameter: str = ""
) -> Cover:
    """Overlapping groups of a parser's table: an arc template and all finer ones, see `arc_order`."""
    check_table(shape, 0, layout, "groups=arcs_coarse_to_fine", parameter)
    names = list(layout.templates)
    return coarse_to_fine(shape, names, layout.blocks(shape), arc_order(names), weights, parameter)


def arc_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """Order of arc templates: pairs (finer, coarser) of each template and the next coarser one in the list. Each has
    one at most, so that the groups are nested.

    h.word & m.upos & distance is finer than ... & direction, that than h.word & m.upos, that than h.upos & m.upos.
    """
    templates = {parse(name): name for name in names}
    pairs = []
    for template, name in templates.items():
        coarser = template.coarser
        while coarser is not None and coarser not in templates:
            coarser = coarser.coarser
        if coarser is not None:
            pairs.append((name, templates[coarser]))
    return pairs
