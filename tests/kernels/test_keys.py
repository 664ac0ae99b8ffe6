"""Lookup of feature keys against a dictionary."""

import numpy as np
import pytest

from structsparse.kernels.features import keys as kernels


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 30, 3000])
@pytest.mark.parametrize("spread", ["even", "low", "high", "ends"])
def test_every_key_is_found_however_unevenly_keys_are_distributed(count, spread):
    draw = np.random.default_rng(count)
    largest, low = np.uint64(2**64 - 1), np.arange(count, dtype=np.uint64)
    index_keys = {
        "even": lambda: np.unique(draw.integers(0, 2**64 - 1, count, np.uint64)),
        "low": lambda: low * np.uint64(2),
        "high": lambda: largest - low[::-1] * np.uint64(2),
        "ends": lambda: np.r_[low[: count // 2], largest - low[: count - count // 2][::-1]],
    }[spread]()
    rows = draw.permutation(len(index_keys)).astype(np.int32)
    ends = np.array([0, 2**63, 2**64 - 1], np.uint64)
    keys = np.unique(np.r_[index_keys, index_keys + np.uint64(1), index_keys - np.uint64(1), ends])
    expected = dict(zip(index_keys.tolist(), rows.tolist(), strict=True))
    for bits in (1, max(1, len(index_keys).bit_length()), 12):
        result = np.empty(len(keys), np.int32)
        kernels.look_up(keys, index_keys, rows, kernels.directory(index_keys, bits), bits, np.uint64(2**64 - 1), result)
        assert result.tolist() == [expected.get(key, -1) for key in keys.tolist()]
