"""Splits of corpora into train, dev and test, and random splits if dev or test is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences

PARTS = "train", "dev", "test"
Items = TypeVar("Items")  # Documents, Sentences or Treebank: a class with a length and a method `select`


@dataclass(frozen=True)
class SentenceSplits:
    """Splits of a corpus of tagged sentences: train, dev and test."""

    name: str
    train: Sentences
    dev: Sentences
    test: Sentences
    scheme: str = "auto"  # scheme of the tags: iob1, iob2, iobes, or auto (detected from the tags)
    stray: str = "repair"  # treatment of a tag that breaks the scheme: repair or refuse
    truth: tuple[str, ...] = ()  # the feature templates with nonzero weights in the model of a planted corpus
    joined: bool = False  # whether train contains the dev sentences
    held_out: bool = False  # whether dev was drawn at random from the training sentences

    @property
    def parts(self) -> dict[str, Sentences]:
        """Splits as a dictionary: the sentences of train, dev and test."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


def hold_out(sentences: Sentences, share: float, seed: int) -> tuple[Sentences, Sentences]:
    """Split off a random share of the sentences, for a corpus without a dev file.

    Returns the remaining and the split-off sentences, both in the order of the corpus."""
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


def completed(parts: Mapping[str, Items], held_out: float, seed: int, kind: str) -> dict[str, Items]:
    """Complete the splits train, dev and test: a missing dev or test part is drawn at random from train.

    `held_out` is the size of each missing part, as a share of train. `kind` names the items in messages."""
    missing = [part for part in PARTS if part not in parts]
    if not missing:
        return dict(parts)
    if not 0 < held_out * len(missing) < 1:
        raise UserError(
            f"data.held_out is {held_out}; without files for {' and '.join(missing)} it must be above 0 and below "
            f"{1 / len(missing):g}"
        )
    size = round(held_out * len(parts["train"]))
    return {**parts, **drawn(parts["train"], dict.fromkeys(missing, size), seed, kind)}


def drawn(items: Items, sizes: Mapping[str, int], seed: int, kind: str = "documents") -> dict[str, Items]:
    """Random splits: draw dev or test parts of the given sizes; the remaining items are `train`.

    Every part keeps the order of the corpus. `kind` names the items in messages."""
    if not all(sizes.values()) or sum(sizes.values()) >= len(items):
        asked = " and ".join(f"{size} for {part}" for part, size in sizes.items())
        raise UserError(
            f"{len(items)} {kind} of train cannot give {asked} and leave some to train on; give more {kind}, "
            "files for data.dev and data.test, or another data.held_out"
        )
    order, parts, begin = np.random.default_rng(seed).permutation(len(items)), {}, 0
    for part, size in sizes.items():
        parts[part] = items.select(np.sort(order[begin : begin + size]))
        begin += size
    return {"train": items.select(np.sort(order[begin:])), **parts}
