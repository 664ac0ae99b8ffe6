"""Tables of weights and keys of features as tensors of a file, and back, with all that there is to check.

Positions and values are told apart, each by an adaptive arithmetic coder (`kernels/coder.py`); of several ways to tell
the same the smallest is taken, the plain one included.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from structsparse.base.errors import UserError
from structsparse.features.keys import WORD, FeatureRows
from structsparse.kernels.artifacts import arithmetic_coder as coder

Index = TypeVar("Index", bound=FeatureRows)
GUARD = 32  # an unknown feature is taken for a known one once in 2^32, unless the index says otherwise
LEAST_GUARD = 4
_HEADER = 66  # bytes that safetensors says of a tensor beside its name
_WIDEST = 14  # bits of a symbol: what is learnt of longer ones costs more than it saves
_WIDEST_CODE = 10  # bits of the code of a value
_GLANCE = 1 << 14  # values
_LZMA = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 6}]}
_SWELLS = 1000  # words take at most so many times the bytes that they are packed in
_WIDEST_CHAIN = 9  # bits of labels of which each depends on the one before


# --- tables of weights


def packed(name: str, table: np.ndarray) -> dict[str, np.ndarray]:
    """A table float32 [rows, labels] or [rows], in the smallest of three ways: as it is; row by row what is not zero;
    the same of its distinct rows, and for each row which of them it is."""
    flat = table.reshape(len(table), math.prod(table.shape[1:]))
    ways = [{name: np.ascontiguousarray(table)}]
    if flat.shape[1] == 1 and flat.all() and _too_many(flat[:, 0]):
        return ways[0]  # rows would say that each lives
    if table.size and flat.shape[1] < 1 << _WIDEST:
        ways.append(_of_rows(name, flat))
        distinct, which = _distinct(flat) if flat.shape[1] > 1 else (flat, None)
        if len(distinct) < min(len(flat), 1 << _WIDEST):
            ways.append({f"{name}.rows": told_any(which), **_of_rows(name, distinct)})
    return min(ways, key=_bytes)


def unpacked(tensors: dict, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What `packed` was given, of this shape: float32"""
    if name in tensors or not any(stored.startswith(f"{name}.") for stored in tensors):
        return take(tensors, name, ["float32"], shape)
    rows, labels = shape[0], math.prod(shape[1:])
    if f"{name}.rows" not in tensors:
        return _from_rows(tensors, name, rows, labels).reshape(shape)
    which = heard_any(tensors, f"{name}.rows", rows)
    distinct = _from_rows(tensors, name, int(which.max(initial=-1)) + 1, labels)
    return distinct[which].reshape(shape)


def _bytes(tensors: dict[str, np.ndarray]) -> int:
    """Those that they take in a file, with what it says of each."""
    return sum(array.nbytes + len(name) + _HEADER for name, array in tensors.items())


