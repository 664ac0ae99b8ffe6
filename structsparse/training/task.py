"""The interface of a task: what training needs from tagging, parsing, language models and text classification.

The Lightning module of a task is a `TaskModule`. Its method `step(batch)` returns the mean loss. Its method
`evaluate(batches)` returns a score with a method `result()`. Training also reads `loss.smooth`, `fingerprint` and
`linear` (whether the scores are linear in all parameters)."""

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

    The files `conf/task/*.yaml` name subclasses. The options of a task are the arguments of its constructor."""

    name: str
    layout: ClassVar[type[TableLayout]] = TableLayout  # class that describes the rows and columns of the weight table
    models: ClassVar[tuple[Callable, ...]] = ()  # classes and functions of this package that make models for the task
    losses: ClassVar[tuple[type, ...]] = ()  # loss classes of this package that fit the task
    tensor_parts: ClassVar[TensorParts] = TensorParts()  # which artifact tensors hold features, and which hold labels
    keyed: ClassVar[bool] = False  # whether the artifact identifies features by hash keys, which can be shortened

    @abstractmethod
    def prepare(self, corpus, features: Mapping, filter: Callable, cache: int) -> Data:
        """Task interface: prepare a corpus as arrays for training.

        `features` holds the options of features. Its entry `fits`, if present, is the approximate number of fits of all
        features in the run. `filter` selects feature templates. `cache` is the size limit, in megabytes, of the cache
        of prepared corpora."""

    @abstractmethod
    def build(self, stage: Stage, data: Data) -> tuple[TaskModule, TermPenalties]:
        """Task interface: build the module of a stage with initial weights, and the penalty terms of the stage.

        A penalty term is the penalty that `reg` or an entry of `also` configures. A model that is estimated by counting
        has no penalty terms and is not trained."""

    @abstractmethod
    def validate(self, stage: Stage, data: Data, optimizer: torch.optim.Optimizer) -> None:
        """Task interface: refuse a stage with unfit options before anything is trained."""

    @abstractmethod
    def check_solver(
        self, stage: Stage, module: TaskModule, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Task interface: refuse a solver that cannot train the module of a stage.

        `support` holds, by parameter name, masks of the entries that may be nonzero."""

    @abstractmethod
    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[Data, dict[str, Tensor]]:
        """Task interface: the data with only the feature rows that have a surviving entry, and masks of entries.

        `before` is the result of the previous stage. `support` holds, by parameter name, masks of the surviving
        entries. The returned masks, by parameter name, mark the entries of the remaining rows that may be nonzero."""

    @abstractmethod
    def inherit(self, module: TaskModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Task interface: copy the weights of the previous stage into the module of the next stage, as a warm start.

        `support` holds, by parameter name, masks of the entries that may be nonzero."""

    @abstractmethod
    def alive(self, result: StageResult) -> bool:
        """Task interface: whether enough weights are nonzero for the model to be refitted or exported."""

    def variants(self, data: Data) -> Mapping[str, Data]:
        """Task interface: the variants of the data among which dev can choose: {name: data}, the default first.

        All variants have the same dev items, in the same order. Most tasks have no variants."""
        return {}

    def screen(self, result: StageResult) -> Screen | None:
        """Task interface: the group of each row of the weight table.

        A regularization path leaves out rows of groups that will stay dead. The result is None if the data of the
        task cannot be restricted to some rows. A path then uses all rows."""
        return None

    def finalize(self, result: StageResult) -> StageResult:
        """Task interface: convert the result of the last stage to the form that is tested and exported."""
        return result

    def check_rounding(self, small: ArtifactOptions) -> None:
        """Task interface: refuse artifact options that do not apply to the task, before training."""
        if small.mistaken is not None and not self.keyed:
            raise UserError(
                f"artifact.mistaken={small.mistaken}: an artifact of this task has words, not keys; leave it out"
            )

    def rounded(self, result: StageResult, small: ArtifactOptions) -> StageResult:
        """Task interface: the result with weights rounded as the artifact stores them.

        The rounded model is tested and reported. The range of the rounded weights is chosen by the loss on dev."""
        if small.bits is not None:
            module, dev = result.module, result.data.whole("dev")
            if not any(True for _ in module.parameters()):
                raise UserError(f"artifact.bits={small.bits}: this model is counted, it has no weights; leave it out")
            quantize_all_(module.parameters(), small.bits, lambda: certificate.mean_loss(module, dev))
        return result

    @abstractmethod
    def sparsity(self, data: Data, first: StageResult, last: StageResult) -> dict[str, object]:
        """Task interface: counts of features, weights, rows and groups, and of those that are nonzero after training.

        `first` is the result of the stage that selected groups, `last` the result of the last stage."""

    @abstractmethod
    def write_report(self, folder: Path, data: Data, results: Sequence[StageResult], last: StageResult) -> Table | None:
        """Task interface: write the report of a run, and return the table that is printed at the end of the run.

        The table shows groups or features."""

    def details(self, test: Mapping[str, object]) -> Table | None:
        """Task interface: a table of the test scores of each label or type; None if the task has no such table.

        `test` holds the scores on the test part."""
        return None

    @abstractmethod
    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Task interface: write the artifact and return its size in bytes.

        If the model cannot be exported, print the reason and return None."""
