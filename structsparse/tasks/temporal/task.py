"""The task of drift models: the Lightning module, and how training stages build, select and report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.corpora.dated import DatedCorpus
from structsparse.features import filters
from structsparse.losses.counts import counts
from structsparse.losses.pointwise import Logistic, Squared
from structsparse.penalties.drift import Likelihood, PeriodLayout
from structsparse.report.tables import Table
from structsparse.solvers.base import solver_of
from structsparse.solvers.newton_cg import NewtonCG
from structsparse.tasks.temporal import artifact, evidence, report
from structsparse.tasks.temporal.data import DatedBatch, DriftData, prepare
from structsparse.tasks.temporal.model import DriftModel
from structsparse.tasks.temporal.predictor import DriftPredictor
from structsparse.tasks.temporal.scores import DriftScore
from structsparse.training.module import TaskModule
from structsparse.training.stage import Stage, StageResult, TermPenalties
from structsparse.training.task import Task
from structsparse.training.terms import borne, place
from structsparse.weights.notes import notes_of

TABLE = "model.table"  # name of the parameter with the weights, the only one that is penalised


def drift(data: DriftData) -> DriftModel:
    """Task of drift models: make a model with all weights zero; without a response it has no bias."""
    return DriftModel(data.periods, len(data.names), data.metric != "nll")


class DriftModule(TaskModule):
    """The Lightning module of drift models."""

    def __init__(
        self,
        model: DriftModel,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        metric: str,
        memory: nn.Module,
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, lambda: DriftScore(metric), (TABLE,), final_lr, fingerprint)
        self.model = model
        self.memory = memory  # the penalty of the table; its buffers travel in checkpoints

    @property
    def linear(self) -> bool:
        """Module of drift models: whether the scores are linear in all parameters; they are."""
        return True

    def training_step(self, batch: DatedBatch, batch_idx: int) -> Tensor:
        """Module of drift models: let Newton's method fit the weights; other solvers get the loss."""
        solver = self.optimizers(use_pl_optimizer=False)
        if isinstance(solver, NewtonCG):
            return solver.sweep(self.model, self.loss, batch)
        return super().training_step(batch, batch_idx)

    def step(self, batch: DatedBatch) -> Tensor:
        """Module of drift models: the mean loss of a batch."""
        return self.loss(self.model(batch), batch.targets).sum() / batch.items

    @torch.no_grad()
    def likelihood(self, batch: DatedBatch) -> Likelihood:
        """Module of drift models: curvature and residuals at the present weights, for a penalty with memory."""
        scores, y, loss = self.model(batch), batch.targets, self.loss
        curvature = batch.design.squares(loss.second(scores, y), len(self.model.table))
        pearson = loss.pearson(scores, y) if loss.dispersion is None else None
        return Likelihood(curvature, loss(scores, y).sum(), pearson, y.numel(), loss.least_dispersion)

    def count(self, batch: DatedBatch, score: DriftScore) -> None:
        """Module of drift models: add the errors of a batch to a score."""
        scores, y = self.model(batch), batch.targets
        if score.metric == "nll":
            score.add(float(-(y * torch.log_softmax(scores, dim=1)).sum()), float(y.sum()))
        elif score.metric == "accuracy":
            score.add(float((y * scores > 0).sum()), len(y))
        else:
            score.add(float((scores - y).square().sum()), len(y))


