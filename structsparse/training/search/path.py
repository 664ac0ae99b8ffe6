"""A path: the same problem at falling strengths, each solved from the weights of the one before.

Groups that the gradient at the last strength tells to stay dead at the next one are left out beforehand (the
sequential strong rule), and looked at again afterwards: any that turn out to be wanted come back, and the strength is
solved again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as Folder

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.base.files import atomic_file, write_text
from structsparse.groups import Partition
from structsparse.penalties import L0, ElasticNet, GroupMCP, LogSum, Nonnegative, Penalty
from structsparse.report import tables as report
from structsparse.tasks.tagging import data as taggers
from structsparse.training import certificate
from structsparse.training import stage as recipe
from structsparse.training.scores import gain
from structsparse.training.search import reweighting as rounds
from structsparse.training.stage import Outcome, Stage
from structsparse.training.task import Data, Task
from structsparse.weights.notes import notes_of
from structsparse.weights.observed_pairs import entries_of, pairs_of, rows_of

ROUNDS = 5  # of bringing groups back; one is usual


@dataclass
class Point:
    """One strength: what was fitted, and how it does on dev."""

    share: float  # of the critical strength
    outcomes: list[Outcome]  # of all stages; only the first one where nothing lives
    row: dict[str, float | int | None]


def shares(wanted: int | Sequence[float], last: float) -> list[float]:
    """Strengths as shares of the critical one, falling: as given, or so many in equal ratios down to `last`."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted < 1:
            raise UserError(f"path={wanted}: expected a number of strengths, at least 1, or a list of them")
        if not 0 < last < 1:
            raise UserError(f"path={wanted} goes down to reg.strength={last}: expected a share of the critical one")
        return [last ** (k / wanted) for k in range(1, wanted + 1)]
    try:
        found = [float(share) for share in wanted]
    except (TypeError, ValueError):
        found = []
    if not found or any(not 0 < share < 1 for share in found) or sorted(set(found), reverse=True) != found:
        raise UserError(f"path={wanted}: expected a number of strengths, or falling shares of the critical one")
    return found


def walk(
    stages_at: Callable[[float, Mapping[str, float] | None], list[Stage]],
    task: Task,
    data: Data,
    wanted: Sequence[float],
    folder: Folder,
    resume: bool,
    console: Console,
) -> tuple[list[Point], Point]:
    """All points, and the one that is best on dev; of equals the one with the fewest weights. `stages_at` makes the
    stages of the recipe for a strength and for those of further terms (all absolute), `folder` holds the checkpoints of
    each point."""
    start = stages_at(0.0, None)[0]
    if start.budget is not None:
        raise UserError("path and reg.budget both say how many groups live; choose one of them")
    state = _State(task, recipe.probe(start, task, data))
    critical = state.outcome.figures["critical_strength"]
    if critical is None and any(notes_of(p).grows is not None for p in state.outcome.module.parameters()):
        raise UserError("path: the critical strength of a growing table is not known; take model=sparse")
    if critical is None:
        raise UserError("path: no strength of this penalty makes every weight zero, so there is none to begin at")
    points = []
    for k, share in enumerate(wanted):
        first, *others = stages_at(share * critical, state.outcome.figures["terms"])
        here = folder / f"path-{k:02d}"
        outcomes = [state.advance(first, share * critical, here, resume)]
        for stage in others if task.alive(outcomes[0]) else ():
            outcomes.append(rounds.run(stage, task, data, outcomes[-1], here / stage.name, resume))
        points.append(Point(share, outcomes, _row(task, share, outcomes, state.kept)))
        console.print(_line(points[-1], k, len(wanted), data.metric), highlight=False, soft_wrap=True)
    living = [point for point in points if point.row["weights"]]
    if not living:
        raise UserError(f"path: every group is dead at all of {len(wanted)} strengths; go further down")
    return points, min(living, key=lambda point: (-gain(data.metric, point.row[data.metric]), point.row["weights"]))


