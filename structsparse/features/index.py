"""Which row of the weight table a feature owns.

A feature is a template with values filled in. It is never a string on the way: each attribute value has a 64-bit
hash, a template folds the hashes of its atoms into one 64-bit key, and the keys of a template are a sorted array.
The rows of a template are contiguous, the most frequent feature first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from structsparse.corpora.columns import Column, Sentences
from structsparse.errors import UserError
from structsparse.features.attributes import attribute
from structsparse.features.templates import Template

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: an odd multiplier that spreads all bits
_HALF = np.uint64(32)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Bags:
    """The rows that are active at each token: `ids[offsets[t] : offsets[t + 1]]`, in the order of the templates."""

    ids: np.ndarray  # int32 [occurrences]
    offsets: np.ndarray  # int64 [tokens + 1]

    def renumber(self, new_row: np.ndarray) -> Bags:
        """Rows renumbered; those whose new number is -1 are dropped."""
        ids = new_row[self.ids]
        kept = ids >= 0
        return Bags(ids[kept].astype(np.int32), np.r_[0, np.cumsum(kept)][self.offsets])


@dataclass(frozen=True)
class FeatureIndex:
    """Templates, and for each of them the features that own a row: block k is `offsets[k] : offsets[k + 1]`."""

    templates: tuple[Template, ...]
    offsets: np.ndarray  # int64 [templates + 1]
    keys: np.ndarray  # uint64 [rows], ascending inside each block
    rows: np.ndarray  # int32 [rows], the row of each key

    @classmethod
    def fit(cls, sentences: Sentences, templates: Sequence[Template], min_count: int = 1) -> FeatureIndex:
        """All features that occur at least `min_count` times."""
        if min_count < 1:
            raise UserError(f"features.min_count is {min_count}; it counts occurrences and must be at least 1")
        if not templates:
            raise UserError("no feature template is left; name some in features.templates")
        keys_of = _Keys(sentences)
        blocks, orders, offsets = [], [], [0]
        for template in templates:
            keys, counts = np.unique(keys_of(template), return_counts=True)
            keys, counts = keys[counts >= min_count], counts[counts >= min_count]
            by_frequency = np.argsort(-counts, kind="stable")
            row = np.empty(len(keys), np.int32)
            row[by_frequency] = np.arange(offsets[-1], offsets[-1] + len(keys), dtype=np.int32)
            blocks.append(keys)
            orders.append(row)
            offsets.append(offsets[-1] + len(keys))
        if offsets[-1] == 0:
            raise UserError(
                f"{sentences.source}: no feature of {len(templates)} templates occurs {min_count} times "
                "(features.min_count); nothing is left to train"
            )
        return cls(tuple(templates), np.array(offsets), np.concatenate(blocks), np.concatenate(orders))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def names(self) -> list[str]:
        return [template.name for template in self.templates]

    def bags(self, sentences: Sentences) -> Bags:
        """The rows active at each token; features that own no row are dropped."""
        keys_of = _Keys(sentences)
        found = np.empty((sentences.tokens, len(self.templates)), np.int32)
        for k, template in enumerate(self.templates):
            begin, end = self.offsets[k], self.offsets[k + 1]
            found[:, k] = _look_up(keys_of(template), self.keys[begin:end], self.rows[begin:end])
        kept = found >= 0  # [tokens, templates]
        return Bags(found[kept], np.r_[0, np.cumsum(kept.sum(axis=1))])

    def keep(self, alive: np.ndarray) -> tuple[FeatureIndex, np.ndarray]:
        """Only the rows that are alive, and the new number of every old row (-1 for the dead ones)."""
        new_row = np.where(alive, np.cumsum(alive) - 1, -1).astype(np.int32)
        kept = alive[self.rows]
        before = np.r_[0, np.cumsum(kept)]
        smaller = FeatureIndex(self.templates, before[self.offsets], self.keys[kept], new_row[self.rows[kept]])
        return smaller, new_row

    def describe(self, rows: np.ndarray, sentences: Sentences, bags: Bags) -> list[str]:
        """Readable features, rebuilt from a token where each occurs: `word[-1]=New & word[0]=York`."""
        token_of = np.empty(len(self), np.int64)
        token_of[bags.ids] = np.repeat(np.arange(len(bags.offsets) - 1), np.diff(bags.offsets))
        template_of = np.searchsorted(self.offsets, rows, side="right") - 1
        columns = {name: attribute(sentences, name) for t in self.templates for name, _ in t.atoms}
        return [
            _spell(self.templates[k], int(token_of[row]), sentences.offsets, columns)
            for row, k in zip(rows, template_of, strict=True)
        ]


def _look_up(keys: np.ndarray, known: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The row of each key, -1 for unknown ones."""
    if len(known) == 0:
        return np.full(len(keys), -1, np.int32)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, rows[place], np.int32(-1))


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


class _Keys:
    """Template keys of all tokens, with the hashes of each attribute and offset made once."""

    def __init__(self, sentences: Sentences) -> None:
        self.sentences = sentences
        self.begin = np.repeat(sentences.offsets[:-1], np.diff(sentences.offsets))  # [tokens]
        self.end = np.repeat(sentences.offsets[1:], np.diff(sentences.offsets))
        self.attributes: dict[str, np.ndarray] = {}
        self.shifted: dict[tuple[str, int], np.ndarray] = {}

    def __call__(self, template: Template) -> np.ndarray:
        """uint64 [tokens]"""
        key = np.full(self.sentences.tokens, _hash(template.name), np.uint64)
        for atom in template.atoms:
            key ^= self._values(*atom)
            key *= _ODD
            key ^= key >> _HALF
        return key

    def _values(self, name: str, offset: int) -> np.ndarray:
        if (name, offset) not in self.shifted:
            self.shifted[name, offset] = self._shift(self._hashes(name), offset)
        return self.shifted[name, offset]

    def _hashes(self, name: str) -> np.ndarray:
        if name not in self.attributes:
            column = attribute(self.sentences, name)
            of_value = np.array([_hash("=" + value) for value in column.values], np.uint64)
            self.attributes[name] = of_value[column.codes]
        return self.attributes[name]

    def _shift(self, hashes: np.ndarray, offset: int) -> np.ndarray:
        place = np.arange(len(hashes)) + offset
        values = hashes[np.clip(place, 0, len(hashes) - 1)]
        for distance in range(1, abs(offset) + 1):
            beyond = self.begin - place == distance if offset < 0 else place - self.end + 1 == distance
            values[beyond] = _hash(_boundary(-distance, 0, 0) if offset < 0 else _boundary(distance - 1, 0, 0))
        return values
