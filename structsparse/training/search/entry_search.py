"""Entry search (`reg.strength=auto` of penalties of single entries): a path of falling strengths, each fitted from the
weights of the one before, and dev chooses.

The path begins at the critical strength. A penalty without one (squares) begins at a fixed strength of the summed
loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from structsparse.training import fit
from structsparse.training.search.candidates import Candidate, Outcome, Row, Setting, dev_counts, quick
from structsparse.training.stage import Stage, StageResult


class EntrySearch:
    """Entry search: the state of a search for the strength of a penalty of single entries."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.seconds, self.fits = 0.0, 0  # of all fits so far

    def run(self) -> Outcome:
        """Entry search: follow the path, choose a strength, and go on with its fit until it has converged."""
        setting, largest = self.setting, self._largest()
        points = [(share, share * largest) for share in setting.rules.falling()]
        results, fitted = self._follow(points, "path")
        k = setting.chosen(fitted)
        before, figures = setting.with_dev(results[k], fitted[k].row[setting.data.metric])
        last = self._last(self._stage("last", fitted[k].strength), before)
        last = replace(last, data=results[k].data)
        outcome = self._outcome(last, fitted, fitted[k])
        return replace(outcome, figures=outcome.figures | figures)

    def _follow(self, points: Iterable[tuple[float, float]], name: str) -> tuple[list[StageResult], list[Candidate]]:
        """Entry search: fit strengths in order, each from the weights of the one before, until dev stops gaining.

        `points` holds the strengths as pairs of share and absolute strength."""
        setting, results, fitted = self.setting, [], []
        for k, (share, strength) in enumerate(points):
            before = results[-1] if results else None
            results.append(self._fitted(self._stage("fit", strength), before, f"{name}-{k:02d}"))
            fitted.append(Candidate(self._row(share, results[-1]), dev_counts(results[-1]), strength=strength))
            setting.print(f"{name}  strength {share:.4g}  {setting.line(fitted[-1].row)}")
            if setting.stale(fitted):
                break
        return results, fitted

    def _fitted(self, stage: Stage, before: StageResult | None, folder: str) -> StageResult:
        """Entry search: fit a candidate from the weights of the stage before."""
        return self._counted(fit.run(quick(stage), *self._where(before, folder), self.setting.resume))

    def _last(self, stage: Stage, before: StageResult) -> StageResult:
        """Entry search: go on with the chosen fit until it has converged, and certify it."""
        return self._counted(fit.run(stage, *self._where(before, "last"), self.setting.resume))

    def _outcome(self, last: StageResult, fitted: Sequence[Candidate], chosen: Candidate) -> Outcome:
        """Entry search: print what was chosen; the outcome, with the time of all fits as that of the last fit."""
        cost = self.seconds / (chosen.row["seconds"] + last.figures.record.seconds)
        self.setting.print(
            f"chosen: {self._name(chosen)}, {last.nonzero_weights():,} weights; "
            f"the search took {cost:.1f} times as long as the fit of that strength"
        )
        record = replace(last.figures.record, seconds=self.seconds)
        last = replace(last, figures=replace(last.figures, record=record))
        figures = {"search_fits": self.fits, "search_cost": cost, "chosen_share": chosen.row["share"]}
        return Outcome([last], [c.row for c in fitted], chosen.row, [], None, figures)

    def _name(self, chosen: Candidate) -> str:
        """Entry search: the words for the chosen strength on the console."""
        return f"strength {chosen.row['share']:.4g} of the largest one"

    def _largest(self) -> float:
        """Entry search: the strength at which the path begins."""
        stage = self._stage("fit", 0.0)
        critical = fit.probe(stage, self.setting.task, self.setting.data).figures.strengths.critical
        return critical or self.setting.rules.first / self.setting.data.items

    def _stage(self, name: str, strength: float) -> Stage:
        """Entry search: a stage at an absolute strength; it goes on from the weights of the stage before."""
        stage = self.setting.stage_of(name, {})
        main, *further = stage.terms
        return replace(stage, survivors=False, terms=[replace(main, strength=strength, relative=False), *further])

    def _where(self, before: StageResult | None, folder: str) -> tuple:
        """Entry search: task, data, stage before and folder of a fit."""
        return self.setting.task, self.setting.data, before, self.setting.folder / folder

    def _row(self, share: float, result: StageResult) -> Row:
        """Entry search: the table line of a strength."""
        return self.setting.row(share, None, result)

    def _counted(self, result: StageResult) -> StageResult:
        """Entry search: add a fit to the cost of the search."""
        self.seconds += result.figures.record.seconds
        self.fits += 1
        return result
