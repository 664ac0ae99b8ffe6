"""Entries restricted to a few values: the nearest value, and the choice of values (template, k-means, means).

A set of values is a float64 vector, ascending, without repetitions, with zero in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDS = 100  # of Lloyd's algorithm, at most; it ends once no value moves
FAR = 1e-9  # a move of a value counts from this share of the largest value on


@torch.no_grad()
def nearest_(W: Tensor, values: Tensor) -> Tensor:
    """Round entries: W <- the nearest of the values, of two equally near the lower one. O(entries log values)."""
    values = values.to(W)
    between = (values[1:] + values[:-1]) / 2
    return W.copy_(values[torch.bucketize(W, between)])


def template(levels: int, eta: float, kappa: float, delta: float) -> Tensor:
    """The template of values: 0 and +-(eta kappa^x + delta) for x = 0, ..., levels - 1."""
    return both_signs(eta * kappa**x + delta for x in range(levels))


def both_signs(sizes: Sequence[float]) -> Tensor:
    """The set of values with these sizes, their negatives and 0."""
    sizes = torch.tensor(sorted(set(map(float, sizes))), dtype=torch.float64)
    return torch.cat([-sizes.flip(0), sizes.new_zeros(1), sizes])


@torch.no_grad()
def centres(weights: Tensor, levels: int) -> Tensor:
    """Values by k-means: 0, and for each sign `levels` centres of the weights of that sign, from even quantiles on.
    weights [entries]; a sign with fewer different weights has as many values."""
    values = [weights.new_zeros(1, dtype=torch.float64)]
    for sign in (-1, 1):
        sizes = weights[weights * sign > 0].double().abs().sort().values
        values.append(sign * _lloyd(sizes, min(levels, len(sizes.unique()))))
    return torch.cat(values).unique()  # ascending


@torch.no_grad()
def moved_to_means(values: Tensor, points: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Each value but zero, moved to the weighted mean of the points nearest to it, if there are any. This lowers sum
    weight * (point - nearest value)^2. Nothing waits for a device."""
    between = (values[1:] + values[:-1]) / 2
    mass, sums = torch.zeros_like(values), torch.zeros_like(values)
    for part, heavy in zip(points, weights, strict=True):
        nearest = torch.bucketize(part.flatten(), between.to(part))
        heavy = torch.broadcast_to(heavy, part.shape).flatten().to(values.dtype)
        mass.index_add_(0, nearest, heavy)
        sums.index_add_(0, nearest, heavy * part.flatten())
    return torch.where((mass > 0) & (values != 0), sums / mass.clamp(min=torch.finfo(values.dtype).tiny), values)


def _lloyd(sizes: Tensor, count: int) -> Tensor:
    """Lloyd's k-means of ascending sizes: a cluster is a slice, and its sum a difference of two cumulative sums."""
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
