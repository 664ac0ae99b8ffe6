"""Dependency parsing: the head of every word."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from structsparse.base.arrays import ranges
from structsparse.base.cache import check_megabytes
from structsparse.base.errors import UserError
from structsparse.corpora.known.treebanks import TreebankSplits
from structsparse.corpora.treebank import Treebank
from structsparse.features.keys import WORD, Bags
from structsparse.features.prepared import indexed
from structsparse.kernels.solvers.online_trees_by_keys import TemplateAtoms
from structsparse.tasks.parsing.features.filters import ArcCandidates
from structsparse.tasks.parsing.features.groups import ArcLayout
from structsparse.tasks.parsing.features.index import ArcIndex, Looks, check_attributes, useful
from structsparse.tasks.parsing.features.templates import ArcTemplate, as_written, expand
from structsparse.tasks.parsing.model import ArcBatch, places_of_arcs
from structsparse.tasks.parsing.scores import TreeScore
from structsparse.training.batches import Batches, Passages
from structsparse.training.data import CorpusParts
from structsparse.weights.batch import Sizes

WHOLE = 64  # sentences at a time when a part is gone through once
LABELS = ("arc",)  # the one column of a table of weights of arcs


class ArcArrays:
    """A treebank ready to train on: bags by arc, all else by word; sentence s has the words offsets[s] : offsets[s + 1]
    and, of its n words, the n * n arcs from arcs[s] on. Bags are made when they are first asked for, and so is what
    keys are made of: a model wants one or the other."""

    def __init__(
        self,
        treebank: Treebank,
        templates: Sequence[ArcTemplate],
        punctuation: np.ndarray,
        make_bags: Callable[[Treebank], Bags],
        part: str = "",
    ) -> None:
        self.treebank, self.templates, self.make_bags = treebank, templates, make_bags
        self.part = part  # of the corpus
        self.punctuation = punctuation  # bool [words]
        self.gold = treebank.heads.astype(np.int64)  # [words] heads
        self.offsets = treebank.offsets  # int64 [sentences + 1]
        self.arcs = np.concatenate([[0], np.cumsum(self.lengths.astype(np.int64) ** 2)])  # [sentences + 1]

    @cached_property
    def bags(self) -> Bags:
        return self.make_bags(self.treebank)

    @property
    def made(self) -> Bags | None:
        """The bags, if anything has asked for them yet."""
        return vars(self).get("bags")

    @cached_property
    def says(self) -> TemplateAtoms:
        return Looks(self.treebank, self.templates).says

    def bag(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The active rows of all arcs of these sentences, and where those of each arc begin."""
        begins, ends = self.arcs[sentences], self.arcs[sentences + 1]
        sizes = np.diff(self.bags.offsets)[ranges(begins, ends - begins)]
        bounds = zip(self.bags.offsets[begins].tolist(), self.bags.offsets[ends].tolist(), strict=True)
        ids = np.concatenate([self.bags.ids[begin:end] for begin, end in bounds])  # a place for each would be larger
        return ids, np.concatenate([[0], np.cumsum(sizes)])

    def with_bags(self, bags: Bags) -> ArcArrays:
        return ArcArrays(self.treebank, self.templates, self.punctuation, lambda _: bags, self.part)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def batch(self, sentences: np.ndarray, items: int) -> ArcBatch:
        lengths = self.lengths[sentences]
        longest, words = int(lengths.max()), ranges(self.offsets[sentences], lengths)
        gold = np.zeros((len(sentences), longest), np.int64)
        gold[np.arange(longest) < lengths[:, None]] = self.gold[words]
        places, chosen = places_of_arcs(lengths, longest + 1), np.asarray(sentences, np.int64)
        arrays = places, gold, self.punctuation[words], lengths, chosen
        return ArcBatch(self, chosen, *map(torch.from_numpy, arrays), items, part=self.part)


@dataclass
class ArcPassage:
    """Some sentences, to be gone through one after another. Nothing is copied."""

    source: ArcArrays
    sentences: Tensor  # int64 [sentences of the passage], in order
    epoch: int


class ArcPassages(Passages):
    def passage(self, sentences: np.ndarray) -> ArcPassage:
        return ArcPassage(self.arrays, torch.from_numpy(sentences), self.epoch)


