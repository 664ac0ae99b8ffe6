"""Lossless coding of weight tables as tensors of an artifact: positions and values of nonzero entries separately.

Several encodings of a table are tried, including the plain float32 array, and the smallest is chosen."""

from __future__ import annotations

import math

import numpy as np

from structsparse.artifacts.coding import (
    WIDEST,
    bits_of,
    decode_symbols,
    decode_with_width,
    encode_symbols,
    encode_with_width,
)
from structsparse.artifacts.folder import take, take_bytes
from structsparse.base.errors import UserError

_HEADER = 66  # bytes of the header of a tensor in a safetensors file, besides the name of the tensor
_WIDEST_CODE = 10  # maximum number of bits of an integer code that replaces a value
_SAMPLE = 1 << 14  # size of the sample of values from which the number of distinct values is estimated
_WIDEST_CHAIN = 9  # maximum number of bits of a label that is coded with the previous label as context


def encode_table(name: str, table: np.ndarray) -> dict[str, np.ndarray]:
    """Artifact tables: encode a weight table as tensors, by the encoding with the fewest bytes.

    `table` is a float32 array of shape [rows, labels] or [rows]. The encodings are:

    * the plain array
    * the nonzero entries, row by row
    * the nonzero entries of the distinct rows, and for each row the index of its distinct row"""
    flat = table.reshape(len(table), math.prod(table.shape[1:]))
    plain = {name: np.ascontiguousarray(table)}
    if flat.shape[1] == 1 and flat.all() and _too_many(flat[:, 0]):
        return plain  # other encodings would not be smaller
    encodings = [plain]
    if table.size and flat.shape[1] < 1 << WIDEST:
        encodings.append(_encode_rows(name, flat))
        distinct, numbers = _distinct(flat) if flat.shape[1] > 1 else (flat, None)
        if len(distinct) < min(len(flat), 1 << WIDEST):
            encodings.append({f"{name}.rows": encode_with_width(numbers), **_encode_rows(name, distinct)})
    return min(encodings, key=_file_bytes)


def decode_table(tensors: dict, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Artifact tables: decode the weight table that `encode_table` has encoded (float32 array of shape `shape`).

    The tensors of the table are removed from the dictionary `tensors`."""
    if name in tensors or not any(stored.startswith(f"{name}.") for stored in tensors):
        return take(tensors, name, ["float32"], shape)
    rows, labels = shape[0], math.prod(shape[1:])
    if f"{name}.rows" not in tensors:
        return _decode_rows(tensors, name, rows, labels).reshape(shape)
    numbers = decode_with_width(tensors, f"{name}.rows", rows)
    distinct = _decode_rows(tensors, name, int(numbers.max(initial=-1)) + 1, labels)
    return distinct[numbers].reshape(shape)


def _file_bytes(tensors: dict[str, np.ndarray]) -> int:
    """Artifact tables: the bytes that tensors take in a safetensors file, including their headers."""
    return sum(array.nbytes + len(name) + _HEADER for name, array in tensors.items())


# --- rows


def _distinct(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Artifact tables: the distinct rows of a weight table, the most frequent first.

    The second result is, for each row of the table, the index of its distinct row."""
    plain = np.ascontiguousarray(flat + np.float32(0))  # turns -0 into 0
    as_items = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1]))).ravel()
    _, first, numbers, counts = np.unique(as_items, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -counts))
    return plain[first[order]], np.argsort(order)[numbers.ravel()]


def _encode_rows(name: str, table: np.ndarray) -> dict[str, np.ndarray]:
    """Artifact tables: encode the nonzero entries of a weight table as tensors, row by row.

    The tensors are the number of nonzero entries in each row, the labels (columns) of these entries, and the values."""
    rows, labels = np.nonzero(table)
    counts = np.bincount(rows, minlength=len(table))
    contexts, chained, width = _label_contexts(counts, table.shape[1])
    return {
        f"{name}.counts": encode_symbols(counts, bits_of(table.shape[1])),
        **({f"{name}.labels": encode_symbols(labels, width, contexts, chained)} if width else {}),
        **_encode_values(name, table[rows, labels], _value_contexts(counts)),
    }


def _decode_rows(tensors: dict, name: str, rows: int, labels: int) -> np.ndarray:
    """Artifact tables: decode the weight table that `_encode_rows` has encoded (float32, shape [rows, labels])."""
    counts = _symbols(tensors, f"{name}.counts", bits_of(labels), rows)
    if (counts > labels).any():
        raise UserError(f"{name}.counts holds {counts.max()}, expected 0 to {labels}")
    contexts, chained, width = _label_contexts(counts, labels)
    codes = np.zeros_like(contexts)
    if width:
        codes = _symbols(tensors, f"{name}.labels", width, len(contexts), contexts, chained)
    if (codes >= labels).any():
        raise UserError(f"{name}.labels holds {codes.max()}, expected 0 to {labels - 1}, one of {labels} labels")
    places = np.repeat(np.arange(rows) * labels, counts) + codes
    if (places[1:] <= places[:-1]).any():
        raise UserError(f"{name}.labels does not ascend within every row")
    table = np.zeros(rows * labels, np.float32)
    table[places] = _decode_values(tensors, name, _value_contexts(counts))
    return table.reshape(rows, labels)


