"""The index of token features of a tagger: maps the hash of each feature (key) to a row of the weight table.

A template is a conjunction of pairs (attribute, offset), called atoms. A feature is a template with attribute values.
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
        """Token index: the number of places that have features; these are the tokens of the sentences."""
        return sentences.tokens

    @staticmethod
    def columns_of(template: Template) -> set[str]:
        """Token index: the names of the attributes that a token template reads."""
        return {name for name, _ in template.atoms}

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """Token index: the source files that define token features; if one changes, cached features are invalid."""
        return (*super().code_files(), Path(__file__), Path(language.__file__))

    @classmethod
    def fit(cls, sentences: Sentences, templates: Sequence[Template], min_count: int = 1) -> TokenIndex:
        """Make a token index of all features that occur on at least `min_count` tokens of `sentences`."""
        arrays, hashed = _TemplateArrays(templates), AttributeHashes(sentences, templates)
        return cls.collect(templates, sentences.tokens, lambda k: arrays.keys(k, hashed), min_count, sentences.source)

    def bags(self, sentences: Sentences) -> Bags:
        """Token index: look up the table rows of the features of each token; unknown features are dropped."""
        return self.find(self.hashed(sentences), np.arange(len(sentences)))

    def hashed(self, sentences: Sentences) -> AttributeHashes:
        """Token index: hash the attribute values that the templates read in some sentences, for `find`."""
        return AttributeHashes(sentences, self.templates)

    def find(self, hashed: AttributeHashes, chosen: np.ndarray) -> Bags:
        """Token index: look up the table rows of the features of each token in chosen sentences.

        `chosen` has indices of sentences. Tokens of the result are in the order of `chosen`."""
        starts, lengths = hashed.starts[chosen], hashed.lengths[chosen]
        tokens, templates = int(lengths.sum()), len(self.templates)
        ids, offsets = np.empty(tokens * templates, np.int32), np.empty(tokens + 1, np.int64)
        table = ids.reshape(tokens, templates)
        kernels.find(self._arrays.all, hashed.values, starts, lengths, self.lookup, table)
        kernels.compact(table, offsets)
        del table
        ids.resize(offsets[-1], refcheck=False)  # free the unused end of the array
        return Bags(ids, offsets)

    def shortened_on(self, sentences: Sentences, guard: int) -> TokenIndex:
        """A token index with shorter keys, for a small artifact.

        At most 1 in 2^guard feature occurrences in `sentences` is mistaken for another feature."""
        hashed = self.hashed(sentences)
        return self.shortened(guard, lambda k: self._arrays.keys(k, hashed))

    @cached_property
    def _arrays(self) -> _TemplateArrays:
        """Token index: the templates as arrays for the compiled kernels."""
        return _TemplateArrays(self.templates)

    def describe(self, rows: np.ndarray, sentences: Sentences, bags: Bags) -> list[str]:
        """Token index: readable names of the features in some table rows, such as `word[-1]=New & word[0]=York`.

        `bags` has the features of all tokens in `sentences`. Each of the named features must occur in `bags`."""
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
    """Token index: the readable name of a template's feature at a token, such as `word[0]=York`."""
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
    """Token index: the attribute value at a position outside the sentence, such as `begin-1` or `end+2`."""
    return f"begin-{begin - place}" if place < begin else f"end+{place - end + 1}"


class _TemplateArrays:
    """Token index: arrays for the kernels, with the (attribute, offset) pairs (atoms) of all templates."""

    def __init__(self, templates: Sequence[Template]) -> None:
        numbers = {name: k for k, name in enumerate(_attributes(templates))}
        atoms = [(numbers[name], shift) for template in templates for name, shift in template.atoms]
        attributes, shifts = np.array(atoms, np.int64).reshape(-1, 2).T.copy()
        bounds = np.cumsum([0, *(len(template.atoms) for template in templates)])
        # per template: hash seed, place of its first (attribute, offset) pair; per pair: attribute index, offset
        self.all = hashes(template.name for template in templates), bounds, attributes, shifts

    def keys(self, k: int, hashed: AttributeHashes) -> np.ndarray:
        """Token index: compute, for each token, the key (hash, uint64) of the feature of template k."""
        seeds, bounds, attributes, shifts = self.all
        atoms = slice(bounds[k], bounds[k + 1])
        keys = np.empty(int(hashed.lengths.sum()), np.uint64)
        kernels.fold(seeds[k], attributes[atoms], shifts[atoms], hashed.values, hashed.starts, hashed.lengths, keys)
        return keys


class AttributeHashes:
    """Token index: hashed attribute values of sentences, with padding around each sentence.

    `values`, uint64 [attributes, places], has a place for each token and for each padding position.
    """

    def __init__(self, sentences: Sentences, templates: Sequence[Template]) -> None:
        names, shifts = _attributes(templates), [shift for template in templates for _, shift in template.atoms]
        before, after = -min([0, *shifts]), max([0, *shifts])
        self.lengths = sentences.lengths
        numbers = np.arange(len(sentences))
        # for each sentence, the position of its first token among all tokens and padding positions
        self.starts = sentences.offsets[:-1] + before + (before + after) * numbers
        inside = np.arange(sentences.tokens) + np.repeat(self.starts - sentences.offsets[:-1], self.lengths)
        self.values = np.empty((len(names), sentences.tokens + (before + after) * len(sentences)), np.uint64)
        for distance in range(1, before + 1):
            self.values[:, self.starts - distance] = hashes([_boundary(-distance, 0, 0)])
        for distance in range(1, after + 1):
            self.values[:, self.starts + self.lengths + distance - 1] = hashes([_boundary(distance - 1, 0, 0)])
        # Hash only values that occur: a selection of sentences shares the value lists of the whole corpus.
        used = {*names, "word"} & {*sentences.columns}
        columns = {name: sentences.columns[name].without_unused() for name in used}
        compact = replace(sentences, columns={**sentences.columns, **columns})
        for k, name in enumerate(names):
            column = attribute(compact, name)
            self.values[k, inside] = hashes("=" + value for value in column.values)[column.codes]


def _attributes(templates: Sequence[Template]) -> list[str]:
    """Token index: the sorted names of all attributes that the templates read."""
    return sorted({name for template in templates for name, _ in template.atoms})
