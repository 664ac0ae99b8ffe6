"""Tree-structured group lasso penalty over the subtrees of a forest.

If the weights of a subtree are zero, the weights of all subtrees inside it are zero too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Forest, Partition
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import ColumnForest, Penalty, checked, past_signs, residual
from structsparse.prox import Steps
from structsparse.prox.forest import shrink_subtrees_

ROUNDS = 200  # maximum number of Newton iterations for a critical strength; usually far fewer are needed


class _ForestPenalty(Penalty):
    """Base of the forest penalties: tree-structured group lassos with different norms of the subtrees."""

    groups: Forest
    takes = (Forest,)

    def __init__(self, groups: Forest, strength: float, mix: float = 0.0):
        if not isinstance(groups, Forest):
            # the error message says "Partition" instead of the name of a subclass of Partition
            kind = "Partition" if isinstance(groups, Partition) else type(groups).__name__
            raise UserError(
                f"{type(self).__name__} is a sum over a Forest, got a {kind}; "
                "choose groups=template_tree, or a file with parents"
            )
        super().__init__(strength, groups)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    @abstractmethod
    def _measures(self, W: Tensor) -> Tensor:
        """Forest penalty: the norm of the weights W over each subtree (float64 tensor [nodes])."""

    @abstractmethod
    def _prox_(self, W: Tensor, strength: Tensor, steps: Steps) -> Tensor:
        """Forest penalty: the prox at the given strength instead of the penalty's strength, in place."""

    def value(self, W: Tensor) -> Tensor:
        """Forest penalty: the value of the tree-structured group lasso, strength times a norm."""
        return self.strength * self._omega(W)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Forest penalty: the prox of the tree-structured group lasso, in place."""
        return self._prox_(W, self.strength, steps)

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Forest penalty: the critical strength of the tree-structured group lasso, by Newton's method.

        Entries outside penalised subtrees do not count."""
        bound = torch.ones_like(self.groups.weight) if self.mix > 0 else (self.groups.weight > 0).double()
        penalised = self.groups.expand(self.groups.add_down(bound), fill=0.0) > 0
        pull = torch.where(penalised, -grad_at_zero.double(), 0.0)
        critical = torch.zeros((), dtype=torch.float64, device=pull.device)
        for part in self.groups.parts(pull):
            critical = critical_by_newton(
                self._omega, lambda V, strength: self._prox_(V, strength, 1.0), part, start=critical
            )
        return critical

    def for_chains(self, lengths: Tensor) -> None:
        """Forest penalty: accept entries that stand for several equal weights, merged by the option model.collapse.

        The forest counts the merged weights of each node. If single entries are penalised (mix > 0), UserError is
        raised."""
        if self.mix > 0:
            super().for_chains(lengths)

    def survivors(self, W: Tensor) -> Tensor:
        """Forest penalty: mask of the entries that lie in no zero subtree.

        If the penalty can make single entries zero, zero entries of subtrees are excluded."""
        alive = self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)
        return alive & ((W != 0) | (self.groups.ids < 0)) if self._selects_entries() else alive

    def _selects_entries(self) -> bool:
        """Forest penalty: whether `survivors` excludes single zero entries of nonzero subtrees."""
        return self.mix > 0

    def _omega(self, W: Tensor) -> Tensor:
        """Forest penalty: the value at W without the strength: a sum of norms of subtrees plus an l1 norm."""
        omega = (1 - self.mix) * (self.groups.weight * self._measures(W)).sum()
        if self.mix > 0:
            grouped = torch.where(self.groups.ids >= 0, W, 0.0) if self.groups.free else W
            omega = omega + self.mix * power_sum(grouped, 1)
        return omega


