"""Prox of nested groups (a forest): norms or largest absolute values of subtrees.

The soft threshold of single entries comes first. Then each subtree is shrunk or clipped once, from the leaves to the
roots.
"""

import numpy as np
import torch
from torch import Tensor

from structsparse.groups.forest import Forest
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import forest as kernels
from structsparse.prox.entries import soft_threshold_
from structsparse.prox.forest_metric import forest_shrink_metric_
from structsparse.prox.steps import Steps, changed, is_scalar, number, steps_array, thresholds

COLUMNS = 128  # columns that the kernel processes together if each column has the same forest; they fit the CPU cache


@torch.no_grad()
def forest_shrink_(
    W: Tensor, groups: Forest, strength: Steps, entry_strength: Steps, steps: Steps, accuracy: float = 0.0
) -> Tensor:
    """Prox of norms of the subtrees of a forest plus an l1 norm of the entries, in place.

    The penalty is strength * sum_g weight_g ||V_g|| + entry_strength * ||V||_1. V_g are the entries of subtree g, and
    weight_g is its factor.

    If all entries have the same step, one pass over the subtrees is exact. A step per entry needs Newton's method. It
    stops at the relative error `accuracy` of the penalty's value; 0 means rounding error.
    """
    groups.check(W)
    if is_scalar(steps):
        cut = thresholds(entry_strength, steps, W)
        return shrink_subtrees_(W, groups, groups.weight, thresholds(strength, steps, W), cut)
    soft_threshold_(W, entry_strength, _grouped(groups, steps, W))
    return forest_shrink_metric_(W, groups.plain(W), strength, steps, accuracy)


@torch.no_grad()
def shrink_subtrees_(W: Tensor, groups: Forest, weight: Tensor, threshold: Steps, cut: Steps) -> Tensor:
    """Prox of norms of the subtrees of a forest with given weights, for a step of 1, in place.

    The penalty is threshold * sum_g weight[g] ||V_g|| + cut * ||V||_1, where V_g are the entries of subtree g. In
    threshold * weight[g], 0 * inf counts as 0.
    """
    if groups.repeated and walkable(W) and weight.shape[1] == 1:
        return _shrink_columns_(W, groups, weight[:, 0], threshold, cut)
    if not walkable(W) or groups.repeated:
        reach = (threshold * weight.double()).nan_to_num(nan=0.0, posinf=torch.inf)
        return _shrink_levels_(soft_threshold_(W, cut, _grouped(groups, 1.0, W)), groups, reach)
    memory, weight, threshold = groups.level_memory(), weight.double().numpy(), float(threshold)
    squares, factor = (groups.scratch.array(name, len(groups)) for name in ("squares", "factor"))
    if len(memory.nodes):
        weight = weight.take(memory.nodes, out=groups.scratch.array("weight", len(groups)), mode="clip")
    tree = groups.above.numpy(), groups.levels, weight, threshold, number(cut, W)
    kernels.shrink_forest(flat_array(W), *memory.owned, *tree, squares, factor)
    return changed(W)


def _shrink_columns_(W: Tensor, groups: Forest, weight: Tensor, threshold: Steps, cut: Steps) -> Tensor:
    """Prox of norms of the subtrees of a forest that is the same in every column of a table, by the numba kernel."""
    table, nodes = W.detach().numpy(), len(groups.parents)
    squares, factor = (
        groups.scratch.array(name, nodes * COLUMNS, table.dtype.type).reshape(nodes, COLUMNS)
        for name in ("squares of columns", "factors of columns")
    )
    weight = groups.in_levels(weight.double()).numpy()
    tree = groups.places.numpy(), groups.above.numpy(), weight, float(threshold), number(cut, W)
    kernels.shrink_columns(table, *tree, squares, factor)
    return changed(W)