@dataclass(frozen=True)
class TemporalTask(Task):
    """The task of drift models: forecast a response, or the words of the next period, by weights that drift."""

    name: str = "temporal"
    layout = PeriodLayout
    models = (drift,)
    losses = (Squared, Logistic, counts)
    tensor_parts = artifact.TENSOR_PARTS

    def prepare(self, corpus, features: Mapping, filter: Callable, cache: int) -> DriftData:
        """Task of drift models: make designs of dated items."""
        if not isinstance(corpus, DatedCorpus):
            raise UserError("task=temporal reads dated items: take data=dated, fomc or sotu")
        if not filters.keeps_all(filter):
            raise UserError("task=temporal has words and no templates: leave out filter=...")
        return prepare(corpus, features)

    def build(self, stage: Stage, data: DriftData) -> tuple[DriftModule, TermPenalties]:
        """Task of drift models: build the Lightning module and the penalties of a stage."""
        model, loss = stage.scorer(data), stage.loss()
        _check_loss(loss, data)
        layout = data.layout()
        if loss.dispersion is not None:
            layout.noise = loss.dispersion
        parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        penalties = place(stage.terms, parameters, layout)
        identity = stage.fingerprint(*_identity(data))
        memory = next(by_name[TABLE] for _, by_name in penalties if TABLE in by_name)
        module = DriftModule(model, loss, stage.optimizer, data.metric, memory, stage.final_lr, identity)
        batch, start = data.batch("train"), torch.zeros_like(model.table)
        second = loss.second(model(batch).detach(), batch.targets)
        curvature = batch.design.squares(second, len(start)) / batch.items
        notes_of(model.table).curvature = curvature.clamp(min=1 / batch.items)
        if model.bias is not None:
            notes_of(model.bias).curvature = torch.ones((), dtype=torch.float64)
        return module, penalties

    def validate(self, stage: Stage, data: DriftData, optimizer: torch.optim.Optimizer) -> None:
        """Task of drift models: raise an error for a loss or parameters that do not fit."""
        _check_loss(stage.loss(), data)
        borne(stage.terms, [TABLE, "model.bias"])

    def check_solver(
        self, stage: Stage, module: DriftModule, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Task of drift models: raise an error for solvers that go from sentence to sentence."""
        if solver_of(optimizer).needs_sentences:
            raise UserError(
                "solver: online solvers go from sentence to sentence; task=temporal takes newton_cg or fista"
            )
        if stage.batch is not None:
            raise UserError(f"batch={stage.batch}: task=temporal trains on all items at once: leave out batch=...")

    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[DriftData, dict[str, Tensor]]:
        """Task of drift models: the data without dead features, and with the class of the others, by evidence.

        After a penalty without memory, such as l1, the features with a nonzero weight are left, and all may drift."""
        kinds = kinds_of(before)
        if not kinds.any():
            raise UserError(
                "every feature is dead: no feature has evidence for weights that differ from zero; the response does "
                "not depend on these features, or there are too few items (recipe=direct keeps all features)"
            )
        return before.data.keep_kinds(kinds), {}

    @torch.no_grad()
    def inherit(self, module: DriftModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Task of drift models: start from the weights of the previous stage; tied weights from their mean."""
        kept = np.flatnonzero(kinds_of(before))
        table = before.module.model.table[:, torch.from_numpy(kept)]
        tied = module.memory.tied
        module.model.table.copy_(table if tied is None else torch.where(tied, table.mean(dim=0), table))
        if module.model.bias is not None:
            module.model.bias.copy_(before.module.model.bias)

    def alive(self, result: StageResult) -> bool:
        """Task of drift models: whether any weight is nonzero."""
        return bool((result.module.model.table != 0).any())

    def sparsity(self, data: DriftData, first: StageResult, last: StageResult) -> dict[str, object]:
        """Task of drift models: counts of features, of weights and of dead, constant and drifting features.

        For a planted corpus, the result has precision and recall of the three classes, their means over classes."""
        kinds = final_kinds(data, last)
        living = int((kinds > 0).sum())
        table = last.module.model.table
        return {
            "features": len(kinds),
            "periods": len(table),
            "weights": len(kinds) * len(table),
            "nonzero": int((table != 0).sum()),
            "features_alive": living,
            **report.class_counts(kinds),
            "noise": float(noise_of(last)),
            **report.planted_scores(data, kinds),
        }

    def write_report(
        self, folder: Path, data: DriftData, results: Sequence[StageResult], last: StageResult
    ) -> Table | None:
        """Task of drift models: write trajectories and the table of features; returns the table for the console."""
        return report.write(folder, data, final_kinds(data, last), predictor_of(last))

    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Task of drift models: write the artifact, with living trajectories only; returns its size in bytes."""
        return artifact.save(folder, predictor_of(result))


def _check_loss(loss: nn.Module, data: DriftData) -> None:
    """Task of drift models: raise an error if the loss does not fit the response."""
    fitting = {"mse": ("squared",), "accuracy": ("logistic",), "nll": ("poisson", "multinomial")}[data.metric]
    if loss.kind not in fitting:
        what = {"mse": "numbers", "accuracy": "two classes", "nll": "word counts, without a response"}[data.metric]
        choice = {"mse": "squared", "accuracy": "logistic", "nll": "counts"}[data.metric]
        raise UserError(f"loss={loss.kind} does not fit {data.name}, which has {what}; take loss={choice}")


def kinds_of(result: StageResult) -> np.ndarray:
    """Task of drift models: the class of each feature after a stage (DEAD, CONSTANT, DRIFTING).

    A drift penalty that did not tie features yet decides by evidence; features of a later stage keep their classes."""
    data, module = result.data, result.module
    table = module.model.table.detach()
    if data.kinds is not None:
        return data.kinds
    if not module.memory.remembers:
        return np.where((table != 0).any(dim=0).cpu().numpy(), np.where(_same(table), 1, 2), 0)
    batch = module.transfer_batch_to_device(data.batch("train"), module.device, 0)
    likelihood, noise = module.likelihood(batch), noise_of(result)
    with torch.no_grad():
        slopes = -batch.design.pull(module.loss.first(module.model(batch), batch.targets), len(table))
    return evidence.classes(table, likelihood.curvature / noise, slopes / noise)[0]


def _same(table: Tensor) -> np.ndarray:
    """Task of drift models: mask of the features whose weights are the same in all periods."""
    return (table == table[0]).all(dim=0).cpu().numpy()


def final_kinds(data: DriftData, last: StageResult) -> np.ndarray:
    """Task of drift models: the class of each feature of the data after the last stage.

    Features of a single stage, without selection, are dead only where all their weights are exactly zero."""
    kinds = np.zeros(len(data.names), np.int64)
    table = last.module.model.table.detach()
    here = np.where((table != 0).any(dim=0).cpu().numpy(), np.where(_same(table), 1, 2), 0)
    columns = np.arange(len(kinds)) if last.data.columns is None else last.data.columns
    kinds[columns] = here
    return kinds


def noise_of(result: StageResult) -> Tensor:
    """Task of drift models: the dispersion of a stage's likelihood; without memory, from its residuals."""
    module = result.module
    if module.memory.remembers:
        return module.memory.noise
    if module.loss.dispersion is not None:
        return torch.tensor(module.loss.dispersion, dtype=torch.float64)
    likelihood = module.likelihood(result.data.batch("train"))
    return likelihood.pearson / likelihood.items


@torch.no_grad()
def predictor_of(result: StageResult) -> DriftPredictor:
    """Task of drift models: the predictor of a trained stage, with bands where the penalty tells variances."""
    data, module = result.data, result.module
    table = module.model.table.detach()
    deviations = torch.zeros_like(table)
    if module.memory.remembers:
        likelihood = module.likelihood(data.batch("train"))
        deviations = module.memory.posterior(likelihood.curvature)[0].sqrt()
    bias = 0.0 if module.model.bias is None else float(module.model.bias)
    arrays = (part.cpu().numpy() for part in (table, deviations))
    return DriftPredictor.of(data, *arrays, bias, float(noise_of(result)), module.loss.kind)


def _identity(data: DriftData) -> tuple:
    """Task of drift models: what identifies the training data in the fingerprint of a stage."""
    batch = data.batch("train")
    kinds = [] if data.kinds is None else data.kinds.tolist()
    return data.name, list(data.names), list(data.corpus.periods), batch.targets.numpy(), batch.sentences.numpy(), kinds
