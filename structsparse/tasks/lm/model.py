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

BASES = "none", "unigram"  # choices of model.base, the constant score of a word: 0, or the log of its share in training
UNSEEN = 0.5  # count of a word that does not occur in training; it is positive so that the logarithm is finite


class NgramModel(nn.Module):
    """The n-gram model: a log-linear language model on a context tree; penalties act on the weights `table` [entries].

        p(word | context) is proportional to exp(base[word] + sum over e of features[e] * table[e])

    - e runs over the entries: pairs of the word with each known suffix of the context, including the empty suffix.
    - features[e] is alpha^k for a suffix of k words. In a collapsed tree, an entry stands for several contexts, and
      features[e] is the sum of alpha^k over these contexts.
    - base is zero ("none"), or the logarithm of the word's share of the training text ("unigram"). A word that does not
      occur in training counts as half an occurrence."""

    linear = True  # whether scores are linear in the weights
    kneser_ney: float | str = 0.0  # share of Kneser-Ney in the model that is tested and exported; `dev`: chosen on dev

    def __init__(self, tree: ContextTree, alpha: float = 1.0, base: str = "none") -> None:
        super().__init__()
        if not (alpha > 0 and math.isfinite(alpha)):
            raise UserError(f"model.alpha is {alpha}; it must be a positive number")
        if base not in BASES:
            raise UserError(f"model.base is {base}; expected one of {', '.join(BASES)}")
        self.tree, self.alpha, self.base_name = tree, float(alpha), base
        self.targets = int(tree.ends.sum())
        self.structure = Contexts(tree)
        self.table = nn.Parameter(torch.zeros(self.structure.entries))  # one weight per (context, next word)
        for name in ("features", "base", "shares"):
            self.register_buffer(name, None, persistent=False)
        self._describe()
        notes_of(self.table).curvature = self.curvature()

    def _describe(self) -> None:
        """N-gram model: compute the constants `features`, `base` and `shares` from the context tree.

        The constants get the dtype and the device of the weights."""
        tree = self.tree
        features = depth_features(tree, self.alpha)
        counts = np.maximum(tree.entry_count[: tree.words], UNSEEN)
        shares = torch.from_numpy(np.log(counts / counts.sum())).to(self.table)
        self.features = None if features is None else torch.from_numpy(features).to(self.table)  # factor of each weight
        self.base = shares if self.base_name == "unigram" else None  # constant score of each word; None: all zero
        self.shares = shares  # logarithm of each word's share of the training text

    def _apply(self, fn, recurse: bool = True) -> NgramModel:
        """N-gram model: move the model to another device or dtype.

        For a new dtype, the constants `features`, `base` and `shares` are computed again. The curvature (a
        preconditioner for solvers) is only converted."""
        dtype, curvature = self.table.dtype, notes_of(self.table).curvature
        super()._apply(fn, recurse)
        notes_of(self.table).curvature = curvature.to(self.table)
        if self.table.dtype != dtype and self.table.device.type != "meta":
            self._describe()
        return self

    def forward(self, table: Tensor | None = None) -> Increments:
        """N-gram model: what each pair (context, next word) adds to the score of the word.

        `table` has the weights, by default those of the model."""
        return Increments(self.table if table is None else table, self.features, self.base)

    def surprise(self, table: Tensor | None = None) -> Tensor:
        """N-gram model: the sum of -log p(target | context) over the training targets (words to predict).

        `table` has the weights, by default those of the model."""
        return self.structure.surprise(self(table), self.structure.node_ends, self.structure.entry_ends)

    def surprise_of(self, structure: Contexts, rows: Tensor) -> Tensor:
        """N-gram model: the sum of -log p(target | context) over some training targets (words to predict).

        `structure` is the part of the context tree for these targets. `rows` has the index in the full tree for each
        entry (context, word) of this part."""
        features = None if self.features is None else self.features.index_select(0, rows)
        increments = Increments(_SelectRows.apply(self.table, rows, self.structure.memory), features, self.base)
        return structure.surprise(increments, structure.node_ends, structure.entry_ends)

    @torch.no_grad()
    def start(self) -> Tensor:  # shape [entries]
        """N-gram model: initial weights under which the probability of each word is its share of the training text.

        If the base scores already give these probabilities, all weights are zero."""
        table = torch.zeros_like(self.table)
        if self.base is None:
            table[: self.structure.words] = self.shares - self.shares.min()
        return table

    @torch.no_grad()
    def curvature(self) -> Tensor:  # shape [entries], positive
        """N-gram model: a diagonal preconditioner for solvers, which roughly bounds the curvature of the mean loss.

        The bound for the weight of a context and a word is

            feature * reach * max(count, expected count) / targets

        - feature: the factor of the weight in the score of the word
        - reach: the sum of alpha^k for k = 0 .. the number of words of the context; if several contexts share the
          weight (collapsed tree), the shortest context counts
        - count: the number of occurrences in training
        - expected count: the number of occurrences that the model with the weights of `start` expects
        - targets: the number of words in training"""
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
        """N-gram model: log p(target | context) of targets (words to predict).

        `places` has the places of the targets in the context tree."""
        node, entry = (torch.as_tensor(np.asarray(place)).to(self.table.device).long() for place in places[:2])
        sums = self.structure.path_sums(self())
        return sums[entry] - self.structure.log_partition(sums)[node]


class _SelectRows(torch.autograd.Function):
    """N-gram model: autograd function that selects the weights table[rows]; the indices in `rows` are distinct.

    The gradient has the size of the whole table. On the CPU, it is stored in a reused work array."""

    @staticmethod
    def forward(ctx, table: Tensor, rows: Tensor, memory: Memory) -> Tensor:
        """N-gram model: forward pass of the selection, which returns the weights table[rows]."""
        ctx.rows, ctx.shape, ctx.memory = rows, table.shape, memory
        return table.detach().index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        """N-gram model: the gradient with respect to the whole weight table, zero except in the selected rows."""
        if gradient.device.type == "cpu":
            result = ctx.memory.tensor(ctx.shape, gradient.dtype).zero_()
        else:
            result = gradient.new_zeros(ctx.shape)
        return result.index_copy_(0, ctx.rows, gradient), None, None


def depth_features(tree: ContextTree, alpha: float) -> np.ndarray | None:
    """N-gram model: the factor of each weight in the score of a word, which is alpha^k for a context of k words.

    If several contexts share a weight (collapsed tree), their factors are added. The result is float64 [entries], or
    None if all factors are 1."""
    powers = _powers(tree, alpha)
    if alpha == 1 and int(tree.chain.max()) == 1:
        return None
    features = powers[tree.depth + 1] - powers[tree.depth + 1 - tree.chain]
    features = np.where(tree.chain == 1, alpha ** tree.depth.astype(np.float64), features)
    return features[tree.entry_node]


def reaches(tree: ContextTree, alpha: float) -> np.ndarray:
    """N-gram model: the sum of alpha^k over k = 0 .. the length of the context, for each entry (float64 [entries]).

    If several contexts share an entry (collapsed tree), the length of the shortest one is taken."""
    return _powers(tree, alpha)[tree.tops() + 1][tree.entry_node]


def _powers(tree: ContextTree, alpha: float) -> np.ndarray:
    """N-gram model: cumulative sums of the powers of alpha, up to the length of the longest context (float64).

    Element k is the sum of the first k powers, alpha^0 to alpha^(k - 1)."""
    return np.append(0.0, np.cumsum(alpha ** np.arange(int(tree.depth.max()) + 1)))
