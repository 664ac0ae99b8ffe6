"""Figures of an experiment by one of its options, or one figure by another, a line for each row that varies: a picture,
CSV and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from structsparse.base.files import atomic_file, write_text
from structsparse.report.tables import Table
from structsparse.training.scores import gain

MANY = 1_000_000  # of what x counts, for the slope of a line
WIDE = 30  # an axis is logarithmic where its largest value is so many times its smallest


class Curve(NamedTuple):
    name: str
    x: str  # the varied option, or a column of metrics.json
    y: tuple[str, ...]  # columns of metrics.json
    rows: tuple[str, ...]
    against: object = None  # the value of x, or "best", with which the last value is compared


class Points(NamedTuple):
    """One line of a figure."""

    label: str
    y: str
    xs: list[float]
    means: list[float]
    errors: list[float]  # nan for a single run


def points_of(curve: Curve, experiment, figures) -> list[Points]:
    """The lines of which anything is finished; `figures(row, key)` are those of a row. Means over fewer runs than
    others are of would mislead, and are left out."""
    drawn = [row for row in experiment.rows if row.entry in curve.rows and _place(curve, row, figures) is not None]
    most = max((figures(row, y).count for row in drawn for y in curve.y), default=0)
    found = []
    for entry in curve.rows:
        rows = [row for row in drawn if row.entry == entry]
        for y in curve.y:
            some = [(_place(curve, row, figures), figures(row, y)) for row in rows]
            some = sorted((x, figure) for x, figure in some if figure.count == most > 0)
            if some:
                label = entry if len(curve.y) == 1 else f"{entry}: {y}"
                xs, own = zip(*some, strict=True)
                found.append(Points(label, y, list(xs), [f.mean for f in own], [f.error for f in own]))
    return found


def _place(curve: Curve, row, figures) -> float | None:
    """Where a row stands along the axis."""
    if curve.x in row.varied:
        return row.varied[curve.x]
    found = figures(row, curve.x)
    return found.mean if found.count else None


def table_of(curve: Curve, lines: Sequence[Points], varied: bool = True) -> Table:
    """Lines by x; the last column is the last value over the one it is compared with. Where x is no option, but differs
    from line to line, a row for each point, and what the straight line through those of a line says."""
    if not varied:
        return Table(("", _short(curve.x), " and ".join(curve.y)), [row for line in lines for row in _point_rows(line)])
    xs = sorted({x for line in lines for x in line.xs})
    header = [" and ".join(curve.y), *(f"{_short(curve.x)} {x:g}" for x in xs)]
    if curve.against is not None:
        header.append(f"last / {'best' if curve.against == 'best' else f'{_short(curve.x)} {curve.against}'}")
    rows = []
    for line in lines:
        means = dict(zip(line.xs, line.means, strict=True))
        cells = [shown(means[x]) if x in means else "" for x in xs]
        if curve.against is not None:
            base = _base(curve, line, means)
            cells.append("" if base is None else f"{line.means[-1] / base:.4f}")
        rows.append((line.label, *cells))
    return Table(tuple(header), rows)


def _point_rows(line: Points) -> list[tuple[str, str, str]]:
    rows = [(line.label, shown(x), shown(mean)) for x, mean in zip(line.xs, line.means, strict=True)]
    if len(set(line.xs)) > 1:
        slope, origin = np.polyfit(line.xs, line.means, 1)
        rows += [(f"{line.label}, by the line: at", "0", shown(origin))]
        rows += [(f"{line.label}, by the line: for each further", f"{MANY:,}", shown(slope * MANY))]
    return rows


def _base(curve: Curve, line: Points, means: Mapping[float, float]) -> float | None:
    if curve.against == "best":
        return max(line.means, key=lambda mean: gain(line.y, mean))
    return means.get(curve.against)


def shown(value: float) -> str:
    """To two digits behind the point, to four figures where it is small, whole where it is large."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def figure_of(title: str, curve: Curve, lines: Sequence[Points]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    styles = dict(zip(curve.y, ("-", "--", ":", "-."), strict=False))
    colours = {
        label: f"C{k % 10}" for k, label in enumerate(dict.fromkeys(line.label.partition(":")[0] for line in lines))
    }
    for line in lines:
        style = {"linestyle": styles.get(line.y, "-"), "color": colours[line.label.partition(":")[0]]}
        errors = None if len(curve.y) > 1 else [0.0 if error != error else error for error in line.errors]
        axes.errorbar(line.xs, line.means, errors, marker="o", markersize=3, linewidth=1.2, label=line.label, **style)
    for axis, values in (
        ("x", [x for line in lines for x in line.xs]),
        ("y", [m for line in lines for m in line.means]),
    ):
        if values and min(values) > 0 and max(values) >= WIDE * min(values):
            getattr(axes, f"set_{axis}scale")("log")
    axes.set(xlabel=_short(curve.x), ylabel=" and ".join(curve.y), title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def _short(option: str) -> str:
    return option.rpartition(".")[2]


def write(folder: Path, curve: Curve, title: str, lines: Sequence[Points]) -> None:
    """NAME.png and NAME.csv"""
    text = io.StringIO()
    rows = [
        (line.label, line.y, x, mean, error)
        for line in lines
        for x, mean, error in zip(line.xs, line.means, line.errors, strict=True)
    ]
    csv.writer(text, lineterminator="\n").writerows([("line", "column", _short(curve.x), "mean", "error"), *rows])
    write_text(folder / f"{curve.name}.csv", text.getvalue())
    with atomic_file(folder / f"{curve.name}.png") as file:
        figure_of(title, curve, lines).savefig(file, format="png", dpi=150)
