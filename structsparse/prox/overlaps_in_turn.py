"""Overlapping groups, one family of disjoint groups after the other: not the prox of their sum, but one pass each."""

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

NEWTON_ROUNDS = 12  # without asking the device whether it has converged

Choose = Callable[[int, Tensor], tuple[float, Tensor]]  # see cut_in_turn_


class Turn(NamedTuple):
    """A family of disjoint groups, as slices of a cover whose groups are sorted by family."""

    groups: slice
    members: slice
    copies: slice  # of entries


def turns(cover: Cover, colours: Tensor) -> list[Turn]:
    """The families of disjoint groups of a cover whose groups are sorted by colour."""
    bounds = [0, *torch.bincount(colours).cumsum(0).tolist()] if len(colours) else [0]
    columns = [[int(of[b]) for b in bounds] for of in (torch.arange(len(cover) + 1), cover.offsets, cover.starts)]
    spans = [[slice(*span) for span in itertools.pairwise(column)] for column in columns]
    return [Turn(*of) for of in zip(*spans, strict=True)]


@torch.no_grad()
def shrink_in_turn_(
    W: Tensor, cover: Cover, families: list[Turn], strength: Steps, entry_strength: Steps, steps: Steps
) -> Tensor:
    """Soft threshold, then the group prox of each family of disjoint groups in turn; where families overlap, this is
    not the prox of their sum."""

    def solve(x, steps, over_atoms):
        shrink = _in_turn if walkable(W) else _in_turn_by_torch
        return shrink(x, steps, cover, cover.weight * strength, over_atoms, families)

    return on_norms_(solve, W, cover, entry_strength, steps)


@torch.no_grad()
def cut_in_turn_(W: Tensor, cover: Cover, families: list[Turn], steps: Steps, choose: Choose) -> Tensor:
    """`shrink_in_turn_` with a strength per family, chosen from the strengths at which its groups would die.

    choose(k, dying) gets those strengths of family k, [groups of it]. It returns a strength for the family, and which
    groups must die whatever rounding makes of it: bool [groups of it].
    """

    def solve(x, steps, over_atoms):
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
    """The prox of each group in turn, on the CPU."""
    bounds, members, offsets, _ = set_arrays(cover, over_atoms)
    even = is_scalar(steps)
    steps = torch.full_like(x, float(steps)) if even else steps
    order = torch.arange(len(cover)).numpy()
    shrink_in_turn(x.numpy(), steps.numpy(), even, bounds, members, offsets, order, reach.numpy())
    return x


def _in_turn_by_torch(x, steps, cover, reach, over_atoms, families) -> Tensor:
    """The prox of each family in turn, on any device."""
    places, owner = copies_of(cover, over_atoms)
    for turn in families:
        copies = turn.members if over_atoms else turn.copies
        x = _shrink_family(x, steps, places[copies], owner[copies] - turn.groups.start, reach[turn.groups])
    return x


def _shrink_family(x: Tensor, steps: Steps, at: Tensor, group: Tensor, reach: Tensor) -> Tensor:
    """The group prox of disjoint groups; their copies [copies] lie at the places `at` of x, in these groups."""
    w, cut = x[at], thresholds(reach[group], steps if is_scalar(steps) else steps[at], x)
    theta = _norms_after(w, cut, group, len(reach))[group]
    return x.index_copy(0, at, torch.where(cut == 0, w, w * (theta / (theta + cut)).nan_to_num(0.0)))


def _norms_after(w: Tensor, cut: Tensor, group: Tensor, groups: int) -> Tensor:
    """Norm of each group after its prox, by Newton from the left; `kernels.prox.blocks` explains why it converges."""

    def total(values):
        return values.new_zeros(groups).index_add(0, group, values)

    theta = total((w - torch.clamp(w, -cut, cut)).square()).sqrt()
    for _ in range(NEWTON_ROUNDS):
        inverse = (theta[group] + cut).clamp(min=torch.finfo(w.dtype).tiny).reciprocal()
        squares = (w * inverse).square()
        slope, squares = total(squares * inverse), total(squares)
        excess = squares.sqrt() - 1
        theta = theta + torch.where(excess > 1e-15, excess * (squares / slope), 0.0)
    return theta
