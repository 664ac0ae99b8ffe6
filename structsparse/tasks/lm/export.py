"""Export of a language model as text: a table of contexts with nonzero weights, or the ARPA format of other toolkits.

The ARPA file is in back-off form, and has exactly the probabilities of the model. Let h be a context, and h' the
context without the first word of h. For a word w that has no weight after h,

    p(w | h) = p(w | h') Z(h') / Z(h).

Z(h) is the sum over all words of exp(score of the word after h). The back-off weight of h is Z(h') / Z(h)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from structsparse.tasks.lm.predictor import LanguageModel
from structsparse.tasks.lm.trie import Trie

_ROWS = 1 << 15  # maximum number of lines in each yielded block
_NEVER = "-99"  # log10 probability of `<s>` in the ARPA format; `<s>` is never predicted


def tsv(model: LanguageModel) -> Iterator[str]:
    """Language-model export: lines of a tab-separated table, one line for every nonzero weight.

    The columns are the context, the next word, what the context adds to the word's score, and the word's probability.
    If the model has training counts, the last column is the number of occurrences in training."""
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
            [f"{probability:.6g}" for probability in np.exp(model.scores[entries] - model.log_z[nodes]).tolist()],
            *([] if trie.counts is None else [map(str, trie.counts[entries].tolist())]),
        ]
        yield "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def arpa(model: LanguageModel) -> Iterator[str]:
    """Language-model export: lines of an ARPA file, with log10 probabilities and back-off weights, short n-grams first.

    The n-grams are the contexts, each context followed by each of its next words, and all prefixes of these."""
    grams = _grams(model.trie)
    yield "\\data\\\n" + "".join(f"ngram {k}={len(level.last)}\n" for k, level in enumerate(grams, start=1))
    for length in range(1, len(grams) + 1):
        yield f"\n\\{length}-grams:\n"
        for begin in range(0, len(grams[length - 1].last), _ROWS):
            yield "".join(_arpa_lines(model, grams, length, slice(begin, begin + _ROWS)))
    yield "\n\\end\\\n"


FORMATS: dict[str, Callable[[LanguageModel], Iterator[str]]] = {"arpa": arpa, "tsv": tsv}


@dataclass(frozen=True)
class _Grams:
    """Language-model export: the n-grams of one length in an ARPA file, sorted by word codes."""

    prefix: np.ndarray  # int64 [n-grams], index of the shorter n-gram without the last word; -1 for single words
    last: np.ndarray  # int64 [n-grams], the code of the last word
    node: np.ndarray  # int64 [n-grams], the trie node of the context with exactly these words; -1 if there is none


def _grams(trie: Trie) -> list[_Grams]:
    """Language-model export: the n-grams of an ARPA file, one `_Grams` for each length.

    The n-grams are the contexts, each context followed by each of its next words, and all prefixes of these."""
    base = trie.words + 1
    # All contexts are read in parallel, from the first word to the last. deep: the trie nodes of contexts with unread
    # words. at: for each of them, the trie node of the sequence of unread words.
    deep, at = np.arange(1, trie.nodes), np.arange(1, trie.nodes)
    number = np.full(trie.nodes, -1)  # for each context: index of the n-gram of its words read so far
    levels = [_Grams(np.full(base, -1), np.arange(base), np.full(base, -1))]
    entry_node, depth = trie.entry_node, trie.depth
    number[deep], at = trie.word[deep], trie.above[at]
    while True:
        length = len(levels)
        complete = deep[depth[deep] == length]
        levels[-1].node[number[complete]] = complete
        entries = np.flatnonzero((depth[entry_node] == length) & (entry_node > 0))
        more = depth[deep] > length
        deep, at = deep[more], at[more]
        keys = np.concatenate(
            [number[deep] * base + trie.word[at], number[entry_node[entries]] * base + trie.entry_word[entries]]
        )
        if not len(keys):
            return levels
        grams, of_key = np.unique(keys, return_inverse=True)
        levels.append(_Grams(grams // base, grams % base, np.full(len(grams), -1)))
        number[deep], at = of_key[: len(deep)], trie.above[at]


def _arpa_lines(model: LanguageModel, grams: list[_Grams], length: int, rows: slice) -> Iterator[str]:
    """Language-model export: lines of an ARPA file for some n-grams of one length; `rows` selects the n-grams."""
    trie, level = model.trie, grams[length - 1]
    codes = np.empty((len(level.last[rows]), length + 1), np.int32)
    codes[:, 0] = trie.words + 1  # a code of no word: separates the n-grams, which are joined into one text
    number = np.arange(len(level.last))[rows]
    for k in range(length, 0, -1):
        codes[:, k], number = grams[k - 1].last[number], grams[k - 1].prefix[number]
    node, entry = _locate_last(trie, codes)
    log10 = (model.scores[entry] - model.log_z[node]) / math.log(10)
    names = np.array([*model.vocabulary.words, model.vocabulary.name(trie.words)], object)
    rows_of_words = names[codes[:, 1:]].tolist()
    for words, probability, at in zip(rows_of_words, log10.tolist(), level.node[rows].tolist(), strict=True):
        first = _NEVER if words[-1] == names[-1] else f"{probability:.8f}"
        backoff = f"\t{(model.log_z[trie.above[at]] - model.log_z[at]) / math.log(10):.8f}" if at > 0 else ""
        yield f"{first}\t{' '.join(words)}{backoff}\n"


def _locate_last(trie: Trie, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Language-model export: find the trie node and the entry that give the probability of each n-gram's last word.

    The node is the longest known context before the last word. The entry (context, last word) has the longest context.
    Each row of `codes` begins with a code of no word, as a separator. The word codes of an n-gram follow."""
    node, entry = trie.locate_codes(codes.ravel(), np.arange(1, len(codes) + 1) * codes.shape[1] - 1)
    return node, np.where(codes[:, -1] == trie.words, 0, entry)  # `<s>` has no entry: 0 is a placeholder
