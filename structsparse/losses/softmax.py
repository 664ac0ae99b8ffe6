"""Softmax loss of log-linear language models: the sum of -log p(word | context) over the words of a text."""

from torch import Tensor, nn

from structsparse.structures.contexts import Contexts


class SoftmaxLM(nn.Module):
    """Softmax loss of a language model: the sum of -log p(word | context) over all target words of a text."""

    smooth = True  # whether the gradient is continuous

    def __init__(self, structure: Contexts):
        super().__init__()
        self.structure = structure

    def forward(self, increments, node_ends: Tensor, entry_ends: Tensor) -> Tensor:  # scalar
        """Softmax loss of the target words of a text under a language model, as a scalar.

        In the tree of contexts, a node is a context, and an entry is a pair of a context and a next word.

        * increments [entries]: score increments of all entries
        * node_ends [nodes]: number of targets whose longest known context is the node
        * entry_ends [entries]: number of targets whose deepest entry in the tree is the entry"""
        return self.structure.surprise(increments, node_ends, entry_ends)
