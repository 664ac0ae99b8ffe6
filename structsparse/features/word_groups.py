"""Overlapping groups of words: rows of a classifier's table that a group penalty sets to zero together.

Each group is made from a unit: a sentence, document, phrase, topic, word cluster or list of words.

- A group has each word of its unit once. Words that are not features are left out.
- Units of a single word make no group, because an additional lasso penalty already covers single words.
- Groups with the same words are merged, and their weights added. This leaves the penalty the same.

The option `weights` is a rule for the weight of each group before merging:

    one          1
    sqrt_size    sqrt(number of table entries in the group)
    overlap      1 / (number of groups that a word of the group belongs to, on average)

The option `permute` makes random control groups with the same number, sizes and overlaps. A random permutation replaces
each training word: by a word of similar document frequency ("frequency") or by any word ("all")."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.corpora.documents import running_text
from structsparse.features.clusters.brown import WordTree, brown_tree
from structsparse.features.clusters.topics import lda
from structsparse.features.clusters.ward import ward_tree
from structsparse.features.words import WordLayout
from structsparse.groups import files
from structsparse.groups.cover import Cover, cover_rows
from structsparse.groups.layouts import over
from structsparse.kernels.features import word_groups as kernels

WEIGHTS, PERMUTATIONS = ("one", "sqrt_size", "overlap"), ("none", "frequency", "all")
NEUTRAL = 2  # value of neutral sentiment, on the scale from 0 to 4
MOST_LISTED = 5  # maximum number of words listed in a message


class Units(NamedTuple):
    """The units (sentences, topics, ...) from which groups of words are made.

    Unit k has the words codes[begins[k] : ends[k]]."""

    codes: np.ndarray  # word codes of all units, one unit after the other; -1: not a word of the corpus
    begins: np.ndarray  # index in `codes` of the first word of each unit
    ends: np.ndarray  # index in `codes` after the last word of each unit
    noun: str  # a plural noun for the units in messages, such as "sentences"
    name: Callable[[int], str]  # function from the index of a unit to the name of the unit
    factor: np.ndarray | float = 1.0  # factor of the group weights: a number for all units, or an array by unit


@over("words", makes=Cover)
def sentences(shape, layout: WordLayout, parameter: str = "the table", weights: str = "one", **control) -> Cover:
    """A group of words for each sentence of the training documents."""
    train, bounds = layout.train, layout.train.sentences()

    def name(unit: int) -> str:
        """The name of a group of words from a sentence, such as "sentence 3 of review.txt" (counted from 1)."""
        document = _document_at(train, bounds[unit])
        before = np.searchsorted(bounds, train.offsets[document])
        return f"sentence {unit - before + 1} of {train.names[document]}"

    units = Units(train.tokens, bounds[:-1], bounds[1:], "sentences", name)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def documents(shape, layout: WordLayout, parameter: str = "the table", weights: str = "one", **control) -> Cover:
    """A group of words for each training document."""
    train = layout.train
    units = Units(
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
    """A group of words for each constituent of the training parse trees.

    With `neutral`, only constituents of neutral sentiment make groups."""
    train, phrases = layout.train, layout.train.constituents
    if phrases is None:
        raise UserError("groups=constituents needs documents with parse trees; these have none")
    if neutral and not (phrases.value >= 0).any():
        raise UserError("groups.neutral=true needs parse trees with a sentiment from 0 to 4; these have none")
    chosen = np.flatnonzero(phrases.value == NEUTRAL) if neutral else np.arange(len(phrases.document))
    owner, begins, ends = phrases.document[chosen], phrases.begin[chosen], phrases.end[chosen]
    first = train.offsets[owner]

    def name(unit: int) -> str:
        """The name of a group of words from a constituent: the document and the words of the constituent."""
        codes = train.tokens[first[unit] + begins[unit] : first[unit] + ends[unit]]
        return f"phrase of {train.names[owner[unit]]}: " + " ".join(train.words[c] for c in codes.tolist())

    units = Units(train.tokens, first + begins, first + ends, "constituents", name)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def topics(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", topics: int = 1000,
    top: int = 10, iterations: int = 100, topic_seed: int = 0, cache: int = 0, **control,
) -> Cover:  # fmt: skip
    """A group of words for each topic of the training documents: the most probable words of the topic."""
    result = lda(layout.train, topics, top, iterations, topic_seed, cache)
    ends = np.cumsum(result.sizes)
    units = Units(result.codes, ends - result.sizes, ends, "topics", result.name)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def brown(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", classes: int = 5000,
    largest: int | None = None, cache: int = 0, **control,
) -> Cover:  # fmt: skip
    """A group of words for each node of the Brown cluster tree; nodes with over `largest` words are left out.

    Clusters are made from the training documents and all texts without labels."""
    text = running_text(layout.train, layout.unlabelled, layout.reading)
    tree = brown_tree(text, classes, cache)
    return _cover(shape, layout, parameter, _below(tree, largest), weights, **control)


@over("words", makes=Cover)
def ward(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", classes: int = 5000,
    dimensions: int = 40, window: int = 5, largest: int | None = None, cache: int = 0, **control,
) -> Cover:  # fmt: skip
    """A group of words for each node of Ward's tree over word vectors; nodes with over `largest` words are left out.

    Vectors are made from the training documents and all texts without labels."""
    text = running_text(layout.train, layout.unlabelled, layout.reading)
    tree = ward_tree(text, classes, dimensions, window, cache)
    return _cover(shape, layout, parameter, _below(tree, largest), weights, **control)


def _below(tree: WordTree, largest: int | None) -> Units:
    """Units for groups of words from a cluster tree: one for each node with at most `largest` words below it."""
    nodes = np.flatnonzero(tree.sizes <= (len(tree.words) if largest is None else largest))
    bounds = tree.begins[nodes], tree.ends[nodes]
    return Units(tree.order, *bounds, "clusters", lambda unit: tree.name(int(nodes[unit])))


@over("words", makes=Cover)
def words_file(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "one", path: str | Path = "", **control
) -> Cover:
    """Groups of words from a JSON or YAML file of word lists.

    The file has {name: [words]}, or {groups: {name: [words]}, weights: {name: number}}. Weights in the file replace the
    option `weights`. Words that are not features are left out with a warning."""
    path = Path(path)
    content = files.read(path)
    if content.parents is not None or isinstance(content.rows, tuple):
        raise UserError(f"{path}: expected {{name: [words]}}, with or without weights, and nothing else")
    code_of = {word: code for code, word in enumerate(layout.train.words)}
    groups = [[str(word) for word in words] for words in content.rows]
    words = [word for group in groups for word in group]
    codes = np.array([code_of.get(word, code_of.get(word.lower(), -1)) for word in words], np.int64)
    known = (codes >= 0) & (layout.row_of[codes] >= 0)
    unknown = [*dict.fromkeys(word for word, is_known in zip(words, known.tolist(), strict=True) if not is_known)]
    if unknown:
        listed = ", ".join(unknown[:MOST_LISTED]) + (", ..." if len(unknown) > MOST_LISTED else "")
        warnings.warn(f"{path}: {len(unknown)} words are not features and were left out: {listed}", stacklevel=2)
    codes[~known] = -1
    sizes = np.array([len(group) for group in groups], np.int64)
    ends, factor = np.cumsum(sizes), 1.0
    if content.weights is not None:
        factor, weights = files.weights_of(path, content).numpy(), "one"
    units = Units(codes, ends - sizes, ends, f"groups of {path.name}", content.names.__getitem__, factor)
    return _cover(shape, layout, parameter, units, weights, **control)


@over("words", makes=Cover)
def planted(
    shape, layout: WordLayout, parameter: str = "the table", weights: str = "sqrt_size", **control
) -> Cover:  # fmt: skip
    """The groups of words from which a planted corpus was generated."""
    if not layout.groups:
        raise UserError(
            "groups=planted needs data=planted_documents, these data have no planted groups; take reg=sentences"
        )
    names, code_of = list(layout.groups), {word: code for code, word in enumerate(layout.train.words)}
    ends = np.cumsum([len(words) for words in layout.groups.values()])
    codes = np.array([code_of.get(word, -1) for words in layout.groups.values() for word in words], np.int64)
    units = Units(codes, np.concatenate([[0], ends[:-1]]), ends, "planted groups", names.__getitem__)
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
    """Combine groups of words of several kinds (sentences, topics, ...) in one penalty.

    `parts` maps each kind to a factor of its group weights, or to {factor: ..., options of the kind}."""
    if not parts:
        raise UserError(f"groups.parts is empty; expected one or more of {', '.join(KINDS)}")
    covers, factors = [], []
    for kind, part in parts.items():
        part = dict(part) if isinstance(part, Mapping) else {"factor": part}
        maker = KINDS.get(part.pop("kind", kind))
        if maker is None:
            raise UserError(f"groups.parts has {kind!r}; expected one or more of {', '.join(KINDS)}")
        factors.append(part.pop("factor", 1.0))
        covers.append(maker(shape, layout, parameter, **{**options, **part}))
    shifts = np.cumsum([0, *(int(cover.offsets[-1]) for cover in covers)])
    offsets = [cover.offsets[:-1] + int(shift) for cover, shift in zip(covers, shifts, strict=False)]
    offsets = torch.cat([*offsets, torch.tensor([int(shifts[-1])])])
    weights = torch.cat([cover.weight * factor for cover, factor in zip(covers, factors, strict=True)])
    members = torch.cat([cover.members for cover in covers])
    names = JoinedNames([cover.names for cover in covers])
    result = cover_rows(shape, members, offsets, names, weights, parameter)
    result.notes = tuple(note for cover in covers for note in cover.notes)
    return result


def extra_columns(cover: Cover) -> tuple[list[str], sparse.csr_array]:
    """Turn groups of words into extra features of documents, each a weighted sum of word counts.

    Returns the names of the groups, and the factor of each word in each group (sparse matrix of shape [words, groups]).
    The factors of a group form a vector of length 1. Penalties therefore treat groups and single words alike."""
    sizes = cover.offsets.diff().numpy()
    values = np.repeat(1 / np.sqrt(sizes), sizes)
    arrays, shape = (values, cover.members.numpy(), cover.offsets.numpy()), (len(cover), len(cover.atoms))
    return list(cover.names), sparse.csr_array(arrays, shape).T.tocsr()


def _cover(
    shape: Sequence[int], layout: WordLayout, parameter: str, units: Units, weights: str, permute: str = "none",
    seed: int = 0,
) -> Cover:  # fmt: skip
    """Make a cover with a group of words for each unit (sentence, topic, ...) that has at least two words.

    The attribute `source` of the cover has the index of each unit's group (-1: the unit has no group). The attribute
    `notes` of the cover says how many units were left out or merged."""
    for key, value, choices in (("weights", weights, WEIGHTS), ("permute", permute, PERMUTATIONS)):
        if value not in choices:
            raise UserError(f"groups.{key} is {value!r}, expected one of {', '.join(choices)}")
    table = len(layout.words)
    if len(shape) not in (1, 2) or shape[0] != table:
        raise UserError(f"{parameter} is {tuple(shape)}, expected a row for each of {table} words")
    rows = np.where(units.codes >= 0, layout.row_of[units.codes], -1)
    bounds = units.begins.astype(np.int64), units.ends.astype(np.int64)
    sizes = kernels.count_distinct(rows, *bounds, table)
    large = np.flatnonzero(sizes > 1)
    if not len(large):
        raise UserError(f"none of the {len(sizes)} {units.noun} has two words that are features: there are no groups")
    offsets = _offsets(sizes[large])
    members = kernels.distinct(rows, *(bound[large] for bound in bounds), table, offsets)
    first, group = np.unique(kernels.same_as(members, offsets), return_inverse=True)
    weight = _weights(weights, members, offsets, table, int(np.prod(shape[1:]))) * _factor(units.factor, large)
    weight = np.bincount(group, weight)
    members, offsets = _select(members, offsets, first)
    names = UnitNames(units.name, large[first], np.bincount(group))
    members = permutation(layout, permute, seed)[members]
    cover = cover_rows(shape, members, offsets, names, torch.from_numpy(weight), parameter)
    cover.source = np.full(len(sizes), -1)
    cover.source[large] = group
    cover.notes = (
        f"{len(first):,} groups of {len(sizes):,} {units.noun}: {len(sizes) - len(large):,} of fewer than two words, "
        f"{len(large) - len(first):,} of the same words as another",
    )
    return cover


def _factor(factor: np.ndarray | float, units: np.ndarray) -> np.ndarray | float:
    """The factors of the weights of groups of words, for the units with the given indices."""
    return factor[units] if isinstance(factor, np.ndarray) else factor


def _weights(rule: str, members: np.ndarray, offsets: np.ndarray, table: int, columns: int) -> np.ndarray:
    """The weights of groups of words by `rule`, one of the rules in WEIGHTS (float64 array of shape [groups])."""
    sizes = np.diff(offsets)
    if rule == "one":
        return np.ones(len(sizes))
    if rule == "sqrt_size":
        return np.sqrt(sizes * columns)
    groups_of_word = np.bincount(members, minlength=table)
    return sizes / np.add.reduceat(groups_of_word[members], offsets[:-1])


def _select(members: np.ndarray, offsets: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Select groups of words; returns arrays where group k has the words members[offsets[k] : offsets[k + 1]]."""
    sizes = np.diff(offsets)[groups]
    selected = _offsets(sizes)
    return members[np.repeat(offsets[:-1][groups] - selected[:-1], sizes) + np.arange(selected[-1])], selected


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """The offsets of consecutive groups of words with the given sizes (array of shape [groups + 1])."""
    return np.concatenate([[0], np.cumsum(sizes)])


