"""The index of a corpus and the bags of its parts, made once for all runs that ask for the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from structsparse.corpora import cache
from structsparse.corpora.columns import Sentences
from structsparse.errors import UserError
from structsparse.features import attributes, index, templates
from structsparse.features.index import Bags, FeatureIndex
from structsparse.features.templates import Template
from structsparse.kernels import keys

WORTH = 10_000_000  # occurrences from which on making them takes longer than looking for them, and a tenth of a second
_CODE = (attributes, index, templates, keys)  # what decides the outcome, beside the arguments


def indexed(
    parts: Mapping[str, Sentences], wanted: Sequence[Template], min_count: int, megabytes: int = 0
) -> tuple[FeatureIndex, dict[str, Bags], list[str]]:
    """The features of the part `train`, the bags of all parts, and what the user should be told.

    Of all that was ever made, up to so many megabytes are kept under the cache directory."""
    if type(megabytes) not in (int, bool) or megabytes is True or megabytes < 0:
        raise UserError(f"cache is {megabytes}, expected how many megabytes of prepared corpora to keep, 0 for none")
    occurrences = len(wanted) * sum(sentences.tokens for sentences in parts.values())
    if megabytes == 0 or occurrences < WORTH:
        return *_made(parts, wanted, min_count), []
    key, notes = _key(parts, wanted, min_count), []
    try:
        if (arrays := cache.load(key)) is not None:
            return *_from_arrays(arrays, parts, wanted), []
    except cache.Damaged as damaged:
        notes.append(f"cache: {damaged}; prepared anew")
    made = _made(parts, wanted, min_count)
    try:
        cache.store(key, _as_arrays(*made), megabytes << 20)
    except OSError as error:
        place = error.filename2 or error.filename or cache.folder()
        notes.append(f"cache: {place} cannot be written ({error.strerror}); the next run prepares anew")
    return *made, notes


def _made(parts: Mapping[str, Sentences], wanted: Sequence[Template], min_count: int):
    features = FeatureIndex.fit(parts["train"], wanted, min_count)
    return features, {part: features.bags(sentences) for part, sentences in parts.items()}


def _as_arrays(features: FeatureIndex, bags: Mapping[str, Bags]) -> dict[str, np.ndarray]:
    arrays = {"offsets": features.offsets, "keys": features.keys, "rows": features.rows}
    for part, own in bags.items():
        arrays |= {f"{part}.ids": own.ids, f"{part}.offsets": own.offsets}
    return arrays


def _from_arrays(arrays: Mapping[str, np.ndarray], parts: Mapping[str, Sentences], wanted: Sequence[Template]):
    features = FeatureIndex(tuple(wanted), arrays["offsets"], arrays["keys"], arrays["rows"])
    return features, {part: Bags(arrays[f"{part}.ids"], arrays[f"{part}.offsets"]) for part in parts}


def _key(parts: Mapping[str, Sentences], wanted: Sequence[Template], min_count: int) -> str:
    """Changes with everything that can change the outcome, and with the code that makes it."""
    digest = blake2b(digest_size=16)
    used = {name for template in wanted for name, _ in template.atoms}
    about = [cache.FORMAT, min_count, [template.name for template in wanted]]
    for part, sentences in parts.items():
        columns = {name: c for name, c in sentences.columns.items() if name in {*used, "word"}}
        about.append([part, len(sentences), sentences.tokens, {name: c.values for name, c in columns.items()}])
        for array in (sentences.offsets, *(column.codes for column in columns.values())):
            digest.update(np.ascontiguousarray(array))
    digest.update(json.dumps(about).encode())
    for module in _CODE:
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()
