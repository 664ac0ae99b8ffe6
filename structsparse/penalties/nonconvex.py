"""Nonconvex penalties (log-sum, MCP, l0), which shrink large weights little or not at all, and reweighted group lasso.

The result of training depends on its start. The prox is the global minimum of its own small problem. On a group's norm
it takes one step for all entries of the group; with a step per entry, use `Reweighting`, a group lasso whose weights
change in rounds.
"""

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

FOREVER = 1e30  # factor on the weight of a dead group, which keeps it dead; finite, so that 0 * FOREVER is 0


class Radial(Penalty):
    """Base of penalties of sizes: strength * sum_g weight_g h(||W_g||), or strength * sum h(|W_i|) without groups,
    where h(0) = 0."""

    convex = False
    takes = (None, Partition)

    def __init__(self, strength: float, groups: Partition | None):
        super().__init__(strength, None if groups is None else checked_partition(groups, type(self).__name__))

    @abstractmethod
    def height(self, size: Tensor) -> Tensor:
        """The function h, for sizes of at least 0."""

    @abstractmethod
    def slope(self, size: Tensor) -> Tensor:
        """The derivative of h, from the right."""

    @abstractmethod
    def movement(self) -> Movement:
        """How far the prox moves a size, see `prox.nonconvex`."""

    def value(self, W: Tensor) -> Tensor:
        if self.groups is None:
            return self.strength * self.height(W.abs()).sum(dtype=torch.float64)
        return self.strength * (self.groups.weight * self.height(self.groups.norms(W))).sum()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        if self.groups is None:
            return move_entries_(W, self.strength, steps, self.movement())
        name = type(self).__name__
        refuse_entry_steps(steps, f"{name} over groups", "use Reweighting, which makes it a weighted group lasso")
        return move_groups_(W, self.groups, self.strength, steps, self.movement())

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
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
        """The smallest strength at which zero is a local optimum: that of the (group) lasso, since h'(0) = 1."""
        if self.groups is None:
            size = grad_at_zero.abs().double().flatten()
        else:
            weight = self.groups.weight
            size = torch.where(weight > 0, self.groups.norms(grad_at_zero) / weight, 0.0)
        return torch.cat([size, size.new_zeros(1)]).max()

    @property
    def by_entry(self) -> bool:
        return self.groups is None

    def survivors(self, W: Tensor) -> Tensor:
        """All entries of living groups, and free ones; without groups the entries that are not zero."""
        if self.groups is None:
            return W != 0
        return self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)


class LogSum(Radial):
    """Log-sum penalty: strength * sum_g weight_g epsilon log(1 + ||W_g|| / epsilon), or over entries without groups.

    Its slope at zero is that of the (group) lasso, which it approaches as epsilon grows.
    """

    def __init__(self, strength: float, epsilon: float, groups: Partition | None = None):
        super().__init__(strength, groups)
        self.epsilon = checked_positive(epsilon, f"the epsilon of {type(self).__name__}")

    def height(self, size: Tensor) -> Tensor:
        return self.epsilon * torch.log1p(size / self.epsilon)

    def slope(self, size: Tensor) -> Tensor:
        return self.epsilon / (self.epsilon + size)

    def movement(self) -> Movement:
        return log_sum(self.epsilon)


class GroupMCP(Radial):
    """Minimax concave penalty: strength * sum_g weight_g h(||W_g||), h(t) = t - t^2 / (2 reach) up to reach, reach / 2
    beyond. Sizes above `reach` are not shrunk at all. Over entries without groups.
    """

    def __init__(self, strength: float, reach: float, groups: Partition | None = None):
        super().__init__(strength, groups)
        self.reach = checked_positive(reach, f"the reach of {type(self).__name__}")

    def height(self, size: Tensor) -> Tensor:
        near = size.clamp(max=self.reach)
        return near * (1 - near / (2 * self.reach))

    def slope(self, size: Tensor) -> Tensor:
        return (1 - size / self.reach).clamp(min=0)

    def movement(self) -> Movement:
        return firm(self.reach)


