"""Figures of tables: scores against living weights, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness.records import metric_of
from structsparse.base.files import atomic_file
from structsparse.report.tables import Mean

if TYPE_CHECKING:
    from benchmarks.harness.paired import Difference, PairedResults
    from benchmarks.harness.spec import Spec
    from benchmarks.harness.tables import RowResult

MARKERS = "osD^v<>Pp*hX"


def draw(path: Path, figure: Figure) -> None:
    """Write a figure as PNG."""
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)


def score_by_size(spec: Spec, results: Sequence[RowResult]) -> Figure:
    """The score on test against living weights, a line for each method; crosses are published figures."""
    name, scale = metric_of(spec.metric)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    for k, method in enumerate(dict.fromkeys(result.row.method for result in results)):
        points = [r for r in results if r.row.method == method and r.test.count and r.weights.mean > 0]
        points.sort(key=lambda result: result.weights.mean)
        if points:
            xs, ys = [r.weights.mean for r in points], [scale * r.test.mean for r in points]
            errors = {"xerr": [np.nan_to_num(r.weights.error) for r in points]}
            errors |= {"yerr": [scale * np.nan_to_num(r.test.error) for r in points]}
            marker = MARKERS[k % len(MARKERS)]
            axes.errorbar(xs, ys, **errors, marker=marker, markersize=4, linewidth=1, capsize=2, label=method)
    published = [result.row.paper for result in results if {"test", "weights"} <= set(result.row.paper)]
    if published:
        xs, ys = [paper["weights"] for paper in published], [scale * paper["test"] for paper in published]
        axes.plot(xs, ys, "kx", markersize=5, label="as published")
    percent = " (%)" if scale == 100 else ""
    axes.set(xlabel="living weights", ylabel=f"test {name}{percent}", title=spec.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def differences(results: PairedResults, pairs: Sequence[Difference]) -> Figure:
    """Each paired difference with two standard errors on both sides; ticks are the differences of its places."""
    name, scale = metric_of(results.metric)
    figure = Figure(figsize=(8, 1.2 + 0.24 * len(pairs)), layout="constrained")
    axes = figure.add_subplot()
    for k, pair in enumerate(pairs):
        places = [scale * mean.mean for mean in pair.places if mean.count]
        axes.plot(places, [k] * len(places), "|", color="0.7")
        colour = "C0" if pair.is_control else "0.45"
        error = scale * 2 * np.nan_to_num(pair.all.error)
        axes.errorbar(scale * pair.all.mean, k, xerr=error, fmt="o", markersize=4, capsize=2, color=colour)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(pairs)), [f"{pair.row} less {pair.other}" for pair in pairs], fontsize=7)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set(xlabel=f"difference in {name}, with two standard errors", title=results.title)
    axes.grid(axis="x", alpha=0.3)
    return figure


def sizes(results: PairedResults) -> Figure:
    """The score against living weights for each place: a line for each row that varies, a point for each other row."""
    figure = Figure(figsize=(1.5 + 5 * len(results.places), 5), layout="constrained")
    name, scale = metric_of(results.metric)
    panels = np.ravel(figure.subplots(1, len(results.places), squeeze=False))
    for place, axes in zip(results.places, panels, strict=True):
        for k, entry in enumerate(dict.fromkeys(row.entry for row in results.rows)):
            rows = [row.name for row in results.rows if row.entry == entry]
            points = sorted(point for row in rows if (point := _point(results, row, place)) is not None)
            if points:
                xs, ys, errors = np.array(points).T
                style = {"marker": MARKERS[k % len(MARKERS)], "markersize": 4, "linewidth": 1, "capsize": 2}
                axes.errorbar(xs, scale * ys, np.nan_to_num(scale * errors), label=entry, **style)
        axes.set(xscale="log", xlabel="living weights", ylabel=f"test {name}", title=place)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7)
    figure.suptitle(results.title)
    return figure


def _point(results: PairedResults, row: str, place: str) -> tuple[float, float, float] | None:
    """Living weights, score and its standard error of a row at a place: means over seeds."""
    weights, score = (
        Mean.of(value for (at, _), value in results.scores(row, key).items() if at == place)
        for key in ("nonzero", None)
    )
    return (weights.mean, score.mean, score.error) if weights.count and score.count and weights.mean > 0 else None
