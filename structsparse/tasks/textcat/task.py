"""The text-categorization task: the Lightning module of text classifiers, and how training stages build them."""

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
from structsparse.corpora.documents import DocumentSplits
from structsparse.features import filters
from structsparse.features.words import WordLayout
from structsparse.groups import Cover
from structsparse.losses.pointwise import PointwiseLoss
from structsparse.report.tables import Table
from structsparse.solvers.base import solver_of
from structsparse.solvers.overlaps.design import Design
from structsparse.tasks.textcat import artifact, report
from structsparse.tasks.textcat.data import OPTIONS, DocumentBatch, DocumentData, prepare
from structsparse.tasks.textcat.explain.explain import checked
from structsparse.tasks.textcat.model import BagClassifier
from structsparse.tasks.textcat.predictor import Classifier
from structsparse.tasks.textcat.scores import ClassScore, SquaredError
from structsparse.training.module import TaskModule
from structsparse.training.stage import Stage, StageResult, TermPenalties, selecting_stage
from structsparse.training.task import Task
from structsparse.training.terms import Term, borne, place
from structsparse.weights.notes import notes_of


def bag(data: DocumentData) -> BagClassifier:
    """Text-categorization task: make a bag-of-words classifier with all weights zero."""
    return BagClassifier(len(data.bag.layout), data.outputs)


class ClassifierModule(TaskModule):
    """The Lightning module of the text-categorization task, which trains and scores a `BagClassifier`."""

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
        """Text-categorization module: whether the scores are linear in the parameters."""
        return self.model.linear

    def step(self, batch: DocumentBatch) -> Tensor:
        """Text-categorization module: the summed loss of a batch, divided by the number of documents in the step.

        A training step has one batch of documents per process."""
        return self.loss(self.model(batch.matrix, batch.transposed), batch.targets).sum() / batch.items

    def count(self, batch: DocumentBatch, score: ClassScore | SquaredError) -> None:
        """Text-categorization module: add the gold labels and predictions of a batch of documents to a score."""
        score.add(*self._labels(batch, score.numbers))

    def count_items(self, batch: DocumentBatch) -> np.ndarray:
        """Text-categorization module: right, gold and predicted counts of each document (int64 [documents, 3]).

        The right count is 1 if the predicted class is right, else 0. The other counts are always 1. If labels are
        numbers, the first column is the squared error, and the dtype is float64."""
        numbers = self.make_score().numbers
        gold, predicted = self._labels(batch, numbers)
        first = np.square(predicted - gold) if numbers else (gold == predicted).astype(np.int64)
        return np.stack([first, np.ones_like(first), np.ones_like(first)], axis=1)

    def _labels(self, batch: DocumentBatch, numbers: bool) -> tuple[np.ndarray, np.ndarray]:
        """Text-categorization module: gold and predicted class codes, or numbers, of the documents of a batch."""
        scores, targets = self.model(batch.matrix, batch.transposed), batch.targets
        if numbers:
            return targets.cpu().numpy(), scores.cpu().numpy()
        gold = targets if scores.dim() > 1 else targets > 0
        return gold.long().cpu().numpy(), best_classes(scores).cpu().numpy()


def best_classes(scores: Tensor) -> Tensor:
    """Text-categorization task: the code of the class with the best score of each document (int64 [documents])."""
    return scores.argmax(dim=1) if scores.dim() > 1 else (scores > 0).long()


