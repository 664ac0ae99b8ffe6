"""The index of token features of a tagger: hashes of template values as keys, and the active feature rows of tokens.

An atom of a template is a pair (attribute, offset). Loops over tokens are compiled (`kernels/features/keys.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from structsparse.corpora.columns import Column, Sentences
from structsparse.features.attributes import attribute
from structsparse.features.keys import Bags, FeatureIndex, hashes
from structsparse.kernels.features import keys as kernels
from structsparse.tasks.tagging.features import templates as language
from structsparse.tasks.tagging.features.templates import Template


class TokenIndex(FeatureIndex):
    """The index of a tagger from token features (hashed keys) to rows of the weight table."""

    templates: tuple[Template, ...]

    @staticmethod
    def places(sentences: Sentences) -> int:
        """Token index: the number of tokens of some sentences; every template has one feature at each token."""
        return sentences.tokens

    @staticmethod
    def columns_of(template: Template) -> set[str]:
        """Token index: the names of the columns and word attributes that a token template reads."""
        return {name for name, _ in template.atoms}

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """Token index: the source files that define token features; a changed file invalidates cached features."""
        return (*super().code_files(), Path(__file__), Path(language.__file__))

    @classmethod
    def fit(cls, sentences: Sentences, templates: Sequence[Template], min_count: int = 1) -> TokenIndex:
        """A token index of all features that occur on at least `min_count` tokens of these sentences."""
        arrays, hashed = _TemplateArrays(templates), AttributeHashes(sentences, templates)
        return cls.collect(templates, sentences.tokens, lambda k: arrays.keys(k, hashed), min_count, sentences.source)

    def bags(self, sentences: Sentences) -> Bags:
        """Token index: the active feature rows of each token; features that are not in the index are dropped."""
        return self.find(self.hashed(sentences), np.arange(len(sentences)))

    def hashed(self, sentences: Sentences) -> AttributeHashes:
        """Token index: the hashed attributes of sentences that the templates read, for `find`."""
        return AttributeHashes(sentences, self.templates)

    def find(self, hashed: AttributeHashes, chosen: np.ndarray) -> Bags:
        """Token index: the active feature rows of the tokens of chosen sentences, in the order of `chosen`.

        chosen [sentences]: numbers of sentences."""
        starts, lengths = hashed.starts[chosen], hashed.lengths[chosen]
        tokens, templates = int(lengths.sum()), len(self.templates)
        ids, offsets = np.empty(tokens * templates, np.int32), np.empty(tokens + 1, np.int64)
        table = ids.reshape(tokens, templates)
        kernels.find(self._arrays.all, hashed.values, starts, lengths, self.lookup, table)
        kernels.compact(table, offsets)
        del table
        ids.resize(offsets[-1], refcheck=False)  # frees the unused end of the array without a copy
        return Bags(ids, offsets)

    def shortened_on(self, sentences: Sentences, guard: int) -> TokenIndex:
        """A token index with shorter keys: at most 1 in 2^guard features is mistaken for another feature.

        The bound holds for the feature occurrences in these sentences."""
        hashed = self.hashed(sentences)
        return self.shortened(guard, lambda k: self._arrays.keys(k, hashed))

    @cached_property
    def _arrays(self) -> _TemplateArrays:
        """Token index: the templates as arrays for the compiled kernels."""
        return _TemplateArrays(self.templates)

    def describe(self, rows: np.ndarray, sentences: Sentences, bags: Bags) -> list[str]:
        """Token index: readable names of the features of some rows, such as `word[-1]=New & word[0]=York`.

        Each name is rebuilt from a token with the feature; `bags` are the features of all tokens of the sentences."""
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
    """Token index: the readable name of the feature that a template has at a token: `word[0]=York`."""
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
    """Token index: the attribute value of a position outside the sentence, by distance: `begin-1`, `end+2`."""
    return f"begin-{begin - place}" if place < begin else f"end+{place - end + 1}"


class _TemplateArrays:
    """Token index: the templates as arrays for the kernels: hash seeds, attributes and offsets of atoms."""

    def __init__(self, templates: Sequence[Template]) -> None:
        numbers = {name: k for k, name in enumerate(_attributes(templates))}
        atoms = [(numbers[name], shift) for template in templates for name, shift in template.atoms]
        attributes, shifts = np.array(atoms, np.int64).reshape(-1, 2).T.copy()
        bounds = np.cumsum([0, *(len(template.atoms) for template in templates)])
        # seeds [templates]; bounds of the atoms of each template [templates + 1]; attribute numbers and offsets [atoms]
        self.all = hashes(template.name for template in templates), bounds, attributes, shifts

    def keys(self, k: int, hashed: AttributeHashes) -> np.ndarray:
        """Token index: the feature keys (hashes) of template k at all tokens: uint64 [tokens]"""
        seeds, bounds, attributes, shifts = self.all
        atoms = slice(bounds[k], bounds[k + 1])
        keys = np.empty(int(hashed.lengths.sum()), np.uint64)
        kernels.fold(seeds[k], attributes[atoms], shifts[atoms], hashed.values, hashed.starts, hashed.lengths, keys)
        return keys


class AttributeHashes:
    """Token index: hashed attribute values of sentences, padded with hashes of the sentence boundaries.

    `values`: uint64 [attributes, places]; places are the tokens of all sentences and the padding around each sentence.
    """

    def __init__(self, sentences: Sentences, templates: Sequence[Template]) -> None:
        names, shifts = _attributes(templates), [shift for template in templates for _, shift in template.atoms]
        before, after = -min([0, *shifts]), max([0, *shifts])
        self.lengths = sentences.lengths
        numbers = np.arange(len(sentences))
        self.starts = sentences.offsets[:-1] + before + (before + after) * numbers  # [sentences] places of first tokens
        inside = np.arange(sentences.tokens) + np.repeat(self.starts - sentences.offsets[:-1], self.lengths)
        self.values = np.empty((len(names), sentences.tokens + (before + after) * len(sentences)), np.uint64)
        for distance in range(1, before + 1):
            self.values[:, self.starts - distance] = hashes([_boundary(-distance, 0, 0)])
        for distance in range(1, after + 1):
            self.values[:, self.starts + self.lengths + distance - 1] = hashes([_boundary(distance - 1, 0, 0)])
        # A selection of a few sentences shares the value lists of the whole corpus: hash only the values that occur.
        used = {*names, "word"} & {*sentences.columns}
        columns = {name: sentences.columns[name].without_unused() for name in used}
        compact = replace(sentences, columns={**sentences.columns, **columns})
        for k, name in enumerate(names):
            column = attribute(compact, name)
            self.values[k, inside] = hashes("=" + value for value in column.values)[column.codes]


def _attributes(templates: Sequence[Template]) -> list[str]:
    """Token index: the names of the attributes that the templates read, sorted."""
    return sorted({name for template in templates for name, _ in template.atoms})
