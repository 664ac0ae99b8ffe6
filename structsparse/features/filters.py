"""Filters of feature templates: select templates before training; each template is scored independently.

A filter gets the candidate templates and their features in the training sentences. The filter returns the templates to
keep, in the given order, and notes for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from structsparse.base.errors import UserError
from structsparse.features.information import mutual_information

Filtered = tuple[list, list[str]]  # the templates that a filter keeps, and notes for the user


class Candidates(Protocol):
    """The candidate templates that a filter selects from, with their features in the training sentences."""

    templates: Sequence

    @property
    def gold(self) -> np.ndarray:
        """Filter candidates: the gold code of each token or arc (int array).

        The code of a token is its label. The code of an arc is 1 if the arc is in the gold tree, otherwise 0."""

    def features(self) -> Iterator[np.ndarray]:
        """Filter candidates: yields, for each template, the feature codes of all tokens or arcs (int array)."""


def all_of(candidates: Candidates) -> Filtered:
    """The filter that keeps all feature templates."""
    return list(candidates.templates), []


def keeps_all(filter: Callable) -> bool:
    """Whether a filter of feature templates is `all_of`, either directly or as a partial application."""
    return (filter.func if isinstance(filter, partial) else filter) is all_of


def at_random(candidates: Candidates, count: int, seed: int) -> Filtered:
    """The filter that keeps `count` feature templates, drawn at random with equal probability."""
    templates = candidates.templates
    check_count(count, len(templates), seed)
    chosen = np.random.default_rng(seed).permutation(len(templates))[:count]
    note = f"filter: {count} of {len(templates)} templates, drawn at random with seed {seed}"
    return in_order(templates, chosen), [note]


def by_gain(candidates: Candidates, count: int, over_chance: bool, seed: int) -> Filtered:
    """The filter that keeps the `count` feature templates with the largest information gain about the labels.

    With `over_chance`, the information gain about shuffled labels is subtracted."""
    templates = candidates.templates
    check_count(count, len(templates), seed)
    shuffled = np.random.default_rng(seed).permutation(candidates.gold) if over_chance else None
    gain = gains(candidates, shuffled)
    order = np.argsort(-gain, kind="stable")[:count]
    first, last = (f"{templates[k].name} {gain[k]:.4g}" for k in (order[0], order[-1]))
    beyond = " over chance" if over_chance else ""
    note = f"filter: {count} of {len(templates)} templates by information gain{beyond}, in bits from {first} to {last}"
    return in_order(templates, order), [note]


def gains(candidates: Candidates, shuffled: np.ndarray | None = None) -> np.ndarray:
    """Filter scores: for each template, the mutual information of its feature and the label, in bits.

    This information gain is equation 16 of Martins et al. (2011). If `shuffled` labels are given, the gain
    about them is subtracted. Without this, a template whose features are all different has the largest gain."""
    gold, result = candidates.gold, []
    for codes in candidates.features():
        chance = 0.0 if shuffled is None else mutual_information(codes, shuffled)
        result.append(mutual_information(codes, gold) - chance)
    return np.array(result)


def in_order(templates: Sequence, chosen: np.ndarray) -> list:
    """The feature templates that a filter has chosen, in the order of `templates`.

    `chosen` has the indices of the chosen templates (int array)."""
    return [templates[k] for k in np.sort(chosen)]


def check_count(count: int, available: int, seed: int) -> None:
    """Refuse filter options: a count that is not from 1 to the number of templates, or a negative seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"filter.seed is {seed}; expected a whole number of at least 0")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= available:
        raise UserError(f"filter.count is {count}; expected a number of templates from 1 to {available}")
