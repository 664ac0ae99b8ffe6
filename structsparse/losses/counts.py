"""Losses of word counts: Poisson, and multinomial (the likelihood of SAGE), for scores that are log frequencies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError


class CountLoss(nn.Module):
    """Base class of losses of word counts. Scores and targets (the counts) are tables [documents, words].

    `dispersion` says how many times larger than its model the variance of counts is: a number, or None, which means
    that it is learnt. Losses do not contain it; whoever weighs a loss against a prior divides by it."""

    smooth = True
    quadratic = False
    least_dispersion = 1.0  # counts vary at least as much as their model says
    kind: str

    def __init__(self, dispersion: float | None = 1.0) -> None:
        super().__init__()
        if dispersion is not None and not 0 < dispersion < float("inf"):
            raise UserError(f"loss.dispersion is {dispersion}, expected a positive number, or null to learn it")
        self.dispersion = dispersion


class PoissonCounts(CountLoss):
    """Poisson loss of counts c with the expected number exp(f): half the deviance, summed over a document's words.

    For one word it is exp(f) - c f - (c - c log c)."""

    kind = "poisson"

    def forward(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Poisson loss of counts: the loss of each document."""
        return (scores.exp() - counts * scores - counts + torch.xlogy(counts, counts)).sum(dim=1)

    def first(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Poisson loss of counts: the derivative by each score."""
        return scores.exp() - counts

    def second(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Poisson loss of counts: the second derivative by each score."""
        return scores.exp()

    def times(self, scores: Tensor, counts: Tensor, direction: Tensor) -> Tensor:
        """Poisson loss of counts: the product of its Hessian by the scores and a direction."""
        return scores.exp() * direction

    def pearson(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Poisson loss of counts: Pearson's statistic, the sum of squared residuals over their modelled variances."""
        return ((counts - scores.exp()).square() * (-scores).exp()).sum()


class MultinomialCounts(CountLoss):
    """Multinomial loss of counts, whose probabilities are the softmax of a document's scores: half the deviance."""

    kind = "multinomial"

    def forward(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Multinomial loss of counts: the loss of each document."""
        total = counts.sum(dim=1)
        saturated = torch.xlogy(counts, counts).sum(dim=1) - torch.xlogy(total, total)
        return total * torch.logsumexp(scores, dim=1) - (counts * scores).sum(dim=1) + saturated

    def first(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Multinomial loss of counts: the derivative by each score."""
        return self.second(scores, counts) - counts

    def second(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Multinomial loss of counts: expected counts, from above the second derivatives by each score."""
        return counts.sum(dim=1, keepdim=True) * torch.softmax(scores, dim=1)

    def times(self, scores: Tensor, counts: Tensor, direction: Tensor) -> Tensor:
        """Multinomial loss of counts: the product of its Hessian by the scores and a direction."""
        shares = torch.softmax(scores, dim=1)
        centred = direction - (shares * direction).sum(dim=1, keepdim=True)
        return counts.sum(dim=1, keepdim=True) * shares * centred

    def pearson(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Multinomial loss of counts: Pearson's statistic."""
        expected = self.second(scores, counts)
        return ((counts - expected).square() / expected).sum()


LIKELIHOODS = {loss.kind: loss for loss in (PoissonCounts, MultinomialCounts)}


def counts(likelihood: str, dispersion: float | None = 1.0) -> CountLoss:
    """The loss of word counts with a name: poisson or multinomial."""
    if likelihood not in LIKELIHOODS:
        raise UserError(f"loss.likelihood is {likelihood!r}, expected one of {', '.join(LIKELIHOODS)}")
    return LIKELIHOODS[likelihood](dispersion)
