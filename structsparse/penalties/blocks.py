"""Group lasso penalties over disjoint groups (blocks): sparse group lasso, group lasso with the maximum norm."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from structsparse import prox
from structsparse.groups import Partition
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, checked, checked_partition, past_signs, residual
from structsparse.prox import Steps

ROUNDS = 100  # maximum number of Newton iterations for a critical strength; usually fewer than 12 are needed


class Blocks(Penalty):
    """Base of group lasso penalties over disjoint groups (blocks) of weights.

    The value is strength * ((1 - mix) * sum_g weight_g size(W_g) + mix * sum |W_i|). W_g are the entries of group g,
    weight_g is its factor, size is a norm, and i runs over all entries in groups. All weights of a group become zero
    together."""

    groups: Partition
    takes = (Partition,)
    reweightable = True
    dual: int  # the norm that is dual to the group norm: 1 (l1) for maximum norms, 2 for Euclidean norms

    def __init__(self, groups: Partition, strength: float, mix: float):
        super().__init__(strength, checked_partition(groups, type(self).__name__))
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    @abstractmethod
    def sizes(self, W: Tensor) -> Tensor:
        """Group lasso penalty over disjoint groups: a norm of the entries of each group (float64 tensor [groups])."""

    def value(self, W: Tensor) -> Tensor:
        """Value of a group lasso penalty over disjoint groups: strength * (weighted sum of group sizes + l1 norm)."""
        omega = (1 - self.mix) * (self.groups.weight * self.sizes(W)).sum()
        if self.mix > 0:
            omega = omega + self.mix * power_sum(self._grouped(W), 1)
        return self.strength * omega

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Critical strength of a group lasso penalty: the maximum of the critical strengths of all disjoint groups."""
        entering = self.entering(grad_at_zero)
        return torch.cat([entering, entering.new_zeros(1)]).max()

    @torch.no_grad()
    def entering(self, grad_at_zero: Tensor) -> Tensor:
        """Critical strength of each disjoint group alone in a group lasso penalty (float64 tensor [groups]).

        The critical strength of group g is the number s that solves

            dual(soft(grad_g, s * mix)) = s * (1 - mix) * weight_g.

        - mix: the share of the l1 norm in the penalty.
        - grad_g: the gradient of the loss in the group.
        - weight_g: the factor of the group.
        - soft(., cut): the soft threshold.
        - dual: the dual norm of the group norm."""
        weight = (1 - self.mix) * self.groups.weight
        entering = torch.zeros_like(weight)
        for _ in range(ROUNDS if self.mix > 0 else 1):  # without an l1 norm (mix = 0) the equation is linear
            duals, falls = self._duals(grad_at_zero, self.mix * entering)
            slope = weight + self.mix * falls
            moves = torch.where((duals > 0) & (slope > 0), (duals - entering * weight) / slope, 0.0)
            if (moves <= torch.finfo(torch.float64).eps * entering).all():
                break
            entering = entering + moves.clamp(min=0)
        return entering

    @property
    def families(self) -> list[int]:
        """Number of groups of a group lasso penalty over disjoint groups, as a list of length 1.

        All groups are one family: they share one strength."""
        return [len(self.groups)]

    def cut_(self, W: Tensor, steps: Steps, choose: prox.Choose) -> None:
        """Prox of a group lasso penalty over disjoint groups at a strength that the callback `choose` picks, in place.

        The critical strength of a group is the strength at which the prox makes it zero. From all critical strengths,
        choose(0, critical strengths) returns the strength of the prox, and a mask of the groups that become exactly
        zero. The 0 says that all groups share one strength (they are family 0)."""
        strength, dead = choose(0, self.entering(torch.where(W == 0, 0.0, W / steps)))
        if strength > 0:
            self.strength = strength
            self.prox_(W, steps)
            W.masked_fill_(self.groups.expand(dead, fill=False), 0.0)

    def _duals(self, W: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
        """Dual norms of the soft-thresholded disjoint groups of a group lasso penalty, and their rates of decrease.

        Both results are float64 tensors [groups]. `cuts` holds one threshold per group. The rate is minus the
        derivative of the dual norm with respect to the threshold."""
        sums = self.groups.sums_past(W, cuts)
        if self.dual == 1:
            return sums[1], sums[0]
        norms = sums[2].sqrt()
        return norms, (sums[1] / norms).nan_to_num(nan=0.0)  # 0 / 0 and inf / inf are NaN

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries that a group lasso penalty selects: those of nonzero disjoint groups.

        With an l1 norm (mix > 0), zero entries of the groups are not selected. Entries that lie in no group are always
        selected."""
        alive = self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)
        if self.mix == 0:
            return alive
        return alive & ((W != 0) | (self.groups.ids < 0) if self.groups.free else W != 0)

    def _grouped(self, W: Tensor) -> Tensor:
        """Copy of W for a penalty over disjoint groups, with zeros at the entries that lie in no group."""
        return torch.where(self.groups.ids >= 0, W, 0.0) if self.groups.free else W


class SparseGroupLasso(Blocks):
    """Sparse group lasso penalty over disjoint groups of weights.

    The value is strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|). W_g are the entries of group g,
    weight_g is its factor, and i runs over all entries in groups."""

    dual = 2

    def __init__(self, groups: Partition, strength: float, mix: float, whole: bool = False):
        super().__init__(groups, strength, mix)
        self.whole = whole  # whether `survivors` selects all entries of nonzero groups, even zero entries

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries that the sparse group lasso penalty selects: those of nonzero disjoint groups.

        With an l1 norm (mix > 0), zero entries of the groups are not selected, unless `whole` is set."""
        return self.groups.expand(self.groups.alive(W), fill=True).expand_as(W) if self.whole else super().survivors(W)

    def sizes(self, W: Tensor) -> Tensor:
        """Euclidean norm of each disjoint group of the sparse group lasso penalty (float64 tensor [groups])."""
        return self.groups.norms(W)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Prox of the sparse group lasso penalty over disjoint groups, in place.

        Without an l1 norm (mix = 0) this is the prox of the group lasso."""
        if self.mix == 0:
            return prox.group_shrink_(W, self.groups, self.strength, steps)
        strength, entry_strength = self.strength * (1 - self.mix), self.strength * self.mix
        return prox.sparse_group_shrink_(W, self.groups, strength, entry_strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Optimality gap of the sparse group lasso penalty in each disjoint group (float64 tensor [groups]).

        The gap is the distance of -grad from the subdifferential of the penalty at W, where `grad` is the gradient of
        the loss."""
        norms, reach = self.groups.norms(W), self.strength * (1 - self.mix) * self.groups.weight
        pull = torch.where(norms > 0, reach / norms, 0.0)
        rest = grad + self.groups.expand(pull, fill=0.0).to(W.dtype) * W
        distance = self.groups.norms(past_signs(rest, W, self.strength * self.mix))
        return torch.where(norms > 0, distance, (distance - reach).clamp(min=0))


