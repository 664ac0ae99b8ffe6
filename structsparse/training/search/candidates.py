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

Row = dict[str, object]  # table line of a candidate: column name -> value


@dataclass(frozen=True)
class Rules:
    """Rules of a search: how the path of strengths goes down, where it ends, and how dev chooses among candidates."""

    ratio: float  # ratio of each strength to the strength before, less than 1
    last: float  # smallest strength of the path, as a share of its largest strength
    patience: int  # the path ends after this number of candidates in a row without a better score on dev
    choose: str  # rule by which dev chooses: one_se, best or last, see `choose.smallest`
    most: float = 1.0  # the path ends when at least this share of the groups is nonzero
    first: float = 1.0  # largest strength if none makes every weight zero; relative to the summed loss
    ties: str = SIZE  # among equal scores, `size` takes the smallest model, `loss` the one with least loss on dev
    rising: Sequence[float] = ()  # rising strengths of the second path, as shares, see `ridge_search`

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
    counts: np.ndarray  # shape [items, 3]: right, gold and predicted count of each dev item
    losses: np.ndarray | None = None  # shape [items]: loss of each dev item, if the search compares losses of items
    masks: dict[str, Tensor] = field(default_factory=dict)  # mask of the entries of nonzero groups, by parameter
    weights: dict[str, Tensor] = field(default_factory=dict)  # weights of the stage that selects groups, sparse
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
    # by parameter: the names of its groups, and the norms of the groups at each strength of the path
    norms: dict[str, tuple[Sequence[str], list[list[float]]]] = field(default_factory=dict)
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
        """Setting of a search: the result from which the last fit starts; dev joins train if it was drawn from train.

        Also returns figures for metrics.json, or no figures if dev does not join train. One of them is the score
        of the chosen model on dev. The score of the last fit cannot replace it, because this fit has seen dev."""
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
        """The index of the candidate that the rule `rules.choose` of the search takes."""
        rows = [candidate.row for candidate in candidates]
        sizes = [(row["groups"] or 0, row["weights"], row.get(LOSS, 0.0)) for row in rows]
        if self.rules.ties == LOSS and self.rules.choose == BEST:
            sizes = [row[LOSS] for row in rows]
        lower = gain(self.data.metric, 1.0) < 0
        return smallest([candidate.counts for candidate in candidates], sizes, self.rules.choose, lower)

    def with_evidence(self, candidates: Sequence[Candidate]) -> list[int]:
        """The indices of the first candidate of a search, and of the candidates that are clearly better on dev.

        Clearly better than the first candidate means: a score better by more than two paired standard errors, and no
        larger loss."""
        better = clearly_better([candidate.counts for candidate in candidates], gain(self.data.metric, 1.0) < 0)
        losses = [candidate.row.get(LOSS, 0.0) for candidate in candidates]
        return [k for k, loss in enumerate(losses) if k == 0 or (better[k] and loss <= losses[0])]

    def clearly_worse(self, candidates: Sequence[Candidate], patience: int) -> bool:
        """Whether each of the last `patience` candidates is worse than the best by more than one standard error."""
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
    """A copy of a candidate's stage, without certificate, TensorBoard logs and console lines of epochs."""
    return replace(stage, proven=False, trainer=partial(stage.trainer, quiet=True))


def dev_losses(result: StageResult) -> np.ndarray:
    """The losses of a candidate for each dev item, in the order of `dev_counts`."""
    return result.module.item_losses(result.data.batches("dev", 256))


def dev_counts(result: StageResult) -> np.ndarray:
    """The right, gold and predicted counts of a candidate for each dev item; they serve to compare two models."""
    return result.module.item_counts(result.data.batches("dev", 256))
