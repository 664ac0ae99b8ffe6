"""A stage of a recipe: build, find the strength, fit, choose, certify.

Selecting and estimating are two jobs. A recipe is a list of stages; each starts from the survivors of the one before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path

import lightning
import numpy as np
import torch
from torch import Tensor, nn

from structsparse import certificate
from structsparse.callbacks.proximal import ProximalStep
from structsparse.callbacks.saving import LAST, Checkpoints, StopAtNaN, same_model
from structsparse.errors import UserError
from structsparse.features.layout import Layout
from structsparse.files import write_text
from structsparse.models import Tagger
from structsparse.penalties import Penalty
from structsparse.solvers import steps
from structsparse.structures.chain import Chain
from structsparse.tasks.tagging import Tagging, TaggingData

_WHOLE = 2000  # sentences at a time when the whole corpus is gone through


@dataclass
class Stage:
    """What one stage needs; made from its configuration."""

    name: str
    scorer: Callable[..., nn.Module]
    loss: Callable[..., nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    final_lr: float
    penalty: Callable[..., Penalty]
    groups: Callable | None
    strength: float
    relative: bool
    parameters: Sequence[str]
    every: int
    warmup: int
    batch: int | None
    seed: int
    choose: str
    patience: int | None
    trainer: Callable[..., lightning.Trainer]
    options: Mapping[str, object]  # all that decides the result, for telling one model from another


@dataclass
class Outcome:
    """What a stage leaves behind."""

    data: TaggingData
    module: Tagging
    penalties: dict[str, Penalty]
    figures: dict[str, float | None]
    at_zero: dict[str, Tensor] = field(default_factory=dict)  # gradients of the penalised parameters at zero

    def survivors(self) -> dict[str, Tensor]:
        """Which entries of each penalised parameter live: those of living groups, or those that are not zero."""
        weights = dict(self.module.named_parameters())
        return {name: penalty.survivors(weights[name].detach()) for name, penalty in self.penalties.items()}


def run(stage: Stage, data: TaggingData, before: Outcome | None, folder: Path, resume: bool) -> Outcome:
    """Fit one stage; `folder` holds its checkpoints, from which it goes on if it is to resume."""
    support: dict[str, Tensor] = {}
    if before is not None:
        support = before.survivors()
        data, support = _compact(before, support)
    lightning.seed_everything(stage.seed, verbose=False)
    _try_optimizer(stage)
    module, penalties = _build(stage, data)
    if before is not None:
        _inherit(module, before, support)
    figures, at_zero = _strength(stage, data, module, penalties, cold=before is None)
    checkpoints = Checkpoints(folder, f"dev/{data.metric}", stage.choose, stage.patience)
    finished = folder / "finished.json"
    if resume and finished.is_file():
        figures |= json.loads(finished.read_text())
    else:
        path = folder / LAST if resume and (folder / LAST).is_file() else None
        figures |= _fit(stage, data, module, penalties, support, checkpoints, path)
        write_text(finished, json.dumps({key: figures[key] for key in ("seconds_fit", "epochs")}))
    saved = torch.load(same_model(checkpoints.chosen, module.fingerprint), weights_only=True)
    module.load_state_dict(saved["state_dict"])
    figures |= _certify(data, module, penalties, figures)
    return _refuse_dead(Outcome(data, module, penalties, figures, at_zero))


def _build(stage: Stage, data: TaggingData) -> tuple[Tagging, dict[str, Penalty]]:
    tagger = Tagger(stage.scorer(data.sizes), data.sizes.labels)
    parameters = {f"tagger.{name}": p for name, p in tagger.named_parameters()}
    names = penalised(stage.parameters, list(parameters))
    layout = Layout(data.index.names, data.index.offsets, data.labels)
    penalties = {}
    for name in names:
        groups = (
            {}
            if stage.groups is None
            else {"groups": stage.groups(tuple(parameters[name].shape), layout, parameter=name)}
        )
        penalties[name] = stage.penalty(strength=stage.strength, **groups)
    loss, fingerprint = stage.loss(Chain()), _fingerprint(stage, data)
    module = Tagging(tagger, loss, stage.optimizer, data.score, names, stage.final_lr, fingerprint)
    return module, penalties


def _try_optimizer(stage: Stage) -> None:
    """What is wrong with it is said before the work begins."""
    try:
        steps.check(stage.optimizer([nn.Parameter(torch.zeros(1))]), [])
    except (TypeError, ValueError) as error:
        raise UserError(f"solver: {error}") from error


def penalised(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The parameters a penalty is for. A pattern that matches nothing, or all of them together, is a mistake."""
    short = [name.removeprefix("tagger.") for name in names]
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name, brief in zip(names, short, strict=True) if fnmatchcase(brief, pattern)}
        if not found:
            raise UserError(f"reg.parameters: {pattern!r} matches no parameter; there are {', '.join(short)}")
        chosen |= found
    if not chosen:
        raise UserError(f"reg.parameters is empty; name those to be penalised, of {', '.join(short)}")
    if len(chosen) == len(names):
        raise UserError(f"reg.parameters={list(patterns)} matches every parameter; name those to be penalised")
    return [name for name in names if name in chosen]


def _table(names: Mapping[str, Tensor]) -> str | None:
    return next((name for name in names if name.endswith("table")), None)


