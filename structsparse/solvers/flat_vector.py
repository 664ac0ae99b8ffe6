"""Several parameters as one flat vector (all entries concatenated): read and write entries by index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split(shaped: Sequence[Tensor], places: Tensor) -> list[Tensor]:
    """Split ascending indices in the flat vector of all tensors: for each tensor, the indices of its entries."""
    sizes = torch.tensor([0] + [tensor.numel() for tensor in shaped])
    offsets = sizes.cumsum(0)
    bounds = torch.searchsorted(places, offsets.to(places.device)).tolist()
    return [places[a:b] - offset for a, b, offset in zip(bounds[:-1], bounds[1:], offsets.tolist()[:-1], strict=True)]


def take(tensors: Sequence[Tensor], places: Tensor) -> Tensor:
    """The entries of the flat vector of all tensors at k ascending indices, as float64."""
    parts = split(tensors, places)
    return torch.cat([tensor.take(part).double() for tensor, part in zip(tensors, parts, strict=True)])


def put_(tensors: Sequence[Tensor], places: Tensor, values: Tensor) -> None:
    """Write k values into the flat vector of all tensors at k ascending indices, in place."""
    begin = 0
    for tensor, part in zip(tensors, split(tensors, places), strict=True):
        tensor.put_(part, values[begin : begin + len(part)].to(tensor.dtype))
        begin += len(part)


def where(masks: Sequence[Tensor]) -> Tensor:
    """The ascending indices (int64) of all true entries in the flat vector of several masks."""
    indices, begin = [], 0
    for mask in masks:
        indices.append(mask.reshape(-1).nonzero()[:, 0] + begin)
        begin += mask.numel()
    return torch.cat(indices)


def take_broadcast(values: Sequence[Tensor], shaped: Sequence[Tensor], places: Tensor) -> Tensor:
    """The entries of a flat vector of broadcast values at k ascending indices, as float64.

    First, each tensor in `values` is broadcast to the shape of the tensor at the same position in `shaped`."""
    parts_taken = []
    for value, tensor, part in zip(values, shaped, split(shaped, places), strict=True):
        if value.dim() == 0:
            parts_taken.append(value.expand(part.shape))
        else:
            parts_taken.append(torch.broadcast_to(value, tensor.shape)[torch.unravel_index(part, tensor.shape)])
    return torch.cat(parts_taken).double()
