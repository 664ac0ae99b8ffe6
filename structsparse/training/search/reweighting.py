"""A stage that is gone through again and again: groups are weighed anew until no more than so many live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.training import certificate
from structsparse.training import stage as recipe
from structsparse.training.stage import Outcome, Stage
from structsparse.training.task import Data, Task


def run(stage: Stage, task: Task, data: Data, before: Outcome | None, folder: Path, resume: bool) -> Outcome:
    """`recipe.run`, and under `reg.reweight: {rounds, until, growth, ...}` the last of at most `rounds` rounds, each
    from the one before and with its groups pulled `growth` times more. It is the first that leaves no more than `until`
    groups; where that is less, the largest groups of the round before fill it up."""
    options = dict(stage.reweight or {})
    most, until = options.pop("rounds", None), options.pop("until", None)
    if most is None and until is None:
        return recipe.run(stage, task, data, before, folder, resume)
    _check(stage, before)
    growth, now = options.pop("growth", 1.0), before
    spent: dict[str, object] = {"seconds_fit": 0.0, "epochs": 0, "counts": [], "cuts": []}
    for k in range(1, most + 1):
        if _living(now) <= until:
            break
        weighed = replace(stage, name=f"{stage.name}_{k}", reweight={**options, "growth": growth**k})
        after = recipe.run(weighed, task, data, now, folder / str(k), resume)
        spent |= {key: spent[key] + after.figures[key] for key in ("seconds_fit", "epochs", "counts", "cuts")}
        if _living(after) < until:
            fill_up_(now, _alive(after), until)
            batches = now.data.whole("train")
            spent |= certificate.prove(now.module, batches, now.penalties, now.penalties, {}, now.figures)[0]
            break
        now = after
    if _living(now) > until:
        raise UserError(
            f"reg.reweight: {_living(now)} groups live after {most} rounds, {until} are wanted; raise rounds or growth"
        )
    return Outcome(
        now.data, now.module, now.penalties, {**now.figures, **spent, "stage": stage.name}, now.at_zero, now.at_end
    )


@torch.no_grad()
def fill_up_(outcome: Outcome, alive: Mapping[str, Tensor], count: int) -> None:
    """Leave `count` groups: those that are alive, and of the others the largest, by norm over weight."""
    weights = dict(outcome.module.named_parameters())
    ((name, mask),) = alive.items()
    penalty, parameter = outcome.penalties[name], weights[name]
    order = penalty.sizes(parameter.detach()) / penalty.groups.weight
    order = torch.where(penalty.groups.alive(parameter.detach()), order, -1.0).masked_fill(mask, torch.inf)
    dead = torch.ones_like(mask).index_fill_(0, order.topk(count).indices, False)
    parameter.masked_fill_(penalty.groups.expand(dead, fill=False), 0.0)


def _alive(outcome: Outcome) -> dict[str, Tensor]:
    """Of each parameter with groups: bool [groups]"""
    weights = dict(outcome.module.named_parameters())
    grouped = {name: p.groups for name, p in outcome.penalties.items() if p.groups is not None}
    return {name: groups.alive(weights[name].detach()) for name, groups in grouped.items()}


def _living(outcome: Outcome) -> int:
    return sum(int(alive.sum()) for alive in _alive(outcome).values())


def foresee(stage: Stage, task: Task, data: Data) -> None:
    """`recipe.foresee`, and what is wrong with `reg.reweight`."""
    recipe.foresee(stage, task, data)
    if stage.reweight is not None:
        _check_options(stage)


def _check_options(stage: Stage) -> None:
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


def _check(stage: Stage, before: Outcome | None) -> None:
    _check_options(stage)
    if before is None:
        raise UserError("reg.reweight is for a stage after another one, whose groups it weighs; see recipe=reweighted")
    if len(_alive(before)) != 1:
        raise UserError(f"reg.reweight.until is for one parameter with groups, there are {len(_alive(before))}")
