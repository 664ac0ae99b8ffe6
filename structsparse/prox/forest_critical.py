"""Nested groups: where each of them dies under the exact prox of their sum, and the prox at what follows from that.

Of two groups that share an atom one holds the other, so each has a parent, the smallest group around it. The prox
shrinks inner groups first: what reaches group g at strength s (with a step of 1) is

    r_g(s)^2 = squares of its atoms in no inner group + sum over inner groups c of max(0, r_c(s) - s * weight_c)^2,

which falls with s, and the group dies by itself where that meets (s * weight_g)^2. It dies as well where one around it
does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.groups.cover import Cover
from structsparse.kernels.memory import walkable
from structsparse.prox.overlaps import ROUNDS, TOLERANCE, Choose, _minimised, _minimised_by_torch, _tell, _through
from structsparse.prox.steps import Steps, refuse_entry_steps

HALVINGS = 64  # of the interval in which a group dies


class Nesting(NamedTuple):
    """Which group is in which; of equal ones the later is around the earlier."""

    around: Tensor  # int64 [levels, groups] the group so many steps around each, itself the first, -1: none
    inner: Tensor  # int64 [atoms] the smallest group of each, -1: none

    @classmethod
    def of(cls, cover: Cover) -> Nesting:
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
        """The groups that have one around them, by how many, those with the most first."""
        depth = (self.around >= 0).sum(0) - 1
        return [(depth == level).nonzero().flatten() for level in range(len(self.around) - 1, 0, -1)]


def dying(norms: Tensor, cover: Cover) -> Tensor:
    """The strengths at which groups die, for these norms of atoms and a step of 1: float64 [groups]. All roots are
    halved towards at once."""
    nesting, squares = Nesting.of(cover), norms.double().square()
    tiers, around, held = nesting.tiers(), nesting.around, nesting.inner >= 0
    own = torch.zeros_like(cover.weight).index_add(0, nesting.inner[held], squares[held])
    low = torch.zeros_like(own)
    high = cover.gather(squares).sqrt() / cover.weight
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        at = torch.where(around >= 0, middle[around.clamp(min=0)], 0.0)
        dead = _reaching(own, cover.weight, around, tiers, at) <= (middle * cover.weight).square()
        low, high = torch.where(dead, low, middle), torch.where(dead, middle, high)
    for tier in reversed(tiers):
        high[tier] = torch.minimum(high[tier], high[around[1, tier]])
    return high


def _reaching(own: Tensor, weight: Tensor, around: Tensor, tiers: list[Tensor], at: Tensor) -> Tensor:
    """r_g(s_g)^2 of each group g at a strength of its own: [groups]

    Row k of at [levels, groups] is the strength of the group k steps around each: what passes from c to its parent is
    needed at the strengths of all groups around c."""
    squares = own.repeat(len(at), 1)
    for tier in tiers:
        left = (squares[1:, tier].sqrt() - at[1:, tier] * weight[tier]).clamp(min=0)
        squares[:-1].index_add_(1, around[1, tier], left.square())
    return squares[0]


@torch.no_grad()
def cut_nested_(W: Tensor, cover: Cover, steps: Steps, choose: Choose, tolerance: float = TOLERANCE) -> Tensor:
    """The exact prox at the strength that choose(0, strengths at which groups would die) says, and with it which of
    them are to die whatever rounding makes of that: bool [groups]"""
    if (cover.weight == 0).any():
        name = cover.names[int((cover.weight == 0).nonzero()[0])]
        raise UserError(f"group {name} of {cover.parameter} has no weight: nested groups under a budget need one each")
    tolerance = max(tolerance, 0.1 * torch.finfo(W.dtype).eps)
    refuse_entry_steps(steps, "nested groups under a budget", "take sgd or online_perceptron, or overlap_sequential")

    def solve(x, steps, over_atoms):
        strength, dead = choose(0, dying(torch.where(x == 0, 0.0, x / steps), cover))
        if strength > 0:
            route = _minimised if walkable(W) else _minimised_by_torch
            x, distance = route(x, steps, cover, strength * cover.weight, over_atoms, tolerance, None, ROUNDS)
            if distance > tolerance:
                _tell(cover, distance, tolerance)
            x = torch.where(cover.scatter(dead) > 0, 0.0, x)
        return x

    return _through(solve, W, cover, 0.0, steps)
