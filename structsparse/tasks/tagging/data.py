"""The data of a tagger: the train, dev and test parts of a tagged corpus as arrays of features and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.corpora.splits import SentenceSplits
from structsparse.corpora.tags import convert, detect_scheme
from structsparse.features import attributes, filters
from structsparse.features.keys import Bags
from structsparse.features.prepared import indexed
from structsparse.features.word_lists import WordLists
from structsparse.tasks.tagging.edges import EdgeFeatures, EdgeScorer, without_first_tokens
from structsparse.tasks.tagging.features.filters import TokenCandidates
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import Template, expand
from structsparse.tasks.tagging.scores import SpanScore
from structsparse.training.batches import Batches, Passages, TokenArrays
from structsparse.training.data import CorpusParts
from structsparse.training.scores import AccuracyScore
from structsparse.weights.batch import Sizes
from structsparse.weights.observed_pairs import Pairs

LARGE_BATCH = 2000  # number of sentences in a batch when the tagger only predicts
EDGES = "tagger.edges.table"  # name of the parameter with the weights of edge features


def table_name(names: Iterable[str]) -> str | None:
    """Tagger's data: the parameter name among `names` that is the weight table of sparse features; None if none is."""
    return next((name for name in names if name.endswith("table") and name != EDGES), None)


@dataclass(frozen=True)
class TaggingData(CorpusParts):
    """The data of a tagger: tagged sentences of train, dev and test, the feature index, and the labels."""

    splits: SentenceSplits
    index: TokenIndex  # the index of token features
    arrays: dict[str, TokenArrays]  # features and labels of the parts train, dev and test
    labels: tuple[str, ...]  # the labels that occur in training; a tagger predicts only these
    names: tuple[str, ...]  # `labels`, then the labels that occur only in dev or test
    sizes: Sizes  # numbers of features and labels, which determine the shapes of parameters
    dense: tuple[str, ...]  # names of the numeric columns that the model reads
    codes: dict[str, dict[str, int]]  # attribute -> value -> code, for models with embeddings
    tag: str  # the name of the column to predict
    scheme: str | None  # how tags encode spans in training (such as iob2); None: tags are not spans
    notes: tuple[str, ...]  # messages for the user
    reduced: bool = False  # whether features have been dropped from the index
    edges: EdgeFeatures | None = None  # features conjoined with pairs of neighbouring labels; None: none
    short: TokenIndex | None = None  # feature index with shorter keys for a small artifact
    short_edges: TokenIndex | None = None  # index of edge features with shorter keys for a small artifact
    lists: WordLists = field(default_factory=WordLists)  # lexicons and clusters, which give columns

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the corpus in a tagger's data, without the attributes that word lists add."""
        return tuple(name for name in self.splits.train.columns if name not in self.lists.attributes)

    @property
    def score(self) -> Callable[[], SpanScore | AccuracyScore]:
        """A function that makes an empty score for a tagger's data: SpanScore if tags are spans, else AccuracyScore."""
        kind = AccuracyScore if self.scheme is None else SpanScore
        return lambda: kind(list(self.names))

    @property
    def metric(self) -> str:
        """The name of the dev score that ranks models on a tagger's data: f1 if tags are spans, else accuracy."""
        return "accuracy" if self.scheme is None else "f1"

    def keep(self, alive: np.ndarray | None, edges: np.ndarray | None = None) -> TaggingData:
        """The data of a tagger with only the features marked in `alive` and the edge features marked in `edges`.

        Both masks are bool arrays; None keeps all features."""
        if edges is not None:
            return self._keep_edges(edges).keep(alive)
        if alive is None:
            return self
        index, new_row = self.index.keep(alive)
        arrays = {part: replace(a, bags=a.bags.renumber(new_row)) for part, a in self.arrays.items()}
        sizes = self.sizes._replace(rows=len(index), pairs=_pairs(arrays["train"], index, self.labels))
        return replace(self, index=index, arrays=arrays, sizes=sizes, reduced=True)

    def in_scheme(self, scheme: str) -> TaggingData:
        """The data of a tagger with its span tags in another scheme (such as iobes), and the same features."""
        if scheme == self.scheme:
            return self
        parts = {}
        for part, sentences in self.splits.parts.items():
            column, _ = convert(sentences, self.tag, source=self.scheme, target=scheme)
            parts[part] = sentences.with_column(self.tag, column)
        labels, names = _label_names(parts, self.tag)
        arrays = {part: replace(a, gold=_gold(parts[part], self.tag, names)) for part, a in self.arrays.items()}
        sizes = self.sizes._replace(labels=len(labels), pairs=_pairs(arrays["train"], self.index, labels))
        edges = None if self.edges is None else self.edges.relabelled(arrays["train"].gold)
        splits = replace(self.splits, **parts)
        return replace(
            self, splits=splits, arrays=arrays, labels=labels, names=names, sizes=sizes, scheme=scheme, edges=edges
        )

    def _keep_edges(self, alive: np.ndarray) -> TaggingData:
        """The data of a tagger with only the edge features marked in the bool array `alive`."""
        edges = self.edges.keep(alive)
        arrays = {part: replace(a, edges=edges.bags[part]) for part, a in self.arrays.items()}
        return replace(self, edges=edges, arrays=arrays, reduced=True)

    def with_dev(self) -> TaggingData | None:
        """The data of a tagger with the dev sentences added to train, with the same features and labels.

        The result is None if dev was not drawn from train, or if dev has a label that train lacks."""
        train, dev = self.arrays["train"], self.arrays["dev"]
        if not self.splits.held_out or np.any(dev.gold >= len(self.labels)):
            return None
        return replace(self, arrays={**self.arrays, "train": train.followed_by(dev)})

    def shortened(self, guard: int, alive: np.ndarray, edges: np.ndarray | None) -> TaggingData:
        """The data of a tagger with shorter keys; keeps keys only for features in `alive` and edge features in `edges`.

        Both masks are bool arrays. Features of dev and test are looked up again with the shorter keys."""
        train = self.splits.train
        short = self.index.only(alive).shortened_on(train, guard)
        short_edges = None if edges is None else self.edges.index.only(edges).shortened_on(train, guard)
        arrays = dict(self.arrays)
        for part in ("dev", "test"):
            sentences = self.splits.parts[part]
            arrays[part] = replace(arrays[part], bags=short.bags(sentences))
            if short_edges is not None:
                bags = without_first_tokens(short_edges.bags(sentences), sentences.offsets)
                arrays[part] = replace(arrays[part], edges=bags)
        return replace(self, arrays=arrays, short=short, short_edges=short_edges)

    def edge_scorer(self) -> EdgeScorer | None:
        """A scorer of edge features for the data of a tagger, with all weights zero; None without edge features."""
        edges = self.edges
        return None if edges is None else EdgeScorer(edges.label_pairs, len(self.labels), edges.pairs)

    def describe(self) -> list[str]:
        """Console lines about the data of a tagger: counts of sentences, tokens, features and labels, and notes."""
        parts = [f"{part} {len(a):,} sentences, {len(a.gold):,} tokens" for part, a in self.arrays.items()]
        model = f"{len(self.index.templates)} templates, {len(self.index):,} features, {len(self.labels)} labels"
        if self.edges is not None:
            features, edges = len(self.edges.index), self.edges.label_pairs.shape[1]
            model += f"; {features:,} features of {edges} edges, {len(self.edges.pairs):,} observed pairs of the two"
        return [f"{self.splits.name}: {'; '.join(parts)}", model, *self.notes]

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Batches:
        """Batches of the tagger's data, each with `size` sentences of a part (train, dev or test)."""
        return Batches(self.arrays[part], size, shuffle=shuffle, **sharing)

    def whole(self, part: str) -> Batches:
        """All sentences of a part of the tagger's data, in large batches for prediction."""
        return self.batches(part, LARGE_BATCH)

    def passages(self, part: str, size: int | None, seed: int) -> Passages:
        """Passages of the tagger's data for online solvers: blocks of `size` sentences, in random order."""
        return Passages(self.arrays[part], size, shuffle=True, seed=seed)


