"""Nonconvex penalties, which shrink large weights little or not at all: log-sum, group MCP, l0, reweighted group lasso.

The result of training depends on the starting point. Each prox is the global minimum of its own objective. For
penalties of group norms, the prox takes one step for all entries of a group. `Reweighting` instead trains in rounds
with a weighted group lasso, which allows a step per entry."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups import Partition
from structsparse.penalties.base import Penalty, checked_partition, checked_positive, row_norms
from structsparse.penalties.blocks import Blocks
from structsparse.prox import Steps
from structsparse.prox.nonconvex import Movement, drop_groups_, firm, hard, log_sum, move_entries_, move_groups_
from structsparse.prox.steps import refuse_entry_steps

FOREVER = 1e30  # weight of zero groups, which keeps them at zero; finite, so that 0 * FOREVER is 0


class Radial(Penalty):
    """Base of concave penalties: strength * sum_g weight_g h(||W_g||), or strength * sum h(|W_i|) without groups, with
    h(0) = 0."""

    convex = False
    takes = (None, Partition)

    def __init__(self, strength: float, groups: Partition | None):
        super().__init__(strength, None if groups is None else checked_partition(groups, type(self).__name__))

    @abstractmethod
    def height(self, size: Tensor) -> Tensor:
        """The function h at sizes of at least 0, entry by entry."""

    @abstractmethod
    def slope(self, size: Tensor) -> Tensor:
        """The derivative of h, from the right, entry by entry."""

    @abstractmethod
    def movement(self) -> Movement:
        """How far the prox moves a norm, in the form that `prox.nonconvex` takes."""

    def value(self, W: Tensor) -> Tensor:
        """The value of the penalty: strength * sum of h over groups or entries."""
        if self.groups is None:
            return self.strength * self.height(W.abs()).sum(dtype=torch.float64)
        return self.strength * (self.groups.weight * self.height(self.groups.norms(W))).sum()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox, in place: move each entry or group norm towards zero."""
        if self.groups is None:
            return move_entries_(W, self.strength, steps, self.movement())
        name = type(self).__name__
        refuse_entry_steps(steps, f"{name} over groups", "use Reweighting, which makes it a weighted group lasso")
        return move_groups_(W, self.groups, self.strength, steps, self.movement())

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The size of the smallest subgradient of loss plus penalty, in each group or row."""
        if self.groups is None:
            pull = (self.strength * self.slope(W.abs())).to(W.dtype)
            return row_norms(torch.where(W != 0, grad + pull * W.sign(), grad - torch.clamp(grad, -pull, pull)))
        norms = self.groups.norms(W)
        pull = self.strength * self.groups.weight * self.slope(norms)
        share = torch.where(norms > 0, pull / norms, 0.0)
        distance = self.groups.norms(grad + self.groups.expand(share, fill=0.0).to(W.dtype) * W)
        return torch.where(norms > 0, distance, (distance - pull).clamp(min=0))

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """The smallest strength at which zero is a local optimum: that of the lasso or group lasso, as h'(0) = 1."""
        if self.groups is None:
            size = grad_at_zero.abs().double().flatten()
        else:
            weight = self.groups.weight
            size = torch.where(weight > 0, self.groups.norms(grad_at_zero) / weight, 0.0)
        return torch.cat([size, size.new_zeros(1)]).max()

    @property
    def by_entry(self) -> bool:
        """Whether the penalty is a sum over single entries."""
        return self.groups is None

    def survivors(self, W: Tensor) -> Tensor:
        """Mask of the entries that lie in nonzero groups or in none; without groups, of the nonzero entries."""
        if self.groups is None:
            return W != 0
        return self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)


class LogSum(Radial):
    """Log-sum penalty: strength * sum_g weight_g epsilon log(1 + ||W_g|| / epsilon); without groups, of single entries.

    The slope at zero is that of the lasso or group lasso, which is the limit for large epsilon."""

    def __init__(self, strength: float, epsilon: float, groups: Partition | None = None):
        super().__init__(strength, groups)
        self.epsilon = checked_positive(epsilon, f"the epsilon of {type(self).__name__}")

    def height(self, size: Tensor) -> Tensor:
        """The log-sum function h(t) = epsilon log(1 + t / epsilon)."""
        return self.epsilon * torch.log1p(size / self.epsilon)

    def slope(self, size: Tensor) -> Tensor:
        """The derivative of h: epsilon / (epsilon + t)."""
        return self.epsilon / (self.epsilon + size)

    def movement(self) -> Movement:
        """The log-sum prox of a norm."""
        return log_sum(self.epsilon)