class L0(Radial):
    """strength * number of entries that are not zero, or strength * sum of weight_g over living groups

    Zero is a local optimum at any strength above 0, so there is no critical one.
    """

    def __init__(self, strength: float, groups: Partition | None = None):
        super().__init__(strength, groups)

    def height(self, size: Tensor) -> Tensor:
        return (size > 0) + 0 * size  # so that autograd has a gradient, of zero

    def slope(self, size: Tensor) -> Tensor:
        return torch.zeros_like(size)

    def movement(self) -> Movement:
        return hard()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        if self.groups is None:
            return super().prox_(W, steps)
        return drop_groups_(W, self.groups, self.strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Distance of the gradient from zero, for entries or groups that are not zero."""
        if self.groups is None:
            return row_norms(grad.masked_fill((W == 0) & (self.strength > 0), 0.0))
        held = ~self.groups.alive(W) & (self.strength * self.groups.weight > 0)
        return self.groups.norms(grad).masked_fill(held, 0.0)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        return None


class Round(NamedTuple):
    """A round of reweighting: how many groups live, and their weights."""

    number: int
    alive: int  # groups
    groups: int
    scale: float  # of norms: epsilon, or the median over living groups
    lightest: float  # weight of a living group, relative to its base weight and without growth
    heaviest: float

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.alive} of {self.groups} groups alive, "
            f"weights {self.lightest:.3g} to {self.heaviest:.3g} times the first ones, scale {self.scale:.3g}"
        )


class Reweighting:
    """Reweighted (sparse) group lasso: rounds of training that end where a log-sum penalty would, large groups shrunk
    less.

    After each round, `update` sets `penalty.groups.weight` from the first weights, base_g:

    With `epsilon`, weight_g <- base_g * epsilon / (epsilon + ||W_g||). The group lasso with these weights lies above
    LogSum(strength, epsilon) and touches it at W, so lowering loss + group lasso lowers loss + log-sum.

    Without, weight_g <- base_g * (median norm of living groups) / ||W_g||: there is no scale to choose, and dead
    groups stay dead. Each round also multiplies all weights by `growth`, so that fewer and fewer groups live.

    Entries that are penalised as well (mix > 0) keep their strength.
    """

    def __init__(self, penalty: Blocks, epsilon: float | None = None, growth: float = 1.0):
        if not penalty.reweightable:
            raise UserError(f"reweighting takes a (sparse) group lasso, l2 or linf, got {type(penalty).__name__}")
        self.penalty, self.rounds = penalty, 0
        self.epsilon = None if epsilon is None else checked_positive(epsilon, "the epsilon of Reweighting")
        self.growth = checked_positive(growth, "the growth of Reweighting")
        self.base = penalty.groups.weight.clone()

    @torch.no_grad()
    def update(self, W: Tensor) -> Round:
        """Set the weights of groups for another round, from the weights of the last one."""
        groups = self.penalty.groups
        norms, alive = self.penalty.sizes(W), groups.alive(W)
        scale = self.epsilon if self.epsilon is not None else float(norms[alive].median()) if alive.any() else 0.0
        lighter = scale / (scale + norms) if self.epsilon is not None else torch.where(alive, scale / norms, FOREVER)
        self.rounds += 1
        groups.weight.copy_(self.base.to(norms.device) * self.growth**self.rounds * lighter.clamp(max=FOREVER))
        living = lighter[alive].tolist() or [1.0]
        return Round(self.rounds, int(alive.sum()), len(groups), scale, min(living), max(living))

    def state_dict(self) -> dict:
        """The state besides the weights of groups, which the penalty saves."""
        return {"rounds": self.rounds, "base": self.base}

    def load_state_dict(self, state: dict) -> None:
        self.rounds, self.base = state["rounds"], state["base"]
