"""Living (nonzero) groups in the report of a model: a table of all groups, its files, and pictures of group norms."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from structsparse.base.files import atomic_file, write_text
from structsparse.groups import Cover, Forest, Partition
from structsparse.report.tables import Table, markdown, tsv

matplotlib.use("Agg")

MOST_GROUPS = 2000  # maximum number of groups for which a report has tables and pictures of groups
_MOST_LABELS = 60  # maximum number of group names along one axis of a picture
_LONGEST_LABEL = 50  # maximum number of characters of a group name in a picture

Groups = Partition | Forest | Cover


def group_table(
    groups: Groups,
    weights: Tensor,
    enters: Tensor | None = None,
    would_wake: Tensor | None = None,
    truth: Collection[str] = (),
) -> Table:
    """Living groups table: all groups of a parameter, sorted by norm, so that living groups come first.

    * enters: for each group, the largest penalty strength at which the group alone would be nonzero
    * would_wake: for each group, whether it is zero but the gradient would make it nonzero
    * truth: names of the groups that were planted in synthetic data"""
    norms = groups.norms(weights)
    living, sizes = groups.nonzeros(weights).flatten(), groups.size.expand_as(norms).flatten()
    norms = norms.flatten()
    share = norms.square() / norms.square().sum().clamp_min(torch.finfo(norms.dtype).tiny)
    header = ["group", "lives", "weights", "of", "norm", "share"]
    columns = [
        list(groups.names),
        ["yes" if norm > 0 else "no" for norm in norms.tolist()],
        [int(count) for count in living.tolist()],
        [int(size) for size in sizes.tolist()],
        norms.tolist(),
        share.tolist(),
    ]
    if enters is not None:
        header.append("enters at")
        columns.append((enters / enters.max()).tolist())
    if would_wake is not None and would_wake.any():
        header.append("would wake")
        columns.append(["yes" if wakes else "" for wakes in would_wake.tolist()])
    if truth:
        header.append("planted")
        columns.append(["yes" if name in truth else "no" for name in groups.names])
    order = np.lexsort((np.arange(len(norms)), -norms.cpu().numpy()))
    return Table(tuple(header), [tuple(column[k] for column in columns) for k in order])


def write_groups(folder: Path, table: Table) -> None:
    """Living groups: write the table as groups.tsv and groups.md, and a bar chart of group norms as groups.png."""
    write_text(folder / "groups.tsv", tsv(table))
    write_text(folder / "groups.md", markdown(table))
    with atomic_file(folder / "groups.png") as file:
        norm_bars(table).savefig(file, format="png", dpi=150)


def norm_bars(table: Table) -> Figure:
    """Living groups picture: the bar chart of the norms of living groups, from the table of groups."""
    living = [row for row in table.rows if row[1] == "yes"][:_MOST_LABELS]
    figure = Figure(figsize=(8, max(2.0, 0.2 * len(living) + 1)), layout="constrained")
    axes = figure.add_subplot()
    planted = table.header.index("planted") if "planted" in table.header else None
    colours = ["C0" if planted is None or row[planted] == "yes" else "C3" for row in living]
    names = [_shortened(str(row[0])) for row in living]
    axes.barh(range(len(names)), [row[table.header.index("norm")] for row in living], color=colours)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    note = "" if planted is None else " (red: not planted)"
    axes.set_title(f"{sum(r[1] == 'yes' for r in table.rows)} of {len(table.rows)} groups live{note}", fontsize=9)
    axes.set_xlabel("norm")
    return figure


def norm_heatmap(norms: Sequence[Sequence[float]], names: Sequence[str]) -> Figure:
    """Living groups picture: the heat map of group norms over epochs, from norms [epochs, groups].

    Exact zeros are white. Groups are sorted by the norm in the last epoch, living groups on top. If there are many
    groups, only the first have names."""
    values = np.array(norms).T  # [groups, epochs]
    order = np.argsort(-values[:, -1], kind="stable")
    values = values[order]
    height = min(12.0, max(3.0, 0.18 * len(names)))
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(
        np.ma.masked_equal(values, 0.0), aspect="auto", interpolation="nearest", cmap="viridis",
        extent=(0.5, values.shape[1] + 0.5, len(names) - 0.5, -0.5),
    )  # fmt: skip
    labelled = np.arange(min(len(names), _MOST_LABELS))
    axes.set_yticks(labelled, [names[order[k]] for k in labelled], fontsize=6)
    axes.set_xlabel("epoch")
    living = int((values[:, -1] > 0).sum())
    axes.set_title(f"norm per group; {living} of {len(names)} live", fontsize=9)
    figure.colorbar(image, ax=axes)
    return figure


def _shortened(name: str) -> str:
    """Living groups picture: a group name, cut to the maximum length in a picture."""
    return name if len(name) <= _LONGEST_LABEL else f"{name[:_LONGEST_LABEL]}…"
