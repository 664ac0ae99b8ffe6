"""Mutual information of two sequences of codes, such as features and labels."""

from __future__ import annotations

import numpy as np


def mutual_information(a: np.ndarray, b: np.ndarray) -> float:
    """Mutual information of two sequences of codes, such as features and labels, in bits; never below 0.

    This is the sum over all pairs of codes a, b of P(a, b) log2 (P(a, b) / (P(a) P(b))). P is the relative frequency.
    """
    values = np.uint64(int(b.max()) + 1)
    # `pair` encodes two codes as one; if 64-bit codes overflow, it is a hash of the two
    pair = a.astype(np.uint64) * values + b.astype(np.uint64)
    return max(0.0, _entropy(a) + _entropy(b) - _entropy(pair))


def _entropy(codes: np.ndarray) -> float:
    """Entropy of a sequence of codes in bits, from which the mutual information is computed."""
    ordered = np.sort(codes)
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, len(ordered))
    share = np.diff(ends, prepend=0) / len(codes)
    return float(-(share * np.log2(share)).sum())
