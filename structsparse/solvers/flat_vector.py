"""Several parameters as one flat (concatenated) vector: read and write entries by index, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split(shaped: Sequence[Tensor], places: Tensor) -> list[Tensor]:
    """Split ascending indices [k] of the flat vector of all tensors into indices within each tensor."""
    sizes = torch.tensor([0] + [tensor.numel() for tensor in shaped])
    offsets = sizes.cumsum(0)
    bounds = torch.searchsorted(places, offsets.to(places.device)).tolist()
    return [places[a:b] - offset for a, b, offset in zip(bounds[:-1], bounds[1:], offsets.tolist()[:-1], strict=True)]


def take(tensors: Sequence[Tensor], places: Tensor) -> Tensor:
    """The entries of the flat vector of all tensors at some indices: float64 [k]."""
    parts = split(tensors, places)
    return torch.cat([tensor.take(part).double() for tensor, part in zip(tensors, parts, strict=True)])


def put_(tensors: Sequence[Tensor], places: Tensor, values: Tensor) -> None:
    """Write values [k] into the flat vector of all tensors at some indices, in place."""
    begin = 0
    for tensor, part in zip(tensors, split(tensors, places), strict=True):
        tensor.put_(part, values[begin : begin + len(part)].to(tensor.dtype))
        begin += len(part)


def where(masks: Sequence[Tensor]) -> Tensor:
    """The indices in the flat vector of all tensors at which the masks are true: int64 [k], ascending."""
    indices, begin = [], 0
    for mask in masks:
        indices.append(mask.reshape(-1).nonzero()[:, 0] + begin)
        begin += mask.numel()
    return torch.cat(indices)


def take_broadcast(values: Sequence[Tensor], shaped: Sequence[Tensor], places: Tensor) -> Tensor:
    """Entries of broadcast values at indices of the flat vector of all tensors: float64 [k].

    Each value broadcasts to the shape of the tensor in `shaped` at the same position."""
    parts_taken = []
    for value, tensor, part in zip(values, shaped, split(shaped, places), strict=True):
        if value.dim() == 0:
            parts_taken.append(value.expand(part.shape))
        else:
            parts_taken.append(torch.broadcast_to(value, tensor.shape)[torch.unravel_index(part, tensor.shape)])
    return torch.cat(parts_taken).double()