@torch.no_grad()
def forest_clip_(W: Tensor, groups: Forest, strength: Steps, entry_strength: Steps, steps: Steps) -> Tensor:
    """Prox of largest absolute values of the subtrees of a forest plus an l1 norm of the entries, in place.

    The penalty is strength * sum_g weight_g max |V_g| + entry_strength * ||V||_1. V_g are the entries of subtree g, and
    weight_g is its factor. The result is exact, even with a step per entry.
    """
    groups.check(W)
    groups = groups.plain(W)
    if not walkable(W):
        soft_threshold_(W, entry_strength, _grouped(groups, steps, W))
        return _clip_levels_(W, groups, strength, steps)
    if is_scalar(steps):
        each, strength = flat_array(W)[:0], float(thresholds(strength, steps, W))
        cut = number(thresholds(entry_strength, steps, W), W)
    else:
        each, strength, cut = steps_array(steps, W), float(strength), number(entry_strength, W)
    _clip_in_memory(W, groups, each, strength, cut)
    return changed(W)


def _clip_in_memory(W: Tensor, groups: Forest, each, strength: float, cut) -> None:
    """Prox of largest absolute values of the subtrees of a forest in contiguous CPU memory.

    The numba kernels compute the prox. `cut` is the soft threshold of the entries. `each` holds the steps per entry. If
    `each` is empty, `strength` and `cut` already include the step.
    """
    level, weight = groups.level_memory(), groups.weight.double().numpy()
    limit = groups.scratch.array("limit", len(groups))
    if not len(level.units) and not len(level.starts):
        heap = groups.scratch.array("heap", W.numel(), kernels.HEAP)
        tops, mass = groups.scratch.array("tops", len(groups), np.int32), groups.scratch.array("mass", len(groups))
        scratch = heap, tops, mass, limit
        kernels.clip_forest_in_levels(
            flat_array(W), each, level.width, groups.above.numpy(), weight, strength, cut, *scratch
        )
        return
    plan = groups.preorder()
    entries = plan.memory.starts[-1] * plan.memory.width if len(plan.memory.starts) else W.numel()
    heap = groups.scratch.array("heap", entries, kernels.HEAP)
    if len(plan.memory.nodes):
        weight = weight.take(plan.memory.nodes, out=groups.scratch.array("weight", len(groups)), mode="clip")
    tree = *plan.memory.owned, plan.depth, weight, plan.chunks
    kernels.clip_forest(flat_array(W), each, *tree, strength, cut, heap, limit)


def _grouped(groups: Forest, steps: Steps, W: Tensor) -> Steps:
    """Steps for the prox of a forest, set to zero at the entries that lie in no group of the forest."""
    return (W.new_zeros(groups.ids.shape) + steps).masked_fill(groups.ids < 0, 0.0) if groups.free else steps


def _shrink_levels_(W: Tensor, groups: Forest, reach: Tensor) -> Tensor:
    """Prox of norms of the subtrees of a forest in torch, one level after the other.

    `reach` holds the threshold of the norm of each subtree.
    """
    squares, reach = groups.in_levels(groups.own_sums(W * W)).clone(), groups.in_levels(reach)
    factor, between = torch.empty_like(squares), groups.steps_between_levels()
    for a, b in [*reversed(between), (0, int(groups.levels[1]))]:
        norm = squares[a:b].sqrt()
        share = torch.where(norm <= reach[a:b], 0.0, 1 - reach[a:b] / norm)
        factor[a:b] = torch.where(reach[a:b] == 0, 1.0, share)
        if a > 0:
            squares[:a].index_add_(0, groups.above[a:b], squares[a:b] * factor[a:b].square())
    for a, b in between:
        factor[a:b] *= factor[:a].index_select(0, groups.above[a:b])
    share = groups.expand(groups.in_nodes(factor), fill=1.0).to(W.dtype)
    return W.mul_(share).add_(0.0)  # adding 0 turns negative zeros into positive zeros


