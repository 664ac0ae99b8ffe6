"""The living contexts of a language model as text: a table, and the ARPA format that other toolkits read.

A log-linear model is no back-off model, and yet its ARPA file is exact. Where a word w has no weight in a context h,
its score is that in the context h' above it, so that p(w | h) = p(w | h') Z(h') / Z(h): Z(h') / Z(h) is the back-off
weight, the same for all such words, and all others stand in the file with their probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from structsparse.kernels.features import suffixes
from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.trie import Trie

_ROWS = 1 << 15  # lines made at once
_NEVER = "-99"  # the probability of a start, which nobody predicts, as the format has it


def tsv(model: LanguageModel) -> Iterator[str]:
    """A line for every weight that is not zero: the context, the next word, what the context adds to its score, its
    probability there and, where it is known, how often training has seen it."""
    trie, name = model.trie, model.vocabulary.name
    yield "\t".join(["context", "word", "weight", "probability", *([] if trie.counts is None else ["count"])]) + "\n"
    living = np.flatnonzero(model.weights)
    for begin in range(0, len(living), _ROWS):
        entries = living[begin : begin + _ROWS]
        nodes = trie.entry_node[entries]
        contexts = {node: " ".join(map(name, trie.context(node))) for node in np.unique(nodes).tolist()}
        columns = [
            [contexts[node] for node in nodes.tolist()],
            [name(word) for word in trie.entry_word[entries].tolist()],
            [f"{weight:.6g}" for weight in model.increments[entries].tolist()],
            [f"{chance:.6g}" for chance in np.exp(model.scores[entries] - model.log_z[nodes]).tolist()],
            *([] if trie.counts is None else [map(str, trie.counts[entries].tolist())]),
        ]
        yield "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def arpa(model: LanguageModel) -> Iterator[str]:
    """Logarithms to base 10 of probabilities and back-off weights, as long as they are needed, shorter ones first.

    Besides the n-grams with a weight the format wants those that are contexts of others, and their beginnings."""
    grams = _grams(model.trie)
    yield "\\data\\\n" + "".join(f"ngram {k}={len(level.last)}\n" for k, level in enumerate(grams, start=1))
    for length in range(1, len(grams) + 1):
        yield f"\n\\{length}-grams:\n"
        for begin in range(0, len(grams[length - 1].last), _ROWS):
            yield "".join(_lines(model, grams, length, slice(begin, begin + _ROWS)))
    yield "\n\\end\\\n"


FORMATS: dict[str, Callable[[LanguageModel], Iterator[str]]] = {"arpa": arpa, "tsv": tsv}


@dataclass(frozen=True)
class _Grams:
    """All n-grams of one length, ascending."""

    begin: np.ndarray  # int64 [n-grams], all words but the last, as the number of a shorter one
    last: np.ndarray  # int64 [n-grams]
    node: np.ndarray  # int64 [n-grams], the context that has these words, -1 if it is none


def _grams(trie: Trie) -> list[_Grams]:
    """The n-grams of 1, 2, ... words that are entries, contexts, or the beginning of one of these."""
    base = trie.words + 1
    deep, at = np.arange(1, trie.nodes), np.arange(1, trie.nodes)  # contexts that have more words, and their next one
    number = np.full(trie.nodes, -1)  # of the beginning of each context, as far as it has been read
    levels = [_Grams(np.full(base, -1), np.arange(base), np.full(base, -1))]
    entry_node, depth = trie.entry_node, trie.depth
    number[deep], at = trie.word[deep], trie.above[at]
    while True:
        length = len(levels)
        complete = deep[depth[deep] == length]
        levels[-1].node[number[complete]] = complete
        said = np.flatnonzero((depth[entry_node] == length) & (entry_node > 0))
        more = depth[deep] > length
        deep, at = deep[more], at[more]
        keys = np.concatenate(
            [number[deep] * base + trie.word[at], number[entry_node[said]] * base + trie.entry_word[said]]
        )
        if not len(keys):
            return levels
        grams, of = np.unique(keys, return_inverse=True)
        levels.append(_Grams(grams // base, grams % base, np.full(len(grams), -1)))
        number[deep], at = of[: len(deep)], trie.above[at]


def _lines(model: LanguageModel, grams: list[_Grams], length: int, rows: slice) -> Iterator[str]:
    trie, level = model.trie, grams[length - 1]
    codes = np.empty((len(level.last[rows]), length + 1), np.int32)
    codes[:, 0] = trie.words + 1  # no word, so that no context reaches beyond
    number = np.arange(len(level.last))[rows]
    for k in range(length, 0, -1):
        codes[:, k], number = grams[k - 1].last[number], grams[k - 1].begin[number]
    node, entry = _located(trie, codes)
    chances = (model.scores[entry] - model.log_z[node]) / math.log(10)
    names = np.array([*model.vocabulary.words, model.vocabulary.name(trie.words)], object)
    words = names[codes[:, 1:]].tolist()
    for its, chance, at in zip(words, chances.tolist(), level.node[rows].tolist(), strict=True):
        written = _NEVER if its[-1] == names[-1] else f"{chance:.8f}"
        backoff = f"\t{(model.log_z[trie.above[at]] - model.log_z[at]) / math.log(10):.8f}" if at > 0 else ""
        yield f"{written}\t{' '.join(its)}{backoff}\n"


def _located(trie: Trie, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The deepest context and entry of the last word of every row."""
    flat, targets = codes.ravel(), np.arange(1, len(codes) + 1) * codes.shape[1] - 1
    node, entry = (np.empty(len(codes), np.int32) for _ in range(2))
    walked = (trie.above, trie.word, trie.children, trie.entry_word, trie.starts)
    suffixes.locate(flat, targets, trie.words, trie.order, *walked, node, entry)
    return node, np.where(codes[:, -1] == trie.words, 0, entry)  # a start has no entry of its own
