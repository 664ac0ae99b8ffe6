"""The context tree of a text: the word sequences (contexts) before each word, as a trie or as a collapsed tree.

The parent of a context is the context without its first word. The collapsed tree merges a context into its parent if
both occur at the same positions of the text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from structsparse.base.errors import UserError
from structsparse.corpora.text import EncodedText, Vocabulary
from structsparse.kernels.features import suffixes as kernels

_MOST = np.iinfo(np.int32).max  # maximum number of entries (context, next word)
_NODES = ("above", "word", "depth", "chain", "count")  # fields of ContextTree with one element per node (context)
_ENTRIES = ("entry_node", "entry_word", "entry_above", "entry_count")  # ContextTree fields of each (context, word)


class Places(NamedTuple):
    """The places of a text's words in a context tree: one node and one entry for each target (word to predict).

    A node is a context. An entry is a pair of a context and a next word."""

    node: np.ndarray  # int32 [targets], the node of the longest known context before each target
    entry: np.ndarray  # int32 [targets], the known entry (context, target word) with the longest context

    def take(self, targets: np.ndarray) -> Places:
        """Select the places in the context tree for some targets, which are given as indices or as a mask."""
        return Places(self.node[targets], self.entry[targets])


@dataclass(frozen=True)
class ContextTree:
    """The context tree of a text: the contexts of all targets (words to predict), and the next words of each context.

    - The contexts of a target are the sequences of the last 0 .. order - 1 words before the target.
    - A node is a context, and node 0 is the empty context. The parent is the context without its first word.
    - An entry is a pair of a context and a next word. The empty context has an entry for every word of the vocabulary.
    - Nodes are sorted by context length. Entries are sorted by node, then by word.

    In a collapsed tree, a node may stand for several contexts of different lengths at the same text positions. The
    node's `depth` is the length of the longest of these contexts. The node's `word` is the first word of the
    shortest."""

    words: int  # number of predictable words; the same number is the code of <s>, which occurs only in contexts
    order: int  # contexts have at most order - 1 words
    collapsed: bool  # whether a node may stand for several contexts; if not, the tree is a trie
    above: np.ndarray  # int32 [nodes], index of the parent (the context without its first word); -1 for node 0
    word: np.ndarray  # int32 [nodes], code of the first word of the node's shortest context; -1 for node 0
    depth: np.ndarray  # int32 [nodes], number of words of the node's longest context
    chain: np.ndarray  # int32 [nodes], number of contexts that the node stands for; 1 in a trie
    count: np.ndarray  # int32 [nodes], number of training targets after the node's context
    ends: np.ndarray  # int32 [nodes], number of targets whose longest known context is this node
    entry_node: np.ndarray  # int32 [entries], the node (context) of each entry
    entry_word: np.ndarray  # int32 [entries], the code of the next word of each entry
    entry_above: np.ndarray  # int32 [entries], index of the same word's entry at the parent context; -1 for no parent
    entry_count: np.ndarray  # int32 [entries], number of occurrences of each entry in training
    entry_ends: np.ndarray  # int32 [entries], number of targets for which this is the entry with the longest context
    node_levels: np.ndarray  # int64, shape [order + 1]: element k is the index of the first node with k words
    entry_levels: np.ndarray  # int64, shape [order + 1]: element k is the first entry whose context has k words
    vocabulary: Vocabulary | None = field(default=None, repr=False, compare=False)

    @classmethod
    def build(cls, text: EncodedText, order: int, collapse: bool = False) -> ContextTree:
        """Build the context tree of a text.

        If `collapse` is set, a context is merged into its parent when both occur at the same positions of the text.
        Without `collapse`, the tree is a trie."""
        return _build(text, order, collapse)

    @property
    def nodes(self) -> int:
        """The number of nodes (contexts) of the context tree."""
        return len(self.above)

    @property
    def entries(self) -> int:
        """The number of entries of the context tree (pairs of a context and a next word)."""
        return len(self.entry_node)

    @cached_property
    def starts(self) -> np.ndarray:
        """Context tree of a text: the index of the first entry of each node (int32, an array of shape [nodes + 1]).

        The entries of node n have the indices starts[n] : starts[n + 1]."""
        return kernels.offsets(self.entry_node, self.nodes)

    @cached_property
    def children(self) -> np.ndarray:
        """Context tree of a text: the index of the first child of each node (int32, an array of shape [nodes + 1]).

        The children of node n have the indices children[n] : children[n + 1]. The tree must be a trie."""
        return kernels.offsets(self.above, self.nodes)

    @property
    def entry_depth(self) -> np.ndarray:
        """Context tree of a text: the number of words in the context of each entry (int32 [entries]).

        If an entry stands for several contexts (collapsed tree), this is the length of the longest one."""
        return self.depth[self.entry_node]

    @property
    def entry_chain(self) -> np.ndarray:
        """Context tree of a text: the number of contexts that each entry stands for (int32 [entries]); 1 in a trie."""
        return self.chain[self.entry_node]

    def up_to(self, order: int) -> ContextTree:
        """The part of the context tree with contexts of fewer than `order` words; the tree must be a trie."""
        self._require_trie("cut to a lower order")
        if not 1 <= order <= self.order:
            raise UserError(f"a trie of order {self.order} has no part of order {order}, expected 1 to {self.order}")
        return self._with(
            {name: getattr(self, name)[: self.node_levels[order]] for name in _NODES},
            {name: getattr(self, name)[: self.entry_levels[order]] for name in _ENTRIES},
            order=order,
            node_levels=self.node_levels[: order + 1],
            entry_levels=self.entry_levels[: order + 1],
        )

    def locate(self, text: EncodedText) -> Places:
        """Find the targets (words to predict) of a text in the context tree, which must be a trie.

        For each target, the result has the node of the longest known context, and the entry (context, target word) with
        the longest context."""
        self._require_trie("searched")
        if len(text.vocabulary) != self.words:
            raise UserError(
                f"{text.source} has a vocabulary of {len(text.vocabulary):,} words, the contexts one of "
                f"{self.words:,}: read it with the vocabulary of training"
            )
        places = Places(*(np.empty(len(text.targets), np.int32) for _ in range(2)))
        kernels.locate(
            text.codes, text.targets, self.words, self.order, self.above, self.word, self.children,
            self.entry_word, self.starts, *places,
        )  # fmt: skip
        return places

    def collapse(self) -> tuple[ContextTree, np.ndarray]:
        """Collapse the context tree: merge a context into its parent if both occur at the same positions of the text.

        The tree must be a trie. Returns the collapsed tree, and the index of each entry (context, next word) of the
        trie in the collapsed tree (int32 [entries])."""
        self._require_trie("collapsed")
        node_of, entry_of = np.empty(self.nodes, np.int32), np.empty(self.entries, np.int32)
        depth, chain = np.empty(self.nodes, np.int32), np.empty(self.nodes, np.int32)
        trie = self.above, self.count, self.depth, self.starts, self.entry_above
        nodes, entries = kernels.collapse(*trie, node_of, entry_of, depth, chain)
        first, first_entry = _first_places(node_of, nodes), _first_places(entry_of, entries)
        above, over = self.above[first], self.entry_above[first_entry]
        tree = self._with(
            {
                "above": np.where(above < 0, -1, node_of[above]), "word": self.word[first],
                "depth": depth[:nodes], "chain": chain[:nodes], "count": self.count[first],
            },
            {
                "entry_node": node_of[self.entry_node[first_entry]], "entry_word": self.entry_word[first_entry],
                "entry_above": np.where(over < 0, -1, entry_of[over]), "entry_count": self.entry_count[first_entry],
            },
            collapsed=True,
            node_levels=np.searchsorted(first, self.node_levels),
            entry_levels=np.searchsorted(first_entry, self.entry_levels),
        )  # fmt: skip
        return tree, entry_of

    def tops(self) -> np.ndarray:
        """Context tree of a text: the number of words in the shortest context of each node (int32 [nodes]).

        In a trie, the value is that of the collapsed node into which `collapse` would merge the node."""
        tops = self.depth + np.int32(1) - self.chain
        return tops if self.collapsed else kernels.tops(self.above, self.count, tops)

    def prune(self, alive: np.ndarray) -> tuple[ContextTree, np.ndarray]:
        """Remove entries (context, next word) from the context tree, and contexts that are no longer needed.

        The tree must be a trie. `alive` (bool array over all entries) marks the entries to keep. Entries of the empty
        context are always kept. `entry_above` becomes the nearest kept entry of the same word after a shorter context.

        Returns the smaller trie, and for each of its entries the index in the old trie (int64)."""
        alive = np.array(alive, bool)
        if alive.shape != (self.entries,):
            raise UserError(f"alive has shape {alive.shape}, expected one value for each of {self.entries:,} entries")
        alive[: self.words] = True
        node_alive, link = np.zeros(self.nodes, bool), np.empty(self.entries, np.int32)
        kernels.keep_living(alive, self.above, self.entry_node, self.entry_above, node_alive, link)
        living, rows = np.flatnonzero(node_alive), np.flatnonzero(alive)
        number = np.cumsum(node_alive, dtype=np.int32) - np.int32(1)
        nodes = {name: getattr(self, name)[living] for name in _NODES}
        entries = {name: getattr(self, name)[rows] for name in _ENTRIES}
        nodes["above"] = np.where(nodes["above"] < 0, -1, number[nodes["above"]])
        entries["entry_node"] = number[entries["entry_node"]]
        entries["entry_above"] = np.where(entries["entry_above"] < 0, -1, link[entries["entry_above"]])
        levels = {
            "node_levels": np.searchsorted(living, self.node_levels),
            "entry_levels": np.searchsorted(rows, self.entry_levels),
        }
        return self._with(nodes, entries, **levels), rows

    def restrict(self, places: Places) -> tuple[ContextTree, np.ndarray]:
        """The part of the context tree for some targets (words to predict), and its entries' indices in the full tree.

        `places` has the places of these targets in the tree. The part has the longest known context of each target, and
        all suffixes of this context. `count` and `entry_count` keep the values of the full tree. `ends` and
        `entry_ends` count only the given targets."""
        touched = self._paths(places.node)
        parent = np.searchsorted(touched, self.above[touched]).astype(np.int32)  # root: 0, later set to -1
        begins = np.zeros(len(touched) + 1, np.int64)
        np.cumsum(self.starts[touched + 1] - self.starts[touched], out=begins[1:])
        rows = np.empty(begins[-1], np.int64)
        node, word, over = (np.empty(len(rows), np.int32) for _ in range(3))
        full = self.above, self.starts, self.entry_above, self.entry_word
        kernels.cut_out(touched, parent, begins, *full, rows, node, word, over)
        nodes = {name: getattr(self, name)[touched] for name in _NODES}
        nodes["above"] = parent
        parent[0] = -1
        at = np.searchsorted(touched, places.node)
        owner = np.searchsorted(touched, self.entry_node[places.entry])
        entry = begins[owner] + places.entry - self.starts[touched[owner]]
        tree = replace(
            self, **nodes, entry_node=node, entry_word=word, entry_above=over, entry_count=self.entry_count[rows],
            ends=np.bincount(at, minlength=len(touched)).astype(np.int32),
            entry_ends=np.bincount(entry, minlength=len(rows)).astype(np.int32),
            node_levels=np.searchsorted(touched, self.node_levels),
            entry_levels=begins[np.searchsorted(touched, self.node_levels)],
        )  # fmt: skip
        return tree, rows

    def context(self, node: int) -> str:
        """The context of a node of the context tree, as a string of words in text order.

        In a collapsed tree, "..." stands for words that are left out."""
        parts = []
        while node > 0:
            word = int(self.word[node])
            name = str(word) if self.vocabulary is None else self.vocabulary.name(word)
            parts.append(f"... {name}" if self.chain[node] > 1 else name)
            node = self.above[node]
        return " ".join(parts)

    def _paths(self, nodes: np.ndarray) -> np.ndarray:
        """Context tree of a text: the given nodes and all their ancestors, as ascending indices (int64)."""
        levels = [np.zeros(1, np.int64)]
        while len(nodes):
            nodes = np.unique(nodes).astype(np.int64)
            levels.append(nodes)
            nodes = self.above[nodes[nodes > 0]]
        return np.unique(np.concatenate(levels))

    def _with(self, nodes: dict, entries: dict, **rest) -> ContextTree:
        """A copy of the context tree with the given arrays of nodes and entries.

        The fields `ends` and `entry_ends` are computed again."""
        ends = kernels.left_over(nodes["count"], nodes["above"])
        entry_ends = kernels.left_over(entries["entry_count"], entries["entry_above"])
        return replace(self, **nodes, **entries, ends=ends, entry_ends=entry_ends, **rest)

    def _require_trie(self, action: str) -> None:
        """Raise an error if the context tree is collapsed; `action` names the refused action in the message."""
        if self.collapsed:
            raise UserError(f"only a trie of contexts can be {action}, this one is collapsed")


def _first_places(numbers: np.ndarray, count: int) -> np.ndarray:
    """Context tree of a text: the index where each value 0 .. count - 1 first occurs in `numbers` (int64 [count]).

    `numbers` must have all these values, and they must first occur in ascending order: 0 before 1, 1 before 2, ..."""
    running = np.maximum.accumulate(numbers)
    return np.flatnonzero(np.diff(running, prepend=-1)) if count else np.empty(0, np.int64)


def _build(text: EncodedText, order: int, collapse: bool) -> ContextTree:
    """Build the context tree of a text level by level; the contexts of level k have k words."""
    V, codes, tokens = len(text.vocabulary), text.codes, len(text.targets)
    if order < 1:
        raise UserError(f"model.order is {order}, expected at least 1 (no context)")
    if not tokens:
        raise UserError(f"{text.source} has no words: nothing to build contexts from")
    group = np.where(codes == V, kernels.NONE, 0).astype(np.int32)
    builder = _LevelBuilder(codes, V, order, collapse, kernels.by_code(codes, V + 1), group, codes.copy())
    roots = np.array([[-1], [-1], [0], [1], [tokens]], np.int32)
    counts = np.bincount(codes, minlength=V)[:V]
    unigrams = np.array([np.zeros(V), np.arange(V), np.full(V, -1), counts], np.int32)
    nodes, entries, joined = [roots], [unigrams], []
    node_levels, entry_levels = [0, 1], [0, V]
    sizes, node_of = roots[4], np.zeros(1, np.int32)
    for k in range(1, order):
        level = builder.level(k, sizes, node_of, node_levels[-1], entry_levels[-1])
        new_nodes, joined_nodes, new_entries, sizes, node_of = level
        nodes.append(new_nodes)
        entries.append(new_entries)
        joined.append(joined_nodes)
        node_levels.append(node_levels[-1] + new_nodes.shape[1])
        entry_levels.append(entry_levels[-1] + new_entries.shape[1])
        if entry_levels[-1] > _MOST:
            raise UserError(f"{text.source} has over {_MOST:,} contexts with next words; choose a lower model.order")
    del builder
    above, word, depth, chain, count = _joined_rows(nodes)
    entry_node, entry_word, entry_above, entry_count = _joined_rows(entries)
    longer = np.bincount(np.concatenate([*joined, [0]]).astype(np.int64), minlength=len(above)).astype(np.int32)
    longer[0] = 0
    return ContextTree(
        V, order, collapse, above, word, depth + longer, chain + longer, count, kernels.left_over(count, above),
        entry_node, entry_word, entry_above, entry_count, kernels.left_over(entry_count, entry_above),
        np.array(node_levels), np.array(entry_levels), text.vocabulary,
    )  # fmt: skip


class _LevelBuilder(NamedTuple):
    """Builder of a context tree, level by level; it groups the targets (words to predict) by the words before them."""

    codes: np.ndarray  # int32 [positions], word codes of the text
    V: int  # number of words of the vocabulary; the code of <s> equals V
    order: int  # contexts have at most order - 1 words
    collapse: bool  # whether a context joins its parent context if both occur at the same positions
    by_code: np.ndarray  # int32 [positions], the positions of the text sorted by word code
    group: np.ndarray  # int32 [positions], group of each target (targets after the same words); -1: none, as at <s>
    entry: np.ndarray  # int32 [positions], index of each target's entry with the longest context so far

    def level(self, k: int, sizes: np.ndarray, node_of: np.ndarray, first_node: int, first_entry: int):
        """Build the level of the context tree that has the contexts of k words.

        A group is the set of all targets (words to predict) after the same k - 1 words. For each group, `sizes` has the
        number of targets, and `node_of` the node of these words. New nodes are numbered from `first_node`, new entries
        from `first_entry`.

        Returns five arrays:

        - the new nodes [5, nodes], with rows for `above`, `word`, `depth`, `chain` and `count` of `ContextTree`
        - for each context that was merged into its parent (collapsed tree), the node index of the parent
        - the new entries [4, entries], with rows for `entry_node`, `entry_word`, `entry_above` and `entry_count`
        - `sizes` for the groups of the next level
        - `node_of` for the groups of the next level"""
        codes, group = self.codes, self.group
        members = int(sizes.sum())
        slots, owner, places = (np.empty(members + extra, np.int32) for extra in (0, 0, 1))
        kernels.sort_groups(self.by_code, k, group, sizes, slots)
        classes = kernels.split_groups(codes, k, slots, group, owner, places)
        owner, places = owner[:classes], places[: classes + 1]
        made, grows, parts = np.empty(classes, np.int32), np.empty(classes, bool), np.empty((5, classes), np.int32)
        results = parts, made, grows
        nodes = kernels.make_nodes(
            codes, self.V, k, self.order, self.collapse, slots, places, owner, sizes, node_of, *results
        )
        parts = parts[:, :nodes].copy()
        slots = slots[: kernels.sort_words(self.by_code, group, made, places, slots)]
        entries = np.empty((4, len(slots)), np.int32)
        count = kernels.make_entries(codes, slots, group, made, first_node, first_entry, self.entry, entries)
        entries = entries[:, :count].copy()
        new = made >= 0
        joined = node_of[owner[~new]]
        node_of = np.where(new, made + first_node, node_of[owner]).astype(np.int32)[grows]
        kernels.regroup(group, np.where(grows, np.cumsum(grows) - 1, kernels.NONE).astype(np.int32))
        return parts, joined, entries, np.diff(places)[grows], node_of


def _joined_rows(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Context tree of a text: join the arrays [rows, columns] of all levels into one long array per row.

    `parts` is the list of the arrays to join. It is emptied to save memory."""
    rows = [np.concatenate([part[row] for part in parts]) for row in range(len(parts[0]))]
    parts.clear()
    return rows
