"""The artifact folder of a trained model: `model.json` describes the model, `weights.safetensors` holds its weights.

The folder is written completely or not at all. Nothing in the folder is executed, and everything is checked before
use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from structsparse.base.errors import UserError
from structsparse.base.version import VERSION

FORMAT = 2  # version of the format of `model.json` that this program writes and reads
DESCRIPTION, WEIGHTS = "model.json", "weights.safetensors"


# --- reading the artifact folder


def read_description(folder: Path) -> dict:
    """Artifact folder: read the fields of `model.json` for a model of any task; checks the format version only."""
    with errors_in(folder / DESCRIPTION):
        return _parsed((folder / DESCRIPTION).read_bytes())


def model_folder(folder: Path) -> Path:
    """Artifact folder: the folder of a trained model of any task.

    The result is `folder` itself, or `folder`/model if `folder` is the folder of a training run."""
    inner = folder / "model"
    return inner if not (folder / DESCRIPTION).exists() and (inner / DESCRIPTION).exists() else folder


def _parsed(text: bytes) -> dict:
    """Artifact folder: parse the text of `model.json` to its fields; refuses older and newer format versions.

    JSON that is not an object gives no fields."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"no readable JSON ({error})") from None
    fields = fields if isinstance(fields, dict) else {}
    version = fields.get("format")
    if type(version) is int and version > FORMAT:
        raise UserError(f"written by a newer structsparse (format {version}); this one reads format {FORMAT}")
    if type(version) is int and 0 < version < FORMAT:
        older = f"written by an older structsparse (format {version}); this one reads format {FORMAT}"
        raise UserError(f"{older}: train it again")
    return fields


def read_tensors(weights: bytes, sha256: str) -> dict[str, np.ndarray]:
    """Artifact folder: read the tensors of `weights.safetensors`, after a check of the checksum in `model.json`.

    `weights` is the content of the file."""
    checksum = hashlib.sha256(weights).hexdigest()
    if checksum != sha256:
        raise UserError(
            f"damaged, or of another model: SHA-256 {checksum[:12]}..., {DESCRIPTION} says {sha256[:12]}..."
        )
    try:
        return safetensors.numpy.load(weights)
    except (safetensors.SafetensorError, KeyError) as error:  # KeyError means a dtype that numpy lacks
        raise UserError(f"no readable safetensors file ({error})") from None


@contextlib.contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Artifact folder: context manager that puts the path of a file in front of error messages about its content."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); it is a part of every model") from None


def take(tensors: dict, name: str, dtypes: Collection[str], shape: tuple[int, ...]) -> np.ndarray:
    """Artifact folder: remove a tensor from the dictionary of tensors and return it; checks dtype and shape."""
    if name not in tensors:
        raise UserError(f"tensor {name} is missing")
    array = tensors.pop(name)
    if array.dtype.name not in dtypes or array.shape != shape:
        raise UserError(f"tensor {name} is {array.dtype} {array.shape}, expected {' or '.join(dtypes)} {shape}")
    return array


def take_bytes(tensors: dict, name: str) -> np.ndarray:
    """Artifact folder: remove a tensor of encoded bytes (uint8) from the dictionary of tensors and return it."""
    if name not in tensors:
        raise UserError(f"tensor {name} is missing")
    array = tensors.pop(name)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise UserError(f"tensor {name} is {array.dtype} {array.shape}, expected bytes")
    return array


def check_weights(name: str, array: np.ndarray) -> None:
    """Artifact folder: refuse weights of a model that are NaN or plus infinity.

    Minus infinity is allowed: it forbids a label or a transition."""
    if not (array < np.inf).all():
        raise UserError(f"{name} holds a weight that is NaN or infinite, expected numbers")


def as_float32(folder: Path, numbers: np.ndarray) -> np.ndarray:
    """Artifact folder: the weights of a model as float32; refuses weights that are not finite in float32.

    `folder` is the folder of the model, for the error message."""
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if not np.isfinite(single).all():
        raise UserError(f"{folder}: the model has a weight that is NaN, infinite or too large, expected numbers")
    return single


# --- fields of `model.json`


