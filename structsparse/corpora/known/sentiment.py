"""Stanford sentiment trees: sentences of film reviews with a sentiment from 0 to 4 for each constituent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.documents import Constituents, Documents, Labelled, Reading, spaced
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.parses import Forest, bracketed, gathered
from structsparse.corpora.splits import drawn

VALUES = "very negative", "negative", "neutral", "positive", "very positive"
TASKS = {  # the class or number of each sentiment of a whole sentence, -1: left out
    "binary": ((0, 0, -1, 1, 1), ("negative", "positive")),
    "fine": ((0, 1, 2, 3, 4), VALUES),
    "numbers": ((0, 1, 2, 3, 4), None),
}


def sentiment(labels: str, lower: bool, split: int | None = None) -> Labelled:
    """Each sentence is a document, with its own tokens and all its constituents. `split`: dev, as large as it is, is
    drawn anew from train and dev."""
    if labels not in TASKS:
        raise UserError(f"data.labels is {labels!r}, expected one of {', '.join(TASKS)}")
    paths = [*locate("sst").values()]
    forests = [gathered(bracketed(path)) for path in paths]
    names = [f"{path}:{line}" for path, forest in zip(paths, forests, strict=True) for line in forest.lines]
    tokens = [sentence for forest in forests for sentence in _sentences(forest)]
    whole = spaced(names, tokens, np.zeros(len(names)), None, lower)
    constituents = _constituents(whole, paths, forests)
    firsts = np.searchsorted(constituents.document, np.arange(len(whole)))  # the whole sentence comes first
    target, classes = TASKS[labels]
    found = np.array(target)[constituents.value[firsts]]
    whole = replace(
        whole,
        labels=found.astype(np.int64 if classes else np.float64),
        classes=classes,
        constituents=constituents,
        sentence_offsets=whole.offsets,
    )
    bounds = np.concatenate([[0], np.cumsum([len(forest.lines) for forest in forests])])
    own = [begin + np.flatnonzero(found[begin:end] >= 0) for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]
    train, dev, test = map(whole.select, own)
    if split is not None:
        train, dev = drawn(whole.select(np.concatenate(own[:2])), {"dev": len(dev)}, split).values()
    return Labelled(f"sentiment_{labels}", train, dev, test, reading=Reading("spaces", lower))


def _sentences(forest: Forest) -> list[list[str]]:
    offsets = forest.offsets.tolist()
    return [forest.leaves[begin:end] for begin, end in zip(offsets[:-1], offsets[1:], strict=True)]


def _constituents(documents: Documents, paths: Sequence[Path], forests: Sequence[Forest]) -> Constituents:
    before = np.concatenate([[0], np.cumsum([len(forest.leaves) for forest in forests])])  # tokens before each part
    begin, end = (
        np.concatenate([getattr(forest, key) + first for forest, first in zip(forests, before[:-1], strict=True)])
        for key in ("begin", "end")
    )
    values = [_value(label) for forest in forests for label in forest.labels]
    owner = np.searchsorted(documents.offsets, begin, side="right") - 1
    if None in values:
        wrong = values.index(None)
        label = [label for forest in forests for label in forest.labels][wrong]
        path, _, line = documents.names[owner[wrong]].rpartition(":")
        raise UserError(f"{path}, line {line}: the label {label!r}, expected a sentiment from 0 to 4")
    first = documents.offsets[owner]
    return Constituents(
        document=owner.astype(np.int32),
        begin=(begin - first).astype(np.int32),
        end=(end - first).astype(np.int32),
        value=np.array(values, np.int16),
    )


def _value(label: str) -> int | None:
    return int(label) if label in ("0", "1", "2", "3", "4") else None
