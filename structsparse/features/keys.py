"""Feature keys of 64 bits: an index from features to rows of a weight table, and bags of rows.

A feature is a template with attribute values filled in. No string is made for a feature:

- Each attribute value is hashed to 64 bits.
- A template combines the hashes of the attribute values that it reads into the 64-bit key of a feature.
- The keys of a template are sorted. The row of a key is found by search.
- The rows of a template are consecutive. More frequent features come first.
- A bag holds the rows of the features that occur at a token or arc (active rows).

Loops over tokens are compiled (`kernels/features/keys.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.features import attributes
from structsparse.kernels.features import keys as kernels

WORD = 64  # number of bits of a feature key that is not shortened


@lru_cache(1 << 16)  # cached, because words repeat
def _digest(text: str) -> bytes:
    """Feature keys: the 64-bit hash of an attribute value, as bytes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def hashes(texts: Iterable[str]) -> np.ndarray:
    """Feature keys: the 64-bit hash of each attribute value (uint64 array of shape [texts])."""
    return np.frombuffer(b"".join(map(_digest, texts)), "<u8").astype(np.uint64)


@dataclass(frozen=True)
class Bags:
    """Bags of rows by feature keys: the weight rows of the features that occur at each token or arc (active rows).

    Token or arc t has the rows ids[offsets[t] : offsets[t + 1]], in the order of the feature templates."""

    ids: np.ndarray  # int32 array: the active weight rows of all tokens or arcs, one after the other
    offsets: np.ndarray  # int64 array: index in `ids` of the first row of each token or arc, then len(ids)

    def renumber(self, new_row: np.ndarray) -> Bags:
        """Bags of rows by feature keys: replace each row r by new_row[r]; rows with new_row[r] = -1 are dropped.

        No temporary array of the size of the bags is made, because bags may fill most of the memory."""
        offsets = np.empty_like(self.offsets)
        kernels.kept_offsets(self.ids, self.offsets, new_row, offsets)
        ids = np.empty(offsets[-1], np.int32)
        kernels.renumber(self.ids, new_row, ids)
        return Bags(ids, offsets)

    def followed_by(self, other: Bags) -> Bags:
        """Bags of rows by feature keys: the bags of these tokens or arcs, then those of `other`, as one object."""
        offsets = np.concatenate([self.offsets, len(self.ids) + other.offsets[1:]])
        return Bags(np.concatenate([self.ids, other.ids]), offsets)

    def counts(self, rows: int) -> np.ndarray:
        """Bags of rows by feature keys: the number of occurrences of each row (int32 array of shape [rows])."""
        counts = np.zeros(rows, np.int32)
        kernels.count_rows(self.ids, counts)
        return counts


