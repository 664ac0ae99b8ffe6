"""The data of a text classifier: documents as sparse bags of words, with labels, and batches of documents."""

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
from structsparse.corpora.documents import DocumentSplits
from structsparse.features import words
from structsparse.features.words import Bag
from structsparse.groups import Cover
from structsparse.tasks.textcat.model import outputs_of
from structsparse.tasks.textcat.scores import ClassScore, SquaredError
from structsparse.training.batches import Progress

OPTIONS = {"weighting", "log_ratio", "normalize", "min_count", "vocabulary", "extra", "group_strength"}


@dataclass(frozen=True, eq=False)
class DocumentData:
    """The data of a text classifier: labelled train, dev and test documents as sparse matrices [documents, words]."""

    labelled: DocumentSplits
    bag: Bag
    shown: list[tuple[str, int]] | None = None  # (part, index) of the documents to explain; None: a default choice
    covers: dict[str, Cover] = field(default_factory=dict, repr=False)  # cache of word groups, by function and options
    whole_parts: dict[str, DocumentBatch] = field(default_factory=dict, repr=False)  # cache of `full_batch`, by part

    @property
    def name(self) -> str:
        """Text classifier data: the name of the corpus."""
        return self.labelled.name

    @property
    def truth(self) -> tuple[str, ...]:
        """Text classifier data: the names of the word groups that decide the classes of synthetic documents.

        For real documents, there are none."""
        return self.labelled.truth

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Text classifier data: the names of the classes; None if the labels are numbers."""
        return self.labelled.classes

    @property
    def outputs(self) -> int:
        """Text classifier data: the number of scores per document.

        This is 1 for two classes or for a number, and the number of classes otherwise."""
        return outputs_of(self.classes)

    @property
    def metric(self) -> str:
        """Text classifier data: the name of the dev score by which models are compared: mse or accuracy."""
        return "mse" if self.classes is None else "accuracy"

    @property
    def score(self) -> Callable[[], ClassScore | SquaredError]:
        """Text classifier data: a function that makes an empty score (accuracy and F1, or mean squared error)."""
        return SquaredError if self.classes is None else lambda: ClassScore(self.classes)

    @property
    def items(self) -> int:
        """Text classifier data: the number of training documents."""
        return len(self.labelled.train)

    def describe(self) -> list[str]:
        """Text classifier data: lines for the console with numbers of documents and features."""
        train, layout = self.matrices["train"], self.bag.layout
        extra = f", {layout.extra:,} of them groups of words" if layout.extra else ""
        mean = train.nnz / max(1, train.shape[0])
        size = f"{train.shape[1]:,} features{extra}, {mean:,.0f} per document on average"
        return [*self.labelled.describe(), size]

    @cached_property
    def matrices(self) -> dict[str, sparse.csr_array]:
        """Text classifier data: the feature values [documents, features] of train, dev and test, as sparse matrices."""
        return {part: self.bag.matrix(documents) for part, documents in self.labelled.parts.items()}

    @cached_property
    def columns(self) -> sparse.csc_array:
        """Text classifier data: the feature values of the training documents, as a sparse matrix in CSC format."""
        return self.matrices["train"].tocsc()

    def targets(self, part: str) -> np.ndarray:
        """Text classifier data: the targets of the loss for the documents of a part (train, dev or test).

        Targets are -1 or 1 for two classes, and int64 class codes for more classes. If labels are numbers and not
        classes, targets are the labels."""
        return targets_of(self.labelled.parts[part].labels, self.classes)

    def full_batch(self, part: str) -> DocumentBatch:
        """Text classifier data: all documents of a part (train, dev or test) as one batch, which is cached."""
        if part not in self.whole_parts:
            matrix, targets = self.matrices[part], self.targets(part)
            self.whole_parts[part] = DocumentBatch.of(matrix, targets, np.arange(len(targets)), len(targets))
        return self.whole_parts[part]

    def batches(self, part: str, size: int | None, **sharing) -> DocumentBatches:
        """Text classifier data: batches of `size` documents of a part (train, dev or test).

        Dev and test are always one batch. Train is one batch if `size` is None."""
        return DocumentBatches(self, part, size if part == "train" else None, **sharing)

    def whole(self, part: str) -> DocumentBatches:
        """Text classifier data: all documents of a part (train, dev or test), as a loader of one batch."""
        return self.batches(part, None)

    def with_dev(self) -> None:
        """Text classifier data: always None, because the documents of dev are never added to train."""


def targets_of(labels: np.ndarray, classes: tuple[str, ...] | None) -> np.ndarray:
    """Text classifier data: convert labels to targets of a loss.

    The codes of two classes become -1 and 1. All other labels stay."""
    if classes is None or len(classes) > 2:
        return labels
    return 2.0 * labels - 1.0


@dataclass
class DocumentBatch:
    """A batch of the data of a text classifier: a sparse matrix of word features, with the targets of the loss."""

    matrix: Tensor  # sparse CSR float64 [documents, words]
    transposed: Tensor  # sparse CSR float64 [words, documents], the transpose of `matrix`
    targets: Tensor  # float64 [documents]; for more than two classes, int64 class codes
    sentences: Tensor  # int64 [documents], indices of the documents within train, dev or test
    items: int  # number of documents in the training step, over all processes

    @classmethod
    def of(cls, rows: sparse.csr_array, targets: np.ndarray, chosen: np.ndarray, items: int) -> DocumentBatch:
        """Make a batch of text classifier data from some rows of a feature matrix [documents, words].

        `chosen` has the indices of these documents within train, dev or test. `items` is the number of documents in the
        training step, over all processes."""
        matrices = tensor_of(rows), tensor_of(rows.T.tocsr())
        return cls(*matrices, torch.from_numpy(targets), torch.from_numpy(chosen), items)


def tensor_of(matrix: sparse.csr_array) -> Tensor:
    """Text classifier data: convert a scipy CSR matrix to a torch CSR tensor."""
    rows, columns = (torch.from_numpy(places.astype(np.int64)) for places in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that sparse CSR tensors are in beta
        values = torch.from_numpy(matrix.data)
        return torch.sparse_csr_tensor(rows, columns, values, matrix.shape, check_invariants=False)


class DocumentBatches(Progress):
    """Batches of text classifier data; the order of documents depends only on seed and epoch.

    A run that was stopped within an epoch can continue with the next batch. With several processes, each takes a share
    of every batch."""

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
        """The number of batches of documents in an epoch."""
        full, rest = divmod(self.count, self.size)
        return max(1, full + (rest >= self.world))

    def __iter__(self) -> Iterator[DocumentBatch]:
        """The remaining batches of documents in this epoch; if none remain, a new epoch begins."""
        if self.done >= len(self):
            self.done = 0
        steps = np.split(self._order(), np.arange(1, len(self)) * self.size)
        while self.done < len(steps):
            chosen = steps[self.done]
            self.done += 1
            yield self.data.full_batch(self.part) if len(steps) == self.world == 1 else self._batch(chosen)

    def _batch(self, chosen: np.ndarray) -> DocumentBatch:
        """Text classifier data: a batch with this process's share of the chosen documents."""
        share = chosen[self.rank :: self.world]
        rows, targets = self.data.matrices[self.part][share], self.data.targets(self.part)[share]
        return DocumentBatch.of(rows, targets, share, len(chosen))

    def _order(self) -> np.ndarray:
        """Text classifier data: the indices of the documents, in the order of the current epoch (int64 [documents])."""
        if not self.shuffle or len(self) == 1:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)


def prepare(labelled: DocumentSplits, features: Mapping, shown: list[tuple[str, int]] | None = None) -> DocumentData:
    """Prepare the data of a text classifier: documents as bags of words; `features` has the options of the bags."""
    options, extra = dict(features), features.get("extra")
    bag = words.bag(labelled, **{name: options[name] for name in OPTIONS & {*options} - {"extra", "group_strength"}})
    return DocumentData(labelled, bag if extra is None else with_groups(bag, extra), shown)


def with_groups(bag: Bag, groups: Callable[..., Cover]) -> Bag:
    """Text classifier data: extend a bag of words by one feature for each group of words.

    The value of the feature depends on the total count of the group's words in a document."""
    cover = groups((len(bag.layout),), bag.layout, parameter="features")
    members, offsets = cover.members.numpy(), cover.offsets.numpy()
    ones, shape = np.ones(len(members), np.int64), (len(cover), len(bag.layout))
    return words.extended(bag, list(cover.names), sparse.csr_array((ones, members, offsets), shape).T)