def _symbols(tensors: dict, name: str, width: int, count: int, *contexts: np.ndarray) -> np.ndarray:
    """Artifact tables: decode the integers of one tensor of a weight table (int64 array of shape [count])."""
    return decode_symbols(take_bytes(tensors, name), name, width, count, *contexts).astype(np.int64)


def _label_contexts(counts: np.ndarray, labels: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Artifact tables: the coding context of the label (column) of each nonzero entry of a weight table.

    The context depends on the number of nonzero entries in the row. Unless there are very many labels, it also depends
    on the previous label in the row. Returns the contexts, whether each context includes the previous label, and the
    number of bits of a label."""
    width = bits_of(labels - 1)
    sizes = np.repeat(counts, counts)
    chained = np.ones(len(sizes), bool)
    chained[(np.cumsum(counts) - counts)[counts > 0]] = False
    if width > _WIDEST_CHAIN:
        return np.minimum(sizes, 3) - 1, np.zeros(len(sizes), bool), width
    return (np.minimum(sizes, 3) - 1) * (1 + (1 << width)), chained, width


def _value_contexts(counts: np.ndarray) -> np.ndarray:
    """Artifact tables: the coding context of the value of each nonzero entry of a weight table.

    The context is the number of other nonzero entries in the same row; larger numbers than 3 count as 3."""
    return np.minimum(np.repeat(counts, counts), 4) - 1


# --- values


def _encode_values(name: str, values: np.ndarray, contexts: np.ndarray) -> dict[str, np.ndarray]:
    """Artifact tables: encode the nonzero values of a weight table as tensors, by the encoding with the fewest bytes.

    The possible encodings are multiples of a step, codes of the distinct values, and the plain values."""
    plain = {f"{name}.values": values}
    if _too_many(values):
        return plain
    encodings = [plain]
    step = step_of(values)
    if step is not None:
        multiples = np.rint(values / step).astype(np.int64)
        signed = 2 * np.abs(multiples) - (multiples > 0)
        codes = encode_with_width(signed, contexts)
        encodings.append({f"{name}.codes": codes, f"{name}.step": np.array([step], np.float32)})
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) <= min(len(values) // 2, 1 << _WIDEST_CODE):
        codes = encode_with_width(codes.ravel(), contexts)
        encodings.append({f"{name}.codes": codes, f"{name}.values": distinct})
    return min(encodings, key=_file_bytes)


def _too_many(values: np.ndarray) -> bool:
    """Artifact tables: whether a sample of the values has too many distinct values to replace them by codes."""
    return len(np.unique(values[:_SAMPLE])) > 1 << _WIDEST_CODE


def _decode_values(tensors: dict, name: str, contexts: np.ndarray) -> np.ndarray:
    """Artifact tables: decode the values that `_encode_values` has encoded (float32 array of shape [entries])."""
    entries = len(contexts)
    if f"{name}.codes" not in tensors:
        return take(tensors, f"{name}.values", ["float32"], (entries,))
    if f"{name}.step" in tensors:
        step = take(tensors, f"{name}.step", ["float32"], (1,))
        signed = decode_with_width(tensors, f"{name}.codes", entries, contexts)
        multiples = np.where(signed & 1, (signed + 1) >> 1, -(signed >> 1))
        return multiples.astype(np.float32) * step
    if f"{name}.values" not in tensors:
        raise UserError(f"tensor {name}.values is missing")
    distinct = take(tensors, f"{name}.values", ["float32"], tensors[f"{name}.values"].shape[:1])
    codes = decode_with_width(tensors, f"{name}.codes", entries, contexts)
    if (codes >= len(distinct)).any():
        raise UserError(f"{name}.codes holds {codes.max()}, expected 0 to {len(distinct) - 1}")
    return distinct[codes]


def step_of(values: np.ndarray) -> np.float32 | None:
    """Artifact tables: the largest step of which all values are exact, small multiples; None if there is none."""
    if not len(values) or not np.isfinite(values).all() or not values.any():
        return None
    sizes = np.abs(values[values != 0]).astype(np.float64)
    unit = np.spacing(np.float32(sizes.min()))  # float32's spacing at the smallest value divides all values
    if sizes.max() / unit >= 2**53:
        return None
    step = np.gcd.reduce((sizes / np.float64(unit)).astype(np.int64)) * np.float64(unit)
    small = sizes.max() / step < 1 << (_WIDEST_CODE - 1)
    return np.float32(step) if small and np.float32(step) == step else None
