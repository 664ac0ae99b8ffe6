"""The log-linear m-gram model: a weight for each context and each word seen after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.structures.contexts import Contexts, Increments, Memory

if TYPE_CHECKING:
    from structsparse.tasks.lm.contexts import ContextTree, Places

BASES = "none", "unigram"
UNSEEN = 0.5  # what a word that training never has counts, where logarithms of counts are taken


class NgramModel(nn.Module):
    """p(word | context) is proportional to exp(base[word] + sum of features[e] * table[e]) over the entries e of the
    word on the way from the empty context to the longest known one.

    features[e] = sum of alpha^depth over the contexts that e stands for: one in a trie, a chain in a collapsed tree;
    the empty context has depth 0. `base` is "none" or "unigram", the logarithms of the words' shares of the training
    targets, of which each unseen word gets that of half a target. A penalty bears on `table`."""

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
        self.table.curvature = self.curvature()

    def _describe(self) -> None:
        """What the tree says of entries and words, in the precision of the table."""
        tree = self.tree
        features = depth_features(tree, self.alpha)
        counts = np.maximum(tree.entry_count[: tree.words], UNSEEN)
        shares = torch.from_numpy(np.log(counts / counts.sum())).to(self.table)
        self.features = None if features is None else torch.from_numpy(features).to(self.table)  # [entries]
        self.base = shares if self.base_name == "unigram" else None  # [V]
        self.shares = shares  # [V]

    def _apply(self, fn, recurse: bool = True) -> NgramModel:
        """To another device or precision: nothing is rounded on the way to a higher one, and the metric comes along."""
        kind, curvature = self.table.dtype, self.table.curvature
        super()._apply(fn, recurse)
        self.table.curvature = curvature.to(self.table)
        if self.table.dtype != kind and self.table.device.type != "meta":
            self._describe()
        return self

    def forward(self, table: Tensor | None = None) -> Increments:
        """What the structure is scored by: of these weights, or of the table."""
        return Increments(self.table if table is None else table, self.features, self.base)

    def surprise(self) -> Tensor:
        """The sum over the training targets of -log p(target | context): a scalar."""
        return self.structure.surprise(self(), self.structure.node_ends, self.structure.entry_ends)

    def surprise_of(self, structure: Contexts, rows: Tensor) -> Tensor:
        """The same over the targets of a smaller tree whose entries are these of ours; its first V are our first V."""
        features = None if self.features is None else self.features.index_select(0, rows)
        increments = Increments(_Rows.apply(self.table, rows, self.structure.memory), features, self.base)
        return structure.surprise(increments, structure.node_ends, structure.entry_ends)

    @torch.no_grad()
    def start(self) -> Tensor:  # [entries]
        """Weights that predict every word by its share of the training targets, the least of them 0; zeros where the
        base does so already. Features of the empty context are 1."""
        table = torch.zeros_like(self.table)
        if self.base is None:
            table[: self.structure.words] = self.shares - self.shares.min()
        return table

    @torch.no_grad()
    def curvature(self) -> Tensor:  # [entries], positive
        """features * reach * max(count, expected count at `start`) / targets: up to one factor, a bound of the
        curvature of the mean loss over the targets.

        The Hessian of the summed loss in the entries of a path is at most features features^T times the expected count.
        Its row sums, features[e] times all features of the path, bound it by a diagonal. Of the path, `reach` sums the
        features from the empty context to ours: most of what bends with an entry of a long context lies above it. It
        ends where the chain of our context begins, so an entry that stands for a chain has what its entries have
        together, and moves as they do. On full PTB the best model needs 20 steps in the place of 60 so.
        Where weights settle, expected counts are near the counts, or above them where weights are kept at zero or from
        sinking; on the way there they come from those at the start. Counts alone, which may be zero, are too small for
        words that a context should make less likely: 60 steps in the place of 15 for signed weights."""
        structure, table = self.structure, self.start().requires_grad_()
        with torch.enable_grad():
            excess = torch.autograd.grad(self._excess(table), table)[0].double()
        features = 1.0 if self.features is None else self.features.double()
        count = structure.summed(structure.entry_ends)
        expected = excess / features + count
        reach = torch.from_numpy(reaches(self.tree, self.alpha)).to(table.device)
        return (torch.maximum(count, expected) * features * reach / self.targets).to(table.dtype)

    def _excess(self, table: Tensor) -> Tensor:
        """The summed loss of other weights; its gradient is features * (expected count - count)."""
        return self.structure.surprise(self(table), self.structure.node_ends, self.structure.entry_ends)

    @torch.no_grad()
    def log_probabilities(self, places: Places) -> Tensor:  # [targets], float64
        """log p(target | context) of targets that have been located in our tree."""
        node, entry = (torch.as_tensor(np.asarray(place)).to(self.table.device).long() for place in places[:2])
        sums = self.structure.path_sums(self())
        return sums[entry] - self.structure.log_partition(sums)[node]


class _Rows(torch.autograd.Function):
    """table[rows] of different rows; the gradient, as large as the table, in memory that has been used before."""

    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, memory: Memory) -> Tensor:
        ctx.rows, ctx.shape, ctx.memory = rows, table.shape, memory
        return table.detach().index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        if gradient.device.type == "cpu":
            whole = ctx.memory.tensor(ctx.shape, gradient.dtype).zero_()
        else:
            whole = gradient.new_zeros(ctx.shape)
        return whole.index_copy_(0, ctx.rows, gradient), None, None


def depth_features(tree: ContextTree, alpha: float) -> np.ndarray | None:
    """Sum of alpha^depth over the contexts that each entry stands for, float64 [entries]; None where all are 1."""
    powers = _powers(tree, alpha)
    if alpha == 1 and int(tree.chain.max()) == 1:
        return None
    features = powers[tree.depth + 1] - powers[tree.depth + 1 - tree.chain]
    features = np.where(tree.chain == 1, alpha ** tree.depth.astype(np.float64), features)
    return features[tree.entry_node]


def reaches(tree: ContextTree, alpha: float) -> np.ndarray:
    """Sum of alpha^depth from the empty context to the first of the chain that each entry's context is in, which is
    1 + (words of that context) for alpha = 1: float64 [entries]"""
    return _powers(tree, alpha)[tree.tops() + 1][tree.entry_node]


def _powers(tree: ContextTree, alpha: float) -> np.ndarray:
    """Sums of the first 0, 1, 2, ... powers of alpha, up to the deepest context's."""
    return np.append(0.0, np.cumsum(alpha ** np.arange(int(tree.depth.max()) + 1)))
