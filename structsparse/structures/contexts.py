"""Contexts structure for language models: softmax over a tree of contexts, p(word | context).

The cost is linear in the number of entries, which are pairs of a context and a next word.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.kernels.structures import contexts as kernels
from structsparse.kernels.structures import contexts_stable as stable

NOTHING = torch.empty(0)
# if Z of a context is below this share of the largest Z on the path, torch counts only the entries of the context
LOST = 2.0**-26


class Increments(NamedTuple):
    """Contexts structure: the score increments of the entries in a tree of contexts.

    The increments are features * weights, plus `base` on the first V entries, which are all V words after the empty
    context."""

    weights: Tensor  # [entries]: weight of each entry
    features: Tensor | None = None  # [entries]: factor of each weight; None: all ones
    base: Tensor | None = None  # [V]: constant added to the first V increments; None: zeros

    def dense(self) -> Tensor:  # shape [entries], float64
        """Contexts structure: the score increments as one tensor, float64 [entries]."""
        increments = self.weights.double() if self.features is None else self.weights.double() * self.features
        if self.base is None:
            return increments
        return torch.cat([increments[: len(self.base)] + self.base, increments[len(self.base) :]])


class ContextArrays(Protocol):
    """Contexts structure: the arrays of a tree of contexts.

    A node is a context; an entry is a pair of a context and a next word. Parents come before children, level by level.
    The first V entries are all V words after the empty context, which is node 0."""

    words: int  # number V of words
    above: np.ndarray  # [nodes]: the parent context of each node; -1 for node 0
    ends: np.ndarray  # [nodes]: number of target words whose longest known context is the node
    entry_node: np.ndarray  # [entries]: the node of each entry
    entry_word: np.ndarray  # [entries]: the next word of each entry
    entry_above: np.ndarray  # [entries]: the entry of the same word in the nearest context above; -1 for the first V
    entry_ends: np.ndarray  # [entries]: number of target words whose deepest entry is the entry
    node_levels: np.ndarray  # offsets of the levels of nodes
    entry_levels: np.ndarray  # offsets of the levels of entries


class Contexts(nn.Module):
    """Contexts structure of next words in a language model, p(word | context) = exp S(word, context) / Z(context).

    Z sums exp S over all V words. S(word, context) is the score S[e] of the deepest entry e of the word on the path
    from the empty context to this context. S[e] is the sum of the increments of e and of the entries above e.
    Increments are a tensor [entries] or `Increments`. Z of a context is Z of the parent plus the change by the entries
    of the context. So all costs are linear in the number of entries.

    The compiled kernels process float32 and float64 on the CPU. The kernels sum in float64 and are accurate for any
    finite increments (see `kernels.structures.contexts`). Torch operations process everything else in float64, level by
    level and without reading values; all S must lie within 600 of each other. The torch result loses digits if Z of a
    context is a small share of Z of a context above. Below a share of 2^-26, words without an entry in the context are
    ignored."""

    def __init__(self, tree: ContextArrays) -> None:
        super().__init__()
        self.words, self.nodes, self.entries = int(tree.words), len(tree.above), len(tree.entry_node)
        self.node_levels, self.entry_levels = _listed(tree.node_levels), _listed(tree.entry_levels)
        starts = np.append(0, np.cumsum(np.bincount(tree.entry_node, minlength=self.nodes)))
        runs, parts = kernels.plan(_integers(tree.above), starts)
        buffers = {
            "above": _integers(tree.above),  # shape [nodes]
            "starts": starts,  # shape [nodes + 1]
            "entry_node": _integers(tree.entry_node),
            "entry_word": _integers(tree.entry_word),
            "entry_above": _integers(tree.entry_above),
            "node_ends": np.asarray(tree.ends),  # [nodes], counts of the target words of the tree
            "entry_ends": np.asarray(tree.entry_ends),
        }
        for name, array in buffers.items():
            self.register_buffer(name, torch.from_numpy(array), persistent=False)
        self.runs, self.parts = runs, parts
        self.memory = Memory()
        self._counted: tuple | None = None

    def extra_repr(self) -> str:
        """Contexts structure: the sizes of the tree of contexts, for the printed form of the module."""
        return f"{self.words} words, {self.nodes} contexts, {self.entries} entries, {len(self.node_levels) - 1} levels"

    def surprise(self, increments: Tensor | Increments, node_ends: Tensor, entry_ends: Tensor) -> Tensor:
        """Contexts structure: the language-model loss, the sum over all targets of -log p(target | context).

        The loss is a float64 scalar. node_ends [nodes] counts the targets whose longest known context is each node.
        entry_ends [entries] counts the targets whose deepest entry is each entry. The gradient in the weights can be
        taken once."""
        increments = self._checked(increments)
        for name, ends, size in (("node_ends", node_ends, self.nodes), ("entry_ends", entry_ends, self.entries)):
            if tuple(ends.shape) != (size,):
                raise UserError(f"{name} have shape {tuple(ends.shape)}, expected ({size},)")
        route = NativeRoute if _native(increments.weights) else TorchRoute
        return _Surprise.apply(route, self, (node_ends, entry_ends), *increments)

    @torch.no_grad()
    def path_sums(self, increments: Tensor | Increments) -> Tensor:  # shape [entries], float64
        """Contexts structure: the score S of each entry, without a gradient."""
        increments = self._checked(increments)
        if not _native(increments.weights):
            return TorchRoute.path_sums(self, increments)
        sums = torch.empty(self.entries, dtype=torch.float64)
        stable.path_sums(*_arrays(increments), self.entry_above.numpy(), sums.numpy())
        return sums

    @torch.no_grad()
    def log_partition(self, sums: Tensor) -> Tensor:  # shape [nodes], float64
        """Contexts structure: the log-partition log Z of each context, from the scores S, without a gradient."""
        if tuple(sums.shape) != (self.entries,):
            raise UserError(f"path sums have shape {tuple(sums.shape)}, expected ({self.entries},)")
        if not _native(sums):
            masses, shift, *_ = TorchRoute.masses(self, sums.double())
            return masses.log() + shift
        masses, shifts, _ = NativeRoute.stable_masses(self, sums.double().contiguous().numpy())
        return torch.from_numpy(shifts + np.log(masses[:, 0]))

    def summed(self, ends: Tensor) -> Tensor:  # shape [entries], float64
        """Contexts structure: for each entry, the sum of `ends` over the entry and all entries below."""
        sums = ends.to(torch.float64, copy=True).contiguous()
        if sums.device.type == "cpu":
            kernels.add_upwards(sums.numpy(), self.entry_above.numpy())
            return sums
        for a, b in reversed(list(_levels(self.entry_levels))):
            sums.index_add_(0, self.entry_above[a:b], sums[a:b].clone())
        return sums

    def counted(self, node_ends: Tensor, entry_ends: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
        """Contexts structure: the target counts as arrays for the compiled kernels.

        Returns the counts of nodes, the counts of entries summed over subtrees, and the total number of targets. The
        result is cached while the same unchanged tensors are passed."""
        versions = node_ends._version, entry_ends._version
        cached = self._counted
        if cached is None or cached[0] is not node_ends or cached[1] is not entry_ends or cached[2] != versions:
            nodes = node_ends.detach().double().contiguous().numpy()
            below = self.summed(entry_ends.detach()).numpy()
            cached = self._counted = (node_ends, entry_ends, versions, (nodes, below, float(nodes.sum())))
        return cached[3]

    def _checked(self, increments: Tensor | Increments) -> Increments:
        """Contexts structure: the increments, after a check of their shapes."""
        if not isinstance(increments, Increments):
            increments = Increments(increments)
        sizes = {"weights": self.entries, "features": self.entries, "base": self.words}
        for name, value in increments._asdict().items():
            if value is not None and tuple(value.shape) != (sizes[name],):
                raise UserError(f"{name} of increments have shape {tuple(value.shape)}, expected ({sizes[name]},)")
        return increments


class _Surprise(torch.autograd.Function):
    """Contexts structure: the autograd function of the language-model loss over a tree of contexts.

    The only gradient is the gradient in the weights."""

    @staticmethod
    def forward(ctx, route, contexts, ends, *increments):
        """Contexts structure: the language-model loss summed over all targets, a scalar."""
        increments = Increments(*(None if part is None else part.detach() for part in increments))
        loss, ctx.kept = route.sum(contexts, increments, *ends)
        ctx.route, ctx.contexts, ctx.ends, ctx.increments = route, contexts, ends, increments
        ctx.versions = _versions(increments, ends)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, scale):
        """Contexts structure: the gradient of the language-model loss in the weights, times `scale`."""
        if not ctx.needs_input_grad[3]:
            return None, None, None, None, None, None
        if _versions(ctx.increments, ctx.ends) != ctx.versions:
            raise RuntimeError("increments or ends of this loss have been changed in place before its gradient")
        gradient = ctx.route.slope(ctx.contexts, ctx.increments, *ctx.ends, ctx.kept, scale)
        return None, None, None, gradient, None, None


def _versions(increments: Increments, ends) -> list[int]:
    """Contexts structure: version counters of the tensors of a loss, which change with every in-place operation."""
    return [part._version for part in (*increments[1:], *ends) if part is not None]


class Memory:
    """Contexts structure: a pool of work arrays that are reused once they are garbage-collected.

    For a large language model, the first access to newly allocated arrays would cost as much as the computation itself.
    """

    def __init__(self) -> None:
        self.free: dict[tuple, list[np.ndarray]] = {}

    def borrow(self, *shape: int, dtype=np.float64) -> np.ndarray:
        """Contexts structure: a work array from the pool, for exclusive use while the array is alive.

        The array also stays in use while a tensor made of it is alive."""
        free = self.free.setdefault((*shape, np.dtype(dtype)), [])
        array = free.pop() if free else np.empty(shape, dtype)
        view = array.view()
        weakref.finalize(view, free.append, array).atexit = False
        return view

    def tensor(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Contexts structure: a CPU tensor from the pool, for exclusive use while the tensor is alive."""
        return torch.from_numpy(self.borrow(*shape, dtype=torch.empty(0, dtype=dtype).numpy().dtype))

    def __deepcopy__(self, memo) -> Memory:
        """Contexts structure: an empty pool of work arrays, so that copies of a model share no memory."""
        return Memory()

    def __reduce__(self):
        """Contexts structure: pickle the pool of work arrays as an empty pool."""
        return Memory, ()


