"""Tables and figures of an experiment, from the figures of its runs: CSV for machines, Markdown for people.

What dev says is of the first pass, what test says of the last one; sizes and costs are of the last one too. Means are
over seeds, with their standard error."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from structsparse.files import write_text, written_whole
from structsparse.kinds import kinds_of
from structsparse.report import Table, markdown

COLUMNS = """row method pass seed dev_f1 f1 nonzero rows_alive groups_alive groups weights_peak rows_peak
seconds_prepare seconds_fit seconds seconds_cpu peak_memory_mb strength stationarity""".split()


class Figures(NamedTuple):
    """Mean of some runs and its standard error (nan for a single one)."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Figures:
        known = np.array([value for value in values if value is not None], float)
        if len(known) == 0:
            return cls(math.nan, math.nan, 0)
        error = known.std(ddof=1) / math.sqrt(len(known)) if len(known) > 1 else math.nan
        return cls(float(known.mean()), float(error), len(known))

    def shown(self, digits: int, scale: float = 1.0) -> str:
        if self.count == 0:
            return ""
        error = "" if math.isnan(self.error) else f" ± {self.error * scale:,.{digits}f}"
        return f"{self.mean * scale:,.{digits}f}{error}"


class Line(NamedTuple):
    """A row of the experiment with what its runs have found."""

    row: object  # experiments.Row
    dev: Figures
    test: Figures
    weights: Figures
    groups: Figures
    peak: Figures  # share of the reference's features that the first stage held at its peak
    seconds: Figures  # CPU of the whole process
    memory: Figures


def lines_of(experiment, records: Sequence[Mapping]) -> list[Line]:
    """Rows without a finished run are left out."""
    first, *_, last = [*experiment.passes, *experiment.passes]
    features = _most_features([r for r in records if r["row"] == experiment.reference and r["pass"] == last])
    found = []
    for row in experiment.rows:
        own = [record for record in records if record["row"] == row.name]
        late = [record for record in own if record["pass"] == last]
        if not own:
            continue
        peaks = [_share(_first_peak(record), features) for record in late]
        columns = ("groups_alive", "seconds_cpu", "peak_memory_mb")
        alive, *costs = (Figures.of(record.get(key) for record in late) for key in columns)
        weights = Figures.of(_living(record) for record in late)
        dev = Figures.of(record.get("dev_f1") for record in own if record["pass"] == first)
        test = Figures.of(record.get("f1") for record in late)
        found.append(Line(row, dev, test, weights, alive, Figures.of(peaks), *costs))
    return found


def _living(record: Mapping) -> int | None:
    """Weights of features that are not zero; those conjoined with pairs of labels count, too."""
    return None if record.get("nonzero") is None else record["nonzero"] + (record.get("edge_nonzero") or 0)


def chosen(lines: Sequence[Line], among: Callable[[Line], bool]) -> Line | None:
    """The best on dev; the smaller one where two are equal."""
    some = [line for line in lines if among(line) and line.dev.count]
    return max(some, key=lambda line: (line.dev.mean, -line.weights.mean), default=None)


def table_of(lines: Sequence[Line]) -> Table:
    header = ["row", "dev F1", "test F1", "weights", "groups", "peak features", "CPU s", "MB", "runs"]
    published = ("dev", "test", "weights")
    shown = [key for key in published if any(key in line.row.paper for line in lines)]
    rows = []
    for line in lines:
        cells = [line.row.name, line.dev.shown(2, 100), line.test.shown(2, 100), line.weights.shown(0)]
        cells += [line.groups.shown(0), line.peak.shown(1, 100) + (" %" if line.peak.count else "")]
        cells += [line.seconds.shown(0), line.memory.shown(0), str(max(line.test.count, line.dev.count))]
        for key in shown:
            value = line.row.paper.get(key)
            cells.append("" if value is None else f"{value:,}" if key == "weights" else f"{100 * value:.2f}")
        rows.append(tuple(cells))
    return Table((*header, *(f"paper {key}" for key in shown)), rows)


def remarks(experiment, lines: Sequence[Line]) -> list[str]:
    """What dev has chosen, and how it compares."""
    said = []
    best = chosen(lines, lambda line: line.row.selects)
    if best is not None:
        said.append(f"Of the rows that select templates, dev chooses **{best.row.name}**: {_in_words(best)}.")
    for method in dict.fromkeys(line.row.method for line in lines):
        own = chosen(lines, lambda line, method=method: line.row.method == method)
        if own is not None and sum(line.row.method == method for line in lines) > 1:
            said.append(f"Of {method}, dev chooses {own.row.name}: {_in_words(own)}.")
    reference = next((line for line in lines if line.row.name == experiment.reference), None)
    if None not in (best, reference) and best is not reference and reference.test.count and best.test.count:
        gain = 100 * (best.test.mean - reference.test.mean)
        share = 100 * best.weights.mean / reference.weights.mean
        said.append(
            f"{best.row.name} is {gain:+.2f} against {reference.row.name} on test, with {share:.1f} % of its weights."
        )
    return said


def _in_words(line: Line) -> str:
    return f"test F1 {line.test.shown(2, 100)} with {line.weights.shown(0)} weights"