class GroupMCP(Radial):
    """Minimax concave penalty (MCP): strength * sum_g weight_g h(||W_g||), h(t) = t - t^2 / (2 reach) up to reach,
    reach / 2 beyond.

    Norms above `reach` are not shrunk at all. Without groups the penalty is that of single entries."""

    def __init__(self, strength: float, reach: float, groups: Partition | None = None):
        super().__init__(strength, groups)
        self.reach = checked_positive(reach, f"the reach of {type(self).__name__}")

    def height(self, size: Tensor) -> Tensor:
        """The MCP function h(t) = t - t^2 / (2 reach), constant beyond reach."""
        near = size.clamp(max=self.reach)
        return near * (1 - near / (2 * self.reach))

    def slope(self, size: Tensor) -> Tensor:
        """The derivative of h: 1 - t / reach, zero beyond reach."""
        return (1 - size / self.reach).clamp(min=0)

    def movement(self) -> Movement:
        """The prox of MCP on a norm: firm thresholding."""
        return firm(self.reach)


class L0(Radial):
    """l0 penalty: strength * number of nonzero entries, or strength * sum of weight_g over nonzero groups.

    Zero is a local optimum at any strength above 0, so there is no critical strength."""

    def __init__(self, strength: float, groups: Partition | None = None):
        super().__init__(strength, groups)

    def height(self, size: Tensor) -> Tensor:
        """The l0 function h(t): 1 above zero, 0 at zero."""
        return (size > 0) + 0 * size  # so that autograd has a gradient, which is zero

    def slope(self, size: Tensor) -> Tensor:
        """The derivative of h: zero everywhere."""
        return torch.zeros_like(size)

    def movement(self) -> Movement:
        """The prox of l0 on an entry: hard thresholding."""
        return hard()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """The prox of l0, in place: hard thresholding of entries or of whole groups."""
        if self.groups is None:
            return super().prox_(W, steps)
        return drop_groups_(W, self.groups, self.strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """The size of the gradient in each group or row, at the nonzero weights only."""
        if self.groups is None:
            return row_norms(grad.masked_fill((W == 0) & (self.strength > 0), 0.0))
        held = ~self.groups.alive(W) & (self.strength * self.groups.weight > 0)
        return self.groups.norms(grad).masked_fill(held, 0.0)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """None, as zero is a local optimum at any strength."""
        return None


class Round(NamedTuple):
    """The result of one round of reweighting."""

    number: int
    alive: int  # number of nonzero groups
    groups: int
    scale: float  # scale of the norms: epsilon, or the median norm of nonzero groups
    lightest: float  # smallest weight of a nonzero group, relative to its initial weight and without growth
    heaviest: float

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.alive} of {self.groups} groups alive, "
            f"weights {self.lightest:.3g} to {self.heaviest:.3g} times the first ones, scale {self.scale:.3g}"
        )


class Reweighting:
    """Reweighted group lasso: rounds of training after which large groups get smaller weights, which approximates a
    log-sum penalty.

    After each round `update` sets `penalty.groups.weight` from the initial weights base_g:

    With `epsilon`, weight_g <- base_g * epsilon / (epsilon + ||W_g||). Up to a constant, the group lasso with these
    weights is an upper bound of LogSum(strength, epsilon) that is tight at W. So lowering loss + group lasso also
    lowers loss + log-sum.

    Without epsilon, weight_g <- base_g * (median norm of nonzero groups) / ||W_g||. No scale must be chosen, and zero
    groups stay zero. Each round multiplies all weights by `growth`, so that fewer and fewer groups stay nonzero.

    The strength on single entries (mix > 0) does not change."""

    def __init__(self, penalty: Blocks, epsilon: float | None = None, growth: float = 1.0):
        if not penalty.reweightable:
            raise UserError(f"reweighting takes a (sparse) group lasso, l2 or linf, got {type(penalty).__name__}")
        self.penalty, self.rounds = penalty, 0
        self.epsilon = None if epsilon is None else checked_positive(epsilon, "the epsilon of Reweighting")
        self.growth = checked_positive(growth, "the growth of Reweighting")
        self.base = penalty.groups.weight.clone()

    @torch.no_grad()
    def update(self, W: Tensor) -> Round:
        """Set the weights of the groups for the next round, from the weights W that the last round has found."""
        groups = self.penalty.groups
        norms, alive = self.penalty.sizes(W), groups.alive(W)
        scale = self.epsilon if self.epsilon is not None else float(norms[alive].median()) if alive.any() else 0.0
        lighter = scale / (scale + norms) if self.epsilon is not None else torch.where(alive, scale / norms, FOREVER)
        self.rounds += 1
        groups.weight.copy_(self.base.to(norms.device) * self.growth**self.rounds * lighter.clamp(max=FOREVER))
        living = lighter[alive].tolist() or [1.0]
        return Round(self.rounds, int(alive.sum()), len(groups), scale, min(living), max(living))

    def state_dict(self) -> dict:
        """The state for a checkpoint: number of rounds and initial weights. The penalty itself saves the current
        weights of the groups."""
        return {"rounds": self.rounds, "base": self.base}

    def load_state_dict(self, state: dict) -> None:
        """Restore the number of rounds and the initial weights of the groups."""
        self.rounds, self.base = state["rounds"], state["base"]
