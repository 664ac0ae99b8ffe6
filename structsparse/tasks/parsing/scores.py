"""How right predicted dependency trees are: counts that add up over batches and ranks."""

from __future__ import annotations

from typing import Self

import numpy as np

from structsparse.corpora.treebank import per_sentence

COUNTED = (
    *("tokens", "heads", "arcs", "labelled"),
    *("tokens_no_punct", "heads_no_punct", "arcs_no_punct"),
    *("sentences", "complete", "complete_no_punct", "roots"),
)


class TreeScore:
    """Attachment of tokens to heads, whole trees and roots.

    uas                share of the tokens with the right head
    las                share of the tokens with the right head and the right relation, compared as it is written, with
                       what stands after a colon; only where relations were predicted
    uas_no_punct       the same two over the tokens that are no punctuation; what is punctuation, the caller says (of
    las_no_punct       Universal Dependencies the part of speech PUNCT, as in most papers; of CoNLL-X tokens of nothing
                       but marks, as `eval.pl` has it). A wrong head that is punctuation counts as any wrong head.
    complete           share of the sentences all of whose tokens have the right head
    complete_no_punct  share of the sentences all of whose tokens that are no punctuation have the right head
    root_accuracy      share of the sentences whose roots (tokens with head 0) are those of the gold tree, no other and
                       all of them if there are several
    """

    def __init__(self) -> None:
        self._counts = np.zeros(len(COUNTED), dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        return self._counts  # int64, of what COUNTED says

    @counts.setter
    def counts(self, counts) -> None:
        counts = np.array(counts, dtype=np.int64)
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts have shape {counts.shape}, expected {self._counts.shape}")
        self._counts = counts

    def __add__(self, other: Self) -> Self:
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
        """Count the sentences of these heads (0: the root, else places from 1 on) and, if they were predicted, codes of
        relations.  [tokens], [tokens], [sentences + 1], bool [tokens], [tokens], [tokens]"""
        _check(gold, predicted, offsets, punctuation, gold_labels, labels)
        right, word = gold == predicted, ~punctuation
        arcs = right & (gold_labels == labels) if labels is not None else np.zeros(len(right), bool)
        wrong = per_sentence(~right, offsets)
        moved = per_sentence((gold == 0) != (predicted == 0), offsets)
        found = {
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
        self._counts += [found[name] for name in COUNTED]

    def result(self) -> dict[str, float]:
        """The shares as fractions, and how many tokens and sentences there were."""
        seen = dict(zip(COUNTED, self._counts.tolist(), strict=True))
        tokens, words, sentences = (max(1, seen[name]) for name in ("tokens", "tokens_no_punct", "sentences"))
        found = {"uas": seen["heads"] / tokens, "uas_no_punct": seen["heads_no_punct"] / words}
        if seen["labelled"]:
            found |= {"las": seen["arcs"] / tokens, "las_no_punct": seen["arcs_no_punct"] / words}
        return found | {
            "complete": seen["complete"] / sentences,
            "complete_no_punct": seen["complete_no_punct"] / sentences,
            "root_accuracy": seen["roots"] / sentences,
            "tokens": seen["tokens"],
            "sentences": seen["sentences"],
        }


def _check(gold, predicted, offsets, punctuation, gold_labels, labels) -> None:
    tokens = int(offsets[-1])
    if (labels is None) != (gold_labels is None):
        raise ValueError("relations of one side only, expected those of both or of none")
    given = {"gold": gold, "predicted": predicted, "punctuation": punctuation}
    given |= {} if labels is None else {"gold_labels": gold_labels, "labels": labels}
    for name, values in given.items():
        if values.shape != (tokens,):
            raise ValueError(f"{name} has shape {values.shape}, expected {(tokens,)}")
    lengths = np.repeat(np.diff(offsets), np.diff(offsets))
    for name, heads in (("gold", gold), ("predicted", predicted)):
        if ((heads < 0) | (heads > lengths)).any():
            token = int(np.argmax((heads < 0) | (heads > lengths)))
            raise ValueError(f"{name} head {heads[token]} of token {token}, expected 0 to {lengths[token]}")
