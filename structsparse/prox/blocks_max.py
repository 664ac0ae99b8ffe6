"""Prox of the maximum absolute value of each disjoint group (blocks, l1/l-infinity penalty)."""

import torch
from torch import Tensor

from structsparse.groups import Partition
from structsparse.kernels.memory import flat_array
from structsparse.kernels.prox import blocks_max as kernels
from structsparse.prox.steps import Steps, changed, is_scalar, steps_array, thresholds

ROUNDS = 40  # maximum number of Newton iterations of the torch code; random inputs take about 12


def group_maxima(X: Tensor, groups: Partition) -> Tensor:
    """Maximum of 0 and the entries of each disjoint group, for the l1/l-infinity prox (float64 tensor [groups]).

    If several entries attain the maximum, they share the gradient.
    """
    groups.check(X)
    largest = (X.amax(groups.shared, keepdim=True) if groups.shared else X).double().flatten()
    if groups.aligned:
        return largest.clamp(min=0)
    ids = groups.ids.flatten()
    slots = ids.remainder(len(groups) + 1) if groups.free else ids  # entries in no group (id -1) use an extra slot
    return largest.new_zeros(len(groups) + 1).scatter_reduce(0, slots, largest, "amax")[: len(groups)]


@torch.no_grad()
def group_clip_(W: Tensor, groups: Partition, strength: Steps, steps: Steps) -> Tensor:
    """Prox of the maximum absolute values of disjoint groups, in place: strength * sum_g weight_g max |V_g|.

    V_g are the entries of group g, and weight_g is its factor. The prox clips all absolute values of a group at the
    same height, even with a step per entry.
    """
    if not groups.in_blocks(W):
        return _clip_entries_(W, groups, strength, steps)
    blocks = groups.offsets.numpy(), groups.shape[1:].numel(), groups.weight.double().numpy()
    if is_scalar(steps):
        kernels.clip_blocks(flat_array(W), *blocks, float(thresholds(strength, steps, W)))
    else:
        kernels.clip_blocks_metric(flat_array(W), steps_array(steps, W), *blocks, float(strength))
    return changed(W)


def _clip_entries_(W, groups, strength, steps) -> Tensor:
    """Prox of the maximum absolute values of disjoint groups in torch, with clipping heights in float64.

    `kernels.prox.blocks_max` explains why Newton's method converges.
    """
    reach = strength * groups.weight
    if is_scalar(steps):
        reach, steps = thresholds(reach, steps, W), 1.0
    steps = (W.new_zeros(groups.ids.shape) + steps).double()
    inverse, size = steps.reciprocal(), W.abs().double()
    least = size - thresholds(groups.expand(reach, fill=0.0), steps, steps)
    height = group_maxima(least, groups)
    for _ in range(ROUNDS):
        above = torch.where(size > groups.expand(height, fill=torch.inf), inverse, 0.0)
        count = groups.sums(above)
        climbed = (groups.sums(size * above) - reach) / count
        climbs = climbed > height  # False where no entry is above the height: `climbed` is NaN or -inf there
        if W.device.type == "cpu" and not climbs.any():
            break
        height = torch.where(climbs, climbed, height)
    height = torch.where(reach > 0, height, torch.inf)
    height = groups.expand(height, fill=torch.inf).to(W.dtype)
    return W.clamp_(-height, height).add_(0.0)
