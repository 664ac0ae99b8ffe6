"""Which row of the weight table a feature owns.

A feature is a template with values filled in. It is never a string on the way: each attribute value has a 64-bit
hash, a template folds the hashes of its atoms into one 64-bit key, and the keys of a template are a sorted array.
The rows of a template are contiguous, the most frequent feature first, of equals that which is met first. What is done
for every token is compiled (`kernels/keys.py`); sorting, for the largest corpora the most of the work, is numpy's.
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

WORD = 64  # bits of a whole key


@lru_cache(1 << 16)  # a stream asks for the same words again and again
def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def hashes(texts: Iterable[str]) -> np.ndarray:  # uint64 [texts]
    return np.frombuffer(b"".join(map(_digest, texts)), "<u8").astype(np.uint64)


@dataclass(frozen=True)
class Bags:
    """The rows that are active at each token: `ids[offsets[t] : offsets[t + 1]]`, in the order of the templates."""

    ids: np.ndarray  # int32 [occurrences]
    offsets: np.ndarray  # int64 [tokens + 1]

    def renumber(self, new_row: np.ndarray) -> Bags:
        """Rows renumbered; those whose new number is -1 are dropped. Bags may be most of the memory there is: nothing
        else is made of their size."""
        offsets = np.empty_like(self.offsets)
        kernels.count_kept(self.ids, self.offsets, new_row, offsets)
        ids = np.empty(offsets[-1], np.int32)
        kernels.renumber(self.ids, new_row, ids)
        return Bags(ids, offsets)

    def counts(self, rows: int) -> np.ndarray:
        """How often each row occurs: int32 [rows]"""
        found = np.zeros(rows, np.int32)
        kernels.occurrences(self.ids, found)
        return found


@dataclass(frozen=True)
class FeatureRows(ABC):
    """Templates, and for each of them the features that own a row: block k is `offsets[k] : offsets[k + 1]`."""

    templates: tuple
    offsets: np.ndarray  # int64 [templates + 1]
    keys: np.ndarray  # uint64 [rows], ascending inside each block
    rows: np.ndarray  # int32 [rows], the row of each key
    lengths: np.ndarray | None = None  # int64 [templates], how many of its high bits make a key; None: all of them

    @classmethod
    def gathered(
        cls,
        templates: Sequence,
        places: int,
        keys_of: Callable[[int], np.ndarray],
        min_count: int,
        source: str,
        bits: int = WORD,
    ) -> Self:
        """All features that occur at least `min_count` times; keys_of(k) are those of template k at so many places.
        Features of a template whose keys have the same first `bits` are one."""
        if min_count < 1:
            raise UserError(f"features.min_count is {min_count}; it counts occurrences and must be at least 1")
        if not templates:
            raise UserError("no feature template is left; name some in features.templates")
        blocks, orders, offsets = [], [], [0]
        known, rows = np.empty(places, np.uint64), np.empty(places, np.int32)
        for k in range(len(templates)):
            keys = keys_of(k)
            keys &= _mask(bits)
            size = kernels.group(keys, np.sort(keys), min_count, offsets[-1], known, rows)
            blocks.append(known[:size].copy())
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
        """How many places these sentences have where each template has one feature: tokens, or arcs."""

    @staticmethod
    @abstractmethod
    def columns_of(template) -> set[str]:
        """The attributes that a template reads."""

    @classmethod
    @abstractmethod
    def fit(cls, sentences: Sentences, templates: Sequence, min_count: int = 1) -> Self:
        """All features of these sentences that occur at least `min_count` times."""

    @abstractmethod
    def bags(self, sentences: Sentences) -> Bags:
        """The rows active at each place; features that own no row are dropped."""

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """The source files that decide which features there are; cached features depend on their text."""
        return tuple(Path(file) for file in (__file__, attributes.__file__, kernels.__file__))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def names(self) -> list[str]:
        return [template.name for template in self.templates]

    @cached_property
    def _places(self) -> tuple[np.ndarray, ...]:
        """The table that keys are looked up in, with a directory of at most one key a place."""
        blocks = [self.keys[begin:end] for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        bits = np.array([max(1, len(block).bit_length()) for block in blocks], np.int64)
        places = [kernels.directory(block, size) for block, size in zip(blocks, bits, strict=True)]
        begins, none = np.cumsum([0, *map(len, places)]), np.empty(0, np.int32)
        return self.offsets, self.keys, self.rows, bits, begins, np.concatenate([none, *places]), self.masks

    @property
    def masks(self) -> np.ndarray:
        """What of a key counts: uint64 [templates]"""
        lengths = np.full(len(self.templates), WORD) if self.lengths is None else self.lengths
        return np.array([_mask(length) for length in lengths.tolist()], np.uint64)

    def keep(self, alive: np.ndarray) -> tuple[Self, np.ndarray]:
        """Only the rows that are alive, and the new number of every old row (-1 for the dead ones)."""
        new_row = np.cumsum(alive, dtype=np.int32)
        new_row[alive] -= 1
        new_row[~alive] = -1
        kept = alive[self.rows]
        sizes = [np.count_nonzero(kept[begin:end]) for begin, end in zip(self.offsets, self.offsets[1:], strict=False)]
        offsets = np.cumsum([0, *sizes])
        smaller = type(self)(self.templates, offsets, self.keys[kept], new_row[self.rows[kept]], self.lengths)
        return smaller, new_row

    def only(self, alive: np.ndarray) -> Self:
        """The rows that are alive, under their old numbers."""
        kept = alive[self.rows]
        offsets = np.r_[0, np.cumsum(kept)][self.offsets]
        return replace(self, offsets=offsets, keys=self.keys[kept], rows=self.rows[kept])

    def shortened(self, guard: int, occurring: Callable[[int], np.ndarray] | None = None) -> Self:
        """Keys of fewer bits, so few that a feature without a row is taken for one that has a row once in 2^guard, and
        no fewer than tell the rows apart. `occurring(k)`: the keys of template k at all places of a text, of which no
        larger share may be mistaken either."""
        keys = self.keys.copy()
        lengths = np.full(len(self.templates), WORD) if self.lengths is None else self.lengths.copy()
        for k, (begin, end) in enumerate(zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)):
            if begin == end:
                continue
            own, seen, most = self.keys[begin:end], None, int(lengths[k])
            if occurring is not None:
                found, counts = np.unique(occurring(k) & _mask(most), return_counts=True)
                unknown = ~np.isin(found, own)
                seen = found[unknown], counts[unknown], counts.sum() >> guard
            lengths[k] = _shortest(own, min(most, len(own).bit_length() + guard), most, seen)
            keys[begin:end] = own & _mask(int(lengths[k]))
        return replace(self, keys=keys, lengths=lengths)


def _mask(length: int) -> np.uint64:
    """So many ones, then zeros."""
    return np.uint64(((1 << length) - 1) << (WORD - length))


def _shortest(own: np.ndarray, length: int, most: int, seen: tuple[np.ndarray, np.ndarray, int] | None) -> int:
    """The bits, so many to so many, that tell these keys apart, and from all but a few occurrences of others."""
    while length < most:
        mask = _mask(length)
        short = own & mask
        apart = bool((short[1:] != short[:-1]).all())
        if apart and (seen is None or seen[1][np.isin(seen[0] & mask, short)].sum() <= seen[2]):
            break
        length += 1
    return length
