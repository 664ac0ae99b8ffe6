"""Features of tokens: the templates of a tagger, and which row of the weight table each of their features owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import attribute
from structsparse.features.keys import Bags, FeatureRows, hashes
from structsparse.kernels.features import keys as kernels
from structsparse.tasks.tagging.features import templates as tagging_templates
from structsparse.tasks.tagging.features.templates import Template


class FeatureIndex(FeatureRows):
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
    def code_files(cls) -> tuple[Path, ...]:
        """The source files that decide which features there are."""
        return (*super().code_files(), Path(__file__), Path(tagging_templates.__file__))

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
        columns = {name: sentences.columns[name].without_unused() for name in used}
        compact = replace(sentences, columns={**sentences.columns, **columns})
        for k, name in enumerate(names):
            column = attribute(compact, name)
            self.values[k, inside] = hashes("=" + value for value in column.values)[column.codes]


def _attributes(templates: Sequence[Template]) -> list[str]:
    return sorted({name for template in templates for name, _ in template.atoms})
