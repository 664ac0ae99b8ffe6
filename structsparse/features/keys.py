"""Which row of the weight table a feature owns.

A feature is a template with values filled in. It is never a string on the way: each attribute value has a 64-bit
hash, a template folds the hashes of its atoms into one 64-bit key, and the keys of a template are a sorted array.
The rows of a template are contiguous, the most frequent feature first, of equals that which is met first. What is done
for every token is compiled (`kernels/keys.py`); sorting, for the largest corpora the most of the work, is numpy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Self

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import attribute
from structsparse.kernels.features import keys as kernels
from structsparse.tasks.tagging.features.templates import Template

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
class Rows:
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


class FeatureIndex(Rows):
    """Templates of tokens, and the features that own a row."""

    templates: tuple[Template, ...]

    @staticmethod
    def places(sentences: Sentences) -> int:
        """Where a template has a feature each."""
        return sentences.tokens

    @staticmethod
    def columns_of(template: Template) -> set[str]:
        """What it looks at."""
        return {name for name, _ in template.atoms}

    @classmethod
    def fit(cls, sentences: Sentences, templates: Sequence[Template], min_count: int = 1) -> FeatureIndex:
        """All features that occur at least `min_count` times."""
        patterns, hashed = _Patterns(templates), Hashed(sentences, templates)
        return cls.gathered(
            templates, sentences.tokens, lambda k: patterns.keys(k, hashed), min_count, sentences.source
        )

    def bags(self, sentences: Sentences) -> Bags:
        """The rows active at each token; features that own no row are dropped."""
        return self.find(self.hashed(sentences), np.arange(len(sentences)))

    def hashed(self, sentences: Sentences) -> Hashed:
        """What `find` needs to know of the sentences."""
        return Hashed(sentences, self.templates)

    def find(self, hashed: Hashed, chosen: np.ndarray) -> Bags:
        """The bags of some sentences, in this order."""
        starts, lengths = hashed.starts[chosen], hashed.lengths[chosen]
        tokens, templates = int(lengths.sum()), len(self.templates)
        ids, offsets = np.empty(tokens * templates, np.int32), np.empty(tokens + 1, np.int64)
        table = ids.reshape(tokens, templates)
        kernels.find(self._patterns.arrays, hashed.values, starts, lengths, self._places, table)
        kernels.squeeze(table, offsets)
        del table
        ids.resize(offsets[-1], refcheck=False)  # gives back what is left over, and copies nothing
        return Bags(ids, offsets)

    def shortened_on(self, sentences: Sentences, guard: int) -> FeatureIndex:
        """Keys of fewer bits, of which those of no larger share of the features of these sentences are mistaken."""
        hashed = self.hashed(sentences)
        return self.shortened(guard, lambda k: self._patterns.keys(k, hashed))

    @cached_property
    def _patterns(self) -> _Patterns:
        return _Patterns(self.templates)

    def describe(self, rows: np.ndarray, sentences: Sentences, bags: Bags) -> list[str]:
        """Readable features, rebuilt from a token where each occurs: `word[-1]=New & word[0]=York`."""
        token_of = np.empty(len(self), np.int64)
        token_of[bags.ids] = np.repeat(np.arange(len(bags.offsets) - 1), np.diff(bags.offsets))
        template_of = np.searchsorted(self.offsets, rows, side="right") - 1
        names = {name for template in self.templates for name, _ in template.atoms}
        columns = {name: attribute(sentences, name) for name in names}
        return [
            _spell(self.templates[k], int(token_of[row]), sentences.offsets, columns)
            for row, k in zip(rows, template_of, strict=True)
        ]


def _spell(template: Template, token: int, offsets: np.ndarray, columns: dict[str, Column]) -> str:
    sentence = np.searchsorted(offsets, token, side="right") - 1
    parts = []
    for name, offset in template.atoms:
        place = token + offset
        if offsets[sentence] <= place < offsets[sentence + 1]:
            value = columns[name].values[columns[name].codes[place]]
        else:
            value = f"<{_boundary(place, offsets[sentence], offsets[sentence + 1])}>"
        parts.append(f"{name}[{offset}]={value}")
    return " & ".join(parts)


def _boundary(place: int, begin: int, end: int) -> str:
    """Beyond a sentence every distance is a value of its own."""
    return f"begin-{begin - place}" if place < begin else f"end+{place - end + 1}"


class _Patterns:
    """Templates as arrays."""

    def __init__(self, templates: Sequence[Template]) -> None:
        numbers = {name: k for k, name in enumerate(_attributes(templates))}
        atoms = [(numbers[name], shift) for template in templates for name, shift in template.atoms]
        attributes, shifts = np.array(atoms, np.int64).reshape(-1, 2).T.copy()
        bounds = np.cumsum([0, *(len(template.atoms) for template in templates)])
        self.arrays = hashes(template.name for template in templates), bounds, attributes, shifts

    def keys(self, k: int, hashed: Hashed) -> np.ndarray:
        """The keys of a template at all tokens: uint64 [tokens]"""
        seeds, bounds, attributes, shifts = self.arrays
        atoms = slice(bounds[k], bounds[k + 1])
        keys = np.empty(int(hashed.lengths.sum()), np.uint64)
        kernels.fold(seeds[k], attributes[atoms], shifts[atoms], hashed.values, hashed.starts, hashed.lengths, keys)
        return keys


class Hashed:
    """The attributes that templates look at as hashes, each sentence between those of its boundaries."""

    def __init__(self, sentences: Sentences, templates: Sequence[Template]) -> None:
        names, shifts = _attributes(templates), [shift for template in templates for _, shift in template.atoms]
        before, after = -min([0, *shifts]), max([0, *shifts])
        self.lengths = sentences.lengths
        numbers = np.arange(len(sentences))
        self.starts = sentences.offsets[:-1] + before + (before + after) * numbers  # [sentences], of first tokens
        inside = np.arange(sentences.tokens) + np.repeat(self.starts - sentences.offsets[:-1], self.lengths)
        self.values = np.empty((len(names), sentences.tokens + (before + after) * len(sentences)), np.uint64)
        for distance in range(1, before + 1):
            self.values[:, self.starts - distance] = hashes([_boundary(-distance, 0, 0)])
        for distance in range(1, after + 1):
            self.values[:, self.starts + self.lengths + distance - 1] = hashes([_boundary(distance - 1, 0, 0)])
        # Values that do not occur here, because these are some sentences of many, would be hashed for nothing.
        used = {*names, "word"} & {*sentences.columns}
        columns = {name: occurring(sentences.columns[name]) for name in used}
        compact = replace(sentences, columns={**sentences.columns, **columns})
        for k, name in enumerate(names):
            column = attribute(compact, name)
            self.values[k, inside] = hashes("=" + value for value in column.values)[column.codes]


def _attributes(templates: Sequence[Template]) -> list[str]:
    return sorted({name for template in templates for name, _ in template.atoms})


def occurring(column: Column) -> Column:
    """The column without the values that no token has."""
    occurs = np.zeros(len(column.values), bool)
    occurs[column.codes] = True
    if occurs.all():
        return column
    codes = (np.cumsum(occurs) - 1).astype(np.int32)
    return Column([column.values[k] for k in np.flatnonzero(occurs).tolist()], codes[column.codes])
