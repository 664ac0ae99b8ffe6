"""Filters of arc templates of a parser: candidate templates to choose from, and a filter by forward selection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.treebank import Treebank
from structsparse.features.filters import Candidates, Filtered, check_count, in_order
from structsparse.tasks.parsing.features.arc_keys import ArcKeys, gold_arcs
from structsparse.tasks.parsing.features.forward import ForwardModels, forward_selection
from structsparse.tasks.parsing.features.templates import ArcTemplate


@dataclass(frozen=True)
class ArcCandidates:
    """Candidate arc templates for a filter, with the treebank whose gold arcs the features should predict."""

    treebank: Treebank
    templates: Sequence[ArcTemplate]

    @property
    def gold(self) -> np.ndarray:
        """Candidates for a filter of arc templates: 1 for each arc of the gold tree, 0 for other arcs (int64 array)."""
        return gold_arcs(self.treebank)

    def features(self) -> Iterator[np.ndarray]:
        """Candidates for a filter of arc templates: yields for each template the keys of all arcs (uint64 [arcs])."""
        arcs = ArcKeys(self.treebank, self.templates)
        return map(arcs.keys, range(len(self.templates)))


def by_addition(
    candidates: Candidates, count: int, seed: int, ridge: float, rate: float, tries: float, again: int
) -> Filtered:
    """The filter of arc templates by forward selection: `count` templates are chosen one by one, by their gain.

    The gain of a template is the increase of the held-out log-likelihood when it joins the chosen templates. Weights
    take `rate` times a Newton step, with the penalty ridge / 2 * weight^2. For `tries` and `again` see
    `forward_selection`."""
    if not isinstance(candidates, ArcCandidates):
        raise UserError("filter=forward chooses among templates of arcs (task=parsing); take filter=gain or random")
    treebank, templates = candidates.treebank, candidates.templates
    check_count(count, len(templates), seed)
    if len(treebank) < 2:
        raise UserError(
            f"filter=forward needs two sentences, one to fit and one to validate; there are {len(treebank)}"
        )
    _check_options(ridge, rate, tries, again)
    models = ForwardModels(treebank, templates, ridge, rate, np.random.default_rng(seed))
    chosen, gain = forward_selection(models, count, tries, again)
    first, last = (
        f"{templates[k].name} {1000 * g / treebank.tokens:.4g}"
        for k, g in ((chosen[0], gain[0]), (chosen[-1], gain[-1]))
    )
    note = (
        f"filter: {count} of {len(templates)} templates by forward selection; gains on held-out sentences, "
        f"in thousandths of a nat per word, from {first} to {last}; {sum(g <= 0 for g in gain)} of them gain nothing"
    )
    return in_order(templates, np.array(chosen)), [note]


def _check_options(ridge: float, rate: float, tries: float, again: int) -> None:
    """Raise an error if an option of the filter of arc templates by forward selection is out of range."""
    for name, value in (("ridge", ridge), ("rate", rate), ("tries", tries)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
            raise UserError(f"filter.{name} is {value}; expected a number above 0")
    if rate > 1:
        raise UserError(f"filter.rate is {rate}; expected a share of a step, at most 1")
    if isinstance(again, bool) or not isinstance(again, int) or again < 0:
        raise UserError(f"filter.again is {again}; expected a whole number of at least 0")