def _refuse_dead(outcome: Outcome) -> Outcome:
    """A stage after which nothing lives leaves nothing to refit, and no model."""
    support = outcome.survivors()
    table = _table(support)
    if not any(mask.any() for name, mask in support.items() if table in (name, None)):
        raise UserError(
            f"every group is dead: at strength {outcome.figures['strength']:.4g} "
            f"(critical {outcome.figures['critical_strength'] or float('nan'):.4g}) no weight survives; "
            "lower reg.strength"
        )
    return outcome


def _compact(before: Outcome, support: dict[str, Tensor]) -> tuple[TaggingData, dict[str, Tensor]]:
    """Rows without a surviving entry leave the data; what is left of the support is kept where it forbids anything."""
    table = _table(support)
    if table is None:
        return before.data, support
    rows = support[table].any(dim=1)
    support = {**support, table: support[table][rows]}
    return before.data.keep(rows.cpu().numpy()), {name: mask for name, mask in support.items() if not mask.all()}


@torch.no_grad()
def _inherit(module: Tagging, before: Outcome, support: dict[str, Tensor]) -> None:
    """Start from the weights of the stage before, dead rows left out."""
    old = dict(before.module.named_parameters())
    survivors = before.survivors()
    for name, parameter in module.named_parameters():
        value = old[name]
        if value.shape != parameter.shape:
            value = value[survivors[name].any(dim=1)]
        parameter.copy_(value)
        if name in support:
            parameter.mul_(support[name])


def _strength(
    stage: Stage, data: TaggingData, module: Tagging, penalties: dict[str, Penalty], cold: bool
) -> tuple[dict[str, float | None], dict[str, Tensor]]:
    """The critical strength, from the gradient at zero; a relative strength made absolute."""
    parameters = dict(module.named_parameters())
    start = {name: parameters[name].detach().clone() for name in penalties}
    with torch.no_grad():
        for name in penalties:
            parameters[name].zero_()
    batches = data.batches("train", _WHOLE)
    if cold and module.loss.smooth:
        certificate.fit_free(module, batches, {n: p for n, p in parameters.items() if n not in penalties})
    _, at_zero = certificate.mean_gradient(module, batches, list(penalties))
    found = [penalty.critical(at_zero[name]) for name, penalty in penalties.items()]
    critical = max((float(value) for value in found if value is not None), default=None)
    if stage.relative:
        if critical is None:
            raise UserError(
                "reg.relative=true, but no strength of this penalty makes every weight zero; set it to false"
            )
        for penalty in penalties.values():
            penalty.strength = stage.strength * critical
    zero = {name: torch.zeros_like(gradient) for name, gradient in at_zero.items()}
    figures = {
        "critical_strength": critical,
        "strength": float(next(iter(penalties.values())).strength),
        "residual_at_zero": certificate.residual(penalties, zero, at_zero),
    }
    with torch.no_grad():
        for name, value in start.items():
            parameters[name].copy_(value)
    return figures, at_zero


def _fingerprint(stage: Stage, data: TaggingData) -> str:
    digest = blake2b(digest_size=8)
    for part in (stage.name, stage.options, data.index.names, data.labels):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    digest.update(np.ascontiguousarray(data.index.keys).tobytes())
    return digest.hexdigest()


def _fit(stage, data, module, penalties, support, checkpoints: Checkpoints, path: Path | None) -> dict:
    proximal = ProximalStep(penalties, stage.every, stage.warmup, support)
    trainer = stage.trainer(before=[StopAtNaN(), proximal], after=[checkpoints], penalties=penalties)
    sharing = {"rank": trainer.global_rank, "world": trainer.world_size}
    train = data.batches("train", stage.batch, shuffle=True, seed=stage.seed, **sharing)
    dev = data.batches("dev", 256, **sharing)
    if path is not None:
        same_model(path, module.fingerprint)
    begin = time.perf_counter()
    trainer.fit(module, train, dev, ckpt_path=path, weights_only=True)
    for penalty in penalties.values():
        penalty.to(module.device)  # which Lightning has left
    return {"seconds_fit": time.perf_counter() - begin, "epochs": trainer.current_epoch}


def _certify(data: TaggingData, module: Tagging, penalties: dict[str, Penalty], figures: Mapping) -> dict:
    """Objective and stationarity on the whole training set."""
    weights = {name: p.detach() for name, p in module.named_parameters() if name in penalties}
    loss, gradients = certificate.mean_gradient(module, data.batches("train", _WHOLE), list(penalties))
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    strength = figures["strength"]
    residual, at_zero = certificate.residual(penalties, weights, gradients), figures["residual_at_zero"]
    smooth = module.loss.smooth
    return {
        "objective": loss + value,
        "penalty": value / strength if strength else 0.0,
        "train_loss": loss,
        "stationarity": residual / at_zero if smooth and at_zero else None,
    }


def figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The figures of a run: those of the first stage, whose penalty made the zeros, and of the last one by its side."""
    shown = ("objective", "penalty", "stationarity", "critical_strength", "strength")
    first, last = outcomes[0].figures, outcomes[-1].figures
    items = sum(len(o.data.arrays["train"]) * o.figures["epochs"] for o in outcomes)
    beside = {f"final_{key}": last[key] for key in ("objective", "stationarity")} if len(outcomes) > 1 else {}
    speed = items / sum(o.figures["seconds_fit"] for o in outcomes)
    return {key: first[key] for key in shown} | beside | {"items_per_second": speed}
