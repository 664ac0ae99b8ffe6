"""The index of a corpus and the bags of its parts, made once for all runs that ask for the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from structsparse.base import cache
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences
from structsparse.features import attributes
from structsparse.features import keys as index
from structsparse.features.keys import Bags, FeatureIndex, Rows
from structsparse.kernels.features import arc_keys, keys
from structsparse.tasks.parsing.features import index as arcs
from structsparse.tasks.parsing.features import templates as arc_templates
from structsparse.tasks.tagging.features import templates

WORTH = 10_000_000  # occurrences from which on making them takes longer than looking for them, and a tenth of a second
_CODE = (attributes, index, templates, keys, arcs, arc_templates, arc_keys)  # what decides, beside the arguments


def indexed(
    parts: Mapping[str, Sentences],
    wanted: Sequence,
    min_count: int,
    megabytes: int = 0,
    kind: type[Rows] = FeatureIndex,
    **how: int,
) -> tuple[Rows, dict[str, Bags], list[str]]:
    """The features of the part `train`, the bags of all parts, and what the user should be told. `kind` is the index,
    of tokens or of arcs, and `how` what its `fit` asks for besides.

    Of all that was ever made, up to so many megabytes are kept under the cache directory."""
    check_megabytes(megabytes)
    occurrences = len(wanted) * sum(kind.places(sentences) for sentences in parts.values())
    if megabytes == 0 or occurrences < WORTH:
        return *_made(parts, wanted, min_count, kind, how), []
    key, notes = _key(parts, wanted, min_count, kind, how), []
    try:
        if (arrays := cache.load(key)) is not None:
            return *_from_arrays(arrays, parts, wanted, kind), []
    except cache.Damaged as damaged:
        notes.append(f"cache: {damaged}; prepared anew")
    made = _made(parts, wanted, min_count, kind, how)
    try:
        cache.store(key, _as_arrays(*made), megabytes << 20)
    except OSError as error:
        place = error.filename2 or error.filename or cache.folder()
        notes.append(f"cache: {place} cannot be written ({error.strerror}); the next run prepares anew")
    return *made, notes


def check_megabytes(given: int) -> None:
    if type(given) not in (int, bool) or given is True or given < 0:
        raise UserError(f"cache is {given}, expected how many megabytes of prepared corpora to keep, 0 for none")


def _made(parts: Mapping[str, Sentences], wanted: Sequence, min_count: int, kind: type[Rows], how: Mapping):
    features = kind.fit(parts["train"], wanted, min_count, **how)
    return features, {part: features.bags(sentences) for part, sentences in parts.items()}


def _as_arrays(features: Rows, bags: Mapping[str, Bags]) -> dict[str, np.ndarray]:
    arrays = {"offsets": features.offsets, "keys": features.keys, "rows": features.rows}
    if features.lengths is not None:
        arrays["lengths"] = features.lengths
    for part, own in bags.items():
        arrays |= {f"{part}.ids": own.ids, f"{part}.offsets": own.offsets}
    return arrays


def _from_arrays(arrays: Mapping[str, np.ndarray], parts: Mapping[str, Sentences], wanted: Sequence, kind: type[Rows]):
    features = kind(tuple(wanted), arrays["offsets"], arrays["keys"], arrays["rows"], arrays.get("lengths"))
    return features, {part: Bags(arrays[f"{part}.ids"], arrays[f"{part}.offsets"]) for part in parts}


def _key(
    parts: Mapping[str, Sentences], wanted: Sequence, min_count: int, kind: type[Rows] = FeatureIndex, how: Mapping = {}
) -> str:
    """Changes with everything that can change the outcome, and with the code that makes it."""
    digest = blake2b(digest_size=16)
    used = {"word"}.union(*(kind.columns_of(template) for template in wanted))
    about = [cache.FORMAT, kind.__name__, dict(how), min_count, [template.name for template in wanted]]
    for part, sentences in parts.items():
        columns = {name: c for name, c in sentences.columns.items() if name in used}
        about.append([part, len(sentences), sentences.tokens, {name: c.values for name, c in columns.items()}])
        for array in (sentences.offsets, *(column.codes for column in columns.values())):
            digest.update(np.ascontiguousarray(array))
    digest.update(json.dumps(about).encode())
    for module in _CODE:
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()
