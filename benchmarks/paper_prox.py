"""Clipping of subtrees by the algorithms of Nelakanti, Archambeau, Mairal, Bach and Bouchard (2013), and by ours.

    random_pivot_   their Algorithm 3: each subtree by itself, the limit by pivots drawn at random
    best_of_heap_   their Algorithm 4: heaps of subtrees, of which the k largest entries are read and clipped
    merged_heap_    ours: entries clipped together go back into the heap as one (`kernels.prox.forest`)

All are prox.forest_clip_ without entry_strength, in any diagonal metric: `strength` times the weight of a node is their
kappa, the inverse steps are their counts. The first two are for contiguous CPU memory; where the paper's lines are
damaged or incomplete, they follow from the text: limits are at least 0 (3, line 9), and a heap loses delta times count
of its mass (4, lines 7 and 8).
"""

import numpy as np
import torch
from torch import Tensor

from benchmarks import paper_prox_kernels as kernels
from structsparse.base.errors import UserError
from structsparse.groups.forest import Forest, Memory
from structsparse.kernels.memory import flat_array, walkable
from structsparse.prox.forest import forest_clip_
from structsparse.prox.steps import Steps, changed, is_scalar, steps_array

SEED = 0  # of the pivots


@torch.no_grad()
def random_pivot_(W: Tensor, groups: Forest, strength: float, steps: Steps) -> Tensor:
    """Algorithm 3: time proportional to the sizes of all subtrees together."""
    plan = groups.preorder()
    v, c, first, place = _entries(W, groups, plan.memory, steps)
    reach = _reach(groups, strength, steps)
    nodes = plan.memory.nodes
    reach = reach[nodes] if len(nodes) else reach
    kernels.clip_by_random_pivots(v, c, first, plan.depth, reach, np.random.default_rng(SEED))
    kernels.back_in_place(flat_array(W), v, place)
    return changed(W)


@torch.no_grad()
def best_of_heap_(W: Tensor, groups: Forest, strength: float, steps: Steps) -> Tensor:
    """Algorithm 4: with k entries read at each of d nodes, of order d k log d."""
    memory = groups.level_memory()
    v, c, first, place = _entries(W, groups, memory, steps)
    reach = _reach(groups, strength, steps)
    nodes = memory.nodes
    kernels.clip_by_best_of_heap(v, c, first, groups.above.numpy(), reach[nodes] if len(nodes) else reach)
    kernels.back_in_place(flat_array(W), v, place)
    return changed(W)


def merged_heap_(W: Tensor, groups: Forest, strength: float, steps: Steps) -> Tensor:
    """Near-linear: each entry leaves a heap once."""
    return forest_clip_(W, groups, strength, 0.0, steps)


ALGORITHMS = {"random_pivot": random_pivot_, "best_of_heap": best_of_heap_, "merged_heap": merged_heap_}


def _entries(W: Tensor, groups: Forest, memory: Memory, steps: Steps):
    """Sizes and counts of the entries node by node, where each node's begin, and their places in W."""
    groups.check(W)
    if not walkable(W):
        raise UserError("the algorithms of the paper are for contiguous CPU memory: take prox.forest_clip_ elsewhere")
    x, many = flat_array(W), len(groups) if not len(memory.starts) else int(memory.starts[-1])
    v, c = np.empty(many * memory.width), np.empty(many * memory.width)
    each = x[:0] if is_scalar(steps) else steps_array(steps, W)
    return v, c, *kernels.entries_in_order(x, each, *memory.owned, len(groups), v, c)


def _reach(groups: Forest, strength: float, steps: Steps) -> np.ndarray:
    """Of each node; one step for all is part of it."""
    return (float(strength) * (float(steps) if is_scalar(steps) else 1.0)) * groups.weight.double().numpy()
