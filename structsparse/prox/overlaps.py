"""Overlapping groups: the exact prox of their sum by its dual, and the groups one family after the other.

With one step for all entries of an atom the prox multiplies every atom by a number, so that all that matters is the
norm of each: one pass over memory for the norms, a small problem over atoms, one pass to multiply. With a step per
entry the same problem is solved over entries.

Descent over one dual block after the other is done within a few rounds where groups hardly overlap or are nested, and
holds a float64 for each member of each group. Up to a thousand groups what is harder goes to `prox.interior`.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import overlaps as kernels
from structsparse.prox.entries import soft_threshold_
from structsparse.prox.overlaps_interior import Found, fits, shrink_by_pulls
from structsparse.prox.steps import Steps, changed, is_scalar, number, thresholds

TOLERANCE = 1e-13  # of the norm of W: as near as float64 comes
ROUNDS = 4_000  # over all groups, should the tolerance never be met
PATIENCE, WORK = 60, 1 << 16  # rounds of descent, or members visited, before few groups go to the interior point method
FEW = 1000  # groups
MANY = 1 << 16  # copies of entries: with few groups and a step for each entry they are never made
CHECK = 50  # rounds of ascent between two looks at the gap, each of which waits for the device
NEWTON_ROUNDS = 12  # without asking the device whether it has converged
TOLD = weakref.WeakSet()  # covers whose prox has once been said not to reach its tolerance

Choose = Callable[[int, Tensor], tuple[float, Tensor]]  # see cut_in_turn_


class Turn(NamedTuple):
    """A family of disjoint groups that follow each other in a cover."""

    groups: slice
    members: slice
    copies: slice  # of entries


def turns(cover: Cover, colours: Tensor) -> list[Turn]:
    """The families of a cover whose groups are sorted by colour."""
    bounds = [0, *torch.bincount(colours).cumsum(0).tolist()] if len(colours) else [0]
    columns = [[int(of[b]) for b in bounds] for of in (torch.arange(len(cover) + 1), cover.offsets, cover.starts)]
    spans = [[slice(*span) for span in itertools.pairwise(column)] for column in columns]
    return [Turn(*of) for of in zip(*spans, strict=True)]


@torch.no_grad()
def overlapping_shrink_(
    W: Tensor,
    cover: Cover,
    strength: Steps,
    entry_strength: Steps,
    steps: Steps,
    tolerance: float = TOLERANCE,
    dual: Tensor | None = None,
    weight: Tensor | None = None,
    tell: bool = True,
    rounds: int = ROUNDS,
) -> Tensor:
    """Prox of strength * sum_g weight_g ||V_g|| + entry_strength * ||V||_1 over the entries of the groups.

    It is the prox of the group terms after that of the entries: the former multiplies each entry by a number of at
    least 0. V is within tolerance * ||W|| of the minimum (norms in the metric 1 / steps), as its duality gap says.
    Where rounds run out before that, a warning says so, once for each cover, if it is to `tell`. `dual`, if
    given, is where the method starts from and what it leaves: see `new_dual`. `weight`, if given, replaces that of the
    cover; `rounds` over the groups are made at most.
    """
    reach = strength * (cover.weight if weight is None else weight)
    tolerance = max(tolerance, 0.1 * torch.finfo(W.dtype).eps)

    def solve(x, steps, over_atoms):
        route = _minimised if walkable(W) else _minimised_by_torch
        v, distance = route(x, steps, cover, reach, over_atoms, tolerance, dual, rounds)
        if tell and distance > tolerance:
            _tell(cover, distance, tolerance)
        return v

    return _through(solve, W, cover, entry_strength, steps)


@torch.no_grad()
def shrink_in_turn_(
    W: Tensor, cover: Cover, families: list[Turn], strength: Steps, entry_strength: Steps, steps: Steps
) -> Tensor:
    """Soft threshold, then the group prox of each family by itself.

    Where families overlap this is not the prox of their sum.
    """

    def solve(x, steps, over_atoms):
        route = _in_turn if walkable(W) else _in_turn_by_torch
        return route(x, steps, cover, cover.weight * strength, over_atoms, families)

    return _through(solve, W, cover, entry_strength, steps)


@torch.no_grad()
def cut_in_turn_(W: Tensor, cover: Cover, families: list[Turn], steps: Steps, choose: Choose) -> Tensor:
    """As `shrink_in_turn_`, with a strength for each family that follows from where its groups would die.

    choose(k, dying) is told at which strengths those of family k would, [groups of it], and says a strength for it,
    and which of them are to die whatever rounding makes of that: bool [groups of it]
    """

    def solve(x, steps, over_atoms):
        places, owner = _pairs(cover, over_atoms)
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

    return _through(solve, W, cover, 0.0, steps)


def one_step_per_atom(cover: Cover, steps: Steps) -> bool:
    """Whether all entries of an atom have the same step, as far as the shape of the steps tells."""
    if is_scalar(steps):
        return True
    shape = [1] * (len(cover.shape) - steps.dim()) + list(steps.shape)
    return cover.atoms.aligned and all(s == 1 or s == a for s, a in zip(shape, cover.atoms.ids.shape, strict=True))


def _through(solve, W: Tensor, cover: Cover, entry_strength: Steps, steps: Steps) -> Tensor:
    """W <- soft threshold, then what solve(x, steps, over_atoms) makes of the norms of atoms or of all entries."""
    cover.atoms.check(W)
    if is_scalar(steps) and cover.atoms.in_blocks(W):
        return _scale_blocks_(solve, W, cover, entry_strength, steps)
    soft_threshold_(W, entry_strength, _covered_steps(W, cover, steps))
    if not one_step_per_atom(cover, steps):
        return _replace_entries_(solve, W, cover, steps)
    if not is_scalar(steps):
        steps = steps.double().expand(cover.atoms.ids.shape).flatten()
    norms = cover.atoms.norms(W)
    share = 1 - _factors(norms, solve(norms.clone(), steps, True))
    return W.addcmul_(W, cover.expand(share, fill=0.0).to(W.dtype), value=-1)  # W - W: no negative zeros


def _scale_blocks_(solve, W, cover, entry_strength, steps) -> Tensor:
    """The two passes over memory, each with the soft threshold within."""
    blocks = cover.atoms.offsets.numpy(), cover.shape[1:].numel()
    cut = number(thresholds(entry_strength, steps, W), W)
    squares = torch.empty(len(cover.atoms), dtype=torch.float64)
    kernels.atom_squares(flat_array(W), *blocks, cut, squares.numpy())
    norms = squares.sqrt()
    factors = torch.where(cover.multiplicity > 0, _factors(norms, solve(norms.clone(), steps, True)), -1.0)
    kernels.scale_atoms(flat_array(W), *blocks, cut, factors.numpy())
    return changed(W)


def _factors(before: Tensor, after: Tensor) -> Tensor:
    return torch.where(before == 0, 1.0, after / before)


def _covered_steps(W, cover, steps) -> Steps:
    if not cover.free:
        return steps
    wide = torch.broadcast_to(cover.covered(), W.shape)
    return torch.where(wide, torch.as_tensor(steps, dtype=W.dtype, device=W.device), 0.0)


def _replace_entries_(solve, W, cover, steps) -> Tensor:
    flat = W.flatten().double()
    steps = steps.double().expand(W.shape).flatten()
    order = cover.entries()[0]
    if order is None:
        return W.copy_(solve(flat.clone(), steps.clone(), False).view(W.shape) + 0.0)  # no negative zeros
    flat = flat.index_copy(0, order, solve(flat[order], steps[order], False))
    return W.copy_(flat.view(W.shape) + 0.0)


def _sets(cover: Cover, over_atoms: bool) -> tuple:
    """bounds, members, offsets, starts: see kernels.overlaps."""
    members, offsets = cover.members.numpy(), cover.offsets.numpy()
    if over_atoms:
        return torch.arange(len(cover.atoms) + 1).numpy(), members, offsets, offsets
    return cover.entries()[1].numpy(), members, offsets, cover.starts.numpy()


def new_dual(cover: Cover, steps: Steps, device: torch.device) -> Tensor:
    """Where a first prox starts from: zero for each member (one step per atom), for each copy of an entry, or where
    there are few groups of many entries for each group."""
    if one_step_per_atom(cover, steps):
        length = len(cover.members)
    else:
        length = len(cover) if _without_copies(cover) else cover.copies
    return torch.zeros(length, dtype=torch.float64, device=device)


def _without_copies(cover: Cover) -> bool:
    return len(cover) <= FEW and cover.copies > MANY


def _minimised(x, steps, cover, reach, over_atoms, tolerance, dual, rounds) -> tuple[Tensor, float]:
    if is_scalar(steps) and float(steps) == 0:
        return x, 0.0
    even = is_scalar(steps)
    steps = torch.full_like(x, float(steps)) if even else steps
    bounds, members, offsets, starts = _sets(cover, over_atoms)
    best, distance = x, torch.inf
    if over_atoms or not _without_copies(cover):
        start = torch.zeros(int(starts[-1]), dtype=torch.float64) if dual is None else dual
        if even and cover.nested:
            start.zero_()  # from where one round is exact; from elsewhere it may take many
        sets = bounds, members, offsets, starts, cover.size.argsort(stable=True).numpy(), reach.numpy()
        best, length, rounds = x.clone(), steps.clone(), min(rounds, _rounds(cover, int(starts[-1])))
        _, distance = kernels.descend(best.numpy(), length.numpy(), even, *sets, start.numpy(), tolerance, rounds)
        dual = None
    if distance > tolerance and len(cover) <= FEW:
        found = _by_pulls(x, steps, torch.from_numpy(bounds), cover, reach, tolerance, True, dual)
        if found.distance < distance:
            return found.v, found.distance
    return best, distance


def _rounds(cover: Cover, copies: int) -> int:
    return min(ROUNDS, max(PATIENCE, WORK // max(1, copies))) if len(cover) <= FEW else ROUNDS


def _by_pulls(x, steps, bounds, cover, reach, tolerance, walk, etas) -> Found:
    found = shrink_by_pulls(x, steps, bounds, cover, reach, tolerance, walk, etas)
    if etas is not None:
        etas.copy_(found.etas)
    return found


def _tell(cover: Cover, distance: float, tolerance: float) -> None:
    if cover not in TOLD:
        TOLD.add(cover)
        warnings.warn(
            f"the prox of {len(cover)} overlapping groups of {cover.parameter} is known to {distance:.1e} of the norm "
            f"of the weights only, asked for was {tolerance:.1e}: expect that accuracy, take longer groups apart, or "
            "use ConsensusGroupLasso, which needs no prox of the sum",
            RuntimeWarning,
            stacklevel=2,
        )


def _in_turn(x, steps, cover, reach, over_atoms, families) -> Tensor:
    bounds, members, offsets, _ = _sets(cover, over_atoms)
    even = is_scalar(steps)
    steps = torch.full_like(x, float(steps)) if even else steps
    order = torch.arange(len(cover)).numpy()
    kernels.shrink_in_turn(x.numpy(), steps.numpy(), even, bounds, members, offsets, order, reach.numpy())
    return x


def _pairs(cover: Cover, over_atoms: bool) -> tuple[Tensor, Tensor]:
    return (cover.members.long(), cover.owner.long()) if over_atoms else cover.pairs(in_order=False)


def _in_turn_by_torch(x, steps, cover, reach, over_atoms, families) -> Tensor:
    places, owner = _pairs(cover, over_atoms)
    for turn in families:
        copies = turn.members if over_atoms else turn.copies
        x = _shrink_family(x, steps, places[copies], owner[copies] - turn.groups.start, reach[turn.groups])
    return x


def _shrink_family(x: Tensor, steps: Steps, at: Tensor, group: Tensor, reach: Tensor) -> Tensor:
    """The group prox of disjoint groups [groups], whose places in x are `at`."""
    w, cut = x[at], thresholds(reach[group], steps if is_scalar(steps) else steps[at], x)
    theta = _norms_after(w, cut, group, len(reach))[group]
    return x.index_copy(0, at, torch.where(cut == 0, w, w * (theta / (theta + cut)).nan_to_num(0.0)))


def _norms_after(w: Tensor, cut: Tensor, group: Tensor, groups: int) -> Tensor:
    """Norm of each group after its prox, by Newton from the left: `kernels.prox` says why it climbs."""

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


def _minimised_by_torch(x, steps, cover, reach, over_atoms, tolerance, dual, rounds) -> tuple[Tensor, float]:
    steps = torch.zeros_like(x) + steps
    copied = over_atoms or not _without_copies(cover)
    if x.is_meta or len(cover) > FEW or not fits(cover):
        return _ascended(x, steps, cover, reach, over_atoms, tolerance, dual if copied else None, rounds)
    bounds = torch.arange(len(x) + 1, device=x.device) if over_atoms else cover.entries()[1]
    found = _by_pulls(x, steps, bounds, cover, reach, tolerance, False, None if copied else dual)
    return found.v, found.distance


def _ascended(x, steps, cover, reach, over_atoms, tolerance, dual, rounds) -> tuple[Tensor, float]:
    """Accelerated projected gradient on the dual, all groups at once, started anew where it overshoots."""
    places, owner = _pairs(cover, over_atoms)
    problem = _Dual(x, steps, places, owner, reach)
    point = torch.zeros(len(places), dtype=x.dtype, device=x.device) if dual is None else dual.clone()
    ahead, weight, distance = point, torch.ones((), dtype=x.dtype, device=x.device), 0.0
    for done in range(1, 2 if x.is_meta else rounds + 1):
        before, (point, inside) = point, problem.ascend(ahead)
        overshot = problem.inner(ahead - point, point - before) > 0
        weight, last = torch.where(overshot, 1.0, (1 + (1 + 4 * weight.square()).sqrt()) / 2), weight
        ahead = point + torch.where(overshot, 0.0, (last - 1) / weight) * (point - before)
        if done % CHECK == 0 or done == 1:
            _, gap = problem.primal(point, inside, tolerance)
            if not x.is_meta:
                distance = float((2 * gap / problem.scale).sqrt())
                if not distance > tolerance:
                    break
    if dual is not None:
        dual.copy_(point)
    return problem.primal(point, inside, tolerance)[0], distance


class _Dual:
    """argmin_v sum_g reach_g ||v_g|| + sum (v - x)^2 / (2 * steps) = x - steps * sum of duals, each in its ball."""

    def __init__(self, x: Tensor, steps: Tensor, places: Tensor, owner: Tensor, reach: Tensor):
        self.places, self.owner, self.reach = places, owner, reach
        multiplicity = torch.zeros_like(x).index_add(0, places, (reach > 0).to(x.dtype)[owner])
        endless = steps.isinf() & (multiplicity > 0)
        self.x, self.steps = torch.where(endless, 0.0 * x, x), torch.where(steps.isinf(), 1.0, steps)
        curvature = (self.steps * multiplicity)[places]
        curvature = torch.zeros_like(reach).scatter_reduce(0, owner, curvature, "amax")
        self.curvature = torch.where(curvature > 0, curvature, 1.0)
        moved = (multiplicity > 0) & (self.steps > 0)
        self.scale = torch.where(moved, self.x.square() / self.steps, 0.0).sum()

    def total(self, values: Tensor) -> Tensor:
        return torch.zeros_like(self.reach).index_add(0, self.owner, values)

    def inner(self, one: Tensor, two: Tensor) -> Tensor:
        return (self.total(one * two) * self.curvature).sum()

    def moved(self, dual: Tensor) -> Tensor:
        return self.x - self.steps * torch.zeros_like(self.x).index_add(0, self.places, dual)

    def ascend(self, dual: Tensor) -> tuple[Tensor, Tensor]:
        dual = dual + self.moved(dual)[self.places] / self.curvature[self.owner]
        norm = self.total(dual.square()).sqrt()
        factor = torch.where(norm <= self.reach, 1.0, self.reach / norm)
        return dual * factor[self.owner], norm < self.reach

    def primal(self, dual: Tensor, inside: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """What the dual says, with the entries of groups whose dual lies inside its ball at zero; its duality gap."""
        v = self.moved(dual)
        distance = torch.where(v == 0, 0.0, v.square() / self.steps)
        small = self.total(distance[self.places]) <= (0.1 * tolerance) ** 2 * self.scale
        dead = ((inside | small) & (self.reach > 0))[self.owner].to(v.dtype)
        zero = torch.zeros_like(v).index_add(0, self.places, dead) > 0
        v = torch.where(zero, 0.0, v)
        copies = v[self.places]
        norm = self.total(copies.square()).sqrt()
        unit = copies / torch.where(norm > 0, norm, 1.0)[self.owner]
        apart = self.total((dual - self.reach[self.owner] * unit).square())
        slack = torch.where(self.reach > 0, norm / (2 * self.reach) * apart, 0.0).sum()
        return v, slack + torch.where(zero, distance, 0.0).sum() / 2


@torch.no_grad()
def towards_consensus_(
    W: Tensor, cover: Cover, targets: Tensor, rho: Tensor, entry_strength: Steps, steps: Steps
) -> Tensor:
    """Prox of entry_strength * ||V||_1 + rho / 2 * sum over the copies t of each entry of (V - t)^2.

    `targets` is the sum of the copies of each entry, atom by atom. Closed form: with m copies
    and share = 1 / (1 + 1 / (steps * rho * m)),
    V = soft(W * (1 - share) + mean of copies * share, entry_strength * share / (rho * m)).
    """
    counts = torch.broadcast_to(cover.expand(cover.multiplicity.double(), fill=0.0), W.shape)
    bound = torch.where(counts > 0, counts, 1.0)
    share = torch.where(counts > 0, 1 / (1 + 1 / (rho * steps * bound)), 0.0)
    cut = entry_strength * share / (rho * bound)
    V = W * (1 - share) + share * (in_place_of_atoms(cover, targets).view(W.shape) / bound)
    return W.copy_(V - torch.clamp(V, -cut, cut))


def in_place_of_atoms(cover: Cover, values: Tensor) -> Tensor:
    """One number per entry, from atom by atom to as the entries lie; zero for those of no atom."""
    order = cover.entries()[0]
    return values if order is None else values.new_zeros(cover.shape.numel()).index_copy(0, order, values)


@torch.no_grad()
def update_consensus_(
    W: Tensor, cover: Cover, reach: Tensor, copies: Tensor, duals: Tensor, copy_sums: Tensor, dual_sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """z = W + duals, copies <- group prox of z with reach, duals <- z - copies, and their sums over the groups of each
    entry. Returns the norms, over all copies, of W - copies, of copies and of W."""
    order, bounds = cover.entries()
    flat = W.flatten().double() if order is None else W.flatten().double()[order]
    if walkable(W) and copies.device.type == "cpu":
        bounds, *sets = _sets(cover, over_atoms=False)
        state = (kept.numpy() for kept in (copies, duals, copy_sums, dual_sums))
        if len(flat) == len(cover.atoms) and bool((cover.atoms.size == 1).all()):
            counts = cover.multiplicity.double().numpy()
            squares = kernels.consensus_of_singles(flat.numpy(), *sets[:2], counts, reach.numpy(), *state)
        else:
            squares = kernels.consensus(flat.numpy(), bounds, *sets, reach.numpy(), *state)
        return tuple(torch.tensor(squares, dtype=torch.float64).sqrt())
    places, owner = cover.pairs(in_order=False)
    own = flat[places]
    z = own + duals
    norm = torch.zeros_like(reach).index_add(0, owner, z.square()).sqrt()
    factor = torch.where(norm <= reach, 0.0, 1 - reach / norm)
    copies.copy_(z * factor[owner])
    duals.copy_(z - copies)
    copy_sums.zero_().index_add_(0, places, copies)
    dual_sums.zero_().index_add_(0, places, duals)
    return (own - copies).norm(), copies.norm(), own.norm()


@torch.no_grad()
def spared_by_copies(cover: Cover, copies: Tensor) -> Tensor:
    """Which entries have no group whose copy is all zero: bool, as the entries lie."""
    _, owner = cover.pairs()
    living = torch.zeros(len(cover), dtype=torch.float64, device=copies.device)
    living = living.index_add(0, owner, (copies != 0).double()) > 0
    return torch.broadcast_to(cover.expand(cover.scatter(~living) == 0, fill=True), cover.shape).flatten()
