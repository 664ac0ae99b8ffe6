"""Ragged arrays: concatenated index ranges, and batches of items of similar size."""

from collections.abc import Iterator

import numpy as np


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Ragged array: concatenate the index ranges begin, ..., begin + length - 1 of all pairs (begin, length).

    Example: the begins [5, 0] and the lengths [2, 3] give [5, 6, 0, 1, 2]."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def padded_batches(sizes: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Yield batches of arrays of similar size, as pairs (begin, end): the batch has the arrays `begin` to `end` - 1.

    `sizes` has the size of each array, the largest first. The sizes of a batch, padded to the largest of them, sum to
    at most `limit`, unless the batch is a single array."""
    begin = 0
    while begin < len(sizes):
        end = min(begin + max(1, limit // max(1, int(sizes[begin]))), len(sizes))
        yield begin, end
        begin = end
