"""The artifact of drift models: `model.json` names periods and features, `weights.safetensors` has trajectories.

Only living features are stored. A constant feature has one weight and one deviation, a drifting one a chain of each."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.numpy

from structsparse.artifacts.folder import (
    COMMON_FIELDS,
    DESCRIPTION,
    WEIGHTS,
    Fields,
    TensorParts,
    are_strings,
    as_float32,
    check_fields,
    each_is,
    errors_in,
    read_tensors,
    take,
    write_model,
)
from structsparse.base.errors import UserError
from structsparse.corpora.documents import TOKENS, DocumentReading
from structsparse.tasks.temporal.predictor import DriftPredictor

KIND = "drift model"  # the value of the field `kind` in model.json
LOSSES = ("squared", "logistic", "poisson", "multinomial")
TENSOR_PARTS = TensorParts(index=("is_word", "factors", "background"))


def _distinct(value: object) -> bool:
    """Drift model artifact: whether a field is a list of distinct strings."""
    return are_strings(value) and len({*value}) == len(value)


def _is_reading(value: object) -> bool:
    """Drift model artifact: whether the field `reading` (how texts are split into words) is valid."""
    fine = isinstance(value, dict) and {*value} == {*asdict(DocumentReading())}
    return fine and value["tokens"] in TOKENS and type(value["lower"]) is bool and isinstance(value["language"], str)


_FIELDS: Fields = COMMON_FIELDS | {
    "kind": (lambda value: value == KIND, f'"{KIND}"'),
    "loss": (lambda value: value in LOSSES, f"one of {', '.join(LOSSES)}"),
    "classes": (lambda value: value is None or (_distinct(value) and len(value) == 2), "two classes, or null"),
    "weighting": (lambda value: value in ("counts", "binary", "log"), "counts, binary or log"),
    "reading": (_is_reading, f"an object with {', '.join(asdict(DocumentReading()))}"),
    "columns": (
        lambda value: each_is(value, lambda name: isinstance(name, str)) and {*value} == {"text", "response"},
        "names of text and response",
    ),
    "bias": (lambda value: isinstance(value, int | float), "a number"),
    "noise": (lambda value: isinstance(value, int | float) and value > 0, "a positive number"),
    "periods": (lambda value: _distinct(value) and len(value) > 1, "distinct periods"),
    "features": (_distinct, "distinct names"),
    "words": (_distinct, "distinct words"),
}


def save(folder: Path, model: DriftPredictor) -> int:
    """Drift model artifact: write the model folder atomically, with float32 numbers; returns its size in bytes."""
    drifting = model.drifting
    tensors = {"drifting": drifting, "is_word": model.is_word, "factors": model.factors, "centre": model.centre}
    for name, table in (("weights", model.table), ("deviations", model.deviations)):
        tensors[f"{name}.drifting"] = as_float32(folder, table[:, drifting])
        tensors[f"{name}.constant"] = as_float32(folder, table[0, ~drifting])
    if model.background is not None:
        tensors["background"] = as_float32(folder, model.background)
    description = {
        "kind": KIND,
        "loss": model.loss,
        "classes": None if model.classes is None else list(model.classes),
        "weighting": model.weighting,
        "reading": asdict(model.reading),
        "columns": dict(model.columns),
        "bias": model.bias,
        "noise": model.noise,
        "periods": list(model.periods),
        "features": list(model.names),
        "words": list(model.words),
    }
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return write_model(folder, description, safetensors.numpy.save(tensors))


def load(folder: Path, description: dict) -> DriftPredictor:
    """Read the artifact of a drift model, which is a folder written by `save`; every part is checked."""
    with errors_in(folder / DESCRIPTION):
        check_fields(description, _FIELDS)
    periods, names, words = (tuple(description[name]) for name in ("periods", "features", "words"))
    with errors_in(folder / WEIGHTS):
        tensors = read_tensors((folder / WEIGHTS).read_bytes(), description["sha256"])
        drifting, is_word = (take(tensors, name, ["bool"], (len(names),)) for name in ("drifting", "is_word"))
        factors, centre = (_finite(tensors, name, (len(names),)) for name in ("factors", "centre"))
        table, deviations = (_table(tensors, name, len(periods), drifting) for name in ("weights", "deviations"))
        background = _finite(tensors, "background", (len(words),)) if words else None
        if tensors:
            raise UserError(f"tensor {min(tensors)} has no place in a drift model")
    return DriftPredictor(
        periods, names, is_word, drifting, table, deviations, factors, centre,
        float(description["bias"]), float(description["noise"]), description["loss"], description["weighting"],
        DocumentReading(**description["reading"]), description["columns"],
        None if description["classes"] is None else tuple(description["classes"]), words, background,
    )  # fmt: skip


def _table(tensors: dict, name: str, periods: int, drifting: np.ndarray) -> np.ndarray:
    """Drift model artifact: read the chains of all features, [periods, features]."""
    chains = _finite(tensors, f"{name}.drifting", (periods, int(drifting.sum())))
    result = np.zeros((periods, len(drifting)), np.float32)
    result[:, drifting] = chains
    result[:, ~drifting] = _finite(tensors, f"{name}.constant", (int((~drifting).sum()),))
    return result


def _finite(tensors: dict, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Drift model artifact: read float32 numbers, which must be finite."""
    array = take(tensors, name, ["float32"], shape)
    if not np.isfinite(array).all():
        raise UserError(f"tensor {name} holds a number that is NaN or infinite")
    return array
