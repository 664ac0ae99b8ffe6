"""Rejection sampling of next words from a language model, at a cost independent of the size of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from structsparse.kernels.structures import contexts_pruned as kernels
from structsparse.tasks.lm.trie import Trie

_LEAST = 1e-280  # minimum sum of unnormalized proposal probabilities; smaller sums are inexact in floating point
_TRIES = 1000  # maximum number of proposals; after these, the word is drawn without rejection


class Sampler:
    """Sampler of next words from a language model: exact rejection sampling.

    The probability of a word after a context is proportional to its mass exp(score / temperature). The gain of a word
    at a context is its mass after this context, minus its mass after the next shorter one. Negative gains are replaced
    by 0. At the empty context, the gain is the mass.

    1. Propose a suffix of the context and a word, with a probability proportional to the gain.
    2. Accept the word with probability m / s. Here m is the mass of the word after the whole context. s is the sum of
       the word's gains at all suffixes.
    3. Repeat until a word is accepted."""

    def __init__(self, trie: Trie, scores: np.ndarray, temperature: float):
        self.trie, self._scores = trie, scores
        self._shift, self._cooling = float(scores.max()), 1 / temperature
        self._bound, self._gain, self._gains = np.empty(trie.entries), np.empty(trie.entries), np.empty(trie.nodes)
        arrays = (scores, trie.above, trie.starts, trie.entry_above)
        kernels.propose(*arrays, self._shift, self._cooling, self._bound, self._gain, self._gains)

    def draw(self, context: Sequence[int], generator: np.random.Generator) -> int:
        """Sampling from a language model: draw a random next word after a context.

        The context is a sequence of word codes; the result is the code of the word."""
        path = self.trie.path(context)
        gains = np.cumsum(self._gains[path])
        for _ in range(_TRIES if gains[-1] > _LEAST else 0):
            node = path[int(np.searchsorted(gains, generator.random() * gains[-1], side="right"))]
            begin, end = self.trie.starts[node : node + 2].tolist()
            gain = self._gain[begin:end]
            proposed = int(np.searchsorted(gain, generator.random() * gain[-1], side="right"))
            word = int(self.trie.entry_word[begin + proposed])
            deepest = next(entry for node in reversed(path) if (entry := self.trie.entry(node, word)) >= 0)
            mass = np.exp((self._scores[deepest] - self._shift) * self._cooling)
            if generator.random() * self._bound[deepest] < mass:
                return word
        return self._draw_among_all(path[-1], generator)

    def _draw_among_all(self, node: int, generator: np.random.Generator) -> int:
        """Sampling from a language model: draw a next word from the full vocabulary, without rejection.

        This is used after too many rejections, or if the sum of all proposal probabilities is too close to zero."""
        scores = self.trie.after(node, self._scores)
        masses = np.cumsum(np.exp((scores - scores.max()) * self._cooling))
        return int(np.searchsorted(masses, generator.random() * masses[-1], side="right"))
