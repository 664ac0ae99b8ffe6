"""The data of drift models: items of dated corpora as designs by period, with targets, and batches of whole parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.corpora.dated import KINDS, LEVEL, DatedCorpus
from structsparse.corpora.documents import DocumentSplits
from structsparse.features import words
from structsparse.features.words import Bag
from structsparse.penalties.drift import PeriodLayout
from structsparse.training.batches import Progress
from structsparse.weights.dated_rows import DatedCounts, DatedRows, Design

OPTIONS = {"weighting", "log_ratio", "normalize", "min_count", "vocabulary", "extra", "group_strength"}
OWN_OPTIONS = {"most", "skip", "smoothing"}  # options of features that drift models add to those of bags of words
EVERY = "(all)"  # name of the effect that every document has


@dataclass
class DatedBatch:
    """A batch of dated items: a whole part, train, dev or test.

    Items of periods that are not trained on meet the weights of the last period that is."""

    design: Design
    targets: Tensor  # of the loss: numbers, or -1 and 1 for classes; counts [documents, words] without a response
    offset: Tensor | float  # added to the scores
    sentences: Tensor  # int64, numbers of the items in the corpus
    items: int

    def to(self, device: torch.device | str) -> DatedBatch:
        """Batch of dated items: a copy on a device."""
        offset = self.offset if isinstance(self.offset, float) else self.offset.to(device)
        moved = (self.targets.to(device), offset, self.sentences.to(device))
        return DatedBatch(self.design.to(device), *moved, self.items)


class Items(Protocol):
    """The interface of the items of a drift model, which tell their designs and targets."""

    names: tuple[str, ...]  # of the features, the columns of the table
    metric: str
    effect: np.ndarray  # int64 [features], the effect of each feature

    def batch(self, chosen: np.ndarray, period: np.ndarray) -> DatedBatch:
        """Items of a drift model: a batch of some items, with the period whose weights each of them meets."""

    def scale(self, chosen: np.ndarray) -> np.ndarray:
        """Items of a drift model: a guess of the variance of each feature's weights, from the items of train."""

    def noise(self, chosen: np.ndarray) -> float:
        """Items of a drift model: a guess of the dispersion, from the items of train."""

    def keep(self, columns: np.ndarray) -> Items:
        """Items of a drift model: the same items with only some features."""


@dataclass(frozen=True, eq=False)
class RowItems:
    """Items of a drift model with a response: rows of feature values, from words and further columns."""

    names: tuple[str, ...]
    effect: np.ndarray
    matrix: sparse.csr_array  # float32 [items, features]
    response: np.ndarray  # float64 [items]; 0 and 1 for classes
    classes: tuple[str, ...] | None
    centre: np.ndarray  # float64 [features], means over the items of train

    @property
    def metric(self) -> str:
        """Items with a response: the score by which models are compared."""
        return "mse" if self.classes is None else "accuracy"

    @cached_property
    def targets(self) -> np.ndarray:
        """Items with a response: the targets of the loss."""
        return self.response if self.classes is None else 2.0 * self.response - 1.0

    def batch(self, chosen: np.ndarray, period: np.ndarray) -> DatedBatch:
        """Items with a response: a batch of some items."""
        rows = self.matrix[chosen]
        design = DatedRows(
            torch.from_numpy(rows.indices.astype(np.int32)),
            torch.from_numpy(np.zeros(0, np.float32) if (rows.data == 1).all() else rows.data),
            torch.from_numpy(rows.indptr.astype(np.int64)),
            torch.from_numpy(period),
            len(self.names),
            torch.from_numpy(self.centre),
        )
        return DatedBatch(design, torch.from_numpy(self.targets[chosen]), 0.0, torch.from_numpy(chosen), len(chosen))

    def _squares(self, chosen: np.ndarray) -> np.ndarray:
        """Items with a response: the variance of each feature over some items."""
        return self.matrix[chosen].power(2).sum(axis=0) / len(chosen) - self.centre**2

    def scale(self, chosen: np.ndarray) -> np.ndarray:
        """Items with a response: variances under which all features together explain half the variance of scores."""
        squares = np.maximum(self._squares(chosen), 1e-6)
        variance = self.response[chosen].var() / 2 if self.classes is None else 1.0
        return variance / (len(self.names) * squares)

    def noise(self, chosen: np.ndarray) -> float:
        """Items with a response: half the variance of numbers; 1 for classes."""
        return float(self.response[chosen].var() / 2) if self.classes is None else 1.0

    def keep(self, columns: np.ndarray) -> RowItems:
        """Items with a response: the same items with only some features."""
        return replace(
            self,
            names=tuple(self.names[k] for k in columns.tolist()),
            effect=self.effect[columns],
            matrix=self.matrix[:, columns],
            centre=self.centre[columns],
        )


