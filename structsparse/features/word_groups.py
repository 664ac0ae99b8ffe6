"""Overlapping groups of words: the rows of a classifier's table that a penalty switches off together.

What makes a group (a sentence, a phrase, a topic, a word class, ...) is a stretch of a row of words. In a group each
word counts once; what is no feature is left out. Groups of one word are left out too: that word's own share of a lasso
says the same. Groups of the same words are one group with the sum of their weights, which is the same penalty.

`weights` of each group as it stands, before equal ones are joined:

    one          1
    sqrt_size    sqrt(entries of the table)
    overlap      1 / (how many groups a word of the group lies in, on average over its words)

`permute` makes the control: as many groups, as large, that overlap alike, of words that were drawn: a permutation
(`seed`) of the words of training takes the place of each word, `frequency`: among words that are in as many documents
of training, `all`: among all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.corpora.documents import running
from structsparse.features.clusters import topics as topic_models
from structsparse.features.clusters.brown import WordTree
from structsparse.features.clusters.brown import brown as brown_tree
from structsparse.features.clusters.ward import ward as ward_tree
from structsparse.features.words import WordLayout
from structsparse.groups import files
from structsparse.groups.cover import Cover, cover_rows
from structsparse.groups.layouts import over
from structsparse.kernels.features import word_groups as kernels

WEIGHTS, PERMUTATIONS = ("one", "sqrt_size", "overlap"), ("none", "frequency", "all")
NEUTRAL = 2  # of the sentiments from 0 to 4
MOST_TOLD = 5  # words of a message


class Stretches(NamedTuple):
    """What groups are made of: unit k has the words codes[begins[k] : ends[k]]."""

    codes: np.ndarray  # into the word types of the corpus
    begins: np.ndarray
    ends: np.ndarray
    noun: str
    name: Callable[[int], str]  # of a unit
    factor: np.ndarray | float = 1.0  # on the weights


@over("words", makes=Cover)
def sentences(shape, layout: WordLayout, parameter: str = "the table", weights: str = "one", **control) -> Cover:
    """A group for each sentence of the documents of training."""
    train, bounds = layout.train, layout.train.sentences()

    def name(unit: int) -> str:
        document = _document_at(train, bounds[unit])
        before = np.searchsorted(bounds, train.offsets[document])
        return f"sentence {unit - before + 1} of {train.names[document]}"

    units = Stretches(train.tokens, bounds[:-1], bounds[1:], "sentences", name)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def documents(shape, layout: WordLayout, parameter: str = "the table", weights: str = "one", **control) -> Cover:
    """A group for each document of training."""
    train = layout.train
    units = Stretches(
        train.tokens, train.offsets[:-1], train.offsets[1:], "documents", lambda unit: f"words of {train.names[unit]}"
    )
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def constituents(
    shape,
    layout: WordLayout,
    parameter: str = "the table",
    weights: str = "sqrt_size",
    neutral: bool = False,
    **control,
) -> Cover:
    """A group for each constituent of the parse trees of training; `neutral`: only those of neutral sentiment."""
    train, found = layout.train, layout.train.constituents
    if found is None:
        raise UserError("groups=constituents needs documents with parse trees; these have none")
    if neutral and not (found.value >= 0).any():
        raise UserError("groups.neutral=true needs parse trees with a sentiment from 0 to 4; these have none")
    kept = np.flatnonzero(found.value == NEUTRAL) if neutral else np.arange(len(found.document))
    owner = found.document[kept]
    first = train.offsets[owner]

    def name(unit: int) -> str:
        k = kept[unit]
        codes = train.tokens[first[unit] + found.begin[k] : first[unit] + found.end[k]]
        return f"phrase of {train.names[owner[unit]]}: " + " ".join(train.words[c] for c in codes.tolist())

    units = Stretches(train.tokens, first + found.begin[kept], first + found.end[kept], "constituents", name)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def topics(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", topics: int = 1000,
    top: int = 10, iterations: int = 100, topic_seed: int = 0, cache: int = 0, **control,
) -> Cover:  # fmt: skip
    """A group for each topic of the documents of training: the words it holds most probable."""
    found = topic_models.lda(layout.train, topics, top, iterations, topic_seed, cache)
    ends = np.cumsum(found.sizes)
    units = Stretches(found.codes, ends - found.sizes, ends, "topics", found.name)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def brown(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", classes: int = 5000,
    largest: int | None = None, cache: int = 0, **control,
) -> Cover:  # fmt: skip
    """A group for each node of the tree of Brown clusters: the words below it, `largest` of them at most. Clusters are
    those of training and of all texts without labels."""
    text = running(layout.train, layout.unlabelled, layout.reading)
    tree = brown_tree(text, classes, cache)
    return _cover(shape, layout, parameter, _below(tree, largest), weights, **control)


@over("words", makes=Cover)
def ward(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", classes: int = 5000,
    dimensions: int = 40, window: int = 5, largest: int | None = None, cache: int = 0, **control,
) -> Cover:  # fmt: skip
    """A group for each node of Ward's tree over word vectors: the words below it, `largest` of them at most. Vectors
    are those of training and of all texts without labels."""
    text = running(layout.train, layout.unlabelled, layout.reading)
    tree = ward_tree(text, classes, dimensions, window, cache)
    return _cover(shape, layout, parameter, _below(tree, largest), weights, **control)


def _below(tree: WordTree, largest: int | None) -> Stretches:
    nodes = np.flatnonzero(tree.sizes <= (len(tree.words) if largest is None else largest))
    bounds = tree.begins[nodes], tree.ends[nodes]
    return Stretches(tree.order, *bounds, "clusters", lambda unit: tree.name(int(nodes[unit])))


@over("words", makes=Cover)
def words_file(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "one", path: str | Path = "", **control
) -> Cover:
    """Groups of words that somebody wrote down, as JSON or YAML: {name: [words]}, or {groups: {name: [words]}, weights:
    {name: number}}; weights of the file come in the place of `weights`. Words that are no features are left out and
    told."""
    path = Path(path)
    written = files.read(path)
    if written.parents is not None or isinstance(written.rows, tuple):
        raise UserError(f"{path}: expected {{name: [words]}}, with or without weights, and nothing else")
    code_of = {word: code for code, word in enumerate(layout.train.words)}
    texts = [[str(word) for word in words] for words in written.rows]
    codes = [[code_of.get(word, code_of.get(word.lower(), -1)) for word in words] for words in texts]
    flat = np.array([code for own in codes for code in own], np.int64)
    words = [word for own in texts for word in own]
    known = (flat >= 0) & (layout.row_of[flat] >= 0)
    strange = [*dict.fromkeys(word for word, is_known in zip(words, known.tolist(), strict=True) if not is_known)]
    if strange:
        some = ", ".join(strange[:MOST_TOLD]) + (", ..." if len(strange) > MOST_TOLD else "")
        warnings.warn(f"{path}: {len(strange)} words are no features and were left out: {some}", stacklevel=2)
    flat[~known] = -1
    sizes = np.array([len(own) for own in codes], np.int64)
    ends, factor = np.cumsum(sizes), 1.0
    if written.weights is not None:
        factor, weights = files.weights_of(path, written).numpy(), "one"
    units = Stretches(flat, ends - sizes, ends, f"groups of {path.name}", written.names.__getitem__, factor)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def planted(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", **control
) -> Cover:  # fmt: skip
    """The groups of words that a planted corpus was drawn from."""
    if not layout.groups:
        raise UserError(
            "groups=planted is for data=planted_documents, these data tell no groups; take reg=sentences, brown, ..."
        )
    names, code_of = list(layout.groups), {word: code for code, word in enumerate(layout.train.words)}
    codes = [[code_of.get(word, -1) for word in words] for words in layout.groups.values()]
    ends = np.cumsum([len(own) for own in codes])
    flat = np.array([code for own in codes for code in own], np.int64)
    units = Stretches(flat, np.concatenate([[0], ends[:-1]]), ends, "planted groups", names.__getitem__)
    return _cover(shape, layout, parameter, units, weights, **control)


KINDS = {
    "sentences": sentences,
    "constituents": constituents,
    "topics": topics,
    "brown": brown,
    "ward": ward,
    "documents": documents,
    "words_file": words_file,
    "planted": planted,
}


@over("words", makes=Cover)
def combined(
    shape, layout: WordLayout, parameter: str = "the table", parts: Mapping[str, Mapping | float] | None = None,
    **options,
) -> Cover:  # fmt: skip
    """The groups of several kinds: {kind: factor on its weights, or {factor: ..., options of the kind}}; options of all
    kinds beside."""
    if not parts:
        raise UserError(f"groups.parts is empty; expected some of {', '.join(KINDS)}")
    covers, factors = [], []
    for kind, own in parts.items():
        own = dict(own) if isinstance(own, Mapping) else {"factor": own}
        maker = KINDS.get(own.pop("kind", kind))
        if maker is None:
            raise UserError(f"groups.parts has {kind!r}; expected some of {', '.join(KINDS)}")
        factors.append(own.pop("factor", 1.0))
        covers.append(maker(shape, layout, parameter, **{**options, **own}))
    shifts = np.cumsum([0, *(int(cover.offsets[-1]) for cover in covers)])
    offsets = [cover.offsets[:-1] + int(shift) for cover, shift in zip(covers, shifts, strict=False)]
    offsets = torch.cat([*offsets, torch.tensor([int(shifts[-1])])])
    weights = torch.cat([cover.weight * factor for cover, factor in zip(covers, factors, strict=True)])
    members = torch.cat([cover.members for cover in covers])
    found = cover_rows(shape, members, offsets, Joined([cover.names for cover in covers]), weights, parameter)
    found.notes = tuple(note for cover in covers for note in cover.notes)
    return found


def extra_columns(cover: Cover) -> tuple[list[str], sparse.csr_array]:
    """Groups as further features of a document: their names, and what each is a sum of, float64 [words, groups].

    A feature is the sum of its words over the root of how many they are: a direction of length 1, as each word is, so
    that a penalty weighs both alike."""
    sizes = cover.offsets.diff().numpy()
    values = np.repeat(1 / np.sqrt(sizes), sizes)
    arrays, shape = (values, cover.members.numpy(), cover.offsets.numpy()), (len(cover), len(cover.atoms))
    return list(cover.names), sparse.csr_array(arrays, shape).T.tocsr()


def _cover(
    shape: Sequence[int], layout: WordLayout, parameter: str, units: Stretches, weights: str, permute: str = "none",
    seed: int = 0,
) -> Cover:  # fmt: skip
    """The groups of all units that have two words or more. Its `source` says which group each unit has become (-1:
    none), its `notes` what was left out."""
    for key, seen, expected in (("weights", weights, WEIGHTS), ("permute", permute, PERMUTATIONS)):
        if seen not in expected:
            raise UserError(f"groups.{key} is {seen!r}, expected one of {', '.join(expected)}")
    table = len(layout.words)
    if len(shape) not in (1, 2) or shape[0] != table:
        raise UserError(f"{parameter} is {tuple(shape)}, expected a row for each of {table} words")
    rows = np.where(units.codes >= 0, layout.row_of[units.codes], -1)
    bounds = units.begins.astype(np.int64), units.ends.astype(np.int64)
    sizes = kernels.count_distinct(rows, *bounds, table)
    some = np.flatnonzero(sizes > 1)
    if not len(some):
        raise UserError(f"none of the {len(sizes)} {units.noun} has two words that are features: there is no group")
    offsets = _offsets(sizes[some])
    members = kernels.distinct(rows, *(bound[some] for bound in bounds), table, offsets)
    first, group = np.unique(kernels.same_as(members, offsets), return_inverse=True)
    weight = _weights(weights, members, offsets, table, int(np.prod(shape[1:]))) * _of(units.factor, some)
    weight = np.bincount(group, weight)
    members, offsets = _taken(members, offsets, first)
    names = Named(units.name, some[first], np.bincount(group))
    members = permutation(layout, permute, seed)[members]
    cover = cover_rows(shape, members, offsets, names, torch.from_numpy(weight), parameter)
    cover.source = np.full(len(sizes), -1)
    cover.source[some] = group
    cover.notes = (
        f"{len(first):,} groups of {len(sizes):,} {units.noun}: {len(sizes) - len(some):,} of fewer than two words, "
        f"{len(some) - len(first):,} of the same words as another",
    )
    return cover


def _of(factor: np.ndarray | float, units: np.ndarray) -> np.ndarray | float:
    return factor[units] if isinstance(factor, np.ndarray) else factor


def _weights(rule: str, members: np.ndarray, offsets: np.ndarray, table: int, columns: int) -> np.ndarray:
    sizes = np.diff(offsets)
    if rule == "one":
        return np.ones(len(sizes))
    if rule == "sqrt_size":
        return np.sqrt(sizes * columns)
    lies_in = np.bincount(members, minlength=table)  # groups of each word
    return sizes / np.add.reduceat(lies_in[members], offsets[:-1])


def _taken(members: np.ndarray, offsets: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Members and offsets of some of the groups, in that order."""
    sizes = np.diff(offsets)[groups]
    taken = _offsets(sizes)
    return members[np.repeat(offsets[:-1][groups] - taken[:-1], sizes) + np.arange(taken[-1])], taken


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])