class _State:
    """All weights, and the gradient there, on the whole data; between two strengths."""

    def __init__(self, task: Task, start: Outcome) -> None:
        self.task = task
        self.outcome, self.strength = start, start.figures["critical_strength"]
        self.gradients = start.at_zero
        index = getattr(start.data, "index", None)  # without one, no part of the data can be left out
        self.count = 1 if index is None else len(index)
        self.table = None if index is None else taggers.table_name(start.penalties)
        self.kept: int | None = 0

    def advance(self, stage: Stage, strength: float, folder: Folder, resume: bool) -> Outcome:
        """Solve at a lower strength, on the rows that may live there."""
        rows = self._may_live(2 * strength - self.strength)
        for again in range(ROUNDS):
            name = stage.name if again == 0 else f"{stage.name}-{again + 1}"
            found = self._solve(stage, rows, folder / name, resume)
            self._take(found, rows)
            missed = self._rows(lambda name, p: certificate.violated(p, self._weights()[name], self.gradients[name]))
            missed &= ~rows
            if not missed.any():
                break
            rows |= missed
        self.strength, self.kept = strength, int(rows.sum()) if hasattr(found.data, "index") else None
        return found

    def _solve(self, stage: Stage, rows: np.ndarray, folder: Folder, resume: bool) -> Outcome:
        data = self.outcome.data
        table = self.table
        start = {name: value.clone() for name, value in self._weights().items()}
        if not rows.all():
            data = data.keep(rows)
            start[table] = start[table][self._entries(rows)]
        found = recipe.run(stage, self.task, data, None, folder, resume, start)
        for name, penalty in found.penalties.items():
            self.outcome.penalties[name].strength = float(penalty.strength)
        whole = {"critical_strength": self.outcome.figures["critical_strength"]}  # not what was left of it
        own = found.figures["residual_at_zero"]
        if own is not None:
            whole["residual_at_zero"] = recipe.residual_at_zero(self.outcome.penalties, self.outcome.at_zero)
            if found.figures["stationarity"] is not None:
                found.figures["stationarity"] *= own / whole["residual_at_zero"]
        if not rows.all():
            found.figures |= {"duality_gap": None, "near_gap": None}  # a bound for these rows bounds nothing else
        found.figures |= whole
        found.at_zero = {
            name: value[self._entries(rows)] if name == table else value for name, value in self.outcome.at_zero.items()
        }
        return found

    @torch.no_grad()
    def _take(self, found: Outcome, rows: np.ndarray) -> None:
        """The weights found, and the gradient of everything there."""
        table = self.table
        new = dict(found.module.named_parameters())
        for name, parameter in self.outcome.module.named_parameters():
            if name == table:
                parameter.zero_()
                parameter[self._entries(rows)] = new[name]
            else:
                parameter.copy_(new[name])
        with torch.enable_grad():
            self.gradients = recipe.gradients(self.outcome, self.outcome.module)

    def _may_live(self, strength: float) -> np.ndarray:
        """Rows of groups that live, or that the gradient pulls from zero at this strength. Bool [rows]"""

        def wanted(name: str, penalty: Penalty) -> Tensor:
            before, weights = float(penalty.strength), self._weights()[name]
            penalty.strength = max(0.0, strength)
            pulled = penalty.gap(torch.zeros_like(weights), self.gradients[name]) > 0
            penalty.strength = before
            return pulled | certificate.living(penalty, weights)

        return self._rows(wanted)

    @torch.no_grad()
    def _rows(self, mark: Callable[[str, Penalty], Tensor]) -> np.ndarray:
        """The rows of the table whose group is marked; all of them where groups are not made of rows."""
        count, table = self.count, self.table
        if table is None:
            return np.ones(count, dtype=bool)
        penalty, scorer = self.outcome.penalties[table], self.outcome.module.tagger.scorer
        groups, pairs = penalty.groups, pairs_of(scorer)
        if groups is None and _by_entry(penalty):
            return rows_of(scorer, mark(table, penalty).cpu()).numpy()
        if pairs is not None and isinstance(groups, Partition) and pairs.whole(groups.ids):
            return rows_of(scorer, groups.expand(mark(table, penalty), fill=True).cpu()).numpy()
        if not isinstance(groups, Partition) or groups.ids.shape != (count, 1) or groups.whole:
            return np.ones(count, dtype=bool)
        return groups.expand(mark(table, penalty), fill=True).expand(count, 1)[:, 0].cpu().numpy().copy()

    def _entries(self, rows: np.ndarray) -> Tensor:
        return entries_of(self.outcome.module.tagger.scorer, torch.from_numpy(rows))

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.outcome.module.named_parameters()}


