"""Prox of discrete weights: rounding of entries to a few values, and choice of these values.

The values come from a template formula, from k-means, or are means of weights. They form an ascending float64 vector
that contains zero, and no value twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDS = 100  # maximum number of iterations of Lloyd's algorithm (k-means)
FAR = 1e-9  # k-means stops if no cluster centre moves by more than FAR * largest absolute weight


@torch.no_grad()
def nearest_(W: Tensor, values: Tensor) -> Tensor:
    """Prox onto a few values: round each entry of W to the nearest value, in place.

    An entry halfway between two values gets the lower value.
    """
    values = values.to(W)
    between = (values[1:] + values[:-1]) / 2
    return W.copy_(values[torch.bucketize(W, between)])


def template(levels: int, eta: float, kappa: float, delta: float) -> Tensor:
    """A template of a few values for discrete weights: 0 and +-(eta kappa^x + delta) for x = 0, ..., levels - 1."""
    return both_signs(eta * kappa**x + delta for x in range(levels))


def both_signs(sizes: Sequence[float]) -> Tensor:
    """A few values for discrete weights, with both signs: the given sizes, their negatives and 0."""
    sizes = torch.tensor(sorted(set(map(float, sizes))), dtype=torch.float64)
    return torch.cat([-sizes.flip(0), sizes.new_zeros(1), sizes])


@torch.no_grad()
def centres(weights: Tensor, levels: int) -> Tensor:
    """A few values for discrete weights, by k-means: 0, and `levels` cluster centres of the weights of each sign.

    `weights` is [entries]. A sign with fewer than `levels` distinct weights gets one centre for each distinct weight.
    """
    values = [weights.new_zeros(1, dtype=torch.float64)]
    for sign in (-1, 1):
        sizes = weights[weights * sign > 0].double().abs().sort().values
        values.append(sign * _lloyd(sizes, min(levels, len(sizes.unique()))))
    return torch.cat(values).unique()  # `unique` also sorts the values in ascending order


@torch.no_grad()
def moved_to_means(values: Tensor, points: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """A few values, each moved to the weighted mean of the points that are nearest to it; zero does not move.

    `points` and `weights` are lists of tensors, and weights[k] broadcasts to points[k]. A value without points does not
    move.
    """
    between = (values[1:] + values[:-1]) / 2
    mass, sums = torch.zeros_like(values), torch.zeros_like(values)
    for part, heavy in zip(points, weights, strict=True):
        nearest = torch.bucketize(part.flatten(), between.to(part))
        heavy = torch.broadcast_to(heavy, part.shape).flatten().to(values.dtype)
        mass.index_add_(0, nearest, heavy)
        sums.index_add_(0, nearest, heavy * part.flatten())
    return torch.where((mass > 0) & (values != 0), sums / mass.clamp(min=torch.finfo(values.dtype).tiny), values)


def _lloyd(sizes: Tensor, count: int) -> Tensor:
    """A few values by k-means in one dimension (Lloyd's algorithm): the centres of `count` clusters.

    `sizes` are the points: absolute weights in ascending order.
    """
    if count == 0:
        return sizes
    places = (torch.arange(count, device=sizes.device) + 0.5) / count * len(sizes)
    values = sizes[places.long()].unique()
    sums = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    for _ in range(ROUNDS):
        ends = torch.searchsorted(sizes, (values[1:] + values[:-1]) / 2)
        bounds = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), len(sizes))])
        many = bounds.diff()
        moved = torch.where(many > 0, sums[bounds].diff() / many.clamp(min=1), values)
        calm = bool((moved - values).abs().max() <= FAR * sizes[-1])
        values = moved
        if calm:
            break
    return values