@dataclass(frozen=True)
class FeatureIndex(ABC):
    """Index that finds the weight rows of features by 64-bit keys.

    Template k has the rows offsets[k] to offsets[k + 1] - 1. Tagging and parsing derive subclasses."""

    templates: tuple
    offsets: np.ndarray  # int64, shape [templates + 1]: first row of each template, then the number of rows
    keys: np.ndarray  # uint64 array: feature keys, ascending within each template
    rows: np.ndarray  # int32 array: the weight row of each key
    lengths: np.ndarray | None = None  # int64, shape [templates]: how many high bits of keys are compared; None: all

    @classmethod
    def collect(
        cls,
        templates: Sequence,
        places: int,
        keys_of: Callable[[int], np.ndarray],
        min_count: int,
        source: str,
        bits: int = WORD,
    ) -> Self:
        """Index by feature keys: collect all features that occur at least `min_count` times.

        `keys_of(k)` returns the keys of template k at all tokens or arcs. Only the `bits` highest bits of a key count:
        features of a template with the same highest bits are treated as one feature."""
        if min_count < 1:
            raise UserError(f"features.min_count is {min_count}; it counts occurrences and must be at least 1")
        if not templates:
            raise UserError("no feature template is left; name some in features.templates")
        blocks, orders, offsets = [], [], [0]
        distinct, rows = np.empty(places, np.uint64), np.empty(places, np.int32)
        for k in range(len(templates)):
            keys = keys_of(k)
            keys &= _mask(bits)
            size = kernels.select_frequent(keys, np.sort(keys), min_count, offsets[-1], distinct, rows)
            blocks.append(distinct[:size].copy())
            orders.append(rows[:size].copy())
            offsets.append(offsets[-1] + size)
        if offsets[-1] == 0:
            raise UserError(
                f"{source}: no feature of {len(templates)} templates occurs {min_count} times "
                "(features.min_count); nothing is left to train"
            )
        lengths = None if bits == WORD else np.full(len(templates), bits)
        return cls(tuple(templates), np.array(offsets), np.concatenate(blocks), np.concatenate(orders), lengths)

    @staticmethod
    @abstractmethod
    def places(sentences: Sentences) -> int:
        """Index by feature keys (abstract): the number of tokens (tagging) or arcs (parsing) in sentences."""

    @staticmethod
    @abstractmethod
    def columns_of(template) -> set[str]:
        """Index by feature keys (abstract): the names of the attributes that a template reads."""

    @classmethod
    @abstractmethod
    def fit(cls, sentences: Sentences, templates: Sequence, min_count: int = 1) -> Self:
        """Index by feature keys (abstract): collect the features that occur at least `min_count` times in sentences."""

    @abstractmethod
    def bags(self, sentences: Sentences) -> Bags:
        """Index by feature keys (abstract): the active weight rows at each token or arc of sentences.

        Features that are not in the index are dropped."""

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """Index by feature keys: the source files that determine which features exist.

        The cache key of prepared features includes the text of these files."""
        return tuple(Path(file) for file in (__file__, attributes.__file__, kernels.__file__))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def names(self) -> list[str]:
        """Index by feature keys: the names of the templates."""
        return [template.name for template in self.templates]

    @cached_property
    def lookup(self) -> tuple[np.ndarray, ...]:
        """Index by feature keys: the arrays with which `kernels.look_up` finds the row of a key.

        Among them is a table for each template. It maps the high bits of a key to the position of the first key with
        these bits."""
        blocks = [self.keys[begin:end] for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        bits = np.array([max(1, len(block).bit_length()) for block in blocks], np.int64)
        directories = [kernels.directory(block, size) for block, size in zip(blocks, bits, strict=True)]
        begins, none = np.cumsum([0, *map(len, directories)]), np.empty(0, np.int32)
        return self.offsets, self.keys, self.rows, bits, begins, np.concatenate([none, *directories]), self.masks

    @property
    def masks(self) -> np.ndarray:
        """Index by feature keys: for each template, the mask of the key bits that are compared (uint64 array)."""
        lengths = np.full(len(self.templates), WORD) if self.lengths is None else self.lengths
        return np.array([_mask(length) for length in lengths.tolist()], np.uint64)

    def keep(self, alive: np.ndarray) -> tuple[Self, np.ndarray]:
        """Index by feature keys: keep only the rows where `alive` is true; returns the index and each row's new number.

        Removed rows have the new number -1."""
        new_row = np.cumsum(alive, dtype=np.int32)
        new_row[alive] -= 1
        new_row[~alive] = -1
        living = alive[self.rows]
        sizes = [
            np.count_nonzero(living[begin:end]) for begin, end in zip(self.offsets, self.offsets[1:], strict=False)
        ]
        offsets = np.cumsum([0, *sizes])
        smaller = type(self)(self.templates, offsets, self.keys[living], new_row[self.rows[living]], self.lengths)
        return smaller, new_row

    def only(self, alive: np.ndarray) -> Self:
        """Index by feature keys: keep only the rows for which `alive` is true; rows keep their numbers."""
        living = alive[self.rows]
        offsets = np.r_[0, np.cumsum(living)][self.offsets]
        return replace(self, offsets=offsets, keys=self.keys[living], rows=self.rows[living])

    def shortened(self, guard: int, occurring: Callable[[int], np.ndarray] | None = None) -> Self:
        """Index by feature keys: shorten the keys to as few bits as possible.

        The short keys of a template remain distinct. By chance, a feature outside the index may have the short key of a
        feature in the index, and is then mistaken for it. This happens to at most about 2^-guard of the features
        outside the index. `occurring(k)`, if given, returns the keys of template k at all tokens or arcs of a text. Of
        these occurrences, at most a share of 2^-guard is mistaken, if keys of full length allow it."""
        keys = self.keys.copy()
        lengths = np.full(len(self.templates), WORD) if self.lengths is None else self.lengths.copy()
        for k, (begin, end) in enumerate(zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)):
            if begin == end:
                continue
            block, unknown, most = self.keys[begin:end], None, int(lengths[k])
            if occurring is not None:
                distinct, counts = np.unique(occurring(k) & _mask(most), return_counts=True)
                new = ~np.isin(distinct, block)
                unknown = distinct[new], counts[new], counts.sum() >> guard
            lengths[k] = _shortest(block, min(most, len(block).bit_length() + guard), most, unknown)
            keys[begin:end] = block & _mask(int(lengths[k]))
        return replace(self, keys=keys, lengths=lengths)


def _mask(length: int) -> np.uint64:
    """Feature keys: a 64-bit mask in which only the `length` highest bits are set."""
    return np.uint64(((1 << length) - 1) << (WORD - length))


def _shortest(keys: np.ndarray, length: int, most: int, unknown: tuple[np.ndarray, np.ndarray, int] | None) -> int:
    """Feature keys: the smallest number of high bits, from `length` to `most`, for which the keys stay distinct.

    `unknown`, if given, is (keys, counts, limit): the keys of the features of a text that are outside the index, and
    the number of occurrences of each. Those that get the shortened key of a feature in the index may have at most
    `limit` occurrences together."""
    while length < most:
        mask = _mask(length)
        short = keys & mask
        apart = bool((short[1:] != short[:-1]).all())
        if apart and (unknown is None or unknown[1][np.isin(unknown[0] & mask, short)].sum() <= unknown[2]):
            break
        length += 1
    return length
