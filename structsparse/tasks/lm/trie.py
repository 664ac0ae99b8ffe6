"""The trie of a trained language model: living contexts and their next words, in arrays for fast lookup."""

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

    Nodes are contexts in level order; level k has the contexts of k words. Node 0 is the empty context. The children of
    a node are contiguous, sorted by word. Entries are pairs of a context and a next word, sorted by node, then by word.
    Node 0 has an entry for every word."""

    words: int  # number V of words; code V is <s>, the start of a sentence, which occurs in contexts only
    order: int  # contexts have fewer words than this
    above: np.ndarray  # int32 [nodes], parent: the context without the farthest word; -1 for node 0
    word: np.ndarray  # int32 [nodes], code of the farthest word of the context; -1 for node 0
    starts: np.ndarray  # int32 [nodes + 1], the entries of node n are starts[n] : starts[n + 1]
    entry_word: np.ndarray  # int32 [entries], the code of the next word of each entry
    counts: np.ndarray | None = None  # int64 [entries], occurrences in training; None for a model read from a folder

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
        """Trie of a trained language model: the first child of each node, int32 [nodes + 1].

        The children of node n are children[n] : children[n + 1]."""
        return suffixes.offsets(self.above, self.nodes)

    @cached_property
    def entry_above(self) -> np.ndarray:
        """Trie of a trained language model: the entry above each entry, int32 [entries]; -1 for none.

        The entry above has the same word, after the nearest shorter context that has an entry for the word."""
        above = np.empty(self.entries, np.int32)
        kernels.entries_above(self.above, self.starts, self.entry_word, above)
        return above

    @cached_property
    def depth(self) -> np.ndarray:
        """Trie of a trained language model: the number of words of each context: int32 [nodes]"""
        depth = np.zeros(self.nodes, np.int32)
        begin, end = 0, 1  # nodes begin to end - 1 are a level; the children of these nodes are the next level
        while begin < end:
            begin, end = end, int(self.children[end])
            depth[begin:end] = depth[self.above[begin:end]] + 1
        return depth

    @property
    def entry_node(self) -> np.ndarray:
        """Trie of a trained language model: the node (context) of each entry: int32 [entries]"""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.starts))

    def locate(self, text: EncodedText) -> tuple[np.ndarray, np.ndarray]:
        """Trie of a trained language model: the longest known context and the deepest entry of every target of a text.

        Both arrays are int32 [targets]. The deepest entry is the entry of the target word after the longest context
        that has such an entry."""
        return self.locate_codes(text.codes, text.targets)

    def locate_codes(self, codes: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Trie of a trained language model: the longest known context and the deepest entry of some targets.

        codes [positions] are the word codes of a text, and targets [targets] the positions of the target words. Both
        results are int32 [targets]."""
        node, entry = (np.empty(len(targets), np.int32) for _ in range(2))
        arrays = (self.above, self.word, self.children, self.entry_word, self.starts)
        suffixes.locate(codes, targets, self.words, self.order, *arrays, node, entry)
        return node, entry

    def path(self, context: Sequence[int]) -> list[int]:
        """Trie of a trained language model: the nodes of the known suffixes of a context.

        The nodes go from the empty context to the longest known suffix. `context` has the codes of the words in text
        order."""
        nodes = [0]
        for code in reversed(context):
            begin, end = self.children[nodes[-1] : nodes[-1] + 2].tolist()
            place = begin + int(np.searchsorted(self.word[begin:end], code))
            if place == end or self.word[place] != code:
                break
            nodes.append(place)
        return nodes

    def context(self, node: int) -> list[int]:
        """Trie of a trained language model: the codes of the words of a node's context, in text order."""
        codes = []
        while node > 0:
            codes.append(int(self.word[node]))
            node = int(self.above[node])
        return codes

    def after(self, node: int, values: np.ndarray) -> np.ndarray:
        """Trie of a trained language model: values of all words after the context of a node: float64 [V]

        values [entries] has a value for each entry. Each word gets the value of its deepest entry. This is the entry of
        the word after the longest suffix of the context that has such an entry."""
        of_word = np.empty(self.words)
        kernels.scores_after(node, self.above, self.starts, self.entry_word, values, of_word)
        return of_word

    def entry(self, node: int, word: int) -> int:
        """Trie of a trained language model: the entry of a word at a node; -1 if the node has no entry for the word."""
        begin, end = self.starts[node : node + 2].tolist()
        place = begin + int(np.searchsorted(self.entry_word[begin:end], word))
        return place if place < end and self.entry_word[place] == word else -1
