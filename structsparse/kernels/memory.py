"""Kernel memory: which tensors compiled kernels can work on directly, and numpy views of the memory of tensors."""

import torch
from torch import Tensor

from structsparse.kernels.prox import blocks as kernels


def walkable(W: Tensor) -> bool:
    """Kernel memory: whether compiled kernels can work directly on the memory of the tensor W.

    They can if W is a contiguous float32 or float64 tensor on the CPU, and autograd does not record it."""
    recorded = W.requires_grad and torch.is_grad_enabled()
    return W.device.type == "cpu" and W.is_contiguous() and W.dtype in (torch.float32, torch.float64) and not recorded


def flat_array(W: Tensor):
    """Kernel memory: a numpy vector that shares the memory of the tensor W, as an argument of kernels."""
    return W.detach().view(-1).numpy()


def power_sum(W: Tensor, power: int) -> Tensor:
    """Kernel memory: the sum of |W|^power (1 or 2) over all entries of a tensor, as a float64 scalar tensor."""
    if not walkable(W):
        return (W.abs() if power == 1 else W * W).sum().double()
    total = torch.zeros(1, dtype=torch.float64)
    kernels.block_sums(flat_array(W), torch.tensor([0, W.numel()]).numpy(), 1, power, total.numpy())
    return total[0]
