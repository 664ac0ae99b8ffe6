"""The data of a parser: the parts of a treebank as arrays, the templates, and the index of features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from structsparse.base.cache import check_megabytes
from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import TreebankSplits
from structsparse.features.keys import WORD, Bags
from structsparse.features.prepared import indexed
from structsparse.tasks.parsing.arcs import ArcArrays, ArcPassages, arrays_of_parts
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.filters import ArcCandidates
from structsparse.tasks.parsing.features.groups import ArcLayout
from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.features.templates import (
    ArcTemplate,
    check_attributes,
    expand,
    expand_plain,
    informative,
)
from structsparse.tasks.parsing.scores import TreeScore
from structsparse.training.batches import Batches
from structsparse.training.data import CorpusParts
from structsparse.weights.batch import Sizes

SMALL_BATCH = 64  # sentences of a batch where nothing is trained
LABELS = ("arc",)  # the single column of a table of weights of arcs


@dataclass(frozen=True)
class ParsingData(CorpusParts):
    """The data that a parser is trained and evaluated on."""

    splits: TreebankSplits
    templates: tuple[ArcTemplate, ...]
    make_index: Callable[[], ArcIndex]  # of all features; called if a model needs it
    arrays: dict[str, ArcArrays]  # train, dev, test
    projective: bool
    single_root: bool
    notes: tuple[str, ...]  # for the user
    label_templates: tuple[ArcTemplate, ...] = ()  # of relations; none: relations are not learnt
    min_count: int = 1  # arcs that a feature must occur on
    bits: int = WORD  # of keys: features of a template with the same first bits are one
    open: bool = True  # whether a stage may use all features of the templates that the stage before has selected
    closed: bool = False  # whether only the features of the index may have weights
    reduced: bool = False  # whether rows have been dropped
    short: ArcIndex | None = None  # the index of the artifact, if its keys are shorter than those of `index`
    metric: str = "uas"
    score: type[TreeScore] = TreeScore

    @property
    def index(self) -> ArcIndex:
        """The index of all features."""
        return self.make_index()

    @property
    def sizes(self) -> Sizes:
        """Sizes of the table of weights."""
        return Sizes(len(self.index), len(LABELS), 0, ())

    @property
    def layout(self) -> ArcLayout:
        """The layout of the table of weights."""
        return ArcLayout(self.index.names, self.index.offsets, LABELS, self.reduced)

    @property
    def counted_layout(self) -> ArcLayout:
        """The layout of the table of all features of training, which are counted without an index."""
        if self.closed:
            return self.layout
        counts = ArcKeys(self.splits.train, self.templates).distinct_counts()
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return ArcLayout([template.name for template in self.templates], offsets, LABELS, self.reduced)

    def keep(self, alive: np.ndarray) -> ParsingData:
        """Only the rows that are alive, bool [rows]."""
        if alive.all():
            return self
        index, new_row = self.index.keep(alive)
        arrays = {part: a.with_bags(a.bags.renumber(new_row)) for part, a in self.arrays.items()}
        return replace(self, make_index=lambda: index, arrays=arrays, closed=True, reduced=True)

    def with_templates(self, living: np.ndarray) -> ParsingData:
        """Only the templates that are alive, bool [templates], with all of their features."""
        templates = tuple(t for t, lives in zip(self.templates, living, strict=True) if lives)
        make_index, arrays = _lazy_features(self.splits, templates, self.min_count, self.bits)
        return replace(self, templates=templates, make_index=make_index, arrays=arrays, reduced=True)

    def with_features(self, index: ArcIndex) -> ParsingData:
        """Only the features of this index."""
        arrays = _arrays(self.splits, index.templates, lambda: index)
        return replace(
            self, templates=index.templates, make_index=lambda: index, arrays=arrays, closed=True, reduced=True
        )

    def shortened(self, guard: int, alive: np.ndarray) -> ParsingData:
        """The data with short keys of the rows that are alive, bool [rows].

        Dev and test get the features that these keys find, so that they are scored as the artifact will be."""
        short = self.index.only(alive).shortened_on(self.splits.train, guard)
        arrays = dict(self.arrays)
        for part in ("dev", "test"):
            old = arrays[part]
            arrays[part] = ArcArrays(old.treebank, old.templates, old.punctuation, short.bags, part)
        return replace(self, arrays=arrays, short=short)

    def describe(self) -> list[str]:
        """Lines for the console: the sizes of parts and model, and notes."""
        model = f"{len(self.templates)} templates, {self.arrays['train'].arcs[-1]:,} arcs to train on"
        return [*self.splits.describe(), model, *self.notes]

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Batches:
        """A part in batches of `size` sentences; where nothing is trained they are small, to save memory."""
        size = min(size or SMALL_BATCH, SMALL_BATCH) if not shuffle else size
        return Batches(self.arrays[part], size, shuffle=shuffle, **sharing)

    def whole(self, part: str) -> Batches:
        """A part in small batches."""
        return self.batches(part, SMALL_BATCH)

    def passages(self, part: str, size: int | None, seed: int) -> ArcPassages:
        """Sentences in random order, `size` at a time, for online solvers."""
        return ArcPassages(self.arrays[part], size, shuffle=True, seed=seed)


def prepare(
    splits: TreebankSplits,
    features: dict,
    choose: Callable,
    cache: int,
    *,
    projective: bool,
    single_root: bool,
    labels: bool = False,
    open: bool = True,
) -> ParsingData:
    """The data of a parser from a treebank; with `labels` relations are learnt, too.

    Features are computed when a model first needs them. Those of all templates, which many runs begin with, are cached,
    up to `cache` megabytes over all runs."""
    check_megabytes(cache)
    if not isinstance(splits, TreebankSplits) or "variants" not in features:
        raise UserError("a parser needs a treebank and templates of arcs; these data or features are for other tasks")
    constant_too = features.get("constant", False)
    if not isinstance(constant_too, bool):
        raise UserError(f"features.constant is {constant_too!r}, expected true or false")
    candidates, notes = informative(splits.train, _expanded(features), constant_too)
    chosen, filter_notes = choose(ArcCandidates(splits.train, candidates))
    label_templates, label_notes = _label_templates(splits, features) if labels else ((), [])
    templates, min_count, bits = tuple(chosen), features["min_count"], features.get("bits", WORD)
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= WORD:
        raise UserError(f"features.bits is {bits!r}, expected a number of bits of a key, 1 to {WORD}")
    megabytes = cache if len(templates) == len(candidates) else 0
    make_index, arrays = _lazy_features(splits, templates, min_count, bits, megabytes)
    return ParsingData(
        splits, templates, make_index, arrays, projective, single_root, (*notes, *filter_notes, *label_notes),
        label_templates=label_templates, min_count=min_count, bits=bits, open=open,
    )  # fmt: skip


def _expanded(features: dict) -> list[ArcTemplate]:
    """The templates of the options of features, checked."""
    templates = expand(features["templates"], features["variants"])
    check_attributes(templates)
    return templates


def _label_templates(splits: TreebankSplits, features: dict) -> tuple[tuple[ArcTemplate, ...], list[str]]:
    """The templates of relations, none if there is a single relation, and notes for the user."""
    if not features.get("label_templates"):
        raise UserError("task.labels=true needs features.label_templates; name some, or take task.labels=false")
    templates = expand_plain(features["label_templates"])
    check_attributes(templates)
    relations = len(np.unique(splits.train.columns["deprel"].codes))
    if relations < 2:
        return (), ["train has one relation only: relations are not learnt"]
    return tuple(templates), [f"{relations} relations, predicted by {len(templates)} templates of chosen arcs"]


def _lazy_features(
    splits: TreebankSplits, templates: tuple[ArcTemplate, ...], min_count: int, bits: int = WORD, megabytes: int = 0
) -> tuple[Callable[[], ArcIndex], dict[str, ArcArrays]]:
    """The index of all features of training and the arcs of all parts, computed or loaded when they are needed."""
    if megabytes == 0:
        make_index = lru_cache(None)(lambda: ArcIndex.fit(splits.train, templates, min_count, bits))
        return make_index, _arrays(splits, templates, make_index)

    @lru_cache(None)
    def load() -> tuple[ArcIndex, dict[str, Bags]]:
        index, bags, notes = indexed(splits.parts, templates, min_count, megabytes, ArcIndex, bits=bits)
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        return index, bags

    arrays = arrays_of_parts(splits.parts, splits.punctuation, templates, lambda part, _: load()[1][part])
    return lambda: load()[0], arrays


def _arrays(
    splits: TreebankSplits, templates: tuple[ArcTemplate, ...], make_index: Callable[[], ArcIndex]
) -> dict[str, ArcArrays]:
    """The arcs of all parts, with the bags of an index."""
    make_bags = lambda part, treebank: make_index().bags(treebank)  # noqa: E731
    return arrays_of_parts(splits.parts, splits.punctuation, templates, make_bags)
