"""Rejection sampling of next words from a language model, at a cost independent of the size of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from structsparse.kernels.structures import contexts_pruned as kernels
from structsparse.tasks.lm.trie import Trie

_LEAST = 1e-280  # least total mass of the proposals; smaller masses are inexact in floating point
_TRIES = 1000  # most proposals; if all are rejected, the draw is over the full vocabulary


class Sampler:
    """Sampler of next words from a language model: exact rejection sampling.

    The probability of a word is proportional to exp(score / temperature).

    The mass of an entry (context, word) is exp(score / temperature), up to a constant factor. The entry above has the
    same word, after the nearest shorter context with such an entry. The increase of an entry is the mass minus the mass
    of the entry above. A negative increase counts as 0. The sampler proposes an entry on the path of the context with
    probability proportional to the increase. The sampler accepts the word with probability m / s. Here m is the mass of
    the word's deepest entry on the path. s is the sum of the increases of the word's entries along the path. If all
    weights are positive, the first proposal is always accepted."""

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
        """Sampling from a language model: draw a next word over the full vocabulary, at a cost of V scores.

        This is for contexts with many rejections or with tiny masses. V is the number of words."""
        scores = self.trie.after(node, self._scores)
        masses = np.cumsum(np.exp((scores - scores.max()) * self._cooling))
        return int(np.searchsorted(masses, generator.random() * masses[-1], side="right"))
