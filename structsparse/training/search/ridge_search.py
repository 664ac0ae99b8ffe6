"""Ridge search: dev chooses the strengths of a penalty with squares and a sparse part, along two paths.

1. The first path has falling strengths of the squares alone (ridge). Dev chooses a ridge model.
2. The second path starts at this ridge model and keeps its squares. It adds rising strengths of the sparse part, which
   is a sum of group norms or of absolute values. The ridge model is the first candidate of this path.

Under the rule `best`, another candidate replaces the ridge model only if dev gives evidence for it: a score better by
more than two paired standard errors, and no larger loss. The best of several equally good models would otherwise win by
chance, because dev sets are small.

Only strengths that are `auto` are chosen. A strength that is given as a number stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from structsparse.training.search.candidates import Candidate, Outcome, Setting, dev_counts
from structsparse.training.search.choose import BEST, LOSS
from structsparse.training.search.entry_search import EntrySearch
from structsparse.training.stage import Stage, StageResult

PATIENCE = 2  # the second path ends after this number of candidates in a row that are clearly worse or cannot be chosen


class RidgeSearch(EntrySearch):
    """Ridge search: the state of a search for two strengths of a penalty, first of squares, then of the sparse part.

    `squares` and `sparse` are the given strengths, relative to the summed loss; None means that dev chooses. `held` has
    the options of the penalty that are the same in all fits."""

    def __init__(
        self, setting: Setting, squares: float | None, sparse: float | None, held: Mapping[str, object]
    ) -> None:
        super().__init__(setting)
        self.squares, self.sparse, self.held = squares, sparse, held

    def run(self) -> Outcome:
        """Ridge search: choose the squares, then the sparse part, and continue the chosen fit."""
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
        """Ridge search: results and candidates of the first path, with falling strengths of the squares."""
        rules = self.setting.rules
        shares = rules.falling() if self.squares is None else (self.squares / rules.first,)
        return self._follow([(share, share * rules.first) for share in shares], "ridge")

    def _stage(self, name: str, strength: float) -> Stage:
        """Ridge search: the stage `name` of the first path, at a strength of the squares."""
        return self._stage_at(name, strength, self.sparse or 0.0)

    def _stage_at(self, name: str, squares: float, sparse: float) -> Stage:
        """Ridge search: the stage `name` at strengths of squares and sparse part, relative to the summed loss."""
        kind = self.setting.stage_of(name, self.held).terms[0].kind
        return self.setting.stage_of(name, {**self.held, **kind.mixed(squares, sparse)})

    def _sparse_path(
        self, squares: float, ridge: StageResult, candidate: Candidate
    ) -> tuple[list[StageResult], list[Candidate]]:
        """Ridge search: results and candidates of the second path, with rising strengths of the sparse part.

        The first candidate is the ridge model. The strengths are shares of the strength at which, at the weights of the
        ridge model, the sparse part of the penalty is as large as the squares."""
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
        """Ridge search: whether, under the rule `best`, the last PATIENCE candidates have larger dev losses than ridge.

        They cannot replace ridge, and a stronger sparse part would make the loss larger still."""
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
        """Ridge search: the strength at which, at the weights of ridge, sparse part and squares are equally large."""
        setting, values = self.setting, []
        for strengths in ((squares, 0.0), (0.0, 1.0)):
            stage = self._stage_at("fit", *strengths)
            _, terms = setting.task.build(stage, setting.data)
            penalties = terms[0][1]
            values.append(sum(float(penalty.value(ridge.weights[name])) for name, penalty in penalties.items()))
        return values[0] / values[1] if values[1] > 0 else 0.0

    def _name(self, chosen: Candidate) -> str:
        """Ridge search: the text for the chosen strengths on the console."""
        return "ridge alone" if not chosen.strength else f"sparse part at {chosen.row['share']:.4g} of the squares"
