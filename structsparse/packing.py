"""Tables of weights and keys of features as tensors of a file, and back, with all that there is to check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from structsparse.errors import UserError
from structsparse.features.index import Rows

Index = TypeVar("Index", bound=Rows)
UNSIGNED = ("uint8", "uint16", "uint32")


def keep_living_(state: dict, tables: Collection[str], index: Rows) -> tuple[dict[str, int], np.ndarray]:
    """Restrict the tables to rows with a weight, in the order of the keys; features per template, and the keys."""
    alive = np.zeros(len(index), bool)
    for name in tables:
        alive |= (state[name] != 0).any(axis=1)
    living, _ = index.keep(alive)
    for name in tables:
        state[name] = state[name][alive][living.rows]
    counts = zip(living.names, np.diff(living.offsets).tolist(), strict=True)
    return {name: count for name, count in counts if count}, living.keys


def packed(name: str, table: np.ndarray) -> dict[str, np.ndarray]:
    """A table without its zeros, row after row, if that is smaller."""
    rows, labels = np.nonzero(table)
    counts = np.bincount(rows, minlength=len(table))
    found = {
        f"{name}.counts": counts.astype(np.min_scalar_type(counts.max(initial=0))),
        f"{name}.labels": labels.astype(np.min_scalar_type(table.shape[1] - 1)),
        f"{name}.values": table[rows, labels],
    }
    return found if sum(array.nbytes for array in found.values()) < table.nbytes else {name: table}


def unpacked(tensors: dict, name: str, shape: tuple[int, int]) -> np.ndarray:
    if name in tensors:
        return take(tensors, name, ["float32"], shape)
    rows, labels = shape
    counts = take(tensors, f"{name}.counts", UNSIGNED, (rows,)).astype(np.int64)
    entries = (int(counts.sum()),)
    codes = take(tensors, f"{name}.labels", UNSIGNED, entries).astype(np.int64)
    if (codes >= labels).any():
        raise UserError(f"{name}.labels holds {codes.max()}, expected 0 to {labels - 1}, one of {labels} labels")
    places = np.repeat(np.arange(rows) * labels, counts) + codes
    if (places[1:] <= places[:-1]).any():
        raise UserError(f"{name}.labels does not ascend within every row")
    table = np.zeros(rows * labels, np.float32)
    table[places] = take(tensors, f"{name}.values", ["float32"], entries)
    return table.reshape(shape)


def take(tensors: dict, name: str, dtypes: Collection[str], shape: tuple[int, ...]) -> np.ndarray:
    if name not in tensors:
        raise UserError(f"tensor {name} is missing")
    array = tensors.pop(name)
    if array.dtype.name not in dtypes or array.shape != shape:
        raise UserError(f"tensor {name} is {array.dtype} {array.shape}, expected {' or '.join(dtypes)} {shape}")
    return array


def check_numbers(name: str, array: np.ndarray) -> None:
    """Minus infinity is a number here: it forbids."""
    if not (array < np.inf).all():
        raise UserError(f"{name} holds a weight that is NaN or infinite, expected numbers")


def index_of(
    kind: type[Index], parse: Callable[[str], Sequence], templates: Mapping[str, int], tensors: dict, name: str = "keys"
) -> Index:
    """The keys of all features: `templates` says how many each of them has, `parse` what its name means."""
    offsets = np.cumsum([0, *templates.values()])
    keys = take(tensors, name, ["uint64"], (int(offsets[-1]),))
    falls = keys[1:] <= keys[:-1]
    falls[offsets[1:-1] - 1] = False  # from one template to the next they may
    if falls.any():
        raise UserError(f"the {name} do not ascend within every template")
    parsed = tuple(template for name in templates for template in parse(name))
    return kind(parsed, offsets, keys, np.arange(len(keys), dtype=np.int32))
