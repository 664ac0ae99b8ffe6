"""A stage of a recipe: build, find the strength, fit, choose, certify.

Selecting and estimating are two jobs. A recipe is a list of stages; each starts from the survivors of the one before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.penalties import Discrete, ElasticNet, NoPenalty, Penalty, Reweighting
from structsparse.penalties.discrete import recall, settle
from structsparse.solvers.base import solver_of
from structsparse.training import certificate, legality
from structsparse.training.callbacks.budget import Budget
from structsparse.training.callbacks.checkpoints import LAST, Checkpoints, StopAtNaN, same_model
from structsparse.training.callbacks.converged import StopWhenConverged
from structsparse.training.callbacks.online import Counts, Mean
from structsparse.training.callbacks.outer import Admm, OuterIterations
from structsparse.training.callbacks.proximal import ProximalStep
from structsparse.training.task import Data, Placed, Task
from structsparse.training.terms import ITEMS, Term, critical_strength, set_strength
from structsparse.weights.notes import notes_of

PROVED = ("excess", "kkt")  # what a solver may know of its last model: the duality gap, how far it is from stationary


@dataclass
class Stage:
    """What one stage needs; made from its configuration."""

    name: str
    scorer: Callable[..., nn.Module]
    loss: Callable[..., nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    final_lr: float
    terms: Sequence[Term]
    every: int
    warmup: int
    budget: int | None
    freeze: int | None
    reweight: Mapping[str, float] | None
    admm: Mapping[str, float] | None
    batch: int | None
    seed: int
    choose: str
    warm: bool
    survivors: bool
    patience: int | None
    trainer: Callable[..., lightning.Trainer]
    options: Mapping[str, object]  # all that decides the result, for telling one model from another
    proven: bool = True  # false: only what dev needs to choose by; no certificate, nor what it rests on


@dataclass
class Outcome:
    """What a stage leaves behind."""

    data: Data
    module: lightning.LightningModule
    penalties: dict[str, Penalty]  # the first term's parameters come first
    figures: dict[str, object]  # numbers; `cuts`: (step, parameter, strength) of each cut to a budget
    at_zero: dict[str, Tensor] = field(default_factory=dict)  # gradients of the penalised parameters at zero
    at_end: dict[str, Tensor] = field(default_factory=dict)  # and where the stage has ended
    support: dict[str, Tensor] = field(default_factory=dict)  # which entries were allowed to live, where not all were

    def survivors(self) -> dict[str, Tensor]:
        """Which entries of each penalised parameter live: those of living groups, or those that are not zero."""
        weights = dict(self.module.named_parameters())
        found = {}
        for name, penalty in self.penalties.items():
            growing = notes_of(weights[name]).grows
            found[name] = penalty.survivors(weights[name].detach()) if growing is None else growing.spread(penalty)
        return found


def run(
    stage: Stage,
    task: Task,
    data: Data,
    before: Outcome | None,
    folder: Path,
    resume: bool,
    start: Mapping[str, Tensor] | None = None,
) -> Outcome:
    """Fit one stage, from the survivors of the stage before or from the weights in `start`. `folder` holds its
    checkpoints, from which it goes on if it is to resume."""
    data, support = _what_lives(stage, task, data, before)
    lightning.seed_everything(stage.seed, verbose=False)
    optimizer = _try_optimizer(stage)
    begin = time.perf_counter()
    legality.check(task, stage)
    module, placed = task.build(stage, data)
    seconds = time.perf_counter() - begin
    if not placed:
        return _counted(stage, data, module, seconds)
    task.check(stage, module, optimizer, support)
    warm = before is not None and stage.warm
    if warm:
        task.inherit(module, before, support)
    if start is not None:
        module.load_state_dict(start)
    if stage.proven or any(term.relative is True for term in stage.terms):
        figures, at_zero = _strengths(stage, data, module, placed, support, cold=not warm and start is None)
    else:
        figures, at_zero = _absolute(stage, placed, data.items), {}
    figures |= {"stage": stage.name, "seconds_build": seconds}
    penalties, main = _all(placed), placed[0][1]
    for _, own in placed:
        settle(own, dict(module.named_parameters()))
    if stage.reweight is not None:
        figures |= _reweigh(stage, before, module, main)
    checkpoints = Checkpoints(folder, f"dev/{data.metric}", stage.choose, stage.patience)
    one_by_one = solver_of(optimizer).needs_sentences
    figures |= _fitted(stage, data, module, penalties, main, support, checkpoints, resume, one_by_one)
    for name, strength in figures.pop("strengths").items():
        penalties[name].strength = strength  # which a budget has found
    figures["strength"] = float(next(iter(penalties.values())).strength)
    _take_chosen(module, checkpoints)
    recall(penalties, dict(module.named_parameters()))
    outcome = Outcome(data, module, penalties, figures, at_zero, support=support)
    return _proven(stage, outcome, main)


def _what_lives(stage: Stage, task: Task, data: Data, before: Outcome | None) -> tuple[Data, dict[str, Tensor]]:
    """The data a stage is left with by the one before, and which entries of its parameters may live."""
    if before is None:
        return data, {}
    if stage.survivors:
        return task.narrow(before, before.survivors())
    return before.data, before.support


def _fitted(
    stage: Stage,
    data: Data,
    module: lightning.LightningModule,
    penalties: dict[str, Penalty],
    main: dict[str, Penalty],
    support: dict[str, Tensor],
    checkpoints: Checkpoints,
    resume: bool,
    one_by_one: bool,
) -> dict:
    """The figures of a fit, or of one that had come to its end before."""
    finished = checkpoints.folder / "finished.json"
    if resume and finished.is_file():
        return json.loads(finished.read_text())
    path = checkpoints.folder / LAST if resume and (checkpoints.folder / LAST).is_file() else None
    figures = _fit(stage, data, module, penalties, main, support, checkpoints, path, one_by_one)
    kept = ("seconds_fit", "epochs", "strengths", "cuts", "counts", "outer", "gap", *PROVED)
    write_text(finished, json.dumps({key: figures[key] for key in kept}))
    return figures


def _take_chosen(module: lightning.LightningModule, checkpoints: Checkpoints) -> None:
    saved = torch.load(same_model(checkpoints.chosen, module.fingerprint), weights_only=True)
    module.to(next(value.dtype for value in saved["state_dict"].values() if value.is_floating_point()))
    module.load_state_dict(saved["state_dict"])


def _proven(stage: Stage, outcome: Outcome, main: dict[str, Penalty]) -> Outcome:
    """With the certificate, or with the objective alone where none is wanted."""
    module, data, figures = outcome.module, outcome.data, outcome.figures
    figures["residual_at_zero"] = None
    if not stage.proven:
        figures["objective"] = _objective(module, data, outcome.penalties)
        return outcome
    known = {name: figures.get(name) for name in PROVED} if stage.choose == "last" else {}  # it is of the last model
    if outcome.at_zero and known.get("kkt") is None:
        figures["residual_at_zero"] = residual_at_zero(outcome.penalties, outcome.at_zero)
    whole = data.whole("train")
    found, at_end = certificate.prove(
        module, whole, outcome.penalties, main, outcome.support, figures, **known, bounded=stage.budget is None
    )
    return replace(outcome, figures=figures | found, at_end=at_end)


@torch.no_grad()
def _objective(module: lightning.LightningModule, data: Data, penalties: Mapping[str, Penalty]) -> float:
    weights = dict(module.named_parameters())
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    return certificate.mean_loss(module, data.whole("train")) + value


def _counted(stage: Stage, data: Data, module: lightning.LightningModule, seconds: float) -> Outcome:
    """A model that is there once it is built."""
    nothing = ("objective", "penalty", "stationarity", "duality_gap", "near_gap", "groups_uncertified")
    nothing += ("critical_strength", "strength")
    spent = {"stage": stage.name, "seconds_build": 0.0, "seconds_fit": seconds, "epochs": 1, "counts": [], "cuts": []}
    return Outcome(data, module, {}, dict.fromkeys(nothing) | spent)


def _reweigh(
    stage: Stage, before: Outcome | None, module: lightning.LightningModule, penalties: dict[str, Penalty]
) -> dict:
    """The strength of the stage before, with group weights from the norms that it has come to."""
    if before is None or not stage.warm:
        raise UserError("reg.reweight is for a stage (warm=true) after another one, whose groups it weighs")
    for name, penalty in penalties.items():
        penalty.strength = float(before.penalties[name].strength)
        Reweighting(penalty, **stage.reweight).update(dict(module.named_parameters())[name])
    return {key: before.figures[key] for key in ("strength", "critical_strength")}


def probe(stage: Stage, task: Task, data: Data) -> Outcome:
    """The model at zero, its free parameters at their best: where the path of falling strengths begins."""
    lightning.seed_everything(stage.seed, verbose=False)
    legality.check(task, stage)
    module, placed = task.build(stage, data)
    figures, at_zero = _strengths(stage, data, module, placed, {}, cold=True)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in at_zero:
                parameter.zero_()
    return Outcome(data, module, _all(placed), figures, at_zero)


def gradients(outcome: Outcome, module: lightning.LightningModule) -> dict[str, Tensor]:
    """Of the mean loss on the whole training part, with respect to what is penalised."""
    return certificate.mean_gradient(module, outcome.data.whole("train"), list(outcome.penalties))[1]


def foresee(stage: Stage, task: Task, data: Data) -> None:
    """Refuse what is wrong with a stage before those that come before it have taken their time."""
    try:
        legality.check(task, stage)
        for term in stage.terms:
            term.foresee()
        if stage.reweight is not None:
            stage.terms[0].foresee_reweighting()
        if stage.admm is not None:
            Admm.of(stage.admm)
        task.foresee(stage, data, _try_optimizer(stage))
    except UserError as error:
        raise UserError(f"recipe.{stage.name}: {error}") from None


def _try_optimizer(stage: Stage) -> torch.optim.Optimizer:
    """What is wrong with it is said before the work begins."""
    try:
        optimizer = stage.optimizer([nn.Parameter(torch.zeros(1))])
        solver_of(optimizer).check_prox([])
    except (TypeError, ValueError) as error:
        raise UserError(f"solver: {error}") from error
    return optimizer


def refuse_dead(task: Task, outcome: Outcome) -> Outcome:
    if not task.alive(outcome):
        raise UserError(
            f"every group is dead: at strength {outcome.figures['strength']:.4g} "
            f"(critical {outcome.figures['critical_strength'] or float('nan'):.4g}) no weight survives; "
            "lower reg.strength"
        )
    return outcome


def _strengths(
    stage: Stage,
    data: Data,
    module: lightning.LightningModule,
    placed: Placed,
    support: Mapping[str, Tensor],
    cold: bool,
) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Critical strengths, from the gradient at zero; relative ones made absolute. Figures are of the first term.

    At zero are the first term's parameters and those of terms that can make theirs zero; all others are at their best
    beside them, under squares if they bear any."""
    penalties = _all(placed)
    unpenalised = all(isinstance(penalty, NoPenalty) for penalty in penalties.values())
    chosen = unpenalised or stage.budget is not None  # then no strength is asked for
    discrete = all(isinstance(penalty, Discrete) for penalty in penalties.values())
    growing = any(notes_of(p).grows is not None for p in module.parameters())
    if growing or discrete or (chosen and not module.loss.smooth):
        return _absolute(stage, placed, data.items), {}
    ridges = {name: p for _, own in placed[1:] for name, p in own.items() if isinstance(p, ElasticNet) and p.mix == 0}
    parameters = dict(module.named_parameters())
    zeroed = [name for name in penalties if name not in ridges]
    start = {name: parameters[name].detach().clone() for name in zeroed}
    with torch.no_grad():
        for name in zeroed:
            parameters[name].zero_()
    batches = data.whole("train")
    if cold and module.loss.smooth:
        certificate.fit_free(module, batches, {n: p for n, p in parameters.items() if n not in zeroed}, ridges)
    _, at_zero = certificate.mean_gradient(module, batches, list(penalties))
    at_zero = certificate.masked(at_zero, support)
    criticals = []
    for term, own in placed:
        criticals.append(critical_strength(own, at_zero))
        set_strength(term, own, criticals[-1], data.items)
    figures = {
        "critical_strength": criticals[0],
        "strength": float(next(iter(penalties.values())).strength),
        "terms": {term.name: float(next(iter(own.values())).strength) for term, own in placed},
    }
    with torch.no_grad():
        for name, value in start.items():
            parameters[name].copy_(value)
    return figures, at_zero


