"""Treebank: sentences with the dependency head of each word; tests for projectivity and punctuation."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace

import numpy as np

from structsparse.base.arrays import ranges
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences

COLUMNS = (
    "word",
    "lemma",
    "upos",
    "xpos",
    "feats",
    "deprel",
)  # columns of a treebank; the column `word` has the word forms
UNKNOWN = -1  # the head of a word in a treebank that was read without heads
RULES = "upos", "characters"  # rules that say which tokens are punctuation
PUNCTUATION = "PUNCT"  # the part of speech of punctuation in Universal Dependencies


@dataclass(frozen=True, eq=False, kw_only=True)
class Treebank(Sentences):
    """Treebank: sentences with their dependency trees and with the lines of the file.

    The lines are kept so that the treebank can be written unchanged."""

    heads: np.ndarray  # int32 array: word number of each token's head, from 1 on; 0: root, UNKNOWN: not read
    lines: np.ndarray  # int32 array: line number of each token in the file
    blocks: tuple[str, ...]  # for each sentence: all lines, with comments, multiword tokens and empty nodes

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"heads": len(self.heads), "lines": len(self.lines), "blocks": len(self.blocks)}
        for name, size in sizes.items():
            if size != (expected := len(self) if name == "blocks" else self.tokens):
                raise ValueError(f"{size} {name}, the sentences need {expected}")

    def select(self, indices) -> Treebank:
        """Select the sentences of a treebank at `indices` (integers, a slice or a mask); codes stay the same."""
        chosen = np.arange(len(self))[indices]
        tokens, offsets = self._tokens_of(chosen)
        return replace(
            self,
            columns={name: column.take(tokens) for name, column in self.columns.items()},
            offsets=offsets,
            heads=self.heads[tokens],
            lines=self.lines[tokens],
            blocks=tuple(self.blocks[k] for k in chosen.tolist()),
        )

    def roots(self) -> np.ndarray:
        """The number of roots (words with head 0) of each tree in the treebank (int64 array of shape [sentences])."""
        return per_sentence(self.heads == 0, self.offsets)

    def describe(self) -> str:
        """A line for the user about a treebank: counts of sentences, tokens, relations and trees with several roots.

        The line also has the share of non-projective trees and the share of non-projective arcs."""
        sizes = f"{len(self):,} sentences, {self.tokens:,} tokens"
        if not self.tokens or (self.heads == UNKNOWN).any():
            return f"{sizes}, no trees"
        crossed = nonprojective(self.heads, self.offsets)
        trees = np.mean(per_sentence(crossed, self.offsets) > 0)
        relations = len(np.unique(self.columns["deprel"].codes))
        shape = f"non-projective are {trees:.1%} of the trees, {crossed.mean():.1%} of the arcs"
        return f"{sizes}; {shape}; relations: {relations}; trees with several roots: {(self.roots() > 1).sum():,}"


def per_sentence(mask: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Count, in each sentence of the treebank, the tokens for which a mask is true."""
    before = np.concatenate([[0], np.cumsum(mask)])
    return before[offsets[1:]] - before[offsets[:-1]]


def nonprojective(heads: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Whether the arc to each word in a treebank is non-projective (bool array of shape [tokens]).

    An arc is non-projective if some word between the head and the word does not descend from the head. Arcs from the
    root are projective. The heads must form trees."""
    first = np.repeat(offsets[:-1], np.diff(offsets))
    above = np.where(heads > 0, first + heads - 1, -1)  # index of each token's head among all tokens, -1 for a root
    arcs = np.flatnonzero(heads > 0)
    low = np.minimum(arcs, above[arcs]) + 1
    sizes = np.maximum(arcs, above[arcs]) - low
    climber = ranges(low, sizes)  # the words between the ends of arcs; each loop replaces them by their heads
    arc = np.repeat(arcs, sizes)
    crossed = np.zeros(len(heads), dtype=bool)
    while len(arc):
        climber = above[climber]
        crossed[arc[climber < 0]] = True
        climbs = (climber >= 0) & (climber != above[arc])
        climber, arc = climber[climbs], arc[climbs]
    return crossed


# --- punctuation


def punctuation(treebank: Sentences, rule: str) -> np.ndarray:
    """Whether each token of a treebank is punctuation (bool array of shape [tokens]).

    Rule `upos`: the part of speech is PUNCT. Rule `characters`: all characters are punctuation in Unicode, as in the
    CoNLL shared tasks of 2006 and 2007."""
    if rule == "upos":
        column = treebank.columns["upos"]
        return np.array([value == PUNCTUATION for value in column.values], bool)[column.codes]
    if rule == "characters":
        column = treebank.columns["word"]
        return np.array([only_punctuation(value) for value in column.values], bool)[column.codes]
    raise UserError(f"data.punctuation is {rule!r}, expected auto, {' or '.join(RULES)}")


def punctuation_rule(treebank: Sentences) -> str:
    """The rule for punctuation that fits a treebank: `upos` if some token has the tag PUNCT, else `characters`."""
    column = treebank.columns["upos"]
    used = PUNCTUATION in column.values and (column.codes == column.values.index(PUNCTUATION)).any()
    return "upos" if used else "characters"


def only_punctuation(word: str) -> bool:
    """Punctuation rule for treebanks: whether all characters of a word are punctuation in Unicode."""
    return all(unicodedata.category(character).startswith("P") for character in word)
