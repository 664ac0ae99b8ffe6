"""The content of an explanation of a text classifier: words, word groups, and documents with selected sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from structsparse.tasks.textcat.explain.phrases import Phrase


class WeightedWord(NamedTuple):
    """Content of an explanation: a word of the text classifier, with its weight."""

    word: str
    weight: float  # weight for the class under which the word is listed; in a group, weight of largest absolute value


class GroupSummary(NamedTuple):
    """Content of an explanation: a word group with name, norm, and heaviest words."""

    name: str
    lives: bool  # whether the group is selected
    norm: float  # Euclidean norm of the weights of the group
    size: int  # number of words in the group
    words: tuple[WeightedWord, ...]  # words with the largest weights, or in an unselected group the most frequent words


class GroupKind(NamedTuple):
    """Content of an explanation: all word groups of one kind, such as topics."""

    name: str
    living: int  # number of selected groups
    dead: int  # number of groups that are not selected
    shown: tuple[GroupSummary, ...]  # selected groups with the largest norms, then the largest unselected groups


class ExplainedSentence(NamedTuple):
    """Content of an explanation: a sentence of a document, with the weights of its words and whether it is selected."""

    pieces: tuple[tuple[str, float], ...]  # words with their weights, and the text between words (weight 0)
    lives: bool  # whether the sentence is selected
    change: float  # how much the sentence raises the log-probability (or score) of the document's class

    @property
    def text(self) -> str:
        """Content of an explained sentence: the text of the sentence, exactly as in the document."""
        return "".join(piece for piece, _ in self.pieces)


class ExplainedDocument(NamedTuple):
    """Content of an explanation: a document with label, prediction, sentences and phrases."""

    name: str
    part: str  # train, dev or test
    label: str
    predicted: str
    probability: float | None  # probability of the predicted class; None if the loss gives no probabilities
    sentences: tuple[ExplainedSentence, ...]
    phrases: tuple[Phrase, ...]  # the roots of the parse trees of the document

    @property
    def right(self) -> bool:
        """Content of an explained document: whether the prediction is correct."""
        return self.label == self.predicted


@dataclass(frozen=True)
class Explanation:
    """The content of the explanation of a text classifier, ready to be written as HTML or as plain text."""

    title: str
    classes: tuple[str, ...]  # class names; "lower" and "higher" if the model predicts numbers
    weights: int  # number of weights
    living: int  # number of nonzero weights
    top_words: tuple[tuple[str, tuple[WeightedWord, ...]], ...]  # name and heaviest words of each class
    kinds: tuple[GroupKind, ...]
    documents: tuple[ExplainedDocument, ...]
    scale: float  # words of this absolute weight or more have full colour
    measure: str  # value that a sentence changes: "log-probability", "score" or "number"
