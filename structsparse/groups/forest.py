"""Nested groups: the class `Forest`; the group of a node is its subtree (the node and all nodes below it)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from structsparse.base.errors import UserError
from structsparse.groups.group_weights import checked_weights
from structsparse.groups.partition import Partition, RowNames
from structsparse.kernels.groups import forest as kernels
from structsparse.kernels.memory import flat_array, walkable

MOST_NAMES = 8  # maximum number of nodes of a cycle that an error message lists
CHUNKS = 64  # maximum number of chunks of a forest; a chunk is a set of whole trees, processed by one thread


class Forest(nn.Module):
    """Nested groups of the entries of one parameter: a forest of nodes, whose groups are the subtrees.

    Each node has a parent (-1: the node is a root). Nodes are in any order. `size` counts the entries of each subtree.
    - `ids`: the node of each entry, -1 for free (unpenalised) entries. It broadcasts against the parameter.
    - `weights`: a rule of `Partition`, "depth**alpha" or "alpha**depth" (a root has depth 1), or a tensor.
    - `counts`: node k stands for a chain of counts[k] nodes with the same values. Only penalties with maximum norms may
      have counts. A caller of the prox must divide the step of each entry by the count of its node."""

    repeated = False  # whether every column of the parameter has this forest, see `RepeatedForest`

    def __init__(
        self,
        parents: Sequence[int] | Tensor,
        ids: Tensor,
        names: Sequence[str],
        shape: Sequence[int],
        weights: str | Tensor = "sqrt_size",
        parameter: str = "the parameter",
        counts: Sequence[int] | Tensor | None = None,
    ):
        super().__init__()
        self.names, self.shape, self.parameter = names, torch.Size(shape), parameter
        self.own = Partition(ids, names, shape, "one", parameter)  # one group per node, without the nodes below
        parents = _checked_parents(parents, names, parameter)
        counts = _checked_counts(counts, names, parameter)
        order, above = _checked_order(parents, names, parameter)
        levels = kernels.level_offsets(above)
        self.levels = levels  # for nodes sorted by level: index of the first node of each level, then the node count
        ordered = bool((order == np.arange(len(order))).all())
        self.register_buffer("parents", parents)
        self.register_buffer("counts", counts)
        # level order sorts the nodes by depth; `order` is this permutation, `place` its inverse; None: nodes are sorted
        self.register_buffer("order", None if ordered else torch.from_numpy(order))
        self.register_buffer("place", None if ordered else torch.from_numpy(_inverse(order)))
        # `above`: for each node in level order, the index of the parent in level order; -1 for roots
        self.register_buffer("above", torch.from_numpy(above))
        depth = np.repeat(np.arange(1, len(levels), dtype=np.int32), np.diff(levels))
        self.register_buffer("depth", self.in_nodes(torch.from_numpy(depth)))
        self.register_buffer("size", self.add_up(self.own.size if counts is None else self.own.size * counts))
        weight = checked_weights(weights, self.size, names, self.depth)
        self.register_buffer("weight", weight if counts is None else weight * counts)
        self.own.size = self.own.weight = self.own.offsets = None  # unused: frees memory
        self.scratch = Scratch()

    def __len__(self) -> int:
        return len(self.names)

    def extra_repr(self) -> str:
        """Forest of nested groups: the numbers of nodes, trees and levels, for the printed form of the module."""
        trees = int(self.levels[1]) if len(self) else 0
        return f"{len(self)} nodes, {trees} trees, {self.height} levels over {self.parameter} {tuple(self.shape)}"

    @property
    def ids(self) -> Tensor:
        """Forest of groups: the node of each entry, -1 for entries in no node; broadcastable against the parameter."""
        return self.own.ids

    @property
    def free(self) -> bool:
        """Forest of nested groups: whether any entry of the parameter belongs to no node."""
        return self.own.free

    @property
    def height(self) -> int:
        """Forest of nested groups: the number of levels of the forest."""
        return len(self.levels) - 1

    def children_of(self, node: int) -> Tensor:
        """Forest of nested groups: the child nodes of a node of the forest (int64 tensor [children])."""
        return (self.parents == node).nonzero()[:, 0]

    def sums(self, X: Tensor) -> Tensor:
        """Forest of groups: the sum of X over the entries of each subtree (float64 tensor [nodes])."""
        return self.add_up(self.own_sums(X))

    def own_sums(self, X: Tensor) -> Tensor:
        """Forest of nested groups: the sum of X over the own entries of each node (float64 tensor [nodes]).

        Own entries of a node are those that belong to no node below it."""
        return self.own.sums(X)

    def norms(self, W: Tensor) -> Tensor:
        """Forest of nested groups: the Euclidean norm of W on each subtree (float64 tensor [nodes]).

        The gradient of a zero norm is zero."""
        if self.in_memory(W):
            return self.in_nodes(self._squares_in_memory(W)).sqrt()
        squares = self.sums(W * W)
        positive = squares > 0
        return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)

    def maxima(self, W: Tensor) -> Tensor:
        """Forest of nested groups: the largest absolute value of W on each subtree (float64 tensor [nodes]).

        The gradient of a maximum goes to a single entry that attains the maximum."""
        recorded = W.requires_grad and torch.is_grad_enabled()
        if not recorded and self.in_memory(W):
            return self.in_nodes(self._maxima_in_memory(W))
        with torch.no_grad():
            fast = self.in_memory(W.detach())
            values, where = self._largest_in_memory(W.detach()) if fast else self._largest(W)
        if not recorded:
            return values
        chosen = W.flatten()[where.clamp(min=0)] if W.numel() else values
        return torch.where(where >= 0, chosen.abs().double(), 0.0)

    def nonzeros(self, W: Tensor) -> Tensor:
        """Forest of nested groups: the number of nonzero entries of W in each subtree (float64 tensor [nodes])."""
        return self.sums(W != 0)

    def alive(self, W: Tensor) -> Tensor:
        """Forest of nested groups: for each subtree, whether it has a nonzero entry of W (bool tensor [nodes])."""
        return self.nonzeros(W) != 0

    def expand(self, values: Tensor, fill: float) -> Tensor:
        """Forest of nested groups: expand values [nodes] to one value per entry, the value of the entry's node.

        Entries in no node get `fill`. The result is broadcastable against the parameter."""
        return self.own.expand(values, fill)

    def add_up(self, values: Tensor) -> Tensor:
        """Forest of groups: for each node, the sum of `values` over its subtree (the node and all nodes below it)."""
        return _AlongPaths.apply(values, self, True)

    def add_down(self, values: Tensor) -> Tensor:
        """Forest of nested groups: for each node, the sum of `values` over the path from the root to the node."""
        return _AlongPaths.apply(values, self, False)

    def in_levels(self, values: Tensor) -> Tensor:
        """Forest of nested groups: reorder values [nodes] from the node order to level order (sorted by depth)."""
        return values if self.order is None else values.index_select(0, self.order)

    def in_nodes(self, values: Tensor) -> Tensor:
        """Forest of nested groups: reorder values [nodes] from level order (sorted by depth) to the node order."""
        return values if self.place is None else values.index_select(0, self.place)

    def in_memory(self, W: Tensor) -> bool:
        """Forest of nested groups: whether the numba kernels for forests can work on the memory of W."""
        self.check(W)
        return walkable(W)

    def check(self, W: Tensor) -> None:
        """Forest of groups: raise UserError if a tensor does not have the shape of the parameter of the forest."""
        self.own.check(W)

    def parts(self, X: Tensor) -> Sequence[Tensor]:
        """Forest of nested groups: parts of the tensor X that have no group in common."""
        return [X]

    def plain(self, W: Tensor) -> "Forest":
        """Forest of nested groups: the same groups of W as a forest in which each subtree is a node of its own."""
        return self

    def level_memory(self) -> "Memory":
        """Forest of nested groups: where the entries of each node lie in memory, see `Memory`; nodes by depth."""
        return self.scratch.made("level", lambda: self._memory(self.order))

    def preorder(self) -> "Preorder":
        """Forest of groups: the nodes in preorder (each node before the nodes below it), see `Preorder`."""
        return self.scratch.made("preorder", self._preorder)

    def _memory(self, order: Tensor | None) -> "Memory":
        """Forest of nested groups: where the entries of each node lie in memory, with the nodes in the given order.

        If `order` is None, the nodes are in the order of the forest."""
        owners, width = self.own.ids, 1
        while owners.dim() and owners.shape[-1] == 1:
            owners, width = owners[..., 0], width * self.shape[owners.dim() - 1]
        owners = owners.expand(self.shape[: owners.dim()]).flatten()
        nodes = np.empty(0, np.int32) if order is None else order.numpy()
        if len(owners) == len(self) and bool((owners == torch.arange(len(self))).all()):
            return Memory(nodes, nodes, np.empty(0, np.int64), width)
        place = _inverse(nodes) if len(nodes) else np.arange(len(self), dtype=np.int32)
        short = np.int32 if len(owners) < 1 << 31 else np.int64
        units = np.empty(int((owners >= 0).sum()), short)
        return Memory(nodes, units, kernels.units_by_place(owners.numpy(), place, units), width)

    def _preorder(self) -> "Preorder":
        """Forest of nested groups: compute the preorder of the nodes, and sets of whole trees of similar size."""
        place = kernels.preorder(self.above.numpy())  # for each node in level order, its index in preorder
        nodes = np.empty_like(place)
        nodes[place] = np.arange(len(self)) if self.order is None else self.order.numpy()
        ordered = bool((nodes == np.arange(len(self))).all())
        memory = self._memory(None if ordered else torch.from_numpy(nodes))
        depth = self.depth.numpy()[nodes] - 1
        starts = memory.starts if len(memory.starts) else np.arange(len(self) + 1)
        roots = np.append((depth == 0).nonzero()[0], len(self))
        shares = np.linspace(0, starts[-1], CHUNKS + 1)  # bounds of equal shares of the entries
        chunks = np.unique(roots[np.searchsorted(starts[roots], shares)])
        return Preorder(memory, depth, np.unique([0, *chunks, len(self)]))

    def _squares_in_memory(self, W: Tensor) -> Tensor:
        """Forest of groups: the squared norm of each subtree, in level order (by depth), by the numba kernels."""
        memory, squares = self.level_memory(), torch.empty(len(self), dtype=torch.float64)
        x = flat_array(W)
        kernels.own_squares(x, *memory.owned, x.dtype.type(0), squares.numpy())
        kernels.add_upwards(squares.numpy(), self.above.numpy())
        return squares

    def _maxima_in_memory(self, W: Tensor) -> Tensor:
        """Forest of groups: the largest absolute value of each subtree, in level order (by depth), by numba kernels."""
        values = torch.empty(len(self), dtype=torch.float64)
        kernels.largest(flat_array(W), *self.level_memory().owned, self.above.numpy(), values.numpy())
        return values

    def _largest_in_memory(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Forest of groups: the largest absolute value of each subtree and its flat position, by the numba kernels."""
        values, where = torch.zeros(len(self), dtype=torch.float64), torch.full((len(self),), -1)
        kernels.own_largest(flat_array(W), *self.level_memory().owned, values.numpy(), where.numpy())
        kernels.largest_upwards(values.numpy(), where.numpy(), self.above.numpy())
        return self.in_nodes(values), self.in_nodes(where)

    def _largest(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Forest of groups: the largest absolute value of each subtree and its flat position, in torch.

        A subtree without entries gets the value 0 and the position -1."""
        size, nowhere = W.abs().double().flatten(), W.numel()
        # the node of each entry; entries in no node (-1) get the additional node len(self)
        owners = self.ids.expand(self.shape).flatten().remainder(len(self) + 1)
        values = size.new_zeros(len(self) + 1).scatter_reduce(0, owners, size, "amax")
        here = torch.where(size == values[owners], torch.arange(nowhere, device=W.device), nowhere)
        where = here.new_full((len(self) + 1,), nowhere).scatter_reduce(0, owners, here, "amin")
        values, where = self.in_levels(values[:-1]).clone(), self.in_levels(where[:-1]).clone()
        for a, b in reversed(self.steps_between_levels()):
            above, before = self.above[a:b].long(), values[:a].clone()
            values[:a].scatter_reduce_(0, above, values[a:b], "amax")
            where[:a] = torch.where(values[:a] > before, nowhere, where[:a])
            here = torch.where(values[a:b] == values[above], where[a:b], nowhere)
            where[:a].scatter_reduce_(0, above, here, "amin")
        where = torch.where(where == nowhere, -1, where)
        return self.in_nodes(values), self.in_nodes(where)

    def steps_between_levels(self) -> list[tuple[int, int]]:
        """Forest of nested groups: for each level except the roots, the range of its nodes.

        A range is a pair (start, end) of indices into level order (sorted by depth)."""
        levels = self.levels.tolist()
        return list(zip(levels[1:-1], levels[2:], strict=True))


class Memory(NamedTuple):
    """Forest of nested groups: the nodes of a forest in some order, and where the entries of each node lie in memory.

    The memory of the parameter is divided into units of `width` entries: unit u begins at entry u * width."""

    nodes: np.ndarray  # [nodes] the nodes in the chosen order; empty for the order 0, 1, 2, ...
    units: np.ndarray  # the memory units of all nodes, node after node; empty if node k has unit k
    starts: np.ndarray  # array of shape [nodes + 1]: where each node starts in `units`; empty if each node has one unit
    width: int  # number of entries of the parameter in a memory unit

    @property
    def owned(self):
        """Forest of groups: units, starts and width, which tell the kernels where the entries of each node lie."""
        return self.units, self.starts, self.width


class Preorder(NamedTuple):
    """Forest of nested groups: the nodes in preorder, with memory, depth, and chunks (sets of whole trees)."""

    memory: Memory
    depth: np.ndarray  # [nodes] the depth of each node, 0 for roots
    chunks: np.ndarray  # array of shape [chunks + 1]: the first node of each chunk, then the number of nodes


class Scratch(dict):
    """Forest of nested groups: a cache of scratch arrays and node orders for the numba kernels, filled on first use.

    A copied or pickled forest gets an empty cache."""

    def made(self, name, make):
        """Forest of groups: the cached value with this name; on first use, the function `make` computes it."""
        if name not in self:
            self[name] = make()
        return self[name]

    def array(self, name: str, size: int, dtype=np.float64) -> np.ndarray:
        """Forest of groups: an uninitialised scratch array; calls with the same arguments return the same array."""
        return self.made((name, size, dtype), lambda: np.empty(size, dtype))

    def __deepcopy__(self, memo):
        return Scratch()

    def __reduce__(self):
        return Scratch, ()


class _AlongPaths(torch.autograd.Function):
    """Forest of groups: differentiable sums of node values over subtrees (up) or over paths from the root (down).

    The gradient of sums over subtrees is a sum over paths, and vice versa."""

    @staticmethod
    def forward(ctx, values: Tensor, forest: Forest, up: bool) -> Tensor:
        """Forest of groups: sums of values [nodes] over subtrees (up) or over paths from the root (down)."""
        ctx.forest, ctx.up = forest, up
        values = forest.in_levels(values).clone()
        if values.device.type == "cpu":
            (kernels.add_upwards if up else kernels.add_downwards)(values.detach().numpy(), forest.above.numpy())
        elif up:
            for a, b in reversed(forest.steps_between_levels()):
                values[:a].index_add_(0, forest.above[a:b], values[a:b])
        else:
            for a, b in forest.steps_between_levels():
                values[a:b] += values[:a].index_select(0, forest.above[a:b])
        return forest.in_nodes(values)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        """Forest of nested groups: the gradient of sums over subtrees is a sum over paths, and vice versa."""
        return _AlongPaths.apply(gradient, ctx.forest, not ctx.up), None, None


def by_parents(
    shape: Sequence[int],
    parents: Sequence[int] | Tensor,
    names: Sequence[str] | None = None,
    weights: str | Tensor = "sqrt_size",
    parameter: str = "the parameter",
    counts: Sequence[int] | Tensor | None = None,
) -> Forest:
    """Forest of nested groups, in which each row is a node; parents[row] is the row of its parent, or -1 for a root."""
    if len(parents) != shape[0]:
        raise UserError(f"{len(parents)} parents for the {shape[0]} rows of {parameter}")
    names = RowNames(shape[0]) if names is None else names
    ids = torch.arange(shape[0]).view([-1] + [1] * (len(shape) - 1))
    return Forest(parents, ids, names, shape, weights, parameter, counts)


def _inverse(order: np.ndarray) -> np.ndarray:
    """Forest of nested groups: the inverse of a permutation of the nodes."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    return place


def _checked_parents(parents, names: Sequence[str], parameter: str) -> Tensor:
    """Forest of nested groups: the parents of the nodes as an int64 vector.

    Raises UserError if a parent is neither -1 nor another node."""
    parents = torch.as_tensor(parents)
    if parents.numel() and (parents.is_floating_point() or parents.dtype == torch.bool):
        raise UserError(f"parents of the nodes of {parameter} must be integers, got {parents.dtype}")
    parents = parents.long().cpu()
    if parents.shape != (len(names),):
        raise UserError(f"parents have shape {tuple(parents.shape)}, expected one for each of {len(names)} nodes")
    wrong = (parents < -1) | (parents >= len(names))
    if wrong.any():
        k = int(wrong.nonzero()[0])
        raise UserError(f"the parent of {names[k]} is {parents[k]}, expected -1 (a root) to {len(names) - 1}")
    loops = parents == torch.arange(len(names))
    if loops.any():
        raise UserError(f"{names[int(loops.nonzero()[0])]} is its own parent; a root has the parent -1")
    return parents


def _checked_counts(counts, names: Sequence[str], parameter: str) -> Tensor | None:
    """Forest of groups: the counts of the nodes as an int64 vector.

    Raises UserError if a count is not a whole number of at least 1."""
    if counts is None:
        return None
    counts = torch.as_tensor(counts).cpu()
    if counts.shape != (len(names),):
        raise UserError(f"counts have shape {tuple(counts.shape)}, expected one for each of {len(names)} nodes")
    wrong = ~((counts >= 1) & (counts == counts.double().round()))
    if wrong.any():
        k = int(wrong.nonzero()[0])
        raise UserError(f"the count of {names[k]} is {counts[k]}, expected a whole number of at least 1")
    return counts.long()


def _checked_order(parents: Tensor, names: Sequence[str], parameter: str) -> tuple[np.ndarray, np.ndarray]:
    """Forest of nested groups: the nodes in level order (sorted by depth), and the parents as indices into it.

    Raises UserError if the parents form a cycle."""
    if kernels.levelled(parents.numpy()):  # keep nodes that are sorted by depth: contiguous memory is fast
        return np.arange(len(names), dtype=np.int32), parents.numpy().astype(np.int32)
    order, above = kernels.level_order(parents.numpy())
    if len(order) < len(names):
        reached = np.zeros(len(names), bool)
        reached[order] = True
        cycle = kernels.cycle_above(parents.numpy(), int((~reached).nonzero()[0][0]))
        shown = [names[int(k)] for k in cycle[:MOST_NAMES]]
        rest = f" > ... ({len(cycle)} nodes)" if len(cycle) > MOST_NAMES else ""
        raise UserError(f"the parents of {parameter} form a cycle: {' > '.join(shown)}{rest} > {shown[0]}")
    return order, above
