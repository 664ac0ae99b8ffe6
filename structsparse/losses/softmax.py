"""Softmax loss of log-linear language models: -log of a softmax over all words after every context."""

from torch import Tensor, nn

from structsparse.structures.contexts import Contexts


class SoftmaxLM(nn.Module):
    """Softmax loss of a language model: sum over targets of -log p(target | context), one number for a whole text."""

    smooth = True  # whether the gradient is continuous

    def __init__(self, structure: Contexts):
        super().__init__()
        self.structure = structure

    def forward(self, increments, node_ends: Tensor, entry_ends: Tensor) -> Tensor:  # scalar
        """Softmax loss of the target words of a text under a language model, as a scalar.

        `increments` are the score increments of all entries of the context tree. node_ends [nodes] and entry_ends
        [entries] count the targets by deepest known context and by deepest entry."""
        return self.structure.surprise(increments, node_ends, entry_ends)
