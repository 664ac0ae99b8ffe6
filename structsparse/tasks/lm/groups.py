"""Groups of a language model's weights: for each word, tree-structured groups along the context tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from structsparse.base.errors import UserError
from structsparse.groups.forest import Forest
from structsparse.groups.layouts import TableLayout, over
from structsparse.tasks.lm.contexts import ContextTree


@dataclass(frozen=True, eq=False)
class ContextLayout(TableLayout):
    """Layout of a language model's weight vector: one weight for each entry (context, next word) of a context tree."""

    kind = "contexts"

    tree: ContextTree

    def chain_lengths(self) -> torch.Tensor | None:
        """The number of entries of the full trie that each entry of a collapsed tree stands for: float64 [entries]."""
        return torch.from_numpy(self.tree.entry_chain).double() if self.tree.collapsed else None


@over("contexts", makes=Forest)
def by_suffix(
    shape: Sequence[int], layout: ContextLayout, weights: str | torch.Tensor = "one", parameter: str = ""
) -> Forest:
    """Forest of nested groups, a tree for each word: a group is (context, word) and the word in all longer contexts.

    An entry of a collapsed tree stands for a chain of equal weights and is counted once for each weight."""
    tree = layout.tree
    if tuple(shape) != (tree.entries,):
        raise UserError(
            f"groups=contexts does not fit {parameter} {tuple(shape)}: expected a vector with the {tree.entries:,} "
            "entries of the contexts; choose another groups or reg.parameters"
        )
    above, ids = torch.from_numpy(tree.entry_above), torch.arange(tree.entries)
    counts = torch.from_numpy(tree.entry_chain) if tree.collapsed else None
    return Forest(above, ids, EntryNames(tree), shape, weights, parameter, counts)


class EntryNames(Sequence):
    """The names of context-tree entries as `the chief -> executive` (context and next word), spelt on demand."""

    def __init__(self, tree: ContextTree):
        self.tree = tree

    def __len__(self) -> int:
        return self.tree.entries

    def __getitem__(self, entry):
        if isinstance(entry, slice):
            return [self[i] for i in range(*entry.indices(len(self)))]
        tree, entry = self.tree, range(len(self))[entry]
        word = int(tree.entry_word[entry])
        name = str(word) if tree.vocabulary is None else tree.vocabulary.name(word)
        return f"{tree.context(int(tree.entry_node[entry]))} -> {name}".strip()
