"""The index of arc features of a parser: from the hashed key of a feature on an arc to a row of the weight table.

Every template has one feature on every arc, identified by a key (`arc_keys.py`). Keys are hashes, which need no strings
and no vocabulary. The keys of a template do not depend on the other templates of a parser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from structsparse.base.cache import cache_folder
from structsparse.base.large_arrays import empty_array, shrunk
from structsparse.corpora.columns import Sentences
from structsparse.features.keys import WORD, Bags, FeatureIndex
from structsparse.kernels.features import arc_keys as kernels
from structsparse.kernels.features import keys as key_kernels
from structsparse.tasks.parsing.features import arc_keys
from structsparse.tasks.parsing.features import templates as language
from structsparse.tasks.parsing.features.arc_keys import ArcKeys
from structsparse.tasks.parsing.features.spelling import ArcSpeller
from structsparse.tasks.parsing.features.templates import ArcTemplate, columns_of


class ArcIndex(FeatureIndex):
    """The index of a parser from arc features (hashed keys) to rows of the weight table."""

    templates: tuple[ArcTemplate, ...]

    @staticmethod
    def places(sentences: Sentences) -> int:
        """Arc index: the number of arcs of some sentences: one from every possible head to every word."""
        return int((sentences.lengths.astype(np.int64) ** 2).sum())

    @staticmethod
    def columns_of(template: ArcTemplate) -> set[str]:
        """Arc index: the names of the treebank columns that an arc template reads."""
        return columns_of(template)

    @classmethod
    def code_files(cls) -> tuple[Path, ...]:
        """Arc index: the source files that define arc features; a changed file invalidates cached features."""
        return (
            *super().code_files(),
            *(Path(module.__file__) for module in (arc_keys, language, kernels)),
            Path(__file__),
        )

    @classmethod
    def fit(
        cls, sentences: Sentences, templates: Sequence[ArcTemplate], min_count: int = 1, bits: int = WORD
    ) -> ArcIndex:
        """An arc index of all features that occur on at least `min_count` arcs, with keys of `bits` bits."""
        arcs = ArcKeys(sentences, templates)
        return cls.collect(templates, arcs.count, arcs.keys, min_count, sentences.source, bits)

    @classmethod
    def fit_chosen(
        cls, sentences: Sentences, heads: np.ndarray, templates: Sequence[ArcTemplate], min_count: int = 1
    ) -> ArcIndex:
        """An arc index of all features that occur on at least `min_count` arcs, counting one arc per word.

        The arc of a word comes from its head in `heads`."""
        arcs = ArcKeys(sentences, templates)
        chosen = arcs.chosen(heads)
        return cls.collect(templates, len(chosen), lambda k: arcs.keys(k)[chosen], min_count, sentences.source)

    def bags(self, sentences: Sentences) -> Bags:
        """Arc index: the active feature rows of every arc; features that are not in the index are dropped."""
        arcs, templates = ArcKeys(sentences, self.templates), len(self.templates)
        ids, offsets = empty_array(arcs.count * templates, np.int32, cache_folder()), np.empty(arcs.count + 1, np.int64)
        table = ids.reshape(arcs.count, templates)
        kernels.find(arcs.patterns, arcs.starts, arcs.first_arcs, arcs.values, arcs.between, self.lookup, table)
        key_kernels.compact(table, offsets)
        del table
        return Bags(shrunk(ids, offsets[-1]), offsets)

    def bags_chosen(self, sentences: Sentences, heads: np.ndarray) -> Bags:
        """Arc index: the active feature rows of one arc for each word, from its head in `heads`."""
        arcs, (bounds, known, rows, bits, begins, places, masks) = ArcKeys(sentences, self.templates), self.lookup
        chosen = arcs.chosen(heads)
        ids, offsets = np.empty((len(self.templates), len(chosen)), np.int32), np.empty(len(chosen) + 1, np.int64)
        for k in range(len(ids)):
            block, directory = slice(bounds[k], bounds[k + 1]), places[begins[k] : begins[k + 1]]
            keys = arcs.keys(k)[chosen]
            key_kernels.look_up(keys, known[block], rows[block], directory, bits[k], masks[k], ids[k])
        table = np.ascontiguousarray(ids.T)
        key_kernels.compact(table, offsets)
        return Bags(table.reshape(-1)[: offsets[-1]].copy(), offsets)

    def shortened_on(self, sentences: Sentences, guard: int, heads: np.ndarray | None = None) -> ArcIndex:
        """An arc index with shorter keys: at most 1 in 2^guard features is mistaken for another feature.

        This share is measured on all arcs of the sentences. If `heads` is given, it is measured on one arc for each
        word, from its head in `heads`."""
        arcs = ArcKeys(sentences, self.templates)
        chosen = slice(None) if heads is None else arcs.chosen(heads)
        return self.shortened(guard, lambda k: arcs.keys(k)[chosen])

    def describe(
        self, rows: np.ndarray, sentences: Sentences, bags: Bags | None = None, heads: np.ndarray | None = None
    ) -> list[str]:
        """Arc index: readable names of features, such as `h.upos=NOUN & m.upos=ADJ & direction=left`.

        `rows` holds the rows of the features. Each name is rebuilt from an arc that has the feature. `bags` (optional)
        holds the features of all arcs. If `heads` is given, it holds those of one arc for each word, from its head in
        `heads`."""
        arcs = ArcKeys(sentences, self.templates)
        if bags is None:
            examples = self._first_arcs(arcs, rows)
        else:
            place = np.full(len(self), -1)
            place[rows] = kernels.REQUESTED
            kernels.first_places(bags.ids, bags.offsets, place, len(rows))
            examples = place[rows] if heads is None else arcs.chosen(heads)[place[rows]]
        template_of, spell = np.searchsorted(self.offsets, rows, side="right") - 1, ArcSpeller(arcs)
        return [spell(self.templates[k], arc) for k, arc in zip(template_of, examples.tolist(), strict=True)]

    def _first_arcs(self, arcs: ArcKeys, rows: np.ndarray) -> np.ndarray:
        """Arc index: for each of the given feature rows, the index of the first arc with this feature.

        To save memory, only the keys of one template are kept at a time."""
        requested, first = np.zeros(len(self), np.bool_), np.full(len(self), -1)
        requested[rows] = True
        for k, (begin, end) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            places = begin + np.flatnonzero(requested[self.rows[begin:end]])  # positions in self.keys
            if len(places):
                keys = arcs.keys(k) & self.masks[k]
                nearest = np.searchsorted(self.keys[places], keys).clip(0, len(places) - 1)
                having = np.flatnonzero(self.keys[places][nearest] == keys)[::-1]
                first[self.rows[places[nearest[having]]]] = having  # indices fall: a row keeps its first arc
        return first[rows]
