"""Hasse diagrams of groups, as text and as a picture: which group lies directly inside which other group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.sparse import csr_array
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups.cover import Cover
from structsparse.groups.forest import Forest

LARGEST = 400  # maximum number of groups in a diagram; larger ones are illegible and take cubic time
_ABREAST = 12  # maximum number of group boxes side by side in a row of a picture
_LINES = 60  # maximum number of rows of group boxes in a picture
_SHOWN = 24  # maximum number of letters of a group name in a picture


class Diagram(NamedTuple):
    """A Hasse diagram: groups, and pairs of an inner and an outer group with no third group in between."""

    names: Sequence[str]
    sizes: np.ndarray  # [groups] the number of entries of each group
    inner: np.ndarray  # [pairs] the index of the inner group of each pair
    outer: np.ndarray  # [pairs] the index of the outer group of each pair
    alive: np.ndarray | None  # bool [groups] whether each group has a nonzero entry; None: unknown
    note: str = ""  # a remark that is printed above the diagram, in text form


def hasse_text(groups: nn.Module, W: Tensor | None = None, alive: Tensor | None = None, lines: int = 200) -> str:
    """A Hasse diagram as text: one line per group, indented below the group that contains it.

    The text has at most `lines` lines. If W (or `alive`) is given, ● marks living (nonzero) groups and ○ dead groups.
    If a group occurs several times, the groups inside it are listed only the first time.
    """
    diagram = _diagram(groups, W, alive)
    inside: dict[int, list[int]] = {}
    for low, high in zip(diagram.inner.tolist(), diagram.outer.tolist(), strict=True):
        inside.setdefault(high, []).append(low)
    enclosed = np.zeros(len(diagram.sizes), dtype=bool)
    enclosed[diagram.inner] = True
    todo = [(g, 0) for g in (~enclosed).nonzero()[0][::-1].tolist()]
    listed, text = set(), [diagram.note] if diagram.note else []
    while todo and len(text) < lines:
        g, depth = todo.pop()
        text.append("  " * depth + _line(diagram, g) + (" (see above)" if g in listed and g in inside else ""))
        if g not in listed:
            todo.extend((low, depth + 1) for low in reversed(inside.get(g, [])))
        listed.add(g)
    left = len(diagram.sizes) - len(listed)
    return "\n".join([*text, f"... and {left:,} more groups"] if left else text)


def hasse_figure(groups: nn.Module, W: Tensor | None = None, alive: Tensor | None = None) -> Figure:
    """A Hasse diagram as a picture: outer groups are above the groups inside them.

    If W (or `alive`) is given, dead groups are pale.
    """
    diagram = _diagram(groups, W, alive)
    count = len(diagram.sizes)
    places, lines = _places(diagram) if count <= LARGEST else (None, 0)
    if count > LARGEST or lines > _LINES:
        raise UserError(
            f"a picture of {count:,} groups is illegible: expected at most {LARGEST}, in at most {_LINES} lines; "
            "hasse_text shows any number"
        )
    width = min(_ABREAST, max(1, count))
    figure = Figure(figsize=(max(4.0, 1.6 * width), max(1.5, 1.1 * lines)), layout="constrained")
    axes = figure.subplots()
    segments = np.stack([places[diagram.inner], places[diagram.outer]], axis=1)
    axes.add_collection(LineCollection(segments, colors="0.6", linewidths=0.8, zorder=1))
    for g, (x, y) in enumerate(places.tolist()):
        lives = diagram.alive is None or bool(diagram.alive[g])
        box = {
            "boxstyle": "round",
            "facecolor": "#cfe3f5" if lives else "white",
            "edgecolor": "0.3" if lives else "0.8",
        }
        label = f"{_short(diagram.names[g])}\n{int(diagram.sizes[g]):,}"
        colour = "black" if lives else "0.6"
        axes.text(x, y, label, ha="center", va="center", fontsize=8, color=colour, bbox=box, zorder=2)
    axes.set(xlim=(-width / 2, width / 2), ylim=(-lines + 0.4, 0.6))
    axes.set_axis_off()
    axes.set_title(f"{groups.parameter}: {count} groups" + _living(diagram), fontsize=10)
    return figure


def _living(diagram: Diagram) -> str:
    """The number of living groups of a Hasse diagram, as part of a title."""
    return "" if diagram.alive is None else f", {int(diagram.alive.sum())} alive"


def _line(diagram: Diagram, g: int) -> str:
    """The line of one group in a Hasse diagram as text."""
    mark = "" if diagram.alive is None else "● " if diagram.alive[g] else "○ "
    size = int(diagram.sizes[g])
    return f"{mark}{diagram.names[g]}  {size:,} {'entry' if size == 1 else 'entries'}"


def _short(name: str) -> str:
    """The name of a group, cut to the width of its box in the picture of a Hasse diagram."""
    return name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…"


def _places(diagram: Diagram) -> tuple[np.ndarray, int]:
    """The place (x, y) of each group in the picture of a Hasse diagram, and the number of rows of boxes.

    The level of a group is the length of the longest chain of groups around it. Level 0 is at the top, and a large
    level fills several rows. In a level, groups are sorted by the mean x of the groups directly around them.
    """
    depth = np.zeros(len(diagram.sizes), dtype=int)
    while True:
        deeper = depth.copy()
        np.maximum.at(deeper, diagram.inner, depth[diagram.outer] + 1)
        if (deeper == depth).all():
            break
        depth = deeper
    places, line = np.zeros((len(depth), 2)), 0
    for level in range(int(depth.max(initial=-1)) + 1):
        members = (depth == level).nonzero()[0]
        around = np.bincount(diagram.inner, places[diagram.outer, 0], len(depth)) / np.maximum(
            1, np.bincount(diagram.inner, minlength=len(depth))
        )
        members = members[np.argsort(around[members], kind="stable")]
        for start in range(0, len(members), _ABREAST):
            row = members[start : start + _ABREAST]
            step = min(_ABREAST, len(depth)) / len(row)
            places[row, 0] = (np.arange(len(row)) - (len(row) - 1) / 2) * step
            places[row, 1] = -line
            line += 1
    return places, max(1, line)


# Pairs of inner and outer groups


def _diagram(groups: nn.Module, W: Tensor | None, alive: Tensor | None) -> Diagram:
    """The Hasse diagram of the groups of a Partition, Forest or Cover."""
    if W is not None:
        alive = groups.alive(W.detach())
    if alive is not None:
        alive = torch.as_tensor(alive).cpu().numpy().astype(bool)
        if alive.shape != (len(groups),):
            raise UserError(f"alive has shape {alive.shape}, expected one for each of {len(groups)} groups")
    sizes, none = groups.size.cpu().numpy(), np.zeros(0, dtype=int)
    if isinstance(groups, Forest):
        parents = groups.parents.cpu().numpy()
        inner = (parents >= 0).nonzero()[0]
        return Diagram(groups.names, sizes, inner, parents[inner], alive)
    if not isinstance(groups, Cover):  # a Partition: no group lies inside another
        return Diagram(groups.names, sizes, none, none, alive)
    if len(groups) > LARGEST:
        note = f"(the order of {len(groups):,} groups is not shown; at most {LARGEST} are compared)"
        return Diagram(groups.names, sizes, none, none, alive, note)
    return _of_sets(groups, sizes, alive)


def _of_sets(groups: nn.Module, sizes: np.ndarray, alive: np.ndarray | None) -> Diagram:
    """The Hasse diagram of overlapping groups; equal groups become one group that has all their names."""
    members, offsets = groups.members.cpu().numpy(), groups.offsets.cpu().numpy()
    sets = csr_array((np.ones(len(members)), members, offsets), shape=(len(groups), len(groups.multiplicity)))
    common, count = (sets @ sets.T).toarray(), np.diff(offsets)  # [groups, groups]: number of shared atoms
    within = common == count[:, None]
    first = (within & within.T).argmax(1)  # for each group, the first group that equals it
    distinct = np.unique(first)
    names = [" = ".join(groups.names[g] for g in (first == k).nonzero()[0].tolist()) for k in distinct.tolist()]
    strictly = (within & ~within.T)[np.ix_(distinct, distinct)]
    through = strictly.astype(np.float32) @ strictly.astype(np.float32) > 0  # pairs with a third group in between
    inner, outer = (strictly & ~through).nonzero()
    return Diagram(names, sizes[distinct], inner, outer, None if alive is None else alive[distinct])
