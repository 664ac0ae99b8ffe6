"""Pointwise losses of single scores, for classification and regression: logistic, squared and squared hinge."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PointwiseLoss(nn.Module):
    """Base class of pointwise losses, for an item with one score f, or with one score f_k for each class k.

    Targets y are numbers for regression, -1 or 1 for two classes, and class indices for more than two classes. With
    more than two classes, the loss is a sum of two-class losses, one per class; only `Logistic` uses cross entropy."""

    smooth = True  # whether the gradient is continuous
    quadratic = False  # whether the loss is a quadratic function of the score
    least_dispersion = 0.0  # the smallest dispersion that makes sense
    dispersion: float | None = 1.0  # what divides the loss in a likelihood: a number; None: a variance to be learnt
    kind: str  # name of the loss, for solvers that implement it themselves

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:  # [items]
        """Pointwise loss of each item.

        The scores have the shape [items], or [items, classes] with more than two classes."""
        if scores.dim() == 1:
            return self.of(scores, targets)
        codes = torch.arange(scores.shape[1], device=scores.device)
        # signs [items, classes]: 1 for the target class, -1 for all other classes
        signs = (targets[:, None] == codes).to(scores.dtype).mul(2).sub(1)
        return self.of(scores, signs).sum(dim=1)

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise loss: the loss of each score for the target y, entry by entry."""
        raise NotImplementedError

    def first(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise loss: the derivative by each score, entry by entry."""
        raise NotImplementedError(f"{type(self).__name__} tells no derivatives")

    def second(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise loss: the second derivative by each score, entry by entry."""
        raise NotImplementedError(f"{type(self).__name__} tells no derivatives")

    def times(self, scores: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """Pointwise loss: the product of its Hessian by the scores and a direction."""
        return self.second(scores, y) * direction

    def pearson(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise loss: Pearson's statistic, the sum of squared residuals over their variances for dispersion 1."""
        raise NotImplementedError(f"{type(self).__name__} has no residuals")


class Logistic(PointwiseLoss):
    """Pointwise logistic loss of score f and target y: log(1 + exp(-y f)); cross entropy with more than two classes."""

    kind = "logistic"

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise logistic loss: log(1 + exp(-y f)) for each score f and target y, entry by entry."""
        return -F.logsigmoid(y * scores)

    def first(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise logistic loss: the derivative -y / (1 + exp(y f))."""
        return -y * torch.sigmoid(-y * scores)

    def second(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise logistic loss: the second derivative p (1 - p), where p is the probability of a class."""
        return torch.sigmoid(scores) * torch.sigmoid(-scores)

    def pearson(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise logistic loss: Pearson's statistic, the sum of exp(-y f)."""
        return torch.exp(-y * scores).sum()

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:  # [items]
        """Pointwise logistic loss [items] of each item, which is cross entropy with more than two classes."""
        return self.of(scores, targets) if scores.dim() == 1 else F.cross_entropy(scores, targets, reduction="none")


class Squared(PointwiseLoss):
    """Pointwise squared loss of score f and target y: (f - y)^2 / 2."""

    kind = "squared"
    quadratic = True
    dispersion = None  # the variance of the noise

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise squared loss: (f - y)^2 / 2 for each score f and target y, entry by entry."""
        return (scores - y).square() / 2

    def first(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise squared loss: the derivative f - y."""
        return scores - y

    def second(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise squared loss: the second derivative, 1 everywhere."""
        return torch.ones_like(scores)

    def pearson(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise squared loss: Pearson's statistic, the sum of squared residuals."""
        return (scores - y).square().sum()


class SquaredHinge(PointwiseLoss):
    """Pointwise squared hinge loss of score f and target y: max(0, 1 - y f)^2."""

    kind = "squared_hinge"

    def of(self, scores: Tensor, y: Tensor) -> Tensor:
        """Pointwise squared hinge loss: max(0, 1 - y f)^2 for each score f and target y, entry by entry."""
        return (1 - y * scores).clamp(min=0).square()
