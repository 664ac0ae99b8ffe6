"""Filters of templates, the classic way to choose: before anything is trained each template is judged, by itself, or by
what it adds to others.

A filter takes the training sentences, the name of the column to predict and the templates; it returns those to keep,
in their old order, and what there is to say of it. Of templates of arcs it judges what they say of every arc, whether
that is one of the gold tree's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.tasks.parsing.features.forward import Forward, forward
from structsparse.tasks.parsing.features.index import Looks, gold_arcs
from structsparse.tasks.parsing.features.templates import ArcTemplate
from structsparse.tasks.tagging.features.index import FeatureIndex
from structsparse.tasks.tagging.features.templates import Template

_TOGETHER = 32  # templates whose features are held at a time, a number for each token

Filtered = tuple[list[Template], list[str]]  # templates, notes


def all_of(sentences: Sentences, tag: str, templates: Sequence[Template]) -> Filtered:
    return list(templates), []


def at_random(sentences: Sentences, tag: str, templates: Sequence[Template], count: int, seed: int) -> Filtered:
    """`count` templates, every choice equally likely."""
    _check(count, len(templates), seed)
    chosen = np.random.default_rng(seed).permutation(len(templates))[:count]
    return _kept(templates, chosen), [f"filter: {count} of {len(templates)} templates, drawn with seed {seed}"]


def by_gain(
    sentences: Sentences, tag: str, templates: Sequence[Template], count: int, over_chance: bool, seed: int
) -> Filtered:
    """The `count` templates of the largest gain; `over_chance` subtracts what each gains about shuffled labels."""
    _check(count, len(templates), seed)
    labels = gold_arcs(sentences) if _of_arcs(templates) else sentences.columns[tag].codes
    shuffled = np.random.default_rng(seed).permutation(labels) if over_chance else None
    gain = gains(sentences, templates, labels, shuffled)
    order = np.argsort(-gain, kind="stable")[:count]
    first, last = (f"{templates[k].name} {gain[k]:.4g}" for k in (order[0], order[-1]))
    beyond = " over chance" if over_chance else ""
    note = f"filter: {count} of {len(templates)} templates by information gain{beyond}, in bits from {first} to {last}"
    return _kept(templates, order), [note]


def by_addition(
    sentences: Sentences, tag: str, templates: Sequence, count: int, seed: int, ridge: float, rate: float,
    tries: float, again: int,
) -> Filtered:  # fmt: skip
    """`count` templates of arcs, one after another, each for what it adds to those that are chosen already."""
    _check(count, len(templates), seed)
    if not _of_arcs(templates):
        raise UserError("filter=forward chooses among templates of arcs (task=parsing); take filter=gain or random")
    if len(sentences) < 2:
        raise UserError(
            f"filter=forward fits one half of training and looks at the other; there are {len(sentences)} sentences"
        )
    _check_numbers(ridge=ridge, rate=rate, tries=tries, again=again)
    model = Forward(sentences, templates, ridge, rate, np.random.default_rng(seed))
    chosen, gain = forward(model, count, tries, again)
    first, last = (
        f"{templates[k].name} {1000 * g / sentences.tokens:.4g}"
        for k, g in ((chosen[0], gain[0]), (chosen[-1], gain[-1]))
    )
    note = (
        f"filter: {count} of {len(templates)} templates, one after another, by what each adds on sentences held out, "
        f"in thousandths of a nat a word from {first} to {last}; {sum(g <= 0 for g in gain)} of them add nothing there"
    )
    return _kept(templates, np.array(chosen)), [note]


def gains(
    sentences: Sentences, templates: Sequence[Template], labels: np.ndarray, shuffled: np.ndarray | None = None
) -> np.ndarray:
    """Mutual information of each template's feature at a token and the token's label, or of that on an arc and whether
    it is gold, in bits: float64 [templates]

    Equation 16 of Martins et al. (2011), for tokens with labels in the place of arcs. A template whose features are all
    different knows every label and generalises to none, which the same information about `shuffled` labels tells, if
    given."""
    found = []
    for codes in _codes(sentences, templates):
        chance = 0.0 if shuffled is None else mutual_information(codes, shuffled)
        found.append(mutual_information(codes, labels) - chance)
    return np.array(found)


def _of_arcs(templates: Sequence) -> bool:
    return len(templates) > 0 and isinstance(templates[0], ArcTemplate)


def _codes(sentences: Sentences, templates: Sequence) -> Iterator[np.ndarray]:
    """The feature of each template at all tokens, or on all arcs."""
    if _of_arcs(templates):
        look = Looks(sentences, templates)
        yield from map(look.keys, range(len(templates)))
        return
    for begin in range(0, len(templates), _TOGETHER):
        some = templates[begin : begin + _TOGETHER]
        index = FeatureIndex.fit(sentences, some)
        features = index.bags(sentences).ids.reshape(sentences.tokens, len(some))  # each template has one at each token
        yield from (features[:, k] - int(index.offsets[k]) for k in range(len(some)))


def mutual_information(a: np.ndarray, b: np.ndarray) -> float:
    """sum P(a, b) log2 (P(a, b) / (P(a) P(b))) of two sequences of codes, from their counts; never below 0."""
    values = np.uint64(int(b.max()) + 1)
    pair = a.astype(np.uint64) * values + b.astype(np.uint64)  # of keys, which fill all bits, another hash
    return max(0.0, _entropy(a) + _entropy(b) - _entropy(pair))


def _entropy(codes: np.ndarray) -> float:
    """In bits, of how often each code occurs."""
    ordered = np.sort(codes)
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, len(ordered))
    share = np.diff(ends, prepend=0) / len(codes)
    return float(-(share * np.log2(share)).sum())


def _kept(templates: Sequence[Template], chosen: np.ndarray) -> list[Template]:
    return [templates[k] for k in np.sort(chosen)]


def _check_numbers(ridge: float, rate: float, tries: float, again: int) -> None:
    for name, value in (("ridge", ridge), ("rate", rate), ("tries", tries)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
            raise UserError(f"filter.{name} is {value}; expected a number above 0")
    if rate > 1:
        raise UserError(f"filter.rate is {rate}; expected a share of a step, at most 1")
    if isinstance(again, bool) or not isinstance(again, int) or again < 0:
        raise UserError(f"filter.again is {again}; expected a whole number of at least 0")


def _check(count: int, available: int, seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"filter.seed is {seed}; expected a whole number of at least 0")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= available:
        raise UserError(f"filter.count is {count}; expected a number of templates from 1 to {available}")
