"""Which groups live, and why: tables for people, for files and for TensorBoard, and figures."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor

from structsparse.base.files import write_text, written_whole
from structsparse.groups import Cover, Forest, Partition

matplotlib.use("Agg")

MOST_GROUPS = 2000  # beyond this a group is not looked at one by one (a group per feature, say)
_LABELLED = 60  # so many names can be read along one axis
_LONGEST = 50  # letters of a name in a figure


Groups = Partition | Forest | Cover


class Table(NamedTuple):
    header: tuple[str, ...]
    rows: list[tuple]


def group_table(
    groups: Groups,
    weights: Tensor,
    enters: Tensor | None = None,
    wanted: Tensor | None = None,
    truth: Collection[str] = (),
) -> Table:
    """The groups, living ones first and the heaviest on top. `enters`: the strength at which each group alone would
    come to life; shown as a share of the largest. `wanted`: dead groups that the gradient would wake, so that they are
    dead only by a budget or by noise. `truth`: the groups that were planted."""
    norms = groups.norms(weights)
    living = groups.nonzeros(weights)
    share = norms.square() / norms.square().sum().clamp_min(torch.finfo(norms.dtype).tiny)
    header = ["group", "lives", "weights", "of", "norm", "share"]
    columns = [
        list(groups.names),
        ["yes" if n > 0 else "no" for n in norms.tolist()],
        [int(n) for n in living.tolist()],
        [int(n) for n in groups.size.tolist()],
        norms.tolist(),
        share.tolist(),
    ]
    if enters is not None:
        header.append("enters at")
        columns.append((enters / enters.max()).tolist())
    if wanted is not None and wanted.any():
        header.append("wanted")
        columns.append(["yes" if w else "" for w in wanted.tolist()])
    if truth:
        header.append("planted")
        columns.append(["yes" if name in truth else "no" for name in groups.names])
    order = np.lexsort((np.arange(len(norms)), -norms.cpu().numpy()))
    return Table(tuple(header), [tuple(column[k] for column in columns) for k in order])


def _shown(value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(table: Table) -> str:
    lines = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join("| " + " | ".join(_shown(v).replace("|", "\\|") for v in line) + " |" for line in lines) + "\n"


def tsv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([table.header, *table.rows])
    return text.getvalue()


def rich(table: Table, title: str, most: int = 25) -> RichTable:
    shown = RichTable(title=title, title_justify="left")
    for name in table.header:
        shown.add_column(name, justify="left" if name in ("group", "lives", "planted") else "right", no_wrap=True)
    for row in table.rows[:most]:
        shown.add_row(*(_shown(value) for value in row))
    if len(table.rows) > most:
        shown.caption = f"{len(table.rows) - most} more in the report"
    return shown


def norms_over_time(norms: Sequence[Sequence[float]], names: Sequence[str]) -> Figure:
    """One row a group, one column an epoch, colour the norm (white: exactly zero). Groups in the order of their last
    norm, so that the living ones stand on top; only as many names as can be read."""
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
    shown = np.arange(min(len(names), _LABELLED))
    axes.set_yticks(shown, [names[order[k]] for k in shown], fontsize=6)
    axes.set_xlabel("epoch")
    living = int((values[:, -1] > 0).sum())
    axes.set_title(f"norm per group; {living} of {len(names)} live", fontsize=9)
    figure.colorbar(image, ax=axes)
    return figure


def living_groups(table: Table) -> Figure:
    """A bar for each living group."""
    living = [row for row in table.rows if row[1] == "yes"][:_LABELLED]
    figure = Figure(figsize=(8, max(2.0, 0.2 * len(living) + 1)), layout="constrained")
    axes = figure.add_subplot()
    planted = table.header.index("planted") if "planted" in table.header else None
    colours = ["C0" if planted is None or row[planted] == "yes" else "C3" for row in living]
    names = [_cut(str(row[0])) for row in living]
    axes.barh(range(len(names)), [row[table.header.index("norm")] for row in living], color=colours)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    note = "" if planted is None else " (red: not planted)"
    axes.set_title(f"{sum(r[1] == 'yes' for r in table.rows)} of {len(table.rows)} groups live{note}", fontsize=9)
    axes.set_xlabel("norm")
    return figure


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"


def write_groups(folder: Path, table: Table) -> None:
    write_text(folder / "groups.tsv", tsv(table))
    write_text(folder / "groups.md", markdown(table))
    with written_whole(folder / "groups.png") as file:
        living_groups(table).savefig(file, format="png", dpi=150)


def write_metrics(path: Path, metrics: Mapping[str, object]) -> None:
    """One flat object; what is not a finite number is null."""
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in metrics.items()
    }
    write_text(path, json.dumps(clean, indent=2, ensure_ascii=False) + "\n")


def summary(console: Console, metrics: Mapping[str, object], table: Table | None, folder: Path) -> None:
    """The one thing to read at the end of a run."""
    if table is not None and "lives" not in table.header:
        console.print(rich(table, "what lives"))
    elif table is not None:
        lives = table.header.index("lives")
        without = [row[:lives] + row[lives + 1 :] for row in [table.header, *table.rows] if row[lives] != "no"]
        living = Table(without[0], without[1:])
        alive, every = (metrics.get(key) for key in ("groups_alive", "groups"))  # of very many the table has some
        console.print(rich(living, f"living groups: {alive or len(living.rows):,} of {every or len(table.rows):,}"))
    if table is not None and "wanted" in table.header:
        column = table.header.index("wanted")
        names = [row[0] for row in table.rows if row[column] == "yes"]
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        console.print(f"{len(names)} groups are dead only by budget or noise, the gradient would wake them: {shown}")
    result = RichTable(title="result", title_justify="left", show_header=False)
    for key, value in metrics.items():
        if value is not None:
            result.add_row(key, _shown(value))
    console.print(result)
    console.print(f"everything is in [bold]{folder}[/bold]; look with: tensorboard --logdir {folder}", soft_wrap=True)
