"""Known tagging corpora in train, dev and test: corpora by name, the user's own column files, or planted sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from structsparse.corpora.columns import Column, Sentences, read_columns
from structsparse.corpora.known.catalog import locate
from structsparse.corpora.planted.tagging import planted_tagging
from structsparse.corpora.splits import SentenceSplits, hold_out


def planted(seed: int, train: int, dev: int, test: int, join_dev: bool = False) -> SentenceSplits:
    """Known tagging corpora: planted sentences (data=planted), whose tags depend on only some feature templates.

    `join_dev` adds the dev sentences to train, as in `files`."""
    corpus = planted_tagging(seed=seed, train=train, dev=dev, test=test)
    truth, learnt = tuple(corpus.templates), corpus.train
    if join_dev:
        learnt = joined(corpus.train, corpus.dev)
    return SentenceSplits("planted", learnt, corpus.dev, corpus.test, scheme="iob2", truth=truth, joined=join_dev)


def known(
    name: str,
    columns: Sequence[str | None],
    scheme: str,
    stray: str,
    comments: str,
    held_out: float,
    seed: int,
    join_dev: bool = False,
) -> SentenceSplits:
    """Known tagging corpora: a corpus by name, such as data=conll2000, found on this machine or downloaded."""
    paths = {part: str(path) for part, path in locate(name).items()}
    return files(
        paths["train"], paths.get("dev"), paths["test"],
        columns, scheme, stray, comments, held_out, seed, join_dev, name,
    )  # fmt: skip


def files(
    train: str,
    dev: str | None,
    test: str,
    columns: Sequence[str | None],
    scheme: str,
    stray: str,
    comments: str,
    held_out: float,
    seed: int,
    join_dev: bool = False,
    name: str = "files",
) -> SentenceSplits:
    """Known tagging corpora: the user's own column files (data=files).

    Without a dev file, a share of the training sentences is held out as dev. `join_dev` adds the dev sentences to
    train, for a last run after all options have been chosen."""
    parts = {
        part: read_columns(Path(path), list(columns), comments=comments)
        for part, path in (("train", train), ("dev", dev), ("test", test))
        if path is not None
    }
    all_train = parts["train"]
    if dev is None:
        parts["train"], parts["dev"] = hold_out(all_train, held_out, seed)
    if join_dev:
        parts["train"] = all_train if dev is None else joined(all_train, parts["dev"])
    drawn = dev is None and not join_dev
    return SentenceSplits(
        name, parts["train"], parts["dev"], parts["test"], scheme, stray, joined=join_dev, held_out=drawn
    )


def joined(first: Sentences, second: Sentences) -> Sentences:
    """Known tagging corpora: concatenate the sentences of train and dev."""
    columns = {}
    for name, column in first.columns.items():
        more = second.columns[name].recoded(column.values)
        columns[name] = Column(more.values, np.concatenate([column.codes, more.codes]))
    offsets = np.concatenate([first.offsets, first.tokens + second.offsets[1:]])
    return replace(first, columns=columns, offsets=offsets)
