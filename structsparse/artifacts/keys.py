"""Hash keys of the features in an artifact: shortened, encoded in few bits, and read back as a feature index.

The sorted keys of each feature template are encoded by Elias-Fano coding (Elias 1974, Fano 1971):

* The low bits of each key are stored as they are.
* For each value of the high bits, the number of keys is stored in unary. An arithmetic coder compresses these bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from structsparse.artifacts.coding import decode_symbols, encode_symbols
from structsparse.artifacts.folder import each_is, take_bytes
from structsparse.base.errors import UserError
from structsparse.features.keys import WORD, FeatureIndex
from structsparse.kernels.artifacts import bits as packing

Index = TypeVar("Index", bound=FeatureIndex)
# default number of bits in a key beyond those that count the features of its template
GUARD = 32  # one in 2^GUARD unknown features is mistaken for a known feature
LEAST_GUARD = 4  # least value that a user may choose instead of GUARD
EXPECTED_KEYS = "counts of features and bits of their keys"  # for error messages: the values that `are_keys` accepts


def are_keys(value: object) -> bool:
    """Artifact keys: whether a field of `model.json` describes the hash keys of each feature template.

    The field must map the name of each template to [number of features, bits of a key]."""
    return each_is(value, lambda pair: isinstance(pair, list) and len(pair) == 2 and _possible(*pair))


def _possible(count: object, bits: object) -> bool:
    """Artifact keys: whether a template can have `count` features with distinct hash keys of `bits` bits."""
    if type(count) is not int or type(bits) is not int or not 0 < count < 2**31:
        return False
    return 0 < bits <= WORD and count <= 1 << bits


def keep_living_(
    state: dict[str, np.ndarray], tables: Collection[str], index: FeatureIndex
) -> tuple[dict[str, list[int]], np.ndarray]:
    """Artifact keys: remove features without nonzero weights, and encode the keys of the remaining features.

    The weight tables named `tables` are replaced in `state`: they have a row for each remaining feature, sorted by key.
    Returns {template name: [number of features, bits of a key]}, and the encoded keys as bytes."""
    masks = [(state[name] != 0).any(axis=1) for name in tables]
    alive = np.logical_or.reduce(masks) if masks else np.zeros(len(index), bool)
    living, _ = index.keep(alive)
    for name in tables:
        state[name] = state[name][alive][living.rows]
    short = living if living.lengths is not None else living.shortened(GUARD)
    sizes = zip(short.names, np.diff(short.offsets).tolist(), short.lengths.tolist(), strict=True)
    return {name: [count, bits] for name, count, bits in sizes if count}, encode_keys(short)


def encode_keys(index: FeatureIndex) -> np.ndarray:
    """Artifact keys: encode the hash keys of all templates as bytes: the low bits, then the compressed high bits."""
    sizes = [(int(count), int(bits)) for count, bits in zip(np.diff(index.offsets), index.lengths, strict=True)]
    if len(index.keys) == 0:
        return np.zeros(0, np.uint8)
    low_bytes, lengths = _sizes((count, bits) for count, bits in sizes if count)
    low, high = np.zeros(low_bytes, np.uint8), np.zeros(sum(lengths), np.uint8)
    begin, high_begin, position = 0, 0, 0
    for count, bits in sizes:
        if not count:
            continue
        keys, low_bits = index.keys[begin : begin + count] >> np.uint64(WORD - bits), _low_bits(count, bits)
        position = packing.write_bits(keys, low_bits, low, position)
        high[high_begin + (keys >> np.uint64(low_bits)).astype(np.int64) + np.arange(count)] = 1
        begin, high_begin = begin + count, high_begin + count + (1 << (bits - low_bits))
    return np.concatenate([low, encode_symbols(high, 1)])


def decode_keys(
    kind: type[Index],
    parse: Callable[[str], Sequence],
    templates: Mapping[str, Sequence[int]],
    tensors: dict,
    name: str = "keys",
) -> Index:
    """Artifact keys: decode the feature index from the tensor `name`, which holds encoded hash keys.

    `templates` maps the name of each template to [number of features, bits of a key]. `parse` makes a
    template object from a template name, and returns it in a list."""
    sizes, encoded = list(templates.values()), take_bytes(tensors, name)
    low_bytes, lengths = _sizes(sizes)
    if len(encoded) < low_bytes:
        raise UserError(f"tensor {name} has {len(encoded):,} bytes, expected {low_bytes:,} at least")
    high = decode_symbols(encoded[low_bytes:], name, 1, sum(lengths))
    blocks, begin, position = [], 0, 0
    for (count, bits), length in zip(sizes, lengths, strict=True):
        ones, low_bits = np.flatnonzero(high[begin : begin + length]), _low_bits(count, bits)
        if len(ones) != count:
            raise UserError(f"tensor {name} holds {len(ones):,} keys of a template, expected {count:,}")
        keys = np.empty(count, np.uint64)
        position = packing.read_bits(encoded, position, low_bits, keys)
        keys |= (ones - np.arange(count)).astype(np.uint64) << np.uint64(low_bits)
        keys <<= np.uint64(WORD - bits)
        if (keys[1:] <= keys[:-1]).any():
            raise UserError(f"the {name} do not ascend within every template")
        blocks.append(keys)
        begin += length
    keys = np.concatenate([np.zeros(0, np.uint64), *blocks])
    parsed = tuple(template for line in templates for template in parse(line))
    offsets = np.cumsum([0, *(count for count, _ in sizes)])
    lengths = np.array([bits for _, bits in sizes], np.int64)
    return kind(parsed, offsets, keys, np.arange(len(keys), dtype=np.int32), lengths)


def _sizes(sizes: Iterable[Sequence[int]]) -> tuple[int, list[int]]:
    """Artifact keys: the number of bytes for all low bits, and for each template the number of its high bits.

    For each template, `sizes` has (number of keys, bits of a key). High bits are counted before compression."""
    total, lengths = 0, []
    for count, bits in sizes:
        low_bits = _low_bits(count, bits)
        total += count * low_bits
        lengths.append(count + (1 << (bits - low_bits)))
    return -(-total // 8), lengths


def _low_bits(count: int, bits: int) -> int:
    """Artifact keys: how many low bits of a hash key are stored as they are, for `count` keys of `bits` bits.

    The total size is then close to the minimum."""
    return max(0, bits - count.bit_length() - 2)