class TreeGroupLasso(_ForestPenalty):
    """Forest penalty: tree-structured group lasso with the Euclidean norm of each subtree.

    The value is strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|). W_g are the entries of subtree g,
    weight_g is its factor, and i runs over all entries in subtrees. Each entry may have its own step size. If step
    sizes differ within a tree, Newton's method computes the prox."""

    iterated = True

    def __init__(self, groups: Forest, strength: float, mix: float = 0.0):
        super().__init__(groups, strength, mix)
        if groups.counts is not None and bool((groups.counts != 1).any()):
            raise UserError(
                f"TreeGroupLasso cannot take collapsed nodes ({groups.parameter} has counts above 1): the norms along "
                f"a chain are not a multiple of one norm; set model.collapse=false, or choose TreeGroupLassoMax "
                f"(reg=tree_linf)"
            )

    def _measures(self, W: Tensor) -> Tensor:
        """Forest penalty: the Euclidean norm of the weights W over each subtree (float64 tensor [nodes])."""
        return self.groups.norms(W)

    def _prox_(self, W: Tensor, strength: Tensor, steps: Steps) -> Tensor:
        """Forest penalty: the prox of Euclidean norms of subtrees at the given strength, in place."""
        return prox.forest_shrink_(W, self.groups, strength * (1 - self.mix), strength * self.mix, steps, self.accuracy)

    def column_forest(self, rows: int) -> ColumnForest | None:
        """Forest penalty: its weights and nodes, if each column of the table has the same forest and no free rows."""
        groups, strength = self.groups, float(self.strength)
        if not groups.repeated or groups.free:
            return None
        weight = groups.in_levels(groups.weight[:, 0].double()).numpy() * strength * (1 - self.mix)
        return ColumnForest(groups.places.numpy(), groups.above.numpy(), weight, strength * float(self.mix), 0.0)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Forest penalty: the norm of the smallest subgradient of loss plus penalty over each subtree.

        `grad` is the gradient of the loss at W. First, the gradients of the norms of nonzero subtrees are added. The
        penalties of zero subtrees can balance part of this sum. A prox computes the remainder (Moreau's decomposition).
        """
        norms, reach = self.groups.norms(W), self.strength * (1 - self.mix) * self.groups.weight
        pull = self.groups.add_down(torch.where(norms > 0, reach / norms, 0.0))
        rest = grad + self.groups.expand(pull, fill=0.0).to(W.dtype) * W
        cut = self.strength * self.mix
        if self.mix > 0:
            cut = torch.where(self.groups.ids >= 0, cut, 0.0)  # entries in no subtree are not penalised
        rest = past_signs(rest, W, torch.as_tensor(cut).to(W.dtype))
        return self.groups.norms(shrink_subtrees_(rest, self.groups, torch.where(norms > 0, 0.0, reach), 1.0, 0.0))


class TreeGroupLassoMax(_ForestPenalty):
    """Forest penalty: tree-structured group lasso with the maximum norm of each subtree.

    The value is strength * ((1 - mix) * sum_g weight_g max |W_g| + mix * sum |W_i|). W_g are the entries of subtree g,
    weight_g is its factor, and i runs over all entries in subtrees. Each entry may have its own step size."""

    def _measures(self, W: Tensor) -> Tensor:
        """Forest penalty: the maximum norm of the weights W over each subtree (float64 tensor [nodes])."""
        return self.groups.maxima(W)

    def _prox_(self, W: Tensor, strength: Tensor, steps: Steps) -> Tensor:
        """Forest penalty: the prox of maximum norms of subtrees at the given strength, in place."""
        return prox.forest_clip_(W, self.groups, strength * (1 - self.mix), strength * self.mix, steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Forest penalty: the norm over each subtree of the proximal gradient residual W - prox(W - grad).

        `grad` is the gradient of the loss at W. The residual is zero exactly if -grad is a subgradient of the penalty
        at W."""
        return self.groups.norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Forest penalty: the norm over each subtree of the proximal gradient residual, under W >= 0."""
        return self.groups.norms(residual(self.nonnegative_prox_, W, grad))

    def _selects_entries(self) -> bool:
        """Forest penalty with maximum norms: whether `survivors` excludes zero entries of nonzero subtrees (always)."""
        return True


def critical_by_newton(
    omega: Callable[[Tensor], Tensor],
    prox_: Callable[[Tensor, Tensor], Tensor],
    pull: Tensor,
    start: Tensor | None = None,
) -> Tensor:
    """Forest penalty: the critical strength of a norm omega by Newton's method.

    This is the smallest strength at which the prox of strength * omega, with steps of 1, is zero at the tensor `pull`.
    prox_(V, strength) must compute this prox at V. The iterates rise from `start` (default: zero) and never pass the
    result; if `start` is above it, `start` is returned."""
    critical = torch.zeros((), dtype=torch.float64, device=pull.device) if start is None else start
    for _ in range(ROUNDS):
        V = prox_(pull.clone(), critical)
        size = omega(V)
        move = torch.where(size > 0, V.square().sum() / size, 0.0)
        if move <= torch.finfo(torch.float64).eps * critical:
            break
        critical = critical + move
    return critical