def _absolute(stage: Stage, placed: Placed, items: int) -> dict[str, object]:
    """Figures without the gradient at zero: a growing table holds no features yet, or nothing is asked of it."""
    for k, (term, own) in enumerate(placed):
        if term.relative == ITEMS:
            set_strength(term, own, None, items)
        elif term.relative and (k > 0 or stage.budget is None):
            raise UserError(
                f"{term.name}.relative=true: the critical strength is not known of a growing table, nor where nothing "
                f"is penalised or values are few; set it to false{'' if k else ', or give reg.budget'}"
            )
    strengths = {term.name: float(next(iter(own.values())).strength) for term, own in placed}
    strength = next(iter(strengths.values()))
    return {"critical_strength": None, "strength": strength, "terms": strengths}


def residual_at_zero(penalties: Mapping[str, Penalty], at_zero: Mapping[str, Tensor]) -> float:
    """How far zero is from stationary, at the strengths that hold now."""
    return certificate.residual(penalties, {name: torch.zeros_like(g) for name, g in at_zero.items()}, at_zero)


def _all(placed: Placed) -> dict[str, Penalty]:
    return {name: penalty for _, penalties in placed for name, penalty in penalties.items()}


def _fit(
    stage, data: Data, module, penalties, main, support, checkpoints: Checkpoints, path: Path | None, one_by_one
) -> dict:
    proximal, counts = _proximal(stage, penalties, main, support, data.items), Counts()
    before = [StopAtNaN(), *proximal, Mean(), counts, StopWhenConverged()]
    trainer = stage.trainer(before=before, after=[checkpoints], penalties=penalties)
    sharing = {"rank": trainer.global_rank, "world": trainer.world_size}
    train, dev = _train(stage, data, one_by_one, sharing), data.batches("dev", 256, **sharing)
    if path is not None:
        same_model(path, module.fingerprint)
    if trainer.precision == "64-true":
        module.double()  # before a checkpoint is read into it, not after, as Lightning would
    begin = time.perf_counter()
    trainer.fit(module, train, dev, ckpt_path=path, weights_only=True)
    for penalty in penalties.values():
        penalty.to(module.device)  # which Lightning has left
    return {
        "seconds_fit": time.perf_counter() - begin,
        "epochs": trainer.current_epoch,
        "strengths": {name: float(penalty.strength) for name, penalty in penalties.items()},
        "cuts": getattr(proximal[0], "sequence", []),
        "counts": counts.history,
        "outer": [tuple(line) for line in getattr(proximal[0], "history", [])],
        **_proved(trainer),
    }


