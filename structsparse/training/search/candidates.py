"""Candidates of a search for the strength of a penalty: fitted models, scored on dev, of which a rule takes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.training.certificate import mean_loss
from structsparse.training.data import Data
from structsparse.training.scores import gain
from structsparse.training.search.choose import BEST, LOSS, RULES, clearly_better, smallest, within_one_se
from structsparse.training.stage import Stage, StageResult
from structsparse.training.task import Task

SIZE = "size"  # figure that decides among candidates with equal scores

Row = dict[str, object]  # table line of a candidate


@dataclass(frozen=True)
class Rules:
    """Rules of a search: how the path of strengths goes down, where it ends, and how dev chooses among candidates."""

    ratio: float  # each strength divided by the strength before
    last: float  # smallest strength of the path, as a share of its largest strength
    patience: int  # the path ends after this many candidates in a row without a better score on dev
    choose: str  # one_se, best or last
    most: float = 1.0  # the path ends where this share of the groups lives
    first: float = 1.0  # largest strength, for the summed loss, if no strength makes every weight zero
    ties: str = SIZE  # of equal scores, `size` takes the smallest model and `loss` the one with the smallest dev loss
    rising: Sequence[float] = ()  # shares of the second path, see ridge_search

    def __post_init__(self) -> None:
        for name in ("ratio", "last"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"search: {name} is {getattr(self, name)}, expected a number between 0 and 1")
        if self.ties not in (SIZE, LOSS):
            raise UserError(f"search: ties is {self.ties}, expected {SIZE} or {LOSS}")
        if self.choose not in RULES:
            raise UserError(f"choose={self.choose}: expected {', '.join(RULES)}")
        if self.patience < 1:
            raise UserError(f"search: patience is {self.patience}, expected a number of at least 1")

    def falling(self) -> Iterator[float]:
        """The falling strengths of the path, as shares of the largest strength."""
        share = self.ratio
        while share >= self.last:
            yield share
            share *= self.ratio


@dataclass
class Candidate:
    """Candidate of a search: a fitted model with its table line, its counts on dev, and the means to fit it again."""

    row: Row
    counts: np.ndarray  # counts of each dev item, int64 [items, 3], see TaskModule.item_counts
    masks: dict[str, Tensor] = field(default_factory=dict)  # the entries of living groups, by penalised parameter
    weights: dict[str, Tensor] = field(default_factory=dict)  # sparse weights of the stage that selects groups
    strength: float = 0.0  # absolute strength of the penalty
    folder: str = ""  # subfolder of the checkpoints


@dataclass
class Outcome:
    """Outcome of a search: the results of the stages, tables of all candidates, and figures for metrics.json."""

    results: list[StageResult]
    path: list[Row]
    chosen: Row
    refits: list[Row]
    chosen_refit: Row | None
    figures: dict[str, object]
    norms: dict[str, tuple[Sequence[str], list[list[float]]]] = field(
        default_factory=dict
    )  # by parameter: group names,
    # and the norms of the groups at each strength of the path
    data: Data | None = None  # the variant of the data that dev has chosen; None: the data of the search


@dataclass(frozen=True)
class Setting:
    """What a search works with: the makers of its stages, task, data, folder of checkpoints, and console."""

    stage_of: Callable[[str, Mapping[str, object]], Stage]  # makes a stage by name, with changed options of its penalty
    rules: Rules
    task: Task
    data: Data
    folder: Path
    resume: bool
    console: Console

    def print(self, line: str) -> None:
        """Print a line of progress of a search."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def with_dev(self, before: StageResult, dev: object) -> tuple[StageResult, dict[str, object]]:
        """The stage before the last fit of a search, with dev among its training data if dev was drawn from train.

        Also returns further figures for metrics.json: the score `dev` of the model that was chosen on dev stands for
        that of the last fit, which has seen dev."""
        data = before.data.with_dev()
        if data is None:
            return before, {}
        self.print("dev was drawn from train, and has chosen: the last fit is on both")
        return replace(before, data=data), {f"dev_{self.data.metric}": dev, "trained_on_dev": True}

    def row(self, share: float, groups: int | None, result: StageResult) -> Row:
        """The table line of a candidate of a search."""
        metric, dev = self.data.metric, result.data
        loss = {LOSS: mean_loss(result.module, dev.whole("dev"))} if self.rules.ties == LOSS else {}
        return {
            "share": share, "groups": groups, "weights": result.nonzero_weights(),
            metric: result.score("dev")[metric], **loss, "seconds": result.figures.record.seconds,
        }  # fmt: skip

    def line(self, row: Row) -> str:
        """The figures of a candidate on the console line of a search."""
        groups = "" if row["groups"] is None else f"groups {row['groups']:,}  "
        return f"{groups}weights {row['weights']:,}  dev {self.data.metric} {row[self.data.metric]:.4f}"

    def chosen(self, candidates: Sequence[Candidate]) -> int:
        """The index of the candidate that the rule of the search takes."""
        rows = [candidate.row for candidate in candidates]
        sizes = [(row["groups"] or 0, row["weights"], row.get(LOSS, 0.0)) for row in rows]
        if self.rules.ties == LOSS and self.rules.choose == BEST:
            sizes = [row[LOSS] for row in rows]
        lower = gain(self.data.metric, 1.0) < 0
        return smallest([candidate.counts for candidate in candidates], sizes, self.rules.choose, lower)

    def with_evidence(self, candidates: Sequence[Candidate]) -> list[int]:
        """The indices of the first candidate and of those for which dev gives evidence against it.

        These are better by more than two paired standard errors, and their loss is not larger."""
        better = clearly_better([candidate.counts for candidate in candidates], gain(self.data.metric, 1.0) < 0)
        losses = [candidate.row.get(LOSS, 0.0) for candidate in candidates]
        return [k for k, loss in enumerate(losses) if k == 0 or (better[k] and loss <= losses[0])]

    def clearly_worse(self, candidates: Sequence[Candidate], patience: int) -> bool:
        """Whether each of the last `patience` candidates is worse than the best by more than a standard error."""
        if len(candidates) <= patience:
            return False
        within = within_one_se([candidate.counts for candidate in candidates], gain(self.data.metric, 1.0) < 0)
        return not any(within[-patience:])

    def stale(self, candidates: Sequence[Candidate]) -> bool:
        """Whether the score on dev has not improved over the last `patience` candidates of the path."""
        rows = [candidate.row for candidate in candidates]
        gains = [(gain(self.data.metric, row[self.data.metric]), -row.get(LOSS, 0.0)) for row in rows]
        return bool(gains) and len(gains) - 1 - gains.index(max(gains)) >= self.rules.patience


def quick(stage: Stage) -> Stage:
    """The stage of a candidate: without certificate, TensorBoard logs and console lines of epochs."""
    return replace(stage, proven=False, trainer=partial(stage.trainer, quiet=True))


def dev_counts(result: StageResult) -> np.ndarray:
    """The counts of each dev item of a candidate, by which two models are compared."""
    return result.module.item_counts(result.data.batches("dev", 256))
