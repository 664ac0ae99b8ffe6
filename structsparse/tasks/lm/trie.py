"""The living contexts of a language model and the words that follow them, laid out for walks from word to word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from structsparse.corpora.text import Text
from structsparse.kernels.features import suffixes
from structsparse.kernels.structures import contexts_pruned as ngrams


@dataclass(frozen=True, eq=False)
class Trie:
    """Nodes are contexts in level order, node 0 the empty one; the children of a node lie side by side, by ascending
    word. Entries are pairs of a context and a next word, by node, then by word; node 0 has all words."""

    words: int  # V; code V is the start of a sentence, which stands in contexts only
    order: int  # contexts have fewer words than this
    above: np.ndarray  # int32 [nodes], the context without its farthest word; -1 for node 0
    word: np.ndarray  # int32 [nodes], that farthest word; -1 for node 0
    starts: np.ndarray  # int32 [nodes + 1], the entries of node n are starts[n] : starts[n + 1]
    entry_word: np.ndarray  # int32 [entries]
    counts: np.ndarray | None = None  # int64 [entries], how often training has seen them, where that is known

    @property
    def nodes(self) -> int:
        return len(self.above)

    @property
    def entries(self) -> int:
        return len(self.entry_word)

    @cached_property
    def children(self) -> np.ndarray:
        """int32 [nodes + 1], the children of node n are children[n] : children[n + 1]"""
        return suffixes.offsets(self.above, self.nodes)

    @cached_property
    def entry_above(self) -> np.ndarray:
        """int32 [entries], the same word after the nearest context above that has it; -1 after the empty context"""
        found = np.empty(self.entries, np.int32)
        ngrams.entries_above(self.above, self.starts, self.entry_word, found)
        return found

    @cached_property
    def depth(self) -> np.ndarray:
        """int32 [nodes], the words of each context"""
        depth = np.zeros(self.nodes, np.int32)
        begin, end = 0, 1  # a level, whose children are the next
        while begin < end:
            begin, end = end, int(self.children[end])
            depth[begin:end] = depth[self.above[begin:end]] + 1
        return depth

    @property
    def entry_node(self) -> np.ndarray:
        """int32 [entries], the context of each"""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.starts))

    def locate(self, text: Text) -> tuple[np.ndarray, np.ndarray]:
        """The deepest known context of every target, and the deepest entry of its word: int32 [targets]"""
        node, entry = (np.empty(len(text.targets), np.int32) for _ in range(2))
        walked = (self.above, self.word, self.children, self.entry_word, self.starts)
        suffixes.locate(text.codes, text.targets, self.words, self.order, *walked, node, entry)
        return node, entry

    def path(self, context: Sequence[int]) -> list[int]:
        """The empty context and all longer ones that end like this one, as far as they are known."""
        nodes = [0]
        for code in reversed(context):
            begin, end = self.children[nodes[-1] : nodes[-1] + 2].tolist()
            place = begin + int(np.searchsorted(self.word[begin:end], code))
            if place == end or self.word[place] != code:
                break
            nodes.append(place)
        return nodes

    def context(self, node: int) -> list[int]:
        """The words of a context as they stand in a text."""
        codes = []
        while node > 0:
            codes.append(int(self.word[node]))
            node = int(self.above[node])
        return codes

    def after(self, node: int, values: np.ndarray) -> np.ndarray:
        """Of each word after a context the value of its deepest entry: float64 [V]; values float64 [entries]"""
        found = np.empty(self.words)
        ngrams.scores_after(node, self.above, self.starts, self.entry_word, values, found)
        return found

    def entry(self, node: int, word: int) -> int:
        """This word after this context, or -1."""
        begin, end = self.starts[node : node + 2].tolist()
        place = begin + int(np.searchsorted(self.entry_word[begin:end], word))
        return place if place < end and self.entry_word[place] == word else -1
