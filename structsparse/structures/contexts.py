"""Contexts structure for language models: p(word | context), a softmax over all words, for a tree of contexts.

An entry is a pair of a context and a next word. Each entry has a weight. Time is linear in the number of entries."""

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
# in torch, a normaliser is inexact if it is less than this share of the largest normaliser of a shorter context
LOST = 2.0**-26


class Increments(NamedTuple):
    """Contexts structure: the score increments of the entries in a tree of contexts.

    An entry is a pair of a context and a next word, with the increment feature * weight. The first V entries are all V
    words after the empty context; `base` is added to the increments of these entries."""

    weights: Tensor  # [entries]: weight of each entry
    features: Tensor | None = None  # [entries]: factor of each weight; None: all ones
    base: Tensor | None = None  # [V words]: constants added to the first V increments; None: zeros

    def dense(self) -> Tensor:  # shape [entries], float64
        """Contexts structure: the score increments as one tensor, float64 [entries]."""
        increments = self.weights.double() if self.features is None else self.weights.double() * self.features
        if self.base is None:
            return increments
        return torch.cat([increments[: len(self.base)] + self.base, increments[len(self.base) :]])


class ContextArrays(Protocol):
    """Contexts structure: a tree of contexts as arrays.

    A node is a context. An entry is a pair of a context and a next word. Nodes and entries are sorted by level, that
    is, by depth in the tree. The first V entries are all V words after the empty context, which is node 0."""

    words: int  # number V of words in the vocabulary
    above: np.ndarray  # [nodes]: the parent context of each node; -1 for node 0
    ends: np.ndarray  # [nodes]: number of target words whose longest known context is the node
    entry_node: np.ndarray  # [entries]: the node of each entry
    entry_word: np.ndarray  # [entries]: the next word of each entry
    entry_above: np.ndarray  # [entries]: entry of the same word in the nearest shorter context; -1 if there is none
    entry_ends: np.ndarray  # [entries]: number of target words whose deepest entry in the tree is the entry
    node_levels: np.ndarray  # [levels + 1]: index of the first node of each level, and the count of nodes at the end
    entry_levels: np.ndarray  # [levels + 1]: index of the first entry of each level, and the entry count at the end


