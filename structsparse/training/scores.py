"""Accuracy and F1 scores as vectors of counts, which add up over batches and over processes."""

from collections.abc import Sequence
from typing import Self

import numpy as np

LOWER_IS_BETTER = ("perplexity", "perplexity_open", "mse")
ENDS = 4  # counts at the end of the vector: tokens, right tokens, sentences, right sentences
UNSEEN = "(unseen)"  # the type of gold labels that are not among the known names


def gain(metric: str, value: float) -> float:
    """The value of a metric (`f1`, `dev_perplexity`, `dev/f1`, ...), negated if lower values are better."""
    name = metric.removeprefix("selected ").replace("/", "_").removeprefix("dev_")
    return -value if name in LOWER_IS_BETTER else value


class LabelScore:
    """Base class of label scores: counts of correct, gold and predicted labels or spans by type, and token accuracy.

    `counts` holds (correct, gold, predicted) of each type, then tokens, right tokens, sentences, right sentences."""

    def __init__(self, names: Sequence[str], kinds: Sequence[str]):
        self.names, self.kinds = tuple(names), tuple(kinds)
        self._counts = np.zeros(3 * len(self.kinds) + ENDS, dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        """The counts as one vector: int64 [3 * kinds + ENDS]"""
        return self._counts

    @counts.setter
    def counts(self, counts) -> None:
        """Replace the counts, say by their sum over processes."""
        counts = np.array(counts, dtype=np.int64)
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts have shape {counts.shape}, expected {self._counts.shape}")
        self._counts = counts

    def __add__(self, other: Self) -> Self:
        """The sum of two scores over the same label names."""
        if type(self) is not type(other) or self.names != other.names:
            raise ValueError("only scores of one kind over the same names add up")
        total = type(self)(self.names)
        total.counts = self.counts + other.counts
        return total

    def _add(self, correct, gold, predicted, right: np.ndarray, offsets: np.ndarray) -> None:
        """Add counts of correct, gold and predicted labels or spans, given as arrays of type numbers.

        `right` [tokens] marks right tokens; `offsets` [sentences + 1] are the first tokens of sentences."""
        table = self._counts[:-ENDS].reshape(-1, 3)  # a view: additions below change the counts
        for column, kinds in enumerate((correct, gold, predicted)):
            table[:, column] += np.bincount(kinds, minlength=len(self.kinds))
        wrong = np.r_[0, np.cumsum(~right)][offsets]  # wrong tokens before each sentence
        many = len(offsets) - 1
        self._counts[-ENDS:] += len(right), right.sum(), many, np.count_nonzero(wrong[1:] == wrong[:-1])

    def result(self) -> dict:
        """The scores: accuracy of tokens and of sentences as fractions, and scores by type.

        `types` has precision, recall, F1 and counts of each type."""
        table = self._counts[:-ENDS].reshape(-1, 3).tolist()
        rows = zip(self.kinds, table, strict=True)
        types = {kind: precision_recall_f1(*row) for kind, row in rows if kind != UNSEEN or any(row)}
        tokens, correct, sentences, whole = self._counts[-ENDS:].tolist()
        shares = {"accuracy": correct / max(tokens, 1), "sentence_accuracy": whole / max(sentences, 1)}
        return shares | {"types": types}


class AccuracyScore(LabelScore):
    """Tagging accuracy: the fraction of tokens with the right tag. A gold tag that is unknown is never right."""

    def __init__(self, names: Sequence[str]):
        super().__init__(names, [*names, UNSEEN])

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> None:
        """Count the tokens of sentences: gold and predicted tag codes [tokens], offsets [sentences + 1]."""
        gold, predicted = checked_codes(gold, predicted, offsets, len(self.names))
        right = gold == predicted
        self._add(gold[right], gold, predicted, right, offsets)


def checked_codes(gold, predicted, offsets, names: int) -> tuple[np.ndarray, np.ndarray]:
    """Gold and predicted label codes as checked arrays; gold codes of unknown labels become `names`."""
    gold, predicted = np.minimum(gold, names), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.shape != (int(offsets[-1]),):
        shapes = f"{gold.shape} gold and {predicted.shape} predicted"
        raise ValueError(f"{shapes} codes for {int(offsets[-1])} tokens, expected as many of each")
    for side, codes, limit in (("gold", gold, names + 1), ("predicted", predicted, names)):
        if len(codes) and not 0 <= codes.min() <= codes.max() < limit:
            raise ValueError(f"{side} codes from {codes.min()} to {codes.max()}, expected 0 to {names - 1}")
    return gold, predicted


def precision_recall_f1(correct: int, gold: int, predicted: int) -> dict:
    """Precision, recall and F1 from the numbers of correct, gold and predicted labels or spans."""
    return {
        "precision": correct / max(predicted, 1),
        "recall": correct / max(gold, 1),
        "f1": 2 * correct / max(gold + predicted, 1),
        "correct": correct,
        "gold": gold,
        "predicted": predicted,
    }
