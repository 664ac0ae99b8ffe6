"""Proximal steps: W <- argmin_V  penalty(V) + 1/2 sum (V - W)^2 / steps, in place, without gradient, on any device.

`steps` is a float, a scalar tensor, or a tensor that broadcasts to W with one step per entry (the inverse of a
diagonal metric). An entry with step 0 stays put; 0 * inf counts as 0, so what bears no strength does not move.
Contiguous CPU memory goes to the numba kernels; all else takes the torch route, which never waits for the device.
"""

import torch
from torch import Tensor

from structsparse.groups import Partition, flat_array, walkable
from structsparse.kernels import prox as kernels

Steps = float | Tensor
ROUNDS = 12  # of Newton without asking the device whether it has converged; the worst of random trials took 13


@torch.no_grad()
def soft_threshold_(W: Tensor, strength: Steps, steps: Steps) -> Tensor:
    """Prox of strength * ||V||_1: every entry moves by strength * step towards zero and stops there."""
    if not walkable(W):
        cut = _reach(strength, steps, W)
        return W.sub_(torch.clamp(W, -cut, cut))
    if _is_scalar(steps):
        kernels.soft_threshold(flat_array(W), _number(_reach(strength, steps, W), W))
    elif strength > 0:
        kernels.soft_threshold_metric(flat_array(W), _steps_array(steps, W), _number(strength, W))
    return _changed(W)


@torch.no_grad()
def shrink_(W: Tensor, strength: Steps, steps: Steps) -> Tensor:
    """Prox of strength / 2 * ||V||^2: V = W / (1 + strength * steps)."""
    if not walkable(W) or _is_scalar(steps):
        return W.div_(1 + _reach(strength, steps, W))
    if strength > 0:
        kernels.shrink_metric(flat_array(W), _steps_array(steps, W), _number(strength, W))
    return _changed(W)


@torch.no_grad()
def group_shrink_(W: Tensor, groups: Partition, strength: Steps, steps: Steps) -> Tensor:
    """Prox of strength * sum_g weight_g ||V_g||, each group as a whole."""
    if groups.in_blocks(W):
        return _shrink_blocks_(W, groups, strength, 0.0, steps)
    if not _is_scalar(steps):
        return _group_shrink_metric_(W, groups, strength, steps)
    share = _reach(strength, steps, W) * groups.weight / groups.norms(W).clamp(min=torch.finfo(torch.float64).tiny)
    share = groups.expand(share.clamp(max=1), fill=0.0)
    return W.addcmul_(W, share.to(W.dtype), value=-1)  # W - W: no negative zeros


@torch.no_grad()
def sparse_group_shrink_(W: Tensor, groups: Partition, strength: Steps, entry_strength: Steps, steps: Steps) -> Tensor:
    """Prox of strength * sum_g weight_g ||V_g|| + entry_strength * ||V||_1 over the entries of the groups.

    It is the prox of the group term after that of the entries, in any diagonal metric: the group term multiplies each
    entry by a number of at least 0, which leaves every sign, and so the subgradient of the entries, as it was.
    """
    if groups.in_blocks(W):
        return _shrink_blocks_(W, groups, strength, entry_strength, steps)
    grouped = steps
    if groups.free:
        grouped = (W.new_zeros(groups.ids.shape) + steps).masked_fill(groups.ids < 0, 0.0)
    return group_shrink_(soft_threshold_(W, entry_strength, grouped), groups, strength, steps)


def _shrink_blocks_(W, groups, strength, entry_strength, steps) -> Tensor:
    blocks = groups.offsets.numpy(), groups.shape[1:].numel(), groups.weight.double().numpy()
    if _is_scalar(steps):
        threshold, cut = float(_reach(strength, steps, W)), _number(_reach(entry_strength, steps, W), W)
        kernels.shrink_blocks(flat_array(W), *blocks, threshold, cut)
    else:
        steps = _steps_array(steps, W)
        kernels.shrink_blocks_metric(flat_array(W), steps, *blocks, float(strength), _number(entry_strength, W))
    return _changed(W)


def _group_shrink_metric_(W, groups, strength, steps) -> Tensor:
    """V = W * theta / (theta + reach), where theta is the norm of the group's V."""
    reach = _reach(strength * groups.expand(groups.weight, fill=0.0).to(W.dtype), steps, W)
    theta = groups.expand(_metric_norms(W, groups, reach), fill=1.0).to(W.dtype)
    share = torch.where(reach == 0, 0.0, 1 - theta / (theta + reach))
    return W.addcmul_(W, share, value=-1)


def _metric_norms(W, groups, reach) -> Tensor:
    """Norm of each group after its prox [groups], by Newton from the left: `kernels.prox` says why it climbs."""
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


def _reach(strength: Steps, steps: Steps, W: Tensor) -> Tensor:
    """strength * steps in the precision of W, where 0 * inf = 0."""
    strength = torch.as_tensor(strength, dtype=torch.float64) if _is_scalar(strength) else strength
    steps = steps if _is_scalar(steps) else steps.to(W.dtype)
    return (strength * steps).nan_to_num(nan=0.0, posinf=torch.inf)


def _is_scalar(steps: Steps) -> bool:
    return not isinstance(steps, Tensor) or steps.dim() == 0


def _number(value: Steps, W: Tensor):
    """A scalar in the very type of the memory of W, so that the kernels do not compute in another."""
    return W.detach().numpy().dtype.type(value)


def _steps_array(steps: Tensor, W: Tensor):
    return flat_array(steps.to(W.dtype).expand_as(W).contiguous())


def _changed(W: Tensor) -> Tensor:
    """Tell autograd, which did not see the kernels write."""
    torch.autograd.graph.increment_version(W)
    return W
