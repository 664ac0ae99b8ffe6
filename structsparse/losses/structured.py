"""Structured losses: CRF, structured hinge and structured perceptron, for any structure such as chains or trees."""

from torch import Tensor, nn

from structsparse.structures.base import Structure


class StructuredLoss(nn.Module):
    """Base class of structured losses, which give a nonnegative number for each item, such as a sentence."""

    smooth: bool  # whether the gradient is continuous, so that a gradient of zero certifies a minimum
    cost = 0.0  # number added to the score of each part (such as a label) that is not in the gold structure

    def __init__(self, structure: Structure):
        super().__init__()
        self.structure = structure


class CRF(StructuredLoss):
    """Structured CRF loss: log(sum_y exp(score(y))) - score(gold), where y runs over all structures."""

    smooth = True

    def forward(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """Structured CRF loss of each item of the batch."""
        return _not_negative(self.structure.surprise(scores, gold, lengths))


class Hinge(StructuredLoss):
    """Structured hinge loss: max_y (score(y) + cost * distance(y, gold)) - score(gold).

    y runs over all structures. The distance is the number of wrong parts, such as labels or arcs."""

    smooth = False

    def __init__(self, structure: Structure, cost: float = 1.0):
        super().__init__(structure)
        self.cost = cost

    def forward(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """Structured hinge loss of each item of the batch."""
        return _margin(self.structure, self.structure.add_cost(scores, gold, lengths, self.cost), gold, lengths)


class Perceptron(StructuredLoss):
    """Structured perceptron loss: max_y score(y) - score(gold), where y runs over all structures."""

    smooth = False

    def forward(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        """Structured perceptron loss of each item of the batch."""
        return _margin(self.structure, scores, gold, lengths)


def _margin(structure: Structure, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
    """Structured loss: for each item, the score of the best structure minus the score of the gold structure.

    `scores` may include costs of wrong parts, which do not change the score of the gold structure."""
    rival = structure.best(scores, lengths)
    return _not_negative(structure.score(scores, rival, lengths) - structure.score(scores, gold, lengths))


def _not_negative(loss: Tensor) -> Tensor:
    """Structured loss: set losses below zero, which are rounding errors, to zero without changing the gradient."""
    return loss - loss.detach().clamp_max(0.0)
