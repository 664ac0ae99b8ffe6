"""Ragged arrays: concatenated index ranges, and batches of items of similar size."""

from collections.abc import Iterator

import numpy as np


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Ragged array: the concatenated index ranges begin : begin + length of all pairs (begin, length).

    Returns int64 [sum of lengths]."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def padded_batches(sizes: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Batches of arrays of similar size: slices (begin, end) of items sorted by falling size.

    Each batch is padded to the largest item of the batch. The number of items times the largest size is at most
    `limit`, unless the slice has a single item."""
    begin = 0
    while begin < len(sizes):
        end = min(begin + max(1, limit // max(1, int(sizes[begin]))), len(sizes))
        yield begin, end
        begin = end
