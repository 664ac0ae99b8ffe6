"""Entry search (`reg.strength=auto` of penalties of single entries): a path of falling strengths, each fitted from the
weights of the one before, and dev chooses.

The path begins at the critical strength. A penalty without one (squares) begins at a fixed strength of the summed
loss."""

from __future__ import annotations

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
        setting, results, fitted = self.setting, [], []
        largest = self._largest()
        for k, share in enumerate(setting.rules.shares()):
            stage = quick(self._stage("fit", share * largest))
            before = results[-1] if results else None
            results.append(self._counted(fit.run(stage, *self._where(before, f"path-{k:02d}"), setting.resume)))
            fitted.append(Candidate(self._row(share, results[-1]), dev_counts(results[-1]), strength=share * largest))
            setting.print(f"path  strength {share:.4g}  {setting.line(fitted[-1].row)}")
            if setting.stale(fitted):
                break
        k = setting.chosen(fitted)
        stage = self._stage("last", fitted[k].strength)
        last = self._counted(fit.run(stage, *self._where(results[k], "last"), setting.resume))
        cost = self.seconds / last.figures.record.seconds
        setting.print(
            f"chosen: strength {fitted[k].row['share']:.4g} of the critical one, {last.nonzero_weights():,} weights; "
            f"the search took {cost:.1f} times as long as its last fit"
        )
        record = replace(last.figures.record, seconds=self.seconds)
        last = replace(last, figures=replace(last.figures, record=record))
        figures = {"search_fits": self.fits, "search_cost": cost, "chosen_share": fitted[k].row["share"]}
        return Outcome([last], [c.row for c in fitted], fitted[k].row, [], None, figures)

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