def write(folder: Path, experiment, records: Sequence[Mapping]) -> None:
    """All of it, whatever is finished."""
    lines = lines_of(experiment, records)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *([r.get(c) for c in COLUMNS] for r in records)])
    write_text(folder / "table.csv", text.getvalue())
    parts = [
        f"# {experiment.title}\n",
        markdown(table_of(lines)),
        *(f"{said}\n" for said in remarks(experiment, lines)),
    ]
    kinds = kinds_of(experiment, records)
    if kinds is not None:
        parts += ["## Living templates by kind\n", markdown(kinds)]
    counts = {name: counts_of(records, name, experiment) for name in experiment.memory}
    counts = {name: steps for name, steps in counts.items() if steps is not None}
    if counts:
        parts.append(f"![features over epochs](features.png)\n\n{_peaks(counts)}\n")
        _draw(folder / "features.png", features_figure(counts))
    if lines:
        _draw(folder / "f1.png", f1_figure(experiment.title, lines))
        parts.append("![F1 against living weights](f1.png)\n")
    write_text(folder / "table.md", "\n".join(parts))


def _draw(path: Path, figure: Figure) -> None:
    with written_whole(path) as file:
        figure.savefig(file, format="png", dpi=150)


def f1_figure(title: str, lines: Sequence[Line]) -> Figure:
    """F1 on test against living weights, a line for each method."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    for k, method in enumerate(dict.fromkeys(line.row.method for line in lines)):
        own = [line for line in lines if line.row.method == method and line.test.count and line.weights.mean > 0]
        own.sort(key=lambda line: line.weights.mean)
        if own:
            xs, ys = [line.weights.mean for line in own], [100 * line.test.mean for line in own]
            bars = {"xerr": [np.nan_to_num(line.weights.error) for line in own]}
            bars |= {"yerr": [100 * np.nan_to_num(line.test.error) for line in own]}
            marker = "osD^v<>Pp*hX"[k % 12]
            axes.errorbar(xs, ys, **bars, marker=marker, markersize=4, linewidth=1, capsize=2, label=method)
    published = [line for line in lines if {"test", "weights"} <= set(line.row.paper)]
    if published:
        xs, ys = [line.row.paper["weights"] for line in published], [100 * line.row.paper["test"] for line in published]
        axes.plot(xs, ys, "kx", markersize=5, label="as published")
    axes.set(xlabel="living weights", ylabel="test F1 (%)", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


# --- features over time


class Counts(NamedTuple):
    """Living features of one run over its epochs, all stages one after the other."""

    epochs: np.ndarray  # float [entries]
    features: np.ndarray  # int [entries] weights that are not zero
    stages: tuple[str, ...]  # of each entry


def read_counts(path: Path) -> Counts:
    """report/counts.tsv: stage, epoch (from 0), step (within the stage), rows, weights."""
    with path.open(newline="") as file:
        entries = list(csv.DictReader(file, delimiter="\t"))
    epochs, before = [], 0.0
    stages = tuple(entry["stage"] for entry in entries)
    for stage in dict.fromkeys(stages):
        own = [entry for entry in entries if entry["stage"] == stage]
        length, steps = 1 + max(int(e["epoch"]) for e in own), max(1, *(int(e["step"]) for e in own), 1)
        epochs += [before + length * int(entry["step"]) / steps for entry in own]
        before += length
    return Counts(np.array(epochs), np.array([int(entry["weights"]) for entry in entries]), stages)


def counts_of(records: Sequence[Mapping], name: str, experiment) -> Counts | None:
    """Of the row's first run in the last pass, if it has counted."""
    last = list(experiment.passes)[-1]
    own = [record for record in records if record["row"] == name and record["pass"] == last]
    path = Path(own[0]["folder"]) / "report" / "counts.tsv" if own else None
    return read_counts(path) if path is not None and path.is_file() else None


def features_figure(counts: Mapping[str, Counts]) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, found in counts.items():
        axes.plot(found.epochs, found.features, linewidth=1, label=name)
    axes.set(xlabel="epochs", ylabel="features (weights that are not zero)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _peaks(counts: Mapping[str, Counts]) -> str:
    """The largest number of features that each held, in its first stage and in all."""
    largest = max(int(found.features.max()) for found in counts.values())
    said = []
    for name, found in counts.items():
        first = found.features[[stage == found.stages[0] for stage in found.stages]].max()
        peak = found.features.max()
        said.append(
            f"{name} held {peak:,} at most ({peak / largest:.1%}), {first:,} ({first / largest:.1%}) while selecting"
        )
    return "; ".join(said) + "."


def _most_features(records: Sequence[Mapping]) -> float | None:
    """The most that the reference's runs held."""
    return max((record.get("weights_peak") or record.get("nonzero") or 0 for record in records), default=0) or None


def _first_peak(record: Mapping) -> float | None:
    """Of the first stage, which selects, if its features were counted."""
    path = Path(record["folder"]) / "report" / "counts.tsv"
    if not path.is_file():
        return None
    found = read_counts(path)
    if found.stages[0] == "refit":  # a solver that goes from sentence to sentence came after one that does not
        return None
    return int(found.features[[stage == found.stages[0] for stage in found.stages]].max())


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole
