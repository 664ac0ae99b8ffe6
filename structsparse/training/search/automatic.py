"""Automatic strength (`reg.strength=auto`): a path orders the groups, each set of living groups is refitted, dev chooses.

1. A pilot model of all groups, under a weak penalty of entries, weighs the groups: a group with large weights in the
   pilot is penalised less (adaptive group lasso).
2. From the critical strength down, a few steps of the configured penalty tell which groups live.
3. Each new set of living groups is refitted from the weights of the pilot, and scored on dev.
4. The rule `choose` takes one of these sets, and then one of the strengths of the last refit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups import Partition
from structsparse.groups.layouts import TableLayout
from structsparse.penalties import Reweighting
from structsparse.solvers.base import Proof
from structsparse.training import certificate, fit
from structsparse.training.data import Data
from structsparse.training.scores import gain
from structsparse.training.search.choose import smallest
from structsparse.training.search.path import Walker
from structsparse.training.search.strengths import residual_at_zero
from structsparse.training.stage import FitRecord, Stage, StageFigures, StageResult
from structsparse.training.task import Task
from structsparse.training.terms import critical_strength

MOST_GROUPS = 10_000  # groups up to which the pilot weighs each of them by name
FEWEST = 2  # living groups from which a set is refitted

GroupWeights = Mapping[str, Mapping[str, float]]  # the weight of each group, by parameter and name of the group
Row = dict[str, object]


@dataclass(frozen=True)
class Rules:
    """How the path of an automatic strength goes down, where it ends, and how dev chooses on it."""

    ratio: float  # of a strength to the strength before
    last: float  # share of the critical strength at which the path ends at the latest
    patience: int  # the path ends after so many sets of groups in a row without a better score on dev
    most: float  # the path ends where this share of the groups lives
    choose: str  # one_se, best or last


@dataclass
class Candidate:
    """A refitted model: its line of the table, the counts of each dev item, and what is needed to fit it again."""

    row: Row
    counts: np.ndarray  # int64 [items, 3], see TaskModule.item_counts
    masks: dict[str, Tensor] = field(default_factory=dict)  # entries of living groups, by penalised parameter
    weights: dict[str, Tensor] = field(default_factory=dict)  # of the selecting stage, sparse; empty: of the pilot
    strength: float = 0.0  # absolute strength of the selecting stage
    where: str = ""  # the folder of the checkpoints of the refit


@dataclass
class Outcome:
    """The results of the selecting stage and of the last refit, with the tables and figures of the search."""

    results: list[StageResult]
    sets: list[Row]
    chosen_set: Row
    refits: list[Row]
    chosen_refit: Row
    figures: dict[str, object]


@dataclass
class Masked(StageResult):
    """The pilot as the stage before a refit: the refit may use the entries of living groups alone."""

    masks: dict[str, Tensor] = field(default_factory=dict)

    def survivors(self) -> dict[str, Tensor]:
        """The mask of the entries of living groups, by penalised parameter."""
        return self.masks


class Search:
    """A search for the strength of a penalty of groups.

    `stage_of(name, reg)` makes the stage `pilot`, `select` or `refit`, with some options of its penalty changed.
    `refits` are the penalties of the last refit among which dev chooses, the strongest first."""

    def __init__(
        self,
        stage_of: Callable[[str, Mapping[str, object]], Stage],
        refits: Sequence[Mapping[str, object]],
        rules: Rules,
        task: Task,
        data: Data,
        folder: Path,
        resume: bool,
        console: Console,
    ) -> None:
        self.stage_of, self.refits, self.rules = stage_of, refits, rules
        self.task, self.data, self.folder, self.resume, self.console = task, data, folder, resume, console
        self.seconds, self.fits = 0.0, 0  # of all fits so far
        self.sets: list[Candidate] = []

    def run(self) -> Outcome:
        """Fit the pilot, follow the path with its refits, choose a set of groups and the strength of its last refit."""
        self.pilot = self._fit("pilot", {}, None, "pilot")
        cost = self.seconds
        self.walker, self.weights = self._start()
        self._add_pilot()
        for k, share in enumerate(self._shares()):
            self._advance(share, k)
            if self._ended():
                break
        best = self._chosen(self.sets)
        refits, kept, last = self._last_refit(best)
        selected = self._selected(best, self.seconds - last.figures.record.seconds)
        figures = {"search_fits": self.fits, "search_cost": self.seconds / cost, "chosen_share": best.row["share"]}
        self._print(
            f"chosen: {best.row['groups']:,} groups, {kept.row['weights']:,} weights; the search took "
            f"{figures['search_cost']:.1f} times the pilot, a fit of all groups"
        )
        return Outcome([selected, last], [c.row for c in self.sets], best.row, [c.row for c in refits], kept.row, figures)

    # --- the path

    def _start(self) -> tuple[Walker, GroupWeights]:
        """The walker of the path at zero weights, and the group weights that the pilot has given."""
        probe = fit.probe(self._select(0.0, {}), self.task, self.data)
        weights = {}
        for name, penalty in probe.penalties.items():
            groups = penalty.groups
            if penalty.reweightable and isinstance(groups, Partition) and len(groups) <= MOST_GROUPS:
                Reweighting(penalty).update(self.pilot.weights[name])
                weights[name] = dict(zip(groups.names, groups.weight.tolist(), strict=True))
        critical = critical_strength(probe.penalties, probe.at_zero)
        if not critical:
            raise UserError("reg.strength=auto: no strength of this penalty makes every weight zero; give reg.strength")
        strengths = replace(probe.figures.strengths, critical=critical)
        probe = replace(probe, figures=replace(probe.figures, strengths=strengths))
        return Walker(self.task, probe, rounds=1), weights

    def _select(self, strength: float, weights: GroupWeights) -> Stage:
        """The selecting stage at an absolute strength, with the group weights of the pilot."""
        stage = self.stage_of("select", {})
        main, *further = stage.terms
        groups = partial(weighed_groups, maker=main.groups, weights=weights) if weights else main.groups
        return replace(stage, terms=[replace(main, strength=strength, relative=False, groups=groups), *further])

    def _shares(self) -> Iterator[float]:
        """The falling strengths of the path, as shares of the critical strength."""
        share = self.rules.ratio
        while share >= self.rules.last:
            yield share
            share *= self.rules.ratio

    def _advance(self, share: float, k: int) -> None:
        """Go on to the next strength of the path; refit the set of living groups if it is new."""
        walker, full = self.walker, self.walker.full
        strength = share * full.figures.strengths.critical
        stage = _quick(self._select(strength, self.weights))
        selected = walker.advance(stage, strength, self.folder / f"path-{k:02d}", self.resume)
        self._count(selected)
        masks = full.survivors()
        count = full.group_count().groups_alive
        known = any(all(torch.equal(masks[n], c.masks[n]) for n in masks) for c in self.sets)
        if count < FEWEST or known:
            return
        weights = {name: value.to_sparse() for name, value in full.weights.items()}
        where = f"path-{k:02d}/refit"
        refit = self._fit("refit", {}, masks, where)
        self._add(Candidate(self._row(share, count, refit), _dev(refit), masks, weights, strength, where))

    def _add_pilot(self) -> None:
        """Add the pilot to the candidates, as the set of all groups that it uses."""
        penalties = self.walker.full.penalties
        masks = {name: penalty.survivors(self.pilot.weights[name]) for name, penalty in penalties.items()}
        alive = replace(self.pilot, penalties=penalties).group_count().groups_alive
        self.everything = Candidate(self._row(0.0, alive, self.pilot), _dev(self.pilot), masks, where="pilot")
        self._add(self.everything)

    def _add(self, candidate: Candidate) -> None:
        """Add a candidate and print its line."""
        self.sets.append(candidate)
        row, metric = candidate.row, self.data.metric
        what = f"path  strength {row['share']:.4g}" if row["share"] else "pilot  all groups"
        self._print(f"{what}  groups {row['groups']:,}  weights {row['weights']:,}  dev {metric} {row[metric]:.4f}")

    def _ended(self) -> bool:
        """Whether the path has ended: nearly all groups live, or dev has not gained for some sets."""
        metric, path = self.data.metric, self.sets[1:]
        if self.walker.full.group_count().groups_alive >= self.rules.most * self.everything.row["groups"]:
            return True
        gains = [gain(metric, candidate.row[metric]) for candidate in path]
        return bool(gains) and len(gains) - 1 - int(np.argmax(gains)) >= self.rules.patience

    # --- the choice

    def _chosen(self, candidates: Sequence[Candidate]) -> Candidate:
        """The candidate that the rule takes by the score on dev, the number of groups and the number of weights."""
        sizes = [(candidate.row["groups"], candidate.row["weights"]) for candidate in candidates]
        lower = gain(self.data.metric, 1.0) < 0
        return candidates[smallest([c.counts for c in candidates], sizes, self.rules.choose, lower)]

    def _last_refit(self, best: Candidate) -> tuple[list[Candidate], Candidate, StageResult]:
        """Refit the chosen set under each penalty, from strong to weak; returns all, the chosen one and its result."""
        before = self.pilot if best is self.everything else self._fit("refit", {}, best.masks, best.where, resume=True)
        fitted, results = [], [before]
        for k, reg in enumerate(self.refits):
            results.append(self._fit("refit", reg, None, f"last/{k}", results[-1]))
            row = {**reg, **self._row(best.row["share"], best.row["groups"], results[-1])}
            fitted.append(Candidate(row, _dev(results[-1])))
            score = f"dev {self.data.metric} {row[self.data.metric]:.4f}"
            self._print(f"refit  {_options(reg)}  weights {row['weights']:,}  {score}")
        kept = self._chosen(fitted)
        k = next(k for k, candidate in enumerate(fitted) if candidate is kept)
        stage = replace(self.stage_of("refit", self.refits[k]), survivors=False)
        return fitted, kept, fit.run(stage, self.task, self.data, results[k], self.folder / f"last/{k}", True)

    def _selected(self, best: Candidate, seconds: float) -> StageResult:
        """The result of the selecting stage at the chosen strength, with its certificate on all features."""
        full = self.walker.full
        weights = {n: v.to_dense() for n, v in best.weights.items()} or self.pilot.weights
        full.module.load_state_dict(weights, strict=False)
        for penalty in full.penalties.values():
            penalty.strength = best.strength
        residual = residual_at_zero(full.penalties, full.at_zero)
        proven, at_end = certificate.prove(
            full.module, full.data.whole("train"), full.penalties, full.penalties, {}, residual, Proof(), bounded=True
        )
        strengths = replace(full.figures.strengths, first=best.strength)
        record = FitRecord(seconds=seconds, epochs=1)
        figures = StageFigures("select", 0.0, strengths, residual, record, proven)
        return replace(full, figures=figures, at_end=at_end)

    # --- fits

    def _fit(
        self, name: str, reg: Mapping[str, object], masks: Mapping[str, Tensor] | None, where: str,
        before: StageResult | None = None, resume: bool = False,
    ) -> StageResult:  # fmt: skip
        """Fit a stage: on the entries of `masks` from the weights of the pilot, or from the stage `before` on its own."""
        stage = _quick(self.stage_of(name, reg))
        if masks is not None:
            before = Masked(self.data, self.pilot.module, self.pilot.penalties, masks=dict(masks))
        elif before is not None:
            stage = replace(stage, survivors=False)
        result = fit.run(stage, self.task, self.data, before, self.folder / where, self.resume or resume)
        if not resume:
            self._count(result)
        return result

    def _count(self, result: StageResult) -> None:
        """Add a fit to the cost of the search."""
        self.seconds += result.figures.record.seconds
        self.fits += 1

    def _row(self, share: float, groups: int, refit: StageResult) -> Row:
        """The line of a refitted set in the table of the search."""
        metric = self.data.metric
        return {
            "share": share, "groups": groups, "weights": refit.nonzero_weights(), metric: refit.score("dev")[metric],
            "seconds": refit.figures.record.seconds,
        }  # fmt: skip

    def _print(self, line: str) -> None:
        """Print a line of progress."""
        self.console.print(line, highlight=False, soft_wrap=True)


def weighed_groups(
    shape: Sequence[int], layout: TableLayout, *, maker: Callable, weights: GroupWeights, parameter: str
) -> Partition:
    """The groups of a group maker, with weights given by the name of the group."""
    groups = maker(shape, layout, parameter=parameter)
    if parameter in weights:
        values = torch.tensor([weights[parameter][name] for name in groups.names], dtype=torch.float64)
        groups.weight.copy_(torch.where(groups.size > 0, values, 0.0))
    return groups


def _quick(stage: Stage) -> Stage:
    """The stage without certificate, TensorBoard logs and lines of epochs."""
    return replace(stage, proven=False, trainer=partial(stage.trainer, quiet=True))


def _dev(result: StageResult) -> np.ndarray:
    """The counts of each dev item, by which two models are compared."""
    return result.module.item_counts(result.data.batches("dev", 256))


def _options(reg: Mapping[str, object]) -> str:
    """Options of a penalty on a line of progress."""
    return "  ".join(f"{key} {value:g}" for key, value in reg.items())
