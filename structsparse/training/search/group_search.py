"""Group search: dev chooses the groups that a model uses, among sets of groups along a path of falling strengths.

This is the search under `reg.strength=auto` with a penalty of groups. A group lives if it has a nonzero weight.

1. A pilot model with all groups is fitted under a weak penalty of single entries. A group with large weights in the
   pilot gets a smaller factor in the penalty of groups (adaptive group lasso). If the task has variants of the data,
   each gets a pilot, and dev chooses the variant.
2. A path of strengths falls from the critical strength. At each strength, a few optimizer steps under the penalty of
   groups show which groups live.
3. Each new set of living groups is refitted from the weights of the pilot, and scored on dev.
4. The rule `choose` takes one of these sets. This set is refitted under several strengths, and the rule takes one.
   With choose=one_se, a set must also have a low loss on dev, see `_smallest_set`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups import Partition
from structsparse.groups.layouts import TableLayout
from structsparse.penalties import Reweighting
from structsparse.report.living_groups import MOST_GROUPS as MOST_SHOWN
from structsparse.solvers.base import Proof
from structsparse.training import certificate, fit
from structsparse.training.scores import gain
from structsparse.training.search.candidates import Candidate, Outcome, Row, Setting, dev_counts, dev_losses, quick
from structsparse.training.search.choose import LOSS, ONE_SE, low_losses, mean_error, paired_gain, within_one_se
from structsparse.training.search.path import Walker
from structsparse.training.search.strengths import residual_at_zero
from structsparse.training.stage import FitRecord, Stage, StageFigures, StageResult
from structsparse.training.terms import critical_strength

MOST_GROUPS = 10_000  # with more groups than this, the pilot does not change their factors in the penalty
CLEAR = 2  # a model is clearly better on dev than another if it is better by over this many paired standard errors
FEWEST = 2  # smallest number of living groups for which a set is refitted
FAILURES = 2  # the path ends after this many sets in a row that are worse than the best by over one standard error

GroupWeights = Mapping[str, Mapping[str, float]]  # parameter -> group -> group weight (factor in the penalty)


@dataclass
class Masked(StageResult):
    """Group search: the pilot as the stage before a refit that may use only the entries of living groups."""

    masks: dict[str, Tensor] = field(default_factory=dict)

    def survivors(self) -> dict[str, Tensor]:
        """Group search: the mask of the entries of living groups, by penalised parameter."""
        return self.masks


class GroupSearch:
    """Group search: the state of a search for the groups of a model.

    `refits` has the penalty options of the last refits, strongest penalty first. Dev chooses one of these refits."""

    def __init__(self, setting: Setting, refits: Sequence[Mapping[str, object]]) -> None:
        self.setting, self.refits = setting, refits
        self.seconds, self.fits = 0.0, 0  # total time and count of all fits so far
        self.sets: list[Candidate] = []  # the pilot, then the refitted sets of living groups
        self.norms: dict[str, tuple[Sequence[str], list[list[float]]]] = {}  # norms of groups, as in `Outcome`

    def run(self) -> Outcome:
        """Group search: fit the pilot, follow the path, choose a set of groups and the strength of its last refit."""
        self.pilot, figures = self._pilots()
        cost = self.pilot.figures.record.seconds
        self.walker, self.weights = self._start()
        self._add_pilot()
        for k, share in enumerate(self.setting.rules.falling()):
            self._advance(share, k)
            if self._ended():
                break
        one_se = self.setting.rules.choose == ONE_SE
        best = self._smallest_set() if one_se else self.sets[self.setting.chosen(self.sets)]
        refits, kept, last = self._last_refit(best)
        last, of_dev = self._on_all(last, kept)
        selected = self._selected(best, self.seconds - last.figures.record.seconds)
        figures |= {"search_fits": self.fits, "search_cost": self.seconds / cost, "chosen_share": best.row["share"]}
        self.setting.print(
            f"chosen: {kept['groups']:,} groups, {kept['weights']:,} weights; "
            f"the search took {self.seconds / cost:.1f} times as long as a fit of all groups"
        )
        rows, data = [c.row for c in self.sets], self.setting.data
        return Outcome([selected, last], rows, best.row, refits, kept, figures | of_dev, self.norms, data)

    # --- the pilot

    def _pilots(self) -> tuple[StageResult, dict[str, float]]:
        """Group search: fit a pilot on each variant of the data; returns the chosen pilot, and figures of the choice.

        A variant replaces the default one only if its score on dev is clearly better."""
        setting, pilots, figures = self.setting, {}, {}
        variants = setting.task.variants(setting.data) or {"": setting.data}
        for name, data in variants.items():
            self.setting = replace(setting, data=data)
            pilots[name] = self._counted(self._fit(setting.stage_of("pilot", {}), None, f"pilot/{name}"))
        default, *others = pilots
        chosen, most = default, 0.0
        for name in others:
            counts, lower = [dev_counts(pilots[key]) for key in (name, default)], gain(setting.data.metric, 1.0) < 0
            figures["variant_gain"], figures["variant_gain_error"] = better, error = paired_gain(*counts, lower)
            if better > max(CLEAR * error, most):
                chosen, most = name, better
            setting.print(
                f"pilot  dev {setting.data.metric} under {name} {better:+.4f} against {default}, "
                f"standard error {error:.4f}: {chosen} is taken"
            )
        self.setting = replace(setting, data=variants[chosen])
        return pilots[chosen], figures

    # --- the path

    def _start(self) -> tuple[Walker, GroupWeights]:
        """Group search: the `Walker` of the path, at zero weights, and the group weights computed from the pilot."""
        probe = fit.probe(self._selecting(0.0, {}), self.setting.task, self.setting.data)
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
        return Walker(self.setting.task, probe, rounds=1), weights

    def _selecting(self, strength: float, weights: GroupWeights) -> Stage:
        """Group search: the stage that selects groups, at an absolute strength, with the given group weights."""
        stage = self.setting.stage_of("select", {})
        main, *further = stage.terms
        groups = partial(weighed_groups, maker=main.groups, weights=weights) if weights else main.groups
        return replace(stage, terms=[replace(main, strength=strength, relative=False, groups=groups), *further])

    def _advance(self, share: float, k: int) -> None:
        """Group search: go to the strength with index `k` of the path; refit the set of living groups if it is new.

        `share` is this strength as a share of the critical strength."""
        full = self.walker.full
        strength = share * full.figures.strengths.critical
        stage = quick(self._selecting(strength, self.weights))
        self._counted(self.walker.advance(stage, strength, self.setting.folder / f"path-{k:02d}", self.setting.resume))
        self._note_norms()
        masks, count = full.survivors(), full.group_count().groups_alive
        known = any(all(torch.equal(masks[name], c.masks[name]) for name in masks) for c in self.sets)
        if count < FEWEST or known:
            return
        folder = f"path-{k:02d}/refit"
        refit = self._counted(self._fit(self.setting.stage_of("refit", {}), self._masked(masks), folder))
        weights = {name: value.to_sparse() for name, value in full.weights.items()}
        self._add_set(share, count, refit, masks=masks, weights=weights, strength=strength, folder=folder)
        self.setting.print(f"path  strength {share:.4g}  {self.setting.line(self.sets[-1].row)}")

    def _add_set(self, share: float, groups: int, refit: StageResult, **rest) -> None:
        """Group search: add a refitted set of groups to the candidates, with its scores and losses on dev."""
        losses = dev_losses(refit)
        row = {**self.setting.row(share, groups, refit), LOSS: float(losses.mean())}
        self.sets.append(Candidate(row, dev_counts(refit), losses, **rest))

    def _note_norms(self) -> None:
        """Group search: keep the norms of the groups at the present strength, for the picture of the path."""
        for name, penalty in self.walker.full.penalties.items():
            if penalty.groups is not None and len(penalty.groups) <= MOST_SHOWN:
                norms = penalty.groups.norms(self.walker.full.weights[name])
                self.norms.setdefault(name, (penalty.groups.names, []))[1].append(norms.tolist())

    def _add_pilot(self) -> None:
        """Group search: add the pilot to the candidates, as the set of all groups that it uses."""
        penalties = self.walker.full.penalties
        masks = {name: penalty.survivors(self.pilot.weights[name]) for name, penalty in penalties.items()}
        alive = replace(self.pilot, penalties=penalties).group_count().groups_alive
        self._add_set(0.0, alive, self.pilot, masks=masks, folder="pilot")
        self.setting.print(f"pilot  {self.setting.line(self.sets[0].row)}")

    def _ended(self) -> bool:
        """Group search: whether the path ends: nearly all groups live, or the last sets have not improved on dev."""
        alive = self.walker.full.group_count().groups_alive
        stale = self.setting.stale(self.sets[1:]) or self.setting.clearly_worse(self.sets[1:], FAILURES)
        return stale or alive >= self.setting.rules.most * self.sets[0].row["groups"]

    # --- the choice

    def _smallest_set(self) -> Candidate:
        """Group search: the smallest set of groups on the path that is about as good as the best, for choose=one_se.

        Its score on dev is within one paired standard error of the best score of the path, and its loss within one of
        the least loss. On a small dev part the errors of scores are large, and scores alone would take too few groups.
        The set of all groups is taken only if it is clearly better than this set."""
        pilot, *sets = self.sets
        if not sets:
            return pilot
        lower = gain(self.setting.data.metric, 1.0) < 0
        high = within_one_se([candidate.counts for candidate in sets], lower)
        low = low_losses([candidate.losses for candidate in sets])
        near = [c for c, score_near, loss_near in zip(sets, high, low, strict=True) if score_near and loss_near]
        near = near or [min(sets, key=lambda candidate: candidate.losses.mean())]
        smallest = min(near, key=lambda candidate: (candidate.row["groups"], candidate.row["weights"]))
        better, error = paired_gain(pilot.counts, smallest.counts, lower)
        excess = smallest.losses - pilot.losses
        return pilot if better > CLEAR * error or excess.mean() > CLEAR * mean_error(excess) else smallest

    def _last_refit(self, best: Candidate) -> tuple[list[Row], Row, StageResult]:
        """Group search: refit the chosen set under each penalty in `refits`.

        Returns the table lines of all refits, and the line and the result of the refit that dev chooses."""
        setting, results, fitted = self.setting, [self.pilot], []
        if best is not self.sets[0]:
            results = [self._fit(setting.stage_of("refit", {}), self._masked(best.masks), best.folder, resume=True)]
        for k, reg in enumerate(self.refits):
            stage = replace(setting.stage_of("refit", reg), survivors=False)
            results.append(self._counted(self._fit(stage, results[-1], f"last/{k}")))
            row = {**reg, **setting.row(best.row["share"], best.row["groups"], results[-1])}
            fitted.append(Candidate(row, dev_counts(results[-1])))
            options = "  ".join(f"{key} {value:g}" for key, value in reg.items())
            setting.print(f"refit  {options}  {setting.line(row)}")
        k = setting.chosen(fitted)
        stage = replace(setting.stage_of("refit", self.refits[k]), survivors=False)
        last = fit.run(stage, setting.task, setting.data, results[k], setting.folder / f"last/{k}", True)
        return [candidate.row for candidate in fitted], fitted[k].row, last

    def _on_all(self, last: StageResult, kept: Row) -> tuple[StageResult, dict[str, object]]:
        """Group search: repeat the chosen last refit with dev among the training data, if dev was drawn from train.

        Also returns figures for metrics.json that record this; no figures if dev was not drawn from train."""
        setting = self.setting
        before, figures = setting.with_dev(last, kept[setting.data.metric])
        if not figures:
            return last, {}
        reg = {key: kept[key] for key in self.refits[0]}
        stage = replace(setting.stage_of("all", reg), survivors=False)
        where = setting.folder / "last/all"
        on_all = self._counted(fit.run(stage, setting.task, setting.data, before, where, setting.resume))
        return replace(on_all, data=last.data), figures

    def _selected(self, best: Candidate, seconds: float) -> StageResult:
        """Group search: the result of the stage that selects groups, at the chosen strength, with a certificate.

        The certificate is for the whole training set. `seconds` is recorded as the time of the stage."""
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
        figures = StageFigures("select", 0.0, strengths, residual, FitRecord(seconds=seconds, epochs=1), proven)
        return replace(full, figures=figures, at_end=at_end)

    # --- fits

    def _masked(self, masks: Mapping[str, Tensor]) -> Masked:
        """Group search: the pilot as the stage before a refit of the entries that `masks` marks."""
        return Masked(self.setting.data, self.pilot.module, self.pilot.penalties, masks=dict(masks))

    def _fit(self, stage: Stage, before: StageResult | None, folder: str, resume: bool = False) -> StageResult:
        """Group search: fit a stage without certificate."""
        setting = self.setting
        where = setting.folder / folder
        return fit.run(quick(stage), setting.task, setting.data, before, where, setting.resume or resume)

    def _counted(self, result: StageResult) -> StageResult:
        """Group search: add the time of a fit to the cost of the search; returns the result of the fit."""
        self.seconds += result.figures.record.seconds
        self.fits += 1
        return result


def weighed_groups(
    shape: Sequence[int], layout: TableLayout, *, maker: Callable, weights: GroupWeights, parameter: str
) -> Partition:
    """Group search: the groups that `maker` makes, with the group weights in `weights`, by name of the group."""
    groups = maker(shape, layout, parameter=parameter)
    if parameter in weights:
        values = torch.tensor([weights[parameter][name] for name in groups.names], dtype=torch.float64)
        groups.weight.copy_(torch.where(groups.size > 0, values, 0.0))
    return groups
