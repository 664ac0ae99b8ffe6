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

from benchmarks.harness import curves
from benchmarks.harness.feature_counts import counts_of, features_figure, first_peak, peaks
from benchmarks.harness.living_templates import kinds_of
from benchmarks.harness.spec import short
from structsparse.base.files import atomic_file, write_text
from structsparse.report.tables import Table, markdown
from structsparse.training.scores import gain

COLUMNS = """nonzero rows_alive groups_alive groups weights_peak rows_peak seconds_prepare seconds_fit seconds
seconds_cpu peak_memory_mb strength stationarity""".split()
SOME_COLUMNS = """perplexity_open dev_perplexity_open parameters weights objective duality_gap near_gap
entries""".split()
SHARES = ("f1", "accuracy", "sentence_accuracy")
SCORES = {  # how a metric is called, and what it is multiplied by
    "f1": ("F1", 100.0),
    "accuracy": ("accuracy", 100.0),
    "uas": ("UAS", 100.0),
    "las": ("LAS", 100.0),
}
LOG_PROBABILITIES = Path("report", "log_probabilities.npy")  # float [scored test targets], of a language model


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
    parameters: Figures  # that have a value of their own
    open: Figures  # perplexity with the words that training lacks
    gap: Figures  # relative to the objective
    loose: int  # runs that have not converged
    further: Mapping[str, Figures]  # columns of metrics.json that the experiment shows besides


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
        peaks = [_share(first_peak(record), features) for record in late]
        columns = ("groups_alive", "seconds_cpu", "peak_memory_mb", "parameters", "perplexity_open")
        alive, *costs, parameters, openly = (Figures.of(record.get(key) for record in late) for key in columns)
        weights = Figures.of(_living(record) for record in late)
        dev = Figures.of(record.get(f"dev_{experiment.metric}") for record in own if record["pass"] == first)
        test = Figures.of(record.get(experiment.metric) for record in late)
        gap = Figures.of(_share(record.get("near_gap"), record.get("objective")) for record in late)
        loose = sum(not converged(record, experiment.converged) for record in late)
        line = (row, dev, test, weights, alive, Figures.of(peaks), *costs, parameters, openly, gap, loose)
        further = {key: Figures.of(record.get(key) for record in late) for key in experiment.shows}
        found.append(Line(*line, further))
    return found


def converged(record: Mapping, bound: float | None) -> bool:
    """By its gap or by how stationary it is, whichever says so; what has neither has nothing to converge."""
    said = [_share(record.get("near_gap"), record.get("objective")), record.get("stationarity")]
    return bound is None or min((x for x in said if x is not None), default=0.0) <= bound


def _living(record: Mapping) -> int | None:
    """Weights of features that are not zero; those conjoined with pairs of labels count, too."""
    return None if record.get("nonzero") is None else record["nonzero"] + (record.get("edge_nonzero") or 0)


def chosen(lines: Sequence[Line], among: Callable[[Line], bool], metric: str = "f1") -> Line | None:
    """The best on dev; the smaller one where two are equal."""
    some = [line for line in lines if among(line) and line.dev.count]
    return max(some, key=lambda line: (gain(metric, line.dev.mean), -line.weights.mean), default=None)


def reference_of(experiment, lines: Sequence[Line]) -> Line | None:
    """The row that others are compared with; of several that vary, the one that dev chooses."""
    named = next((line for line in lines if line.row.name == experiment.reference), None)
    if named is not None or experiment.reference is None:
        return named
    return chosen(lines, lambda line: line.row.entry == experiment.reference, experiment.metric)


