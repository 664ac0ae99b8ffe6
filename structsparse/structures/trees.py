"""Dependency tree structure: the base class of projective and nonprojective trees over the tokens of a sentence."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from structsparse.base.errors import UserError
from structsparse.kernels.structures import best_trees as parses
from structsparse.structures.base import Structure


class DependencyTree(Structure):
    """Dependency tree structure over the tokens 1 to n of a sentence and the root 0, projective or nonprojective.

    A tree gives every token m a head and has the score

        sum_m scores[m, heads[m]].

    Scores have the shape [batch, n + 1, n + 1] (modifiers, heads). Minus infinity forbids an arc. The row of the root,
    the diagonal and scores at padding are ignored. Lengths are int64 [batch], each from 1 to n. Predicted and gold
    heads are int64 [batch, n], beginning with token 1. With `single_root`, only one token has the root as its head.

    `log_partition` and `score` return float64. The compiled kernels process scores on the CPU. Torch operations process
    all other scores."""

    native: type  # class with the compiled implementation, for scores on the CPU

    def __init__(self, single_root: bool = False):
        self.single_root = single_root

    def log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Dependency tree structure: the log-partition, the log of the sum of exp(score) over all trees.

        If no tree is allowed, the log-partition is minus infinity. The gradient with respect to the scores is the
        marginal probability of each arc."""
        _check(scores, lengths)
        return _LogPartition.apply(self._route(scores), self.single_root, lengths, scores)

    @torch.no_grad()
    def best(self, scores: Tensor, lengths: Tensor) -> Tensor:  # shape [batch, n]
        """Dependency tree structure: the heads of the tokens in the best tree, 0 at padding.

        Ties are resolved deterministically. A sentence without an allowed tree is an error. Exception: for projective
        trees on devices other than the CPU, all heads of such a sentence are 0."""
        _check(scores, lengths)
        return self._route(scores).best(scores, lengths, self.single_root)

    @torch.no_grad()
    def best_k(self, scores: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Dependency tree structure: the k best trees, the best first, and their scores.

        Returns heads [batch, k, tokens], 0 at padding, and scores [batch, k]. If a sentence has fewer than k trees, its
        remaining scores are minus infinity. The search runs on the CPU."""
        if k < 1:
            raise UserError(f"k is {k}, expected a number of trees from 1 on")
        _check(scores, lengths)
        arrays = _arrays(scores.cpu(), lengths.cpu())
        batch, n = len(scores), scores.shape[1] - 1
        heads, totals = torch.empty(batch, k, n, dtype=torch.int64), torch.empty(batch, k, dtype=torch.float64)
        parses.best_k(*arrays, self.native.projective, self.single_root, heads.numpy(), totals.numpy())
        return heads.to(scores.device), totals.to(scores.device)

    def score(self, scores: Tensor, gold: Tensor, lengths: Tensor) -> Tensor:  # shape [batch]
        """Dependency tree structure: the score of the tree `gold` of each sentence."""
        _check(scores, lengths)
        arcs = scores[:, 1:].gather(2, gold.unsqueeze(2)).squeeze(2).double()  # shape [batch, n]
        return torch.where(tokens_inside(lengths, gold.shape[1]), arcs, 0.0).sum(1)

    @torch.no_grad()
    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:  # shape [batch, n + 1, n + 1]
        """Dependency tree structure: the marginal probability of each arc, zero at padding."""
        _check(scores, lengths)
        return self._route(scores).sum(scores, lengths, self.single_root, True)[1].to(scores.dtype)

    def add_cost(self, scores: Tensor, gold: Tensor, lengths: Tensor, cost: float = 1.0) -> Tensor:
        """Dependency tree structure: the scores with `cost` added to every wrong arc.

        The score of a tree rises by `cost` times the number of wrong heads."""
        _check(scores, lengths)
        heads = torch.arange(scores.shape[2], device=gold.device)
        wrong = (heads != gold.unsqueeze(2)).to(scores.dtype)  # shape [batch, n, n + 1]
        return scores + cost * F.pad(wrong, (0, 0, 1, 0))

    def _route(self, scores: Tensor):
        """Dependency tree structure: the implementation for these scores, compiled (on the CPU) or torch."""
        return self.native if scores.device.type == "cpu" else self.native.general


def tokens_inside(lengths: Tensor, n: int) -> Tensor:  # shape [batch, n]
    """Dependency tree structure: mask [batch, n], true at the tokens of each sentence and false at padding."""
    return torch.arange(n, device=lengths.device) < lengths.unsqueeze(1)


class _LogPartition(torch.autograd.Function):
    """Dependency tree structure: the autograd function of the log-partition of dependency trees.

    The gradient is the marginal probability of each arc."""

    @staticmethod
    def forward(ctx, route, single_root, lengths, scores):
        """Dependency tree structure: the log-partition [batch] of each sentence.

        If a gradient is needed, the marginals are computed at the same time."""
        totals, marginals = route.sum(scores, lengths, single_root, ctx.needs_input_grad[3])
        ctx.kind = scores.dtype
        ctx.save_for_backward(marginals)
        return totals

    @staticmethod
    @once_differentiable
    def backward(ctx, weights):
        """Dependency tree structure: the marginal probability of each arc, times `weights`.

        `weights` [batch] is the incoming gradient of each log-partition."""
        (marginals,) = ctx.saved_tensors
        return None, None, None, (weights.double()[:, None, None] * marginals).to(ctx.kind)


class NativeRoute:
    """Dependency tree structure: the compiled implementation of dependency trees, for scores on the CPU."""

    projective: bool  # whether trees are projective
    kernel = None  # compiled function; its last two arguments are arrays that get log-partitions and arc marginals
    general: type  # class with the torch implementation, for other devices and for scores out of the kernel's range

    @classmethod
    def sum(cls, scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        """Dependency tree structure: the log-partition [batch] in float64, and the arc marginals or None."""
        totals = torch.empty(len(scores), dtype=torch.float64)
        marginals = torch.zeros(scores.shape if with_marginals else (1, 1, 1), dtype=torch.float64)
        cls.kernel(*_arrays(scores, lengths), single_root, with_marginals, totals.numpy(), marginals.numpy())
        again = totals.isnan().nonzero()[:, 0]
        if len(again):
            totals[again], more = cls.general.sum(scores[again], lengths[again], single_root, with_marginals)
            if with_marginals:
                marginals[again] = more
        return totals, marginals if with_marginals else None

    @classmethod
    def best(cls, scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
        """Dependency tree structure: the heads of the tokens in the best trees, in compiled code.

        A sentence without an allowed tree is an error."""
        heads = torch.empty(len(scores), scores.shape[1] - 1, dtype=torch.int64)
        exists = torch.empty(len(scores), dtype=torch.bool)
        parses.best(*_arrays(scores, lengths), cls.projective, single_root, heads.numpy(), exists.numpy())
        if not exists.all():
            kind = ("projective " if cls.projective else "") + "tree" + (" with a single root" if single_root else "")
            sentence = int((~exists).nonzero()[0])
            raise UserError(
                f"Sentence {sentence} of the batch has no {kind}: too many arcs are forbidden or not a number."
            )
        return heads


def _arrays(scores: Tensor, lengths: Tensor):
    """Dependency tree structure: the arc scores in float32 or float64 and the lengths, as arrays for the kernels."""
    sizes, n = lengths.to(torch.int64).contiguous().numpy(), scores.shape[1] - 1
    if len(sizes) and not (sizes.min() >= 1 and sizes.max() <= n):
        raise UserError(f"lengths run from {sizes.min()} to {sizes.max()}, expected from 1 to {n} (tokens).")
    scores = scores.detach() if scores.dtype == torch.float32 else scores.detach().double()
    return scores.contiguous().numpy(), sizes


def _check(scores: Tensor, lengths: Tensor):
    """Dependency tree structure: check the shapes of arc scores and lengths."""
    shape = tuple(scores.shape)
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 2:
        raise UserError(f"scores have shape {shape}, expected [batch, n + 1, n + 1] for sentences of n tokens.")
    if tuple(lengths.shape) != shape[:1]:
        raise UserError(f"lengths have shape {tuple(lengths.shape)}, expected {shape[:1]} beside scores of {shape}.")
