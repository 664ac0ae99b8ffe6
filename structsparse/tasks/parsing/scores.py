"""The score of parsers: attachment scores (UAS, LAS), complete trees, and roots."""

from __future__ import annotations

from typing import Self

import numpy as np

from structsparse.corpora.treebank import per_sentence

COUNTED = (  # names of the counts in a score; counts are summed over batches and processes
    *("tokens", "heads", "arcs", "labelled"),
    *("tokens_no_punct", "heads_no_punct", "arcs_no_punct"),
    *("sentences", "complete", "complete_no_punct", "roots"),
)


class TreeScore:
    """The score of a parser: attachment scores of predicted dependency trees.

        uas                share of the tokens with the right head
        las                share of the tokens with the right head and the right relation (including its subtype)
        uas_no_punct       uas over the tokens that are not punctuation
        las_no_punct       las over the tokens that are not punctuation
        complete           share of the sentences in which all tokens have the right head
        complete_no_punct  share of the sentences in which all tokens that are not punctuation have the right head
        root_accuracy      share of the sentences whose roots (tokens with head 0) are the roots of the gold tree

    The las scores exist only if relations are predicted. The caller of `add` decides which tokens are punctuation."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(COUNTED), dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        """Parser score: the counts from which fractions are computed (int64 array in the order of `COUNTED`)."""
        return self._counts

    @counts.setter
    def counts(self, counts) -> None:
        """Parser score: replace the counts; a wrong number of counts is an error."""
        counts = np.array(counts, dtype=np.int64)
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts have shape {counts.shape}, expected {self._counts.shape}")
        self._counts = counts

    def __add__(self, other: Self) -> Self:
        """Add two parser scores: the result is the score over the sentences of both."""
        total = type(self)()
        total.counts = self.counts + other.counts
        return total

    def add(
        self,
        gold: np.ndarray,
        predicted: np.ndarray,
        offsets: np.ndarray,
        punctuation: np.ndarray,
        gold_labels: np.ndarray | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        """Parser score: add the gold and predicted trees of some sentences to the counts.

        - gold, predicted: the head of each token, 0 for the root
        - offsets: where each sentence begins, [sentences + 1]
        - punctuation: whether each token is punctuation
        - gold_labels, labels: codes of gold and predicted relations, if relations are predicted"""
        _check(gold, predicted, offsets, punctuation, gold_labels, labels)
        right, word = gold == predicted, ~punctuation
        arcs = right & (gold_labels == labels) if labels is not None else np.zeros(len(right), bool)
        wrong = per_sentence(~right, offsets)
        moved = per_sentence((gold == 0) != (predicted == 0), offsets)
        counts = {
            "tokens": len(right),
            "heads": right.sum(),
            "arcs": arcs.sum(),
            "labelled": 0 if labels is None else len(right),
            "tokens_no_punct": word.sum(),
            "heads_no_punct": (right & word).sum(),
            "arcs_no_punct": (arcs & word).sum(),
            "sentences": len(wrong),
            "complete": (wrong == 0).sum(),
            "complete_no_punct": (per_sentence(~right & word, offsets) == 0).sum(),
            "roots": (moved == 0).sum(),
        }
        self._counts += [counts[name] for name in COUNTED]

    def result(self) -> dict[str, float]:
        """Parser score: attachment scores as fractions, and the numbers of tokens and sentences."""
        counts = dict(zip(COUNTED, self._counts.tolist(), strict=True))
        tokens, words, sentences = (max(1, counts[name]) for name in ("tokens", "tokens_no_punct", "sentences"))
        scores = {"uas": counts["heads"] / tokens, "uas_no_punct": counts["heads_no_punct"] / words}
        if counts["labelled"]:
            scores |= {"las": counts["arcs"] / tokens, "las_no_punct": counts["arcs_no_punct"] / words}
        return scores | {
            "complete": counts["complete"] / sentences,
            "complete_no_punct": counts["complete_no_punct"] / sentences,
            "root_accuracy": counts["roots"] / sentences,
            "tokens": counts["tokens"],
            "sentences": counts["sentences"],
        }


def _check(gold, predicted, offsets, punctuation, gold_labels, labels) -> None:
    """Parser score: raise an error if arrays differ in length, or if a head is outside of the sentence."""
    tokens = int(offsets[-1])
    if (labels is None) != (gold_labels is None):
        raise ValueError("relations of one side only, expected those of both or of none")
    arrays = {"gold": gold, "predicted": predicted, "punctuation": punctuation}
    arrays |= {} if labels is None else {"gold_labels": gold_labels, "labels": labels}
    for name, values in arrays.items():
        if values.shape != (tokens,):
            raise ValueError(f"{name} has shape {values.shape}, expected {(tokens,)}")
    lengths = np.repeat(np.diff(offsets), np.diff(offsets))
    for name, heads in (("gold", gold), ("predicted", predicted)):
        if ((heads < 0) | (heads > lengths)).any():
            token = int(np.argmax((heads < 0) | (heads > lengths)))
            raise ValueError(f"{name} head {heads[token]} of token {token}, expected 0 to {lengths[token]}")