def _distinct(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows, the most frequent first, and the number of each row among them."""
    plain = np.ascontiguousarray(flat + np.float32(0))  # -0 is 0
    whole = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1]))).ravel()
    _, first, which, counts = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -counts))
    return plain[first[order]], np.argsort(order)[which.ravel()]


def _of_rows(name: str, table: np.ndarray) -> dict[str, np.ndarray]:
    rows, labels = np.nonzero(table)
    counts = np.bincount(rows, minlength=len(table))
    classes, chained, width = _label_contexts(counts, table.shape[1])
    return {
        f"{name}.counts": told(counts, _width(table.shape[1])),
        **({f"{name}.labels": told(labels, width, classes, chained)} if width else {}),
        **_of_values(name, table[rows, labels], np.minimum(np.repeat(counts, counts), 4) - 1),
    }


def _from_rows(tensors: dict, name: str, rows: int, labels: int) -> np.ndarray:
    """float32 [rows, labels]"""
    counts = heard(tensors, f"{name}.counts", _width(labels), rows)
    if (counts > labels).any():
        raise UserError(f"{name}.counts holds {counts.max()}, expected 0 to {labels}")
    classes, chained, width = _label_contexts(counts, labels)
    codes = heard(tensors, f"{name}.labels", width, len(classes), classes, chained) if width else np.zeros_like(classes)
    if (codes >= labels).any():
        raise UserError(f"{name}.labels holds {codes.max()}, expected 0 to {labels - 1}, one of {labels} labels")
    places = np.repeat(np.arange(rows) * labels, counts) + codes
    if (places[1:] <= places[:-1]).any():
        raise UserError(f"{name}.labels does not ascend within every row")
    table = np.zeros(rows * labels, np.float32)
    table[places] = _from_values(tensors, name, np.minimum(np.repeat(counts, counts), 4) - 1)
    return table.reshape(rows, labels)


def _label_contexts(counts: np.ndarray, labels: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Contexts and chaining of labels: each depends on the one before it in its row, and on how many the row has. And
    the bits of a label."""
    width = _width(labels - 1)
    sizes = np.repeat(counts, counts)
    chained = np.ones(len(sizes), bool)
    chained[(np.cumsum(counts) - counts)[counts > 0]] = False
    if width > _WIDEST_CHAIN:
        return np.minimum(sizes, 3) - 1, np.zeros(len(sizes), bool), width
    return (np.minimum(sizes, 3) - 1) * (1 + (1 << width)), chained, width


# --- values


def _of_values(name: str, values: np.ndarray, contexts: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers float32 [entries] as multiples of a step, as codes into a table of the distinct ones, or as they are."""
    ways = [{f"{name}.values": values}]
    if _too_many(values):
        return ways[0]
    step = step_of(values)
    if step is not None:
        multiples = np.rint(values / step).astype(np.int64)
        signed = 2 * np.abs(multiples) - (multiples > 0)
        codes = told_any(signed, contexts)
        ways.append({f"{name}.codes": codes, f"{name}.step": np.array([step], np.float32)})
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) <= min(len(values) // 2, 1 << _WIDEST_CODE):
        codes = told_any(codes.ravel(), contexts)
        ways.append({f"{name}.codes": codes, f"{name}.values": distinct})
    return min(ways, key=_bytes)


def _too_many(values: np.ndarray) -> bool:
    """Whether the first of them show already that they have no codes: that is known before many are sorted."""
    return len(np.unique(values[:_GLANCE])) > 1 << _WIDEST_CODE


def _from_values(tensors: dict, name: str, contexts: np.ndarray) -> np.ndarray:
    entries = len(contexts)
    if f"{name}.codes" not in tensors:
        return take(tensors, f"{name}.values", ["float32"], (entries,))
    if f"{name}.step" in tensors:
        step = take(tensors, f"{name}.step", ["float32"], (1,))
        signed = heard_any(tensors, f"{name}.codes", entries, contexts)
        multiples = np.where(signed & 1, (signed + 1) >> 1, -(signed >> 1))
        return multiples.astype(np.float32) * step
    if f"{name}.values" not in tensors:
        raise UserError(f"tensor {name}.values is missing")
    distinct = take(tensors, f"{name}.values", ["float32"], tensors[f"{name}.values"].shape[:1])
    codes = heard_any(tensors, f"{name}.codes", entries, contexts)
    if (codes >= len(distinct)).any():
        raise UserError(f"{name}.codes holds {codes.max()}, expected 0 to {len(distinct) - 1}")
    return distinct[codes]


def step_of(values: np.ndarray) -> np.float32 | None:
    """The largest number of which all are small multiples, if there is one, exactly."""
    if not len(values) or not np.isfinite(values).all() or not values.any():
        return None
    sizes = np.abs(values[values != 0]).astype(np.float64)
    unit = np.spacing(np.float32(sizes.min()))  # a multiple of it are all float32 from the smallest on
    if sizes.max() / unit >= 2**53:
        return None
    step = np.gcd.reduce((sizes / np.float64(unit)).astype(np.int64)) * np.float64(unit)
    small = sizes.max() / step < 1 << (_WIDEST_CODE - 1)
    return np.float32(step) if small and np.float32(step) == step else None


# --- keys of features


def keep_living_(state: dict, tables: Collection[str], index: FeatureRows) -> tuple[dict[str, list[int]], np.ndarray]:
    """Restrict the tables to rows with a weight, in the order of the keys; for each template its features and the bits
    of their keys, and the keys as bytes."""
    lives = [(state[name] != 0).any(axis=1) for name in tables]
    alive = np.logical_or.reduce(lives) if lives else np.zeros(len(index), bool)
    living, _ = index.keep(alive)
    for name in tables:
        state[name] = state[name][alive][living.rows]
    short = living if living.lengths is not None else living.shortened(GUARD)
    sizes = zip(short.names, np.diff(short.offsets).tolist(), short.lengths.tolist(), strict=True)
    return {name: [count, bits] for name, count, bits in sizes if count}, packed_keys(short)


def packed_keys(index: FeatureRows) -> np.ndarray:
    """The keys of all templates as Elias (1974) and Fano (1971) do, all low bits first; the high bits say how many keys
    there are of each value: ones, and a zero where the value grows, of which a coder makes what they are worth."""
    sizes = [(int(count), int(bits)) for count, bits in zip(np.diff(index.offsets), index.lengths, strict=True)]
    if len(index.keys) == 0:
        return np.zeros(0, np.uint8)
    after, lengths = _spread((count, bits) for count, bits in sizes if count)
    low, high = np.zeros(after, np.uint8), np.zeros(sum(lengths), np.uint8)
    begin, done, place = 0, 0, 0
    for count, bits in sizes:
        if not count:
            continue
        keys, lower = index.keys[begin : begin + count] >> np.uint64(WORD - bits), _lower(count, bits)
        place = coder.lay_bits(keys, lower, low, place)
        high[done + (keys >> np.uint64(lower)).astype(np.int64) + np.arange(count)] = 1
        begin, done = begin + count, done + count + (1 << (bits - lower))
    return np.concatenate([low, told(high, 1)])


def _spread(sizes: Iterable[tuple[int, int]]) -> tuple[int, list[int]]:
    """Bytes of all low bits together, and the ones and zeros of the high ones of each template, for so many keys of so
    many bits each."""
    lows, lengths = 0, []
    for count, bits in sizes:
        lower = _lower(count, bits)
        lows += count * lower
        lengths.append(count + (1 << (bits - lower)))
    return -(-lows // 8), lengths


def index_of(
    kind: type[Index],
    parse: Callable[[str], Sequence],
    templates: Mapping[str, Sequence[int]],
    tensors: dict,
    name: str = "keys",
) -> Index:
    """The keys of all features: `templates` says how many each of them has and of how many bits, `parse` what its name
    means."""
    sizes, stored = list(templates.values()), _stream(tensors, name)
    after, lengths = _spread(sizes)
    if len(stored) < after:
        raise UserError(f"tensor {name} has {len(stored):,} bytes, expected {after:,} at least")
    high = _decoded(stored[after:], name, 1, sum(lengths))
    blocks, begin, place = [], 0, 0
    for (count, bits), length in zip(sizes, lengths, strict=True):
        ones, lower = np.flatnonzero(high[begin : begin + length]), _lower(count, bits)
        if len(ones) != count:
            raise UserError(f"the {name} of a template are {len(ones):,}, expected {count:,}")
        own = np.empty(count, np.uint64)
        place = coder.lift_bits(stored, place, lower, own)
        own |= (ones - np.arange(count)).astype(np.uint64) << np.uint64(lower)
        blocks.append(own << np.uint64(WORD - bits))
        if (blocks[-1][1:] <= blocks[-1][:-1]).any():
            raise UserError(f"the {name} do not ascend within every template")
        begin += length
    keys = np.concatenate([np.zeros(0, np.uint64), *blocks])
    parsed = tuple(template for name in templates for template in parse(name))
    offsets = np.cumsum([0, *(count for count, _ in sizes)])
    lengths = np.array([bits for _, bits in sizes], np.int64)
    return kind(parsed, offsets, keys, np.arange(len(keys), dtype=np.int32), lengths)


def fits(count: object, bits: object) -> bool:
    """Whether a template can have so many features with keys of so many bits."""
    if type(count) is not int or type(bits) is not int or not 0 < count < 2**31:
        return False
    return 0 < bits <= WORD and count <= 1 << bits


def _lower(count: int, bits: int) -> int:
    """How many bits of a key are told as they are: so that for each key there are four to eight values of the others,
    which costs a tenth of a bit more than the least that is possible."""
    return max(0, bits - count.bit_length() - 2)


# --- words


def packed_words(words: Sequence[str]) -> np.ndarray:
    """Words as bytes, in their order."""
    text = json.dumps(list(words), ensure_ascii=True, separators=(",", ":")).encode()
    return np.frombuffer(lzma.compress(text, **_LZMA), np.uint8)


def unpacked_words(tensors: dict, count: int) -> list[str]:
    stored = _stream(tensors, "words")
    reader = lzma.LZMADecompressor(**_LZMA)
    try:
        text = reader.decompress(stored.tobytes(), len(stored) * _SWELLS)
        words = json.loads(text) if reader.eof and not reader.unused_data else None
    except (lzma.LZMAError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"tensor words cannot be read ({error})") from None
    if not isinstance(words, list) or len(words) != count or not all(isinstance(word, str) for word in words):
        raise UserError(f"tensor words does not hold {count:,} words")
    return words


# --- symbols


def told(
    symbols: np.ndarray, width: int, contexts: np.ndarray | None = None, chained: np.ndarray | None = None
) -> np.ndarray:
    """Symbols below 2^width as bytes."""
    contexts, chained, seen = _learning(len(symbols), width, contexts, chained)
    room = np.zeros((2 * width + 1) * len(symbols) + 8, np.uint8)  # of which nothing is touched beyond what is told
    symbols = symbols if symbols.dtype == np.uint8 else symbols.astype(np.int32)
    size = coder.encode(symbols, contexts, chained, width, seen, room)
    return room[:size].copy()


def heard(
    tensors: dict,
    name: str,
    width: int,
    count: int,
    contexts: np.ndarray | None = None,
    chained: np.ndarray | None = None,
) -> np.ndarray:
    """So many symbols that were told: int64"""
    return _decoded(_stream(tensors, name), name, width, count, contexts, chained).astype(np.int64)


def _decoded(stored: np.ndarray, name: str, width: int, count: int, *learning: np.ndarray | None) -> np.ndarray:
    """The same from bytes: uint8 where that is enough, else int32. `learning`: contexts and what is chained"""
    symbols = np.empty(count, np.uint8 if width <= 8 else np.int32)
    contexts, chained, seen = _learning(count, width, *learning)
    if coder.decode(stored, contexts, chained, width, seen, symbols) < len(stored):
        raise UserError(f"tensor {name} has {len(stored):,} bytes, which are more than {count:,} symbols need")
    return symbols


def told_any(symbols: np.ndarray, contexts: np.ndarray | None = None) -> np.ndarray:
    """Symbols as bytes, the first of which says how many bits a symbol has."""
    width = _width(int(symbols.max(initial=0)))
    return np.concatenate([np.array([width], np.uint8), told(symbols, width, contexts)])


def heard_any(tensors: dict, name: str, count: int, contexts: np.ndarray | None = None) -> np.ndarray:
    stored = _stream(tensors, name)
    if not len(stored) or stored[0] > _WIDEST:
        raise UserError(f"tensor {name} does not begin with the bits of a symbol, at most {_WIDEST}")
    return heard({name: stored[1:]}, name, int(stored[0]), count, contexts)


def _learning(count: int, width: int, contexts: np.ndarray | None = None, chained: np.ndarray | None = None) -> tuple:
    contexts = np.broadcast_to(np.int32(0), count) if contexts is None else contexts.astype(np.int32)
    chained = np.broadcast_to(np.False_, count) if chained is None else chained
    more = (1 << width) if chained.any() else 0
    return contexts, chained, np.zeros(((int(contexts.max(initial=0)) + 1 + more) << width, 2), np.uint16)


def _stream(tensors: dict, name: str) -> np.ndarray:
    if name not in tensors:
        raise UserError(f"tensor {name} is missing")
    stored = tensors.pop(name)
    if stored.dtype != np.uint8 or stored.ndim != 1:
        raise UserError(f"tensor {name} is {stored.dtype} {stored.shape}, expected bytes")
    return stored


def _width(most: int) -> int:
    """The bits of the numbers 0 to `most`."""
    return int(most).bit_length()


# --- tensors


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
