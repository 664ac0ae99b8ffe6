"""Figures of rows that are compared run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness.tables import Figures

if TYPE_CHECKING:
    from benchmarks.harness.paired import Board, Difference

MARKS = "osD^v<>Pp*hX"


def differences(board: Board, found: Sequence[Difference]) -> Figure:
    """Each difference with two standard errors to both sides, and those of its places."""
    name, scale = board.score
    drawn = Figure(figsize=(8, 1.2 + 0.24 * len(found)), layout="constrained")
    axes = drawn.add_subplot()
    for k, pair in enumerate(found):
        colour = "C0" if pair.own else "0.45"
        axes.plot(
            [scale * f.mean for f in pair.places if f.count],
            [k] * sum(f.count > 0 for f in pair.places),
            "|",
            color="0.7",
        )
        error = scale * 2 * np.nan_to_num(pair.all.error)
        axes.errorbar(scale * pair.all.mean, k, xerr=error, fmt="o", markersize=4, capsize=2, color=colour)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(found)), [f"{pair.row} less {pair.other}" for pair in found], fontsize=7)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set(xlabel=f"difference in {name}, with two standard errors", title=board.title)
    axes.grid(axis="x", alpha=0.3)
    return drawn


def sizes(board: Board) -> Figure:
    """The score against living weights with standard errors, for each place: a line for what varies, a point for the
    rest."""
    drawn = Figure(figsize=(1.5 + 5 * len(board.places), 5), layout="constrained")
    name, scale = board.score
    for place, axes in zip(board.places, np.ravel(drawn.subplots(1, len(board.places), squeeze=False)), strict=True):
        for k, entry in enumerate(dict.fromkeys(row.entry for row in board.rows)):
            rows = [row.name for row in board.rows if row.entry == entry]
            points = sorted(point for row in rows if (point := _point(board, row, place)) is not None)
            if points:
                xs, ys, errors = np.array(points).T
                bars = np.nan_to_num(scale * errors)
                style = {"marker": MARKS[k % len(MARKS)], "markersize": 4, "linewidth": 1, "capsize": 2}
                axes.errorbar(xs, scale * ys, bars, label=entry, **style)
        axes.set(xscale="log", xlabel="living weights", ylabel=f"test {name}", title=place)
        axes.grid(alpha=0.3)
    drawn.axes[0].legend(fontsize=7)
    drawn.suptitle(board.title)
    return drawn


def _point(board: Board, row: str, place: str) -> tuple[float, float, float] | None:
    """Living weights, the score and its error: means over seeds."""
    weights, score = (
        Figures.of(value for (where, _), value in board.scores(row, key).items() if where == place)
        for key in ("nonzero", None)
    )
    return (weights.mean, score.mean, score.error) if weights.count and score.count and weights.mean > 0 else None