class Contexts(nn.Module):
    """Contexts structure of next words in a language model, p(word | context) = exp S(word, context) / Z(context).

    Z(context) is the sum of exp S(word, context) over all words. An entry is a pair of a context and a next word, with
    a score increment. S(word, context) sums the increments of the word's entries in the context and in all contexts
    above it. Time and memory are linear in the number of entries.

    The compiled kernels process float32 and float64 on the CPU, and are accurate for any finite increments. Torch
    operations process everything else in float64. With torch, all S must lie within 600 of each other. The torch result
    is inexact if Z of a context is a small share of Z of a context above."""

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
            "node_ends": np.asarray(tree.ends),  # [nodes], number of targets whose longest known context is the node
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

        The loss is a float64 scalar. A node is a context, and an entry is a pair of a context and a next word.

        * node_ends [nodes]: number of targets whose longest known context is the node
        * entry_ends [entries]: number of targets whose deepest entry in the tree is the entry

        Only first derivatives with respect to the weights are supported."""
        increments = self._checked(increments)
        for name, ends, size in (("node_ends", node_ends, self.nodes), ("entry_ends", entry_ends, self.entries)):
            if tuple(ends.shape) != (size,):
                raise UserError(f"{name} have shape {tuple(ends.shape)}, expected ({size},)")
        route = NativeRoute if _native(increments.weights) else TorchRoute
        return _Surprise.apply(route, self, (node_ends, entry_ends), *increments)

    @torch.no_grad()
    def path_sums(self, increments: Tensor | Increments) -> Tensor:  # shape [entries], float64
        """Contexts structure: the score S of each entry, without a gradient.

        The score sums the increments on the path from the empty context to the entry."""
        increments = self._checked(increments)
        if not _native(increments.weights):
            return TorchRoute.path_sums(self, increments)
        sums = torch.empty(self.entries, dtype=torch.float64)
        stable.path_sums(*_arrays(increments), self.entry_above.numpy(), sums.numpy())
        return sums

    @torch.no_grad()
    def log_partition(self, sums: Tensor) -> Tensor:  # shape [nodes], float64
        """Contexts structure: the log-partition of each context, without a gradient.

        `sums` holds the scores of all entries, from `path_sums`."""
        if tuple(sums.shape) != (self.entries,):
            raise UserError(f"path sums have shape {tuple(sums.shape)}, expected ({self.entries},)")
        if not _native(sums):
            masses, shift, *_ = TorchRoute.masses(self, sums.double())
            return masses.log() + shift
        masses, shifts, _ = NativeRoute.stable_masses(self, sums.double().contiguous().numpy())
        return torch.from_numpy(shifts + np.log(masses[:, 0]))

    def summed(self, ends: Tensor) -> Tensor:  # shape [entries], float64
        """Contexts structure: for each entry of the tree, the sum of `ends` over the entry and all entries below it."""
        sums = ends.to(torch.float64, copy=True).contiguous()
        if sums.device.type == "cpu":
            kernels.add_upwards(sums.numpy(), self.entry_above.numpy())
            return sums
        for a, b in reversed(list(_levels(self.entry_levels))):
            sums.index_add_(0, self.entry_above[a:b], sums[a:b].clone())
        return sums

    def counted(self, node_ends: Tensor, entry_ends: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
        """Contexts structure: the target counts as arrays for the compiled kernels.

        Returns the target count of each node, the target count of each entry together with all entries below it, and
        the total count. The result is cached until other or changed tensors are given."""
        versions = node_ends._version, entry_ends._version
        cached = self._counted
        if cached is None or cached[0] is not node_ends or cached[1] is not entry_ends or cached[2] != versions:
            nodes = node_ends.detach().double().contiguous().numpy()
            below = self.summed(entry_ends.detach()).numpy()
            cached = self._counted = (node_ends, entry_ends, versions, (nodes, below, float(nodes.sum())))
        return cached[3]

    def _checked(self, increments: Tensor | Increments) -> Increments:
        """Contexts structure: check the shapes of the increments, and return them as `Increments`."""
        if not isinstance(increments, Increments):
            increments = Increments(increments)
        sizes = {"weights": self.entries, "features": self.entries, "base": self.words}
        for name, value in increments._asdict().items():
            if value is not None and tuple(value.shape) != (sizes[name],):
                raise UserError(f"{name} of increments have shape {tuple(value.shape)}, expected ({sizes[name]},)")
        return increments


class _Surprise(torch.autograd.Function):
    """Contexts structure: the autograd function of the language-model loss over a tree of contexts.

    There is a gradient with respect to the weights only."""

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
        """Contexts structure: the gradient of the language-model loss with respect to the weights, times `scale`."""
        if not ctx.needs_input_grad[3]:
            return None, None, None, None, None, None
        if _versions(ctx.increments, ctx.ends) != ctx.versions:
            raise RuntimeError("increments or ends of this loss have been changed in place before its gradient")
        gradient = ctx.route.slope(ctx.contexts, ctx.increments, *ctx.ends, ctx.kept, scale)
        return None, None, None, gradient, None, None


def _versions(increments: Increments, ends) -> list[int]:
    """Contexts structure: torch's version counters of the tensors that a loss depends on.

    Every in-place operation on a tensor changes the counter."""
    return [part._version for part in (*increments[1:], *ends) if part is not None]


class Memory:
    """Contexts structure: a pool of work arrays; an array returns to the pool when its last reference is gone.

    For a large language model, the first access to newly allocated arrays would cost as much as the computation itself.
    """

    def __init__(self) -> None:
        self.free: dict[tuple, list[np.ndarray]] = {}

    def borrow(self, *shape: int, dtype=np.float64) -> np.ndarray:
        """Contexts structure: a work array from the pool, for exclusive use until its last reference is gone.

        A tensor made of the array keeps the array in use."""
        free = self.free.setdefault((*shape, np.dtype(dtype)), [])
        array = free.pop() if free else np.empty(shape, dtype)
        view = array.view()
        weakref.finalize(view, free.append, array).atexit = False
        return view

    def tensor(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Contexts structure: a CPU tensor from the pool, for exclusive use until its last reference is gone."""
        return torch.from_numpy(self.borrow(*shape, dtype=torch.empty(0, dtype=dtype).numpy().dtype))

    def __deepcopy__(self, memo) -> Memory:
        """Contexts structure: an empty pool of work arrays, so that copies of a model share no memory."""
        return Memory()

    def __reduce__(self):
        """Contexts structure: pickle the pool of work arrays as an empty pool."""
        return Memory, ()


