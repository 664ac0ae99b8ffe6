"""Forests for tests, and slow twins that know subtrees only as lists of entries."""

import math

import numpy as np
import torch

from structsparse.groups import Forest, by_parents

SHAPE = (8, 3)


def random_parents(nodes, seed, reach=None, trees=1):
    """A parent for each node, in any order. With `reach` it is one of so many nodes before: deep; else shallow."""
    draw = np.random.default_rng(seed)
    before = np.arange(nodes)
    low = 0 if reach is None else np.maximum(0, before - reach)
    parents = low + (draw.random(nodes) * (before - low)).astype(np.int64)
    parents[:trees] = -1
    name = draw.permutation(nodes)
    renamed = np.empty(nodes, np.int64)
    renamed[name] = np.where(parents < 0, -1, name[parents])
    return renamed.tolist()


def names_of(nodes):
    return [f"node {k}" for k in range(nodes)]


def rows(weights="sqrt_size"):
    return by_parents(SHAPE, [3, 0, 3, -1, 0, -1, 5, 6], weights=weights)


def scattered(weights="log2_size"):
    """Entries of nodes in an order of their own: one node without entries above others, one below, and free ones."""
    ids = torch.tensor([0, -1, 1, 2, 2, 0, 5, 4] * 3).view(SHAPE)
    ids[0, 0] = 3
    return Forest([6, 0, 0, 1, -1, 4, 4, 3, -1], ids, names_of(9), SHAPE, weights)


FORESTS = {
    "rows": rows,
    "scattered": scattered,
    "columns": lambda: Forest([1, -1, 0], torch.tensor([[2, 0, 1]]), list("abc"), SHAPE),
    "an entry each": lambda: Forest(random_parents(24, 3, trees=3), torch.arange(24).view(SHAPE), names_of(24), SHAPE),
    "a chain": lambda: by_parents(SHAPE, [1, 2, 3, 4, 5, 6, 7, -1], weights="0.8**depth"),
    "in level order": lambda: by_parents(SHAPE, [-1, -1, 0, 0, 1, 2, 2, 4], weights="one"),
    "in preorder": lambda: by_parents(SHAPE, [-1, 0, 1, 1, 0, -1, 5, 5], weights="depth**0.5"),
    "single nodes": lambda: by_parents(SHAPE, [-1] * 8),
    "one dimension": lambda: by_parents((7,), random_parents(7, 1)),
    "three dimensions": lambda: by_parents((5, 2, 3), random_parents(5, 2, trees=2)),
    "matrices": lambda: Forest([-1, 0], torch.tensor([[1, 0], [0, 1], [-1, 1]])[:, :, None], ["a", "b"], (3, 2, 2)),
    "one node": lambda: by_parents((1, 4), [-1]),
    "no nodes": lambda: by_parents((0, 4), []),
}


def members(forest):
    """For each node the flat positions of the entries of its subtree, by climbing from each entry."""
    found, parents = [[] for _ in range(len(forest))], forest.parents.tolist()
    for position, node in enumerate(forest.ids.expand(forest.shape).flatten().tolist()):
        while node >= 0:
            found[node].append(position)
            node = parents[node]
    return found


def slow_tree_prox(W, forest, strength, entry_strength, steps, largest):
    """Entries first, then one subtree after the other, those with the longest path first."""
    w = W.double().flatten().tolist()
    s = torch.as_tensor(steps, dtype=torch.float64).expand(W.shape).flatten().tolist()
    groups = members(forest)
    for i in {i for positions in groups for i in positions}:
        w[i] = math.copysign(max(abs(w[i]) - entry_strength * s[i], 0.0), w[i])
    for node in sorted(range(len(forest)), key=lambda node: -int(forest.depth[node])):
        reach, positions = strength * float(forest.weight[node]), groups[node]
        if reach == 0 or not positions:
            continue
        if largest:
            limit = limit_of([abs(w[i]) for i in positions], [s[i] for i in positions], reach)
            for i in positions:
                w[i] = math.copysign(min(abs(w[i]), limit), w[i])
        else:
            norm = math.hypot(*(w[i] for i in positions))
            for i in positions:
                w[i] = 0.0 if norm <= reach * s[i] else w[i] * (1 - reach * s[i] / norm)
    return torch.tensor(w, dtype=torch.float64).view(W.shape)


def limit_of(sizes, steps, reach):
    """By bisection: the r with  sum (size - r)+ / step = reach, 0 if the sum at 0 is less."""
    low, high = 0.0, max(sizes)
    if math.fsum(a / s for a, s in zip(sizes, steps, strict=True)) <= reach:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        mass = math.fsum(max(a - middle, 0.0) / s for a, s in zip(sizes, steps, strict=True))
        low, high = (middle, high) if mass > reach else (low, middle)
    return (low + high) / 2


def random_weights(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_steps(shape, seed=0, spread=0.7):
    """Over 10 ** -spread to 10 ** spread."""
    draw = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64)
    return 10 ** (spread * (2 * draw - 1))


def steps_of_trees(forest, seed=0):
    """One step for each tree; free entries have steps of their own."""
    parents, steps = forest.parents.tolist(), random_steps((len(forest),), seed).tolist()
    each = random_steps(forest.shape, seed + 1)
    owners = forest.ids.expand(forest.shape).flatten().tolist()
    for position, node in enumerate(owners):
        while node >= 0 and parents[node] >= 0:
            node = parents[node]
        if node >= 0:
            each.view(-1)[position] = steps[node]
    return each
