"""The folder of a model of any kind: `model.json` says what it is, `weights.safetensors` holds its numbers.

It is written whole or not at all, nothing in it is ever executed, and all of it is checked before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from structsparse import __version__
from structsparse.artifacts.tables import fits
from structsparse.base.errors import UserError

FORMAT = 2
LANGUAGE_MODEL = "language model"  # what `kind` says of one; a tagger has no such field
CLASSIFIER = "classifier"
PARSER = "parser"
KEYS = "counts of features and bits of their keys"
DESCRIPTION, WEIGHTS = "model.json", "weights.safetensors"


# --- reading


def read_description(folder: Path) -> dict:
    """What `model.json` says, of whichever kind."""
    with blaming(folder / DESCRIPTION):
        return _known((folder / DESCRIPTION).read_bytes())


def _known(text: bytes) -> dict:
    try:
        known = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"no readable JSON ({error})") from None
    known = known if isinstance(known, dict) else {}
    written = known.get("format")
    if type(written) is int and written > FORMAT:
        raise UserError(f"written by a newer structsparse (format {written}); this one reads format {FORMAT}")
    if type(written) is int and 0 < written < FORMAT:
        older = f"written by an older structsparse (format {written}); this one reads format {FORMAT}"
        raise UserError(f"{older}: train it again")
    return known


def read_tensors(weights: bytes, sha256: str) -> dict[str, np.ndarray]:
    found = hashlib.sha256(weights).hexdigest()
    if found != sha256:
        raise UserError(f"damaged, or of another model: SHA-256 {found[:12]}..., {DESCRIPTION} says {sha256[:12]}...")
    try:
        return safetensors.numpy.load(weights)
    except (safetensors.SafetensorError, KeyError) as error:  # KeyError: a kind of number that numpy lacks
        raise UserError(f"no readable safetensors file ({error})") from None


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Faults found here are faults of this file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); it is a part of every model") from None


# --- what fields hold


Fields = dict[str, tuple[Callable[[object], bool], str]]  # what fits a field, and what is expected of it
COMMON: Fields = {
    "format": (lambda value: type(value) is int and value > 0, "a number"),
    "structsparse": (lambda value: isinstance(value, str), "a version"),
    "sha256": (lambda value: isinstance(value, str), f"the checksum of {WEIGHTS}"),
}


def check_fields(known: dict, fields: Fields, optional: Collection[str] = ()) -> None:
    """Every field there, of the kind that is expected, and no other."""
    for name in sorted(({*known} ^ {*fields}) - {*optional}):
        raise UserError(f"{name} is {'unknown' if name in known else 'missing'}, expected {', '.join(fields)}")
    for name, (fitting, expected) in fields.items():
        if name in known and not fitting(known[name]):
            raise UserError(f"{name} is {json.dumps(known[name]):.60}, expected {expected}")


def are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(string, str) for string in value)


def each_is(value: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(fits, value.values()))


def are_keys(value: object) -> bool:
    """How many features each template has, and the bits of their keys."""
    return each_is(value, lambda pair: isinstance(pair, list) and len(pair) == 2 and fits(*pair))


# --- writing


def write(folder: Path, description: dict, weights: bytes) -> int:
    """Write a model of any kind whole or not at all; the bytes of the folder."""
    checksum = hashlib.sha256(weights).hexdigest()
    fields = {"format": FORMAT, "structsparse": __version__, "sha256": checksum, **description}
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
    files = {DESCRIPTION: f"{{\n{lines}\n}}\n".encode(), WEIGHTS: weights}
    _write_whole(folder, files)
    return sum(map(len, files.values()))


def _write_whole(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write beside, flush to the disk, rename. A failure leaves what was there before, and says so."""
    try:
        folder = folder.resolve()  # a link to a model stays a link
        folder.parent.mkdir(parents=True, exist_ok=True)
        strangers = {path.name for path in folder.iterdir()} - {*files} if folder.exists() else set()
        if strangers:
            raise UserError(f"{folder} holds {min(strangers)}; only a model is replaced by a model")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".model.", ignore_cleanup_errors=True) as beside:
            new = Path(beside, "new")
            new.mkdir()
            for name, content in files.items():
                with (new / name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            _exchange(new, folder, Path(beside, "old"))
    except OSError as error:
        raise UserError(f"{folder} could not be written ({error.strerror}); what was there before is kept") from error


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """Rename new to folder, and what was there to old; both or neither."""
    try:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)


# --- sizes


def parts(folder: Path) -> dict[str, int]:
    """The bytes of a model of any kind by what they tell: `index` which features there are, `labels` which labels they
    have a weight for, `values` the weights, `description` all the rest."""
    tensors = safetensors.numpy.load((folder / WEIGHTS).read_bytes())
    found = dict.fromkeys(("index", "labels", "values", "description"), 0)
    for name, array in tensors.items():
        found[_part(name)] += array.nbytes
    found["description"] = sum(path.stat().st_size for path in folder.iterdir()) - sum(found.values())
    return found


def _part(name: str) -> str:
    if name.endswith(_INDEX) or name.startswith(_INDEX):
        return "index"
    return "labels" if name.endswith(_LABELS) else "values"


_INDEX = ("keys", "words", "nodes.", "members.", "entries.rank")
_LABELS = (".counts", ".labels", ".rows", "entries.same")
