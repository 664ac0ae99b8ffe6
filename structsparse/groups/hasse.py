"""Hasse diagrams: which group lies inside which other one, as text and as a picture. Steps in between are left out."""

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

LARGEST = 400  # groups: beyond that nobody can read a picture, and finding the order takes groups^3 steps
_ABREAST = 12  # groups side by side in a picture before a new line begins
_LINES = 60  # of groups above each other
_SHOWN = 24  # letters of a name in a picture


class Diagram(NamedTuple):
    """Groups and the pairs of them between which nothing lies."""

    names: Sequence[str]
    sizes: np.ndarray  # [groups] entries
    inner: np.ndarray  # [pairs] the group inside ...
    outer: np.ndarray  # [pairs] ... this one
    alive: np.ndarray | None  # bool [groups]
    note: str = ""


def hasse_text(groups: nn.Module, W: Tensor | None = None, alive: Tensor | None = None, lines: int = 200) -> str:
    """One line a group, each below and further right than those it lies in; ● lives, ○ is dead, if W (or `alive`) is
    given. A group inside several others is told in full below the first of them only. At most so many lines."""
    diagram = _diagram(groups, W, alive)
    inside: dict[int, list[int]] = {}
    for low, high in zip(diagram.inner.tolist(), diagram.outer.tolist(), strict=True):
        inside.setdefault(high, []).append(low)
    held = np.zeros(len(diagram.sizes), dtype=bool)
    held[diagram.inner] = True
    todo = [(g, 0) for g in (~held).nonzero()[0][::-1].tolist()]
    told, text = set(), [diagram.note] if diagram.note else []
    while todo and len(text) < lines:
        g, depth = todo.pop()
        text.append("  " * depth + _line(diagram, g) + (" (see above)" if g in told and g in inside else ""))
        if g not in told:
            todo.extend((low, depth + 1) for low in reversed(inside.get(g, [])))
        told.add(g)
    left = len(diagram.sizes) - len(told)
    return "\n".join([*text, f"... and {left:,} more groups"] if left else text)


def hasse_figure(groups: nn.Module, W: Tensor | None = None, alive: Tensor | None = None) -> Figure:
    """Groups as boxes, larger ones above those inside them; dead ones are pale, if W (or `alive`) is given."""
    diagram = _diagram(groups, W, alive)
    count = len(diagram.sizes)
    places, lines = _places(diagram) if count <= LARGEST else (None, 0)
    if count > LARGEST or lines > _LINES:
        raise UserError(
            f"a picture of {count:,} groups cannot be read: expected at most {LARGEST}, and at most {_LINES} above "
            "each other; hasse_text shows any number"
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
    return "" if diagram.alive is None else f", {int(diagram.alive.sum())} alive"


def _line(diagram: Diagram, g: int) -> str:
    mark = "" if diagram.alive is None else "● " if diagram.alive[g] else "○ "
    size = int(diagram.sizes[g])
    return f"{mark}{diagram.names[g]}  {size:,} {'entry' if size == 1 else 'entries'}"


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…"


def _places(diagram: Diagram) -> tuple[np.ndarray, int]:
    """Where each group stands, [groups, (x, y)], and how many lines there are. Below each other by the longest chain
    of groups around it; beside each other by where the groups around it stand."""
    depth = np.zeros(len(diagram.sizes), dtype=int)
    while True:
        deeper = depth.copy()
        np.maximum.at(deeper, diagram.inner, depth[diagram.outer] + 1)
        if (deeper == depth).all():
            break
        depth = deeper
    places, line = np.zeros((len(depth), 2)), 0
    for level in range(int(depth.max(initial=-1)) + 1):
        here = (depth == level).nonzero()[0]
        around = np.bincount(diagram.inner, places[diagram.outer, 0], len(depth)) / np.maximum(
            1, np.bincount(diagram.inner, minlength=len(depth))
        )
        here = here[np.argsort(around[here], kind="stable")]
        for start in range(0, len(here), _ABREAST):
            row = here[start : start + _ABREAST]
            step = min(_ABREAST, len(depth)) / len(row)
            places[row, 0] = (np.arange(len(row)) - (len(row) - 1) / 2) * step
            places[row, 1] = -line
            line += 1
    return places, max(1, line)


# Which group lies in which


def _diagram(groups: nn.Module, W: Tensor | None, alive: Tensor | None) -> Diagram:
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
    if not isinstance(groups, Cover):  # disjoint
        return Diagram(groups.names, sizes, none, none, alive)
    if len(groups) > LARGEST:
        note = f"(which of {len(groups):,} groups lies in which is worked out for at most {LARGEST})"
        return Diagram(groups.names, sizes, none, none, alive, note)
    return _of_sets(groups, sizes, alive)


def _of_sets(groups: nn.Module, sizes: np.ndarray, alive: np.ndarray | None) -> Diagram:
    """Equal sets become one group of two names. A set lies in another if all its members do."""
    members, offsets = groups.members.cpu().numpy(), groups.offsets.cpu().numpy()
    sets = csr_array((np.ones(len(members)), members, offsets), shape=(len(groups), len(groups.multiplicity)))
    common, count = (sets @ sets.T).toarray(), np.diff(offsets)  # [groups, groups] members of both
    within = common == count[:, None]
    first = (within & within.T).argmax(1)  # the first of all equal ones
    kept = np.unique(first)
    names = [" = ".join(groups.names[g] for g in (first == k).nonzero()[0].tolist()) for k in kept.tolist()]
    strictly = (within & ~within.T)[np.ix_(kept, kept)]
    through = strictly.astype(np.float32) @ strictly.astype(np.float32) > 0  # by way of a third one
    inner, outer = (strictly & ~through).nonzero()
    return Diagram(names, sizes[kept], inner, outer, None if alive is None else alive[kept])
