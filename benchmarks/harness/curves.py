"""Curves of a table: columns by a varied option or by another column, a line for each row; PNG, CSV and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from structsparse.base.files import atomic_file, write_text
from structsparse.report.tables import Mean, Table
from structsparse.training.scores import gain

if TYPE_CHECKING:
    from benchmarks.harness.spec import Row, Spec

UNIT = 1_000_000  # of x, for the slope of a line
WIDE = 30  # an axis is logarithmic if its largest value is at least so many times its smallest


class Curve(NamedTuple):
    """A figure as it is specified."""

    name: str
    x: str  # the varied option, or a column of metrics.json
    y: tuple[str, ...]  # columns of metrics.json
    rows: tuple[str, ...]
    against: object = None  # the value of x, or "best", that the last value is compared with


class CurveLine(NamedTuple):
    """One line of a figure: means over runs and their standard errors."""

    label: str
    y: str
    xs: list[float]
    means: list[float]
    errors: list[float]  # nan for a single run


def lines_of(curve: Curve, spec: Spec, mean: Callable[[Row, str], Mean]) -> list[CurveLine]:
    """The lines that have finished runs; `mean(row, column)` is that of a row.

    Means over fewer runs than the others are left out, as they would mislead.
    """
    rows = [row for row in spec.rows if row.entry in curve.rows and _x_of(curve, row, mean) is not None]
    most = max((mean(row, y).count for row in rows for y in curve.y), default=0)
    lines = []
    for entry in curve.rows:
        for y in curve.y:
            points = [(_x_of(curve, row, mean), mean(row, y)) for row in rows if row.entry == entry]
            points = sorted((x, value) for x, value in points if value.count == most > 0)
            if points:
                label = entry if len(curve.y) == 1 else f"{entry}: {y}"
                xs, values = zip(*points, strict=True)
                lines.append(CurveLine(label, y, list(xs), [v.mean for v in values], [v.error for v in values]))
    return lines


def _x_of(curve: Curve, row: Row, mean: Callable[[Row, str], Mean]) -> float | None:
    """The position of a row on the x axis."""
    if curve.x in row.varied:
        return row.varied[curve.x]
    column = mean(row, curve.x)
    return column.mean if column.count else None


def table_of(curve: Curve, lines: Sequence[CurveLine], varied: bool = True) -> Table:
    """Lines by x; the last column is the last value over the one that it is compared with.

    If x is a column and not an option, a row for each point and the straight line through the points of each line.
    """
    if not varied:
        return Table(("", _short(curve.x), " and ".join(curve.y)), [row for line in lines for row in _point_rows(line)])
    xs = sorted({x for line in lines for x in line.xs})
    header = [" and ".join(curve.y), *(f"{_short(curve.x)} {x:g}" for x in xs)]
    if curve.against is not None:
        header.append(f"last / {'best' if curve.against == 'best' else f'{_short(curve.x)} {curve.against}'}")
    rows = []
    for line in lines:
        means = dict(zip(line.xs, line.means, strict=True))
        cells = [number(means[x]) if x in means else "" for x in xs]
        if curve.against is not None:
            base = _base(curve, line, means)
            cells.append("" if base is None else f"{line.means[-1] / base:.4f}")
        rows.append((line.label, *cells))
    return Table(tuple(header), rows)


def _point_rows(line: CurveLine) -> list[tuple[str, str, str]]:
    """The points of a line, and the straight line through them."""
    rows = [(line.label, number(x), number(mean)) for x, mean in zip(line.xs, line.means, strict=True)]
    if len(set(line.xs)) > 1:
        slope, origin = np.polyfit(line.xs, line.means, 1)
        rows += [(f"{line.label}, straight line: at", "0", number(origin))]
        rows += [(f"{line.label}, straight line: for each further", f"{UNIT:,}", number(slope * UNIT))]
    return rows


def _base(curve: Curve, line: CurveLine, means: Mapping[float, float]) -> float | None:
    """The value that the last one is compared with."""
    if curve.against == "best":
        return max(line.means, key=lambda mean: gain(line.y, mean))
    return means.get(curve.against)


def number(value: float) -> str:
    """A number for people: two digits after the point, four figures if it is small, none after the point if large."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def figure_of(title: str, curve: Curve, lines: Sequence[CurveLine]) -> Figure:
    """The figure of a curve: rows by colour, columns by line style."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    styles = dict(zip(curve.y, ("-", "--", ":", "-."), strict=False))
    entries = dict.fromkeys(line.label.partition(":")[0] for line in lines)
    colours = {entry: f"C{k % 10}" for k, entry in enumerate(entries)}
    for line in lines:
        style = {"linestyle": styles.get(line.y, "-"), "color": colours[line.label.partition(":")[0]]}
        errors = None if len(curve.y) > 1 else np.nan_to_num(line.errors)
        axes.errorbar(line.xs, line.means, errors, marker="o", markersize=3, linewidth=1.2, label=line.label, **style)
    for set_scale, values in (
        (axes.set_xscale, [x for line in lines for x in line.xs]),
        (axes.set_yscale, [mean for line in lines for mean in line.means]),
    ):
        if values and min(values) > 0 and max(values) >= WIDE * min(values):
            set_scale("log")
    axes.set(xlabel=_short(curve.x), ylabel=" and ".join(curve.y), title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def _short(option: str) -> str:
    return option.rpartition(".")[2]


def write(folder: Path, curve: Curve, title: str, lines: Sequence[CurveLine]) -> None:
    """Write NAME.png and NAME.csv."""
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
