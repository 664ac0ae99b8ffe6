"""Ragged arrays: slices of different lengths, one after the other."""

import numpy as np


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenated ranges: begin, begin + 1, ..., begin + length - 1 of each pair: int64 [sum of lengths]"""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