def table_of(experiment, lines: Sequence[Line]) -> Table:
    """Columns without any value are left out. A dagger marks what has not converged."""
    name, scale = SCORES.get(experiment.metric, (experiment.metric, 1.0))
    columns: dict[str, list[str]] = {
        "row": [line.row.name for line in lines],
        f"dev {name}": [line.dev.shown(2, scale) for line in lines],
        f"test {name}": [line.test.shown(2, scale) + (" †" if line.loose else "") for line in lines],
        **{key.replace("_", " "): [_further(key, line) for line in lines] for key in experiment.shows},
        "open vocabulary": [line.open.shown(2) for line in lines],
        "weights": [line.weights.shown(0) for line in lines],
        "parameters": [line.parameters.shown(0) for line in lines],
        "groups": [line.groups.shown(0) for line in lines],
        "peak features": [line.peak.shown(1, 100) + (" %" if line.peak.count else "") for line in lines],
        "gap": [f"{line.gap.mean:.1e}" if line.gap.count else "" for line in lines],
        "CPU s": [line.seconds.shown(1 if experiment.curves else 0) for line in lines],
        "MB": [line.memory.shown(0) for line in lines],
        "runs": [str(max(line.test.count, line.dev.count)) for line in lines],
    }
    if experiment.converged is None:
        columns.pop("gap")
    for key in ("dev", "test", "weights"):
        said = [line.row.paper.get(key) for line in lines]
        columns[f"paper {key}"] = [_published(key, value, scale) for value in said]
    columns = {header: cells for header, cells in columns.items() if any(cells) or header == "row"}
    return Table(tuple(columns), list(zip(*columns.values(), strict=True)))


def _further(key: str, line: Line) -> str:
    share = key.removeprefix("dev_") in SHARES
    return line.further[key].shown(2 if share else 1, 100.0 if share else 1.0)


def _published(key: str, value: float | None, scale: float) -> str:
    return "" if value is None else f"{value:,}" if key == "weights" else f"{scale * value:.2f}"


def remarks(experiment, lines: Sequence[Line]) -> list[str]:
    """What dev has chosen, and how it compares."""
    said, metric = [], experiment.metric
    best = chosen(lines, lambda line: line.row.selects, metric)
    if best is not None:
        said.append(f"Of the rows to choose from, dev chooses **{best.row.name}**: {_in_words(best, metric)}.")
    for method in dict.fromkeys(line.row.method for line in lines):
        own = chosen(lines, lambda line, method=method: line.row.method == method, metric)
        if own is not None and sum(line.row.method == method for line in lines) > 1:
            said.append(f"Of {method}, dev chooses {own.row.name}: {_in_words(own, metric)}.")
    reference = reference_of(experiment, lines)
    if None not in (best, reference) and best is not reference and 0 < best.test.count == reference.test.count:
        difference = SCORES.get(metric, (metric, 1.0))[1] * (best.test.mean - reference.test.mean)
        share = 100 * best.weights.mean / reference.weights.mean
        said.append(
            f"{best.row.name} is {difference:+.2f} against {reference.row.name} on test, with {share:.1f} % of its "
            "weights."
        )
    loose = sum(line.loose for line in lines)
    if loose:
        said.append(f"† marks rows with runs ({loose} in all) that have not converged to {experiment.converged:g}.")
    return said


def _in_words(line: Line, metric: str) -> str:
    name, scale = SCORES.get(metric, (metric, 1.0))
    return f"test {name} {line.test.shown(2, scale)} with {line.weights.shown(0)} weights"


def gains_of(experiment, lines: Sequence[Line], records: Sequence[Mapping]) -> Table | None:
    """How much better than the reference each row predicts the same words: the mean difference of log-probabilities
    with its standard error over the words, for each seed, and the least of them in standard errors."""
    reference, last = reference_of(experiment, lines), list(experiment.passes)[-1]
    if reference is None:
        return None
    known = {(r["row"], r[experiment.repeated]): _log_probabilities(r) for r in records if r["pass"] == last}
    seeds = [seed for seed in reference.row.seeds if known.get((reference.row.name, seed)) is not None]
    rows = []
    for name in [line.row.name for line in lines if line is not reference]:
        pairs = [(known.get((name, seed)), known[reference.row.name, seed]) for seed in seeds]
        found = [None if own is None else _paired(own, other) for own, other in pairs]
        if any(found):
            cells = ["" if pair is None else f"{pair[0]:+.4f} ± {pair[1]:.4f}" for pair in found]
            rows.append((name, *cells, f"{min(mean / error for mean, error in filter(None, found)):+.1f}"))
    header = (f"gain over {reference.row.name}", *(f"{experiment.repeated} {seed}" for seed in seeds))
    return Table((*header, "least, in standard errors"), rows) if rows else None


def _log_probabilities(record: Mapping) -> np.ndarray | None:
    path = Path(record["folder"]) / LOG_PROBABILITIES
    return np.load(path).astype(float) if path.is_file() else None


