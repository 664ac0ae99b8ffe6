"""The trie of a trained language model: its living contexts and their next words, laid out for lookups."""

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
    """The contexts of a trained language model in level order, and the words that have a weight after each.

    Node 0 is the empty context; the children of a node stand side by side, by ascending word. Entries are pairs of a
    context and a next word, sorted by node, then by word; node 0 has all words."""

    words: int  # V; code V is the start of a sentence, which occurs in contexts only
    order: int  # contexts have fewer words than this
    above: np.ndarray  # int32 [nodes], the context without its farthest word; -1 for node 0
    word: np.ndarray  # int32 [nodes], that farthest word; -1 for node 0
    starts: np.ndarray  # int32 [nodes + 1], the entries of node n are starts[n] : starts[n + 1]
    entry_word: np.ndarray  # int32 [entries]
    counts: np.ndarray | None = None  # int64 [entries], occurrences in training; None for a model read from its folder

    @property
    def nodes(self) -> int:
        """The number of contexts."""
        return len(self.above)

    @property
    def entries(self) -> int:
        """The number of (context, next word) pairs."""
        return len(self.entry_word)

    @cached_property
    def children(self) -> np.ndarray:
        """int32 [nodes + 1]: the children of node n are children[n] : children[n + 1]"""
        return suffixes.offsets(self.above, self.nodes)

    @cached_property
    def entry_above(self) -> np.ndarray:
        """int32 [entries]: the same word after the nearest context above that has it; -1 after the empty context"""
        above = np.empty(self.entries, np.int32)
        kernels.entries_above(self.above, self.starts, self.entry_word, above)
        return above

    @cached_property
    def depth(self) -> np.ndarray:
        """int32 [nodes]: the number of words of each context"""
        depth = np.zeros(self.nodes, np.int32)
        begin, end = 0, 1  # one level; its children are the next
        while begin < end:
            begin, end = end, int(self.children[end])
            depth[begin:end] = depth[self.above[begin:end]] + 1
        return depth

    @property
    def entry_node(self) -> np.ndarray:
        """int32 [entries]: the context of each entry"""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.starts))

    def locate(self, text: EncodedText) -> tuple[np.ndarray, np.ndarray]:
        """The deepest known context of every target of a text, and the deepest entry of its word: int32 [targets]"""
        return self.locate_codes(text.codes, text.targets)

    def locate_codes(self, codes: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for plain codes and the positions of their targets."""
        node, entry = (np.empty(len(targets), np.int32) for _ in range(2))
        arrays = (self.above, self.word, self.children, self.entry_word, self.starts)
        suffixes.locate(codes, targets, self.words, self.order, *arrays, node, entry)
        return node, entry

    def path(self, context: Sequence[int]) -> list[int]:
        """The nodes of the known contexts that end these words, from the empty one to the longest."""
        nodes = [0]
        for code in reversed(context):
            begin, end = self.children[nodes[-1] : nodes[-1] + 2].tolist()
            place = begin + int(np.searchsorted(self.word[begin:end], code))
            if place == end or self.word[place] != code:
                break
            nodes.append(place)
        return nodes

    def context(self, node: int) -> list[int]:
        """The codes of the words of a context, in the order of the text."""
        codes = []
        while node > 0:
            codes.append(int(self.word[node]))
            node = int(self.above[node])
        return codes

    def after(self, node: int, values: np.ndarray) -> np.ndarray:
        """The value of the deepest entry of each word after a context: float64 [V]; values float64 [entries]"""
        of_word = np.empty(self.words)
        kernels.scores_after(node, self.above, self.starts, self.entry_word, values, of_word)
        return of_word

    def entry(self, node: int, word: int) -> int:
        """The entry of a word directly after a context, or -1."""
        begin, end = self.starts[node : node + 2].tolist()
        place = begin + int(np.searchsorted(self.entry_word[begin:end], word))
        return place if place < end and self.entry_word[place] == word else -1
