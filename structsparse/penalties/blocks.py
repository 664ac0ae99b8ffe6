"""Sums over disjoint groups."""

from __future__ import annotations

import torch
from torch import Tensor

from structsparse import prox
from structsparse.groups import Partition
from structsparse.memory import power_sum
from structsparse.penalties.base import Penalty, checked, past_signs
from structsparse.prox import Steps

ROUNDS = 100  # of Newton towards a critical strength; it ends by itself within a dozen


class SparseGroupLasso(Penalty):
    """strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|), the last over the entries of the groups"""

    groups: Partition

    def __init__(self, groups: Partition, strength: float, mix: float):
        super().__init__(strength, groups)
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)

    def value(self, W: Tensor) -> Tensor:
        omega = (1 - self.mix) * (self.groups.weight * self.groups.norms(W)).sum()
        if self.mix > 0:
            omega = omega + self.mix * power_sum(self._grouped(W), 1)
        return self.strength * omega

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        if self.mix == 0:
            return prox.group_shrink_(W, self.groups, self.strength, steps)
        strength, entry_strength = self.strength * (1 - self.mix), self.strength * self.mix
        return prox.sparse_group_shrink_(W, self.groups, strength, entry_strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        norms, reach = self.groups.norms(W), self.strength * (1 - self.mix) * self.groups.weight
        pull = torch.where(norms > 0, reach / norms, 0.0)
        rest = grad + self.groups.expand(pull, fill=0.0).to(W.dtype) * W
        distance = self.groups.norms(past_signs(rest, W, self.strength * self.mix))
        return torch.where(norms > 0, distance, (distance - reach).clamp(min=0))

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The root, largest over groups, of  ||soft(grad_g, s * mix)|| = s * (1 - mix) * weight_g  in s.

        The difference of the two sides is convex and decreasing in s, so Newton from the left of the root never
        passes it; what is left of one group's root is left of the largest.
        """
        size, weight = grad_at_zero.abs().double(), (1 - self.mix) * self.groups.weight
        critical = size.new_zeros(())
        for _ in range(ROUNDS):
            rest = (size - self.mix * critical).clamp(min=0)
            norms = self.groups.norms(rest)
            slope = weight + self.mix * self.groups.sums(rest) / norms
            moves = torch.where((norms > 0) & (slope > 0), (norms - critical * weight) / slope, 0.0)
            move = torch.cat([moves, moves.new_zeros(1)]).max()
            if move <= torch.finfo(torch.float64).eps * critical:
                break
            critical = critical + move
        return critical

    def survivors(self, W: Tensor) -> Tensor:
        """The entries of living groups; with entries penalised as well (mix > 0), only those that are not zero."""
        alive = self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)
        return alive & ((W != 0) | (self.groups.ids < 0)) if self.mix > 0 else alive

    def _grouped(self, W: Tensor) -> Tensor:
        return torch.where(self.groups.ids >= 0, W, 0.0) if self.groups.free else W


class GroupLasso(SparseGroupLasso):
    """strength * sum_g weight_g ||W_g||"""

    def __init__(self, groups: Partition, strength: float):
        super().__init__(groups, strength, mix=0.0)