class NativeRoute:
    """Contexts structure: the compiled route of the softmax over contexts, for float weights on the CPU.

    The weights are float32 or float64."""

    @staticmethod
    def sum(contexts: Contexts, increments: Increments, node_ends: Tensor, entry_ends: Tensor):
        """Contexts structure: the language-model loss in compiled code, and intermediate results for `slope`."""
        nodes, below, total = contexts.counted(node_ends, entry_ends)
        exps, masses = contexts.memory.borrow(contexts.entries), contexts.memory.borrow(contexts.nodes, 2)
        loss, tame = kernels.forward(
            *(contexts.runs, contexts.parts, _tree(contexts), *_arrays(increments), below, nodes, total),
            *(contexts.words, exps, masses),
        )
        if tame:
            return torch.tensor(loss, dtype=torch.float64), (exps, masses)
        sums = contexts.path_sums(increments).numpy()
        arrays = NativeRoute.stable_masses(contexts, sums)
        ends = entry_ends.detach().double().contiguous().numpy()
        loss = stable.loss(sums, nodes, ends, *arrays[:2])
        return torch.tensor(loss, dtype=torch.float64), (sums, *arrays)

    @staticmethod
    def stable_masses(contexts: Contexts, sums: np.ndarray):
        """Contexts structure: the normalisers of all contexts in compiled code, for any finite scores.

        Returns masses [nodes, 2], shifts [nodes] and anew [nodes], with log Z = shifts + log masses[:, 0]. anew marks
        the contexts whose Z is summed directly over all words."""
        masses, shifts = np.empty((contexts.nodes, 2)), np.empty(contexts.nodes)
        anew, levels = np.empty(contexts.nodes, np.bool_), len(contexts.node_levels)
        tree, entry_word = _tree(contexts), contexts.entry_word.numpy()
        stable.masses(sums, tree, entry_word, levels, contexts.words, masses, shifts, anew)
        return masses, shifts, anew

    @staticmethod
    def slope(contexts: Contexts, increments: Increments, node_ends, entry_ends, kept, scale: Tensor) -> Tensor:
        """Contexts structure: the gradient of the loss in the weights in compiled code, times `scale`."""
        nodes, below, _ = contexts.counted(node_ends, entry_ends)
        _, features, _ = _arrays(increments)
        gradient = contexts.memory.tensor(increments.weights.shape, increments.weights.dtype)
        if len(kept) == 2:
            exps, masses = kept
            parts = len(contexts.parts) - 1
            shares = contexts.memory.borrow(contexts.nodes + parts)
            slopes = contexts.memory.borrow(contexts.entries + (parts - 1) * contexts.words)
            kernels.backward(
                *(contexts.runs, contexts.parts, _tree(contexts), features, below, nodes, float(scale), exps, masses),
                *(shares, slopes, contexts.words, gradient.numpy()),
            )
        else:
            stable.gradient(
                *(kept[0], _tree(contexts), contexts.entry_word.numpy(), len(contexts.node_levels)),
                *(features, below, nodes, float(scale), *kept[1:], gradient.numpy()),
            )
        return gradient