@dataclass(frozen=True)
class ParsingData(CorpusParts):
    """Everything a parser is trained and judged on, as arrays."""

    splits: TreebankSplits
    templates: tuple[ArcTemplate, ...]
    make_index: Callable[[], ArcIndex]  # of all features, for models that want to know of them
    arrays: dict[str, ArcArrays]  # train, dev, test
    projective: bool
    single_root: bool
    notes: tuple[str, ...]
    label_templates: tuple[ArcTemplate, ...] = ()  # of relations; none: they are not learnt
    min_count: int = 1  # of what a feature of an arc or of a relation must be on
    bits: int = WORD  # of keys: features of a template that share so many are one
    open: bool = True  # whether a stage may use all features of the templates that the one before has chosen
    closed: bool = False  # whether the index has all features that there may be
    reduced: bool = False  # whether rows have been dropped
    told: ArcIndex | None = None  # features as the artifact tells them, if by keys that are shorter than `index`'s
    metric: str = "uas"
    score: type[TreeScore] = TreeScore

    @property
    def index(self) -> ArcIndex:
        return self.make_index()

    @property
    def sizes(self) -> Sizes:
        return Sizes(len(self.index), len(LABELS), 0, ())

    @property
    def layout(self) -> ArcLayout:
        return ArcLayout(self.index.names, self.index.offsets, LABELS, self.reduced)

    def keep(self, alive: np.ndarray) -> ParsingData:
        """Only the rows that are alive [rows]."""
        if alive.all():
            return self
        index, new_row = self.index.keep(alive)
        arrays = {part: a.with_bags(a.bags.renumber(new_row)) for part, a in self.arrays.items()}
        return replace(self, make_index=lambda: index, arrays=arrays, closed=True, reduced=True)

    def of_templates(self, living: np.ndarray) -> ParsingData:
        """Only the templates that are alive [templates], with all of their features."""
        templates = tuple(t for t, lives in zip(self.templates, living, strict=True) if lives)
        found = lazy(self.splits, templates, self.min_count, self.bits)
        return replace(self, templates=templates, **found, reduced=True)

    def of_features(self, index: ArcIndex) -> ParsingData:
        """Only the features of this index."""
        arrays = arrays_of(self.splits, index.templates, lambda: index)
        return replace(
            self, templates=index.templates, make_index=lambda: index, arrays=arrays, closed=True, reduced=True
        )

    def shortened(self, guard: int, alive: np.ndarray) -> ParsingData:
        """Features told by short keys, of which living ones alone are known: rows that are alive [rows]. Dev and test
        are what is found by these keys."""
        told = self.index.only(alive).shortened_on(self.splits.train, guard)
        arrays = dict(self.arrays)
        for part in ("dev", "test"):
            old = arrays[part]
            arrays[part] = ArcArrays(old.treebank, old.templates, old.punctuation, told.bags, part)
        return replace(self, arrays=arrays, told=told)

    def counted(self) -> ArcLayout:
        """The layout of all features of training, which are counted for it, not kept."""
        if self.closed:
            return self.layout
        looks = Looks(self.splits.train, self.templates)
        offsets = np.concatenate([[0], np.cumsum(looks.counts())])
        return ArcLayout([template.name for template in self.templates], offsets, LABELS, self.reduced)

    def describe(self) -> list[str]:
        """What was read, and what there is to say of it."""
        model = f"{len(self.templates)} templates, {self.arrays['train'].arcs[-1]:,} arcs to train on"
        return [*self.splits.describe(), model, *self.notes]

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Batches:
        size = min(size or WHOLE, WHOLE) if not shuffle else size  # what is only scored needs no large batches
        return Batches(self.arrays[part], size, shuffle=shuffle, **sharing)

    def whole(self, part: str) -> Batches:
        return self.batches(part, WHOLE)

    def passages(self, part: str, size: int | None, seed: int) -> ArcPassages:
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
    """The data of a parser as the options describe them; with `labels` it learns relations too. Features are looked at
    when a model asks for them; those of all templates, which many runs begin with, are kept for later runs in so many
    megabytes of `cache`."""
    check_megabytes(cache)
    if not isinstance(splits, TreebankSplits) or "variants" not in features:
        raise UserError("a parser needs a treebank and templates of arcs; these data or features are for other tasks")
    constant_too = features.get("constant", False)
    if not isinstance(constant_too, bool):
        raise UserError(f"features.constant is {constant_too!r}, expected true or false")
    every, notes = useful(splits.train, _expanded(features), constant_too)
    templates, said = choose(ArcCandidates(splits.train, every))
    label_templates, more = _of_labels(splits, features) if labels else ((), [])
    templates, min_count, bits = tuple(templates), features["min_count"], features.get("bits", WORD)
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= WORD:
        raise UserError(f"features.bits is {bits!r}, expected a number of bits of a key, 1 to {WORD}")
    found = lazy(splits, templates, min_count, bits, cache if len(templates) == len(every) else 0)
    return ParsingData(
        splits, templates, **found, projective=projective, single_root=single_root, notes=(*notes, *said, *more),
        label_templates=label_templates, min_count=min_count, bits=bits, open=open,
    )  # fmt: skip


def _expanded(features: dict) -> list[ArcTemplate]:
    templates = expand(features["templates"], features["variants"])
    check_attributes(templates)
    return templates


def _of_labels(splits: TreebankSplits, features: dict) -> tuple[tuple[ArcTemplate, ...], list[str]]:
    """The templates of relations, if there is anything to learn, and what there is to say of them."""
    if not features.get("label_templates"):
        raise UserError("task.labels=true needs features.label_templates; name some, or take task.labels=false")
    templates = as_written(features["label_templates"])
    check_attributes(templates)
    relations = len(np.unique(splits.train.columns["deprel"].codes))
    if relations < 2:
        return (), ["train has one relation only: none is learnt"]
    return tuple(templates), [f"{relations} relations, told by {len(templates)} templates of chosen arcs"]


def lazy(
    splits: TreebankSplits, templates: tuple[ArcTemplate, ...], min_count: int, bits: int = WORD, megabytes: int = 0
) -> dict:
    """An index of all features of training, and the arrays of all parts; both are made when they are asked for, or
    found among so many megabytes of what earlier runs have made."""
    if megabytes == 0:
        make_index = lru_cache(None)(lambda: ArcIndex.fit(splits.train, templates, min_count, bits))
        return {"make_index": make_index, "arrays": arrays_of(splits, templates, make_index)}

    @lru_cache(None)
    def found() -> tuple[ArcIndex, dict[str, Bags]]:
        index, bags, notes = indexed(splits.parts, templates, min_count, megabytes, ArcIndex, bits=bits)
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        return index, bags

    arrays = {
        part: ArcArrays(treebank, templates, splits.punctuation(part), lambda _, part=part: found()[1][part], part)
        for part, treebank in splits.parts.items()
    }
    return {"make_index": lambda: found()[0], "arrays": arrays}


def arrays_of(splits: TreebankSplits, templates: Sequence[ArcTemplate], make_index: Callable) -> dict[str, ArcArrays]:
    return {
        part: ArcArrays(treebank, templates, splits.punctuation(part), lambda own: make_index().bags(own), part)
        for part, treebank in splits.parts.items()
    }
