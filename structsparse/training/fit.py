"""The fit of a stage: build the module, set the strengths, train, load the chosen checkpoint, certify the optimum."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.base.files import write_text
from structsparse.solvers.base import Capabilities, Proof, solver_of
from structsparse.training import certificate, legality
from structsparse.training.callbacks.budget import Budget
from structsparse.training.callbacks.checkpoints import LAST, Checkpoints, StopAtNaN, checked_checkpoint
from structsparse.training.callbacks.converged import StopWhenConverged
from structsparse.training.callbacks.memory import MemorySteps
from structsparse.training.callbacks.online import Counts, Mean
from structsparse.training.callbacks.outer import Admm, OuterIterations
from structsparse.training.callbacks.proximal import ProximalStep
from structsparse.training.certificate import Certificate
from structsparse.training.data import Data
from structsparse.training.search.strengths import (
    residual_at_zero,
    reweight_groups,
    set_absolute_strengths,
    set_strengths,
)
from structsparse.training.stage import FitRecord, Objective, Stage, StageFigures, StageResult, Strengths
from structsparse.training.task import Task

FINISHED = "finished.json"  # file with the record of a finished fit, beside the checkpoints


def run(
    stage: Stage,
    task: Task,
    data: Data,
    before: StageResult | None,
    folder: Path,
    resume: bool,
    start: Mapping[str, Tensor] | None = None,
) -> StageResult:
    """Fit of a stage: narrow the data, build the module, set the strengths, train, and certify the optimum.

    - before: the result of the previous stage, whose surviving features are kept
    - start: initial weights by parameter name, if they do not come from the previous stage
    - folder: the folder for the checkpoints of the stage; if `resume` is true, training continues from them"""
    data, support = _survivors(stage, task, data, before)
    lightning.seed_everything(stage.seed, verbose=False)
    optimizer = make_optimizer(stage)
    begin = time.perf_counter()
    legality.check(task, stage)
    module, terms = task.build(stage, data)
    seconds = time.perf_counter() - begin
    if not terms:  # a model that is estimated by counting is complete once it is built
        return StageResult(data, module, {}, StageFigures(stage.name, record=FitRecord(seconds, epochs=1)))
    task.check_solver(stage, module, optimizer, support)
    warm = before is not None and stage.warm
    if warm:
        task.inherit(module, before, support)
    if start is not None:
        module.load_state_dict(start)
    objective = Objective(stage, data, module, terms, support)
    strengths, at_zero = _set_strengths(objective, before, cold=not warm and start is None)
    checkpoints = Checkpoints(folder, f"dev/{data.metric}", stage.choose, stage.patience)
    record = _trained(objective, checkpoints, resume, solver_of(optimizer))
    _load_chosen(objective, checkpoints, record)
    strengths = replace(strengths, first=float(next(iter(objective.penalties.values())).strength))
    figures = StageFigures(stage.name, seconds, strengths, record=record)
    return _certified(objective, StageResult(data, module, objective.penalties, figures, at_zero, {}, support))


def probe(stage: Stage, task: Task, data: Data) -> StageResult:
    """Fit of a stage with all penalised parameters at zero, where a regularization path begins.

    Only parameters without a penalty are fitted."""
    lightning.seed_everything(stage.seed, verbose=False)
    legality.check(task, stage)
    module, terms = task.build(stage, data)
    if not terms:
        raise UserError("path: this model is counted, not trained: it has no strength")
    objective = Objective(stage, data, module, terms, {})
    strengths, at_zero = set_strengths(objective, cold=True)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in at_zero:
                parameter.zero_()
    return StageResult(data, module, objective.penalties, StageFigures(stage.name, strengths=strengths), at_zero)


def validate(stage: Stage, task: Task, data: Data) -> None:
    """Fit of a stage: refuse a wrongly configured later stage before earlier stages are fitted."""
    try:
        legality.check(task, stage)
        for term in stage.terms:
            term.foresee()
        if stage.reweight is not None:
            stage.terms[0].foresee_reweighting()
        if stage.admm is not None:
            Admm.of(stage.admm)
        task.validate(stage, data, make_optimizer(stage))
    except UserError as error:
        raise UserError(f"recipe.{stage.name}: {error}") from None


def make_optimizer(stage: Stage) -> torch.optim.Optimizer:
    """Fit of a stage: the optimizer over one dummy parameter, to find mistakes in the solver options early."""
    try:
        optimizer = stage.optimizer([nn.Parameter(torch.zeros(1))])
        solver_of(optimizer).check_prox([])
    except (TypeError, ValueError) as error:
        raise UserError(f"solver: {error}") from error
    return optimizer


def refuse_dead(task: Task, result: StageResult) -> StageResult:
    """Fit of a stage: return the result unchanged, or raise UserError if all weights are zero."""
    if not task.alive(result):
        strengths = result.figures.strengths
        critical = float("nan") if strengths.critical is None else strengths.critical
        raise UserError(
            f"every group is dead: at strength {strengths.first:.4g} (critical {critical:.4g}) no weight survives; "
            "lower reg.strength"
        )
    return result


# --- before training


def _survivors(stage: Stage, task: Task, data: Data, before: StageResult | None) -> tuple[Data, dict[str, Tensor]]:
    """Fit of a stage: the data and the entries that survived the previous stage.

    Returns the data without dead feature rows. Also returns masks of the entries that may be nonzero, by parameter
    name."""
    if before is None:
        return data, {}
    if stage.survivors:
        return task.narrow(before, before.survivors())
    return before.data, before.support


def _set_strengths(objective: Objective, before: StageResult | None, cold: bool) -> tuple[Strengths, dict[str, Tensor]]:
    """Fit of a stage: make the penalty strengths absolute, and prepare the penalties for training.

    `cold`: whether the initial weights do not come from another fit. Returns the strengths, and the gradients of the
    mean loss at zero weights by parameter name (empty if not needed)."""
    stage = objective.stage
    if stage.proven or any(term.relative is True for term in stage.terms):
        strengths, at_zero = set_strengths(objective, cold)
    else:
        strengths, at_zero = set_absolute_strengths(objective), {}
    for term, penalties in objective.terms:
        term.kind.at_start(penalties, dict(objective.module.named_parameters()))
    if stage.reweight is not None:
        strengths = replace(reweight_groups(objective, before), terms=strengths.terms)
    return strengths, at_zero


# --- training


def _trained(objective: Objective, checkpoints: Checkpoints, resume: bool, solver: Capabilities) -> FitRecord:
    """Fit of a stage: the record of the fit, read from the folder if an earlier run finished it, else made anew."""
    finished, last = checkpoints.folder / FINISHED, checkpoints.folder / LAST
    if resume and finished.is_file():
        checked_checkpoint(checkpoints.chosen, objective.module)
        return FitRecord.of(json.loads(finished.read_text()))
    record = _train(objective, checkpoints, last if resume and last.is_file() else None, solver)
    write_text(finished, json.dumps(asdict(record)))
    return record


def _train(objective: Objective, checkpoints: Checkpoints, last: Path | None, solver: Capabilities) -> FitRecord:
    """Fit of a stage: train until the trainer stops, from the checkpoint `last` if there is one.

    `solver` holds the capabilities of the solver."""
    stage, module = objective.stage, objective.module
    proximal, counts = _proximal_steps(objective), Counts()
    steps = [StopAtNaN(), *proximal, Mean(), counts, StopWhenConverged()]
    host_only = solver.name if solver.host_only else type(module).__name__ if module.host_only else None
    trainer = stage.trainer(before=steps, after=[checkpoints], penalties=objective.penalties, host_only=host_only)
    sharing = {"rank": trainer.global_rank, "world": trainer.world_size}
    train, dev = _batches(objective, solver.needs_sentences, sharing), objective.data.batches("dev", 256, **sharing)
    if last is not None:
        checked_checkpoint(last, module)
    if trainer.precision == "64-true":
        # convert the module to float64 before the checkpoint is loaded; Lightning would do so too late and lose digits
        module.double()
    begin = time.perf_counter()
    trainer.fit(module, train, dev, ckpt_path=last, weights_only=True)
    for penalty in objective.penalties.values():
        penalty.to(module.device)  # Lightning has moved the module back to the CPU
    (optimizer,) = trainer.optimizers
    return FitRecord(
        seconds=time.perf_counter() - begin,
        epochs=trainer.current_epoch,
        strengths={name: float(penalty.strength) for name, penalty in objective.penalties.items()},
        cuts=proximal[0].cuts,
        counts=counts.history,
        outer=[tuple(line) for line in proximal[0].outer],
        memory=[tuple(line) for line in proximal[0].memory],
        proof=solver_of(optimizer).proof(),
    )


def _batches(objective: Objective, one_by_one: bool, sharing: Mapping[str, int]) -> Iterable:
    """Fit of a stage: the train part in random order, as batches or as blocks of sentences for an online solver.

    `sharing` holds the rank of this process and the number of processes."""
    stage, data = objective.stage, objective.data
    if not one_by_one:
        return data.batches("train", stage.batch, shuffle=True, seed=stage.seed, **sharing)
    if sharing["world"] > 1:
        raise UserError(f"trainer.devices={sharing['world']}: a solver that goes from sentence to sentence has one")
    return data.passages("train", stage.batch, stage.seed)


def _proximal_steps(objective: Objective) -> list[ProximalStep]:
    """Fit of a stage: the callbacks that apply the penalties during training.

    A budget or ADMM applies to the penalty that `reg` configures. The penalties of `also` keep their strengths."""
    stage, support = objective.stage, objective.support
    if stage.admm is not None:
        if stage.budget is not None:
            raise UserError("reg.admm and reg.budget both change the penalty while it is trained under: choose one")
        options, items = Admm.of(stage.admm), objective.data.items
        return [
            OuterIterations(objective.penalties, objective.main, options, items, stage.every, stage.warmup, support)
        ]
    remembering = [penalty for penalty in objective.penalties.values() if penalty.remembers]
    if remembering:
        tolerance = remembering[0].tolerance
        return [MemorySteps(objective.penalties, tolerance, stage.every, stage.warmup, support)]
    if stage.budget is None:
        return [ProximalStep(objective.penalties, stage.every, stage.warmup, support)]
    if stage.warmup:
        raise UserError(f"reg.warmup={stage.warmup} is for a strength, which reg.budget={stage.budget} does without")
    main = objective.main
    further = {name: penalty for name, penalty in objective.penalties.items() if name not in main}
    of_main, of_further = ({n: m for n, m in support.items() if (n in main) == first} for first in (True, False))
    budget = Budget(main, stage.budget, stage.every, stage.freeze, of_main)
    return [budget, ProximalStep(further, stage.every, 0, of_further)] if further else [budget]


# --- after training


def _load_chosen(objective: Objective, checkpoints: Checkpoints, record: FitRecord) -> None:
    """Fit of a stage: load the weights of the chosen checkpoint, and the penalty strengths from the end of training."""
    module, penalties = objective.module, objective.penalties
    for name, strength in record.strengths.items():
        penalties[name].strength = strength
    saved = torch.load(checked_checkpoint(checkpoints.chosen, module), weights_only=True)
    module.to(next(value.dtype for value in saved["state_dict"].values() if value.is_floating_point()))
    module.load_state_dict(saved["state_dict"])
    for term, penalties in objective.terms:
        term.kind.at_end(penalties, dict(module.named_parameters()))


def _certified(objective: Objective, result: StageResult) -> StageResult:
    """Fit of a stage: the result with a certificate, or with the objective alone if no certificate is wanted.

    A certificate holds figures that bound how far the weights are from an optimum."""
    stage, figures = objective.stage, result.figures
    if not stage.proven or not result.module.certified:
        value = certificate.objective(result.module, result.data.whole("train"), result.penalties)
        proven = Certificate(objective=value, stationarity=figures.record.proof.kkt)
        return replace(result, figures=replace(figures, certificate=proven))
    proof = figures.record.proof if stage.choose == "last" else Proof()  # solvers prove figures of the last model only
    if result.at_zero and proof.kkt is None:
        figures = replace(figures, residual_at_zero=residual_at_zero(result.penalties, result.at_zero))
    proven, at_end = certificate.prove(
        result.module, result.data.whole("train"), result.penalties, objective.main, result.support,
        figures.residual_at_zero, proof, bounded=stage.budget is None,
    )  # fmt: skip
    return replace(result, figures=replace(figures, certificate=proven), at_end=at_end)
