"""The loss of log-linear language models: a softmax over all words after every context."""

from torch import Tensor, nn

from structsparse.structures.contexts import Contexts


class SoftmaxLM(nn.Module):
    """Language-model loss: sum over targets of -log p(target | context), one number for a whole text."""

    smooth = True

    def __init__(self, structure: Contexts):
        super().__init__()
        self.structure = structure

    def forward(self, increments, node_ends: Tensor, entry_ends: Tensor) -> Tensor:  # scalar
        """The loss of the targets counted by node_ends and entry_ends."""
        return self.structure.surprise(increments, node_ends, entry_ends)
