"""A corpus with its train, dev and test part, wherever it comes from: planted, known by name, or files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from structsparse.corpora.columns import Column, Sentences, read_columns
from structsparse.corpora.known import locate
from structsparse.corpora.planted import planted_tagging
from structsparse.errors import UserError


@dataclass(frozen=True)
class Splits:
    name: str
    train: Sentences
    dev: Sentences
    test: Sentences
    scheme: str = "auto"  # how the tags are written: iob1, iob2, iobes; auto looks at them
    stray: str = "repair"  # a tag outside its scheme: repair or refuse
    truth: tuple[str, ...] = ()  # the templates that matter, where that is known
    joined: bool = False  # whether the dev sentences are among those of train

    @property
    def parts(self) -> dict[str, Sentences]:
        return {"train": self.train, "dev": self.dev, "test": self.test}


def planted(seed: int, train: int, dev: int, test: int) -> Splits:
    """Sentences drawn from a model in which only some templates matter."""
    drawn = planted_tagging(seed=seed, train=train, dev=dev, test=test)
    return Splits("planted", drawn.train, drawn.dev, drawn.test, scheme="iob2", truth=tuple(drawn.templates))


def known(
    name: str,
    columns: Sequence[str | None],
    scheme: str,
    stray: str,
    comments: str,
    held_out: float,
    seed: int,
    join_dev: bool = False,
) -> Splits:
    """A corpus that is looked up under STRUCTSPARSE_DATA, in the cache, and at its public home."""
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
) -> Splits:
    """Files of columns. Without a dev file a part of the training sentences is held out. `join_dev`: once all choices
    are made, the dev sentences are trained on too."""
    parts = {
        part: read_columns(Path(path), list(columns), comments=comments)
        for part, path in (("train", train), ("dev", dev), ("test", test))
        if path is not None
    }
    whole = parts["train"]
    if dev is None:
        parts["train"], parts["dev"] = hold_out(whole, held_out, seed)
    if join_dev:
        parts["train"] = whole if dev is None else joined(whole, parts["dev"])
    return Splits(name, parts["train"], parts["dev"], parts["test"], scheme, stray, joined=join_dev)


def joined(first: Sentences, second: Sentences) -> Sentences:
    """The sentences of both, one after the other."""
    columns = {}
    for name, column in first.columns.items():
        other = second.columns[name].recoded(column.values)
        columns[name] = Column(other.values, np.concatenate([column.codes, other.codes]))
    offsets = np.concatenate([first.offsets, first.tokens + second.offsets[1:]])
    return replace(first, columns=columns, offsets=offsets)


def hold_out(sentences: Sentences, share: float, seed: int) -> tuple[Sentences, Sentences]:
    """(the rest, a random share), both in their old order."""
    if not 0 < share < 1:
        raise UserError(f"data.held_out is {share}; without a dev file it must lie between 0 and 1")
    count = round(share * len(sentences))
    if not 0 < count < len(sentences):
        raise UserError(
            f"{sentences.source}: {share:g} of {len(sentences)} sentences leaves nothing to train on or to choose by; "
            "give data.dev or another data.held_out"
        )
    order = np.random.default_rng(seed).permutation(len(sentences))
    return sentences.select(np.sort(order[count:])), sentences.select(np.sort(order[:count]))
