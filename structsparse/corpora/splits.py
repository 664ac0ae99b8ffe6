"""Train, dev and test parts of corpora, and random splits of a part where the corpus has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences

PARTS = "train", "dev", "test"
Items = TypeVar("Items")  # has a length and `select`: documents, sentences, trees


@dataclass(frozen=True)
class SentenceSplits:
    """A corpus of tagged sentences: train, dev and test."""

    name: str
    train: Sentences
    dev: Sentences
    test: Sentences
    scheme: str = "auto"  # of the tags: iob1, iob2, iobes; auto: detected
    stray: str = "repair"  # what to do with a tag outside its scheme: repair or refuse
    truth: tuple[str, ...] = ()  # of a planted corpus: the templates that matter
    joined: bool = False  # whether the dev sentences are among those of train

    @property
    def parts(self) -> dict[str, Sentences]:
        """The parts of a tagging corpus by name."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


def hold_out(sentences: Sentences, share: float, seed: int) -> tuple[Sentences, Sentences]:
    """Split off a random share of the sentences: (the rest, the share), both in their old order."""
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
    """Train, dev and test splits; missing dev and test are random shares of train. `kind` names the items."""
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
    """Random splits: parts of these sizes, and the rest as `train`; the items of each in their old order."""
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
