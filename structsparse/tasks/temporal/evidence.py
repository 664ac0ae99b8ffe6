"""Evidence that a feature of a drift model is dead, constant or drifting, from the message of its data.

All other features are kept at their means. The likelihood of the weights of one feature is then Gaussian: for each
period it has a precision h and a pull b. Its integral under a prior is the evidence for this prior:

- dead: all weights are zero
- constant: one weight for all periods, normal around zero
- drifting: a random walk from a normal level

Scales of levels and steps lie on a grid around the size of the weights of the features that matter. The shares of the
three classes are learned by EM, so that classes of which there are many are likelier."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from structsparse.corpora.dated import DRIFTING
from structsparse.penalties.drift_priors import walk
from structsparse.prox import tridiagonal

LEVELS = (0.125, 0.25, 0.5, 1.0, 2.0)  # standard deviations of levels, as shares of the size of weights
STEPS = (0.0625, 0.125, 0.25, 0.5, 1.0)  # of the steps of random walks
ROUNDS = 30  # of EM on the shares of classes
RAREST = 1e-3  # smallest share of a class


def log_evidences(weights: Tensor, curvature: Tensor, slopes: Tensor) -> Tensor:
    """Evidence of a drift model: log evidence for dead, constant and drifting, relative to dead: [3, features].

    - weights: present weights [periods, features]
    - curvature: second derivatives of the log-likelihood by each weight, with the sign of precisions
    - slopes: first derivatives of the log-likelihood"""
    pull = curvature * weights + slopes
    size = unit(weights)
    constants = [_constant(curvature, pull, 1 / (a * size) ** 2) for a in LEVELS]
    drifts = [_drifting(curvature, pull, 1 / (a * size) ** 2, 1 / (q * size) ** 2) for a in LEVELS for q in STEPS]
    parts = [torch.logsumexp(torch.stack(cells), 0) - math.log(len(cells)) for cells in (constants, drifts)]
    return torch.stack([torch.zeros_like(parts[0]), *parts])


def unit(weights: Tensor) -> float:
    """Evidence of a drift model: the size of weights, over features in proportion to their mean squares.

    Features near zero hardly count, however many there are."""
    squares = weights.square().mean(dim=0)
    total = float(squares.sum())
    return math.sqrt(float(squares.square().sum()) / total) if total > 0 else 1.0


def _constant(curvature: Tensor, pull: Tensor, precision: float) -> Tensor:
    """Evidence of a drift model: log evidence for one weight in all periods, with a prior precision."""
    total = curvature.sum(dim=0) + precision
    return (math.log(precision) - total.log() + pull.sum(dim=0).square() / total) / 2


def _drifting(curvature: Tensor, pull: Tensor, level: float, step: float) -> Tensor:
    """Evidence of a drift model: log evidence for a random walk, whose level and steps have prior precisions."""
    ones = torch.ones_like(pull[0])
    chain, periods = walk(level * ones, step * ones), len(pull)
    pivots = tridiagonal.factor(curvature + chain.diagonal(periods), chain.off)
    solved = tridiagonal.solve_(pivots, chain.off, pull.clone())
    prior = math.log(level) + (periods - 1) * math.log(step)
    return (prior - pivots.log().sum(dim=0) + (pull * solved).sum(dim=0)) / 2


def probabilities(evidences: Tensor) -> Tensor:
    """Evidence of a drift model: the posterior probability of each class, [3, features], with learned shares."""
    shares = evidences.new_full((3, 1), 1 / 3)
    for _ in range(ROUNDS):
        posterior = torch.softmax(evidences + shares.log(), dim=0)
        shares = posterior.mean(dim=1, keepdim=True).clamp(min=RAREST)
        shares = shares / shares.sum()
    return torch.softmax(evidences + shares.log(), dim=0)


def classes(weights: Tensor, curvature: Tensor, slopes: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Evidence of a drift model: the likeliest class of each feature (DEAD, CONSTANT, DRIFTING), and probabilities."""
    found = probabilities(log_evidences(weights, curvature, slopes))
    kinds = found.argmax(dim=0).cpu().numpy()
    assert kinds.max(initial=0) <= DRIFTING
    return kinds.astype(np.int64), found.cpu().numpy()
