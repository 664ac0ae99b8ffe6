"""A classifier as a folder: `model.json` has its classes and how it reads text, `weights.safetensors` its words and
their weights.

Words that no weight needs are left out, but where documents are scaled to one length, which all of them decide.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.numpy
from scipy import sparse

from structsparse.artifacts.folder import (
    COMMON,
    DESCRIPTION,
    WEIGHTS,
    Fields,
    blaming,
    check_fields,
    read_tensors,
    write,
)
from structsparse.artifacts.tables import packed, packed_words, unpacked, unpacked_words
from structsparse.base.errors import UserError
from structsparse.corpora.documents import Reading
from structsparse.features.words import WEIGHTINGS
from structsparse.losses.pointwise import Logistic, Squared, SquaredHinge
from structsparse.tasks.textcat.model import outputs_of
from structsparse.tasks.textcat.predictor import Classifier, bag_of

KIND = "classifier"  # the value of `kind` in model.json
LOSSES = tuple(loss.kind for loss in (Logistic, Squared, SquaredHinge))
_MOST = np.iinfo(np.int32).max  # words


def save(folder: Path, model: Classifier) -> int:
    """Write a classifier, whole or not at all, in float32; the bytes of the folder."""
    layout, weighting = model.bag.layout, model.bag.weighting
    tensors = {"words": packed_words(layout.words), **packed("table", _single(folder, model.table))}
    tensors["bias"] = _single(folder, model.bias)
    if weighting.kind == "tfidf":
        tensors["factors"] = _single(folder, weighting.factors)
    if layout.extra:
        members = sparse.csr_array(model.bag.members)
        tensors |= {"members.offsets": members.indptr.astype(np.int64), "members.ids": members.indices.astype(np.int32)}
    description = {
        "kind": KIND,
        "classes": None if model.classes is None else list(model.classes),
        "loss": model.loss,
        "reading": asdict(model.reading),
        "weighting": weighting.kind,
        "normalize": weighting.normalize,
        "extra": layout.extra,
        "words": len(layout.words),
    }
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return write(folder, description, safetensors.numpy.save(tensors))


def load(folder: Path, description: dict) -> Classifier:
    """Read a classifier that `save` has written; errors name the damaged file and the reason."""
    with blaming(folder / DESCRIPTION):
        check_fields(description, _FIELDS)
        reading = Reading(**description["reading"])
        extra = description["extra"]
        classes = None if description["classes"] is None else tuple(description["classes"])
    with blaming(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        outputs, words = outputs_of(classes), unpacked_words(tensors, description["words"])
        plain = len(words) - extra
        if plain < 0 or len({*words[:plain]}) != plain:
            raise UserError(f"{len(words):,} words, {extra:,} of them made of others: expected no word twice")
        table = unpacked(tensors, "table", (len(words),) if outputs == 1 else (len(words), outputs))
        if not np.isfinite(table).all():
            raise UserError("table holds a number that is NaN or infinite")
        bias = _taken(tensors, "bias", np.float32, (outputs,))
        tfidf = description["weighting"] == "tfidf"
        factors = _taken(tensors, "factors", np.float32, (len(words),)) if tfidf else np.ones(len(words))
        members = _members(tensors, plain, extra) if extra else None
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in a classifier")
    bag = bag_of(words, factors.astype(np.float64), description["weighting"], description["normalize"], extra, members)
    return Classifier(bag, table, bias, classes, reading, description["loss"])


def _members(tensors: dict, plain: int, extra: int) -> sparse.csr_array:
    """[words, extra], ones where a further feature is a sum over a word"""
    offsets = _taken(tensors, "members.offsets", np.int64, (plain + 1,))
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise UserError("members.offsets fall, expected 0 and then where the features of each word end")
    ids = _taken(tensors, "members.ids", np.int32, (int(offsets[-1]),))
    if len(ids) and not 0 <= ids.min() <= ids.max() < extra:
        raise UserError(f"members.ids holds {ids.max()}, expected 0 to {extra - 1}")
    return sparse.csr_array((np.ones(len(ids), np.int64), ids, offsets), (plain, extra))


def _taken(tensors: dict, name: str, kind, shape: tuple[int, ...]) -> np.ndarray:
    if name not in tensors:
        raise UserError(f"tensor {name} is missing")
    array = tensors.pop(name)
    if array.dtype != kind or array.shape != shape:
        raise UserError(f"tensor {name} is {array.dtype} {array.shape}, expected {np.dtype(kind)} {shape}")
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds a number that is NaN or infinite")
    return array


def _single(folder: Path, numbers: np.ndarray) -> np.ndarray:
    """In float32, which must hold them."""
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if not np.isfinite(single).all():
        raise UserError(f"{folder}: the model has a weight that is NaN, infinite or too large, expected numbers")
    return single


def _strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(string, str) for string in value)


def _is_reading(value: object) -> bool:
    plain = asdict(Reading())
    if not isinstance(value, dict) or {*value} != {*plain}:
        return False
    return all(type(value[name]) is type(default) for name, default in plain.items())


def _are_classes(value: object) -> bool:
    return value is None or (_strings(value) and len({*value}) == len(value) >= 2)


_FIELDS: Fields = COMMON | {
    "kind": (lambda value: value == KIND, f'"{KIND}"'),
    "classes": (_are_classes, "null or distinct strings, at least two"),
    "loss": (lambda value: value in LOSSES, f"one of {', '.join(LOSSES)}"),
    "reading": (_is_reading, f"an object with {', '.join(asdict(Reading()))}"),
    "weighting": (lambda value: value in WEIGHTINGS, f"one of {', '.join(WEIGHTINGS)}"),
    "normalize": (lambda value: type(value) is bool, "true or false"),
    "extra": (lambda value: type(value) is int and 0 <= value < _MOST, "a number"),
    "words": (lambda value: type(value) is int and 0 <= value < _MOST, "a number"),
}
