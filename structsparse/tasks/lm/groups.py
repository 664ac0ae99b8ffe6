"""Groups of the weights of a language model: for each word, nested groups along the context tree."""

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
    """Layout of the weight vector for groups of language-model weights: one weight for each entry of the context tree.

    An entry is a pair of a context and a next word."""

    kind = "contexts"

    tree: ContextTree  # the tree with an entry for each weight

    def chain_lengths(self) -> torch.Tensor | None:
        """Groups of language-model weights: the number of contexts that share each weight (float64 [entries]).

        Contexts share weights only in a collapsed tree. For other trees, the result is None."""
        return torch.from_numpy(self.tree.entry_chain).double() if self.tree.collapsed else None


@over("contexts", makes=Forest)
def by_suffix(
    shape: Sequence[int], layout: ContextLayout, weights: str | torch.Tensor = "one", parameter: str = ""
) -> Forest:
    """Make nested groups of language-model weights: a forest with one tree for each next word.

    Each pair of a context and a word has a group. The group has the weight of this pair, and the weights of the same
    word after all longer contexts that end with this context. If several contexts share a weight (collapsed tree), the
    penalty counts it once per context."""
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
    """Names for the groups of language-model weights, such as `the chief -> executive` (context and next word).

    A name is made only when it is accessed."""

    def __init__(self, tree: ContextTree):
        self.tree = tree

    def __len__(self) -> int:
        """The number of groups of language-model weights, one for each pair of a context and a next word."""
        return self.tree.entries

    def __getitem__(self, entry):
        """The name of one group of language-model weights, or a list of names for a slice."""
        if isinstance(entry, slice):
            return [self[i] for i in range(*entry.indices(len(self)))]
        tree, entry = self.tree, range(len(self))[entry]
        word = int(tree.entry_word[entry])
        name = str(word) if tree.vocabulary is None else tree.vocabulary.name(word)
        return f"{tree.context(int(tree.entry_node[entry]))} -> {name}".strip()
