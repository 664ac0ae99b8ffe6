"""The data of a parser: train, dev and test of a treebank as arc arrays, arc templates, and the feature index."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from structsparse.base.cache import check_megabytes
from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import TreebankSplits
from structsparse.features.attributes import MORPHOLOGY
from structsparse.features.keys import WORD, Bags
from structsparse.features.prepared import indexed
from structsparse.tasks.parsing.arcs import ArcArrays, ArcPassages, arrays_of_parts
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.copies import without_copies
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

SMALL_BATCH = 64  # the largest number of sentences per batch when a parser only predicts
LABELS = ("arc",)  # the name of the single column of a table of arc weights


@dataclass(frozen=True)
class ParsingData(CorpusParts):
    """The data of a parser: a treebank in parts, arc templates, the index of arc features, and arc arrays."""

    splits: TreebankSplits
    templates: tuple[ArcTemplate, ...]
    make_index: Callable[[], ArcIndex]  # makes the index of all features; called only when the index is needed
    arrays: dict[str, ArcArrays]  # the arc arrays of each part: train, dev, test
    projective: bool  # whether predicted trees must have no crossing arcs
    single_root: bool  # whether exactly one word of a predicted tree must have the root as head
    notes: tuple[str, ...]  # messages for the user
    label_templates: tuple[ArcTemplate, ...] = ()  # templates of the relation classifier; empty: none is trained
    min_count: int = 1  # the index has only features that occur on at least this number of training arcs
    bits: int = WORD  # bits of a feature key; features of a template with equal keys share a weight
    open: bool = True  # whether the next stage keeps features with weight zero if the penalty kept their template
    closed: bool = False  # whether only features of `index` may have nonzero weights
    reduced: bool = False  # whether features have been dropped from the index
    short: ArcIndex | None = None  # the index with shortened keys for the artifact; None: keys are not shortened
    metric: str = "uas"  # the name of the dev score by which models are compared
    score: type[TreeScore] = TreeScore  # the class of scores on dev and test

    @property
    def index(self) -> ArcIndex:
        """The index of arc features in the parser's data, made when first needed."""
        return self.make_index()

    @property
    def sizes(self) -> Sizes:
        """The sizes of the weight table for the parser's data: one row for each arc feature, and one column."""
        return Sizes(len(self.index), len(LABELS), 0, ())

    @property
    def layout(self) -> ArcLayout:
        """The layout of the weight table for the parser's data: which rows belong to which arc template."""
        return ArcLayout(self.index.names, self.index.offsets, LABELS, self.reduced)

    @property
    def counted_layout(self) -> ArcLayout:
        """The layout of the weight table for the parser's data, from feature counts, without building an index."""
        if self.closed:
            return self.layout
        counts = ArcKeys(self.splits.train, self.templates).distinct_counts()
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return ArcLayout([template.name for template in self.templates], offsets, LABELS, self.reduced)

    def keep(self, alive: np.ndarray) -> ParsingData:
        """The data of a parser with only the features whose rows are marked in the bool array `alive`."""
        if alive.all():
            return self
        index, new_row = self.index.keep(alive)
        arrays = {part: a.with_bags(a.bags.renumber(new_row)) for part, a in self.arrays.items()}
        return replace(self, make_index=lambda: index, arrays=arrays, closed=True, reduced=True)

    def with_templates(self, living: np.ndarray) -> ParsingData:
        """The data of a parser with only the templates marked in `living`, but with all features of these templates."""
        templates = tuple(t for t, lives in zip(self.templates, living, strict=True) if lives)
        make_index, arrays = _lazy_features(self.splits, templates, self.min_count, self.bits)
        return replace(self, templates=templates, make_index=make_index, arrays=arrays, reduced=True)

    def with_features(self, index: ArcIndex) -> ParsingData:
        """The data of a parser with only the features of the given index."""
        arrays = _arrays(self.splits, index.templates, lambda: index)
        return replace(
            self, templates=index.templates, make_index=lambda: index, arrays=arrays, closed=True, reduced=True
        )

    def shortened(self, guard: int, alive: np.ndarray) -> ParsingData:
        """The data of a parser with shortened feature keys, for the feature rows marked in the bool array `alive`.

        Features of dev and test are looked up again with the short keys. The scores on dev and test then equal those of
        the artifact."""
        short = self.index.only(alive).shortened_on(self.splits.train, guard)
        arrays = dict(self.arrays)
        for part in ("dev", "test"):
            old = arrays[part]
            arrays[part] = ArcArrays(old.treebank, old.templates, old.punctuation, short.bags, part)
        return replace(self, arrays=arrays, short=short)

    def describe(self) -> list[str]:
        """Console lines on the data of a parser: sizes of the parts, numbers of templates and arcs, and notes."""
        model = f"{len(self.templates)} templates, {self.arrays['train'].arcs[-1]:,} arcs to train on"
        return [*self.splits.describe(), model, *self.notes]

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Batches:
        """Batches of the parser's data: batches of `size` sentences from a part (train, dev or test).

        Without `shuffle`, batches serve for prediction and have at most `SMALL_BATCH` sentences, to save memory."""
        size = min(size or SMALL_BATCH, SMALL_BATCH) if not shuffle else size
        return Batches(self.arrays[part], size, shuffle=shuffle, **sharing)

    def whole(self, part: str) -> Batches:
        """All sentences of a part of the parser's data, in small batches for prediction."""
        return self.batches(part, SMALL_BATCH)

    def passages(self, part: str, size: int | None, seed: int) -> ArcPassages:
        """Passages of the parser's data for online solvers: blocks of `size` sentences, in random order."""
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
    """Prepare the data of a parser from a treebank; with `labels`, include templates for a relation classifier.

    `choose` is a filter of arc templates. Features are computed when a model first needs them. If the filter keeps all
    templates, features are cached on disk for later runs; the cache holds at most `cache` megabytes."""
    check_megabytes(cache)
    if not isinstance(splits, TreebankSplits) or "variants" not in features:
        raise UserError("a parser needs a treebank and templates of arcs; these data or features are for other tasks")
    constant_too = _switch(features, "constant", False)
    expanded = _with_morphology(_expanded(features), splits, _switch(features, "feats", True))
    candidates, notes = informative(splits.train, expanded, constant_too)
    candidates, copy_notes = without_copies(splits.train, candidates, constant_too)
    notes = [*notes, *copy_notes]
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


