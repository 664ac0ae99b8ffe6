"""A grid: one corpus fitted under every combination of some options; the best on dev goes on.

Each combination is fitted from zero, so that it is what a run with these options alone would be. Of those that are not
the best so far a line is kept, and no model.
"""

from __future__ import annotations

import gc
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.report import tables as report
from structsparse.training import certificate
from structsparse.training import stage as recipe
from structsparse.training.scores import gain
from structsparse.training.search import reweighting as rounds
from structsparse.training.stage import Outcome, Stage
from structsparse.training.task import Data, Task, fingerprint

COMMON = ("data", "features", "filter", "task", "cache", "path", "grid", "ckpt_path")  # what all points share
LINE = "line.json"  # of a point that is fitted
SCORE, LOSS = BY = "score", "loss"  # of dev, by which points are ranked

Options = Mapping[str, object]


@dataclass
class Point:
    """One combination of options and how it does."""

    options: Options
    folder: Path  # of its checkpoints
    row: dict[str, object]
    by: str = SCORE

    def rank(self, metric: str) -> tuple[float, int]:
        """Less is better: dev decides, by its score or its loss, of equals the smaller model."""
        decides = -gain(metric, self.row[metric]) if self.by == SCORE else self.row["loss"]
        return decides, self.row["weights"]


def combinations(wanted: Mapping[str, Sequence]) -> list[Options]:
    """All of them, the last option varying first."""
    if not isinstance(wanted, Mapping) or not wanted:
        raise UserError(f"grid={wanted}: expected options and their values, as in grid={{reg.strength: [0.1, 1]}}")
    for key, values in wanted.items():
        if key.partition(".")[0] in COMMON:
            raise UserError(f"grid: {key} is read once for all points; run train.py for each value of it (-m)")
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UserError(f"grid: {key} has {values!r}, expected a list of values")
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise UserError(f"grid: {key} has a value twice in {list(values)}")
    return [dict(zip(wanted, chosen, strict=True)) for chosen in itertools.product(*wanted.values())]


def search(
    stages_at: Callable[[Options], list[Stage]],
    task: Task,
    data: Data,
    wanted: Mapping[str, Sequence],
    folder: Path,
    resume: bool,
    console: Console,
    by: str = SCORE,
) -> tuple[list[Point], Point, list[Outcome]]:
    """All points, the best, and its outcomes with their certificates. `stages_at` makes the stages of the recipe with
    some options, `folder` holds the checkpoints of each point."""
    if by not in BY:
        raise UserError(f"grid_by is {by!r}, expected {' or '.join(BY)}")
    options = combinations(wanted)
    recipes, corpus = [stages_at(some) for some in options], data.describe()
    for stage in (stage for stages in recipes for stage in stages[1:]):
        rounds.foresee(stage, task, data)
    points, best = [], None
    for k, (some, stages) in enumerate(zip(options, recipes, strict=True)):
        here = folder / f"grid-{k:03d}"
        identity = [fingerprint(stage, data.name, corpus) for stage in stages]
        point = Point(some, here, _fitted(stages, task, data, some, here, resume, identity), by)
        points.append(point)
        console.print(_line(point, k, len(options), data.metric), highlight=False, soft_wrap=True)
        if not point.row["weights"] or (best is not None and best.rank(data.metric) <= point.rank(data.metric)):
            _forget(point.folder)
            continue
        if best is not None:
            _forget(best.folder)
        best = point
    if best is None:
        raise UserError(f"grid: every weight is zero at all of {len(points)} points; let it reach weaker penalties")
    return points, best, _again(recipes[points.index(best)], task, data, best.folder)


def _fitted(
    stages: Sequence[Stage],
    task: Task,
    data: Data,
    options: Options,
    folder: Path,
    resume: bool,
    identity: list,
) -> dict[str, object]:
    """The line of a point, which may be known from before an interruption."""
    line = folder / LINE
    if resume and line.is_file():
        known = json.loads(line.read_text())
        if known["identity"] == identity:
            return known["row"]
    outcomes: list[Outcome] = []
    for stage in stages:
        if outcomes and not task.alive(outcomes[-1]):
            break
        quick = replace(stage, proven=False, trainer=partial(stage.trainer, quiet=True))
        outcomes.append(rounds.run(quick, task, data, outcomes[-1] if outcomes else None, folder / stage.name, resume))
    row = _row(options, outcomes)
    outcomes.clear()
    gc.collect()  # trainer and module hold each other: the tables of several points would lie in memory at a time
    write_text(line, json.dumps({"identity": identity, "row": row}))
    return row


def _again(stages: Sequence[Stage], task: Task, data: Data, folder: Path) -> list[Outcome]:
    """What is fitted already, with what a run says of itself."""
    outcomes: list[Outcome] = []
    for stage in stages:
        before = recipe.refuse_dead(task, outcomes[-1]) if outcomes else None
        outcomes.append(rounds.run(stage, task, data, before, folder / stage.name, True))
    return outcomes


def _forget(folder: Path) -> None:
    """All of a point but its line."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


@torch.no_grad()
def _row(options: Options, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """One line of the table. Metric and weights are those of the last stage, groups those of the first one."""
    first, last = outcomes[0], outcomes[-1]
    named, selected = dict(last.module.named_parameters()), dict(first.module.named_parameters())
    groups = {name: p.groups for name, p in first.penalties.items() if p.groups is not None}
    metric = first.data.metric
    return {
        **options,
        metric: last.module.evaluate(last.data.batches("dev", 256)).result()[metric],
        "loss": certificate.mean_loss(last.module, last.data.whole("dev")),
        "weights": sum(int((named[name] != 0).sum()) for name in last.penalties),
        "groups": sum(int(g.alive(selected[name]).sum()) for name, g in groups.items()) if groups else None,
        "objective": last.figures["objective"],
        "gap": last.figures.get("gap"),
        "seconds": sum(outcome.figures["seconds_fit"] for outcome in outcomes),
    }


def _line(point: Point, k: int, count: int, metric: str) -> str:
    row = point.row
    options = "  ".join(f"{key.removeprefix('reg.')} {value}" for key, value in point.options.items())
    groups = "" if row["groups"] is None else f"  groups {row['groups']:,}"
    told = f"weights {row['weights']:,}  dev {metric} {row[metric]:.4f}  loss {row['loss']:.4f}"
    return f"grid {k + 1}/{count}  {options}{groups}  {told}"


def write(folder: Path, points: Sequence[Point], best: Point) -> None:
    """grid.tsv, grid.md"""
    rows = [(*point.row.values(), "yes" if point is best else "") for point in points]
    table = report.Table((*points[0].row, "best"), [tuple("" if v is None else v for v in row) for row in rows])
    write_text(folder / "grid.tsv", report.tsv(table))
    write_text(folder / "grid.md", report.markdown(table))