@dataclass(frozen=True)
class TextcatTask(Task):
    """The text-categorization task: predict the class of a document, or a number, from its words."""

    shown: Mapping[str, Sequence[int]] | None = None  # indices of the documents to explain, by part (train, dev, test)
    name: str = "textcat"
    layout = WordLayout
    models = (bag,)
    losses = (PointwiseLoss,)
    tensor_parts = artifact.TENSOR_PARTS

    def prepare(self, corpus: DocumentSplits, features: Mapping, filter: Callable, cache: int) -> DocumentData:
        """Text-categorization task: prepare documents as bags of words; features are not filtered or cached."""
        if not isinstance(corpus, DocumentSplits):
            raise UserError(
                "task=textcat reads documents with labels: take data=documents, newsgroups or another of them"
            )
        if not {*features} <= OPTIONS or not filters.keeps_all(filter):
            raise UserError("task=textcat has words and no templates: leave out features=... and filter=...")
        shown = None if self.shown is None else _documents_shown(self.shown, corpus)
        return prepare(corpus, features, shown)

    def build(self, stage: Stage, data: DocumentData) -> tuple[ClassifierModule, TermPenalties]:
        """Text-categorization task: build the Lightning module and the penalties of a training stage."""
        model, loss = stage.scorer(data), stage.loss()
        _check_loss(loss, data)
        parameters = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        layout = data.bag.layout
        penalties = place([_with_cached_groups(term, data) for term in stage.terms], parameters, layout)
        names = tuple(name for _, by_name in penalties for name in by_name)
        identity = stage.fingerprint(*_identity(data))
        module = ClassifierModule(model, loss, stage.optimizer, data.score, names, stage.final_lr, identity)
        notes_of(model.table).design = Design(data.columns, data.targets("train"), loss.kind, model.bias)
        # array [words]: second derivative of the loss with respect to each word's weight, up to a common factor
        squares = data.columns.power(2).sum(axis=0) / data.items
        squares = torch.from_numpy(np.maximum(squares, 1 / data.items))
        notes_of(model.table).curvature = squares if model.table.dim() == 1 else squares[:, None]
        notes_of(model.bias).curvature = torch.ones((), dtype=torch.float64)
        return module, penalties

    def validate(self, stage: Stage, data: DocumentData, optimizer: torch.optim.Optimizer) -> None:
        """Text-categorization task: raise an error if a stage cannot be trained.

        The loss must fit the labels, and penalties must be on parameters of the classifier."""
        _check_loss(stage.loss(), data)
        borne(stage.terms, ["model.table", "model.bias"])

    def check_solver(
        self, stage: Stage, module, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Text-categorization task: raise an error for online solvers, which train only taggers and parsers."""
        if solver_of(optimizer).needs_sentences:
            raise UserError(
                "solver: online solvers that go from sentence to sentence do not fit task=textcat; take majorize or "
                "fista, or adam with batch=32"
            )

    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[DocumentData, dict[str, Tensor]]:
        """Text-categorization task: the data and the masks of nonzero weights for the next training stage.

        The data keep all words. Masks that keep all weights are left out."""
        return before.data, {name: mask for name, mask in support.items() if not mask.all()}

    @torch.no_grad()
    def inherit(self, module: ClassifierModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Text-categorization task: start a classifier from the weights of the previous stage.

        Weights that a mask in `support` excludes become zero."""
        module.model.load_state_dict(before.module.model.state_dict())
        for name, mask in support.items():
            dict(module.named_parameters())[name].mul_(mask)

    def alive(self, result: StageResult) -> bool:
        """Text-categorization task: whether the trained classifier has a nonzero weight."""
        return bool((result.module.model.table != 0).any())

    def sparsity(self, data: DocumentData, first: StageResult, last: StageResult) -> dict[str, object]:
        """Text-categorization task: counts of words, weights and word groups, in total and nonzero.

        For synthetic documents, the result has the precision and recall of the selected word groups too."""
        living = last.module.model.table.detach().cpu() != 0
        rows = living if living.dim() == 1 else living.any(dim=1)
        counts = {
            "features": len(rows),
            "weights": living.numel(),
            "nonzero": int(living.sum()),
            "rows_alive": int(rows.sum()),
        }
        groups = first.group_count()
        counts |= {} if groups is None else groups._asdict()
        return counts | report.planted_scores(data, first, rows.numpy())

    def write_report(
        self, folder: Path, data: DocumentData, results: Sequence[StageResult], last: StageResult
    ) -> Table | None:
        """Text-categorization task: write the report, which has tables of words and word groups, and an explanation.

        Returns the table for the console."""
        words, first = report.write_words(folder, data, last.module.model), selecting_stage(results)
        report.write_explanation(folder, data, first, last)
        return report.write_groups(folder, data, first) or words

    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Text-categorization task: write the artifact of the trained classifier; return its size in bytes."""
        return artifact.save(folder, classifier_of(result))


def _documents_shown(requested: Mapping[str, Sequence[int]], labelled: DocumentSplits) -> list[tuple[str, int]]:
    """Text-categorization task: convert the option task.shown to a list of documents, each as (part, index)."""
    if not isinstance(requested, Mapping) or not all(isinstance(numbers, Sequence) for numbers in requested.values()):
        raise UserError(f"task.shown={requested}: expected parts and numbers of documents, as in {{test: [0, 7]}}")
    return checked([(part, number) for part, numbers in requested.items() for number in numbers], labelled)


def classifier_of(result: StageResult) -> Classifier:
    """Text-categorization task: the predictor (`Classifier`) of a trained stage."""
    data, model = result.data, result.module.model
    table, bias = (p.detach().cpu().numpy() for p in (model.table, model.bias))
    return Classifier.of(data.bag, table, bias, data.classes, data.labelled.reading, result.module.loss.kind)


def _check_loss(loss, data: DocumentData) -> None:
    """Text-categorization task: raise an error if the labels are numbers and the loss is for classes."""
    if data.classes is None and loss.kind != "squared":
        raise UserError(f"loss={loss.kind} is for classes, the labels of {data.name} are numbers; take loss=squared")


def _with_cached_groups(term: Term, data: DocumentData) -> Term:
    """Text-categorization task: a copy of a `Term` (configured penalty) that takes its word groups from a cache."""
    if term.groups is None:
        return term
    maker, covers = term.groups, data.covers

    def groups(shape: Sequence[int], layout, **options) -> Cover:
        """Text-categorization task: the word groups from the cache; the first call makes them."""
        key = f"{_maker_key(maker)} {tuple(shape)} {options}"
        if key not in covers:
            covers[key] = maker(shape, layout, **options)
        return covers[key]

    return replace(term, groups=groups)


def _maker_key(value) -> str:
    """Text-categorization task: a cache key (string) for a function that makes word groups, and its options."""
    if isinstance(value, partial):
        return f"{_maker_key(value.func)}({_maker_key(list(value.args))}, {_maker_key(dict(value.keywords))})"
    if isinstance(value, Mapping):
        return str({key: _maker_key(v) for key, v in value.items()})
    if isinstance(value, list | tuple):
        return str([_maker_key(v) for v in value])
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)


def _identity(data: DocumentData) -> tuple:
    """Text-categorization task: the values that identify the training data in the fingerprint of a training stage."""
    train = data.matrices["train"]
    return data.name, list(data.bag.layout.words), train.indptr, train.indices, train.data, data.targets("train")