def _switch(features: dict, name: str, default: bool) -> bool:
    """The value of an option of features that is true or false, for the data of a parser."""
    value = features.get(name, default)
    if not isinstance(value, bool):
        raise UserError(f"features.{name} is {value!r}, expected true or false")
    return value


def _with_morphology(templates: list[ArcTemplate], splits: TreebankSplits, feats: bool) -> list[ArcTemplate]:
    """The arc templates for the data of a parser; templates of morphological features may be left out.

    They are left out if train has no morphological features, or if `feats` is false."""
    if not any(template.morphological for template in templates):
        return templates
    varies = len(np.unique(splits.train.columns[MORPHOLOGY].codes)) > 1
    kept = [template for template in templates if (feats and varies) or not template.morphological]
    if not kept:
        raise UserError(f"every template reads {MORPHOLOGY}, which {'the treebank lacks' if feats else 'is left out'}")
    return kept


def _expanded(features: dict) -> list[ArcTemplate]:
    """The arc templates for the data of a parser, from the options of features; unknown attributes are an error."""
    templates = expand(features["templates"], features["variants"])
    check_attributes(templates)
    return templates


def _label_templates(splits: TreebankSplits, features: dict) -> tuple[tuple[ArcTemplate, ...], list[str]]:
    """The relation templates for the parser's data (none if train has a single relation), and notes for the user."""
    if not features.get("label_templates"):
        raise UserError("task.labels=true needs features.label_templates; name some, or take task.labels=false")
    templates = expand_plain(features["label_templates"])
    check_attributes(templates)
    templates = _with_morphology(templates, splits, _switch(features, "feats", True))
    relations = len(np.unique(splits.train.columns["deprel"].codes))
    if relations < 2:
        return (), ["train has one relation only: relations are not learnt"]
    return tuple(templates), [f"{relations} relations, predicted by {len(templates)} templates of chosen arcs"]


def _lazy_features(
    splits: TreebankSplits, templates: tuple[ArcTemplate, ...], min_count: int, bits: int = WORD, megabytes: int = 0
) -> tuple[Callable[[], ArcIndex], dict[str, ArcArrays]]:
    """Lazy features for the data of a parser: they are computed, or loaded from the disk cache, when first needed.

    Returns a function that makes the feature index. Also returns the arc arrays of all parts."""
    if megabytes == 0:
        make_index = lru_cache(None)(lambda: ArcIndex.fit(splits.train, templates, min_count, bits))
        return make_index, _arrays(splits, templates, make_index)

    @lru_cache(None)
    def load() -> tuple[ArcIndex, dict[str, Bags]]:
        """The feature index and the bags of all parts of the parser's data, from the disk cache if possible."""
        index, bags, notes = indexed(splits.parts, templates, min_count, megabytes, ArcIndex, bits=bits)
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        return index, bags

    arrays = arrays_of_parts(splits.parts, splits.punctuation, templates, lambda part, _: load()[1][part])
    return lambda: load()[0], arrays


def _arrays(
    splits: TreebankSplits, templates: tuple[ArcTemplate, ...], make_index: Callable[[], ArcIndex]
) -> dict[str, ArcArrays]:
    """The arc arrays of all parts of the parser's data, with the features of the index that `make_index` returns."""
    make_bags = lambda part, treebank: make_index().bags(treebank)  # noqa: E731
    return arrays_of_parts(splits.parts, splits.punctuation, templates, make_bags)
