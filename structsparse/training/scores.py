"""Scores that accumulate over batches and add up over ranks: every one is a vector of counts."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from structsparse.corpora.tags import span_types, spans

LOWER_IS_BETTER = ("perplexity", "perplexity_open", "mse")
ENDS = 4  # counts that are of no kind
UNSEEN = "(unseen)"  # the type of gold labels beyond the names given


def gain(metric: str, value: float) -> float:
    """The value of a metric (`f1`, `dev_perplexity`, `dev/f1`, ...) so that more of it is better."""
    name = metric.removeprefix("selected ").replace("/", "_").removeprefix("dev_")
    return -value if name in LOWER_IS_BETTER else value


class _Counts:
    """`counts` holds (correct, gold, predicted) for each kind, then tokens and right ones, sentences and right ones."""

    def __init__(self, names: Sequence[str], kinds: Sequence[str]):
        self.names, self.kinds = tuple(names), tuple(kinds)
        self._counts = np.zeros(3 * len(self.kinds) + ENDS, dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        return self._counts  # int64 [3 * kinds + ENDS]

    @counts.setter
    def counts(self, counts) -> None:
        counts = np.array(counts, dtype=np.int64)
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts have shape {counts.shape}, expected {self._counts.shape}")
        self._counts = counts

    def __add__(self, other: Self) -> Self:
        if type(self) is not type(other) or self.names != other.names:
            raise ValueError("only scores of one kind over the same names add up")
        total = type(self)(self.names)
        total.counts = self.counts + other.counts
        return total

    def _add(self, correct, gold, predicted, right: np.ndarray, offsets: np.ndarray) -> None:
        """Add kinds of the correct, gold and predicted things, and which tokens are right: bool [tokens]."""
        table = self._counts[:-ENDS].reshape(-1, 3)  # a view
        for column, kinds in enumerate((correct, gold, predicted)):
            table[:, column] += np.bincount(kinds, minlength=len(self.kinds))
        wrong = np.r_[0, np.cumsum(~right)][offsets]  # before each sentence
        many = len(offsets) - 1
        self._counts[-ENDS:] += len(right), right.sum(), many, np.count_nonzero(wrong[1:] == wrong[:-1])

    def result(self) -> dict:
        """Accuracy over tokens and over sentences (right in all tokens) as fractions, and `types`: precision, recall,
        f1 and counts of each kind."""
        table = self._counts[:-ENDS].reshape(-1, 3).tolist()
        rows = zip(self.kinds, table, strict=True)
        types = {kind: _ratios(*row) for kind, row in rows if kind != UNSEEN or any(row)}
        tokens, correct, sentences, whole = self._counts[-ENDS:].tolist()
        shares = {"accuracy": correct / max(tokens, 1), "sentence_accuracy": whole / max(sentences, 1)}
        return shares | {"types": types}


class SpanScore(_Counts):
    """Precision, recall and F1 of whole spans, as `conlleval.pl` counts them.

    A gold code beyond the names is a span of one token, of a type that is never predicted.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__(names, [*span_types(names), UNSEEN])
        self._readable = [*names, f"B-{UNSEEN}"]

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> None:
        """Count the sentences of these codes, one after the other.  [tokens], [tokens], [sentences + 1]"""
        gold, predicted = _checked(gold, predicted, offsets, len(self.names))
        truth, guess = (spans(codes, offsets, self._readable) for codes in (gold, predicted))
        end, kind = np.zeros((2, len(gold)), dtype=np.int64)  # of the gold span that starts at a token
        end[truth.start], kind[truth.start] = truth.end, truth.type
        correct = (end[guess.start] == guess.end) & (kind[guess.start] == guess.type)
        self._add(guess.type[correct], truth.type, guess.type, gold == predicted, offsets)

    def result(self) -> dict:
        """f1, precision and recall of all spans, accuracy of tokens, as fractions; `types`: each type's."""
        totals = _ratios(*self._counts[:-ENDS].reshape(-1, 3).sum(axis=0).tolist())
        return {name: totals[name] for name in ("f1", "precision", "recall")} | super().result()


class AccuracyScore(_Counts):
    """The fraction of tokens with the right tag; a gold code beyond the names is never right."""

    def __init__(self, names: Sequence[str]):
        super().__init__(names, [*names, UNSEEN])

    def add(self, gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray) -> None:
        """Count the sentences of these codes, one after the other.  [tokens], [tokens], [sentences + 1]"""
        gold, predicted = _checked(gold, predicted, offsets, len(self.names))
        right = gold == predicted
        self._add(gold[right], gold, predicted, right, offsets)


def _checked(gold, predicted, offsets, names: int) -> tuple[np.ndarray, np.ndarray]:
    """The codes as arrays, gold ones beyond the names all made `names`."""
    gold, predicted = np.minimum(gold, names), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.shape != (int(offsets[-1]),):
        shapes = f"{gold.shape} gold and {predicted.shape} predicted"
        raise ValueError(f"{shapes} codes for {int(offsets[-1])} tokens, expected as many of each")
    for side, codes, limit in (("gold", gold, names + 1), ("predicted", predicted, names)):
        if len(codes) and not 0 <= codes.min() <= codes.max() < limit:
            raise ValueError(f"{side} codes from {codes.min()} to {codes.max()}, expected 0 to {names - 1}")
    return gold, predicted


def _ratios(correct: int, gold: int, predicted: int) -> dict:
    return {
        "precision": correct / max(predicted, 1),
        "recall": correct / max(gold, 1),
        "f1": 2 * correct / max(gold + predicted, 1),
        "correct": correct,
        "gold": gold,
        "predicted": predicted,
    }
