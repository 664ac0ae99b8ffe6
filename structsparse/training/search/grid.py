"""A grid search: one corpus is fitted with every combination of some options; the model that is best on dev is kept.

Each combination is fitted from zero weights, with the same result as in a run of its own. Of all models but the best,
only a table line is kept."""

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
from structsparse.training import certificate, fit
from structsparse.training.data import Data
from structsparse.training.search import reweighting
from structsparse.training.search.choose import BY, SCORE, rank, write_rows
from structsparse.training.stage import Stage, StageResult
from structsparse.training.task import Task

COMMON = ("data", "features", "filter", "task", "cache", "path", "grid", "ckpt_path")  # options that no grid may vary
LINE = "line.json"  # file with the table line of a fitted grid point

Options = Mapping[str, object]


@dataclass
class Point:
    """A point of a grid search: a combination of options, the folder of its checkpoints, and its table line."""

    options: Options
    folder: Path
    row: dict[str, object]


def combinations(requested: Mapping[str, Sequence]) -> list[Options]:
    """Grid search: all combinations of the requested option values; the last option varies fastest."""
    if not isinstance(requested, Mapping) or not requested:
        raise UserError(f"grid={requested}: expected options and their values, as in grid={{reg.strength: [0.1, 1]}}")
    for key, values in requested.items():
        if key.partition(".")[0] in COMMON:
            raise UserError(f"grid: {key} is read once for all points; run train.py for each value of it (-m)")
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UserError(f"grid: {key} has {values!r}, expected a list of values")
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise UserError(f"grid: {key} has a value twice in {list(values)}")
    return [dict(zip(requested, chosen, strict=True)) for chosen in itertools.product(*requested.values())]


def search(
    stages_at: Callable[[Options], list[Stage]],
    task: Task,
    data: Data,
    requested: Mapping[str, Sequence],
    folder: Path,
    resume: bool,
    console: Console,
    by: str = SCORE,
) -> tuple[list[Point], Point, list[StageResult]]:
    """Grid search: fit all combinations of options; returns all points, the best point and its results.

    The results have certificates, which bound how far the weights are from an optimum. `stages_at` makes the stages of
    the recipe from a combination of options. `folder` holds the checkpoints of all points. `by` says which figure on
    dev ranks the points: `score` or `loss`."""
    if by not in BY:
        raise UserError(f"grid_by is {by!r}, expected {' or '.join(BY)}")
    recipes = [(options, stages_at(options)) for options in combinations(requested)]
    for stage in (stage for _, stages in recipes for stage in stages[1:]):
        reweighting.validate(stage, task, data)
    corpus, points, best = data.describe(), [], None
    for k, (options, stages) in enumerate(recipes):
        here = folder / f"grid-{k:03d}"
        identity = [stage.fingerprint(data.name, corpus) for stage in stages]
        row = _known_row(here, identity) if resume else None
        point = Point(options, here, row or _fitted_row(stages, task, data, options, here, resume, identity))
        points.append(point)
        console.print(_line(point, k, len(recipes), data.metric), highlight=False, soft_wrap=True)
        worse = best is not None and rank(best.row, data.metric, by) <= rank(point.row, data.metric, by)
        if worse or not point.row["weights"]:
            _delete_checkpoints(point)
            continue
        if best is not None:
            _delete_checkpoints(best)
        best = point
    if best is None:
        raise UserError(f"grid: every weight is zero at all of {len(points)} points; let it reach weaker penalties")
    return points, best, _certified(recipes[points.index(best)][1], task, data, best.folder)


def _known_row(folder: Path, identity: list[str]) -> dict[str, object] | None:
    """Grid search: the table line of a point that was fitted before the run was interrupted.

    `identity` holds the fingerprints of the stages. The result is None if no line with these fingerprints was saved."""
    line = folder / LINE
    known = json.loads(line.read_text()) if line.is_file() else {}
    return known["row"] if known.get("identity") == identity else None


def _fitted_row(
    stages: Sequence[Stage],
    task: Task,
    data: Data,
    options: Options,
    folder: Path,
    resume: bool,
    identity: list[str],
) -> dict[str, object]:
    """Grid search: fit a point; returns the table line of the point, which is also written to `folder`."""
    results: list[StageResult] = []
    for stage in stages:
        if results and not task.alive(results[-1]):
            break
        quick = replace(stage, proven=False, trainer=partial(stage.trainer, quiet=True))
        here = folder / stage.name
        results.append(reweighting.run(quick, task, data, results[-1] if results else None, here, resume))
    row = _row(options, results)
    results.clear()
    gc.collect()  # frees the weights: trainer and module refer to each other
    write_text(folder / LINE, json.dumps({"identity": identity, "row": row}))
    return row


def _certified(stages: Sequence[Stage], task: Task, data: Data, folder: Path) -> list[StageResult]:
    """Grid search: load the stages of a fitted grid point from checkpoints, and compute their certificates.

    A certificate holds figures that bound how far the weights of a stage are from an optimum."""
    results: list[StageResult] = []
    for stage in stages:
        before = fit.refuse_dead(task, results[-1]) if results else None
        results.append(reweighting.run(stage, task, data, before, folder / stage.name, True))
    return results


def _delete_checkpoints(point: Point) -> None:
    """Grid search: delete the checkpoints of a point; the file with the table line of the point stays."""
    for path in point.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


@torch.no_grad()
def _row(options: Options, results: Sequence[StageResult]) -> dict[str, object]:
    """Grid search: the table line of a point.

    Score, loss and weights are figures of the last stage. The number of living groups is that of the first stage."""
    first, last = results[0], results[-1]
    metric, groups = first.data.metric, first.group_count()
    return {
        **options,
        metric: last.score("dev")[metric],
        "loss": certificate.mean_loss(last.module, last.data.whole("dev")),
        "weights": last.nonzero_weights(),
        "groups": None if groups is None else groups.groups_alive,
        "objective": last.figures.certificate.objective,
        "gap": last.figures.record.proof.gap,
        "seconds": sum(result.figures.record.seconds for result in results),
    }


def _line(point: Point, k: int, count: int, metric: str) -> str:
    """Grid search: the console line of a point; `k` is the index (from 0) of the point among `count` points."""
    row = point.row
    options = "  ".join(f"{key.removeprefix('reg.')} {value}" for key, value in point.options.items())
    groups = "" if row["groups"] is None else f"  groups {row['groups']:,}"
    figures = f"weights {row['weights']:,}  dev {metric} {row[metric]:.4f}  loss {row['loss']:.4f}"
    return f"grid {k + 1}/{count}  {options}{groups}  {figures}"


def write(folder: Path, points: Sequence[Point], best: Point) -> None:
    """Grid search: write the table of all points to grid.tsv and grid.md."""
    write_rows(folder / "grid", [point.row for point in points], best.row)