class NativeRoute:
    """Contexts structure: the compiled implementation of the language-model loss over a tree of contexts.

    The weights are float32 or float64 on the CPU."""

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
        """Contexts structure: the softmax normalisers of all contexts in compiled code, for any finite scores.

        Returns masses [nodes, 2], shifts [nodes] and anew (bool [nodes]). The log-normalisers are shifts +
        log(masses[:, 0]). masses[:, 1] is the largest mass of a context and the contexts above it. `anew` marks
        contexts whose normaliser is summed over all words; the others are computed from the parent context."""
        masses, shifts = np.empty((contexts.nodes, 2)), np.empty(contexts.nodes)
        anew, levels = np.empty(contexts.nodes, np.bool_), len(contexts.node_levels)
        tree, entry_word = _tree(contexts), contexts.entry_word.numpy()
        stable.masses(sums, tree, entry_word, levels, contexts.words, masses, shifts, anew)
        return masses, shifts, anew

    @staticmethod
    def slope(contexts: Contexts, increments: Increments, node_ends, entry_ends, kept, scale: Tensor) -> Tensor:
        """Contexts structure: the gradient of the loss with respect to the weights, times `scale`, in compiled code."""
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
    """Contexts structure: whether the compiled kernels support the device and dtype of the weights."""
    return weights.device.type == "cpu" and weights.dtype in (torch.float32, torch.float64)


def _tree(contexts: Contexts) -> tuple[np.ndarray, ...]:
    """Contexts structure: the tree of contexts as arrays for the compiled kernels.

    Returns the parent of each node, the first entry of each node, the entry above each entry, and the node of each
    entry."""
    return tuple(part.numpy() for part in (contexts.above, contexts.starts, contexts.entry_above, contexts.entry_node))


def _arrays(increments: Increments) -> tuple[np.ndarray, ...]:
    """Contexts structure: the increments as arrays for the compiled kernels.

    Features get the dtype of the weights, and `base` becomes float64. None becomes an empty array."""
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
    """Contexts structure: the offsets of the tree levels as a list of Python integers."""
    return [int(level) for level in levels]


class TorchRoute:
    """Contexts structure: the torch implementation of the language-model loss over a tree of contexts.

    All steps work in float64 on any device, without synchronisation between device and host."""

    @staticmethod
    def sum(contexts: Contexts, increments: Increments, node_ends: Tensor, entry_ends: Tensor):
        """Contexts structure: the language-model loss by torch operations, and intermediate results for `slope`."""
        sums = TorchRoute.path_sums(contexts, increments)
        masses, shift, exps, lost = TorchRoute.masses(contexts, sums)
        loss = (node_ends.double() * (masses.log() + shift)).sum() - (entry_ends.double() * sums).sum()
        return loss, (masses, exps, lost)

    @staticmethod
    def path_sums(contexts: Contexts, increments: Increments) -> Tensor:  # shape [entries]
        """Contexts structure: the score S of each entry, the sum of the increments from the empty context on."""
        sums, above = increments.dense().clone(), contexts.entry_above
        for a, b in _levels(contexts.entry_levels):
            sums[a:b] += sums[:a].index_select(0, above[a:b])
        return sums

    @staticmethod
    def masses(contexts: Contexts, sums: Tensor) -> tuple[Tensor, ...]:
        """Contexts structure: the softmax normaliser of each context by torch operations.

        Returns four tensors: the normalisers [nodes], a scalar `shift`, the exponentials of the scores [entries], and a
        mask of the nodes with an inexact normaliser. Normalisers and exponentials are divided by exp(shift)."""
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
            # rounding must not make the normaliser of a context less than the sum over the entries of the context
            masses[a:b] = torch.maximum(mass, entry_masses[a:b])
            most[a:b] = torch.maximum(mass, most[:a].index_select(0, above))
        return masses, shift, exps, masses < LOST * most

    @staticmethod
    def slope(contexts: Contexts, increments: Increments, node_ends, entry_ends, kept, scale: Tensor) -> Tensor:
        """Contexts structure: the gradient of the loss with respect to the weights, times `scale`, in torch."""
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
    """Contexts structure: the index range (begin, end) of each level of the tree, without the first level."""
    return zip(bounds[1:-1], bounds[2:], strict=True)


def _node_levels(contexts: Contexts):
    """Contexts structure: the node range (begin, end) of each level but the first, with the parents of these nodes."""
    return (((a, b), contexts.above[a:b]) for a, b in _levels(contexts.node_levels))
