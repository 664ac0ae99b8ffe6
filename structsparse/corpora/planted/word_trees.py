"""A planted corpus for word vectors: sentences about the nodes of known trees.

Each tree has a root, children and grandchildren, and each node has words of its own. A sentence is about a grandchild:
its words are those of the grandchild, of the nodes above it, or common words. So the words of a node occur together,
and with those below it."""

from __future__ import annotations

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.planted.documents import CONSONANTS, VOWELS
from structsparse.corpora.text import ProvisionalText

COMMON = 60  # number of words that belong to no node
SHARES = 0.45, 0.2, 0.15, 0.2  # shares of the words of a sentence: of the leaf, its parent, the root; common words
LENGTH = 10  # mean number of words of a sentence


def planted_word_trees(
    seed: int, trees: int, branching: int, size: int, sentences: int
) -> tuple[ProvisionalText, dict[str, tuple[str, ...]]]:
    """Draw a planted corpus of word trees; returns the text, and the words below each node by its name.

    Each of `trees` roots has `branching` children, and each child has as many. Each node has `size` words."""
    options = {"trees": trees, "branching": branching, "size": size, "sentences": sentences}
    for name, value in options.items():
        if type(value) is not int or value < 1:
            raise UserError(f"data.planted.{name} is {value}, expected a number of at least 1")
    names, above = _nodes(trees, branching)
    rng = np.random.default_rng(seed)
    words = _words(rng, len(names) * size + COMMON)
    leaves = np.flatnonzero([name.count(".") == 2 for name in names])
    lengths = 2 + rng.poisson(LENGTH - 2, sentences)
    leaf = np.repeat(leaves[rng.integers(len(leaves), size=sentences)], lengths)
    paths = np.stack([leaf, above[leaf], above[above[leaf]]])
    kind = rng.choice(4, len(leaf), p=SHARES)
    own = paths[np.minimum(kind, 2), np.arange(len(leaf))] * size + rng.integers(size, size=len(leaf))
    common = len(names) * size + rng.integers(COMMON, size=len(leaf))
    codes = np.zeros(len(leaf) + sentences, np.int32)
    ends = np.cumsum(lengths) + np.arange(sentences)
    inside = np.ones(len(codes), bool)
    inside[ends] = False
    codes[inside] = np.where(kind == 3, common, own) + 1
    members = [words[k * size : (k + 1) * size] for k in range(len(names))]
    below = {name: tuple(_joined(members, names, name)) for name in names}
    return ProvisionalText(f"planted word trees (seed {seed})", words, codes), below


def _joined(members: list[list[str]], names: list[str], top: str) -> list[str]:
    """Planted word trees: the words of a node and of all nodes below it."""
    return [w for name, own in zip(names, members, strict=True) if f"{name}.".startswith(f"{top}.") for w in own]


def _nodes(trees: int, branching: int) -> tuple[list[str], np.ndarray]:
    """Planted word trees: the names of all nodes, such as 2.1.3, and the number of the parent of each (roots: -1)."""
    names = [f"{t}" for t in range(1, trees + 1)]
    names += [f"{t}.{c}" for t in range(1, trees + 1) for c in range(1, branching + 1)]
    names += [f"{name}.{c}" for name in names[trees:] for c in range(1, branching + 1)]
    numbers = {name: k for k, name in enumerate(names)}
    return names, np.array([numbers.get(name.rpartition(".")[0], -1) for name in names])


def _words(rng: np.random.Generator, count: int) -> list[str]:
    """Planted word trees: distinct words of three syllables."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    if count > len(syllables) ** 3:
        raise UserError(f"data.planted asks for {count:,} words, at most {len(syllables) ** 3:,} can be made")
    drawn = rng.choice(len(syllables) ** 3, count, replace=False).tolist()
    base = len(syllables)
    return [syllables[k // base**2] + syllables[k // base % base] + syllables[k % base] for k in drawn]
