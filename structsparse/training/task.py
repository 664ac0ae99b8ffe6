"""The interface of a task: what training asks of tagging, parsing, language models and text categorization.

The Lightning module of a task (a `TaskModule`) answers `step(batch)` (the mean loss), `evaluate(batches)` (a score with
`result()`), `loss.smooth`, `linear` (whether the scores are linear in all parameters) and `fingerprint`.
"""

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
    """A kind of problem: it prepares the data, builds the model of each stage, and exports the trained one.

    `conf/task/*.yaml` names the class; the options of the task are constructor arguments."""

    name: str
    layout: ClassVar[type[TableLayout]] = TableLayout  # of its table of weights
    models: ClassVar[tuple[Callable, ...]] = ()  # the classes, or functions, of this package that make its models
    losses: ClassVar[tuple[type, ...]] = ()  # the classes of this package that are its losses
    tensor_parts: ClassVar[TensorParts] = TensorParts()  # of its artifact, for the report of its size
    keyed: ClassVar[bool] = False  # whether its artifact identifies features by keys, which may be shortened

    @abstractmethod
    def prepare(self, corpus, features: Mapping, filter: Callable, cache: int) -> Data:
        """The data of a corpus as arrays. `filter` selects templates; `cache` is the size in megabytes of the cache of
        prepared corpora."""

    @abstractmethod
    def build(self, stage: Stage, data: Data) -> tuple[TaskModule, TermPenalties]:
        """The module of a stage, at its initial weights, and its penalties; no penalties: there is nothing to train."""

    @abstractmethod
    def validate(self, stage: Stage, data: Data, optimizer: torch.optim.Optimizer) -> None:
        """Refuse, before anything is trained, a stage that could not work."""

    @abstractmethod
    def check_solver(
        self, stage: Stage, module: TaskModule, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]
    ) -> None:
        """Refuse a solver that cannot train this module."""

    @abstractmethod
    def narrow(self, before: StageResult, support: dict[str, Tensor]) -> tuple[Data, dict[str, Tensor]]:
        """The data without the features that are dead, and the part of the support that is still needed."""

    @abstractmethod
    def inherit(self, module: TaskModule, before: StageResult, support: dict[str, Tensor]) -> None:
        """Start from the weights of the stage before."""

    @abstractmethod
    def alive(self, result: StageResult) -> bool:
        """Whether any weight is left, to refit or to be a model."""

    def screen(self, result: StageResult) -> Screen | None:
        """Which rows of the table stand in which group, so that a path may leave out rows of dead groups. None: the
        data cannot be narrowed, and every strength is solved on all of it."""
        return None

    def finalize(self, result: StageResult) -> StageResult:
        """The last result in the form that is tested and exported."""
        return result

    def check_rounding(self, small: ArtifactOptions) -> None:
        """Refuse, before anything is trained, options that do not apply to the artifact of this task."""
        if small.mistaken is not None and not self.keyed:
            raise UserError(
                f"artifact.mistaken={small.mistaken}: an artifact of this task has words, not keys; leave it out"
            )

    def rounded(self, result: StageResult, small: ArtifactOptions) -> StageResult:
        """The result as its artifact stores it, which is what is tested and reported. Weights are rounded to the grid
        that has the least loss on dev."""
        if small.bits is not None:
            module, dev = result.module, result.data.whole("dev")
            if not any(True for _ in module.parameters()):
                raise UserError(f"artifact.bits={small.bits}: this model is counted, it has no weights; leave it out")
            quantize_all_(module.parameters(), small.bits, lambda: certificate.mean_loss(module, dev))
        return result

    @abstractmethod
    def sparsity(self, data: Data, first: StageResult, last: StageResult) -> dict[str, object]:
        """Counts before and after: features, weights, nonzero, rows_alive, groups, groups_alive, ... `first` is the
        stage that selected."""

    @abstractmethod
    def write_report(self, folder: Path, data: Data, results: Sequence[StageResult], last: StageResult) -> Table | None:
        """Write the report; the table of groups or features that is shown at the end of the run."""

    @abstractmethod
    def export(self, folder: Path, result: StageResult, console: Console) -> int | None:
        """Write the artifact and return its size in bytes; None, after printing the reason, if there can be none."""
