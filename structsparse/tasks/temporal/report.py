"""Reports on drift models: trajectories as CSV, the table of features, and how well planted classes are found."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from structsparse.base.files import atomic_file, write_text
from structsparse.corpora.dated import KINDS
from structsparse.report.tables import Table, markdown, tsv
from structsparse.tasks.temporal.data import DriftData
from structsparse.tasks.temporal.predictor import BAND, DriftPredictor

SHOWN = 20  # features in the table on the console
DRAWN = 8  # features in the picture of trends


def class_counts(kinds: np.ndarray) -> dict[str, int]:
    """Report on drift models: the numbers of dead, constant and drifting features."""
    return {name: int((kinds == code).sum()) for code, name in enumerate(KINDS)}


def planted_scores(data: DriftData, kinds: np.ndarray) -> dict[str, float]:
    """Report on drift models: precision and recall of the planted classes, and their means over the three classes.

    For other data the result is empty. A class that nothing was assigned to has precision 0."""
    truth = data.corpus.truth
    if not truth:
        return {}
    planted = np.array([truth[name] for name in data.names])
    scores: dict[str, float] = {}
    for code, name in enumerate(KINDS):
        both = float(((kinds == code) & (planted == code)).sum())
        scores[f"{name}_precision"] = both / max(1, (kinds == code).sum())
        scores[f"{name}_recall"] = both / max(1, (planted == code).sum())
    mean = {
        f"planted_{side}": np.mean([scores[f"{name}_{side}"] for name in KINDS]) for side in ("precision", "recall")
    }
    return {**{name: float(value) for name, value in mean.items()}, **scores}


def write(folder: Path, data: DriftData, kinds: np.ndarray, model: DriftPredictor) -> Table:
    """Report on drift models: write trajectories.csv and features.tsv; returns the features that matter most."""
    write_text(folder / "trajectories.csv", trajectories(model))
    with atomic_file(folder / "trends.png") as file:
        trend_picture(model).savefig(file, format="png", dpi=150)
    table = feature_table(model)
    write_text(folder / "features.tsv", tsv(table))
    counts = Table(("class", "features"), [*class_counts(kinds).items()])
    write_text(folder / "classes.md", markdown(counts))
    return Table(table.header, table.rows[:SHOWN])


def trend_picture(model: DriftPredictor) -> Figure:
    """Report on drift models: the chains of the features that drift most, with their bands, and lag correlations.

    The histogram shows the correlation of the weights of neighbouring periods, for each drifting feature."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    trends, correlations = figure.subplots(1, 2, width_ratios=(2, 1))
    places = np.arange(len(model.periods))
    for name in model.most_drifting(count=DRAWN):
        points = model.trend(name)
        (line,) = trends.plot(places, [point.weight for point in points], label=name)
        low, high = [point.low for point in points], [point.high for point in points]
        trends.fill_between(places, low, high, color=line.get_color(), alpha=0.15)
    shown = places[:: max(1, len(places) // 8)]
    trends.set_xticks(shown, [model.periods[k] for k in shown.tolist()], fontsize=7)
    trends.axhline(0, color="black", linewidth=0.5)
    if model.drifting.any():
        trends.legend(fontsize=7)
        correlations.hist(lag_correlations(model.table[:, model.drifting]), bins=20, range=(-1, 1))
    trends.set_title("weights that drift most, with 95 % bands", fontsize=9)
    correlations.set_title("correlation of neighbouring periods", fontsize=9)
    return figure


def lag_correlations(table: np.ndarray) -> np.ndarray:
    """Report on drift models: sum of w_t w_(t+1) over the mean of both sums of squares, for each column."""
    table = table.astype(float)
    sizes = (np.square(table[1:]).sum(axis=0) + np.square(table[:-1]).sum(axis=0)) / 2
    return (table[1:] * table[:-1]).sum(axis=0) / np.maximum(sizes, 1e-300)


def feature_table(model: DriftPredictor) -> Table:
    """Report on drift models: each living feature with its class, first and last weight, change and mean size.

    Features with the largest mean absolute weight come first."""
    size = np.abs(model.table).mean(axis=0)
    rows = []
    for k in np.argsort(-size, kind="stable").tolist():
        weights = model.table[:, k].astype(float)
        change = float(weights[-1] - weights[0])
        kind = KINDS[1 + int(model.drifting[k])]
        rows.append((model.names[k], kind, weights[0], weights[-1], change, float(size[k])))
    return Table(("feature", "class", "first", "last", "change", "mean size"), rows)


def trajectories(model: DriftPredictor) -> str:
    """Report on drift models: the text of trajectories.csv: feature, period, weight, and the ends of its band."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("feature", "period", "weight", "low", "high"))
    low, high = model.table - BAND * model.deviations, model.table + BAND * model.deviations
    for k, name in enumerate(model.names):
        for t, period in enumerate(model.periods):
            lines.writerow((name, period, *(f"{part[t, k]:.6g}" for part in (model.table, low, high))))
    return text.getvalue()
