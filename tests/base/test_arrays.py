"""Ragged arrays and batches of them, against loops."""

import numpy as np
import pytest

from structsparse.base.arrays import padded_batches, ranges


def test_ranges_are_concatenated():
    begins, lengths = np.array([5, 0, 2, 9]), np.array([2, 0, 3, 1])
    assert ranges(begins, lengths).tolist() == [5, 6, 2, 3, 4, 9]
    assert ranges(begins[:0], lengths[:0]).tolist() == []


@pytest.mark.parametrize("limit", [1, 100, 10**6])
def test_no_batch_is_larger_than_its_limit_or_one_item(limit):
    sizes = np.sort(np.random.default_rng(0).integers(0, 160, 200))[::-1]
    batches = list(padded_batches(sizes, limit))
    assert [begin for begin, _ in batches] == [0, *(end for _, end in batches[:-1])]
    assert batches[-1][1] == len(sizes)
    assert all((end - begin) * sizes[begin] <= limit or end - begin == 1 for begin, end in batches)
    assert list(padded_batches(sizes[:0], limit)) == []
