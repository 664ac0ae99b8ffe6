"""Subtrees of a forest, each as a whole: one step per subtree, from the leaves to the roots, is the exact prox.

What is done to the entries (entry_strength) is done first: they are the leaves' leaves.
"""

import torch
from torch import Tensor

from structsparse.errors import UserError
from structsparse.groups.forest import Forest
from structsparse.kernels import trees as kernels
from structsparse.memory import flat_array, walkable
from structsparse.prox.entries import soft_threshold_
from structsparse.prox.steps import Steps, changed, is_scalar, number, steps_array, thresholds


@torch.no_grad()
def tree_shrink_(W: Tensor, groups: Forest, strength: Steps, entry_strength: Steps, steps: Steps) -> Tensor:
    """Prox of strength * sum_g weight_g ||V_g|| + entry_strength * ||V||_1 over the entries of the forest.

    One after the other is exact only where all entries of a tree share one step: else a subtree's own step turns it
    in another direction than that of its parent's norm. Steps that vary within a tree are refused, which waits for
    the device; a single step does not.
    """
    groups.check(W)
    if is_scalar(steps):
        cut = thresholds(entry_strength, steps, W)
        return shrink_subtrees_(W, groups, groups.weight, thresholds(strength, steps, W), cut)
    reach = (groups.weight * _step_of_each_node(groups, steps)).nan_to_num(nan=0.0, posinf=torch.inf)
    soft_threshold_(W, entry_strength, _grouped(groups, steps, W))
    return shrink_subtrees_(W, groups, reach, strength, 0.0)


@torch.no_grad()
def shrink_subtrees_(W: Tensor, groups: Forest, weight: Tensor, threshold: Steps, cut: Steps) -> Tensor:
    """Prox of threshold * sum_g weight[g] ||V_g|| + cut * ||V||_1 at steps of 1, where 0 * inf = 0."""
    if not walkable(W):
        reach = (threshold * weight.double()).nan_to_num(nan=0.0, posinf=torch.inf)
        return _shrink_levels_(soft_threshold_(W, cut, _grouped(groups, 1.0, W)), groups, reach)
    memory, weight, threshold = groups.level_memory(), weight.double().numpy(), float(threshold)
    squares, factor = (groups.scratch.array(name, len(groups)) for name in ("squares", "factor"))
    if len(memory.nodes):
        weight = weight.take(memory.nodes, out=groups.scratch.array("weight", len(groups)), mode="clip")
    tree = groups.above.numpy(), groups.levels, weight, threshold, number(cut, W)
    kernels.shrink_trees(flat_array(W), *memory.owned, *tree, squares, factor)
    return changed(W)


@torch.no_grad()
def tree_clip_(W: Tensor, groups: Forest, strength: Steps, entry_strength: Steps, steps: Steps) -> Tensor:
    """Prox of strength * sum_g weight_g max|V_g| + entry_strength * ||V||_1 over the entries of the forest.

    Exact in any diagonal metric: a subtree is clipped at the r at which sum_e (|w_e| - r)+ / step_e is its strength *
    weight. The torch route waits for the device, as the data decide how many rounds each level takes.
    """
    groups.check(W)
    if not walkable(W):
        soft_threshold_(W, entry_strength, _grouped(groups, steps, W))
        return _clip_levels_(W, groups, strength, steps)
    plan, x = groups.preorder(), flat_array(W)
    entries = plan.memory.starts[-1] * plan.memory.width if len(plan.memory.starts) else W.numel()
    heap, limit = groups.scratch.array("heap", entries, kernels.HEAP), groups.scratch.array("limit", len(groups))
    weight = groups.weight.double().numpy()
    if len(plan.memory.nodes):
        weight = weight.take(plan.memory.nodes, out=groups.scratch.array("weight", len(groups)), mode="clip")
    if is_scalar(steps):
        each, strength = x[:0], float(thresholds(strength, steps, W))
        cut = number(thresholds(entry_strength, steps, W), W)
    else:
        each, strength, cut = steps_array(steps, W), float(strength), number(entry_strength, W)
    kernels.clip_trees(x, each, *plan.memory.owned, plan.depth, weight, plan.chunks, strength, cut, heap, limit)
    return changed(W)


def _grouped(groups: Forest, steps: Steps, W: Tensor) -> Steps:
    """Steps that leave free entries where they are."""
    return (W.new_zeros(groups.ids.shape) + steps).masked_fill(groups.ids < 0, 0.0) if groups.free else steps


