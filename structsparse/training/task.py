"""What the machinery of a run asks of a task: stages, paths and reports know no more of it than this.

The Lightning module of a task answers `step(batch)` (the mean loss), `evaluate(batches)` (a score with `result()`),
`loss.smooth`, `linear` (whether the scores are linear in all parameters) and `fingerprint`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import lightning
import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from structsparse.artifacts.quantization import Small, round_all_
from structsparse.base.errors import UserError
from structsparse.groups.layouts import TableLayout
from structsparse.penalties import Penalty
from structsparse.report import tables as report
from structsparse.training import certificate
from structsparse.training.terms import Term

if TYPE_CHECKING:
    from structsparse.training.stage import Outcome, Stage

Placed = list[tuple[Term, dict[str, Penalty]]]  # each term with its penalty on each of its parameters


class Data(Protocol):
    """What a task is trained and judged on."""

    name: str
    metric: str  # the score that dev chooses by; `metrics.gain` knows which way is up
    items: int  # what the mean loss is over
    truth: Sequence[str]  # the groups that matter, where that is known

    def describe(self) -> list[str]:
        """What was read, and what there is to say of it."""

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Iterable:
        """train, dev or test in batches of `size` items; null: all at once."""

    def whole(self, part: str) -> Iterable:
        """Batches to go through a part once, in an order and of a size that suit the data."""


class Task(ABC):
    """A kind of problem: it prepares the data, builds the model of each stage, and exports what is learnt.

    `conf/task/*.yaml` names the class; its options are constructor arguments."""

    name: str
    layout: ClassVar[type[TableLayout]] = TableLayout  # of its table of weights
    models: ClassVar[tuple[Callable, ...]] = ()  # the classes, or functions, of this package that make its models
    losses: ClassVar[tuple[type, ...]] = ()  # the classes of this package that are its losses

    @abstractmethod
    def prepare(self, corpus, features: Mapping, filter: Callable, cache: int) -> Data:
        """The data of a corpus as arrays. `filter` chooses among templates, `cache` is how many megabytes of prepared
        corpora may be kept for later runs."""

    @abstractmethod
    def build(self, stage: Stage, data: Data) -> tuple[lightning.LightningModule, Placed]:
        """The module of a stage, at its first weights, and its penalties."""

    @abstractmethod
    def foresee(self, stage: Stage, data: Data, optimizer: torch.optim.Optimizer) -> None:
        """Refuse, before anything is fitted, what could not work."""

    @abstractmethod
    def check(self, stage: Stage, module, optimizer: torch.optim.Optimizer, support: Mapping[str, Tensor]) -> None:
        """Refuse a solver that cannot move this module."""

    @abstractmethod
    def narrow(self, before: Outcome, support: dict[str, Tensor]) -> tuple[Data, dict[str, Tensor]]:
        """The data without what cannot live any more, and what is left of the support: entries that may live."""

    @abstractmethod
    def inherit(self, module: nn.Module, before: Outcome, support: dict[str, Tensor]) -> None:
        """Start from the weights of the stage before."""

    @abstractmethod
    def alive(self, outcome: Outcome) -> bool:
        """Whether anything is left to refit, or to be a model."""

    def settled(self, outcome: Outcome) -> Outcome:
        """The outcome as what is tested and kept."""
        return outcome

    keyed = False  # whether a feature is told by a key that may be shortened

    def check_small(self, small: Small) -> None:
        """Refuse, before anything is fitted, what the artifact of this task does not know."""
        if small.mistaken is not None and not self.keyed:
            raise UserError(
                f"artifact.mistaken={small.mistaken}: an artifact of this task has words, not keys; leave it out"
            )

    def rounded(self, outcome: Outcome, small: Small) -> Outcome:
        """The outcome as its artifact will tell it: what is tested and reported is that. Of several roundings the one
        with the least loss on dev is taken."""
        if small.bits is not None:
            module, dev = outcome.module, outcome.data.whole("dev")
            if not any(True for _ in module.parameters()):
                raise UserError(f"artifact.bits={small.bits}: this model is counted, it has no weights; leave it out")
            round_all_(module.parameters(), small.bits, lambda: certificate.mean_loss(module, dev))
        return outcome

    @abstractmethod
    def sparsity(self, data: Data, first: Outcome, last: Outcome) -> dict[str, object]:
        """Counts before and after: features, weights, nonzero, rows_alive, groups, groups_alive, ..."""

    @abstractmethod
    def write_report(self, folder: Path, data: Data, outcomes: Sequence[Outcome], last: Outcome) -> report.Table | None:
        """Write what a reader wants to know; the table of groups is shown at the end of the run."""

    @abstractmethod
    def export(self, folder: Path, outcome: Outcome, console: Console) -> int | None:
        """Write the small model, and say how many bytes it has; None, and why, if there can be none."""


def fingerprint(stage: Stage, *identity) -> str:
    """Of all that decides a result: the options, and what tells the data from others (arrays, or what JSON can say)."""
    digest = blake2b(digest_size=8)
    strengths = [term.strength for term in stage.terms]  # of a path they differ from the options
    for part in (stage.name, stage.options, strengths, *identity):
        told = isinstance(part, np.ndarray)
        digest.update(part.tobytes() if told else json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()
