"""Sentence boundaries of texts by the rules of the library sentencex (the extra `text`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from structsparse.base.errors import UserError


def can_split() -> bool:
    """Whether the sentence splitter sentencex is installed."""
    return find_spec("sentencex") is not None


def sentence_begins(texts: Sequence[str], language: str = "en") -> list[np.ndarray]:
    """Sentence splitter: the position of the first character of each sentence, for each text.

    Returns a list with one int64 [sentences] per text."""
    try:
        from sentencex import get_sentence_boundaries
    except ImportError:
        raise UserError("sentences need the package sentencex: pip install sentencex") from None
    boundaries = (get_sentence_boundaries(language, text) for text in texts)
    return [np.array([sentence["start_index"] for sentence in sentences], np.int64) for sentences in boundaries]