def _paired(own: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean of the differences and its standard error."""
    difference = own - other
    return float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))


def write(folder: Path, experiment, records: Sequence[Mapping]) -> None:
    """All of it, whatever is finished."""
    lines = lines_of(experiment, records)
    write_text(folder / "table.csv", csv_of(experiment, records))
    parts = [f"# {experiment.title}\n", *_curves(folder, experiment, records)]
    parts += [markdown(table_of(experiment, lines)), *(f"{said}\n" for said in remarks(experiment, lines))]
    for title, table in (
        ("Mean gain in log-probability of a word", gains_of(experiment, lines, records)),
        ("Living templates by kind", kinds_of(experiment, records)),
    ):
        parts += [] if table is None else [f"## {title}\n", markdown(table)]
    counts = {name: counts_of(records, name, experiment) for name in experiment.memory}
    counts = {name: steps for name, steps in counts.items() if steps is not None}
    if counts:
        parts.append(f"![features over epochs](features.png)\n\n{peaks(counts)}\n")
        draw(folder / "features.png", features_figure(counts))
    if lines and not experiment.curves:
        name = experiment.metric
        draw(folder / f"{name}.png", score_figure(experiment, lines))
        parts.append(f"![{SCORES.get(name, (name,))[0]} against living weights]({name}.png)\n")
    write_text(folder / "table.md", "\n".join(parts))


def csv_of(experiment, records: Sequence[Mapping]) -> str:
    metric = experiment.metric
    places = map(short, experiment.across)
    columns = ["row", "method", "pass", *places, experiment.repeated, f"dev_{metric}", metric, *COLUMNS]
    columns += [key for key in experiment.shows if key not in columns]
    columns += [column for column in SOME_COLUMNS if any(column in record for record in records)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *([r.get(c) for c in columns] for r in records)])
    return text.getvalue()


def _curves(folder: Path, experiment, records: Sequence[Mapping]) -> list[str]:
    """Tables and figures by an option."""
    last, parts = list(experiment.passes)[-1], []

    def figures(row, key: str) -> Figures:
        return Figures.of(r.get(key) for r in records if r["row"] == row.name and r["pass"] == last)

    for curve in experiment.curves:
        found = curves.points_of(curve, experiment, figures)
        if found:
            curves.write(folder, curve, experiment.title, found)
            varied = any(curve.x in row.varied for row in experiment.rows)
            parts += [f"## {curve.name.replace('_', ' ')}\n", markdown(curves.table_of(curve, found, varied))]
            parts.append(f"![{curve.name}]({curve.name}.png)\n")
    return parts


def draw(path: Path, figure: Figure) -> None:
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)


def score_figure(experiment, lines: Sequence[Line]) -> Figure:
    """The score on test against living weights, a line for each method."""
    name, scale = SCORES.get(experiment.metric, (experiment.metric, 1.0))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    for k, method in enumerate(dict.fromkeys(line.row.method for line in lines)):
        own = [line for line in lines if line.row.method == method and line.test.count and line.weights.mean > 0]
        own.sort(key=lambda line: line.weights.mean)
        if own:
            xs, ys = [line.weights.mean for line in own], [scale * line.test.mean for line in own]
            bars = {"xerr": [np.nan_to_num(line.weights.error) for line in own]}
            bars |= {"yerr": [scale * np.nan_to_num(line.test.error) for line in own]}
            marker = "osD^v<>Pp*hX"[k % 12]
            axes.errorbar(xs, ys, **bars, marker=marker, markersize=4, linewidth=1, capsize=2, label=method)
    published = [line for line in lines if {"test", "weights"} <= set(line.row.paper)]
    if published:
        xs, ys = (
            [line.row.paper["weights"] for line in published],
            [scale * line.row.paper["test"] for line in published],
        )
        axes.plot(xs, ys, "kx", markersize=5, label="as published")
    percent = " (%)" if scale == 100 else ""
    axes.set(xlabel="living weights", ylabel=f"test {name}{percent}", title=experiment.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def _most_features(records: Sequence[Mapping]) -> float | None:
    """The most that the reference's runs held."""
    return max((record.get("weights_peak") or record.get("nonzero") or 0 for record in records), default=0) or None


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole
