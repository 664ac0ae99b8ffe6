"""Dependency parsing: the head of every word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.corpora.treebanks import Treebanks
from structsparse.errors import UserError
from structsparse.features.arc_templates import ArcTemplate, as_written, expand
from structsparse.features.arcs import ArcIndex, check_attributes, useful
from structsparse.features.index import Bags
from structsparse.features.layout import Layout
from structsparse.models import Sizes
from structsparse.parser import ArcBatch, Parser, places_of_arcs
from structsparse.tasks.batches import Batches, Passages, ranges
from structsparse.tasks.module import TaskModule
from structsparse.tasks.relations import Labelling
from structsparse.tasks.task import Task
from structsparse.tree_metrics import TreeScore

WHOLE = 64  # sentences at a time when a part is gone through once
LABELS = ("arc",)  # the one column of a table of weights of arcs


@dataclass(frozen=True)
class ArcArrays:
    """A treebank ready to train on: bags by arc, all else by word; sentence s has the words offsets[s] : offsets[s + 1]
    and, of its n words, the n * n arcs from arcs[s] on."""

    bags: Bags
    gold: np.ndarray  # int64 [words] heads
    offsets: np.ndarray  # int64 [sentences + 1]
    arcs: np.ndarray  # int64 [sentences + 1]
    punctuation: np.ndarray  # bool [words]
    part: str = ""  # of the corpus

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def batch(self, sentences: np.ndarray, items: int) -> ArcBatch:
        lengths = self.lengths[sentences]
        longest, words = int(lengths.max()), ranges(self.offsets[sentences], lengths)
        chosen = ranges(self.arcs[sentences], lengths**2)
        sizes = np.diff(self.bags.offsets)[chosen]
        gold = np.zeros((len(sentences), longest), np.int64)
        gold[np.arange(longest) < lengths[:, None]] = self.gold[words]
        arrays = (
            self.bags.ids[ranges(self.bags.offsets[chosen], sizes)], np.concatenate([[0], np.cumsum(sizes)]),
            places_of_arcs(lengths, longest + 1), gold, self.punctuation[words], lengths,
            np.asarray(sentences, np.int64),
        )  # fmt: skip
        return ArcBatch(*map(torch.from_numpy, arrays), items, part=self.part)


@dataclass(frozen=True)
class ParsingData:
    """Everything a parser is trained and judged on, as arrays."""

    splits: Treebanks
    index: ArcIndex
    arrays: dict[str, ArcArrays]  # train, dev, test
    projective: bool
    single_root: bool
    notes: tuple[str, ...]
    label_templates: tuple[ArcTemplate, ...] = ()  # of relations; none: they are not learnt
    min_count: int = 1  # of what a feature of a relation must be on as well
    reduced: bool = False  # whether rows have been dropped
    metric: str = "uas"
    score: type[TreeScore] = TreeScore

    @property
    def name(self) -> str:
        return self.splits.name

    @property
    def truth(self) -> tuple[str, ...]:
        return self.splits.truth

    @property
    def items(self) -> int:
        return len(self.arrays["train"])

    @property
    def sizes(self) -> Sizes:
        return Sizes(len(self.index), len(LABELS), 0, ())

    @property
    def layout(self) -> Layout:
        return Layout(self.index.names, self.index.offsets, LABELS, self.reduced)

    @property
    def task(self) -> Task:
        from structsparse.tasks.parsers import ParserTask  # which builds what this file describes

        return ParserTask()

    def keep(self, alive: np.ndarray) -> ParsingData:
        """Only the rows that are alive [rows]."""
        if alive.all():
            return self
        index, new_row = self.index.keep(alive)
        arrays = {part: replace(a, bags=a.bags.renumber(new_row)) for part, a in self.arrays.items()}
        return replace(self, index=index, arrays=arrays, reduced=True)

    def describe(self) -> list[str]:
        """What was read, and what there is to say of it."""
        arcs = self.arrays["train"].arcs[-1]
        model = f"{len(self.index.templates)} templates, {len(self.index):,} features of {arcs:,} arcs"
        return [*self.splits.describe(), model, *self.notes]

    def batches(self, part: str, size: int | None, *, shuffle: bool = False, **sharing) -> Batches:
        size = min(size or WHOLE, WHOLE) if not shuffle else size  # what is only scored needs no large batches
        return Batches(self.arrays[part], size, shuffle=shuffle, **sharing)

    def whole(self, part: str) -> Batches:
        return self.batches(part, WHOLE)

    def passages(self, part: str, size: int | None, seed: int) -> Passages:
        return Passages(self.arrays[part], size, shuffle=True, seed=seed)


def prepare(
    splits: Treebanks,
    features: dict,
    choose: Callable,
    cache: int,
    *,
    projective: bool,
    single_root: bool,
    labels: bool = False,
) -> ParsingData:
    """The data of a parser as the options describe them; with `labels` it learns relations too."""
    if not isinstance(splits, Treebanks) or "variants" not in features:
        raise UserError("a parser needs a treebank and templates of arcs; these data or features are for other tasks")
    templates, notes = useful(splits.train, _expanded(features))
    templates, said = choose(splits.train, "head", templates)
    label_templates, more = _of_labels(splits, features) if labels else ((), [])
    index = ArcIndex.fit(splits.train, templates, features["min_count"])
    arrays = {part: arrays_of(splits, part, index) for part in splits.parts}
    notes = (*notes, *said, *more)
    return ParsingData(splits, index, arrays, projective, single_root, notes, label_templates, features["min_count"])


def _expanded(features: dict) -> list[ArcTemplate]:
    templates = expand(features["templates"], features["variants"])
    check_attributes(templates)
    return templates


def _of_labels(splits: Treebanks, features: dict) -> tuple[tuple[ArcTemplate, ...], list[str]]:
    """The templates of relations, if there is anything to learn, and what there is to say of them."""
    if not features.get("label_templates"):
        raise UserError("task.labels=true needs features.label_templates; name some, or take task.labels=false")
    templates = as_written(features["label_templates"])
    check_attributes(templates)
    relations = len(np.unique(splits.train.columns["deprel"].codes))
    if relations < 2:
        return (), ["train has one relation only: none is learnt"]
    return tuple(templates), [f"{relations} relations, told by {len(templates)} templates of chosen arcs"]


def arrays_of(splits: Treebanks, part: str, index: ArcIndex) -> ArcArrays:
    treebank = splits.parts[part]
    arcs = np.concatenate([[0], np.cumsum(treebank.lengths.astype(np.int64) ** 2)])
    heads = treebank.heads.astype(np.int64)
    return ArcArrays(index.bags(treebank), heads, treebank.offsets, arcs, splits.punctuation(part), part)


class Parsing(TaskModule):
    """Trains a Parser under any structured loss; decodes and scores dev and test."""

    def __init__(
        self,
        parser: Parser,
        loss: nn.Module,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer],
        score: Callable[[], TreeScore],
        penalised: Sequence[str],
        final_lr: float = 1.0,
        fingerprint: str = "",
    ) -> None:
        super().__init__(loss, optimizer, score, penalised, final_lr, fingerprint)
        self.parser = parser
        self.labelling: Labelling | None = None  # once the parser is trained

    @property
    def linear(self) -> bool:
        return self.parser.linear

    def step(self, batch: ArcBatch) -> Tensor:
        losses = self.loss(self.parser(batch), batch.gold, batch.lengths)  # [batch]
        return losses.sum() / batch.items

    def training_step(self, batch, batch_idx: int) -> Tensor:
        if not isinstance(batch, ArcBatch):
            return self.optimizers(use_pl_optimizer=False).sweep(self.parser, self.loss, batch)
        return super().training_step(batch, batch_idx)

    def predict_step(self, batch: ArcBatch, batch_idx: int = 0) -> Tensor:
        """Heads, int64 [batch, longest]"""
        return self.parser.structure.best(self.parser(batch), batch.lengths)

    def count(self, batch: ArcBatch, score: TreeScore) -> None:
        heads, gold = self.predict_step(batch), batch.gold
        inside = torch.arange(gold.shape[1], device=gold.device) < batch.lengths[:, None]
        offsets = np.concatenate([[0], np.cumsum(batch.lengths.cpu().numpy())])
        gold, heads, marks = (of.cpu().numpy() for of in (gold[inside], heads[inside], batch.punctuation))
        known = () if self.labelling is None else self.labelling.codes(batch.part, batch.sentences.cpu().numpy(), heads)
        score.add(gold, heads, offsets, marks, *known)