@dataclass(frozen=True, eq=False)
class CountItems:
    """Items of a drift model without a response: the word counts of documents, which may have effects.

    A feature is a word under an effect. Documents of the same period and with the same effects count as one."""

    names: tuple[str, ...]
    effect: np.ndarray
    words: tuple[str, ...]
    effects: np.ndarray  # float64 [items, effects]; the first effect is 1 everywhere
    counts: sparse.csr_array  # [items, words]
    background: np.ndarray  # float64 [words], log frequencies in train, smoothed
    columns: np.ndarray | None = None  # the features that are left, among effects times words

    metric = "nll"
    classes = None

    def batch(self, chosen: np.ndarray, period: np.ndarray) -> DatedBatch:
        """Items of word counts: a batch of some documents, those with equal periods and effects added up."""
        keys = np.column_stack([period, self.effects[chosen]])
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        member = sparse.csr_array((np.ones(len(chosen)), (group.ravel(), np.arange(len(chosen)))))
        counts = torch.from_numpy((member @ self.counts[chosen]).toarray().astype(np.float64))
        living = None if self.columns is None else torch.from_numpy(self.columns)
        effects, when = torch.from_numpy(self.effects[chosen][first]), torch.from_numpy(period[first])
        design = DatedCounts(effects, when, len(self.words), living)
        offset = torch.from_numpy(self.background) + counts.sum(dim=1, keepdim=True).clamp(min=1e-9).log()
        return DatedBatch(design, counts, offset, torch.from_numpy(chosen[first]), len(first))

    def scale(self, chosen: np.ndarray) -> np.ndarray:
        """Items of word counts: variances of about 0.1 in log frequencies."""
        return 0.1 / np.maximum((self.effects[chosen] ** 2).mean(axis=0), 1e-6)[self.effect]

    def noise(self, chosen: np.ndarray) -> float:
        """Items of word counts: dispersion 1."""
        return 1.0

    def keep(self, columns: np.ndarray) -> CountItems:
        """Items of word counts: the same items with only some features."""
        before = np.arange(len(self.names)) if self.columns is None else self.columns
        names = tuple(self.names[k] for k in columns.tolist())
        return replace(self, names=names, effect=self.effect[columns], columns=before[columns])


