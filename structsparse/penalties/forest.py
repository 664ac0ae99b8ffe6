"""Tree-structured group lasso over the subtrees of a forest: if a subtree is zero, so are all subtrees below it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Forest, Partition
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, checked, past_signs, residual
from structsparse.prox import Steps
from structsparse.prox.forest import shrink_subtrees_

ROUNDS = 200  # Newton steps towards a critical strength, at most; usually far fewer are needed


class _ForestPenalty(Penalty):
    """Base of tree-structured group lassos, whatever norm measures the subtrees."""

    groups: Forest
    takes = (Forest,)

    def __init__(self, groups: Forest, strength: float, mix: float = 0.0):
        if not isinstance(groups, Forest):
            # the message need not name the kind of Partition
            kind = "Partition" if isinstance(groups, Partition) else type(groups).__name__
            raise UserError(
                f"{type(self).__name__} is a sum over a Forest, got a {kind}; "
                "choose groups=template_tree, or a file with parents"
            )
        super().__init__(strength, groups)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    @abstractmethod
    def _measures(self, W: Tensor) -> Tensor:
        """The norm of each subtree: float64 [nodes]."""

    @abstractmethod
    def _prox_(self, W: Tensor, strength: Tensor, steps: Steps) -> Tensor:
        """The prox at the given strength instead of the penalty's."""

    def value(self, W: Tensor) -> Tensor:
        """The value of the tree-structured group lasso: strength times its norm."""
        return self.strength * self._omega(W)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of the tree-structured group lasso, in place."""
        return self._prox_(W, self.strength, steps)

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength, by Newton's method; entries outside penalised subtrees do not count."""
        bound = torch.ones_like(self.groups.weight) if self.mix > 0 else (self.groups.weight > 0).double()
        penalised = self.groups.expand(self.groups.add_down(bound), fill=0.0) > 0
        pull = torch.where(penalised, -grad_at_zero.double(), 0.0)
        return critical_by_newton(self._omega, lambda V, strength: self._prox_(V, strength, 1.0), pull)

    def for_chains(self, lengths: Tensor) -> None:
        """Accept collapsed chains if mix is 0: the nodes of the forest have counts for them. Penalised entries have
        none."""
        if self.mix > 0:
            super().for_chains(lengths)

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries in nonzero subtrees or in none; if single entries are selected, only the nonzero ones."""
        alive = self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)
        return alive & ((W != 0) | (self.groups.ids < 0)) if self._selects_entries() else alive

    def _selects_entries(self) -> bool:
        """Whether single entries of a nonzero subtree may become zero."""
        return self.mix > 0

    def _omega(self, W: Tensor) -> Tensor:
        """The norm that the penalty multiplies by its strength."""
        omega = (1 - self.mix) * (self.groups.weight * self._measures(W)).sum()
        if self.mix > 0:
            grouped = torch.where(self.groups.ids >= 0, W, 0.0) if self.groups.free else W
            omega = omega + self.mix * power_sum(grouped, 1)
        return omega


class TreeGroupLasso(_ForestPenalty):
    """Tree-structured group lasso: strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|) over the subtrees
    g of a forest.

    The last sum runs over the entries of the subtrees. Each entry may have its own step; if steps differ within a tree,
    the prox is computed by Newton's method."""

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
        """The Euclidean norm of each subtree: float64 [nodes]."""
        return self.groups.norms(W)

    def _prox_(self, W: Tensor, strength: Tensor, steps: Steps) -> Tensor:
        """The prox with Euclidean norms at the given strength."""
        return prox.forest_shrink_(W, self.groups, strength * (1 - self.mix), strength * self.mix, steps, self.accuracy)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The norm of the smallest subgradient on each subtree.

        The norms of nonzero subtrees have a gradient, which is added. The zero subtrees can balance part of the sum; by
        Moreau's decomposition, what remains is the prox of their part of the penalty."""
        norms, reach = self.groups.norms(W), self.strength * (1 - self.mix) * self.groups.weight
        pull = self.groups.add_down(torch.where(norms > 0, reach / norms, 0.0))
        rest = grad + self.groups.expand(pull, fill=0.0).to(W.dtype) * W
        cut = self.strength * self.mix
        if self.mix > 0:
            cut = torch.where(self.groups.ids >= 0, cut, 0.0)  # entries in no subtree are not penalised
        rest = past_signs(rest, W, torch.as_tensor(cut).to(W.dtype))
        return self.groups.norms(shrink_subtrees_(rest, self.groups, torch.where(norms > 0, 0.0, reach), 1.0, 0.0))


class TreeGroupLassoMax(_ForestPenalty):
    """Tree-structured group lasso with the maximum norm: strength * ((1 - mix) * sum_g weight_g max|W_g| + mix * sum
    |W_i|) over the subtrees g of a forest.

    The last sum runs over the entries of the subtrees. Each entry may have its own step."""

    def _measures(self, W: Tensor) -> Tensor:
        """The maximum norm of each subtree: float64 [nodes]."""
        return self.groups.maxima(W)

    def _prox_(self, W: Tensor, strength: Tensor, steps: Steps) -> Tensor:
        """The prox with maximum norms at the given strength."""
        return prox.forest_clip_(W, self.groups, strength * (1 - self.mix), strength * self.mix, steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The norm of the proximal gradient residual W - prox(W - grad) on each subtree. It is zero exactly where the
        distance to the subdifferential is."""
        return self.groups.norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The norm of the proximal gradient residual under the constraint W >= 0, on each subtree."""
        return self.groups.norms(residual(self.nonnegative_prox_, W, grad))

    def _selects_entries(self) -> bool:
        """True, as the maximum norm also makes single entries zero."""
        return True


def critical_by_newton(
    omega: Callable[[Tensor], Tensor], prox_: Callable[[Tensor, Tensor], Tensor], pull: Tensor
) -> Tensor:
    """The critical strength of a norm omega: the smallest strength at which the prox of strength * omega maps `pull` to
    zero.

    The prox has steps of 1; its result V is `pull` minus its projection on the dual ball of radius `strength`. ||V|| is
    convex in the strength with slope -omega(V) / ||V||, so Newton's method from zero never passes the root."""
    critical = torch.zeros((), dtype=torch.float64, device=pull.device)
    for _ in range(ROUNDS):
        V = prox_(pull.clone(), critical)
        size = omega(V)
        move = torch.where(size > 0, V.square().sum() / size, 0.0)
        if move <= torch.finfo(torch.float64).eps * critical:
            break
        critical = critical + move
    return critical