def _by_entry(penalty: Penalty) -> bool:
    """Whether an entry's share of the penalty does not depend on which others there are."""
    penalty = penalty.penalty if isinstance(penalty, Nonnegative) else penalty
    return isinstance(penalty, L0 | LogSum | GroupMCP) or (isinstance(penalty, ElasticNet) and penalty.weights is None)


@torch.no_grad()
def _row(task: Task, share: float, outcomes: Sequence[Outcome], kept: int | None) -> dict[str, float | int | None]:
    """One line of the table. The metric is that of the last stage on dev; `selected` that of the first one."""
    first, last = outcomes[0], outcomes[-1]
    metric, living = first.data.metric, task.alive(first)

    def weights(outcome: Outcome) -> int:
        named = dict(outcome.module.named_parameters())
        return sum(int((named[name] != 0).sum()) for name in outcome.penalties)

    def on_dev(outcome: Outcome) -> float | None:
        return outcome.module.evaluate(outcome.data.batches("dev", 256)).result()[metric] if living else None

    named = dict(first.module.named_parameters())
    grouped = {name: p for name, p in first.penalties.items() if p.groups is not None}
    return {
        "share": share,
        "strength": first.figures["strength"],
        "objective": first.figures["objective"],
        "stationarity": first.figures["stationarity"],
        "groups": sum(int(p.groups.alive(named[name]).sum()) for name, p in grouped.items()) if grouped else None,
        "rows kept": kept,
        "selected weights": weights(first),
        f"selected {metric}": on_dev(first),
        "weights": weights(last) if living else 0,
        metric: on_dev(last),
        "seconds": sum(outcome.figures["seconds_fit"] for outcome in outcomes),
    }


def _line(point: Point, k: int, count: int, metric: str) -> str:
    row = point.row
    groups = "" if row["groups"] is None else f"  groups {row['groups']:,}"
    score = "" if row[metric] is None else f"  dev {metric} {row[metric]:.4f}"
    return f"path {k + 1}/{count}  strength {row['share']:.4g}{groups}  weights {row['weights']:,}{score}"


def write(folder: Folder, points: Sequence[Point], best: Point, metric: str) -> None:
    """path.tsv, path.md, path.png"""
    header = (*points[0].row, "best")
    rows = [(*point.row.values(), "yes" if point is best else "") for point in points]
    table = report.Table(header, rows)
    write_text(folder / "path.tsv", report.tsv(table))
    write_text(folder / "path.md", report.markdown(table))
    with atomic_file(folder / "path.png") as file:
        picture(points, best, metric).savefig(file, format="png", dpi=150)


def picture(points: Sequence[Point], best: Point, metric: str) -> Figure:
    """Metric on dev and what lives, against strength."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for key, label in ((metric, "after all stages"), (f"selected {metric}", "as selected")):
        shown = [(p.row["share"], p.row[key]) for p in points if p.row[key] is not None]
        axes.plot(*zip(*shown, strict=True), marker="o", label=label)
        if key == metric and all(len(p.outcomes) == 1 for p in points):
            break
    axes.axvline(best.share, color="0.8", zorder=0)
    axes.set(xscale="log", xlabel="strength, as a share of the critical one", ylabel=f"{metric} on dev")
    axes.set_xticks([p.share for p in points], [f"{p.share:.3g}" for p in points], rotation=45, fontsize=7)
    axes.set_xticks([], minor=True)
    axes.invert_xaxis()
    counted = "selected weights" if points[0].row["groups"] is None else "groups"
    right = axes.twinx()
    right.step([p.row["share"] for p in points], [p.row[counted] for p in points], where="mid", color="0.6")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_ylabel(f"living {'weights' if counted != 'groups' else 'groups'}", color="0.5")
    axes.legend(fontsize=8)
    return figure
