"""A regularization path: one problem at falling penalty strengths, each fit starting from the weights of the last fit.

From the gradient after a fit, the sequential strong rule predicts which groups are zero at the next strength. These
groups are left out of the next fit. If the gradient after that fit would make such a group nonzero, the fit is repeated
with the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as Folder

import torch
from rich.console import Console
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty
from structsparse.training import certificate, fit
from structsparse.training.data import Data
from structsparse.training.search import reweighting
from structsparse.training.search.choose import rank
from structsparse.training.search.strengths import residual_at_zero
from structsparse.training.stage import Stage, StageFigures, StageResult
from structsparse.training.task import Task
from structsparse.weights.notes import notes_of

ROUNDS = 5  # maximum number of fits at one strength; usually one fit is enough


@dataclass
class Point:
    """A point of a regularization path: one strength, the results of the stages, and the line of the table."""

    share: float  # strength as a share of the critical strength
    results: list[StageResult]  # results of all stages; only of the first stage if every weight is zero
    row: dict[str, float | int | None]


def walk(
    stages_at: Callable[[float, Mapping[str, float] | None], list[Stage]],
    task: Task,
    data: Data,
    shares: Sequence[float],
    folder: Folder,
    resume: bool,
    console: Console,
) -> tuple[list[Point], Point]:
    """Regularization path: solve at all strengths; returns all points, and the point that is best on dev.

    `stages_at` makes the stages from the absolute strengths of `reg` and of the penalties in `also`. `shares`
    holds the falling strengths, as shares of the critical strength. `folder` holds the checkpoints of all points."""
    start = stages_at(0.0, None)[0]
    if start.budget is not None:
        raise UserError("path and reg.budget both decide how many groups live: set reg.budget=null, or leave out path")
    probe = fit.probe(start, task, data)
    critical, terms = _critical(probe), probe.figures.strengths.terms
    walker, points = Walker(task, probe), []
    for k, share in enumerate(shares):
        first, *rest = stages_at(share * critical, terms)
        here = folder / f"path-{k:02d}"
        results = [walker.advance(first, share * critical, here, resume)]
        for stage in rest if task.alive(results[0]) else ():
            results.append(reweighting.run(stage, task, data, results[-1], here / stage.name, resume))
        points.append(Point(share, results, _row(task, share, results, walker.rows_kept)))
        console.print(_line(points[-1], k, len(shares), data.metric), highlight=False, soft_wrap=True)
    living = [point for point in points if point.row["weights"]]
    if not living:
        raise UserError(f"path: every group is dead at all of {len(shares)} strengths; go further down")
    return points, min(living, key=lambda point: rank(point.row, data.metric))


def _critical(probe: StageResult) -> float:
    """Regularization path: the critical strength, which is the smallest that makes all weights zero.

    The path begins there."""
    critical = probe.figures.strengths.critical
    if critical is None and any(notes_of(p).grows is not None for p in probe.module.parameters()):
        raise UserError(
            "path: the critical strength of a growing table is not known; choose a model that does not grow"
        )
    if critical is None:
        raise UserError("path: no strength of this penalty makes every weight zero, so there is none to begin at")
    return critical


class Walker:
    """Regularization path: the state after a fit: all weights, and the gradient at these weights."""

    def __init__(self, task: Task, probe: StageResult, rounds: int = ROUNDS) -> None:
        self.task, self.full, self.screen, self.rounds = task, probe, task.screen(probe), rounds
        self.strength, self.gradients = probe.figures.strengths.critical, probe.at_zero
        self.rows_kept: int | None = None

    def advance(self, stage: Stage, strength: float, folder: Folder, resume: bool) -> StageResult:
        """Regularization path: solve at a lower strength, on the feature rows that the strong rule keeps."""
        if self.screen is None:
            result = self._solve(stage, None, folder / stage.name, resume)
        else:
            result = self._solve_screened(stage, self._may_live(2 * strength - self.strength), folder, resume)
        self.strength = strength
        return result

    def _solve_screened(self, stage: Stage, rows: Tensor, folder: Folder, resume: bool) -> StageResult:
        """Regularization path: fit on some rows; if other rows turn out to be needed, fit again with these rows added.

        `rows` (bool array over all feature rows) marks the rows that the strong rule keeps."""
        for again in range(self.rounds):
            name = stage.name if again == 0 else f"{stage.name}-{again + 1}"
            result = self._solve(stage, rows, folder / name, resume)
            missing = self._would_wake() & ~rows
            if not missing.any():
                break
            rows = rows | missing
        self.rows_kept = int(rows.sum())
        return result

    def _solve(self, stage: Stage, rows: Tensor | None, folder: Folder, resume: bool) -> StageResult:
        """Regularization path: fit the stage on some rows, starting from the present weights.

        `rows` (bool array over all feature rows) marks the rows to keep; None keeps all. The new weights replace the
        present ones."""
        narrowed = rows is not None and not bool(rows.all())
        entries = self.screen.entries_of_rows(rows) if narrowed else None
        data = self.full.data.keep(rows.cpu().numpy()) if narrowed else self.full.data
        start = self._narrow({name: value.clone() for name, value in self.full.weights.items()}, entries)
        result = fit.run(stage, self.task, data, None, folder, resume, start)
        for name, penalty in result.penalties.items():
            self.full.penalties[name].strength = float(penalty.strength)
        result = replace(
            result, figures=self._figures(result.figures, narrowed), at_zero=self._narrow(self.full.at_zero, entries)
        )
        self._take(result, entries)
        return result

    def _narrow(self, values: Mapping[str, Tensor], entries: Tensor | None) -> dict[str, Tensor]:
        """Regularization path: keep some entries in the tensor of the screened weight table; other tensors stay whole.

        `values` holds tensors by parameter name. `entries` (bool array) marks the entries to keep; None keeps all."""
        if entries is None:
            return dict(values)
        return {name: v[entries.to(v.device)] if name == self.screen.table else v for name, v in values.items()}

    def _figures(self, figures: StageFigures, narrowed: bool) -> StageFigures:
        """Regularization path: convert the figures of a fit on some feature rows to figures for the full weight table.

        Stationarity is made relative to zero weights on the full table. If rows were left out, the duality gap and the
        near gap (bounds on the objective minus its minimum, globally and near the weights) become None."""
        proven, critical = figures.certificate, self.full.figures.strengths.critical
        if figures.residual_at_zero is not None:
            residual = residual_at_zero(self.full.penalties, self.full.at_zero)
            if proven.stationarity is not None:
                stationarity = proven.stationarity * (figures.residual_at_zero / residual)
                proven = replace(proven, stationarity=stationarity)
            figures = replace(figures, residual_at_zero=residual)
        if narrowed:
            proven = replace(proven, duality_gap=None, near_gap=None)
        return replace(figures, strengths=replace(figures.strengths, critical=critical), certificate=proven)

    @torch.no_grad()
    def _take(self, result: StageResult, entries: Tensor | None) -> None:
        """Regularization path: copy the fitted weights into the full model, and compute the gradient at them."""
        weights = result.weights
        for name, parameter in self.full.module.named_parameters():
            if entries is not None and name == self.screen.table:
                parameter.zero_()
                parameter[entries] = weights[name]
            else:
                parameter.copy_(weights[name])
        batches = self.full.data.whole("train")
        with torch.enable_grad():
            _, self.gradients = certificate.mean_gradient(self.full.module, batches, list(self.full.penalties))

    def _may_live(self, strength: float) -> Tensor:
        """Regularization path: a bool array that marks the rows of groups that may live at a strength.

        These are the living groups, and the groups that the gradient would make nonzero at this strength."""
        penalty, weights, gradient = self._table()
        before = float(penalty.strength)
        penalty.strength = max(0.0, strength)
        pulled = penalty.gap(torch.zeros_like(weights), gradient) > 0
        penalty.strength = before
        return self.screen.rows_of_groups(pulled | certificate.living(penalty, weights))

    def _would_wake(self) -> Tensor:
        """Regularization path: a bool array that marks rows of dead groups that the gradient would make nonzero."""
        return self.screen.rows_of_groups(certificate.violated(*self._table()))

    def _table(self) -> tuple[Penalty, Tensor, Tensor]:
        """Regularization path: the penalty, the weights and the gradient of the screened weight table."""
        name = self.screen.table
        return self.full.penalties[name], self.full.weights[name], self.gradients[name]


def _row(
    task: Task, share: float, results: Sequence[StageResult], rows_kept: int | None
) -> dict[str, float | int | None]:
    """Regularization path: the table line of one strength.

    The score on dev is that of the last stage. Columns named `selected ...` describe the first stage. `rows_kept` is
    the number of feature rows in the last fit."""
    first, last = results[0], results[-1]
    metric, living = first.data.metric, task.alive(first)
    groups = first.group_count()
    return {
        "share": share,
        "strength": first.figures.strengths.first,
        "objective": first.figures.certificate.objective,
        "stationarity": first.figures.certificate.stationarity,
        "groups": None if groups is None else groups.groups_alive,
        "rows kept": rows_kept,
        "selected weights": first.nonzero_weights(),
        f"selected {metric}": first.score("dev")[metric] if living else None,
        "weights": last.nonzero_weights() if living else 0,
        metric: last.score("dev")[metric] if living else None,
        "seconds": sum(result.figures.record.seconds for result in results),
    }


def _line(point: Point, k: int, count: int, metric: str) -> str:
    """Regularization path: the console line of one strength; `k` is the index (from 0) among `count` points."""
    row = point.row
    groups = "" if row["groups"] is None else f"  groups {row['groups']:,}"
    score = "" if row[metric] is None else f"  dev {metric} {row[metric]:.4f}"
    return f"path {k + 1}/{count}  strength {row['share']:.4g}{groups}  weights {row['weights']:,}{score}"
