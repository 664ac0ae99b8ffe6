"""Table of rows with means over seeds: table.md, table.csv and figures.

Dev figures are of the first pass; test figures, sizes and costs are of the last one. Means have their standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import curves
from benchmarks.harness.feature_counts import counts_of, features_figure, first_stage_peak, peaks
from benchmarks.harness.figures import draw, score_by_size
from benchmarks.harness.living_templates import kinds_of
from benchmarks.harness.records import METRICS, converged, csv_of, metric_of, ratio
from benchmarks.harness.spec import Row, Spec
from structsparse.base.files import write_text
from structsparse.report.tables import Mean, Table, markdown, without_empty_columns
from structsparse.training.scores import gain

SHARES = (*METRICS, "sentence_accuracy")  # figures that are shown in percent
LOG_PROBABILITIES = Path("report", "log_probabilities.npy")  # float [scored test targets], of a language model


class RowResult(NamedTuple):
    """A row with the means over its runs."""

    row: Row
    dev: Mean
    test: Mean
    weights: Mean
    groups: Mean
    peak: Mean  # most features held in the first stage, as a share of the reference's
    seconds: Mean  # CPU time of the process
    memory: Mean
    parameters: Mean  # that have a value of their own
    open: Mean  # perplexity over all words, those outside the vocabulary included
    gap: Mean  # relative to the objective
    unconverged: int  # number of runs
    further: Mapping[str, Mean]  # the columns in spec.shows


def results_of(spec: Spec, records: Sequence[Mapping]) -> list[RowResult]:
    """The rows that have a finished run."""
    features = _most_features(spec, records)
    results = []
    for row in spec.rows:
        of_row = [record for record in records if record["row"] == row.name]
        last = [record for record in of_row if record["pass"] == spec.last_pass]
        if of_row:
            columns = ("groups_alive", "seconds_cpu", "peak_memory_mb", "parameters", "perplexity_open", spec.metric)
            groups, seconds, memory, parameters, openly, test = (Mean.of(r.get(key) for r in last) for key in columns)
            dev = Mean.of(r.get(f"dev_{spec.metric}") for r in of_row if r["pass"] == spec.first_pass)
            results.append(
                RowResult(
                    row, dev, test, Mean.of(map(_nonzero, last)), groups,
                    Mean.of(ratio(first_stage_peak(r), features) for r in last), seconds, memory, parameters, openly,
                    Mean.of(ratio(r.get("near_gap"), r.get("objective")) for r in last),
                    sum(not converged(r, spec.converged) for r in last),
                    {key: Mean.of(r.get(key) for r in last) for key in spec.shows},
                )
            )  # fmt: skip
    return results


def _most_features(spec: Spec, records: Sequence[Mapping]) -> float | None:
    """The most features that a run of the reference held."""
    runs = [r for r in records if r["row"] == spec.reference and r["pass"] == spec.last_pass]
    return max((r.get("weights_peak") or r.get("nonzero") or 0 for r in runs), default=0) or None


def _nonzero(record: Mapping) -> int | None:
    """Nonzero weights of features, those conjoined with pairs of labels included."""
    return None if record.get("nonzero") is None else record["nonzero"] + (record.get("edge_nonzero") or 0)


def best_on_dev(results: Sequence[RowResult], among: Callable[[RowResult], bool], metric: str) -> RowResult | None:
    """The row that is best on dev; of equal ones the smallest."""
    candidates = [result for result in results if among(result) and result.dev.count]
    return max(candidates, key=lambda result: (gain(metric, result.dev.mean), -result.weights.mean), default=None)


def reference_of(spec: Spec, results: Sequence[RowResult]) -> RowResult | None:
    """The row that others are compared with; if it varies, the one of its rows that is best on dev."""
    named = next((result for result in results if result.row.name == spec.reference), None)
    if named is not None or spec.reference is None:
        return named
    return best_on_dev(results, lambda result: result.row.entry == spec.reference, spec.metric)


def table_of(spec: Spec, results: Sequence[RowResult]) -> Table:
    """The main table, without empty columns. A dagger marks rows that have not converged."""
    name, scale = metric_of(spec.metric)
    columns: dict[str, list[str]] = {
        "row": [r.row.name for r in results],
        f"dev {name}": [r.dev.text(2, scale) for r in results],
        f"test {name}": [r.test.text(2, scale) + (" †" if r.unconverged else "") for r in results],
        **{key.replace("_", " "): [_further(key, r) for r in results] for key in spec.shows},
        "open vocabulary": [r.open.text(2) for r in results],
        "weights": [r.weights.text(0) for r in results],
        "parameters": [r.parameters.text(0) for r in results],
        "groups": [r.groups.text(0) for r in results],
        "peak features": [r.peak.text(1, 100) + (" %" if r.peak.count else "") for r in results],
        "gap": [f"{r.gap.mean:.1e}" if r.gap.count and spec.converged is not None else "" for r in results],
        "CPU s": [r.seconds.text(1 if spec.curves else 0) for r in results],
        "MB": [r.memory.text(0) for r in results],
        "runs": [str(max(r.test.count, r.dev.count)) for r in results],
    }
    for key in ("dev", "test", "weights"):
        columns[f"paper {key}"] = [_published(key, r.row.paper.get(key), scale) for r in results]
    return without_empty_columns(Table(tuple(columns), list(zip(*columns.values(), strict=True))))


def _further(key: str, result: RowResult) -> str:
    percent = key.removeprefix("dev_") in SHARES
    return result.further[key].text(2 if percent else 1, 100.0 if percent else 1.0)


def _published(key: str, value: float | None, scale: float) -> str:
    return "" if value is None else f"{value:,}" if key == "weights" else f"{scale * value:.2f}"


def remarks(spec: Spec, results: Sequence[RowResult]) -> list[str]:
    """Sentences below the table: which rows dev chooses, how the best one compares with the reference."""
    sentences, metric = [], spec.metric
    best = best_on_dev(results, lambda result: result.row.selects, metric)
    if best is not None:
        sentences.append(f"Of the rows to choose from, dev chooses **{best.row.name}**: {_in_words(best, metric)}.")
    for method in dict.fromkeys(result.row.method for result in results):
        rows = [result for result in results if result.row.method == method]
        first = best_on_dev(rows, lambda result: True, metric)
        if first is not None and len(rows) > 1:
            sentences.append(f"Of {method}, dev chooses {first.row.name}: {_in_words(first, metric)}.")
    reference = reference_of(spec, results)
    if None not in (best, reference) and best is not reference and 0 < best.test.count == reference.test.count:
        difference = metric_of(metric).scale * (best.test.mean - reference.test.mean)
        share = 100 * best.weights.mean / reference.weights.mean
        sentences.append(
            f"{best.row.name} is {difference:+.2f} against {reference.row.name} on test, with {share:.1f} % of its "
            "weights."
        )
    unconverged = sum(result.unconverged for result in results)
    if unconverged:
        sentences.append(
            f"† marks rows with runs ({unconverged} in all) that have not converged to {spec.converged:g}."
        )
    return sentences


def _in_words(result: RowResult, metric: str) -> str:
    name, scale = metric_of(metric)
    return f"test {name} {result.test.text(2, scale)} with {result.weights.text(0)} weights"


def gains_of(spec: Spec, results: Sequence[RowResult], records: Sequence[Mapping]) -> Table | None:
    """Language models word by word: the mean gain in log-probability over the reference, for each seed.

    Its standard error is over the words; the last column is the least gain in standard errors.
    """
    reference = reference_of(spec, results)
    if reference is None:
        return None
    scores = {(r["row"], r[spec.seed_column]): _log_probabilities(r) for r in records if r["pass"] == spec.last_pass}
    seeds = [seed for seed in reference.row.seeds if scores.get((reference.row.name, seed)) is not None]
    rows = []
    for name in [result.row.name for result in results if result is not reference]:
        pairs = [(scores.get((name, seed)), scores[reference.row.name, seed]) for seed in seeds]
        gains = [None if ours is None else _paired(ours, theirs) for ours, theirs in pairs]
        if any(gains):
            cells = ["" if pair is None else f"{pair[0]:+.4f} ± {pair[1]:.4f}" for pair in gains]
            rows.append((name, *cells, f"{min(mean / error for mean, error in filter(None, gains)):+.1f}"))
    header = (f"gain over {reference.row.name}", *(f"{spec.seed_column} {seed}" for seed in seeds))
    return Table((*header, "least, in standard errors"), rows) if rows else None


def _log_probabilities(record: Mapping) -> np.ndarray | None:
    path = Path(record["folder"]) / LOG_PROBABILITIES
    return np.load(path).astype(float) if path.is_file() else None


def _paired(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Mean of the differences and its standard error."""
    difference = ours - theirs
    return float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))


