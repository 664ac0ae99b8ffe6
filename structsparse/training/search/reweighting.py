"""Reweighting of group penalties: a stage is repeated with new group weights until few enough groups live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.solvers.base import Proof
from structsparse.training import certificate, fit
from structsparse.training.data import Data
from structsparse.training.stage import FitRecord, Stage, StageResult
from structsparse.training.task import Task


def run(stage: Stage, task: Task, data: Data, before: StageResult | None, folder: Path, resume: bool) -> StageResult:
    """Reweighting of groups: fit a stage, in several rounds if the options `reg.reweight` have `rounds` and `until`.

    A round is a whole training of the stage. Each round starts from the weights of the round before, and computes group
    weights from the norms of the groups. In round k, the group weights are multiplied by growth^k, with the option
    `growth`. Rounds end when at most `until` groups live. If fewer than `until` groups live, the result is the model of
    the previous round, reduced to `until` groups. These are the groups that live in the last round, and the largest of
    the other groups."""
    options = dict(stage.reweight or {})
    most, until = options.pop("rounds", None), options.pop("until", None)
    if most is None and until is None:
        return fit.run(stage, task, data, before, folder, resume)
    _check_rounds(stage, before)
    growth, latest = options.pop("growth", 1.0), before
    records: list[FitRecord] = []
    for k in range(1, most + 1):
        if _living(latest) <= until:
            break
        weighed = replace(stage, name=f"{stage.name}_{k}", reweight={**options, "growth": growth**k})
        result = fit.run(weighed, task, data, latest, folder / str(k), resume)
        records.append(result.figures.record)
        if _living(result) < until:
            fill_up_(latest, result.living_groups(), until)
            latest = _certified_anew(latest)
            break
        latest = result
    if _living(latest) > until:
        raise UserError(
            f"reg.reweight: {_living(latest)} groups live after {most} rounds, {until} are wanted; "
            "raise rounds or growth"
        )
    figures = replace(latest.figures, stage=stage.name, record=_total(latest.figures.record, records))
    return replace(latest, figures=figures, support={})


def _total(last: FitRecord, rounds: Sequence[FitRecord]) -> FitRecord:
    """Reweighting of groups: the record of the last training, but with seconds, epochs and tables of all trainings."""
    return replace(
        last,
        seconds=float(sum(record.seconds for record in rounds)),
        epochs=sum(record.epochs for record in rounds),
        cuts=[line for record in rounds for line in record.cuts],
        counts=[line for record in rounds for line in record.counts],
    )


def _certified_anew(result: StageResult) -> StageResult:
    """Reweighting of groups: the result with a new certificate, for weights that were changed after training.

    A certificate holds figures that bound how far the weights are from an optimum."""
    batches, figures = result.data.whole("train"), result.figures
    proven, _ = certificate.prove(
        result.module, batches, result.penalties, result.penalties, {}, figures.residual_at_zero, Proof()
    )
    return replace(result, figures=replace(figures, certificate=proven))


@torch.no_grad()
def fill_up_(result: StageResult, alive: Mapping[str, Tensor], count: int) -> None:
    """Reweighting of groups: keep only `count` groups and set all other groups to zero, in place.

    `alive` maps the name of the only parameter with groups to a bool array, which marks some of its groups. Marked
    groups are kept first, then the groups with the largest ratio of norm to group weight."""
    ((name, mask),) = alive.items()
    penalty, parameter = result.penalties[name], dict(result.module.named_parameters())[name]
    order = penalty.sizes(parameter.detach()) / penalty.groups.weight
    order = torch.where(penalty.groups.alive(parameter.detach()), order, -1.0).masked_fill(mask, torch.inf)
    dead = torch.ones_like(mask).index_fill_(0, order.topk(count).indices, False)
    parameter.masked_fill_(penalty.groups.expand(dead, fill=False), 0.0)


def _living(result: StageResult) -> int:
    """Reweighting of groups: the number of groups with a nonzero weight in the result of a stage."""
    count = result.group_count()
    return 0 if count is None else count.groups_alive


def validate(stage: Stage, task: Task, data: Data) -> None:
    """Reweighting of groups: refuse mistakes in the options of a later stage before earlier stages are fitted."""
    fit.validate(stage, task, data)
    if stage.reweight is not None:
        _check_options(stage)


def _check_options(stage: Stage) -> None:
    """Reweighting of groups: refuse unknown or impossible values in `reg.reweight`."""
    options, where = dict(stage.reweight or {}), f"recipe.{stage.name}.reg.reweight"
    unknown = sorted(set(options) - {"rounds", "until", "growth", "epsilon"})
    if unknown:
        raise UserError(f"{where}.{unknown[0]} is not understood; there are rounds, until, growth, epsilon")
    growth = options.get("growth", 1.0)
    if isinstance(growth, bool) or not isinstance(growth, int | float) or not growth > 0:
        raise UserError(f"{where}.growth is {growth}, expected a number above 0")
    if not {"rounds", "until"} & set(options):
        return
    if stage.budget is not None:
        raise UserError(f"reg.budget={stage.budget} and {where}.until both say how many groups live; choose one")
    for name in ("rounds", "until"):
        value = options.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{where}.{name} is {value}; rounds and until are numbers, both at least 1")


def _check_rounds(stage: Stage, before: StageResult | None) -> None:
    """Reweighting of groups: refuse repeated training without an earlier stage, or if several parameters have groups.

    The norms in the earlier stage give the group weights of the first training."""
    _check_options(stage)
    if before is None:
        raise UserError("reg.reweight is for a stage after another one, whose groups it weighs; see recipe=reweighted")
    grouped = len(before.living_groups())
    if grouped != 1:
        raise UserError(f"reg.reweight.until is for one parameter with groups, there are {grouped}")
