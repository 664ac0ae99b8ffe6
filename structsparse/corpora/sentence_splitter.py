"""Sentence splitter: the sentence boundaries of texts, by the library sentencex (an optional dependency)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from structsparse.base.errors import UserError


def can_split() -> bool:
    """Whether the sentence splitter sentencex is installed."""
    return find_spec("sentencex") is not None


def sentence_begins(texts: Sequence[str], language: str = "en") -> list[np.ndarray]:
    """Sentence splitter: the character position at which each sentence begins.

    Returns a list with an int64 array of shape [sentences] for each text."""
    try:
        from sentencex import get_sentence_boundaries
    except ImportError:
        raise UserError("sentences need the package sentencex: pip install sentencex") from None
    boundaries = (get_sentence_boundaries(language, text) for text in texts)
    return [np.array([sentence["start_index"] for sentence in sentences], np.int64) for sentences in boundaries]
