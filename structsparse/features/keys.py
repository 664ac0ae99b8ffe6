"""Index from features to rows of a weight table, by 64-bit keys, and the bags of rows that are active at each token.

A feature is a template with values filled in. No string is made for a feature. Each attribute value has a 64-bit hash,
and a template combines the hashes of its atoms into one 64-bit key. The keys of a template are a sorted array. The rows
of a template are contiguous, by falling frequency, then by first appearance. Loops over tokens are compiled
(`kernels/features/keys.py`); for the largest corpora numpy's sort takes most of the time.
"""

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

WORD = 64  # bits of a full key


@lru_cache(1 << 16)  # the words of a stream repeat
def _digest(text: str) -> bytes:
    """The 64-bit hash of an attribute value, as bytes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def hashes(texts: Iterable[str]) -> np.ndarray:
    """The 64-bit hashes of attribute values (strings): uint64 [texts]"""
    return np.frombuffer(b"".join(map(_digest, texts)), "<u8").astype(np.uint64)


@dataclass(frozen=True)
class Bags:
    """Bags of active weight rows: place t (token or arc) has rows `ids[offsets[t] : offsets[t + 1]]`, by template."""

    ids: np.ndarray  # int32 [occurrences]
    offsets: np.ndarray  # int64 [places + 1]

    def renumber(self, new_row: np.ndarray) -> Bags:
        """The bags with new row numbers; rows whose new number is -1 are dropped.

        Bags may fill most of the memory, so that no temporary array of the size of the bags is made."""
        offsets = np.empty_like(self.offsets)
        kernels.kept_offsets(self.ids, self.offsets, new_row, offsets)
        ids = np.empty(offsets[-1], np.int32)
        kernels.renumber(self.ids, new_row, ids)
        return Bags(ids, offsets)

    def counts(self, rows: int) -> np.ndarray:
        """The number of occurrences of each row: int32 [rows]"""
        counts = np.zeros(rows, np.int32)
        kernels.count_rows(self.ids, counts)
        return counts


@dataclass(frozen=True)
class FeatureIndex(ABC):
    """Index from features to rows of a weight table: template k has the rows `offsets[k]` to `offsets[k + 1]`.

    Tasks derive classes that compute the keys of token templates or of arc templates."""

    templates: tuple
    offsets: np.ndarray  # int64 [templates + 1]
    keys: np.ndarray  # uint64 [rows], ascending within each template
    rows: np.ndarray  # int32 [rows], the row of each key
    lengths: np.ndarray | None = None  # int64 [templates], the number of high bits of keys that are compared; None: all

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
        """The index of all features that occur at least `min_count` times.

        keys_of(k): the keys of template k at all places, uint64 [places]. Features of a template whose keys have the
        same first `bits` bits become one."""
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
        """The number of places (tokens or arcs) of sentences; every template has one feature at each place."""

    @staticmethod
    @abstractmethod
    def columns_of(template) -> set[str]:
        """The names of the attributes that a feature template reads."""

    @classmethod
    @abstractmethod
    def fit(cls, sentences: Sentences, templates: Sequence, min_count: int = 1) -> Self:
        """Collect the index of all features that occur at least `min_count` times in the sentences."""

    @abstractmethod
    def bags(self, sentences: Sentences) -> Bags:
        """The active weight rows at each place of sentences; features without a row are dropped."""

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """The source files that determine which features exist; the cache key of features includes their text."""
        return tuple(Path(file) for file in (__file__, attributes.__file__, kernels.__file__))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def names(self) -> list[str]:
        """The names of the feature templates."""
        return [template.name for template in self.templates]

    @cached_property
    def lookup(self) -> tuple[np.ndarray, ...]:
        """The arrays for `kernels.look_up`: keys and rows by template, tables from high bits of keys to positions."""
        blocks = [self.keys[begin:end] for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        bits = np.array([max(1, len(block).bit_length()) for block in blocks], np.int64)
        directories = [kernels.directory(block, size) for block, size in zip(blocks, bits, strict=True)]
        begins, none = np.cumsum([0, *map(len, directories)]), np.empty(0, np.int32)
        return self.offsets, self.keys, self.rows, bits, begins, np.concatenate([none, *directories]), self.masks

    @property
    def masks(self) -> np.ndarray:
        """The bit masks of the bits of a key that are compared: uint64 [templates]"""
        lengths = np.full(len(self.templates), WORD) if self.lengths is None else self.lengths
        return np.array([_mask(length) for length in lengths.tolist()], np.uint64)

    def keep(self, alive: np.ndarray) -> tuple[Self, np.ndarray]:
        """The feature index of the living rows, renumbered, and the new number of every old row (-1 for dead rows)."""
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
        """The feature index of the living rows, which keep their numbers."""
        living = alive[self.rows]
        offsets = np.r_[0, np.cumsum(living)][self.offsets]
        return replace(self, offsets=offsets, keys=self.keys[living], rows=self.rows[living])

    def shortened(self, guard: int, occurring: Callable[[int], np.ndarray] | None = None) -> Self:
        """The feature index with keys of as few bits as possible.

        The shorter keys are distinct for all rows, and an unknown feature has the key of a known feature once in
        2^guard. If `occurring(k)` gives the keys of template k at the places of a text, this bound also holds for the
        unknown features of that text."""
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
    """The bit mask of the first `length` bits of a 64-bit key."""
    return np.uint64(((1 << length) - 1) << (WORD - length))


def _shortest(keys: np.ndarray, length: int, most: int, unknown: tuple[np.ndarray, np.ndarray, int] | None) -> int:
    """The smallest number of high bits, from `length` to `most`, for which the keys stay distinct.

    unknown: keys of unknown features, their counts, and how many of these occurrences may equal a shortened key."""
    while length < most:
        mask = _mask(length)
        short = keys & mask
        apart = bool((short[1:] != short[:-1]).all())
        if apart and (unknown is None or unknown[1][np.isin(unknown[0] & mask, short)].sum() <= unknown[2]):
            break
        length += 1
    return length
