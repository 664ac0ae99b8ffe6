"""Nonconvex penalties, which shrink large weights little or not at all.

The penalties are log-sum, minimax concave (MCP), l0 and the reweighted group lasso. The result of training depends on
the starting point. Each prox is the global minimum of its objective. With groups, the prox of log-sum and MCP needs one
step size for all entries. `Reweighting` instead trains several times with a weighted group lasso, which allows a step
per entry."""

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

FOREVER = 1e30  # group factor that keeps a zero group at zero; finite, so that 0 * FOREVER is 0


class Radial(Penalty):
    """Base of nonconvex penalties: a concave function h of each group norm or of each absolute entry.

    The value is strength * sum_g weight_g h(||W_g||), or strength * sum h(|W_i|) without groups, with h(0) = 0. W_g are
    the entries of group g, and weight_g is its factor."""

    convex = False
    takes = (None, Partition)

    def __init__(self, strength: float, groups: Partition | None):
        super().__init__(strength, None if groups is None else checked_partition(groups, type(self).__name__))

    @abstractmethod
    def height(self, size: Tensor) -> Tensor:
        """Nonconvex penalty: the concave function h at sizes (group norms or absolute entries), elementwise."""

    @abstractmethod
    def slope(self, size: Tensor) -> Tensor:
        """Nonconvex penalty: the derivative of the concave function h at group norms or absolute entries, elementwise.

        At zero it is the derivative from the right."""

    @abstractmethod
    def movement(self) -> Movement:
        """Nonconvex penalty: how far the prox moves a group norm or absolute entry towards zero, as a `Movement`."""

    def value(self, W: Tensor) -> Tensor:
        """Nonconvex penalty: the value, strength * sum of a concave function of group norms or absolute entries."""
        if self.groups is None:
            return self.strength * self.height(W.abs()).sum(dtype=torch.float64)
        return self.strength * (self.groups.weight * self.height(self.groups.norms(W))).sum()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Nonconvex penalty: the prox, in place, which moves each entry or group norm towards zero."""
        if self.groups is None:
            return move_entries_(W, self.strength, steps, self.movement())
        name = type(self).__name__
        refuse_entry_steps(steps, f"{name} over groups", "use Reweighting, which makes it a weighted group lasso")
        return move_groups_(W, self.groups, self.strength, steps, self.movement())

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Nonconvex penalty: norm of the smallest subgradient of loss plus penalty in each group or row.

        `grad` is the gradient of the loss at W."""
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
        """Nonconvex penalty: the smallest strength at which zero is a local optimum.

        It equals the critical strength of the lasso or group lasso with the same group factors."""
        if self.groups is None:
            size = grad_at_zero.abs().double().flatten()
        else:
            weight = self.groups.weight
            size = torch.where(weight > 0, self.groups.norms(grad_at_zero) / weight, 0.0)
        return torch.cat([size, size.new_zeros(1)]).max()

    @property
    def by_entry(self) -> bool:
        """Nonconvex penalty: whether the penalty is a sum over single entries, without groups."""
        return self.groups is None

    def survivors(self, W: Tensor) -> Tensor:
        """Nonconvex penalty: mask of the entries that lie in nonzero groups or in no group.

        Without groups, the mask selects the nonzero entries."""
        if self.groups is None:
            return W != 0
        return self.groups.expand(self.groups.alive(W), fill=True).expand_as(W)


class LogSum(Radial):
    """Nonconvex log-sum penalty: strength * sum_g weight_g epsilon log(1 + ||W_g|| / epsilon).

    W_g are the entries of group g, and weight_g is its factor. Without groups the sum runs over single entries. For
    large epsilon the penalty tends to the group lasso or lasso."""

    def __init__(self, strength: float, epsilon: float, groups: Partition | None = None):
        super().__init__(strength, groups)
        self.epsilon = checked_positive(epsilon, f"the epsilon of {type(self).__name__}")

    def height(self, size: Tensor) -> Tensor:
        """Nonconvex log-sum penalty: the function epsilon log(1 + t / epsilon) of a group norm or absolute entry t."""
        return self.epsilon * torch.log1p(size / self.epsilon)

    def slope(self, size: Tensor) -> Tensor:
        """Nonconvex log-sum penalty: the derivative epsilon / (epsilon + t) at a group norm or absolute entry t."""
        return self.epsilon / (self.epsilon + size)

    def movement(self) -> Movement:
        """Nonconvex log-sum penalty: how far the prox moves a group norm or absolute entry towards zero."""
        return log_sum(self.epsilon)


class GroupMCP(Radial):
    """Nonconvex minimax concave penalty (MCP): strength * sum_g weight_g h(||W_g||).

    The function h(t) is t - t^2 / (2 reach) for t up to `reach`, and reach / 2 beyond. W_g are the entries of group g,
    and weight_g is its factor. Norms above `reach` are not shrunk at all. Without groups the sum runs over single
    entries."""

    def __init__(self, strength: float, reach: float, groups: Partition | None = None):
        super().__init__(strength, groups)
        self.reach = checked_positive(reach, f"the reach of {type(self).__name__}")

    def height(self, size: Tensor) -> Tensor:
        """Nonconvex MCP penalty: t - t^2 / (2 reach) for a group norm or absolute entry t; constant beyond `reach`."""
        near = size.clamp(max=self.reach)
        return near * (1 - near / (2 * self.reach))

    def slope(self, size: Tensor) -> Tensor:
        """Nonconvex MCP penalty: the derivative 1 - t / reach at a group norm or entry t, zero beyond `reach`."""
        return (1 - size / self.reach).clamp(min=0)

    def movement(self) -> Movement:
        """Nonconvex MCP penalty: how far the prox (firm threshold) moves a norm or absolute entry towards zero."""
        return firm(self.reach)


