"""The log-linear n-gram model as an nn.Module, with one weight for each context and word seen after the context."""

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

BASES = "none", "unigram"  # choices of the base scores
UNSEEN = 0.5  # count that replaces 0 for a word that is not in training, so that the logarithm is finite


class NgramModel(nn.Module):
    """The n-gram model: a log-linear language model on a context tree; penalties act on the weights `table` [entries].

        p(word | context) is proportional to exp(base[word] + sum of features[e] * table[e] over e)

    An entry e is a pair of a context and the word. The sum is over all contexts on the path from the empty context to
    the longest known context. features[e] is the sum of alpha^depth over the contexts of e. In a trie, e has one
    context; in a collapsed tree, e has a chain of contexts. The depth is the number of words of a context.

    `base` is "none" (zeros) or "unigram". Unigram base scores are the logarithms of the words' shares of the training
    targets; an unseen word counts as half a target."""

    linear = True  # whether scores are linear in the weights

    def __init__(self, tree: ContextTree, alpha: float = 1.0, base: str = "none") -> None:
        super().__init__()
        if not (alpha > 0 and math.isfinite(alpha)):
            raise UserError(f"model.alpha is {alpha}; it must be a positive number")
        if base not in BASES:
            raise UserError(f"model.base is {base}; expected one of {', '.join(BASES)}")
        self.tree, self.alpha, self.base_name = tree, float(alpha), base
        self.targets = int(tree.ends.sum())
        self.structure = Contexts(tree)
        self.table = nn.Parameter(torch.zeros(self.structure.entries))  # [entries], the weight of each entry
        for name in ("features", "base", "shares"):
            self.register_buffer(name, None, persistent=False)
        self._describe()
        notes_of(self.table).curvature = self.curvature()

    def _describe(self) -> None:
        """N-gram model: compute features, base scores and the logarithms of unigram shares from the context tree.

        The results have the precision and the device of the weights."""
        tree = self.tree
        features = depth_features(tree, self.alpha)
        counts = np.maximum(tree.entry_count[: tree.words], UNSEEN)
        shares = torch.from_numpy(np.log(counts / counts.sum())).to(self.table)
        self.features = None if features is None else torch.from_numpy(features).to(self.table)  # [entries], None: ones
        self.base = shares if self.base_name == "unigram" else None  # [V], score of each word
        self.shares = shares  # [V], logarithm of each word's share of the training targets

    def _apply(self, fn, recurse: bool = True) -> NgramModel:
        """N-gram model: move the model to another device or precision.

        For a new precision, features, base scores and unigram shares are recomputed. The curvature is converted."""
        dtype, curvature = self.table.dtype, notes_of(self.table).curvature
        super()._apply(fn, recurse)
        notes_of(self.table).curvature = curvature.to(self.table)
        if self.table.dtype != dtype and self.table.device.type != "meta":
            self._describe()
        return self

    def forward(self, table: Tensor | None = None) -> Increments:
        """N-gram model: the score increments of all entries of the context tree, from the weights `table`.

        By default, `table` is the weights of the model."""
        return Increments(self.table if table is None else table, self.features, self.base)

    def surprise(self, table: Tensor | None = None) -> Tensor:
        """N-gram model: the sum of -log p(target | context) over the training targets, from the weights `table`.

        By default, `table` is the weights of the model. The gradient in the weights is features * (expected count -
        count)."""
        return self.structure.surprise(self(table), self.structure.node_ends, self.structure.entry_ends)

    def surprise_of(self, structure: Contexts, rows: Tensor) -> Tensor:
        """N-gram model: the sum of -log p(target | context) over some training targets.

        `structure` is the part of the context tree for these targets. `rows` holds the number in the full tree of each
        entry of the part. The first V entries of the part must be the first V entries of the full tree."""
        features = None if self.features is None else self.features.index_select(0, rows)
        increments = Increments(_SelectRows.apply(self.table, rows, self.structure.memory), features, self.base)
        return structure.surprise(increments, structure.node_ends, structure.entry_ends)

    @torch.no_grad()
    def start(self) -> Tensor:  # shape [entries]
        """N-gram model: the initial weights, which predict each word by its share of the training targets.

        The smallest weight is 0. With base="unigram" the base scores already give these shares, and all weights are
        zero. The features of the empty context are 1, so that the weights need no division by features."""
        table = torch.zeros_like(self.table)
        if self.base is None:
            table[: self.structure.words] = self.shares - self.shares.min()
        return table

    @torch.no_grad()
    def curvature(self) -> Tensor:  # shape [entries], positive
        """N-gram model: a diagonal preconditioner for solvers, which bounds the curvature of the mean loss.

        The bound, which holds up to a constant factor, is

            features * reach * max(count, expected count at `start`) / targets

        for each entry, where `count` is the number of occurrences in training and `targets` the number of training
        targets.

        The entries of one word on a path of contexts are coupled. The block of the Hessian of the summed loss for such
        entries is at most features features^T times the expected count. The row sums of this matrix give a diagonal
        bound: features[e] times the sum of all features of the path. `reach` is the sum of the features from the empty
        context to e only. This suffices, because most entries that are coupled to an entry of a long context belong to
        shorter contexts. If e stands for a chain of contexts, the sum ends at the shortest context of the chain. An
        entry of a collapsed tree therefore gets the same steps as the entries of the chain in the trie. On the full
        Penn Treebank, the best model needs 20 steps with this bound, and 60 steps without.

        At the optimum, expected counts are near the counts, or above the counts where weights are held at zero.
        Training starts at the expected counts of `start`. Counts alone, which may be zero, are too small for words that
        a context makes less likely. With signed weights, training needs 60 steps with counts, and 15 with the maximum
        of both counts."""
        structure, table = self.structure, self.start().requires_grad_()
        with torch.enable_grad():
            excess = torch.autograd.grad(self.surprise(table), table)[0].double()
        features = 1.0 if self.features is None else self.features.double()
        count = structure.summed(structure.entry_ends)
        expected = excess / features + count
        reach = torch.from_numpy(reaches(self.tree, self.alpha)).to(table.device)
        return (torch.maximum(count, expected) * features * reach / self.targets).to(table.dtype)

    @torch.no_grad()
    def log_probabilities(self, places: Places) -> Tensor:  # shape [targets], float64
        """N-gram model: log p(target | context) of targets whose places in the context tree are known."""
        node, entry = (torch.as_tensor(np.asarray(place)).to(self.table.device).long() for place in places[:2])
        sums = self.structure.path_sums(self())
        return sums[entry] - self.structure.log_partition(sums)[node]


