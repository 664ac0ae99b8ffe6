"""Text categorization: the class of a document, or a number, from its bag of words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Labelled
from structsparse.features import words
from structsparse.features.words import Bag
from structsparse.groups import Cover
from structsparse.tasks.textcat.model import outputs_of
from structsparse.tasks.textcat.scores import ClassScore, SquaredError
from structsparse.training.batches import Progress

OPTIONS = {"weighting", "normalize", "min_count", "vocabulary", "extra", "group_strength"}


@dataclass(frozen=True, eq=False)
class DocumentData:
    """Documents as rows of a sparse matrix, in the words of train."""

    labelled: Labelled
    bag: Bag
    shown: list[tuple[str, int]] | None = None  # (part, number) of documents that the explanation tells of; None: some
    covers: dict[str, Cover] = field(default_factory=dict, repr=False)  # groups made already, by what made them
    whole_parts: dict[str, DocumentBatch] = field(default_factory=dict, repr=False)  # laid out already

    @property
    def name(self) -> str:
        return self.labelled.name

    @property
    def truth(self) -> tuple[str, ...]:
        return self.labelled.truth

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.labelled.classes

    @property
    def outputs(self) -> int:
        return outputs_of(self.classes)

    @property
    def metric(self) -> str:
        return "mse" if self.classes is None else "accuracy"

    @property
    def score(self) -> Callable[[], ClassScore | SquaredError]:
        return SquaredError if self.classes is None else lambda: ClassScore(self.classes)

    @property
    def items(self) -> int:
        return len(self.labelled.train)

    def describe(self) -> list[str]:
        train, layout = self.matrices["train"], self.bag.layout
        made = f", {layout.extra:,} of them made of groups of words" if layout.extra else ""
        size = f"{train.shape[1]:,} features{made}, {train.nnz / max(1, train.shape[0]):,.0f} in a document on average"
        return [*self.labelled.describe(), size]

    @cached_property
    def matrices(self) -> dict[str, sparse.csr_array]:
        """float64 [documents, words] of each part"""
        return {part: self.bag.matrix(documents) for part, documents in self.labelled.parts.items()}

    @cached_property
    def columns(self) -> sparse.csc_array:
        """float64 [documents, words] of train, word after word"""
        return self.matrices["train"].tocsc()

    def targets(self, part: str) -> np.ndarray:
        """What scores are compared with: numbers; -1 or 1 of two classes; int64 codes of more."""
        return targets_of(self.labelled.parts[part].labels, self.classes)

    def at_once(self, part: str) -> DocumentBatch:
        """All documents of a part; laid out once, however many models are fitted to them."""
        if part not in self.whole_parts:
            matrix, targets = self.matrices[part], self.targets(part)
            self.whole_parts[part] = DocumentBatch.of(matrix, targets, np.arange(len(targets)), len(targets))
        return self.whole_parts[part]

    def batches(self, part: str, size: int | None, **sharing) -> Rows:
        """Documents of a part; dev and test, which are scored and not learnt from, come at once."""
        return Rows(self, part, size if part == "train" else None, **sharing)

    def whole(self, part: str) -> Rows:
        return self.batches(part, None)


def targets_of(labels: np.ndarray, classes: tuple[str, ...] | None) -> np.ndarray:
    if classes is None or len(classes) > 2:
        return labels
    return 2.0 * labels - 1.0


@dataclass
class DocumentBatch:
    """Some documents, all of them the rows of one sparse matrix."""

    matrix: Tensor  # sparse CSR float64 [documents, words]
    transposed: Tensor  # sparse CSR float64 [words, documents]
    targets: Tensor  # float64 [documents], or int64 codes of more than two classes
    sentences: Tensor  # int64 [documents], which ones of their part these are
    items: int  # documents in the whole step, over all processes

    @classmethod
    def of(cls, rows: sparse.csr_array, targets: np.ndarray, chosen: np.ndarray, items: int) -> DocumentBatch:
        matrices = tensor_of(rows), tensor_of(rows.T.tocsr())
        return cls(*matrices, torch.from_numpy(targets), torch.from_numpy(chosen), items)


def tensor_of(matrix: sparse.csr_array) -> Tensor:
    """As a sparse CSR tensor."""
    rows, columns = (torch.from_numpy(places.astype(np.int64)) for places in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls such tensors new
        values = torch.from_numpy(matrix.data)
        return torch.sparse_csr_tensor(rows, columns, values, matrix.shape, check_invariants=False)


class Rows(Progress):
    """Batches of documents in an order that depends on the seed and the epoch alone; it remembers how far it is.

    Every process takes its share of each step's documents."""

    def __init__(
        self,
        data: DocumentData,
        part: str,
        size: int | None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if size is not None and size < world:
            raise UserError(f"batch={size}: expected a number of documents, at least {world}, or null for all")
        self.data, self.part, self.count = data, part, data.matrices[part].shape[0]
        self.shuffle, self.seed, self.rank, self.world = shuffle, seed, rank, world
        self.size = min(size or self.count, self.count)
        super().__init__()

    def __len__(self) -> int:
        """Documents left over after the last full batch join it when they are too few to share."""
        full, rest = divmod(self.count, self.size)
        return max(1, full + (rest >= self.world))

    def __iter__(self) -> Iterator[DocumentBatch]:
        if self.done >= len(self):
            self.done = 0
        steps = np.split(self._order(), np.arange(1, len(self)) * self.size)
        while self.done < len(steps):
            chosen = steps[self.done]
            self.done += 1
            yield self.data.at_once(self.part) if len(steps) == self.world == 1 else self._batch(chosen)

    def _batch(self, chosen: np.ndarray) -> DocumentBatch:
        own = chosen[self.rank :: self.world]
        return DocumentBatch.of(self.data.matrices[self.part][own], self.data.targets(self.part)[own], own, len(chosen))

    def _order(self) -> np.ndarray:
        if not self.shuffle or len(self) == 1:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)


def prepare(labelled: Labelled, features: Mapping, shown: list[tuple[str, int]] | None = None) -> DocumentData:
    """Documents as bags of words, as the options `features` describe them."""
    options, extra = dict(features), features.get("extra")
    bag = words.bag(labelled, **{name: options[name] for name in OPTIONS & {*options} - {"extra", "group_strength"}})
    return DocumentData(labelled, bag if extra is None else with_groups(bag, extra), shown)


def with_groups(bag: Bag, groups: Callable[..., Cover]) -> Bag:
    """How often the words of each group are in a document, all together, as further features."""
    cover = groups((len(bag.layout),), bag.layout, parameter="features")
    members, offsets = cover.members.numpy(), cover.offsets.numpy()
    ones, shape = np.ones(len(members), np.int64), (len(cover), len(bag.layout))
    return words.extended(bag, list(cover.names), sparse.csr_array((ones, members, offsets), shape).T)
