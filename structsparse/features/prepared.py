"""Prepared features: the feature index of a corpus and the active weight rows of all sentences, cached on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from structsparse.base import cache
from structsparse.corpora.columns import Sentences
from structsparse.features.keys import Bags, FeatureIndex

WORTH = 10_000_000  # with fewer feature occurrences, nothing is cached: computing is as fast as reading


def indexed(
    parts: Mapping[str, Sentences],
    templates: Sequence,
    min_count: int,
    megabytes: int,
    kind: type[FeatureIndex],
    **options: int,
) -> tuple[FeatureIndex, dict[str, Bags], list[str]]:
    """Prepared features: the index of train, the active weight rows in train, dev and test, and notes for the user.

    `kind` is the class of the feature index (for tokens or for arcs); `options` are passed to its method `fit`. Large
    results are cached on disk."""
    cache.check_megabytes(megabytes)
    notes: list[str] = []

    def make() -> dict[str, np.ndarray]:
        """Compute the prepared features of the corpus, as the arrays of a cache entry."""
        return _as_arrays(*_made(parts, templates, min_count, kind, options))

    if len(templates) * sum(kind.places(sentences) for sentences in parts.values()) < WORTH:
        arrays = make()
    else:
        key = _key(parts, templates, min_count, kind, options)
        arrays = cache.load_or_make(key, make, megabytes, notes.append)
    return *_from_arrays(arrays, parts, templates, kind), notes


def _made(
    parts: Mapping[str, Sentences], templates: Sequence, min_count: int, kind: type[FeatureIndex], options: Mapping
) -> tuple[FeatureIndex, dict[str, Bags]]:
    """Compute the prepared features of a corpus: the index of train, and the active rows in train, dev and test."""
    index = kind.fit(parts["train"], templates, min_count, **options)
    return index, {part: index.bags(sentences) for part, sentences in parts.items()}


def _as_arrays(index: FeatureIndex, bags: Mapping[str, Bags]) -> dict[str, np.ndarray]:
    """Convert prepared features (feature index and bags of active rows) to the arrays of a cache entry."""
    arrays = {"offsets": index.offsets, "keys": index.keys, "rows": index.rows}
    if index.lengths is not None:
        arrays["lengths"] = index.lengths
    for part, of_part in bags.items():
        arrays |= {f"{part}.ids": of_part.ids, f"{part}.offsets": of_part.offsets}
    return arrays


def _from_arrays(
    arrays: Mapping[str, np.ndarray], parts: Mapping[str, Sentences], templates: Sequence, kind: type[FeatureIndex]
) -> tuple[FeatureIndex, dict[str, Bags]]:
    """Restore prepared features (feature index and bags of active rows) from the arrays of a cache entry."""
    index = kind(tuple(templates), arrays["offsets"], arrays["keys"], arrays["rows"], arrays.get("lengths"))
    return index, {part: Bags(arrays[f"{part}.ids"], arrays[f"{part}.offsets"]) for part in parts}


def _key(
    parts: Mapping[str, Sentences],
    templates: Sequence,
    min_count: int,
    kind: type[FeatureIndex],
    options: Mapping[str, int] | None = None,
) -> str:
    """The cache key of prepared features: a hash of the corpus, the templates, the options and the source code."""
    used = {"word"}.union(*(kind.columns_of(template) for template in templates))
    about = [kind.__name__, dict(options or {}), min_count, [template.name for template in templates]]
    arrays = []
    for part, sentences in parts.items():
        columns = {name: column for name, column in sentences.columns.items() if name in used}
        about.append([part, len(sentences), sentences.tokens, {name: c.values for name, c in columns.items()}])
        arrays += [sentences.offsets, *(column.codes for column in columns.values())]
    return cache.key(about, arrays, kind.code_files())
