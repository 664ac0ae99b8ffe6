"""Stanford sentiment treebank: sentences of film reviews, with a sentiment from 0 to 4 for each constituent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Constituents, DocumentReading, Documents, DocumentSplits, from_tokens
from structsparse.corpora.known.catalog import KNOWN, locate
from structsparse.corpora.parses import Trees, bracketed, concatenated
from structsparse.corpora.splits import drawn

VALUES = "very negative", "negative", "neutral", "positive", "very positive"  # names of the sentiments 0 to 4
TASKS = {  # for each task: labels of the sentiments 0 to 4 (-1: left out), and class names
    "binary": ((0, 0, -1, 1, 1), ("negative", "positive")),
    "fine": ((0, 1, 2, 3, 4), VALUES),
    "numbers": ((0, 1, 2, 3, 4), None),
}


def sentiment(labels: str, lower: bool, split: int | None = None) -> DocumentSplits:
    """The Stanford sentiment treebank (data=sentiment): sentences as documents, with constituents.

    If the seed `split` is given, a new dev of the same size is drawn from train and dev together."""
    if labels not in TASKS:
        raise UserError(f"data.labels is {labels!r}, expected one of {', '.join(TASKS)}")
    paths = [*locate("sst").values()]
    files = [concatenated(bracketed(path)) for path in paths]
    names = [f"{path}:{line}" for path, trees in zip(paths, files, strict=True) for line in trees.lines]
    tokens = [sentence for trees in files for sentence in _sentences(trees)]
    corpus = from_tokens(names, tokens, np.zeros(len(names)), None, lower)
    constituents = _constituents(corpus, files)
    firsts = np.searchsorted(constituents.document, np.arange(len(corpus)))  # constituents that are entire sentences
    target, classes = TASKS[labels]
    codes = np.array(target)[constituents.value[firsts]]
    corpus = replace(
        corpus,
        labels=codes.astype(np.int64 if classes else np.float64),
        classes=classes,
        constituents=constituents,
        sentence_offsets=corpus.offsets,
    )
    bounds = np.concatenate([[0], np.cumsum([len(trees.lines) for trees in files])])
    used = [begin + np.flatnonzero(codes[begin:end] >= 0) for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]
    train, dev, test = map(corpus.select, used)
    if split is not None:
        train, dev = drawn(corpus.select(np.concatenate(used[:2])), {"dev": len(dev)}, split).values()
    return DocumentSplits(f"sentiment_{labels}", train, dev, test, reading=DocumentReading("spaces", lower))


def sentiment_at_hand() -> DocumentSplits | None:
    """The Stanford sentiment treebank with two classes, in small letters; None if it is not on this machine."""
    return sentiment("binary", lower=True) if KNOWN["sst"].at_hand else None


def _sentences(trees: Trees) -> list[list[str]]:
    """The leaves (words) of each sentence in the sentiment treebank."""
    offsets = trees.offsets.tolist()
    return [trees.leaves[begin:end] for begin, end in zip(offsets[:-1], offsets[1:], strict=True)]


def _constituents(documents: Documents, files: Sequence[Trees]) -> Constituents:
    """The constituents of all sentences in the sentiment treebank, each with its sentiment."""
    before = np.concatenate([[0], np.cumsum([len(trees.leaves) for trees in files])])  # leaf count before each file
    begin = np.concatenate([trees.begin + first for trees, first in zip(files, before[:-1], strict=True)])
    end = np.concatenate([trees.end + first for trees, first in zip(files, before[:-1], strict=True)])
    labels = [label for trees in files for label in trees.labels]
    values = [int(label) if label in ("0", "1", "2", "3", "4") else None for label in labels]
    owner = np.searchsorted(documents.offsets, begin, side="right") - 1
    if None in values:
        wrong = values.index(None)
        path, _, line = documents.names[owner[wrong]].rpartition(":")
        raise UserError(f"{path}, line {line}: the label {labels[wrong]!r}, expected a sentiment from 0 to 4")
    first = documents.offsets[owner]
    return Constituents(
        document=owner.astype(np.int32),
        begin=(begin - first).astype(np.int32),
        end=(end - first).astype(np.int32),
        value=np.array(values, np.int16),
    )
