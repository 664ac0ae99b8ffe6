"""Feature keys of 64 bits: an index from features to rows of a weight table, and bags of active rows.

A feature is a template with values filled in. No string is made for a feature. Each attribute value has a 64-bit
hash. A template combines the hashes of the attribute values that it reads into one 64-bit key. The keys of a
template are a sorted array. The rows of a template are contiguous, by falling frequency, then by first appearance.
Loops over tokens are compiled (`kernels/features/keys.py`); for the largest corpora numpy's sort takes most of the
time."""

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

WORD = 64  # number of bits of a full key


@lru_cache(1 << 16)  # words repeat in a stream of sentences
def _digest(text: str) -> bytes:
    """Feature keys: the 64-bit hash of an attribute value, as bytes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def hashes(texts: Iterable[str]) -> np.ndarray:
    """Feature keys: the 64-bit hashes of attribute values (strings), uint64 [texts]"""
    return np.frombuffer(b"".join(map(_digest, texts)), "<u8").astype(np.uint64)


@dataclass(frozen=True)
class Bags:
    """Bags of rows by feature keys: place t (token or arc) has the weight rows ids[offsets[t] : offsets[t + 1]].

    The rows of a bag are in the order of the templates."""

    ids: np.ndarray  # int32 [occurrences] row numbers, place after place
    offsets: np.ndarray  # int64 [places + 1] position in `ids` of the first row of each place

    def renumber(self, new_row: np.ndarray) -> Bags:
        """Bags of rows by feature keys: the same bags with new row numbers; rows with the new number -1 are dropped.

        Bags may fill most of the memory, so no temporary array of the size of the bags is made."""
        offsets = np.empty_like(self.offsets)
        kernels.kept_offsets(self.ids, self.offsets, new_row, offsets)
        ids = np.empty(offsets[-1], np.int32)
        kernels.renumber(self.ids, new_row, ids)
        return Bags(ids, offsets)

    def counts(self, rows: int) -> np.ndarray:
        """Bags of rows by feature keys: the number of occurrences of each row: int32 [rows]"""
        counts = np.zeros(rows, np.int32)
        kernels.count_rows(self.ids, counts)
        return counts


@dataclass(frozen=True)
class FeatureIndex(ABC):
    """Index from features to weight rows by 64-bit keys: template k has the rows offsets[k] to offsets[k + 1].

    Tasks derive classes that compute the keys of token templates or of arc templates."""

    templates: tuple
    offsets: np.ndarray  # int64 [templates + 1] the first row of each template, then the number of rows
    keys: np.ndarray  # uint64 [rows] ascending within each template
    rows: np.ndarray  # int32 [rows] the row of each key
    lengths: np.ndarray | None = None  # int64 [templates] number of high bits of a key that are compared; None: all

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

        keys_of(k): the keys of template k at all places, uint64 [places]. Features of a template whose keys have the
        same first `bits` bits count as one feature."""
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
        """Index by feature keys (abstract): the number of places, tokens or arcs, in sentences.

        Every template has one feature at each place."""

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
        """Index by feature keys (abstract): the active weight rows at each place (token or arc) of sentences.

        Features without a row are dropped."""

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
        """Index by feature keys: the arrays for looking up the row of a key.

        `kernels.look_up` takes these arrays: keys and rows by template, and for each template a table from the high
        bits of a key to its position."""
        blocks = [self.keys[begin:end] for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        bits = np.array([max(1, len(block).bit_length()) for block in blocks], np.int64)
        directories = [kernels.directory(block, size) for block, size in zip(blocks, bits, strict=True)]
        begins, none = np.cumsum([0, *map(len, directories)]), np.empty(0, np.int32)
        return self.offsets, self.keys, self.rows, bits, begins, np.concatenate([none, *directories]), self.masks

    @property
    def masks(self) -> np.ndarray:
        """Index by feature keys: masks of the bits of a key that are compared: uint64 [templates]"""
        lengths = np.full(len(self.templates), WORD) if self.lengths is None else self.lengths
        return np.array([_mask(length) for length in lengths.tolist()], np.uint64)

    def keep(self, alive: np.ndarray) -> tuple[Self, np.ndarray]:
        """Index by feature keys with only the living rows, renumbered, and the new number of each row (-1: dead)."""
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
        """Index by feature keys with only the living rows, which keep their numbers."""
        living = alive[self.rows]
        offsets = np.r_[0, np.cumsum(living)][self.offsets]
        return replace(self, offsets=offsets, keys=self.keys[living], rows=self.rows[living])

    def shortened(self, guard: int, occurring: Callable[[int], np.ndarray] | None = None) -> Self:
        """Index by feature keys with keys of as few bits as possible.

        The shorter keys of a template are distinct. At most about 1 in 2^guard unknown features has the key of a
        known feature. If `occurring(k)` gives the keys of template k at the places of a text, this bound also holds
        for the unknown features of that text."""
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
    """Feature keys: the mask of the first `length` bits of a 64-bit key."""
    return np.uint64(((1 << length) - 1) << (WORD - length))


def _shortest(keys: np.ndarray, length: int, most: int, unknown: tuple[np.ndarray, np.ndarray, int] | None) -> int:
    """Feature keys: the smallest number of high bits, from `length` to `most`, for which the keys stay distinct.

    unknown: the keys of unknown features, the number of occurrences of each, and how many of all these occurrences
    may equal a shortened key"""
    while length < most:
        mask = _mask(length)
        short = keys & mask
        apart = bool((short[1:] != short[:-1]).all())
        if apart and (unknown is None or unknown[1][np.isin(unknown[0] & mask, short)].sum() <= unknown[2]):
            break
        length += 1
    return length