class GroupLasso(SparseGroupLasso):
    """Group lasso penalty over disjoint groups: strength * sum_g weight_g ||W_g||.

    W_g are the entries of group g, and weight_g is its factor."""

    def __init__(self, groups: Partition, strength: float):
        super().__init__(groups, strength, mix=0.0)


class GroupLassoMax(Blocks):
    """Group lasso penalty over disjoint groups with the maximum norm (l1/l-infinity).

    The value is strength * ((1 - mix) * sum_g weight_g max |W_g| + mix * sum |W_i|). W_g are the entries of group g,
    weight_g is its factor, and i runs over all entries in groups.

    The largest entries of a nonzero group become equal in size."""

    dual = 1

    def __init__(self, groups: Partition, strength: float, mix: float = 0.0):
        super().__init__(groups, strength, mix)

    def sizes(self, W: Tensor) -> Tensor:
        """Maximum norm of each disjoint group of the group lasso penalty (float64 tensor [groups])."""
        return prox.group_maxima(W.abs(), self.groups)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Prox of the group lasso penalty with the maximum norm: soft thresholding, then clipping of disjoint groups.

        The composition is exact, even with a step per entry."""
        if self.mix > 0:
            prox.soft_threshold_(W, self.strength * self.mix, self._grouped_steps(W, steps))
        return prox.group_clip_(W, self.groups, self.strength * (1 - self.mix), steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Norm of the proximal gradient residual in each disjoint group of the penalty (float64 tensor [groups])."""
        return self.groups.norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Norm of the proximal gradient residual in each disjoint group of the penalty, under W >= 0."""
        return self.groups.norms(residual(self.nonnegative_prox_, W, grad))

    def _grouped_steps(self, W: Tensor, steps: Steps) -> Steps:
        """Steps for the prox of a penalty over disjoint groups, set to zero at the entries that lie in no group."""
        if not self.groups.free:
            return steps
        return (W.new_zeros(self.groups.ids.shape) + steps).masked_fill(self.groups.ids < 0, 0.0)
