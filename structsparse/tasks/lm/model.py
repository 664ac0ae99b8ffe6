"""The log-linear n-gram model: a weight for each context and each word seen after it, as an nn.Module."""

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
UNSEEN = 0.5  # the count of a word that is not in training, where the logarithm of counts is taken


class NgramModel(nn.Module):
    """A log-linear language model on a context tree; its weights are `table`, which penalties act on.

    p(word | context) is proportional to exp(base[word] + sum of features[e] * table[e]) over the entries e of the word
    on the path from the empty context to the longest known one. features[e] is the sum of alpha^depth over the contexts
    that e stands for: one in a trie, a chain in a collapsed tree; the empty context has depth 0. `base` is "none" or
    "unigram", the logarithms of the words' shares of the training targets, where an unseen word counts as half a
    target."""

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
        """Compute features, base and unigram shares from the tree, in the precision of the table."""
        tree = self.tree
        features = depth_features(tree, self.alpha)
        counts = np.maximum(tree.entry_count[: tree.words], UNSEEN)
        shares = torch.from_numpy(np.log(counts / counts.sum())).to(self.table)
        self.features = None if features is None else torch.from_numpy(features).to(self.table)  # [entries]
        self.base = shares if self.base_name == "unigram" else None  # [V]
        self.shares = shares  # [V]

    def _apply(self, fn, recurse: bool = True) -> NgramModel:
        """Move to another device or precision; a higher precision recomputes the buffers and keeps the curvature."""
        dtype, curvature = self.table.dtype, notes_of(self.table).curvature
        super()._apply(fn, recurse)
        notes_of(self.table).curvature = curvature.to(self.table)
        if self.table.dtype != dtype and self.table.device.type != "meta":
            self._describe()
        return self

    def forward(self, table: Tensor | None = None) -> Increments:
        """Increments of the scores along the context tree, of these weights or of the model's own."""
        return Increments(self.table if table is None else table, self.features, self.base)

    def surprise(self, table: Tensor | None = None) -> Tensor:
        """The sum over the training targets of -log p(target | context), with these weights or the model's own.

        Its gradient is features * (expected count - count)."""
        return self.structure.surprise(self(table), self.structure.node_ends, self.structure.entry_ends)

    def surprise_of(self, structure: Contexts, rows: Tensor) -> Tensor:
        """The same over the targets of a part of the tree: `rows` of the table are the entries of the part.

        The first V entries of the part are those of the tree."""
        features = None if self.features is None else self.features.index_select(0, rows)
        increments = Increments(_SelectRows.apply(self.table, rows, self.structure.memory), features, self.base)
        return structure.surprise(increments, structure.node_ends, structure.entry_ends)

    @torch.no_grad()
    def start(self) -> Tensor:  # [entries]
        """Initial weights: each word is predicted by its share of the training targets; the smallest weight is 0.

        They are zeros if the base does so already. Features of the empty context are 1."""
        table = torch.zeros_like(self.table)
        if self.base is None:
            table[: self.structure.words] = self.shares - self.shares.min()
        return table

    @torch.no_grad()
    def curvature(self) -> Tensor:  # [entries], positive
        """A diagonal bound, up to one factor, of the curvature of the mean loss: a preconditioner for solvers.

        It is features * reach * max(count, expected count at `start`) / targets. The Hessian of the summed loss in the
        entries of a path is at most features features^T times the expected count; its row sums, features[e] times all
        features of the path, bound it by a diagonal. Of the path, `reach` sums the features from the empty context to
        e: most entries that are coupled to one of a long context lie above it. The sum ends where the chain of e's
        context begins, so that an entry of a collapsed tree moves as the entries of its chain would. On full PTB the
        best model needs 20 steps with it, 60 without.
        At the optimum expected counts are near the counts, or above them where weights are held at zero; on the way
        there they start from those at `start`. Counts alone, which may be zero, are too small for words that a context
        makes less likely: signed weights need 60 steps with them, 15 with the maximum."""
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
        """log p(target | context) of targets that have been located in the tree."""
        node, entry = (torch.as_tensor(np.asarray(place)).to(self.table.device).long() for place in places[:2])
        sums = self.structure.path_sums(self())
        return sums[entry] - self.structure.log_partition(sums)[node]


class _SelectRows(torch.autograd.Function):
    """table[rows] of distinct rows; the gradient, as large as the table, reuses memory."""

    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, memory: Memory) -> Tensor:
        ctx.rows, ctx.shape, ctx.memory = rows, table.shape, memory
        return table.detach().index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        if gradient.device.type == "cpu":
            result = ctx.memory.tensor(ctx.shape, gradient.dtype).zero_()
        else:
            result = gradient.new_zeros(ctx.shape)
        return result.index_copy_(0, ctx.rows, gradient), None, None


def depth_features(tree: ContextTree, alpha: float) -> np.ndarray | None:
    """Sum of alpha^depth over the contexts that each entry stands for: float64 [entries]; None if all are 1"""
    powers = _powers(tree, alpha)
    if alpha == 1 and int(tree.chain.max()) == 1:
        return None
    features = powers[tree.depth + 1] - powers[tree.depth + 1 - tree.chain]
    features = np.where(tree.chain == 1, alpha ** tree.depth.astype(np.float64), features)
    return features[tree.entry_node]


def reaches(tree: ContextTree, alpha: float) -> np.ndarray:
    """Sum of alpha^depth from the empty context to the head of the chain of each entry's context: float64 [entries]

    For alpha = 1 it is 1 + (words of that context)."""
    return _powers(tree, alpha)[tree.tops() + 1][tree.entry_node]


def _powers(tree: ContextTree, alpha: float) -> np.ndarray:
    """Sums of the first 0, 1, 2, ... powers of alpha, up to that of the deepest context."""
    return np.append(0.0, np.cumsum(alpha ** np.arange(int(tree.depth.max()) + 1)))
