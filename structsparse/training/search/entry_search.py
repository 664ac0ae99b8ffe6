"""Entry search: dev chooses the strength of a penalty of single entries, along a path of falling strengths.

This is the search under `reg.strength=auto`. Each fit starts from the weights of the fit before. The path falls from
the critical strength, the smallest strength that makes all weights zero. Squares have no critical strength; their path
falls from a fixed strength, relative to the summed loss."""

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
        self.seconds, self.fits = 0.0, 0  # total time and count of all fits so far

    def run(self) -> Outcome:
        """Entry search: follow the path, choose a strength, and continue its fit until it has converged."""
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
        """Entry search: fit strengths in order, each from the weights of the fit before, while the dev score rises.

        `points` holds pairs: a strength as a share of the largest one, and the absolute strength. `name` is the name of
        the path. Returns the results and the candidates of all fits."""
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
        """Entry search: fit a candidate, from the weights of the result `before`."""
        return self._counted(fit.run(quick(stage), *self._where(before, folder), self.setting.resume))

    def _last(self, stage: Stage, before: StageResult) -> StageResult:
        """Entry search: continue the chosen fit until it has converged, and compute its certificate."""
        return self._counted(fit.run(stage, *self._where(before, "last"), self.setting.resume))

    def _outcome(self, last: StageResult, fitted: Sequence[Candidate], chosen: Candidate) -> Outcome:
        """Entry search: print the chosen strength; returns the outcome, with the time of all fits for the last fit."""
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
        """Entry search: the text for the chosen strength on the console."""
        return f"strength {chosen.row['share']:.4g} of the largest one"

    def _largest(self) -> float:
        """Entry search: the largest strength, of which the strengths of the path are shares."""
        stage = self._stage("fit", 0.0)
        critical = fit.probe(stage, self.setting.task, self.setting.data).figures.strengths.critical
        return critical or self.setting.rules.first / self.setting.data.items

    def _stage(self, name: str, strength: float) -> Stage:
        """Entry search: the stage `name` at an absolute strength, in which any weight may become nonzero."""
        stage = self.setting.stage_of(name, {})
        main, *further = stage.terms
        return replace(stage, survivors=False, terms=[replace(main, strength=strength, relative=False), *further])

    def _where(self, before: StageResult | None, folder: str) -> tuple:
        """Entry search: arguments of a fit: task, data, result of the stage before, and folder."""
        return self.setting.task, self.setting.data, before, self.setting.folder / folder

    def _row(self, share: float, result: StageResult) -> Row:
        """Entry search: the table line of the fit at one strength."""
        return self.setting.row(share, None, result)

    def _counted(self, result: StageResult) -> StageResult:
        """Entry search: add the time of a fit to the cost of the search; returns the result of the fit."""
        self.seconds += result.figures.record.seconds
        self.fits += 1
        return result
