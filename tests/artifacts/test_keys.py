"""Keys of features in an artifact: decoded exactly, nearly as short as possible, and refused when damaged."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse.artifacts.keys import LEAST_GUARD, decode_keys, encode_keys
from structsparse.base.errors import UserError
from structsparse.kernels.artifacts import bits as packing
from structsparse.tasks.tagging.features.index import TokenIndex
from structsparse.tasks.tagging.features.templates import expand

FEW = settings(max_examples=60)
TEMPLATES = expand(["word[0]", "word[-1..0]", "pos[1]"])


@pytest.mark.parametrize("width", [0, 1, 5, 8, 13, 33, 61])
def test_numbers_are_packed_side_by_side_the_highest_bit_first(width):
    numbers = np.random.default_rng(width).integers(0, 2**63, 50, dtype=np.uint64)
    text = "101" + "".join(f"{int(number):063b}"[63 - width :] if width else "" for number in numbers)
    packed = np.zeros(-(-len(text) // 8), np.uint8)
    assert packing.write_bits(np.array([5], np.uint64), 3, packed, 0) == 3
    assert packing.write_bits(numbers, width, packed, 3) == len(text)
    assert "".join(f"{byte:08b}" for byte in packed.tolist())[: len(text)] == text
    decoded = np.empty(50, np.uint64)
    assert packing.read_bits(packed, 3, width, decoded) == len(text)
    np.testing.assert_array_equal(decoded, numbers & np.uint64((1 << width) - 1))


def index_with(counts, seed: int, guard: int | None = None) -> TokenIndex:
    draw = np.random.default_rng(seed)
    keys = [np.sort(draw.choice(2**62, count, replace=False).astype(np.uint64) * np.uint64(4)) for count in counts]
    offsets = np.cumsum([0, *counts])
    index = TokenIndex(tuple(TEMPLATES), offsets, np.concatenate(keys), np.arange(offsets[-1], dtype=np.int32))
    return index if guard is None else index.shortened(guard)


def decoded(index: TokenIndex, change=lambda encoded: encoded) -> TokenIndex:
    """The index that is decoded from the encoded keys of another, after a change to the bytes."""
    sizes = zip(np.diff(index.offsets).tolist(), index.lengths.tolist(), strict=True)
    templates = {t.name: list(size) for t, size in zip(index.templates, sizes, strict=True) if size[0]}
    return decode_keys(TokenIndex, lambda line: expand([line]), templates, {"keys": change(encode_keys(index))})


@FEW
@given(st.lists(st.integers(0, 300), min_size=3, max_size=3), st.integers(0, 2**32), st.integers(LEAST_GUARD, 70))
def test_decoded_keys_are_those_that_were_encoded(counts, seed, guard):
    index = index_with(counts, seed, guard)
    result = decoded(index)
    np.testing.assert_array_equal(result.keys, index.keys)
    names = [template.name for template, count in zip(TEMPLATES, counts, strict=True) if count]
    assert result.names == names
    np.testing.assert_array_equal(result.masks, index.masks[np.array(counts) > 0])


@pytest.mark.parametrize("counts", [[1, 2, 8], [16, 15, 1]])
def test_decoded_keys_are_exact_where_nearly_all_keys_of_few_bits_are_used(counts):
    keys = [np.sort(np.random.default_rng(0).permutation(16)[:count]).astype(np.uint64) for count in counts]
    offsets = np.cumsum([0, *counts])
    rows = np.arange(offsets[-1], dtype=np.int32)
    index = TokenIndex(tuple(TEMPLATES), offsets, np.concatenate(keys) << np.uint64(60), rows, np.full(3, 4))
    np.testing.assert_array_equal(decoded(index).keys, index.keys)
    np.testing.assert_array_equal(decoded(index.shortened(1)).keys, index.shortened(1).keys)
    assert index.shortened(60, lambda k: keys[k] << np.uint64(60)).lengths.tolist() == [4, 4, 4]


@pytest.mark.parametrize("guard", [4, 10, 16])
def test_a_key_costs_little_more_than_the_minimum(guard):
    """Choosing n keys among n * 2^guard takes guard + log2 e bits for each of them."""
    count = 1 << 12
    index = index_with([count - 1, 1, 0], 3)
    short = index.shortened(guard)
    bits = int(short.lengths[0])
    assert bits >= 12 + guard
    assert len(encode_keys(short)) * 8 / count < bits - 12 + np.log2(np.e) + 0.2


def test_short_keys_tell_all_rows_apart_and_mistake_few_unknown_features():
    index, draw = index_with([3000, 200, 1], 5), np.random.default_rng(6)
    unknown = draw.integers(0, 2**64, 400_000, dtype=np.uint64)
    for guard in (4, 8):
        short = index.shortened(guard)
        for k, (begin, end) in enumerate(pairwise(index.offsets.tolist())):
            keys = short.keys[begin:end]
            assert len({*keys.tolist()}) == end - begin
            np.testing.assert_array_equal(keys, index.keys[begin:end] & short.masks[k])
            share = np.isin(unknown & short.masks[k], keys).mean()
            assert share <= 2.0**-guard
    frequent = np.repeat(index.keys[7:8] ^ np.uint64(1), 1000)  # differs in its last bit only
    exact = index.shortened(8, lambda k: frequent)
    assert exact.lengths.tolist()[0] == 64
    assert exact.lengths.tolist()[1:] == index.shortened(8).lengths.tolist()[1:]


def test_damaged_keys_are_refused_in_a_sentence():
    index = index_with([50, 7, 30], 1, 9)
    with pytest.raises(UserError, match="tensor keys has 3 bytes, expected"):
        decoded(index, lambda encoded: encoded[:3])
    with pytest.raises(UserError, match=r"(keys of a template, expected|do not ascend)"):
        decoded(index, lambda encoded: np.r_[encoded[:-9], np.zeros(9, np.uint8)])
    with pytest.raises(UserError, match=r"more than .* symbols need"):
        decoded(index, lambda encoded: np.r_[encoded, np.ones(20, np.uint8)])
    with pytest.raises(UserError, match="expected bytes"):
        decoded(index, lambda encoded: encoded.astype(np.int64))


@FEW
@given(st.integers(0, 2**32))
def test_random_bytes_are_keys_or_refused(seed):
    index, draw = index_with([20, 5, 9], 1, 4), np.random.default_rng(seed)
    size = len(encode_keys(index))
    try:
        result = decoded(index, lambda encoded: draw.integers(0, 256, size).astype(np.uint8))
    except UserError:
        return
    assert len(result) == 34