def _native(weights: Tensor) -> bool:
    """Contexts structure: whether the compiled kernels support the device and type of the weights."""
    return weights.device.type == "cpu" and weights.dtype in (torch.float32, torch.float64)


def _tree(contexts: Contexts) -> tuple[np.ndarray, ...]:
    """Contexts structure: the tree of contexts as arrays for the compiled kernels.

    Returns the parent of each node, the first entry of each node, the entry above each entry, and the node of each
    entry."""
    return tuple(part.numpy() for part in (contexts.above, contexts.starts, contexts.entry_above, contexts.entry_node))


def _arrays(increments: Increments) -> tuple[np.ndarray, ...]:
    """Contexts structure: the increments as arrays for the compiled kernels.

    The arrays are weights, features of the same type and base in float64; None becomes an empty array."""
    weights, features, base = increments
    features = NOTHING if features is None else features
    base = NOTHING if base is None else base
    return tuple(
        part.detach().to(kind).contiguous().numpy()
        for part, kind in ((weights, weights.dtype), (features, weights.dtype), (base, torch.float64))
    )


def _integers(array: np.ndarray) -> np.ndarray:
    """Contexts structure: an array of the tree of contexts as contiguous int32."""
    return np.ascontiguousarray(array, np.int32)


def _listed(levels: np.ndarray) -> list[int]:
    """Contexts structure: the offsets of the levels of the tree as a list of Python integers."""
    return [int(level) for level in levels]


