"""Group lasso penalties over disjoint groups: sparse group lasso, and group lasso with the maximum norm."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from structsparse import prox
from structsparse.groups import Partition
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, checked, checked_partition, past_signs, residual
from structsparse.prox import Steps

ROUNDS = 100  # Newton steps towards a critical strength, at most; usually fewer than twelve are needed


class Blocks(Penalty):
    """Base of group lassos over disjoint groups: strength * ((1 - mix) * sum_g weight_g size(W_g) + mix * sum |W_i|).

    The size of a group is a norm of its weights, so all weights of a group become zero together. The last sum runs over
    the entries of the groups."""

    groups: Partition
    takes = (Partition,)
    reweightable = True
    dual: int  # order, 1 or 2, of the norm that is dual to the size of a group

    def __init__(self, groups: Partition, strength: float, mix: float):
        super().__init__(strength, checked_partition(groups, type(self).__name__))
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    @abstractmethod
    def sizes(self, W: Tensor) -> Tensor:
        """The size of each group, a norm of its weights: float64 [groups]."""

    def value(self, W: Tensor) -> Tensor:
        """The value of the group lasso: strength times the weighted group sizes plus l1."""
        omega = (1 - self.mix) * (self.groups.weight * self.sizes(W)).sum()
        if self.mix > 0:
            omega = omega + self.mix * power_sum(self._grouped(W), 1)
        return self.strength * omega

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The critical strength: the largest of the groups' critical strengths."""
        entering = self.entering(grad_at_zero)
        return torch.cat([entering, entering.new_zeros(1)]).max()

    @torch.no_grad()
    def entering(self, grad_at_zero: Tensor) -> Tensor:
        """The critical strength of each group alone: float64 [groups]. It is the root in s of

            dual(soft(grad_g, s * mix)) = s * (1 - mix) * weight_g.

        Left minus right side is convex and decreasing in s, so Newton's method from the left never passes the root."""
        weight = (1 - self.mix) * self.groups.weight
        entering = torch.zeros_like(weight)
        for _ in range(ROUNDS if self.mix > 0 else 1):  # without mix the equation is linear: one step
            duals, falls = self._duals(grad_at_zero, self.mix * entering)
            slope = weight + self.mix * falls
            moves = torch.where((duals > 0) & (slope > 0), (duals - entering * weight) / slope, 0.0)
            if (moves <= torch.finfo(torch.float64).eps * entering).all():
                break
            entering = entering + moves.clamp(min=0)
        return entering

    @property
    def families(self) -> list[int]:
        """The number of groups in the only family: all groups have the same strength."""
        return [len(self.groups)]

    def cut_(self, W: Tensor, steps: Steps, choose: prox.Choose) -> None:
        """Apply the prox at the strength that choose(0, critical strengths of the groups) returns.

        `choose` also returns the groups that must become zero, whatever the rounding."""
        strength, dead = choose(0, self.entering(torch.where(W == 0, 0.0, W / steps)))
        if strength > 0:
            self.strength = strength
            self.prox_(W, steps)
            W.masked_fill_(self.groups.expand(dead, fill=False), 0.0)

    def _duals(self, W: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
        """The dual norm of soft(W_g, cut_g) for each group, and how much it falls per unit of the cut: float64 [groups]
        each."""
        sums = self.groups.sums_past(W, cuts)
        if self.dual == 1:
            return sums[1], sums[0]
        norms = sums[2].sqrt()
        return norms, (sums[1] / norms).nan_to_num(nan=0.0)  # nan comes from 0 / 0 and inf / inf

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries of nonzero groups; if entries are penalised too (mix > 0), only the nonzero entries."""
        alive = self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)
        if self.mix == 0:
            return alive
        return alive & ((W != 0) | (self.groups.ids < 0) if self.groups.free else W != 0)

    def _grouped(self, W: Tensor) -> Tensor:
        """W with zeros at the entries that lie in no group."""
        return torch.where(self.groups.ids >= 0, W, 0.0) if self.groups.free else W


class SparseGroupLasso(Blocks):
    """Sparse group lasso: strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|) over disjoint groups.

    The last sum runs over the entries of the groups."""

    dual = 2

    def __init__(self, groups: Partition, strength: float, mix: float, whole: bool = False):
        super().__init__(groups, strength, mix)
        self.whole = whole  # whether a later training stage may use all entries of nonzero groups

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries of nonzero groups; by default only nonzero entries if mix is above 0."""
        return self.groups.expand(self.groups.alive(W), fill=True).expand_as(W) if self.whole else super().survivors(W)

    def sizes(self, W: Tensor) -> Tensor:
        """The Euclidean norm of each group: float64 [groups]."""
        return self.groups.norms(W)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of the sparse group lasso, in place; without mix that of the group lasso."""
        if self.mix == 0:
            return prox.group_shrink_(W, self.groups, self.strength, steps)
        strength, entry_strength = self.strength * (1 - self.mix), self.strength * self.mix
        return prox.sparse_group_shrink_(W, self.groups, strength, entry_strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The distance of -grad from the subdifferential of the sparse group lasso, for each group."""
        norms, reach = self.groups.norms(W), self.strength * (1 - self.mix) * self.groups.weight
        pull = torch.where(norms > 0, reach / norms, 0.0)
        rest = grad + self.groups.expand(pull, fill=0.0).to(W.dtype) * W
        distance = self.groups.norms(past_signs(rest, W, self.strength * self.mix))
        return torch.where(norms > 0, distance, (distance - reach).clamp(min=0))


class GroupLasso(SparseGroupLasso):
    """Group lasso over disjoint groups: strength * sum_g weight_g ||W_g||."""

    def __init__(self, groups: Partition, strength: float):
        super().__init__(groups, strength, mix=0.0)


class GroupLassoMax(Blocks):
    """Group lasso with the maximum norm (l1,inf): strength * ((1 - mix) * sum_g weight_g max |W_g| + mix * sum |W_i|).

    The last sum runs over the entries of the groups. The largest entries of a nonzero group become equal. `gap` is the
    norm in each group of the proximal gradient residual, because the distance to the subdifferential jumps where two
    entries become equal."""

    dual = 1

    def __init__(self, groups: Partition, strength: float, mix: float = 0.0):
        super().__init__(groups, strength, mix)

    def sizes(self, W: Tensor) -> Tensor:
        """The maximum norm of each group: float64 [groups]."""
        return prox.group_maxima(W.abs(), self.groups)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox: soft thresholding, then clipping of each group.

        Clipping keeps the sign of each entry or makes it zero, so the composition is exact, also with a step per entry.
        """
        if self.mix > 0:
            prox.soft_threshold_(W, self.strength * self.mix, self._grouped_steps(W, steps))
        return prox.group_clip_(W, self.groups, self.strength * (1 - self.mix), steps)

    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The norm of the proximal gradient residual in each group."""
        return self.groups.norms(residual(self.prox_, W, grad))

    def nonnegative_gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The norm of the proximal gradient residual under the constraint W >= 0, in each group."""
        return self.groups.norms(residual(self.nonnegative_prox_, W, grad))

    def _grouped_steps(self, W: Tensor, steps: Steps) -> Steps:
        """The steps, with zeros for the entries that lie in no group."""
        if not self.groups.free:
            return steps
        return (W.new_zeros(self.groups.ids.shape) + steps).masked_fill(self.groups.ids < 0, 0.0)
