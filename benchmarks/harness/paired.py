"""Rows compared run by run: a column for each place (a task, say), and paired differences with their standard errors.

The score of a row at a place is the mean over its seeds (splits, say), `mean` that of the places, seed by seed. Two
rows are compared by the differences of the runs that both have, over places and seeds; what is positive is better.
Standard errors are over seeds within a place, over places x seeds for all differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import figures as paired_figures
from benchmarks.harness.living_templates import kinds_of
from benchmarks.harness.spec import Experiment, Row, short
from benchmarks.harness.tables import SCORES, Figures, converged, csv_of, draw
from structsparse.base.files import write_text
from structsparse.report import bootstrap
from structsparse.report.tables import Table, markdown
from structsparse.training.scores import gain

CHOICE = "what dev chooses"  # a row made of others


@dataclass(frozen=True)
class Board:
    """The last runs of all rows."""

    title: str
    note: str
    metric: str
    rows: tuple[Row, ...]
    places: tuple[str, ...]
    against: tuple[str, ...]
    found: Mapping[str, Mapping[tuple, Mapping]]  # row -> (place, seed) -> what the run has found
    bound: float | None = None  # of convergence

    @property
    def score(self) -> tuple[str, float]:
        """What the metric is called, and what it is multiplied by."""
        return SCORES.get(self.metric, (self.metric, 1.0))

    def scores(self, row: str, key: str | None = None) -> dict[tuple, float]:
        """(place, seed) -> the metric, or another column."""
        found = ((run, record.get(key or self.metric)) for run, record in self.found.get(row, {}).items())
        return {run: float(value) for run, value in found if value is not None}


def board_of(experiment: Experiment, records: Sequence[Mapping]) -> Board:
    first, *_, last = [*experiment.passes, *experiment.passes]
    keys, metric = [*map(short, experiment.across)], experiment.metric

    def run(record: Mapping) -> tuple:
        return " ".join(str(record[key]) for key in keys), record[experiment.repeated]

    devs = {(r["row"], run(r)): r.get(f"dev_{metric}") for r in records if r["pass"] == first}
    found: dict[str, dict] = {}
    for record in records:
        if record["pass"] == last:
            dev = {f"dev_{metric}": devs.get((record["row"], run(record)))}
            found.setdefault(record["row"], {})[run(record)] = {**record, **dev}
    places = tuple(" ".join(map(str, place)) for place in experiment.places)
    told = experiment.title, experiment.note, metric, experiment.rows, places, experiment.against
    return with_choice(Board(*told, found, experiment.converged))


def with_choice(board: Board) -> Board:
    """With what dev chooses in each run among the rows to choose from: the best, of equal ones the smallest. Runs that
    one of them has not finished are left out."""
    names = [row.name for row in board.rows if row.selects]
    if len(names) < 2:
        return board
    dev, picked = f"dev_{board.metric}", {}
    devs = {name: board.scores(name, dev) for name in names}
    for run in {run: None for name in names for run in devs[name]}:
        some = [name for name in names if any(place == run[0] for place, _ in devs[name])]
        if all(run in devs[name] for name in some):
            records = [board.found[name][run] for name in some]
            picked[run] = max(records, key=lambda r: (gain(board.metric, r[dev]), -(r.get("nonzero") or 0)))
    rows = (*board.rows, Row(CHOICE, CHOICE, (), (), entry=CHOICE))
    return replace(board, rows=rows, found={**board.found, CHOICE: picked})


def merged(boards: Sequence[Board]) -> Board:
    """All rows at all places. What two of them have run is of the first one; dev chooses anew among all."""
    rows: dict[str, Row] = {}
    found: dict[str, dict] = {}
    for board in boards:
        for row in board.rows:
            if row.name != CHOICE:
                known = rows.setdefault(row.name, row)
                controls = tuple(dict.fromkeys((*known.against, *row.against)))
                paper = {**row.paper, **known.paper}
                rows[row.name] = replace(known, against=controls, paper=paper, selects=known.selects or row.selects)
                found[row.name] = {**board.found.get(row.name, {}), **found.get(row.name, {})}
    titles, notes, places, against = (
        dict.fromkeys(part)
        for part in (
            [board.title for board in boards],
            [board.note for board in boards if board.note],
            [place for board in boards for place in board.places],
            [name for board in boards for name in board.against],
        )
    )
    bounds = [board.bound for board in boards if board.bound is not None]
    told = "; ".join(titles), " ".join(notes), boards[0].metric, tuple(rows.values()), tuple(places), tuple(against)
    return with_choice(Board(*told, found, max(bounds, default=None)))


# --- tables


def scores_table(board: Board) -> Table:
    """A line for each row, and one for what was published. A dagger marks what has not converged."""
    scale, lines = board.score[1], []
    places = list(board.places) if len(board.places) > 1 else []
    header = (
        "row",
        *places,
        "mean" if places else f"test {board.score[0]}",
        "dev",
        "weights",
        "groups",
        "CPU s",
        "runs",
    )
    for row in board.rows:
        own = board.scores(row.name)
        if not own:
            continue
        loose = " †" if any(not converged(r, board.bound) for r in board.found[row.name].values()) else ""
        cells = [over_seeds(own, place).shown(2, scale) for place in places]
        cells += [mean_of(own, board.places).shown(2, scale) + loose]
        cells += [mean_of(board.scores(row.name, f"dev_{board.metric}"), board.places).shown(2, scale)]
        sizes = ("nonzero", "groups_alive", "seconds_cpu")
        cells += [Figures.of(board.scores(row.name, key).values())._replace(error=np.nan).shown(0) for key in sizes]
        lines.append((row.name, *cells, str(len(own))))
        if row.paper:
            said = [row.paper.get(place) for place in board.places]
            mean = f"{scale * np.mean(said):.2f}" if None not in said else ""
            said = ["" if value is None else f"{scale * value:.2f}" for value in said] if places else []
            lines.append((f"{row.name}, published", *said, mean, *[""] * (len(header) - len(said) - 2)))
    kept = [k for k in range(len(header)) if k == 0 or any(line[k] for line in lines)]
    return Table(tuple(header[k] for k in kept), [tuple(line[k] for k in kept) for line in lines])


def over_seeds(scores: Mapping[tuple, float], place: str) -> Figures:
    return Figures.of(value for (where, _), value in scores.items() if where == place)


def mean_of(scores: Mapping[tuple, float], places: Sequence[str]) -> Figures:
    """Mean over the places, with its standard error over the seeds that have all of them."""
    seeds = dict.fromkeys(seed for _, seed in scores)
    whole = [seed for seed in seeds if all((place, seed) in scores for place in places)]
    return Figures.of(float(np.mean([scores[place, seed] for place in places])) for seed in whole)


class Difference(NamedTuple):
    """How much better a row is than another one."""

    row: str
    other: str
    places: tuple[Figures, ...]
    all: Figures
    better: int
    worse: int
    own: bool  # the other one is a control of the row's own

    @property
    def survives(self) -> bool:
        """By more than twice its standard error."""
        return self.all.mean > 2 * self.all.error


def differences(board: Board) -> list[Difference]:
    """Of all rows to their own controls, then to the rows that all are paired with."""
    found = []
    for row in board.rows:
        for other in dict.fromkeys((*row.against, *board.against)):
            pair = difference(board, row.name, other, other in row.against)
            if other != row.name and pair.all.count:
                found.append(pair)
    return found


def difference(board: Board, row: str, other: str, own: bool = False) -> Difference:
    mine, theirs = board.scores(row), board.scores(other)
    pairs = {
        run: gain(board.metric, mine[run]) - gain(board.metric, theirs[run]) for run in mine if run in theirs
    }  # better is positive
    places = tuple(over_seeds(pairs, place) for place in board.places)
    better, worse = (sum(sign * value > 0 for value in pairs.values()) for sign in (1, -1))
    return Difference(row, other, places, Figures.of(pairs.values()), better, worse, own)


def differences_table(board: Board, found: Sequence[Difference]) -> Table:
    scale, places = board.score[1], list(board.places) if len(board.places) > 1 else []
    rows = []
    for pair in found:
        cells = [_signed(figures, scale) for figures in pair.places] if places else []
        some = pair.all.error > 1e-9 * abs(pair.all.mean)  # more than what rounding leaves of equal differences
        errors = f"{pair.all.mean / pair.all.error:+.1f}" if some else ""
        rows.append(
            (pair.row, pair.other, *cells, _signed(pair.all, scale), errors, f"{pair.better} of {pair.all.count}")
        )
    return Table(("row", "less", *places, "all", "in standard errors", "better in"), rows)


def _signed(figures: Figures, scale: float) -> str:
    """+1.18 ± 0.27"""
    shown = figures.shown(2, scale)
    return shown if not shown or shown.startswith("-") else f"+{shown}"


def remarks(board: Board, found: Sequence[Difference]) -> list[str]:
    """What survives its controls and what does not, a sentence each; then what dev has chosen."""
    said, scale = [], board.score[1]
    for pair in found:
        if pair.own and pair.all.count > 1:
            verdict = "survives" if pair.survives else "does not survive"
            said.append(
                f"What {pair.row} brings {verdict} its control {pair.other}: {_signed(pair.all, scale)}, better in "
                f"{pair.better} and worse in {pair.worse} of {pair.all.count} runs."
            )
    picked = [record["row"] for record in board.found.get(CHOICE, {}).values()]
    if picked:
        counts = ", ".join(
            f"{name} {picked.count(name)}" for name in dict.fromkeys(sorted(picked, key=picked.count)[::-1])
        )
        said.append(f"Among the rows to choose from, dev chooses in {len(picked)} runs: {counts}.")
    if any(not converged(r, board.bound) for own in board.found.values() for r in own.values()):
        said.append(f"† marks rows with runs that have not converged to {board.bound:g}.")
    return said


# --- files


def write(folder: Path, experiment: Experiment, records: Sequence[Mapping]) -> None:
    """table.md, table.csv and figures of whatever is finished."""
    write_text(folder / "table.csv", csv_of(experiment, records))
    _write(folder, board_of(experiment, records), kinds_of(experiment, records))


def write_together(folder: Path, done: Sequence[tuple[Experiment, Sequence[Mapping]]]) -> None:
    """The rows and places of several experiments in one table."""
    boards = [board_of(experiment, records) for experiment, records in done if experiment.paired]
    if len(boards) > 1 and len({board.metric for board in boards}) == 1:
        _write(folder, merged(boards))


def _write(folder: Path, board: Board, kinds: Table | None = None) -> None:
    found = differences(board)
    parts = [f"# {board.title}\n", *([f"{board.note}\n"] if board.note else []), markdown(scores_table(board))]
    if any(row.varied for row in board.rows):
        parts += [f"![{board.score[0]} by living weights](sizes.png)\n"]
        draw(folder / "sizes.png", paired_figures.sizes(board))
    if found:
        parts += ["## Paired differences\n", markdown(differences_table(board, found))]
        parts += ["![paired differences](differences.png)\n"]
        draw(folder / "differences.png", paired_figures.differences(board, found))
    parts += [f"{said}\n" for said in remarks(board, found)]
    folders = {row: {run: Path(record["folder"]) for run, record in runs.items()} for row, runs in board.found.items()}
    pairs = [(pair.row, pair.other) for pair in found]
    drawn = bootstrap.bootstrap_table(folders, pairs, board.places, board.score[1])
    if drawn is not None:
        told = f"Items drawn anew {bootstrap.DRAWS:,} times, the same ones for both rows, of each the mean over seeds: "
        told += "the difference, its standard error, and the share of draws in which it is above zero.\n"
        parts += ["## Paired bootstrap\n", told, markdown(drawn)]
    parts += [] if kinds is None else ["## Living templates by kind\n", markdown(kinds)]
    write_text(folder / "table.md", "\n".join(parts))
