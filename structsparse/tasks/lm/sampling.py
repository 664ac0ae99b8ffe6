"""Words drawn from a language model, each at a cost that does not depend on the size of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from structsparse.kernels.structures import contexts_pruned as ngrams
from structsparse.tasks.lm.trie import Trie

_LEAST = 1e-280  # smaller masses have lost digits
_TRIES = 1000


class Sampler:
    """Exact draws of the next word, with probability in proportion to exp(score / temperature).

    A word is proposed according to what the entries on the way to its context add to the mass of their words, and
    taken with the share of it that is left where deeper entries have taken some away. If none has, as where all
    weights are positive, the first proposal is taken."""

    def __init__(self, trie: Trie, scores: np.ndarray, temperature: float):
        self.trie, self._scores = trie, scores
        self._shift, self._cooling = float(scores.max()), 1 / temperature
        self._bound, self._gain, self._gains = np.empty(trie.entries), np.empty(trie.entries), np.empty(trie.nodes)
        arrays = (scores, trie.above, trie.starts, trie.entry_above)
        ngrams.propose(*arrays, self._shift, self._cooling, self._bound, self._gain, self._gains)

    def draw(self, context: Sequence[int], generator: np.random.Generator) -> int:
        """The code of a next word after these."""
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
        """Where next to nothing is left of what is proposed, or all masses are tiny beside those of other contexts."""
        scores = self.trie.after(node, self._scores)
        masses = np.cumsum(np.exp((scores - scores.max()) * self._cooling))
        return int(np.searchsorted(masses, generator.random() * masses[-1], side="right"))
