"""The score of taggers whose tags encode spans: precision, recall and F1 of whole spans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from structsparse.corpora.tags import Spans, span_types, spans
from structsparse.training.scores import ENDS, UNSEEN, LabelScore, checked_codes, precision_recall_f1


class SpanScore(LabelScore):
    """Span score of a tagger: precision, recall and F1 of whole spans, counted as `conlleval.pl` does.

    A gold label unknown to the tagger counts as a span of one token with a type of its own."""

    def __init__(self, names: Sequence[str]):
        super().__init__(names, [*span_types(names), UNSEEN])
        self._readable = [*names, f"B-{UNSEEN}"]

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> None:
        """Span score of a tagger: count the spans of some sentences, from gold and predicted label codes [tokens].

        `offsets`, of shape [sentences + 1], has the first token of each sentence."""
        gold, predicted = checked_codes(gold, predicted, offsets, len(self.names))
        truth, guess, correct = self._compared(gold, predicted, offsets)
        self._add(guess.type[correct], truth.type, guess.type, gold == predicted, offsets)

    def by_sentence(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The numbers of correct, gold and predicted spans of each sentence (int64 [sentences, 3])."""
        truth, guess, correct = self._compared(*checked_codes(gold, predicted, offsets, len(self.names)), offsets)
        starts = guess.start[correct], truth.start, guess.start
        sentences = (np.searchsorted(offsets, start, side="right") - 1 for start in starts)
        return np.stack([np.bincount(s, minlength=len(offsets) - 1) for s in sentences], axis=1)

    def _compared(
        self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray
    ) -> tuple[Spans, Spans, np.ndarray]:
        """The gold spans, the predicted spans, and which of the predicted spans are correct."""
        truth, guess = (spans(codes, offsets, self._readable) for codes in (gold, predicted))
        # `end` and `kind` hold, at the first token of each gold span, the end and the type of the span
        end, kind = np.zeros((2, len(gold)), dtype=np.int64)
        end[truth.start], kind[truth.start] = truth.end, truth.type
        return truth, guess, (end[guess.start] == guess.end) & (kind[guess.start] == guess.type)

    def result(self) -> dict:
        """Span score of a tagger: F1, precision and recall of all spans, and token accuracy, from 0 to 1.

        The entry `types` has F1, precision and recall of each span type."""
        totals = precision_recall_f1(*self._counts[:-ENDS].reshape(-1, 3).sum(axis=0).tolist())
        return {name: totals[name] for name in ("f1", "precision", "recall")} | super().result()
