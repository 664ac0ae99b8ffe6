"""The content of an explanation of a text classifier: words, word groups, and documents with selected sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from structsparse.tasks.textcat.explain.phrases import Phrase


class WeightedWord(NamedTuple):
    """A word of a text classifier, with its weight."""

    word: str
    weight: float  # for the second class; with several classes, the weight of largest size


class GroupSummary(NamedTuple):
    """A word group in an explanation: name, norm, and heaviest words."""

    name: str
    lives: bool
    norm: float
    size: int  # number of words in the group
    words: tuple[WeightedWord, ...]  # words with the largest weights; in dead groups, the most frequent words


class GroupKind(NamedTuple):
    """All word groups of one kind, such as topics, in an explanation."""

    name: str
    living: int
    dead: int
    shown: tuple[GroupSummary, ...]  # living groups with the largest norms, then the largest dead groups


class ExplainedSentence(NamedTuple):
    """A sentence of an explained document: words with weights, and whether the sentence is selected."""

    pieces: tuple[tuple[str, float], ...]  # words with their weights, and the text between them (weight 0)
    lives: bool
    change: float  # the value of the document's class minus its value without the sentence

    @property
    def text(self) -> str:
        """The text of the sentence, as in the document."""
        return "".join(piece for piece, _ in self.pieces)


class ExplainedDocument(NamedTuple):
    """An explained document: label, prediction, and sentences and phrases that are selected or not."""

    name: str
    part: str
    label: str
    predicted: str
    probability: float | None  # of the predicted class; None if the loss gives no probabilities
    sentences: tuple[ExplainedSentence, ...]
    phrases: tuple[Phrase, ...]  # the roots of the parse trees

    @property
    def right(self) -> bool:
        """Whether the prediction is correct."""
        return self.label == self.predicted


@dataclass(frozen=True)
class Explanation:
    """The explanation of a text classifier, ready to be written as an HTML page or as plain text."""

    title: str
    classes: tuple[str, ...]  # names of the classes; for numbers: lower, higher
    weights: int
    living: int  # number of nonzero weights
    top_words: tuple[tuple[str, tuple[WeightedWord, ...]], ...]  # (class, words with the largest weights)
    kinds: tuple[GroupKind, ...]
    documents: tuple[ExplainedDocument, ...]
    scale: float  # the absolute weight that is shown in full colour
    measure: str  # what `change` is a change of: log-probability, score or number