def permutation(layout: WordLayout, kind: str, seed: int) -> np.ndarray:
    """Random control groups of words: the table row that replaces each row (int32 array of shape [rows]).

    Extra features and words that are not in training are not replaced."""
    place = np.arange(len(layout.words), dtype=np.int32)
    if kind == "none":
        return place
    words = np.flatnonzero(layout.counts[: len(place) - layout.extra] > 0)
    drawn = words[np.random.default_rng(seed).permutation(len(words))]
    if kind == "frequency":  # replace words by words of similar document frequency; ties are random
        words = words[np.argsort(layout.documents[words], kind="stable")]
        drawn = drawn[np.argsort(layout.documents[drawn], kind="stable")]
    place[words] = drawn
    return place


def _document_at(documents, token: int) -> int:
    """The index of the document that contains a token, to name a group of words from a sentence."""
    return int(np.searchsorted(documents.offsets, token, side="right")) - 1


class UnitNames(Sequence):
    """The names of groups of words, made on demand: a group has the name of its first unit.

    `units` has the index of each group's first unit, `merged` the number of units that make each group."""

    def __init__(self, name: Callable[[int], str], units: np.ndarray, merged: np.ndarray):
        self.name, self.units, self.merged = name, units, merged

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        unit, more = int(self.units[number]), int(self.merged[number]) - 1
        return self.name(unit) + (f" (and {more:,} like it)" if more else "")


class JoinedNames(Sequence):
    """The names of groups of words of several kinds, one kind after the other.

    Kind k has the names with the indices bounds[k] to bounds[k + 1] - 1."""

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
