"""Parts of an array that lie apart and are of different lengths."""

import numpy as np


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, ..., begin + length - 1 for each pair, end to end."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
