"""The interface of a task: what training needs from tagging, parsing, language models and text categorization.

The Lightning module of a task (a `TaskModule`) has `step(batch)` (the mean loss), `evaluate(batches)` (a score with
`result()`), `loss.smooth`, `linear` (whether the scores are linear in all parameters) and `fingerprint`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from torch import Tensor

from structsparse.artifacts.folder import TensorParts
from structsparse.artifacts.quantization import ArtifactOptions, quantize_all_
from structsparse.base.errors import UserError
from structsparse.groups.layouts import TableLayout
from structsparse.report.tables import Table
from structsparse.training import certificate
from structsparse.training.data import Data
from structsparse.training.module import TaskModule
from structsparse.training.search.screening import Screen
from structsparse.training.stage import Stage, StageResult, TermPenalties


class Task(ABC):
    """The abstract base class of tasks: data preparation, the model of each stage, and export of the trained model.

    `conf/task/*.yaml` names the class; the options of the task are constructor arguments."""

    name: str
    layout: ClassVar[type[TableLayout]] = TableLayout  # layout of the weight table
    models: ClassVar[tuple[Callable, ...]] = ()  # classes or functions of this package that make models of the task
    losses: ClassVar[tuple[type, ...]] = ()  # loss classes of this package that fit the task
    tensor_parts: ClassVar[TensorParts] = TensorParts()  # parts of the artifact, for the report of its size
    keyed: ClassVar[bool] = False  # whether the artifact identifies features by hash keys, which can be shortened

    @abstractmethod
    def prepare(self, corpus, features: Mapping, filter: Callable, cache: int) -> Data:
        """The corpus as arrays for training. `filter` selects feature templates.

        `cache` is the size limit in megabytes of the cache of prepared corpora."""

    @abstractmethod
    def build(self, stage: Stage, data: Data) -> tuple[TaskModule, TermPenalties]:
        """The module of a stage at its initial weights, and its penalty terms.

        A model that is estimated by counting has no penalty terms and is not trained."""

    @abstractmethod
    def validate(self, stage: Stage, data: Data, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a stage that could not work, before anything is trained."""

    @abstractmethod
    def check_solver(
        self, stage: Stage, module: TaskModule, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Refuse a solver that cannot train this module."""

    @abstractmethod
    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[Data, dict[str, Tensor]]:
        """The data without feature rows that have no surviving entry, and the masks that still exclude an entry."""

    @abstractmethod
    def inherit(self, module: TaskModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Copy the weights of the stage before into the module, as a warm start."""

    @abstractmethod
    def alive(self, result: StageResult) -> bool:
        """Whether any weight is nonzero, so that the model can be refitted or exported."""

    def screen(self, result: StageResult) -> Screen | None:
        """The group of each row of the weight table, so that a path may leave out rows of dead groups.

        None: the data cannot be narrowed, and every strength is solved on all rows."""
        return None

    def finalize(self, result: StageResult) -> StageResult:
        """The result of the last stage in the form that is tested and exported."""
        return result

    def check_rounding(self, small: ArtifactOptions) -> None:
        """Refuse artifact options that do not apply to this task, before anything is trained."""
        if small.mistaken is not None and not self.keyed:
            raise UserError(
                f"artifact.mistaken={small.mistaken}: an artifact of this task has words, not keys; leave it out"
            )

    def rounded(self, result: StageResult, small: ArtifactOptions) -> StageResult:
        """The result with weights rounded as the artifact stores them; this model is tested and reported.

        The step of the rounding grid is the one with the smallest loss on dev."""
        if small.bits is not None:
            module, dev = result.module, result.data.whole("dev")
            if not any(True for _ in module.parameters()):
                raise UserError(f"artifact.bits={small.bits}: this model is counted, it has no weights; leave it out")
            quantize_all_(module.parameters(), small.bits, lambda: certificate.mean_loss(module, dev))
        return result

    @abstractmethod
    def sparsity(self, data: Data, first: StageResult, last: StageResult) -> dict[str, object]:
        """Counts of features, weights, rows and groups before and after training, and of nonzero ones.

        `first` is the stage that selected groups."""

    @abstractmethod
    def write_report(self, folder: Path, data: Data, results: Sequence[StageResult], last: StageResult) -> Table | None:
        """Write the report; returns the table of groups or features that is printed at the end of the run."""

    @abstractmethod
    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Write the artifact and return its size in bytes.

        If the model cannot be exported, print the reason and return None."""