def _proved(trainer: lightning.Trainer) -> dict[str, float | None]:
    """What the solver proves of its last point."""
    (optimizer,) = trainer.optimizers
    proof = solver_of(optimizer).proof()
    return {"gap": proof.gap, **{name: getattr(proof, name) for name in PROVED}}


def _train(stage: Stage, data: Data, one_by_one: bool, sharing: dict):
    if not one_by_one:
        return data.batches("train", stage.batch, shuffle=True, seed=stage.seed, **sharing)
    if sharing["world"] > 1:
        raise UserError(f"trainer.devices={sharing['world']}: a solver that goes from sentence to sentence has one")
    return data.passages("train", stage.batch, stage.seed)


def _proximal(stage: Stage, penalties, main, support, items: int) -> list[ProximalStep]:
    """A budget, and copies, are for the first term, the others keep their strengths."""
    if stage.admm is not None:
        if stage.budget is not None:
            raise UserError("reg.admm and reg.budget both change the penalty while it is trained under: choose one")
        return [OuterIterations(penalties, main, Admm.of(stage.admm), items, stage.every, stage.warmup, support)]
    if stage.budget is None:
        return [ProximalStep(penalties, stage.every, stage.warmup, support)]
    if stage.warmup:
        raise UserError(f"reg.warmup={stage.warmup} is for a strength, which reg.budget={stage.budget} does without")
    others = {name: penalty for name, penalty in penalties.items() if name not in main}
    own, rest = ({n: m for n, m in support.items() if (n in main) == first} for first in (True, False))
    found: list[ProximalStep] = [Budget(main, stage.budget, stage.every, stage.freeze, own)]
    return [*found, ProximalStep(others, stage.every, 0, rest)] if others else found


def selecting(outcomes: Sequence[Outcome]) -> Outcome:
    """The last stage with a penalty of groups, which has chosen among them; the first one if there is none."""
    grouped = [o for o in outcomes if any(p.groups is not None for p in o.penalties.values())]
    return grouped[-1] if grouped else outcomes[0]


def figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """The figures of a run: those of the stage whose penalty made the zeros, and of the last one by its side."""
    shown = ("objective", "penalty", "stationarity", "duality_gap", "near_gap", "groups_uncertified")
    shown += ("critical_strength", "strength")
    first, last = selecting(outcomes).figures, outcomes[-1].figures
    items = sum(o.data.items * o.figures["epochs"] for o in outcomes)
    counts = [line for o in outcomes for line in o.figures["counts"]]
    if counts:  # of solvers that go from sentence to sentence
        peaks = {"rows_peak": max(line[2] for line in counts), "weights_peak": max(line[3] for line in counts)}
    else:
        peaks = {}
    beside = {f"final_{key}": last[key] for key in ("objective", "stationarity")} if len(outcomes) > 1 else {}
    speed = items / sum(o.figures["seconds_fit"] for o in outcomes)
    return {key: first[key] for key in shown} | beside | peaks | {"items_per_second": speed}
