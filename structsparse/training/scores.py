"""Accuracy and F1 scores as vectors of counts, which add up over batches and over processes."""

from collections.abc import Sequence
from typing import Self

import numpy as np

LOWER_IS_BETTER = ("perplexity", "perplexity_open", "mse", "nll")
ENDS = 4  # number of counts at the end of the vector: tokens, right tokens, sentences, right sentences
UNSEEN = "(unseen)"  # stands for all gold labels that the model does not know


def gain(metric: str, value: float) -> float:
    """Scores of any task on dev: the value of a metric, negated if lower values of the metric are better.

    `metric` is a name such as `f1`, `dev_perplexity` or `dev/f1`."""
    name = metric.removeprefix("selected ").replace("/", "_").removeprefix("dev_")
    return -value if name in LOWER_IS_BETTER else value


class LabelScore:
    """Base class of label scores: counts of correct, gold and predicted labels or spans by type, and token accuracy.

    `counts` holds three counts (correct, gold, predicted) for each type. Four counts follow: tokens, right tokens,
    sentences, right sentences."""

    def __init__(self, names: Sequence[str], kinds: Sequence[str]):
        self.names, self.kinds = tuple(names), tuple(kinds)
        self._counts = np.zeros(3 * len(self.kinds) + ENDS, dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        """Label scores of any task: all counts in one int64 vector: three for each type, then four totals."""
        return self._counts

    @counts.setter
    def counts(self, counts) -> None:
        """Label scores of any task: replace the vector of counts, for example by the sum over processes."""
        counts = np.array(counts, dtype=np.int64)
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts have shape {counts.shape}, expected {self._counts.shape}")
        self._counts = counts

    def __add__(self, other: Self) -> Self:
        """Label scores of any task: the sum of the counts of two scores over the same label names."""
        if type(self) is not type(other) or self.names != other.names:
            raise ValueError("only scores of one kind over the same names add up")
        total = type(self)(self.names)
        total.counts = self.counts + other.counts
        return total

    def _add(self, correct, gold, predicted, right: np.ndarray, offsets: np.ndarray) -> None:
        """Label scores of any task: add counts of correct, gold and predicted labels or spans.

        `correct`, `gold` and `predicted` hold the type index of each label or span. `right` (bool array
        [tokens]) marks tokens with the right label. `offsets` holds the index of each sentence's first token, then the
        count of tokens."""
        table = self._counts[:-ENDS].reshape(-1, 3)  # a view: additions to it change the counts
        for column, kinds in enumerate((correct, gold, predicted)):
            table[:, column] += np.bincount(kinds, minlength=len(self.kinds))
        wrong = np.r_[0, np.cumsum(~right)][offsets]  # number of wrong tokens before each sentence
        many = len(offsets) - 1
        self._counts[-ENDS:] += len(right), right.sum(), many, np.count_nonzero(wrong[1:] == wrong[:-1])

    def result(self) -> dict:
        """Label scores of any task: accuracy of tokens and of sentences as fractions, and F1 by type.

        The entry `types` holds precision, recall, F1 and counts of each type."""
        table = self._counts[:-ENDS].reshape(-1, 3).tolist()
        rows = zip(self.kinds, table, strict=True)
        types = {kind: precision_recall_f1(*row) for kind, row in rows if kind != UNSEEN or any(row)}
        tokens, correct, sentences, whole = self._counts[-ENDS:].tolist()
        shares = {"accuracy": correct / max(tokens, 1), "sentence_accuracy": whole / max(sentences, 1)}
        return shares | {"types": types}


class AccuracyScore(LabelScore):
    """Label scores of any task by accuracy: the fraction of tokens with the right label.

    A gold label that is not among the known names is never right."""

    def __init__(self, names: Sequence[str]):
        super().__init__(names, [*names, UNSEEN])

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> None:
        """Label scores of any task: add the accuracy counts of sentences.

        `gold` and `predicted` hold the label code of each token. `offsets` holds the index of each sentence's first
        token, then the count of tokens."""
        gold, predicted = checked_codes(gold, predicted, offsets, len(self.names))
        right = gold == predicted
        self._add(gold[right], gold, predicted, right, offsets)

    def by_sentence(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The numbers of right, gold and predicted tags of each sentence (int64 [sentences, 3])."""
        gold, predicted = checked_codes(gold, predicted, offsets, len(self.names))
        right = np.diff(np.r_[0, np.cumsum(gold == predicted)][offsets])
        lengths = np.diff(offsets)
        return np.stack([right, lengths, lengths], axis=1)


def checked_codes(gold, predicted, offsets, names: int) -> tuple[np.ndarray, np.ndarray]:
    """Label scores of any task: gold and predicted label codes as arrays; invalid codes are an error.

    `names` is the number of known labels. Gold codes from `names` on stand for unknown labels, and become `names`."""
    gold, predicted = np.minimum(gold, names), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.shape != (int(offsets[-1]),):
        shapes = f"{gold.shape} gold and {predicted.shape} predicted"
        raise ValueError(f"{shapes} codes for {int(offsets[-1])} tokens, expected as many of each")
    for side, codes, limit in (("gold", gold, names + 1), ("predicted", predicted, names)):
        if len(codes) and not 0 <= codes.min() <= codes.max() < limit:
            raise ValueError(f"{side} codes from {codes.min()} to {codes.max()}, expected 0 to {names - 1}")
    return gold, predicted


def precision_recall_f1(correct: int, gold: int, predicted: int) -> dict:
    """Label scores of any task: precision, recall and F1 from the counts of correct, gold and predicted labels."""
    return {
        "precision": correct / max(predicted, 1),
        "recall": correct / max(gold, 1),
        "f1": 2 * correct / max(gold + predicted, 1),
        "correct": correct,
        "gold": gold,
        "predicted": predicted,
    }