class L0(Radial):
    """Nonconvex l0 penalty: strength * number of nonzero entries, or strength * sum of weight_g over nonzero groups.

    weight_g is the factor of group g. Zero is a local optimum at any strength above 0, so there is no critical
    strength."""

    def __init__(self, strength: float, groups: Partition | None = None):
        super().__init__(strength, groups)

    def height(self, size: Tensor) -> Tensor:
        """Nonconvex l0 penalty: 1 for a nonzero group norm or absolute entry, 0 for zero."""
        return (size > 0) + 0 * size  # adding 0 * size gives autograd a gradient (zero)

    def slope(self, size: Tensor) -> Tensor:
        """Nonconvex l0 penalty: the derivative of the penalty at a group norm or absolute entry, zero everywhere."""
        return torch.zeros_like(size)

    def movement(self) -> Movement:
        """Nonconvex l0 penalty: how far the prox (hard threshold) moves an absolute entry towards zero."""
        return hard()

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Nonconvex l0 penalty: the prox, in place: a hard threshold of entries or of whole groups."""
        if self.groups is None:
            return super().prox_(W, steps)
        return drop_groups_(W, self.groups, self.strength, steps)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Nonconvex l0 penalty: norm of the loss gradient in each group, or in each row if there are no groups.

        Penalised groups or entries that are zero do not count."""
        if self.groups is None:
            return row_norms(grad.masked_fill((W == 0) & (self.strength > 0), 0.0))
        held = ~self.groups.alive(W) & (self.strength * self.groups.weight > 0)
        return self.groups.norms(grad).masked_fill(held, 0.0)

    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Nonconvex l0 penalty: critical strength, always None, as zero is a local optimum at any strength."""
        return None


class Round(NamedTuple):
    """Nonconvex penalty by reweighting: a summary of one round, which is a training and an update of group factors.

    The new factor of a group is its initial factor * growth^number * a multiplier computed from its norm."""

    number: int  # index of the round of training, from 1
    alive: int  # number of nonzero groups
    groups: int  # number of all groups
    scale: float  # norm to which group norms are compared: epsilon, or the median norm of nonzero groups
    lightest: float  # the norm of each nonzero group gives a multiplier of its factor: the smallest multiplier
    heaviest: float  # the norm of each nonzero group gives a multiplier of its factor: the largest multiplier

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.alive} of {self.groups} groups alive, "
            f"weights {self.lightest:.3g} to {self.heaviest:.3g} times the first ones, scale {self.scale:.3g}"
        )


class Reweighting:
    """Nonconvex penalty by reweighting: repeated group lasso training, which gives large groups smaller factors.

    After each training (a round), `update` sets the factor weight_g of each group g from its initial factor base_g and
    its weights W_g:
    - With `epsilon`: weight_g <- base_g * epsilon / (epsilon + ||W_g||). If loss plus group lasso falls, so does loss
      plus LogSum(strength, epsilon).
    - Without epsilon: weight_g <- base_g * (median norm of nonzero groups) / ||W_g||. Zero groups stay zero.

    In both cases each round multiplies all factors by `growth`. With growth above 1, fewer and fewer groups stay
    nonzero. The strength on single entries (mix > 0) does not change."""

    def __init__(self, penalty: Blocks, epsilon: float | None = None, growth: float = 1.0):
        if not penalty.reweightable:
            raise UserError(f"reweighting takes a (sparse) group lasso, l2 or linf, got {type(penalty).__name__}")
        self.penalty, self.rounds = penalty, 0
        self.epsilon = None if epsilon is None else checked_positive(epsilon, "the epsilon of Reweighting")
        self.growth = checked_positive(growth, "the growth of Reweighting")
        self.base = penalty.groups.weight.clone()

    @torch.no_grad()
    def update(self, W: Tensor) -> Round:
        """Nonconvex penalty by reweighting: set the group factors for the next training.

        `W` holds the weights that the last training found."""
        groups = self.penalty.groups
        norms, alive = self.penalty.sizes(W), groups.alive(W)
        scale = self.epsilon if self.epsilon is not None else float(norms[alive].median()) if alive.any() else 0.0
        lighter = scale / (scale + norms) if self.epsilon is not None else torch.where(alive, scale / norms, FOREVER)
        self.rounds += 1
        groups.weight.copy_(self.base.to(norms.device) * self.growth**self.rounds * lighter.clamp(max=FOREVER))
        living = lighter[alive].tolist() or [1.0]
        return Round(self.rounds, int(alive.sum()), len(groups), scale, min(living), max(living))

    def state_dict(self) -> dict:
        """Nonconvex penalty by reweighting: number of trainings so far and initial group factors, for a checkpoint.

        The group lasso penalty itself saves the current factors."""
        return {"rounds": self.rounds, "base": self.base}

    def load_state_dict(self, state: dict) -> None:
        """Nonconvex penalty by reweighting: restore the number of trainings so far and the initial group factors."""
        self.rounds, self.base = state["rounds"], state["base"]