def write(folder: Path, spec: Spec, records: Sequence[Mapping]) -> None:
    """Write table.md, table.csv and figures of the runs that are finished."""
    results = results_of(spec, records)
    write_text(folder / "table.csv", csv_of(spec, records))
    parts = [f"# {spec.title}\n", *_write_curves(folder, spec, records)]
    parts += [markdown(table_of(spec, results)), *(f"{sentence}\n" for sentence in remarks(spec, results))]
    for title, table in (
        ("Mean gain in log-probability of a word", gains_of(spec, results, records)),
        ("Living templates by kind", kinds_of(spec, records)),
    ):
        parts += [] if table is None else [f"## {title}\n", markdown(table)]
    counts = {name: counts_of(records, name, spec) for name in spec.memory}
    counts = {name: features for name, features in counts.items() if features is not None}
    if counts:
        parts.append(f"![living features by epoch](features.png)\n\n{peaks(counts)}\n")
        draw(folder / "features.png", features_figure(counts))
    if results and not spec.curves:
        draw(folder / f"{spec.metric}.png", score_by_size(spec, results))
        parts.append(f"![{metric_of(spec.metric).name} against living weights]({spec.metric}.png)\n")
    write_text(folder / "table.md", "\n".join(parts))


def _write_curves(folder: Path, spec: Spec, records: Sequence[Mapping]) -> list[str]:
    """Write the figures and CSV of the curves; their part of table.md."""
    parts = []

    def mean(row: Row, key: str) -> Mean:
        return Mean.of(r.get(key) for r in records if r["row"] == row.name and r["pass"] == spec.last_pass)

    for curve in spec.curves:
        lines = curves.lines_of(curve, spec, mean)
        if lines:
            curves.write(folder, curve, spec.title, lines)
            varied = any(curve.x in row.varied for row in spec.rows)
            parts += [f"## {curve.name.replace('_', ' ')}\n", markdown(curves.table_of(curve, lines, varied))]
            parts.append(f"![{curve.name}]({curve.name}.png)\n")
    return parts