class TorchRoute:
    """Contexts structure: the torch route of the softmax over contexts, for any device and type.

    The route works in float64, level by level, without synchronisation with the host."""

    @staticmethod
    def sum(contexts: Contexts, increments: Increments, node_ends: Tensor, entry_ends: Tensor):
        """Contexts structure: the language-model loss by torch operations, and intermediate results for `slope`."""
        sums = TorchRoute.path_sums(contexts, increments)
        masses, shift, exps, lost = TorchRoute.masses(contexts, sums)
        loss = (node_ends.double() * (masses.log() + shift)).sum() - (entry_ends.double() * sums).sum()
        return loss, (masses, exps, lost)

    @staticmethod
    def path_sums(contexts: Contexts, increments: Increments) -> Tensor:  # shape [entries]
        """Contexts structure: the score S of each entry, the sum of the increments along the path from the root."""
        sums, above = increments.dense().clone(), contexts.entry_above
        for a, b in _levels(contexts.entry_levels):
            sums[a:b] += sums[:a].index_select(0, above[a:b])
        return sums

    @staticmethod
    def masses(contexts: Contexts, sums: Tensor) -> tuple[Tensor, ...]:
        """Contexts structure: the normalisers Z [nodes] of all contexts by torch operations.

        Also returns the shift, exp S [entries], and a mask of the nodes whose Z has lost precision. Z and exp S are
        relative to exp(shift)."""
        V = contexts.words
        shift = sums.amax()
        exps = torch.exp(sums - shift)
        entry_masses = torch.zeros(contexts.nodes, dtype=torch.float64, device=sums.device)
        entry_masses = entry_masses.index_add_(0, contexts.entry_node, exps)
        masses = entry_masses.index_add(
            0, contexts.entry_node[V:], exps.index_select(0, contexts.entry_above[V:]), alpha=-1
        )
        most = masses.clone()
        for (a, b), above in _node_levels(contexts):
            mass = masses[a:b] + masses[:a].index_select(0, above)
            masses[a:b] = torch.maximum(mass, entry_masses[a:b])  # only rounding errors make Z smaller
            most[a:b] = torch.maximum(mass, most[:a].index_select(0, above))
        return masses, shift, exps, masses < LOST * most

    @staticmethod
    def slope(contexts: Contexts, increments: Increments, node_ends, entry_ends, kept, scale: Tensor) -> Tensor:
        """Contexts structure: the gradient of the loss in the weights by torch operations, times `scale`."""
        masses, exps, lost = kept
        V, entry_node, entry_above = contexts.words, contexts.entry_node, contexts.entry_above
        shares = node_ends.double() / masses
        for (a, b), above in reversed(list(_node_levels(contexts))):
            shares.index_add_(0, above, torch.where(lost[a:b], 0.0, shares[a:b]))
        rest = torch.where(lost, 0.0, shares).index_select(0, entry_node[V:])
        rest = rest * exps.index_select(0, entry_above[V:])
        shares = shares.index_select(0, entry_node)  # shape [entries]
        slopes = shares * exps - entry_ends.double()
        slopes.index_add_(0, entry_above[V:], rest, alpha=-1)
        slopes = contexts.summed(slopes) * scale
        if increments.features is not None:
            slopes = slopes * increments.features
        return slopes.to(increments.weights.dtype)


def _levels(bounds: list[int]):
    """Contexts structure: the ranges (begin, end) of all levels of the tree except the first."""
    return zip(bounds[1:-1], bounds[2:], strict=True)


def _node_levels(contexts: Contexts):
    """Contexts structure: the node ranges of all levels except the first, each with the parents of the nodes."""
    return (((a, b), contexts.above[a:b]) for a, b in _levels(contexts.node_levels))
