"""Ridge search (`auto` as the strengths of a penalty with squares and a sparse part): two paths, and dev chooses.

1. Falling strengths of the squares alone: ridge.
2. From the chosen ridge model on, rising strengths of the sparse part (group norms, or absolute values) beside its
   squares. Ridge is the first candidate. Under the rule `best` another one replaces ridge only where dev gives evidence
   for it: a better score by more than two paired standard errors, and no larger loss. Dev sets are small, and the
   best of several models that are equally good is better on dev by chance.

A strength that is given as a number stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from structsparse.training.search.candidates import Candidate, Outcome, Setting, dev_counts
from structsparse.training.search.choose import BEST, LOSS
from structsparse.training.search.entry_search import EntrySearch
from structsparse.training.stage import Stage, StageResult

PATIENCE = 2  # the second path ends after so many candidates in a row that are worse beyond noise, or cannot be chosen


class RidgeSearch(EntrySearch):
    """Ridge search: the state of a search for two strengths of a penalty, first of squares, then of the sparse part.

    `squares` and `sparse` are the given strengths for the summed loss; None: dev chooses. `held` holds options of the
    penalty that all fits have."""

    def __init__(
        self, setting: Setting, squares: float | None, sparse: float | None, held: Mapping[str, object]
    ) -> None:
        super().__init__(setting)
        self.squares, self.sparse, self.held = squares, sparse, held

    def run(self) -> Outcome:
        """Ridge search: choose the squares, then the sparse part, and go on with the chosen fit."""
        results, fitted = self._ridge()
        k = self.setting.chosen(fitted)
        squares, rows = fitted[k].strength, fitted[:]
        if self.sparse is None:
            results, fitted = self._sparse_path(squares, results[k], fitted[k])
            rows += fitted[1:]
            k = self._chosen(fitted)
            strengths = squares, fitted[k].strength
        else:
            strengths = squares, self.sparse
        last = self._last(self._stage_at("last", *strengths), results[k])
        chosen = fitted[k]
        outcome = self._outcome(last, rows, chosen)
        names = {"chosen_squares": strengths[0], "chosen_sparse": strengths[1]}
        return Outcome(outcome.results, outcome.path, outcome.chosen, [], None, outcome.figures | names)

    def _ridge(self) -> tuple[list[StageResult], list[Candidate]]:
        """Ridge search: the fits of the first path, falling strengths of the squares."""
        rules = self.setting.rules
        shares = rules.falling() if self.squares is None else (self.squares / rules.first,)
        return self._follow([(share, share * rules.first) for share in shares], "ridge")

    def _stage(self, name: str, strength: float) -> Stage:
        """Ridge search: a stage of the first path, at a strength of the squares."""
        return self._stage_at(name, strength, self.sparse or 0.0)

    def _stage_at(self, name: str, squares: float, sparse: float) -> Stage:
        """Ridge search: a stage with strengths of the squares and of the sparse part, both for the summed loss."""
        kind = self.setting.stage_of(name, self.held).terms[0].kind
        return self.setting.stage_of(name, {**self.held, **kind.mixed(squares, sparse)})

    def _sparse_path(
        self, squares: float, ridge: StageResult, candidate: Candidate
    ) -> tuple[list[StageResult], list[Candidate]]:
        """Ridge search: the fits of the second path, rising strengths of the sparse part; the first fit is ridge.

        The strengths are shares of the one at which the sparse part is as large as the squares of the ridge model."""
        setting, results, fitted = self.setting, [ridge], [Candidate(candidate.row, candidate.counts)]
        unit = self._unit(squares, ridge)
        for k, share in enumerate(setting.rules.rising):
            stage = self._stage_at("fit", squares, share * unit)
            result = self._fitted(stage, results[-1], f"sparse-{k:02d}")
            if not setting.task.alive(result):
                break
            count = result.group_count()
            row = setting.row(share, None if count is None else count.groups_alive, result)
            results.append(result)
            fitted.append(Candidate(row, dev_counts(result), strength=share * unit))
            setting.print(f"sparse  share {share:.4g}  {setting.line(row)}")
            if setting.clearly_worse(fitted, PATIENCE) or self._hopeless(fitted):
                break
        return results, fitted

    def _hopeless(self, fitted: Sequence[Candidate]) -> bool:
        """Ridge search: whether, under the rule `best`, the last candidates all have a larger loss on dev than ridge.

        They cannot replace ridge, and a stronger sparse part makes the loss larger still."""
        losses = [candidate.row.get(LOSS, 0.0) for candidate in fitted]
        enough = self.setting.rules.choose == BEST and len(fitted) > PATIENCE
        return enough and min(losses[-PATIENCE:]) > losses[0]

    def _chosen(self, fitted: Sequence[Candidate]) -> int:
        """Ridge search: the index of the candidate of the second path that dev chooses; 0 is ridge."""
        setting = self.setting
        if setting.rules.choose != BEST:
            return setting.chosen(fitted)
        indices = setting.with_evidence(fitted)
        return indices[setting.chosen([fitted[k] for k in indices])]

    def _unit(self, squares: float, ridge: StageResult) -> float:
        """Ridge search: the strength at which the sparse part at the ridge model is as large as the squares."""
        setting, values = self.setting, []
        for strengths in ((squares, 0.0), (0.0, 1.0)):
            stage = self._stage_at("fit", *strengths)
            _, terms = setting.task.build(stage, setting.data)
            penalties = terms[0][1]
            values.append(sum(float(penalty.value(ridge.weights[name])) for name, penalty in penalties.items()))
        return values[0] / values[1] if values[1] > 0 else 0.0

    def _name(self, chosen: Candidate) -> str:
        """Ridge search: the words for the chosen strengths on the console."""
        return "ridge alone" if not chosen.strength else f"sparse part at {chosen.row['share']:.4g} of the squares"
