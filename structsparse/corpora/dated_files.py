"""Files of dated items."""

from __future__ import annotations

from structsparse.corpora.dated import DatedCorpus
from structsparse.corpora.planted.drift import planted_drift


def dated(train, planted, **options) -> DatedCorpus:
    """Read dated items from the user's files, or draw a planted corpus (data=dated)."""
    return planted_drift(**planted)
