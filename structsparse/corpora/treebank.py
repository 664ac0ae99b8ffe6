"""Sentences with dependency trees: their words as columns of codes, and beside them the head of each."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.columns import Sentences

COLUMNS = "word", "lemma", "upos", "xpos", "deprel"  # functions of the word look for the form under that name
UNKNOWN = -1  # in the place of a head
RULES = "upos", "characters"  # by which a token is punctuation
PUNCTUATION = "PUNCT"  # the part of speech, of Universal Dependencies


@dataclass(frozen=True, eq=False, kw_only=True)
class Treebank(Sentences):
    """Sentences with a tree each, and what it takes to write them as they were read."""

    heads: np.ndarray  # int32 [tokens], places in the sentence from 1 on; 0: a root, UNKNOWN: none was read
    lines: np.ndarray  # int32 [tokens], of the file
    blocks: tuple[str, ...]  # [sentences], all lines, with comments, multiword tokens and empty nodes

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, expected in (("heads", self.tokens), ("lines", self.tokens), ("blocks", len(self))):
            if len(getattr(self, name)) != expected:
                raise ValueError(f"{len(getattr(self, name))} {name}, the sentences need {expected}")

    def select(self, indices) -> Treebank:
        """These sentences in this order (positions, a slice or a mask); the values keep their codes."""
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
        """How many words of each sentence have head 0: int64 [sentences]"""
        return per_sentence(self.heads == 0, self.offsets)

    def describe(self) -> str:
        """How many, how large, of what shape."""
        found = f"{len(self):,} sentences, {self.tokens:,} tokens"
        if not self.tokens or (self.heads == UNKNOWN).any():
            return f"{found}, no trees"
        crossed = nonprojective(self.heads, self.offsets)
        trees = np.mean(per_sentence(crossed, self.offsets) > 0)
        relations = len(np.unique(self.columns["deprel"].codes))
        shape = f"non-projective are {trees:.1%} of the trees, {crossed.mean():.1%} of the arcs"
        return f"{found}; {shape}; relations: {relations}; trees with several roots: {(self.roots() > 1).sum():,}"


def per_sentence(marked: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """How many tokens of each sentence are marked: bool [tokens], [sentences + 1] to int64 [sentences]"""
    before = np.concatenate([[0], np.cumsum(marked)])
    return before[offsets[1:]] - before[offsets[:-1]]


def nonprojective(heads: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Whether some word between a word and its head is not below that head. Every word is below the root, so an arc
    from there is projective. Heads must be those of trees.  [tokens], [sentences + 1] to bool [tokens]"""
    first = np.repeat(offsets[:-1], np.diff(offsets))
    above = np.where(heads > 0, first + heads - 1, -1)  # among all tokens
    arcs = np.flatnonzero(heads > 0)
    low = np.minimum(arcs, above[arcs]) + 1
    sizes = np.maximum(arcs, above[arcs]) - low
    ends = np.cumsum(sizes)
    climber = np.repeat(low - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
    arc = np.repeat(arcs, sizes)  # each climbs from a word between the ends of this arc
    crossed = np.zeros(len(heads), dtype=bool)
    while len(arc):
        climber = above[climber]
        crossed[arc[climber < 0]] = True
        climbs = (climber >= 0) & (climber != above[arc])
        climber, arc = climber[climbs], arc[climbs]
    return crossed


def punctuation(treebank: Sentences, rule: str) -> np.ndarray:
    """Which tokens are punctuation: bool [tokens]. By `upos`: those of this part of speech; by `characters`, as in the
    shared tasks of 2006 and 2007: those all of whose characters are punctuation in Unicode."""
    if rule == "upos":
        column = treebank.columns["upos"]
        return np.array([value == PUNCTUATION for value in column.values], bool)[column.codes]
    if rule == "characters":
        column = treebank.columns["word"]
        return np.array([only_punctuation(value) for value in column.values], bool)[column.codes]
    raise UserError(f"data.punctuation is {rule!r}, expected auto, {' or '.join(RULES)}")


def punctuation_rule(treebank: Sentences) -> str:
    """`upos` where that part of speech is used, as in Universal Dependencies, else `characters`."""
    column = treebank.columns["upos"]
    known = PUNCTUATION in column.values and (column.codes == column.values.index(PUNCTUATION)).any()
    return "upos" if known else "characters"


def only_punctuation(word: str) -> bool:
    return all(unicodedata.category(character).startswith("P") for character in word)
