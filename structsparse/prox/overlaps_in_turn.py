"""Prox of overlapping groups in turn: one family (a set of disjoint groups) after the other, in one pass.

The result only approximates the prox of the sum of all norms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.memory import walkable
from structsparse.kernels.prox.overlaps_in_turn import shrink_in_turn
from structsparse.prox.overlaps import copies_of, on_norms_, set_arrays
from structsparse.prox.steps import Steps, is_scalar, thresholds

NEWTON_ROUNDS = 12  # number of Newton iterations; fixed, as a convergence test would wait for the GPU

# function (index of a set of disjoint groups, critical strengths of its groups): the strength, and a mask of the
# groups to set to zero
Choose = Callable[[int, Tensor], tuple[float, Tensor]]


class Turn(NamedTuple):
    """Overlapping groups in turn: a family (set of disjoint groups), as slices into a cover sorted by family."""

    groups: slice  # positions of these disjoint groups in the list of groups
    members: slice  # positions in `Cover.members`, the list of the atoms (undivided sets of entries) of all groups
    copies: slice  # positions of their entries in the list of the entries of all groups


def turns(cover: Cover, colours: Tensor) -> list[Turn]:
    """Overlapping groups in turn: the families of disjoint groups of a cover whose groups are sorted by family.

    `colours` [groups] is the index of the family of each group.
    """
    bounds = [0, *torch.bincount(colours).cumsum(0).tolist()] if len(colours) else [0]
    columns = [[int(of[b]) for b in bounds] for of in (torch.arange(len(cover) + 1), cover.offsets, cover.starts)]
    spans = [[slice(*span) for span in itertools.pairwise(column)] for column in columns]
    return [Turn(*of) for of in zip(*spans, strict=True)]


@torch.no_grad()
def shrink_in_turn_(
    W: Tensor, cover: Cover, families: list[Turn], strength: Steps, entry_strength: Steps, steps: Steps
) -> Tensor:
    """Prox of overlapping groups in turn, in place: soft threshold, then one group lasso prox per family.

    A family is a set of disjoint groups. If groups of different families overlap, this is not the prox of the sum of
    the norms.
    """

    def solve(x, steps, over_atoms):
        """Prox of the families (sets of disjoint groups) of overlapping groups in turn, at x.

        `x` holds entries, or the norms of atoms (sets of entries that no group divides).
        """
        shrink = _in_turn if walkable(W) else _in_turn_by_torch
        return shrink(x, steps, cover, cover.weight * strength, over_atoms, families)

    return on_norms_(solve, W, cover, entry_strength, steps)


@torch.no_grad()
def cut_in_turn_(W: Tensor, cover: Cover, families: list[Turn], steps: Steps, choose: Choose) -> Tensor:
    """Prox of overlapping groups in turn, in place: each family with a strength that the callback `choose` picks.

    A family is a set of disjoint groups. choose(k, critical strengths) gets the strengths at which the groups of family
    k would become zero. It returns the strength for the family and a mask of its groups. The masked groups become
    exactly zero.
    """

    def solve(x, steps, over_atoms):
        """Prox of overlapping groups in turn, at x: each family (set of disjoint groups) with its chosen strength.

        `x` holds entries, or the norms of atoms (sets of entries that no group divides).
        """
        places, owner = copies_of(cover, over_atoms)
        for k, turn in enumerate(families):
            copies = turn.members if over_atoms else turn.copies
            at, group, weight = places[copies], owner[copies] - turn.groups.start, cover.weight[turn.groups]
            scaled = torch.where(x[at] == 0, 0.0, x[at] / (steps if is_scalar(steps) else steps[at]))
            sizes = torch.zeros_like(weight).index_add(0, group, scaled.square()).sqrt()
            strength, dead = choose(k, torch.where(weight > 0, sizes / weight, 0.0))
            if strength > 0:
                x = _shrink_family(x, steps, at, group, strength * weight)
                x = x.index_copy(0, at, torch.where(dead[group], 0.0, x[at]))
        return x

    return on_norms_(solve, W, cover, 0.0, steps)


def _in_turn(x, steps, cover, reach, over_atoms, families) -> Tensor:
    """Prox of overlapping groups in turn in CPU memory, one group after the other.

    The numba kernel computes the prox. `reach` holds the threshold of the norm of each group.
    """
    bounds, members, offsets, _ = set_arrays(cover, over_atoms)
    even = is_scalar(steps)
    steps = torch.full_like(x, float(steps)) if even else steps
    order = torch.arange(len(cover)).numpy()
    shrink_in_turn(x.numpy(), steps.numpy(), even, bounds, members, offsets, order, reach.numpy())
    return x


def _in_turn_by_torch(x, steps, cover, reach, over_atoms, families) -> Tensor:
    """Prox of overlapping groups in turn in torch, one family of disjoint groups after the other.

    `reach` holds the threshold of the norm of each group.
    """
    places, owner = copies_of(cover, over_atoms)
    for turn in families:
        copies = turn.members if over_atoms else turn.copies
        x = _shrink_family(x, steps, places[copies], owner[copies] - turn.groups.start, reach[turn.groups])
    return x


def _shrink_family(x: Tensor, steps: Steps, at: Tensor, group: Tensor, reach: Tensor) -> Tensor:
    """Prox of overlapping groups in turn: the group lasso prox of one family of disjoint groups.

    x[at[i]] belongs to group[i]. `reach` holds the threshold of the norm of each group.
    """
    w, cut = x[at], thresholds(reach[group], steps if is_scalar(steps) else steps[at], x)
    theta = _norms_after(w, cut, group, len(reach))[group]
    return x.index_copy(0, at, torch.where(cut == 0, w, w * (theta / (theta + cut)).nan_to_num(0.0)))


def _norms_after(w: Tensor, cut: Tensor, group: Tensor, groups: int) -> Tensor:
    """Prox of overlapping groups in turn: norms of disjoint groups after their prox, by Newton's method.

    `w` and `cut` hold the values and thresholds of the entries, and `group` holds their groups. `kernels.prox.blocks`
    explains why Newton's method converges.
    """

    def total(values):
        """Prox of overlapping groups in turn: sum of values (one per entry) over each of the disjoint groups."""
        return values.new_zeros(groups).index_add(0, group, values)

    theta = total((w - torch.clamp(w, -cut, cut)).square()).sqrt()
    for _ in range(NEWTON_ROUNDS):
        inverse = (theta[group] + cut).clamp(min=torch.finfo(w.dtype).tiny).reciprocal()
        squares = (w * inverse).square()
        slope, squares = total(squares * inverse), total(squares)
        excess = squares.sqrt() - 1
        theta = theta + torch.where(excess > 1e-15, excess * (squares / slope), 0.0)
    return theta