def _clip_levels_(W: Tensor, groups: Forest, strength: Steps, steps: Steps) -> Tensor:
    """Prox of largest absolute values of the subtrees of a forest in torch, one level after the other.

    The code works on elements. An element is one entry, or stands for all entries of a subtree that are clipped at the
    same height.
    """
    if W.is_meta:
        return W  # a meta tensor has no data, and all shapes below depend on data
    nodes = len(groups)
    value, count = W.abs().double().flatten(), torch.ones((), dtype=torch.float64, device=W.device)
    if is_scalar(steps):
        strength = thresholds(strength, steps, W)
    else:
        count = 1 / steps.double()
    count = count.expand(groups.shape).flatten()
    reach = groups.in_levels((strength * groups.weight).nan_to_num(nan=0.0, posinf=torch.inf))
    place = torch.arange(nodes, device=W.device) if groups.place is None else groups.place.long()
    place = groups.expand(place, fill=-1).expand(groups.shape).flatten()
    there = (place >= 0) & (value > 0) & (count > 0)
    owner, order = place[there].sort()
    value, count = value[there][order], count[there][order]
    firsts = torch.searchsorted(owner, torch.as_tensor(groups.levels, device=W.device)).tolist()
    limit = torch.full((nodes,), torch.inf, dtype=torch.float64, device=W.device)
    pool = owner[:0], value[:0], count[:0]
    for level in reversed(range(groups.height)):
        a, b = groups.levels[level], groups.levels[level + 1]
        entries = slice(firsts[level], firsts[level + 1])
        joined = zip(pool, (owner[entries] - a, value[entries], count[entries]), strict=True)
        element = tuple(torch.cat(parts) for parts in joined)
        limit[a:b], pool = _clip_level(*element, reach[a:b])
        if level > 0:
            pool = groups.above[a:b].long()[pool[0]] - groups.levels[level - 1], *pool[1:]
    for a, b in groups.steps_between_levels():
        torch.minimum(limit[a:b], limit[:a].index_select(0, groups.above[a:b]), out=limit[a:b])
    most = groups.expand(groups.in_nodes(limit), fill=torch.inf).to(W.dtype)
    return W.copy_(torch.clamp(W, -most, most)).add_(0.0)


def _clip_level(node: Tensor, value: Tensor, count: Tensor, reach: Tensor):
    """Forest prox of one level by Michelot's algorithm: clips the elements of each subtree.

    An element is one entry, or stands for several entries that are clipped at the same height. Element i belongs to the
    subtree of node[i] and has the absolute value value[i]. count[i] is the number of its entries or, with a step per
    entry, the sum of 1 / step over them. `reach` holds the threshold of each subtree. Returns the clipping heights and
    the new elements.
    """
    fixed = count.isinf()  # entries with step 0 must not be clipped
    floor = torch.zeros_like(reach).scatter_reduce(0, node[fixed], value[fixed], "amax")
    above, values, counts = node[~fixed], value[~fixed], count[~fixed]
    limit = torch.zeros_like(reach)
    while True:
        mass = torch.zeros_like(reach).index_add_(0, above, values * counts)
        total = torch.zeros_like(reach).index_add_(0, above, counts)
        # the clipping heights rise in each iteration; `maximum` keeps rounding errors from lowering them
        limit = torch.maximum(limit, torch.where(mass > reach, (mass - reach) / total, 0.0))
        stays = values > limit[above]
        if stays.all():
            break
        above, values, counts = above[stays], values[stays], counts[stays]
    limit = torch.where(reach > 0, torch.maximum(limit, floor), torch.inf)
    clipped = value >= limit[node]
    total = torch.zeros_like(reach).index_add_(0, node[clipped], count[clipped])
    merged = ((total > 0) & (limit > 0)).nonzero()[:, 0]
    below = ~clipped
    left = (merged, node[below]), (limit[merged], value[below]), (total[merged], count[below])
    return limit, tuple(torch.cat(parts) for parts in left)
