"""Prox of nested groups: the critical strength of each group, and the prox with a limit on the nonzero groups.

The critical strength of a group is the smallest penalty strength at which the prox makes the group zero. The prox
shrinks inner groups first. At strength s and a step of 1, the norm of group g just before its shrinkage is r_g(s), with

    r_g(s)^2 = sum of squares of the entries of g in no inner group + sum over c of max(0, r_c(s) - s * weight_c)^2.

c runs over the groups directly inside g, and weight_c is the factor of group c. Group g dies (becomes zero) at the s
where r_g(s) = s * weight_g, or earlier if a group around g dies.
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

HALVINGS = 64  # number of bisection steps in the search for the critical strengths


class Nesting(NamedTuple):
    """Nesting of groups, for their critical strengths: tables of which group lies inside which other group.

    Of two equal groups, the later group counts as the outer group.
    """

    # int64 [levels, groups]: column g lists group g itself, then the groups around it from inner to outer, then -1
    around: Tensor
    inner: Tensor  # int64 [atoms]: smallest group that contains the atom (set that no group divides); -1: none

    @classmethod
    def of(cls, cover: Cover) -> Nesting:
        """Compute the tables `around` and `inner` for the nested groups of a cover, for their critical strengths."""
        count, members, owner = len(cover), cover.members.long(), cover.owner.long()
        order = cover.offsets.diff().argsort(stable=True)  # inner groups first
        rank = torch.empty_like(order).index_copy(0, order, torch.arange(count, device=order.device))
        chains = (members * count + rank[owner]).sort().values  # the groups of each atom, from inner to outer
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
        """Critical strengths of nested groups: lists of the groups at each nesting depth, deepest first.

        The outermost groups (depth 0) are left out.
        """
        depth = (self.around >= 0).sum(0) - 1
        return [(depth == level).nonzero().flatten() for level in range(len(self.around) - 1, 0, -1)]


def dying(norms: Tensor, cover: Cover) -> Tensor:
    """Critical strengths: the strength at which the prox makes each nested group zero (float64 tensor [groups]).

    `norms` holds the norm of each atom (set of entries that no group divides), and the step is 1. All strengths are
    found together, by bisection.
    """
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
    """Critical strengths of nested groups: squared norm of each group just before the prox shrinks it.

    The bisection tries a different strength for each group. For the squared norm of a group, the groups inside it are
    shrunk at the strength of this group. at[k, g] is the trial strength of group around[k, g], see `Nesting`. `direct`
    holds, for each group, the sum of squares of the entries that lie in no inner group.
    """
    squares = direct.repeat(len(at), 1)
    for tier in tiers:
        left = (squares[1:, tier].sqrt() - at[1:, tier] * weight[tier]).clamp(min=0)
        squares[:-1].index_add_(1, around[1, tier], left.square())
    return squares[0]


@torch.no_grad()
def cut_nested_(W: Tensor, cover: Cover, steps: Steps, choose: Choose, tolerance: float = TOLERANCE) -> Tensor:
    """Prox of nested groups at a strength that the callback `choose` picks from the critical strengths, in place.

    The critical strength of a group is the strength at which the prox makes it zero. From all critical strengths,
    choose(0, critical strengths) returns the strength of the prox, and a mask of the groups that become exactly zero.
    The 0 says that all groups share one strength (they are family 0).
    """
    if (cover.weight == 0).any():
        name = cover.names[int((cover.weight == 0).nonzero()[0])]
        raise UserError(f"group {name} of {cover.parameter} has no weight: nested groups under a budget need one each")
    tolerance = max(tolerance, 0.1 * torch.finfo(W.dtype).eps)
    refuse_entry_steps(steps, "nested groups under a budget", "take sgd or online_perceptron, or overlap_sequential")

    def solve(x, steps, over_atoms):
        """Prox of nested groups at the strength chosen from the critical strengths, given the norms of atoms.

        `x` holds the norms of the atoms, which are sets of entries that no group divides.
        """
        strength, dead = choose(0, dying(torch.where(x == 0, 0.0, x / steps), cover))
        if strength > 0:
            minimise = minimise_by_kernels if walkable(W) else minimise_by_torch
            x, distance = minimise(x, steps, cover, strength * cover.weight, over_atoms, tolerance, None, ROUNDS)
            if distance > tolerance:
                warn_inexact(cover, distance, tolerance)
            x = torch.where(cover.scatter(dead) > 0, 0.0, x)
        return x

    return on_norms_(solve, W, cover, 0.0, steps)