Fields = dict[str, tuple[Callable[[object], bool], str]]  # field name -> (test of the value, expected value in words)
COMMON_FIELDS: Fields = {
    "format": (lambda value: type(value) is int and value > 0, "a number"),
    "structsparse": (lambda value: isinstance(value, str), "a version"),
    "sha256": (lambda value: isinstance(value, str), f"the checksum of {WEIGHTS}"),
}


def check_fields(description: dict, fields: Fields, optional: Collection[str] = ()) -> None:
    """Artifact folder: check that `model.json` has exactly the given fields, with acceptable values.

    Fields named in `optional` may be missing."""
    for name in sorted(({*description} ^ {*fields}) - {*optional}):
        raise UserError(f"{name} is {'unknown' if name in description else 'missing'}, expected {', '.join(fields)}")
    for name, (accepts, expected) in fields.items():
        if name in description and not accepts(description[name]):
            raise UserError(f"{name} is {json.dumps(description[name]):.60}, expected {expected}")


def are_strings(value: object) -> bool:
    """Artifact folder: whether a field of `model.json` is a list of strings."""
    return isinstance(value, list) and all(isinstance(string, str) for string in value)


def each_is(value: object, accepts: Callable[[object], bool]) -> bool:
    """Artifact folder: whether a field of `model.json` is an object whose values all pass the test `accepts`."""
    return isinstance(value, dict) and all(map(accepts, value.values()))


# --- writing the artifact folder


def write_model(folder: Path, description: dict, weights: bytes) -> int:
    """Artifact folder: write the folder of a model, completely or not at all; returns the size in bytes."""
    checksum = hashlib.sha256(weights).hexdigest()
    fields = {"format": FORMAT, "structsparse": VERSION, "sha256": checksum, **description}
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
    files = {DESCRIPTION: f"{{\n{lines}\n}}\n".encode(), WEIGHTS: weights}
    _write_folder(folder, files)
    return sum(map(len, files.values()))


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Artifact folder: write the files of a model to a temporary folder and rename it to the artifact folder.

    After a failure, the old model is still there."""
    try:
        folder = folder.resolve()  # a symbolic link to a model remains a link
        folder.parent.mkdir(parents=True, exist_ok=True)
        other_files = {path.name for path in folder.iterdir()} - {*files} if folder.exists() else set()
        if other_files:
            raise UserError(f"{folder} holds {min(other_files)}; only a folder with nothing but a model is overwritten")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".model.", ignore_cleanup_errors=True) as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            for name, content in files.items():
                with (new / name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            _swap(new, folder, Path(temporary, "old"))
    except OSError as error:
        raise UserError(f"{folder} could not be written ({error.strerror}); what was there before is kept") from error


def _swap(new: Path, folder: Path, old: Path) -> None:
    """Artifact folder: rename the folder of the old model to `old`, and the folder of the new model to `folder`.

    If the second step fails, the first step is undone."""
    try:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)


# --- sizes


@dataclass(frozen=True)
class TensorParts:
    """Artifact folder: how a size report divides tensors among the parts `index`, `labels` and `values`, by name.

    The fields are prefixes of tensor names: `index` for features, `labels` for labels. Some suffixes count as well:
    those of feature keys mean `index`, those of positions in encoded tables mean `labels`. All others are `values`."""

    index: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def part(self, tensor: str) -> str:
        """Artifact folder: the part of an artifact that a tensor belongs to: `index`, `labels` or `values`."""
        if tensor.endswith("keys") or tensor.startswith(self.index):
            return "index"
        return (
            "labels" if tensor.endswith((".counts", ".labels", ".rows")) or tensor.startswith(self.labels) else "values"
        )


def part_sizes(folder: Path, parts: TensorParts = TensorParts()) -> dict[str, int]:
    """Artifact folder: the size in bytes of each part of an artifact.

    The parts are `index` (features), `labels`, `values` and `description` (all other bytes)."""
    tensors = safetensors.numpy.load((folder / WEIGHTS).read_bytes())
    sizes = dict.fromkeys(("index", "labels", "values", "description"), 0)
    for name, array in tensors.items():
        sizes[parts.part(name)] += array.nbytes
    sizes["description"] = sum(path.stat().st_size for path in folder.iterdir()) - sum(sizes.values())
    return sizes
