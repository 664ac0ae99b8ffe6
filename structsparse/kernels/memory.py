"""Check whether compiled kernels can work on a tensor directly: contiguous CPU floats that autograd does not record."""

import torch
from torch import Tensor

from structsparse.kernels.prox import blocks as kernels


def walkable(W: Tensor) -> bool:
    """Whether compiled kernels can work on the memory of W. Kernels record no gradients, so W must not need any."""
    recorded = W.requires_grad and torch.is_grad_enabled()
    return W.device.type == "cpu" and W.is_contiguous() and W.dtype in (torch.float32, torch.float64) and not recorded


def flat_array(W: Tensor):
    """A numpy vector that shares the memory of the tensor W."""
    return W.detach().view(-1).numpy()


def power_sum(W: Tensor, power: int) -> Tensor:
    """Sum of |W|^power (1 or 2) over all entries: a float64 scalar."""
    if not walkable(W):
        return (W.abs() if power == 1 else W * W).sum().double()
    total = torch.zeros(1, dtype=torch.float64)
    kernels.block_sums(flat_array(W), torch.tensor([0, W.numel()]).numpy(), 1, power, total.numpy())
    return total[0]