@dataclass(frozen=True, eq=False)
class DriftData:
    """The data of a drift model: a dated corpus as items, and after selection the classes of the living features."""

    corpus: DatedCorpus
    of_items: Items
    bag: Bag | None = None
    kinds: np.ndarray | None = None  # int64 [features], after selection: constant or drifting
    columns: np.ndarray | None = None  # int64 [features], after selection: their numbers before it

    @property
    def name(self) -> str:
        """Data of a drift model: the name of the corpus."""
        return self.corpus.name

    @property
    def metric(self) -> str:
        """Data of a drift model: the name of the score by which models are compared."""
        return self.of_items.metric

    @property
    def truth(self) -> tuple[str, ...]:
        """Data of a drift model: names of planted groups; features have classes instead, so there are none."""
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """Data of a drift model: the names of the features."""
        return self.of_items.names

    @property
    def periods(self) -> int:
        """Data of a drift model: the number of periods that are trained on."""
        return self.corpus.train_periods

    @property
    def items(self) -> int:
        """Data of a drift model: the number of items of the mean loss of train."""
        return self.batch("train").items

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """Data of a drift model: the numbers of the items of train, dev and test."""
        return self.corpus.parts()

    @cached_property
    def _made(self) -> dict[str, DatedBatch]:
        """Data of a drift model: the batches that were made, by part."""
        return {}

    def batch(self, part: str) -> DatedBatch:
        """Data of a drift model: the batch of a part."""
        if part not in self._made:
            chosen = self.parts[part]
            self._made[part] = self.of_items.batch(chosen, np.minimum(self.corpus.period[chosen], self.periods - 1))
        return self._made[part]

    def describe(self) -> list[str]:
        """Console lines on the data of a drift model."""
        return [*self.corpus.describe(), f"{len(self.names):,} features, {self.periods:,} weights each"]

    def batches(self, part: str, size: int | None, **sharing) -> PartBatches:
        """Data of a drift model: a loader of one batch, a whole part."""
        return PartBatches(self, part, **sharing)

    def whole(self, part: str) -> PartBatches:
        """Data of a drift model: a loader of one batch, a whole part."""
        return PartBatches(self, part)

    def with_dev(self) -> None:
        """Data of a drift model: None, as dev is a period of its own."""

    def layout(self) -> PeriodLayout:
        """Data of a drift model: the layout of the table, with first guesses for a drift penalty."""
        train = self.parts["train"]
        tied = np.zeros(len(self.names), bool) if self.kinds is None else self.kinds == KINDS.index("constant")
        effect, scale = torch.from_numpy(self.of_items.effect), torch.from_numpy(self.of_items.scale(train))
        return PeriodLayout(self.periods, effect, scale, self.of_items.noise(train), torch.from_numpy(tied))

    def keep_kinds(self, kinds: np.ndarray) -> DriftData:
        """Data of a drift model: the same data without dead features; `kinds` has the class of each feature."""
        columns = np.flatnonzero(kinds)
        before = np.arange(len(kinds)) if self.columns is None else self.columns
        return DriftData(self.corpus, self.of_items.keep(columns), self.bag, kinds[columns], before[columns])


class PartBatches(Progress):
    """Data loader of one batch, a whole part of the data of a drift model."""

    def __init__(self, data: DriftData, part: str, *, shuffle: bool = False, seed: int = 0, rank=0, world=1) -> None:
        if world > 1:
            raise UserError(f"trainer.devices={world}: drift models are trained on one device")
        self.data, self.part = data, part
        super().__init__()

    def __len__(self) -> int:
        """The number of batches in an epoch, 1."""
        return 1

    def __iter__(self) -> Iterator[DatedBatch]:
        """The batch of the whole part."""
        self.done = 1
        yield self.data.batch(self.part)


# --- from a corpus to items


def prepare(corpus: DatedCorpus, features: Mapping) -> DriftData:
    """Data of a drift model: choose the words, and make items with or without a response."""
    options = checked_options(features)
    parts = corpus.parts()
    bag = None if corpus.documents is None else _bag(corpus, parts, options)
    if corpus.response is None:
        return DriftData(corpus, _count_items(corpus, parts["train"], bag, options["smoothing"]), bag)
    return DriftData(corpus, _row_items(corpus, parts["train"], bag), bag)


def checked_options(features: Mapping) -> Mapping:
    """Data of a drift model: check the options of features."""
    if {*features} != OPTIONS | OWN_OPTIONS:
        raise UserError("task=temporal has words and columns of numbers: leave out features=... and filter=...")
    if features["normalize"] or features["weighting"] in words.INVERSE:
        raise UserError(
            "task=temporal keeps few words, by which documents cannot be normalized: features.normalize=false, and "
            "features.weighting=log, counts or binary"
        )
    if features["extra"] is not None or features["log_ratio"] or features["vocabulary"] != "train":
        raise UserError("task=temporal takes the words of train alone: leave out features.extra, log_ratio, vocabulary")
    most, skip = features["most"], features["skip"]
    if type(skip) is not int or skip < 0:
        raise UserError(f"features.skip is {skip}, expected a number of words of at least 0")
    if most is not None and (type(most) is not int or most < 1):
        raise UserError(f"features.most is {most}, expected a number of words of at least 1, or null for all")
    if not features["smoothing"] > 0:
        raise UserError(f"features.smoothing is {features['smoothing']}, expected a positive number of words")
    return features


