"""How the stages of a run build classifiers of documents, and what a run leaves behind of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Labelled
from structsparse.features import filters
from structsparse.features.words import WordLayout
from structsparse.groups import Cover
from structsparse.losses.pointwise import PointwiseLoss
from structsparse.penalties import Penalty
from structsparse.report import tables as report
from structsparse.solvers.base import solver_of
from structsparse.solvers.overlaps.design import Design
from structsparse.tasks.textcat import artifact
from structsparse.tasks.textcat.data import OPTIONS, DocumentBatch, DocumentData, prepare
from structsparse.tasks.textcat.explain import explain
from structsparse.tasks.textcat.model import BagClassifier
from structsparse.tasks.textcat.predictor import Classifier
from structsparse.tasks.textcat.scores import ClassScore, SquaredError
from structsparse.training import certificate
from structsparse.training import stage as recipe
from structsparse.training.module import TaskModule
from structsparse.training.stage import Outcome, Stage
from structsparse.training.task import Placed, Task, fingerprint
from structsparse.training.terms import Term, borne, place
from structsparse.weights.notes import notes_of

MOST = 10_000  # words, and groups, in the report


def bag(data: DocumentData) -> BagClassifier:
    """A weight for each word; all begin at zero."""
    return BagClassifier(len(data.bag.layout), data.outputs)


class Classification(TaskModule):
    """Trains a BagClassifier under a loss of documents."""

    def __init__(
        self,
        model: BagClassifier,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        score: Callable[[], ClassScore | SquaredError],
        penalised: tuple[str, ...],
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, score, penalised, final_lr, fingerprint)
        self.model = model

    @property
    def linear(self) -> bool:
        return self.model.linear

    def step(self, batch: DocumentBatch) -> Tensor:
        return self.loss(self.model(batch.matrix, batch.transposed), batch.targets).sum() / batch.items

    def count(self, batch: DocumentBatch, score: ClassScore | SquaredError) -> None:
        scores, targets = self.model(batch.matrix, batch.transposed), batch.targets
        if isinstance(score, SquaredError):
            score.add(targets.cpu().numpy(), scores.cpu().numpy())
            return
        gold = targets if scores.dim() > 1 else targets > 0
        score.add(gold.long().cpu().numpy(), decided(scores).cpu().numpy())


def decided(scores: Tensor) -> Tensor:
    """The class of each document: int64 [documents]"""
    return scores.argmax(dim=1) if scores.dim() > 1 else (scores > 0).long()


@dataclass(frozen=True)
class TextcatTask(Task):
    """Text categorization: the class of a document, or a number, from its words."""

    shown: Mapping[str, Sequence[int]] | None = None  # documents that the explanation shows, by part and number
    name: str = "textcat"
    layout = WordLayout
    models = (bag,)
    losses = (PointwiseLoss,)

    def prepare(self, corpus: Labelled, features: Mapping, filter: Callable, cache: int) -> DocumentData:
        """Each word is a feature: none is chosen or cached."""
        if not isinstance(corpus, Labelled):
            raise UserError(
                "task=textcat reads documents with labels: take data=documents, newsgroups or another of them"
            )
        if not {*features} <= OPTIONS or getattr(filter, "func", filter) is not filters.all_of:
            raise UserError("task=textcat has words and no templates: leave out features=... and filter=...")
        shown = None if self.shown is None else _documents_shown(self.shown, corpus)
        return prepare(corpus, features, shown)

    def build(self, stage: Stage, data: DocumentData) -> tuple[Classification, Placed]:
        model, loss = stage.scorer(data), stage.loss()
        _check_loss(loss, data)
        parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        layout = data.bag.layout
        placed = place([_remembering(term, data) for term in stage.terms], parameters, layout)
        names = tuple(name for _, penalties in placed for name in penalties)
        identity = fingerprint(stage, *_identity(data))
        module = Classification(model, loss, stage.optimizer, data.score, names, stage.final_lr, identity)
        notes_of(model.table).design = Design(data.columns, data.targets("train"), loss.kind, model.bias)
        squares = data.columns.power(2).sum(axis=0) / data.items  # [words], in proportion to the second derivatives
        squares = torch.from_numpy(np.maximum(squares, 1 / data.items))
        notes_of(model.table).curvature = squares if model.table.dim() == 1 else squares[:, None]
        notes_of(model.bias).curvature = torch.ones((), dtype=torch.float64)
        return module, placed

    def foresee(self, stage: Stage, data: DocumentData, optimizer: torch.optim.Optimizer) -> None:
        _check_loss(stage.loss(), data)
        borne(stage.terms, ["model.table", "model.bias"])

    def check(self, stage: Stage, module, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]) -> None:
        if solver_of(optimizer).needs_sentences:
            raise UserError(
                "solver: one that goes from sentence to sentence is for taggers; take majorize or fista, or adam with "
                "batch=32"
            )

    def narrow(self, before: Outcome, support: dict[str, Tensor]) -> tuple[DocumentData, dict[str, Tensor]]:
        """All words stay, as groups are made of them; what is dead is kept so."""
        return before.data, {name: mask for name, mask in support.items() if not mask.all()}

    @torch.no_grad()
    def inherit(self, module: Classification, before: Outcome, support: dict[str, Tensor]) -> None:
        module.model.load_state_dict(before.module.model.state_dict())
        for name, mask in support.items():
            dict(module.named_parameters())[name].mul_(mask)

    def alive(self, outcome: Outcome) -> bool:
        return bool((outcome.module.model.table != 0).any())

    def sparsity(self, data: DocumentData, first: Outcome, last: Outcome) -> dict[str, object]:
        living = last.module.model.table.detach().cpu() != 0
        rows = living if living.dim() == 1 else living.any(dim=1)
        counts = {
            "features": len(rows),
            "weights": living.numel(),
            "nonzero": int(living.sum()),
            "rows_alive": int(rows.sum()),
        }
        alive = {name: _alive(first, name) for name, p in first.penalties.items() if p.groups is not None}
        if alive:
            counts["groups"] = sum(map(len, alive.values()))
            counts["groups_alive"] = sum(int(lives.sum()) for lives in alive.values())
        return counts | _found(data, first, alive, rows.numpy())

    def write_report(
        self, folder: Path, data: DocumentData, outcomes: Sequence[Outcome], last: Outcome
    ) -> report.Table | None:
        table = word_table(data, last.module.model)
        report.write_text(folder / "words.tsv", report.tsv(table))
        report.write_text(folder / "words.md", report.markdown(report.Table(table.header, table.rows[:100])))
        first = recipe.selecting(outcomes)
        explain_last(folder, data, first, last)
        for name, penalty in first.penalties.items():
            if penalty.groups is not None:
                groups = group_table(data, first, name, penalty)
                report.write_groups(folder, groups)
                return groups
        return table

    def export(self, folder: Path, outcome: Outcome, console: Console) -> int | None:
        return artifact.save(folder, classifier_of(outcome))


def _documents_shown(requested: Mapping[str, Sequence[int]], labelled: Labelled) -> list[tuple[str, int]]:
    """(part, number) of each document."""
    if not isinstance(requested, Mapping) or not all(isinstance(numbers, Sequence) for numbers in requested.values()):
        raise UserError(f"task.shown={requested}: expected parts and numbers of documents, as in {{test: [0, 7]}}")
    return explain.checked([(part, number) for part, numbers in requested.items() for number in numbers], labelled)


def classifier_of(outcome: Outcome) -> Classifier:
    """What remains of a fit once the training is over."""
    data, model = outcome.data, outcome.module.model
    table, bias = (p.detach().cpu().numpy() for p in (model.table, model.bias))
    return Classifier.of(data.bag, table, bias, data.classes, data.labelled.reading, outcome.module.loss.kind)


def explain_last(folder: Path, data: DocumentData, first: Outcome, last: Outcome) -> None:
    """What the last model looks at, in the groups of the penalty that selected."""
    model = last.module.model
    table, bias = (p.detach().cpu().numpy() for p in (model.table, model.bias))
    covers = {name: p.groups for name, p in first.penalties.items() if isinstance(p.groups, Cover)}
    name, cover = next(iter(covers.items()), (None, None))
    alive = None if cover is None else _alive(first, name).cpu().numpy()
    loss = last.module.loss.kind
    told = explain.explain(data.labelled, data.bag, table, bias, cover, data.shown, loss, alive)
    explain.write(folder, told)


def word_table(data: DocumentData, model: BagClassifier) -> report.Table:
    """The living words, those first that move the scores of train the most: weight times root mean square."""
    table, layout = model.table.detach().cpu().numpy(), data.bag.layout
    table = table[:, None] if table.ndim == 1 else table  # [words, outputs]
    squares = data.columns.power(2).sum(axis=0) / data.items
    moves = np.sqrt(np.square(table).sum(axis=1) * squares)
    order = np.argsort(-moves, kind="stable")[: min(MOST, int((table != 0).any(axis=1).sum()))]
    names = data.classes if table.shape[1] > 1 else ("weight",)
    columns = *table.T, moves, layout.documents, layout.counts
    numbers = zip(*(column[order].tolist() for column in columns), strict=True)
    rows = [(layout.words[row], *own) for row, own in zip(order.tolist(), numbers, strict=True)]
    return report.Table(("word", *names, "moves scores by", "documents", "count"), rows)


def group_table(data: DocumentData, first: Outcome, name: str, penalty: Penalty) -> report.Table:
    """The groups of the penalty that selected; of very many those with the largest norms."""
    groups, weights = penalty.groups, dict(first.module.named_parameters())[name].detach().cpu()
    wanted = certificate.violated(penalty, weights, first.at_end[name].cpu()) if name in first.at_end else None
    if len(groups) > MOST:
        chosen = groups.norms(weights).argsort(descending=True, stable=True)[:MOST]
        groups, wanted = groups.subset(chosen), None if wanted is None else wanted[chosen]
    return report.group_table(groups, weights, would_wake=wanted, truth=data.truth)


def _alive(outcome: Outcome, name: str) -> Tensor:
    """Bool [groups] of a penalty."""
    return outcome.penalties[name].groups.alive(dict(outcome.module.named_parameters())[name].detach())


def _found(data: DocumentData, first: Outcome, alive: Mapping[str, Tensor], rows: np.ndarray) -> dict[str, float]:
    """How much of the planted truth the living groups are, and how much of it they hold. Where the penalty has none of
    these groups, one lives if a word of it does."""
    truth = {*data.truth}
    if not truth:
        return {}
    living = {first.penalties[name].groups.names[g] for name, a in alive.items() for g in a.nonzero()[:, 0].tolist()}
    known = {group for name in alive for group in first.penalties[name].groups.names}
    if not truth <= known:
        layout = data.bag.layout
        words_alive = {layout.words[row] for row in np.flatnonzero(rows).tolist()}
        living = {name for name, members in data.labelled.groups.items() if words_alive & {*members}}
    right = len(truth & living)
    return {"planted_precision": right / len(living) if living else 0.0, "planted_recall": right / len(truth)}


def _check_loss(loss, data: DocumentData) -> None:
    if data.classes is None and loss.kind != "squared":
        raise UserError(f"loss={loss.kind} is for classes, the labels of {data.name} are numbers; take loss=squared")


def _remembering(term: Term, data: DocumentData) -> Term:
    """The term, with groups that are made once, however many models they are for."""
    if term.groups is None:
        return term
    making, covers = term.groups, data.covers

    def groups(shape: Sequence[int], layout, **options) -> Cover:
        key = f"{_described(making)} {tuple(shape)} {options}"
        if key not in covers:
            covers[key] = making(shape, layout, **options)
        return covers[key]

    return replace(term, groups=groups)


def _described(value) -> str:
    """What tells one way to make groups from another."""
    if isinstance(value, partial):
        return f"{_described(value.func)}({_described(list(value.args))}, {_described(dict(value.keywords))})"
    if isinstance(value, Mapping):
        return str({key: _described(v) for key, v in value.items()})
    if isinstance(value, list | tuple):
        return str([_described(v) for v in value])
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)


def _identity(data: DocumentData) -> tuple:
    """What tells these data from others."""
    train = data.matrices["train"]
    return data.name, list(data.bag.layout.words), train.indptr, train.indices, train.data, data.targets("train")