def permutation(layout: WordLayout, kind: str, seed: int) -> np.ndarray:
    """The row in whose place each row is put: int32 [rows]. Words that training lacks, and features that are no words,
    stay where they are."""
    place = np.arange(len(layout.words), dtype=np.int32)
    if kind == "none":
        return place
    words = np.flatnonzero(layout.counts[: len(place) - layout.extra] > 0)
    drawn = words[np.random.default_rng(seed).permutation(len(words))]
    if kind == "frequency":  # both in the order of frequency, the one as they lie, the other as they were drawn
        words = words[np.argsort(layout.documents[words], kind="stable")]
        drawn = drawn[np.argsort(layout.documents[drawn], kind="stable")]
    place[words] = drawn
    return place


def _document_at(documents, token: int) -> int:
    return int(np.searchsorted(documents.offsets, token, side="right")) - 1


class Named(Sequence):
    """Names that are made when somebody asks."""

    def __init__(self, name: Callable[[int], str], units: np.ndarray, alike: np.ndarray):
        self.name, self.units, self.alike = name, units, alike

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        unit, others = int(self.units[number]), int(self.alike[number]) - 1
        return self.name(unit) + (f" (and {others:,} like it)" if others else "")


class Joined(Sequence):
    """The names of several, one after the other."""

    def __init__(self, parts: Sequence[Sequence[str]]):
        self.parts, self.bounds = parts, _offsets(np.array([len(part) for part in parts]))

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        part = int(np.searchsorted(self.bounds, number, side="right")) - 1
        return self.parts[part][number - int(self.bounds[part])]
