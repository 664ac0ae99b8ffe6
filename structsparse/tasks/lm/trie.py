"""The trie of a trained language model: contexts with weights and their next words, in arrays for fast lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from structsparse.corpora.text import EncodedText
from structsparse.kernels.features import suffixes
from structsparse.kernels.structures import contexts_pruned as kernels


@dataclass(frozen=True, eq=False)
class Trie:
    """The trie of a trained language model: contexts, and the words that have a weight after each context.

    - A node is a context, and node 0 is the empty context. The parent is the context without its first word.
    - Nodes are sorted by context length, and the children of a node lie side by side, sorted by word.
    - An entry is a pair of a context and a next word. Entries are sorted by node, then by word.
    - The empty context has an entry for every word."""

    words: int  # number of words; the same number is the code of <s> (start of a sentence), which no entry predicts
    order: int  # contexts have at most order - 1 words
    above: np.ndarray  # int32 [nodes], index of the parent (the context without its first word); -1 for node 0
    word: np.ndarray  # int32 [nodes], code of the first word of the context; -1 for node 0
    starts: np.ndarray  # int32, shape [nodes + 1]: the entries of node n have the indices starts[n] : starts[n + 1]
    entry_word: np.ndarray  # int32 [entries], the code of the next word of each entry
    counts: np.ndarray | None = None  # int32 [entries], occurrences in training; None for a model read from a folder

    @property
    def nodes(self) -> int:
        """The number of nodes (contexts) in the trie of a trained language model."""
        return len(self.above)

    @property
    def entries(self) -> int:
        """The number of entries in the trie of a trained language model: pairs of a context and a next word."""
        return len(self.entry_word)

    @cached_property
    def children(self) -> np.ndarray:
        """Trie of a trained language model: the index of the first child of each node (int32, of shape [nodes + 1]).

        The children of node n have the indices children[n] : children[n + 1]."""
        return suffixes.offsets(self.above, self.nodes)

    @cached_property
    def entry_above(self) -> np.ndarray:
        """Trie of a trained language model: the index of the entry above each entry (int32 [entries]); -1 for none.

        An entry is a pair of a context and a next word. The entry above has the same next word. Its context is the
        nearest shorter context that has an entry for this word."""
        above = np.empty(self.entries, np.int32)
        kernels.entries_above(self.above, self.starts, self.entry_word, above)
        return above

    @cached_property
    def depth(self) -> np.ndarray:
        """Trie of a trained language model: the number of words of each context (int32 [nodes])."""
        depth = np.zeros(self.nodes, np.int32)
        begin, end = 0, 1  # nodes begin .. end - 1 are the contexts of one length; their children have the next length
        while begin < end:
            begin, end = end, int(self.children[end])
            depth[begin:end] = depth[self.above[begin:end]] + 1
        return depth

    @property
    def entry_node(self) -> np.ndarray:
        """Trie of a trained language model: the node (context) of each entry (int32 [entries])."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.starts))

    def locate(self, text: EncodedText) -> tuple[np.ndarray, np.ndarray]:
        """Trie of a trained language model: find every target (word to predict) of a text.

        Returns two arrays (int32 [targets]): the node of the longest known context before each target, and the entry
        (context, target word) with the longest context."""
        return self.locate_codes(text.codes, text.targets)

    def locate_codes(self, codes: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Trie of a trained language model: find the targets (words to predict) of a text that is given as word codes.

        `targets` has the positions of the targets in `codes`. Returns two arrays (int32 [targets]): the node of the
        longest known context before each target, and the entry (context, target word) with the longest context."""
        node, entry = (np.empty(len(targets), np.int32) for _ in range(2))
        arrays = (self.above, self.word, self.children, self.entry_word, self.starts)
        suffixes.locate(codes, targets, self.words, self.order, *arrays, node, entry)
        return node, entry

    def path(self, context: Sequence[int]) -> list[int]:
        """Trie of a trained language model: the nodes of all known suffixes of a context, shortest suffix first.

        `context` has word codes in text order."""
        nodes = [0]
        for code in reversed(context):
            begin, end = self.children[nodes[-1] : nodes[-1] + 2].tolist()
            place = begin + int(np.searchsorted(self.word[begin:end], code))
            if place == end or self.word[place] != code:
                break
            nodes.append(place)
        return nodes

    def context(self, node: int) -> list[int]:
        """Trie of a trained language model: the word codes of a node's context, in text order."""
        codes = []
        while node > 0:
            codes.append(int(self.word[node]))
            node = int(self.above[node])
        return codes

    def after(self, node: int, values: np.ndarray) -> np.ndarray:
        """Trie of a trained language model: look up a value, such as a score, for every word after a context.

        `node` is the node of the context. `values` has a value for each entry (context, word). A word gets the value of
        its entry with the longest suffix of the context. The result is float64, one value per word."""
        of_word = np.empty(self.words)
        kernels.scores_after(node, self.above, self.starts, self.entry_word, values, of_word)
        return of_word

    def entry(self, node: int, word: int) -> int:
        """Trie of a trained language model: the index of the entry for a word at a node; -1 if there is none."""
        begin, end = self.starts[node : node + 2].tolist()
        place = begin + int(np.searchsorted(self.entry_word[begin:end], word))
        return place if place < end and self.entry_word[place] == word else -1