def prepare(
    splits: SentenceSplits,
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
    """Prepare the data of a tagger from a corpus: convert tags, choose templates, index and extract the features.

    - tag: name of the column to predict
    - scheme: how tags encode spans in training (such as iob2); None: tags are not spans
    - min_count: minimum number of training tokens on which a feature must occur
    - dense: names of numeric columns
    - codes: names of attributes for models with embeddings
    - choose: filter that selects templates
    - edges: templates of edge features
    - cache: megabytes of prepared features that may be kept on disk for later runs"""
    parts, notes = _converted(splits, tag, scheme)
    labels, names = _label_names(parts, tag)
    unseen = names[len(labels) :]
    notes += [f"{name}: label not seen in training, every one of its tags counts as wrong" for name in unseen]
    candidates = TokenCandidates(parts["train"], tag, _without_tag(templates, tag, notes))
    chosen, messages = choose(candidates)
    notes += messages
    index, bags, messages = indexed(parts, chosen, min_count, cache, TokenIndex)
    notes += messages
    vocabularies = {name: _vocabulary(parts["train"], name) for name in codes}
    notes += _dropped(parts, bags, index)
    arrays = {
        part: TokenArrays(
            bags[part],
            _gold(sentences, tag, names),
            sentences.offsets,
            attributes.numbers(sentences, dense),
            attributes.codes(sentences, vocabularies),
        )
        for part, sentences in parts.items()
    }
    coded = tuple(len(v) + 1 for v in vocabularies.values())
    sizes = Sizes(len(index), len(labels), len(dense), coded, _pairs(arrays["train"], index, labels))
    splits = replace(splits, **parts)
    data = TaggingData(
        splits, index, arrays, labels, names, sizes, tuple(dense), vocabularies, tag, scheme, tuple(notes)
    )
    return _with_edges(data, edges, min_count) if edges else data


def _dropped(parts: Mapping[str, Sentences], bags: Mapping[str, Bags], index: TokenIndex) -> list[str]:
    """Notes on a tagger's data: how many feature occurrences of dev and test were not seen in training."""
    notes = []
    for part in ("dev", "test"):
        unknown = parts[part].tokens * len(index.templates) - len(bags[part].ids)
        notes.append(f"{part}: {unknown:,} feature occurrences not seen in training were dropped")
    return notes


def _with_edges(data: TaggingData, lines: Sequence[str], min_count: int) -> TaggingData:
    """Add edge features (token features conjoined with pairs of neighbouring labels) to the data of a tagger."""
    templates = expand(lines)
    if any(name == data.tag for template in templates for name, _ in template.atoms):
        raise UserError(f"features.edges must not look at {data.tag!r}, the column to predict")
    gold = data.arrays["train"].gold
    edges = EdgeFeatures.fit(data.splits.parts, gold, templates, min_count)
    arrays = {part: replace(a, edges=edges.bags[part]) for part, a in data.arrays.items()}
    return replace(data, edges=edges, arrays=arrays)


def _without_tag(lines: Sequence[str], tag: str, notes: list[str]) -> list[Template]:
    """The templates for a tagger's data, without templates that read the column to predict.

    If a template is left out, a message is added to `notes`."""
    templates = expand(lines)
    allowed = [template for template in templates if all(name != tag for name, _ in template.atoms)]
    if len(allowed) < len(templates):
        notes.append(f"templates that look at {tag!r}, the column to predict, were left out; {len(allowed)} remain")
    return allowed


def _pairs(train: TokenArrays, index: TokenIndex, labels: Sequence[str]) -> Callable[[], Pairs]:
    """A function that returns the (feature, label) pairs in a tagger's training data; it computes them only once."""
    return cache(partial(Pairs.observed, train, len(index), len(labels)))


def _converted(splits: SentenceSplits, tag: str, scheme: str | None) -> tuple[dict[str, Sentences], list[str]]:
    """Convert the tags in a tagger's data to one span scheme (such as iob2); returns parts and notes for the user."""
    parts, notes = {}, []
    if splits.joined:
        notes.append("dev is trained on as well: its figures tell nothing of new sentences")
    for part, sentences in splits.parts.items():
        if len(sentences) == 0:
            raise UserError(f"{sentences.source}: no sentence in it; train, dev and test need one at least")
        if tag not in sentences.columns:
            columns = ", ".join(sentences.columns)
            raise UserError(f"{sentences.source}: no column {tag!r} (task.tag); there are {columns}")
        notes += [f"{part}: {note}" for note in sentences.notes]
        if scheme is not None:
            written = detect_scheme(sentences, tag) if splits.scheme == "auto" else splits.scheme
            column, stray = convert(sentences, tag, source=written, target=scheme, stray=splits.stray)
            sentences = replace(sentences, columns={**sentences.columns, tag: column})
            if stray:
                notes.append(f"{part}: {stray:,} tags outside the {written} scheme were repaired")
        parts[part] = sentences
    return parts, notes


def _label_names(parts: Mapping[str, Sentences], tag: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels in a tagger's training data; the same labels, then those that occur only in dev or test."""
    labels = tuple(sorted(_occurring(parts["train"], tag)))
    unseen = sorted({label for part in parts.values() for label in _occurring(part, tag)} - {*labels})
    return labels, (*labels, *unseen)


def _gold(sentences: Sentences, tag: str, names: Sequence[str]) -> np.ndarray:
    """The gold labels of the tokens in a tagger's data, as indices in `names` (int64 array)."""
    return attributes.codes(sentences, {tag: {name: k for k, name in enumerate(names)}})[:, 0]


def _occurring(sentences: Sentences, name: str) -> set[str]:
    """The values that occur in a column of a tagger's data."""
    return {*sentences.columns[name].without_unused().values}


def _vocabulary(sentences: Sentences, name: str) -> dict[str, int]:
    """The codes of an attribute in a tagger's data (training value -> code from 1; code 0 is for other values)."""
    return {value: k for k, value in enumerate(attributes.attribute(sentences, name).values, start=1)}
