"""Prox of norms of disjoint groups (blocks): group lasso and sparse group lasso."""

import torch
from torch import Tensor

from structsparse.groups import Partition
from structsparse.kernels.memory import flat_array
from structsparse.kernels.prox import blocks as kernels
from structsparse.prox.entries import soft_threshold_
from structsparse.prox.steps import Steps, changed, is_scalar, number, steps_array, thresholds

ROUNDS = 12  # number of Newton iterations; fixed, as a convergence test would wait for the GPU


@torch.no_grad()
def group_shrink_(W: Tensor, groups: Partition, strength: Steps, steps: Steps) -> Tensor:
    """Prox of the group lasso over disjoint groups, in place: strength * sum_g weight_g ||V_g||.

    V_g are the entries of group g, and weight_g is its factor.
    """
    if groups.in_blocks(W):
        return _shrink_blocks_(W, groups, strength, 0.0, steps)
    if not is_scalar(steps):
        return _group_shrink_metric_(W, groups, strength, steps)
    share = thresholds(strength, steps, W) * groups.weight / groups.norms(W).clamp(min=torch.finfo(torch.float64).tiny)
    share = groups.expand(share.clamp(max=1), fill=0.0)
    return W.addcmul_(W, share.to(W.dtype), value=-1)  # unlike multiplication, subtraction gives no negative zeros


@torch.no_grad()
def sparse_group_shrink_(W: Tensor, groups: Partition, strength: Steps, entry_strength: Steps, steps: Steps) -> Tensor:
    """Prox of the sparse group lasso over disjoint groups, in place.

    The penalty is strength * sum_g weight_g ||V_g|| + entry_strength * ||V||_1. V_g are the entries of group g, and
    weight_g is its factor. The l1 norm covers all entries that lie in a group.

    The soft threshold of the entries comes first, then the prox of the group norms. This is exact, even with a step per
    entry.
    """
    if groups.in_blocks(W):
        return _shrink_blocks_(W, groups, strength, entry_strength, steps)
    grouped = steps
    if groups.free:
        grouped = (W.new_zeros(groups.ids.shape) + steps).masked_fill(groups.ids < 0, 0.0)
    return group_shrink_(soft_threshold_(W, entry_strength, grouped), groups, strength, steps)


def _shrink_blocks_(W, groups, strength, entry_strength, steps) -> Tensor:
    """Prox of the sparse group lasso over disjoint groups that are contiguous row blocks in CPU memory.

    The numba kernels compute the prox.
    """
    blocks = groups.offsets.numpy(), groups.shape[1:].numel(), groups.weight.double().numpy()
    if is_scalar(steps):
        threshold, cut = float(thresholds(strength, steps, W)), number(thresholds(entry_strength, steps, W), W)
        kernels.shrink_blocks(flat_array(W), *blocks, threshold, cut)
    else:
        steps = steps_array(steps, W)
        kernels.shrink_blocks_metric(flat_array(W), steps, *blocks, float(strength), number(entry_strength, W))
    return changed(W)


def _group_shrink_metric_(W, groups, strength, steps) -> Tensor:
    """Prox of the group lasso over disjoint groups with a step per entry, in torch.

    The result for an entry w of a group is w * theta / (theta + strength * weight * step). theta is the norm of the
    group after the prox, and weight is the factor of the group.
    """
    reach = thresholds(strength * groups.expand(groups.weight, fill=0.0).to(W.dtype), steps, W)
    theta = groups.expand(_metric_norms(W, groups, reach), fill=1.0).to(W.dtype)
    share = torch.where(reach == 0, 0.0, 1 - theta / (theta + reach))
    return W.addcmul_(W, share, value=-1)


def _metric_norms(W, groups, reach) -> Tensor:
    """Norm of each disjoint group after the group lasso prox with a step per entry, by Newton's method.

    `reach` is strength * group weight * step for each entry. `kernels.prox.blocks` explains why Newton's method
    converges.
    """
    tiny, tolerance = torch.finfo(W.dtype).tiny, 4 * torch.finfo(W.dtype).eps
    theta = groups.norms(W - torch.clamp(W, -reach, reach))
    for _ in range(ROUNDS):
        inverse = (groups.expand(theta, fill=1.0).to(W.dtype) + reach).clamp(min=tiny).reciprocal()
        squares = (W * inverse).square()
        slope = groups.sums(squares * inverse)
        squares = groups.sums(squares)
        excess = squares.sqrt() - 1
        theta = theta + torch.where(excess > tolerance, excess * (squares / slope), 0.0)
    return theta