def _bag(corpus: DatedCorpus, parts: Mapping[str, np.ndarray], options: Mapping) -> Bag:
    """Data of a drift model: the bag of words of train, with its most frequent words alone if `most` says so.

    The very most frequent words are left out if `skip` says so."""
    documents = {part: corpus.documents.select(chosen) for part, chosen in parts.items()}
    splits = DocumentSplits(corpus.name, **documents, reading=corpus.reading)
    weighting = "counts" if corpus.response is None else options["weighting"]
    bag = words.bag(splits, weighting, False, options["min_count"])
    counts, most, skip = bag.layout.counts, options["most"], options["skip"]
    end = len(counts) if most is None else min(skip + most, len(counts))
    if end <= skip:
        raise UserError(f"{corpus.name}: {len(counts):,} words, all of them left out by features.skip={skip}; lower it")
    kept = np.sort(np.argsort(-counts, kind="stable")[skip:end])
    return words.restricted(bag, kept)


def _row_items(corpus: DatedCorpus, train: np.ndarray, bag: Bag | None) -> RowItems:
    """Data of a drift model: items with a response, whose features are words and effects.

    Beside words there is the feature LEVEL, which is 1 everywhere: the mean response may drift as well."""
    if len(train) == 0 or np.ptp(corpus.response[train]) == 0:
        raise UserError(
            f"{corpus.name}: the response is the same for all {len(train):,} items of train, so nothing can be learnt"
        )
    blocks, names = [sparse.csr_array(corpus.values.astype(np.float32))], list(corpus.effects)
    effects = [name.partition("=")[0] if "=" in name else "" for name in names]
    if bag is not None:
        blocks.insert(0, bag.matrix(corpus.documents).astype(np.float32))
        blocks.append(sparse.csr_array(np.ones((len(corpus), 1), np.float32)))
        names = [*bag.layout.words, *names, LEVEL]
        effects = [" "] * len(bag.layout.words) + [*effects, LEVEL]
    matrix = sparse.csr_array(sparse.hstack([block for block in blocks if block.shape[1]], format="csr"))
    effect = np.unique(effects, return_inverse=True)[1].astype(np.int64)
    centre = np.asarray(matrix[train].sum(axis=0), np.float64) / len(train)
    if bag is not None:
        centre[-1] = 0.0
    return RowItems(tuple(names), effect, matrix, corpus.response, corpus.classes, centre)


def _count_items(corpus: DatedCorpus, train: np.ndarray, bag: Bag | None, smoothing: float) -> CountItems:
    """Data of a drift model: items without a response, word counts with effects.

    The background is the frequency of each word in train, with `smoothing` more words that are spread evenly."""
    if bag is None:
        raise UserError(f"{corpus.name} has neither a response nor texts; expected one of them")
    vocabulary = bag.layout.words
    counts = bag.count(corpus.documents)
    total = np.asarray(counts[train].sum(axis=0), np.float64) + smoothing / len(vocabulary)
    effects = np.column_stack([np.ones(len(corpus)), corpus.values.reshape(len(corpus), -1)])
    titles = (EVERY, *corpus.effects)
    names = [word if k == 0 else f"{word} | {title}" for k, title in enumerate(titles) for word in vocabulary]
    effect = np.repeat(np.arange(len(titles)), len(vocabulary))
    return CountItems(tuple(names), effect, vocabulary, effects, counts, np.log(total / total.sum()))
