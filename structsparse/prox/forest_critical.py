"""Nested groups of a cover: the strength at which each dies under the exact prox, and the prox under a budget.

Of two groups that share an atom one holds the other, so each has a parent, the smallest group around it. The prox
shrinks inner groups first. The norm that reaches group g at strength s (with a step of 1) is

    r_g(s)^2 = squares of its atoms in no inner group + sum over inner groups c of max(0, r_c(s) - s * weight_c)^2,

It falls with s, and the group dies where it meets (s * weight_g)^2, or where a group around it dies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups.cover import Cover
from structsparse.kernels.memory import walkable
from structsparse.prox.overlaps import (
    ROUNDS,
    TOLERANCE,
    minimise_by_kernels,
    minimise_by_torch,
    on_norms_,
    warn_inexact,
)
from structsparse.prox.overlaps_in_turn import Choose
from structsparse.prox.steps import Steps, refuse_entry_steps

HALVINGS = 64  # of the interval in which a group dies


class Nesting(NamedTuple):
    """The nesting of groups: which group is inside which; of equal groups, the later one holds the earlier."""

    around: Tensor  # int64 [levels, groups], the group so many steps around each, the first itself; -1: none
    inner: Tensor  # int64 [atoms], the smallest group of each; -1: none

    @classmethod
    def of(cls, cover: Cover) -> Nesting:
        """The nesting of a cover whose groups are nested."""
        count, members, owner = len(cover), cover.members.long(), cover.owner.long()
        order = cover.offsets.diff().argsort(stable=True)  # inner groups first
        rank = torch.empty_like(order).index_copy(0, order, torch.arange(count, device=order.device))
        chains = (members * count + rank[owner]).sort().values  # atom by atom, its groups from inner to outer
        atom, group = chains // count, order[chains % count]
        first = torch.ones_like(atom, dtype=torch.bool)
        first[1:] = atom[1:] != atom[:-1]
        parent = torch.full_like(order, -1)
        parent[group[:-1][~first[1:]]] = group[1:][~first[1:]]
        inner = torch.full((len(cover.atoms),), -1, device=order.device)
        inner[atom[first]] = group[first]
        around = [torch.arange(count, device=order.device)]
        while bool((parent[around[-1]] >= 0).logical_and(around[-1] >= 0).any()):
            around.append(torch.where(around[-1] >= 0, parent[around[-1]], -1))
        return cls(torch.stack(around), inner)

    def tiers(self) -> list[Tensor]:
        """The groups inside others, by the number of groups around them, the most deeply nested first."""
        depth = (self.around >= 0).sum(0) - 1
        return [(depth == level).nonzero().flatten() for level in range(len(self.around) - 1, 0, -1)]


def dying(norms: Tensor, cover: Cover) -> Tensor:
    """The strengths at which nested groups die, for these norms of atoms and a step of 1: float64 [groups]. All roots
    are found at once, by bisection."""
    nesting, squares = Nesting.of(cover), norms.double().square()
    tiers, around, held = nesting.tiers(), nesting.around, nesting.inner >= 0
    direct = torch.zeros_like(cover.weight).index_add(0, nesting.inner[held], squares[held])
    low = torch.zeros_like(direct)
    high = cover.gather(squares).sqrt() / cover.weight
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        at = torch.where(around >= 0, middle[around.clamp(min=0)], 0.0)
        dead = _reaching(direct, cover.weight, around, tiers, at) <= (middle * cover.weight).square()
        low, high = torch.where(dead, low, middle), torch.where(dead, middle, high)
    for tier in reversed(tiers):
        high[tier] = torch.minimum(high[tier], high[around[1, tier]])
    return high


def _reaching(direct: Tensor, weight: Tensor, around: Tensor, tiers: list[Tensor], at: Tensor) -> Tensor:
    """The squared norm r_g(s_g)^2 that reaches each group g at its own strength: [groups]

    `direct` [groups] holds the squares of atoms in no inner group. Row k of at [levels, groups] is the strength of the
    group k steps around each, as the norm passed from c to its parent is needed at the strengths of all groups around
    c."""
    squares = direct.repeat(len(at), 1)
    for tier in tiers:
        left = (squares[1:, tier].sqrt() - at[1:, tier] * weight[tier]).clamp(min=0)
        squares[:-1].index_add_(1, around[1, tier], left.square())
    return squares[0]


@torch.no_grad()
def cut_nested_(W: Tensor, cover: Cover, steps: Steps, choose: Choose, tolerance: float = TOLERANCE) -> Tensor:
    """The exact prox of nested groups at a chosen strength: choose(0, strengths at which groups would die) returns it,
    and which groups must die whatever rounding makes of it: bool [groups]."""
    if (cover.weight == 0).any():
        name = cover.names[int((cover.weight == 0).nonzero()[0])]
        raise UserError(f"group {name} of {cover.parameter} has no weight: nested groups under a budget need one each")
    tolerance = max(tolerance, 0.1 * torch.finfo(W.dtype).eps)
    refuse_entry_steps(steps, "nested groups under a budget", "take sgd or online_perceptron, or overlap_sequential")

    def solve(x, steps, over_atoms):
        strength, dead = choose(0, dying(torch.where(x == 0, 0.0, x / steps), cover))
        if strength > 0:
            minimise = minimise_by_kernels if walkable(W) else minimise_by_torch
            x, distance = minimise(x, steps, cover, strength * cover.weight, over_atoms, tolerance, None, ROUNDS)
            if distance > tolerance:
                warn_inexact(cover, distance, tolerance)
            x = torch.where(cover.scatter(dead) > 0, 0.0, x)
        return x

    return on_norms_(solve, W, cover, 0.0, steps)
