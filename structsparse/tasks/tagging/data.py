"""Sequence labelling: entities, chunks, parts of speech."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.corpora.splits import Splits
from structsparse.corpora.tags import convert, detect_scheme
from structsparse.features import attributes, filters
from structsparse.features.prepared import indexed
from structsparse.tasks.tagging.edges import EdgeFeatures, EdgeScorer, inner
from structsparse.tasks.tagging.features.filters import TokenCandidates
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand
from structsparse.tasks.tagging.scores import SpanScore
from structsparse.training.batches import Batches, Passages, TokenArrays
from structsparse.training.data import CorpusParts
from structsparse.training.scores import AccuracyScore
from structsparse.weights.batch import Sizes
from structsparse.weights.observed_pairs import Pairs

WHOLE = 2000  # sentences at a time when a part is gone through once
EDGES = "tagger.edges.table"  # weights of features that are conjoined with a step from label to label


def table_name(names: Iterable[str]) -> str | None:
    """The weights of the sparse features of labels among these parameters, if any are."""
    return next((name for name in names if name.endswith("table") and name != EDGES), None)


@dataclass(frozen=True)
class TaggingData(CorpusParts):
    """Everything a tagger is trained and judged on, as arrays."""

    splits: Splits
    index: TokenIndex
    arrays: dict[str, TokenArrays]  # train, dev, test
    labels: tuple[str, ...]  # those of the training part: what can be predicted
    names: tuple[str, ...]  # labels, then those seen in dev or test only
    sizes: Sizes
    dense: tuple[str, ...]
    codes: dict[str, dict[str, int]]  # coded attributes and their vocabularies
    tag: str  # the column to predict
    scheme: str | None
    notes: tuple[str, ...]
    reduced: bool = False  # whether rows have been dropped
    edges: EdgeFeatures | None = None  # features that are conjoined with a step from label to label
    told: TokenIndex | None = None  # features as the artifact tells them, if by keys that are shorter than `index`'s
    edges_told: TokenIndex | None = None

    @property
    def score(self) -> Callable[[], SpanScore | AccuracyScore]:
        kind = AccuracyScore if self.scheme is None else SpanScore
        return lambda: kind(list(self.names))

    @property
    def metric(self) -> str:
        return "accuracy" if self.scheme is None else "f1"

    def keep(self, alive: np.ndarray | None, edges: np.ndarray | None = None) -> TaggingData:
        """Only the rows that are alive [rows], and those [rows] of the features of edges; of what is not told, all."""
        if edges is not None:
            return self._keep_edges(edges).keep(alive)
        if alive is None:
            return self
        index, new_row = self.index.keep(alive)
        arrays = {part: replace(a, bags=a.bags.renumber(new_row)) for part, a in self.arrays.items()}
        sizes = self.sizes._replace(rows=len(index), pairs=_pairs(arrays["train"], index, self.labels))
        return replace(self, index=index, arrays=arrays, sizes=sizes, reduced=True)

    def _keep_edges(self, alive: np.ndarray) -> TaggingData:
        edges = self.edges.keep(alive)
        arrays = {part: replace(a, edges=edges.bags[part]) for part, a in self.arrays.items()}
        return replace(self, edges=edges, arrays=arrays, reduced=True)

    def shortened(self, guard: int, alive: np.ndarray, edges: np.ndarray | None) -> TaggingData:
        """Features told by short keys, of which living ones alone are known: rows that are alive [rows], and those of
        the features of edges. Dev and test are what is found by these keys."""
        train = self.splits.train
        told = self.index.only(alive).shortened_on(train, guard)
        of_edges = None if edges is None else self.edges.index.only(edges).shortened_on(train, guard)
        arrays = dict(self.arrays)
        for part in ("dev", "test"):
            sentences = self.splits.parts[part]
            arrays[part] = replace(arrays[part], bags=told.bags(sentences))
            if of_edges is not None:
                arrays[part] = replace(arrays[part], edges=inner(of_edges.bags(sentences), sentences.offsets))
        return replace(self, arrays=arrays, told=told, edges_told=of_edges)

    def edge_scorer(self) -> EdgeScorer | None:
        """What scores the features of edges, at zero, if there are any."""
        edges = self.edges
        return None if edges is None else EdgeScorer(edges.steps, len(self.labels), edges.pairs)

    def describe(self) -> list[str]:
        """What was read, and what there is to say of it."""
        parts = [f"{part} {len(a):,} sentences, {len(a.gold):,} tokens" for part, a in self.arrays.items()]
        model = f"{len(self.index.templates)} templates, {len(self.index):,} features, {len(self.labels)} labels"
        if self.edges is not None:
            count, (_, steps) = len(self.edges.index), self.edges.steps.shape
            model += f"; {count:,} features of edges, {len(self.edges.pairs):,} pairs of one and of {steps} steps"
        return [f"{self.splits.name}: {'; '.join(parts)}", model, *self.notes]

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Batches:
        return Batches(self.arrays[part], size, shuffle=shuffle, **sharing)

    def whole(self, part: str) -> Batches:
        return self.batches(part, WHOLE)

    def passages(self, part: str, size: int | None, seed: int) -> Passages:
        return Passages(self.arrays[part], size, shuffle=True, seed=seed)


def prepare(
    splits: Splits,
    templates: Sequence[str],
    *,
    tag: str = "tag",
    scheme: str | None = "iob2",
    min_count: int = 1,
    dense: Sequence[str] = (),
    codes: Sequence[str] = (),
    choose: Callable[..., filters.Filtered] = filters.all_of,
    edges: Sequence[str] = (),
    cache: int = 0,
) -> TaggingData:
    """Text to arrays. `scheme` is how spans are written while training (null: the tags are no spans); `choose` is a
    filter of templates; `edges` are templates that are conjoined with a step from label to label; `cache` is how many
    megabytes of what was prepared may be kept for later runs."""
    parts, notes = _tags_as(splits, tag, scheme)
    labels = tuple(sorted({value for value, count in _counts(parts["train"], tag) if count}))
    others = {value for part in parts.values() for value, count in _counts(part, tag) if count} - set(labels)
    names = (*labels, *sorted(others))
    notes += [f"{name}: label not seen in training, every one of its tags counts as wrong" for name in sorted(others)]
    kept = [template for template in expand(templates) if all(name != tag for name, _ in template.atoms)]
    if len(kept) < len(expand(templates)):
        notes.append(f"templates that look at {tag!r}, the column to predict, were left out; {len(kept)} remain")
    kept, said = choose(TokenCandidates(parts["train"], tag, kept))
    notes += said
    index, bags_of, said = indexed(parts, kept, min_count, cache, TokenIndex)
    notes += said
    vocabularies = {name: _vocabulary(parts["train"], name) for name in codes}
    arrays = {}
    for part, sentences in parts.items():
        bags = bags_of[part]
        if part != "train":
            lost = sentences.tokens * len(index.templates) - len(bags.ids)
            notes.append(f"{part}: {lost:,} feature occurrences not seen in training were dropped")
        arrays[part] = TokenArrays(
            bags,
            attributes.codes(sentences, {tag: {name: k for k, name in enumerate(names)}})[:, 0],
            sentences.offsets,
            attributes.numbers(sentences, dense),
            attributes.codes(sentences, vocabularies),
        )
    coded = tuple(len(v) + 1 for v in vocabularies.values())
    sizes = Sizes(len(index), len(labels), len(dense), coded, _pairs(arrays["train"], index, labels))
    splits = replace(splits, **parts)
    data = TaggingData(
        splits, index, arrays, labels, names, sizes, tuple(dense), vocabularies, tag, scheme, tuple(notes)
    )
    return _with_edges(data, edges, min_count) if edges else data


def _with_edges(data: TaggingData, lines: Sequence[str], min_count: int) -> TaggingData:
    templates = expand(lines)
    if any(name == data.tag for template in templates for name, _ in template.atoms):
        raise UserError(f"features.edges must not look at {data.tag!r}, the column to predict")
    gold = data.arrays["train"].gold
    edges = EdgeFeatures.fit(data.splits.parts, gold, templates, min_count)
    arrays = {part: replace(a, edges=edges.bags[part]) for part, a in data.arrays.items()}
    return replace(data, edges=edges, arrays=arrays)


def _pairs(train: TokenArrays, index: TokenIndex, labels: Sequence[str]) -> Callable[[], Pairs]:
    """What is worked out, once, if a scorer asks for it."""
    return once(partial(Pairs.observed, train, len(index), len(labels)))


def _tags_as(splits: Splits, tag: str, scheme: str | None) -> tuple[dict[str, Sentences], list[str]]:
    """The parts with their tags in the scheme wanted, and what there is to say of it."""
    parts, notes = {}, []
    if splits.joined:
        notes.append("dev is trained on as well: its figures tell nothing of new sentences")
    for part, sentences in splits.parts.items():
        if len(sentences) == 0:
            raise UserError(f"{sentences.source}: no sentence in it; train, dev and test need one at least")
        if tag not in sentences.columns:
            raise UserError(
                f"{sentences.source}: no column {tag!r} (task.tag); there are {', '.join(sentences.columns)}"
            )
        notes += [f"{part}: {note}" for note in sentences.notes]
        if scheme is not None:
            written = detect_scheme(sentences, tag) if splits.scheme == "auto" else splits.scheme
            column, stray = convert(sentences, tag, source=written, target=scheme, stray=splits.stray)
            sentences = replace(sentences, columns={**sentences.columns, tag: column})
            if stray:
                notes.append(f"{part}: {stray:,} tags outside the {written} scheme were repaired")
        parts[part] = sentences
    return parts, notes


def _counts(sentences: Sentences, name: str) -> list[tuple[str, int]]:
    column = sentences.columns[name]
    return list(zip(column.values, np.bincount(column.codes, minlength=len(column.values)), strict=True))


def _vocabulary(sentences: Sentences, name: str) -> dict[str, int]:
    """Codes from 1; 0 is a value not seen in training."""
    return {value: k for k, value in enumerate(attributes.attribute(sentences, name).values, start=1)}
