"""The artifact of a text classifier: classes in `model.json`, words and weights in `weights.safetensors`.

Words without a nonzero weight are left out, unless document vectors are scaled to length 1.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.numpy
from scipy import sparse

from structsparse.artifacts.coding import decode_words, encode_words
from structsparse.artifacts.folder import (
    COMMON_FIELDS,
    DESCRIPTION,
    WEIGHTS,
    Fields,
    TensorParts,
    are_strings,
    as_float32,
    check_fields,
    errors_in,
    read_tensors,
    take,
    write_model,
)
from structsparse.artifacts.tables import decode_table, encode_table
from structsparse.base.errors import UserError
from structsparse.corpora.documents import DocumentReading
from structsparse.features.words import INVERSE, WEIGHTINGS, Weighting
from structsparse.losses.pointwise import Logistic, Squared, SquaredHinge
from structsparse.tasks.textcat.model import outputs_of
from structsparse.tasks.textcat.predictor import Classifier, bag_of

TENSOR_PARTS = TensorParts(index=("words", "members."))
KIND = "classifier"  # the value of the field `kind` in model.json
LOSSES = tuple(loss.kind for loss in (Logistic, Squared, SquaredHinge))
_MOST = np.iinfo(np.int32).max  # maximum number of words


def save(folder: Path, model: Classifier) -> int:
    """Write the artifact of a text classifier in float32, atomically; return the size of the folder in bytes."""
    layout, weighting = model.bag.layout, model.bag.weighting
    tensors = {"words": encode_words(layout.words), **encode_table("table", as_float32(folder, model.table))}
    tensors["bias"] = as_float32(folder, model.bias)
    if _has_factors(weighting):
        tensors["factors"] = as_float32(folder, weighting.factors)
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
    return write_model(folder, description, safetensors.numpy.save(tensors))


def _has_factors(weighting: Weighting) -> bool:
    """Text classifier artifact: whether the factors of words are stored; they are left out if all of them are 1."""
    return weighting.kind in INVERSE or bool((weighting.factors != 1).any())


def load(folder: Path, description: dict) -> Classifier:
    """Read the artifact of a text classifier, which is a folder written by `save`.

    If a file is damaged, the error names the file and the reason.
    """
    with errors_in(folder / DESCRIPTION):
        check_fields(description, _FIELDS)
        reading = DocumentReading(**description["reading"])
        extra = description["extra"]
        classes = None if description["classes"] is None else tuple(description["classes"])
    with errors_in(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        outputs, words = outputs_of(classes), decode_words(tensors, description["words"])
        plain = len(words) - extra
        if plain < 0 or len({*words[:plain]}) != plain:
            raise UserError(f"{len(words):,} words, {extra:,} of them extra features: expected distinct words")
        table = decode_table(tensors, "table", (len(words),) if outputs == 1 else (len(words), outputs))
        if not np.isfinite(table).all():
            raise UserError("table holds a number that is NaN or infinite")
        bias = _take_finite(tensors, "bias", np.float32, (outputs,))
        needed = description["weighting"] in INVERSE or "factors" in tensors
        factors = _take_finite(tensors, "factors", np.float32, (len(words),)) if needed else np.ones(len(words))
        members = _members(tensors, plain, extra) if extra else None
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in a classifier")
    bag = bag_of(words, factors.astype(np.float64), description["weighting"], description["normalize"], extra, members)
    return Classifier(bag, table, bias, classes, reading, description["loss"])


def _members(tensors: dict, plain: int, extra: int) -> sparse.csr_array:
    """Text classifier artifact: read the words of each extra feature, as a 0/1 matrix [words, extra features].

    An extra feature is the total count of a group of words in a document.
    """
    offsets = _take_finite(tensors, "members.offsets", np.int64, (plain + 1,))
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise UserError("members.offsets decrease, expected 0 and then the end of the features of each word")
    ids = _take_finite(tensors, "members.ids", np.int32, (int(offsets[-1]),))
    if len(ids) and not 0 <= ids.min() <= ids.max() < extra:
        raise UserError(f"members.ids holds {ids.max()}, expected 0 to {extra - 1}")
    return sparse.csr_array((np.ones(len(ids), np.int64), ids, offsets), (plain, extra))


def _take_finite(tensors: dict, name: str, kind, shape: tuple[int, ...]) -> np.ndarray:
    """Text classifier artifact: remove an array from `tensors` and return it.

    An error is raised if the type or shape is wrong, or if a number is not finite.
    """
    array = take(tensors, name, [np.dtype(kind).name], shape)
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds a number that is NaN or infinite")
    return array


def _is_reading(value: object) -> bool:
    """Text classifier artifact: whether the field `reading` (how texts are split into words) is valid."""
    plain = asdict(DocumentReading())
    if not isinstance(value, dict) or {*value} != {*plain}:
        return False
    return all(type(value[name]) is type(default) for name, default in plain.items())


def _are_classes(value: object) -> bool:
    """Text classifier artifact: whether `classes` is valid: class names, or null if numbers are predicted."""
    return value is None or (are_strings(value) and len({*value}) == len(value) >= 2)


_FIELDS: Fields = COMMON_FIELDS | {
    "kind": (lambda value: value == KIND, f'"{KIND}"'),
    "classes": (_are_classes, "null or distinct strings, at least two"),
    "loss": (lambda value: value in LOSSES, f"one of {', '.join(LOSSES)}"),
    "reading": (_is_reading, f"an object with {', '.join(asdict(DocumentReading()))}"),
    "weighting": (lambda value: value in WEIGHTINGS, f"one of {', '.join(WEIGHTINGS)}"),
    "normalize": (lambda value: type(value) is bool, "true or false"),
    "extra": (lambda value: type(value) is int and 0 <= value < _MOST, "a number"),
    "words": (lambda value: type(value) is int and 0 <= value < _MOST, "a number"),
}