class _SelectRows(torch.autograd.Function):
    """N-gram model: autograd function that selects the weights table[rows] of distinct entries.

    The gradient is as large as the table. On the CPU, the memory of the gradient comes from a pool of work arrays."""

    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, memory: Memory) -> Tensor:
        """N-gram model: select the rows of the weight table that belong to some training targets."""
        ctx.rows, ctx.shape, ctx.memory = rows, table.shape, memory
        return table.detach().index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        """N-gram model: the gradient in the weight table, zero except in the selected rows."""
        if gradient.device.type == "cpu":
            result = ctx.memory.tensor(ctx.shape, gradient.dtype).zero_()
        else:
            result = gradient.new_zeros(ctx.shape)
        return result.index_copy_(0, ctx.rows, gradient), None, None


def depth_features(tree: ContextTree, alpha: float) -> np.ndarray | None:
    """N-gram model: the feature value of each entry, the sum of alpha^depth over the contexts of the entry.

    The result is float64 [entries], or None if all values are 1."""
    powers = _powers(tree, alpha)
    if alpha == 1 and int(tree.chain.max()) == 1:
        return None
    features = powers[tree.depth + 1] - powers[tree.depth + 1 - tree.chain]
    features = np.where(tree.chain == 1, alpha ** tree.depth.astype(np.float64), features)
    return features[tree.entry_node]


def reaches(tree: ContextTree, alpha: float) -> np.ndarray:
    """N-gram model: the sum of alpha^depth along the path to each entry: float64 [entries]

    The path goes from the empty context to the shortest context in the chain of the entry. For alpha = 1, the sum is 1
    plus the number of words of this shortest context."""
    return _powers(tree, alpha)[tree.tops() + 1][tree.entry_node]


def _powers(tree: ContextTree, alpha: float) -> np.ndarray:
    """N-gram model: cumulative sums of the powers of alpha: float64 [longest + 2]

    Element k is the sum of alpha^0 to alpha^(k - 1), and `longest` is the number of words of the longest context."""
    return np.append(0.0, np.cumsum(alpha ** np.arange(int(tree.depth.max()) + 1)))
