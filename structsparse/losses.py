"""Losses of structured predictors: scores and gold in, one number per item out.

A structure answers `log_partition`, `best`, `score` and `add_cost` for its own kind of scores; the losses know
nothing else of it.
"""

from torch import Tensor, nn


class StructuredLoss(nn.Module):
    """A loss over a structure: never negative, zero at best."""

    smooth: bool  # whether the gradient is continuous, so that a vanishing one certifies a minimum

    def __init__(self, structure):
        super().__init__()
        self.structure = structure


class CRF(StructuredLoss):
    """loss = log sum_y exp(score(y)) - score(gold)."""

    smooth = True

    def forward(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        if hasattr(self.structure, "surprise"):  # the same, where it is cheaper at once
            return _not_negative(self.structure.surprise(scores, gold, lengths))
        total = self.structure.log_partition(scores, lengths)
        return _not_negative(total - self.structure.score(scores, gold, lengths))


class Hinge(StructuredLoss):
    """loss = max_y (score(y) + cost * distance(y, gold)) - score(gold)."""

    smooth = False

    def __init__(self, structure, cost: float = 1.0):
        super().__init__(structure)
        self.cost = cost

    def forward(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        return _shortfall(self.structure, self.structure.add_cost(scores, gold, lengths, self.cost), gold, lengths)


class Perceptron(StructuredLoss):
    """loss = max_y score(y) - score(gold)."""

    smooth = False

    def forward(self, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
        return _shortfall(self.structure, scores, gold, lengths)


class SoftmaxLM(StructuredLoss):
    """loss = sum over targets of -log p(target | context), one number for all, of a structure as `Contexts` is."""

    smooth = True
    serves = "language models"

    def forward(self, increments, node_ends: Tensor, entry_ends: Tensor) -> Tensor:  # scalar
        return self.structure.surprise(increments, node_ends, entry_ends)


def _shortfall(structure, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
    """What gold lacks to the best; the gold itself carries no cost, so both may be scored alike."""
    rival = structure.best(scores, lengths)
    return _not_negative(structure.score(scores, rival, lengths) - structure.score(scores, gold, lengths))


def _not_negative(loss: Tensor) -> Tensor:
    """Take off what rounding left below zero, where a loss is never truly, and leave the gradient as it is."""
    return loss - loss.detach().clamp_max(0.0)
