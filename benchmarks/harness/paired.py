"""Table of rows that are compared run by run: a column for each place (a task, say), and paired differences.

The score of a row at a place is the mean over its seeds (splits, say); `mean` is that of the places, seed by seed. Two
rows are compared by the differences of the runs that both have, over places and seeds; a positive difference is better.
Standard errors are over seeds within a place, and over places x seeds for all differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import figures
from benchmarks.harness.figures import draw
from benchmarks.harness.living_templates import kinds_of
from benchmarks.harness.records import converged, csv_of, metric_of
from benchmarks.harness.spec import Row, Spec, short
from structsparse.base.files import write_text
from structsparse.report import bootstrap
from structsparse.report.tables import Mean, Table, markdown, without_empty_columns
from structsparse.training.scores import gain

CHOICE = "what dev chooses"  # a row made of the runs of others


@dataclass(frozen=True)
class PairedResults:
    """The runs of all rows in the last pass."""

    title: str
    note: str
    metric: str
    rows: tuple[Row, ...]
    places: tuple[str, ...]
    against: tuple[str, ...]
    records: Mapping[str, Mapping[tuple, Mapping]]  # row -> (place, seed) -> record of the run
    bound: float | None = None  # of convergence

    def scores(self, row: str, key: str | None = None) -> dict[tuple, float]:
        """(place, seed) -> the metric, or another column."""
        values = ((run, record.get(key or self.metric)) for run, record in self.records.get(row, {}).items())
        return {run: float(value) for run, value in values if value is not None}

    @property
    def shown_places(self) -> tuple[str, ...]:
        """The places that have a column of their own; none if there is only one."""
        return self.places if len(self.places) > 1 else ()


def results_of(spec: Spec, records: Sequence[Mapping]) -> PairedResults:
    """The records of a table by row, place and seed, and what dev chooses among its rows."""
    keys, metric = [*map(short, spec.across)], spec.metric

    def run(record: Mapping) -> tuple:
        return " ".join(str(record[key]) for key in keys), record[spec.seed_column]

    devs = {(r["row"], run(r)): r.get(f"dev_{metric}") for r in records if r["pass"] == spec.first_pass}
    by_row: dict[str, dict] = {}
    for record in records:
        if record["pass"] == spec.last_pass:
            dev = {f"dev_{metric}": devs.get((record["row"], run(record)))}
            by_row.setdefault(record["row"], {})[run(record)] = {**record, **dev}
    places = tuple(" ".join(map(str, place)) for place in spec.places)
    return with_choice(
        PairedResults(spec.title, spec.note, metric, spec.rows, places, spec.against, by_row, spec.converged)
    )


def with_choice(results: PairedResults) -> PairedResults:
    """The results with one more row: in each run the row that dev chooses, the best, of equal ones the smallest.

    Runs that one of the rows to choose from has not finished are left out.
    """
    names = [row.name for row in results.rows if row.selects]
    if len(names) < 2:
        return results
    dev, picked = f"dev_{results.metric}", {}
    devs = {name: results.scores(name, dev) for name in names}
    for run in {run: None for name in names for run in devs[name]}:
        candidates = [name for name in names if any(place == run[0] for place, _ in devs[name])]
        if all(run in devs[name] for name in candidates):
            records = [results.records[name][run] for name in candidates]
            picked[run] = max(records, key=lambda r: (gain(results.metric, r[dev]), -(r.get("nonzero") or 0)))
    rows = (*results.rows, Row(CHOICE, CHOICE, (), (), entry=CHOICE))
    return replace(results, rows=rows, records={**results.records, CHOICE: picked})


def merged(tables: Sequence[PairedResults]) -> PairedResults:
    """All rows at all places. A run of two tables is taken from the first one; dev chooses anew among all rows."""
    rows: dict[str, Row] = {}
    records: dict[str, dict] = {}
    for results in tables:
        for row in results.rows:
            if row.name != CHOICE:
                first = rows.setdefault(row.name, row)
                controls = tuple(dict.fromkeys((*first.against, *row.against)))
                paper = {**row.paper, **first.paper}
                rows[row.name] = replace(first, against=controls, paper=paper, selects=first.selects or row.selects)
                records[row.name] = {**results.records.get(row.name, {}), **records.get(row.name, {})}
    titles = dict.fromkeys(results.title for results in tables)
    notes = dict.fromkeys(results.note for results in tables if results.note)
    places = tuple(dict.fromkeys(place for results in tables for place in results.places))
    against = tuple(dict.fromkeys(name for results in tables for name in results.against))
    bound = max((results.bound for results in tables if results.bound is not None), default=None)
    title, note = "; ".join(titles), " ".join(notes)
    return with_choice(
        PairedResults(title, note, tables[0].metric, tuple(rows.values()), places, against, records, bound)
    )


# --- tables


def scores_table(results: PairedResults) -> Table:
    """A line for each row, and one for its published figures. A dagger marks rows that have not converged."""
    name, scale = metric_of(results.metric)
    places, lines = results.shown_places, []
    header = ("row", *places, "mean" if places else f"test {name}", "dev", "weights", "groups", "CPU s", "runs")
    for row in results.rows:
        scores = results.scores(row.name)
        if not scores:
            continue
        mark = " †" if any(not converged(r, results.bound) for r in results.records[row.name].values()) else ""
        cells = [over_seeds(scores, place).text(2, scale) for place in places]
        cells += [mean_over_places(scores, results.places).text(2, scale) + mark]
        cells += [mean_over_places(results.scores(row.name, f"dev_{results.metric}"), results.places).text(2, scale)]
        sizes = (results.scores(row.name, key).values() for key in ("nonzero", "groups_alive", "seconds_cpu"))
        cells += [Mean.of(values)._replace(error=np.nan).text(0) for values in sizes]
        lines.append((row.name, *cells, str(len(scores))))
        if row.paper:
            lines.append(_published(row, results, scale, len(header)))
    return without_empty_columns(Table(header, lines))


def _published(row: Row, results: PairedResults, scale: float, columns: int) -> tuple[str, ...]:
    """The published figures of a row."""
    values = [row.paper.get(place) for place in results.places]
    mean = f"{scale * np.mean(values):.2f}" if None not in values else ""
    cells = ["" if value is None else f"{scale * value:.2f}" for value in values] if results.shown_places else []
    return (f"{row.name}, published", *cells, mean, *[""] * (columns - len(cells) - 2))


def over_seeds(scores: Mapping[tuple, float], place: str) -> Mean:
    """Mean over the seeds of a place."""
    return Mean.of(value for (at, _), value in scores.items() if at == place)


def mean_over_places(scores: Mapping[tuple, float], places: Sequence[str]) -> Mean:
    """Mean over the places, with its standard error over the seeds that have all of them."""
    seeds = dict.fromkeys(seed for _, seed in scores)
    complete = [seed for seed in seeds if all((place, seed) in scores for place in places)]
    return Mean.of(float(np.mean([scores[place, seed] for place in places])) for seed in complete)


class Difference(NamedTuple):
    """How much better a row is than another one, in the runs that both have."""

    row: str
    other: str
    places: tuple[Mean, ...]
    all: Mean
    better: int  # runs
    worse: int
    is_control: bool  # the other row is a control of this row

    @property
    def survives(self) -> bool:
        """Whether it is better by more than twice its standard error."""
        return self.all.mean > 2 * self.all.error


def differences(results: PairedResults) -> list[Difference]:
    """Each row compared with its controls, then with the rows that all are paired with."""
    pairs = []
    for row in results.rows:
        for other in dict.fromkeys((*row.against, *results.against)):
            pair = difference(results, row.name, other, other in row.against)
            if other != row.name and pair.all.count:
                pairs.append(pair)
    return pairs


def difference(results: PairedResults, row: str, other: str, is_control: bool = False) -> Difference:
    """A row compared with another one."""
    ours, theirs, metric = results.scores(row), results.scores(other), results.metric
    gains = {run: gain(metric, ours[run]) - gain(metric, theirs[run]) for run in ours if run in theirs}
    places = tuple(over_seeds(gains, place) for place in results.places)
    better, worse = (sum(sign * value > 0 for value in gains.values()) for sign in (1, -1))
    return Difference(row, other, places, Mean.of(gains.values()), better, worse, is_control)


def differences_table(results: PairedResults, pairs: Sequence[Difference]) -> Table:
    """A line for each paired difference."""
    scale, rows = metric_of(results.metric).scale, []
    for pair in pairs:
        cells = [mean.signed(2, scale) for mean in pair.places] if results.shown_places else []
        varies = pair.all.error > 1e-9 * abs(pair.all.mean)  # by more than rounding errors of equal differences
        errors = f"{pair.all.mean / pair.all.error:+.1f}" if varies else ""
        wins = f"{pair.better} of {pair.all.count}"
        rows.append((pair.row, pair.other, *cells, pair.all.signed(2, scale), errors, wins))
    return Table(("row", "less", *results.shown_places, "all", "in standard errors", "better in"), rows)


def remarks(results: PairedResults, pairs: Sequence[Difference]) -> list[str]:
    """Sentences below the table: which gains survive their controls, and what dev has chosen."""
    sentences, scale = [], metric_of(results.metric).scale
    for pair in pairs:
        if pair.is_control and pair.all.count > 1:
            verdict = "survives" if pair.survives else "does not survive"
            sentences.append(
                f"The gain of {pair.row} {verdict} its control {pair.other}: {pair.all.signed(2, scale)}, better in "
                f"{pair.better} and worse in {pair.worse} of {pair.all.count} runs."
            )
    picked = [record["row"] for record in results.records.get(CHOICE, {}).values()]
    if picked:
        names = dict.fromkeys(sorted(picked, key=picked.count)[::-1])
        counts = ", ".join(f"{name} {picked.count(name)}" for name in names)
        sentences.append(f"Of the rows to choose from, dev chooses in {len(picked)} runs: {counts}.")
    if any(not converged(r, results.bound) for runs in results.records.values() for r in runs.values()):
        sentences.append(f"† marks rows with runs that have not converged to {results.bound:g}.")
    return sentences


# --- files


def write(folder: Path, spec: Spec, records: Sequence[Mapping]) -> None:
    """Write table.md, table.csv and figures of the runs that are finished."""
    write_text(folder / "table.csv", csv_of(spec, records))
    _write(folder, results_of(spec, records), kinds_of(spec, records))


def write_together(folder: Path, done: Sequence[tuple[Spec, Sequence[Mapping]]]) -> None:
    """Write the rows and places of several tables as one, if their rows are paired and their metrics equal."""
    tables = [results_of(spec, records) for spec, records in done if spec.paired]
    if len(tables) > 1 and len({results.metric for results in tables}) == 1:
        _write(folder, merged(tables))


def _write(folder: Path, results: PairedResults, kinds: Table | None = None) -> None:
    pairs, (name, scale) = differences(results), metric_of(results.metric)
    parts = [f"# {results.title}\n", *([f"{results.note}\n"] if results.note else []), markdown(scores_table(results))]
    if any(row.varied for row in results.rows):
        parts += [f"![{name} against living weights](sizes.png)\n"]
        draw(folder / "sizes.png", figures.sizes(results))
    if pairs:
        parts += ["## Paired differences\n", markdown(differences_table(results, pairs))]
        parts += ["![paired differences](differences.png)\n"]
        draw(folder / "differences.png", figures.differences(results, pairs))
    parts += [f"{sentence}\n" for sentence in remarks(results, pairs)]
    resampled = _bootstrap(results, pairs, scale)
    if resampled is not None:
        parts += ["## Paired bootstrap\n", *resampled]
    parts += [] if kinds is None else ["## Living templates by kind\n", markdown(kinds)]
    write_text(folder / "table.md", "\n".join(parts))


def _bootstrap(results: PairedResults, pairs: Sequence[Difference], scale: float) -> list[str] | None:
    """The paired bootstrap over items with its explanation; None where no run has scores of items."""
    folders = {row: {run: Path(r["folder"]) for run, r in runs.items()} for row, runs in results.records.items()}
    table = bootstrap.bootstrap_table(folders, [(p.row, p.other) for p in pairs], results.places, scale)
    if table is None:
        return None
    text = (
        f"Items resampled {bootstrap.DRAWS:,} times, the same ones for both rows; scores are means over seeds. Each "
        "cell: the difference, its standard error, and the share of samples in which it is above zero.\n"
    )
    return [text, markdown(table)]
