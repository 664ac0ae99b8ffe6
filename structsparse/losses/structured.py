"""Losses of structured predictors: scores and gold in, one number per item out.

A structure answers `log_partition`, `best`, `score` and `add_cost` for its own kind of scores; the losses know
nothing else of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StructuredLoss(nn.Module):
    """A loss over a structure: never negative, zero at best."""

    smooth: bool  # whether the gradient is continuous, so that a vanishing one certifies a minimum
    cost = 0.0  # of a wrong part of a structure, added to its score

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


class SoftmaxLM(nn.Module):
    """loss = sum over targets of -log p(target | context), one number for all, of a structure as `Contexts` is."""

    smooth = True

    def __init__(self, structure):
        super().__init__()
        self.structure = structure

    def forward(self, increments, node_ends: Tensor, entry_ends: Tensor) -> Tensor:  # scalar
        return self.structure.surprise(increments, node_ends, entry_ends)


class DocumentLoss(nn.Module):
    """A loss of a document's score f, or of its scores, one for each class. Targets are numbers, for two classes y = -1
    and 1, for more the code of the class: then every class has a y, 1 for that one and -1 for the others, and the loss
    is the sum of theirs (but for Logistic)."""

    smooth = True
    kind: str  # what a solver that goes to the data itself calls it

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:  # [documents]
        if scores.dim() == 1:
            return self.of(scores, targets)
        codes = torch.arange(scores.shape[1], device=scores.device)
        signs = (targets[:, None] == codes).to(scores.dtype).mul(2).sub(1)  # [documents, classes]
        return self.of(scores, signs).sum(dim=1)

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        """Entry by entry."""
        raise NotImplementedError


class Logistic(DocumentLoss):
    """loss = log(1 + exp(-y f)); of more than two classes log sum_k exp(f_k) - f_gold."""

    kind = "logistic"

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        return -F.logsigmoid(y * scores)

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:  # [documents]
        return self.of(scores, targets) if scores.dim() == 1 else F.cross_entropy(scores, targets, reduction="none")


class Squared(DocumentLoss):
    """loss = (f - y)^2 / 2."""

    kind = "squared"

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        return (scores - y).square() / 2


class SquaredHinge(DocumentLoss):
    """loss = max(0, 1 - y f)^2."""

    kind = "squared_hinge"

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        return (1 - y * scores).clamp(min=0).square()


def _shortfall(structure, scores, gold: Tensor, lengths: Tensor) -> Tensor:  # [batch]
    """What gold lacks to the best; the gold itself carries no cost, so both may be scored alike."""
    rival = structure.best(scores, lengths)
    return _not_negative(structure.score(scores, rival, lengths) - structure.score(scores, gold, lengths))


def _not_negative(loss: Tensor) -> Tensor:
    """Take off what rounding left below zero, where a loss is never truly, and leave the gradient as it is."""
    return loss - loss.detach().clamp_max(0.0)