def _step_of_each_node(groups: Forest, steps: Tensor) -> Tensor:
    """The step of all entries of its tree: [nodes], float64."""
    numbers = torch.arange(1, len(groups) + 1, dtype=torch.float64, device=steps.device)
    tree = groups.add_down(torch.where(groups.parents < 0, numbers, 0.0)).long()  # the number of its root
    owner = groups.expand(tree, fill=0).expand(groups.shape).flatten()
    flat = steps.double().expand(groups.shape).flatten()
    ends = [
        flat.new_ones(len(groups) + 1).scatter_reduce(0, owner, flat, kind, include_self=False)
        for kind in ("amin", "amax")
    ]
    if not steps.is_meta:
        uneven = ends[0][1:] != ends[1][1:]
        if uneven.any():
            k = int(uneven.nonzero()[0])
            raise UserError(
                f"steps of {groups.parameter} range from {ends[0][k + 1]:g} to {ends[1][k + 1]:g} within the tree of "
                f"{groups.names[k]}, but subtrees measured by their Euclidean norm need one step for each tree: take "
                f"SGD, or TreeGroupLassoMax, which is exact with a step for each entry"
            )
    return ends[1][tree]


def _shrink_levels_(W: Tensor, groups: Forest, reach: Tensor) -> Tensor:
    squares, reach = groups.in_levels(groups.own.sums(W * W)).clone(), groups.in_levels(reach)
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
    return W.mul_(share).add_(0.0)  # -0 + 0 = 0


def _clip_levels_(W: Tensor, groups: Forest, strength: Steps, steps: Steps) -> Tensor:
    """Level by level; the elements are entries not yet clipped and, for each node, one for those clipped together."""
    if W.is_meta:
        return W  # the data decide on all shapes in here
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
    own, order = place[there].sort()
    value, count = value[there][order], count[there][order]
    firsts = torch.searchsorted(own, torch.as_tensor(groups.levels, device=W.device)).tolist()
    limit = torch.full((nodes,), torch.inf, dtype=torch.float64, device=W.device)
    pool = own[:0], value[:0], count[:0]
    for level in reversed(range(groups.height)):
        a, b = groups.levels[level], groups.levels[level + 1]
        mine = slice(firsts[level], firsts[level + 1])
        joined = zip(pool, (own[mine] - a, value[mine], count[mine]), strict=True)
        element = tuple(torch.cat(parts) for parts in joined)
        limit[a:b], pool = _clip_level(*element, reach[a:b])
        if level > 0:
            pool = groups.above[a:b].long()[pool[0]] - groups.levels[level - 1], *pool[1:]
    for a, b in groups.steps_between_levels():
        torch.minimum(limit[a:b], limit[:a].index_select(0, groups.above[a:b]), out=limit[a:b])
    most = groups.expand(groups.in_nodes(limit), fill=torch.inf).to(W.dtype)
    return W.copy_(torch.clamp(W, -most, most)).add_(0.0)


def _clip_level(node: Tensor, value: Tensor, count: Tensor, reach: Tensor):
    """The limit of each node of a level, by Michelot's rounds, and the elements that are left after clipping."""
    fixed = count.isinf()  # entries with step 0: they stay, and none can be clipped below them
    floor = torch.zeros_like(reach).scatter_reduce(0, node[fixed], value[fixed], "amax")
    above, values, counts = node[~fixed], value[~fixed], count[~fixed]
    limit = torch.zeros_like(reach)
    while True:
        mass = torch.zeros_like(reach).index_add_(0, above, values * counts)
        total = torch.zeros_like(reach).index_add_(0, above, counts)
        limit = torch.maximum(limit, torch.where(mass > reach, (mass - reach) / total, 0.0))  # it only ever rises
        kept = values > limit[above]
        if kept.all():
            break
        above, values, counts = above[kept], values[kept], counts[kept]
    limit = torch.where(reach > 0, torch.maximum(limit, floor), torch.inf)
    clipped = value >= limit[node]
    total = torch.zeros_like(reach).index_add_(0, node[clipped], count[clipped])
    merged = ((total > 0) & (limit > 0)).nonzero()[:, 0]
    kept = ~clipped
    left = (merged, node[kept]), (limit[merged], value[kept]), (total[merged], count[kept])
    return limit, tuple(torch.cat(parts) for parts in left)
