"""The log-linear n-gram model as an nn.Module: a weight for each pair of a context and a word seen after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.structures.contexts import Contexts, Increments, Memory
from structsparse.weights.notes import notes_of

if TYPE_CHECKING:
    from structsparse.tasks.lm.contexts import ContextTree, Places

BASES = "none", "unigram"
UNSEEN = 0.5  # count of a word that is not in training, for the logarithms of unigram shares


class NgramModel(nn.Module):
    """A log-linear language model on a context tree; the weights are `table` [entries], on which penalties act.

    p(word | context) is proportional to exp(base[word] + sum of features[e] * table[e]). The sum is over the entries e
    of the word on the path from the empty context to the longest known context. features[e] is the sum of alpha^depth
    over the contexts of e: one context in a trie, a chain of contexts in a collapsed tree. The empty context has depth
    0. `base` is "none" or "unigram", the logarithms of the words' shares of the training targets, where an unseen word
    counts as half a target."""

    linear = True

    def __init__(self, tree: ContextTree, alpha: float = 1.0, base: str = "none") -> None:
        super().__init__()
        if not (alpha > 0 and math.isfinite(alpha)):
            raise UserError(f"model.alpha is {alpha}; it must be a positive number")
        if base not in BASES:
            raise UserError(f"model.base is {base}; expected one of {', '.join(BASES)}")
        self.tree, self.alpha, self.base_name = tree, float(alpha), base
        self.targets = int(tree.ends.sum())
        self.structure = Contexts(tree)
        self.table = nn.Parameter(torch.zeros(self.structure.entries))  # [entries]
        for name in ("features", "base", "shares"):
            self.register_buffer(name, None, persistent=False)
        self._describe()
        notes_of(self.table).curvature = self.curvature()

    def _describe(self) -> None:
        """Compute features, base scores and log unigram shares from the context tree, in the precision of the table."""
        tree = self.tree
        features = depth_features(tree, self.alpha)
        counts = np.maximum(tree.entry_count[: tree.words], UNSEEN)
        shares = torch.from_numpy(np.log(counts / counts.sum())).to(self.table)
        self.features = None if features is None else torch.from_numpy(features).to(self.table)  # [entries]
        self.base = shares if self.base_name == "unigram" else None  # [V]
        self.shares = shares  # [V]

    def _apply(self, fn, recurse: bool = True) -> NgramModel:
        """Move the model to another device or precision; a new precision recomputes buffers but not the curvature."""
        dtype, curvature = self.table.dtype, notes_of(self.table).curvature
        super()._apply(fn, recurse)
        notes_of(self.table).curvature = curvature.to(self.table)
        if self.table.dtype != dtype and self.table.device.type != "meta":
            self._describe()
        return self

    def forward(self, table: Tensor | None = None) -> Increments:
        """The increments of scores along the context tree, from the weights `table`, by default those of the model."""
        return Increments(self.table if table is None else table, self.features, self.base)

    def surprise(self, table: Tensor | None = None) -> Tensor:
        """The sum over the training targets of -log p(target | context), by default with the weights of the model.

        The gradient with respect to the weights is features * (expected count - count)."""
        return self.structure.surprise(self(table), self.structure.node_ends, self.structure.entry_ends)

    def surprise_of(self, structure: Contexts, rows: Tensor) -> Tensor:
        """The sum of -log p(target | context) over the targets of a subtree, whose entries are `rows` of the table.

        The first V entries of the subtree are the first V entries of the full tree."""
        features = None if self.features is None else self.features.index_select(0, rows)
        increments = Increments(_SelectRows.apply(self.table, rows, self.structure.memory), features, self.base)
        return structure.surprise(increments, structure.node_ends, structure.entry_ends)

    @torch.no_grad()
    def start(self) -> Tensor:  # [entries]
        """Initial weights: each word is predicted by its share of the training targets; the smallest weight is 0.

        With base="unigram" the base scores already do so, and the weights are zeros. Features of the empty context are
        1."""
        table = torch.zeros_like(self.table)
        if self.base is None:
            table[: self.structure.words] = self.shares - self.shares.min()
        return table

    @torch.no_grad()
    def curvature(self) -> Tensor:  # [entries], positive
        """A diagonal preconditioner for solvers: a bound, up to a constant factor, of the curvature of the mean loss.

        The bound is features * reach * max(count, expected count at `start`) / targets. The Hessian of the summed loss
        with respect to the entries of a path is at most features features^T times the expected count. The row sums of
        this matrix, features[e] times all features of the path, give a diagonal bound. `reach` is the sum of the
        features from the empty context to e only: most entries that are coupled to an entry of a long context lie
        above that entry. The sum ends where the chain of e's context begins. An entry of a collapsed tree thus gets
        the same steps as the entries of the chain in the trie. On full PTB the best model needs 20 steps with this
        bound, 60 without.
        At the optimum, expected counts are near the counts, or above the counts where weights are held at zero. During
        training, expected counts move there from those at `start`. Counts alone, which may be zero, are too small for
        words that a context makes less likely: signed weights need 60 steps with counts, 15 with the maximum."""
        structure, table = self.structure, self.start().requires_grad_()
        with torch.enable_grad():
            excess = torch.autograd.grad(self.surprise(table), table)[0].double()
        features = 1.0 if self.features is None else self.features.double()
        count = structure.summed(structure.entry_ends)
        expected = excess / features + count
        reach = torch.from_numpy(reaches(self.tree, self.alpha)).to(table.device)
        return (torch.maximum(count, expected) * features * reach / self.targets).to(table.dtype)

    @torch.no_grad()
    def log_probabilities(self, places: Places) -> Tensor:  # [targets], float64
        """log p(target | context) of targets whose places in the context tree are known."""
        node, entry = (torch.as_tensor(np.asarray(place)).to(self.table.device).long() for place in places[:2])
        sums = self.structure.path_sums(self())
        return sums[entry] - self.structure.log_partition(sums)[node]


class _SelectRows(torch.autograd.Function):
    """Autograd function for table[rows] with distinct rows; the gradient, as large as the table, reuses memory."""

    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, memory: Memory) -> Tensor:
        """Select rows of the weight table."""
        ctx.rows, ctx.shape, ctx.memory = rows, table.shape, memory
        return table.detach().index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        """The gradient with respect to the weight table, zero except in the selected rows."""
        if gradient.device.type == "cpu":
            result = ctx.memory.tensor(ctx.shape, gradient.dtype).zero_()
        else:
            result = gradient.new_zeros(ctx.shape)
        return result.index_copy_(0, ctx.rows, gradient), None, None


def depth_features(tree: ContextTree, alpha: float) -> np.ndarray | None:
    """The feature value of each entry, the sum of alpha^depth over its contexts: float64 [entries]; None: all 1"""
    powers = _powers(tree, alpha)
    if alpha == 1 and int(tree.chain.max()) == 1:
        return None
    features = powers[tree.depth + 1] - powers[tree.depth + 1 - tree.chain]
    features = np.where(tree.chain == 1, alpha ** tree.depth.astype(np.float64), features)
    return features[tree.entry_node]


def reaches(tree: ContextTree, alpha: float) -> np.ndarray:
    """Sum of alpha^depth from the empty context to the head of the chain of each entry's context: float64 [entries]

    For alpha = 1 the sum is 1 + the number of words of the shortest context in the chain."""
    return _powers(tree, alpha)[tree.tops() + 1][tree.entry_node]


def _powers(tree: ContextTree, alpha: float) -> np.ndarray:
    """Cumulative sums of the powers of alpha, from no powers up to the depth of the deepest context."""
    return np.append(0.0, np.cumsum(alpha ** np.arange(int(tree.depth.max()) + 1)))
