"""The content of an explanation of a classifier: its words, groups of words, and documents with what lives in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from structsparse.tasks.textcat.explain.phrases import Phrase


class WeightedWord(NamedTuple):
    """A word of a classifier with its weight."""

    word: str
    weight: float  # towards the second class; with several classes the one of largest size


class GroupSummary(NamedTuple):
    """A group of words in an explanation."""

    name: str
    lives: bool
    norm: float
    size: int  # words
    words: tuple[WeightedWord, ...]  # the heaviest; of dead groups the most frequent


class GroupKind(NamedTuple):
    """All groups of one kind, such as topics, in an explanation."""

    name: str
    living: int
    dead: int
    shown: tuple[GroupSummary, ...]  # living groups with the largest norms, then the largest dead groups


class ExplainedSentence(NamedTuple):
    """A sentence of a document in an explanation."""

    pieces: tuple[tuple[str, float], ...]  # words with their weights, and the text between them (weight 0)
    lives: bool
    change: float  # what the document's class loses without the sentence

    @property
    def text(self) -> str:
        """The sentence as it stands in the document."""
        return "".join(piece for piece, _ in self.pieces)


class ExplainedDocument(NamedTuple):
    """A document in an explanation: what was predicted, and its living and dead parts."""

    name: str
    part: str
    label: str
    predicted: str
    probability: float | None  # of the predicted class; None: the loss is not probabilistic
    sentences: tuple[ExplainedSentence, ...]
    phrases: tuple[Phrase, ...]  # roots of parse trees

    @property
    def right(self) -> bool:
        """Whether the prediction is the label."""
        return self.label == self.predicted


@dataclass(frozen=True)
class Explanation:
    """What a classifier looks at, ready to be written as a page or as text."""

    title: str
    classes: tuple[str, ...]  # for numbers: lower, higher
    weights: int
    living: int  # nonzero weights
    top_words: tuple[tuple[str, tuple[WeightedWord, ...]], ...]  # by class, its heaviest words
    kinds: tuple[GroupKind, ...]
    documents: tuple[ExplainedDocument, ...]
    scale: float  # the size of a weight in full colour
    measure: str  # what `change` is a change of: log-probability, score or number
