"""Prox of overlapping groups: the exact prox of the sum of the norms of the groups, through the dual problem.

Groups are unions of disjoint atoms. If all entries of an atom have the same step, the prox multiplies each atom by one
number. It is then enough to solve the problem for the norms of the atoms. With a step per entry the problem is solved
for all entries.

The method is block coordinate descent on the dual. It converges within a few passes over the groups if they hardly
overlap or are nested. Harder problems of at most a thousand groups go to `prox.overlaps_interior`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import overlaps as kernels
from structsparse.prox.entries import soft_threshold_
from structsparse.prox.overlaps_interior import Minimum, fits, shrink_by_pulls
from structsparse.prox.steps import Steps, changed, is_scalar, number, thresholds

TOLERANCE = 1e-13  # error of the result relative to the norm of the weights; about the rounding error of float64
ROUNDS = 4_000  # maximum number of passes over all groups
# the interior point method follows after max(PATIENCE, WORK / total size of all groups) passes over the groups
PATIENCE, WORK = 60, 1 << 16
FEW = 1000  # maximum number of groups for the interior point method
MANY = 1 << 16  # total size of all groups above which the interior point method is tried first
CHECK = 50  # number of dual ascent iterations between two computations of the duality gap, which wait for the device
WARNED = weakref.WeakSet()  # covers (sets of groups) for which a warning of an inexact prox was given

# function (x, steps, over_atoms): the prox of x. x holds entries, or, if over_atoms, the norms of atoms (sets of
# entries that no group divides)
Solve = Callable[[Tensor, Steps, bool], Tensor]


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
    """Prox of overlapping groups, in place: norms of the groups plus an l1 norm of the entries in groups.

    The penalty is strength * sum_g weight_g ||V_g|| + entry_strength * ||V||_1. V_g are the entries of group g, and
    weight_g is its factor. The soft threshold of the entries comes first, then the prox of the group norms.

    The iteration stops when the duality gap shows that the error is at most tolerance * ||W||. Error and norm are in
    the metric 1 / steps.
    - `dual`: dual variables to start from, updated in place, see `new_dual`.
    - `weight`: replaces the weights of the cover.
    - `tell`: whether to warn, once per cover, that the tolerance was not reached.
    - `rounds`: maximum number of passes over the groups.
    """
    reach = strength * (cover.weight if weight is None else weight)
    tolerance = max(tolerance, 0.1 * torch.finfo(W.dtype).eps)

    def solve(x, steps, over_atoms):
        """Prox of the norms of overlapping groups at x, with a warning if the result is inexact.

        `x` holds entries, or the norms of atoms (sets of entries that no group divides).
        """
        minimise = minimise_by_kernels if walkable(W) else minimise_by_torch
        v, distance = minimise(x, steps, cover, reach, over_atoms, tolerance, dual, rounds)
        if tell and distance > tolerance:
            warn_inexact(cover, distance, tolerance)
        return v

    return on_norms_(solve, W, cover, entry_strength, steps)


def one_step_per_atom(cover: Cover, steps: Steps) -> bool:
    """Overlapping groups prox: whether all entries of each atom have the same step.

    Atoms are sets of entries that no group divides. Only the shape of `steps` is used, not the values.
    """
    if is_scalar(steps):
        return True
    shape = [1] * (len(cover.shape) - steps.dim()) + list(steps.shape)
    return cover.atoms.aligned and all(s == 1 or s == a for s, a in zip(shape, cover.atoms.ids.shape, strict=True))


def on_norms_(solve: Solve, W: Tensor, cover: Cover, entry_strength: Steps, steps: Steps) -> Tensor:
    """Overlapping groups prox: soft threshold of W, then the function `solve` on the norms of the atoms, in place.

    Groups are unions of disjoint atoms. If steps differ within an atom, solve(x, steps, over_atoms=False) gets all
    entries instead.
    """
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
    return W.addcmul_(W, cover.expand(share, fill=0.0).to(W.dtype), value=-1)  # subtraction gives no negative zeros


def _scale_blocks_(solve, W, cover, entry_strength, steps) -> Tensor:
    """Overlapping groups prox, like `on_norms_`, for atoms that are row blocks in CPU memory.

    Groups are unions of disjoint atoms. The first pass over memory computes the norms of the atoms, the second
    multiplies the atoms.
    """
    blocks = cover.atoms.offsets.numpy(), cover.shape[1:].numel()
    cut = number(thresholds(entry_strength, steps, W), W)
    squares = torch.empty(len(cover.atoms), dtype=torch.float64)
    kernels.atom_squares(flat_array(W), *blocks, cut, squares.numpy())
    norms = squares.sqrt()
    factors = torch.where(cover.multiplicity > 0, _factors(norms, solve(norms.clone(), steps, True)), -1.0)
    kernels.scale_atoms(flat_array(W), *blocks, cut, factors.numpy())
    return changed(W)


def _factors(before: Tensor, after: Tensor) -> Tensor:
    """Overlapping groups prox: norm after the prox / norm before the prox of each atom (set that no group divides)."""
    return torch.where(before == 0, 1.0, after / before)


def _covered_steps(W, cover, steps) -> Steps:
    """Overlapping groups prox: the steps, set to zero at the entries that lie in no group."""
    if not cover.free:
        return steps
    wide = torch.broadcast_to(cover.covered(), W.shape)
    return torch.where(wide, torch.as_tensor(steps, dtype=W.dtype, device=W.device), 0.0)


def _replace_entries_(solve, W, cover, steps) -> Tensor:
    """Overlapping groups prox with a step per entry, in place: apply `solve` to all entries."""
    flat = W.flatten().double()
    steps = steps.double().expand(W.shape).flatten()
    order = cover.entries()[0]
    if order is None:
        return W.copy_(solve(flat.clone(), steps.clone(), False).view(W.shape) + 0.0)  # adding 0 removes negative zeros
    flat = flat.index_copy(0, order, solve(flat[order], steps[order], False))
    return W.copy_(flat.view(W.shape) + 0.0)


def set_arrays(cover: Cover, over_atoms: bool) -> tuple:
    """Overlapping groups prox: atoms and groups of a cover as numpy arrays (bounds, members, offsets, starts).

    `kernels.prox.overlaps` explains the arrays. Groups are unions of disjoint atoms. If `over_atoms`, each atom counts
    as one entry.
    """
    members, offsets = cover.members.numpy(), cover.offsets.numpy()
    if over_atoms:
        return torch.arange(len(cover.atoms) + 1).numpy(), members, offsets, offsets
    return cover.entries()[1].numpy(), members, offsets, cover.starts.numpy()


def copies_of(cover: Cover, over_atoms: bool) -> tuple[Tensor, Tensor]:
    """Overlapping groups prox: for each copy of an entry or atom, the index of the entry or atom and its group.

    An entry or atom has a copy in each group that contains it. Groups are unions of disjoint atoms. Returns two int64
    tensors [copies].
    """
    return (cover.members.long(), cover.owner.long()) if over_atoms else cover.pairs(in_order=False)


def new_dual(cover: Cover, steps: Steps, device: torch.device) -> Tensor:
    """Overlapping groups prox: dual variables, all zero, as a warm start for the first call.

    Groups are unions of disjoint atoms. The number of dual variables depends on the steps:
    - One step per atom: one variable for each atom of each group.
    - A step per entry: one variable for each entry of each group. If the interior point method is tried first, one
      variable per group.
    """
    if one_step_per_atom(cover, steps):
        length = len(cover.members)
    else:
        length = len(cover) if _without_copies(cover) else cover.copies
    return torch.zeros(length, dtype=torch.float64, device=device)


def _without_copies(cover: Cover) -> bool:
    """Overlapping groups prox: whether the interior point method is tried before dual descent.

    This is so if the number of groups is at most FEW and their total size is above MANY."""
    return len(cover) <= FEW and cover.copies > MANY


def minimise_by_kernels(x, steps, cover, reach, over_atoms, tolerance, dual, rounds) -> tuple[Tensor, float]:
    """Overlapping groups prox at x in CPU memory: the result and a bound on its relative error.

    The numba kernels run dual descent. If the error is too large, the interior point method follows. `reach` holds the
    threshold of the norm of each group.
    """
    if is_scalar(steps) and float(steps) == 0:
        return x, 0.0
    even = is_scalar(steps)
    steps = torch.full_like(x, float(steps)) if even else steps
    bounds, members, offsets, starts = set_arrays(cover, over_atoms)
    best, distance = x, torch.inf
    if over_atoms or not _without_copies(cover):
        start = torch.zeros(int(starts[-1]), dtype=torch.float64) if dual is None else dual
        if even and cover.nested:
            start.zero_()  # for nested groups, one pass over the groups that starts at zero is exact
        sets = bounds, members, offsets, starts, cover.size.argsort(stable=True).numpy(), reach.numpy()
        best, length, rounds = x.clone(), steps.clone(), min(rounds, _rounds(cover, int(starts[-1])))
        _, distance = kernels.descend(best.numpy(), length.numpy(), even, *sets, start.numpy(), tolerance, rounds)
        dual = None
    if distance > tolerance and len(cover) <= FEW:
        minimum = _by_pulls(x, steps, torch.from_numpy(bounds), cover, reach, tolerance, True, dual)
        if minimum.distance < distance:
            return minimum.v, minimum.distance
    return best, distance


def _rounds(cover: Cover, copies: int) -> int:
    """Overlapping groups prox: maximum number of passes of dual descent, before the interior point method."""
    return min(ROUNDS, max(PATIENCE, WORK // max(1, copies))) if len(cover) <= FEW else ROUNDS


def _by_pulls(x, steps, bounds, cover, reach, tolerance, walk, etas) -> Minimum:
    """Overlapping groups prox: call the interior point method, with numba kernels if `walk` is set, else in torch.

    `etas` holds the unknown of the interior point method for each group. It is the warm start, updated in place.
    """
    minimum = shrink_by_pulls(x, steps, bounds, cover, reach, tolerance, walk, etas)
    if etas is not None:
        etas.copy_(minimum.etas)
    return minimum


def warn_inexact(cover: Cover, distance: float, tolerance: float) -> None:
    """Overlapping groups prox: warn, once per cover, that the result has not reached the tolerance."""
    if cover not in WARNED:
        WARNED.add(cover)
        warnings.warn(
            f"the prox of {len(cover)} overlapping groups of {cover.parameter} is accurate only to {distance:.1e} of "
            f"the norm of the weights, not to {tolerance:.1e}: accept that, split long groups, or use "
            "ConsensusGroupLasso, which needs no prox of the sum",
            RuntimeWarning,
            stacklevel=2,
        )


def minimise_by_torch(x, steps, cover, reach, over_atoms, tolerance, dual, rounds) -> tuple[Tensor, float]:
    """Overlapping groups prox at x in torch: the result and a bound on its relative error.

    `reach` holds the threshold of the norm of each group.
    """
    steps = torch.zeros_like(x) + steps
    copied = over_atoms or not _without_copies(cover)
    if x.is_meta or len(cover) > FEW or not fits(cover):
        return _ascended(x, steps, cover, reach, over_atoms, tolerance, dual if copied else None, rounds)
    bounds = torch.arange(len(x) + 1, device=x.device) if over_atoms else cover.entries()[1]
    minimum = _by_pulls(x, steps, bounds, cover, reach, tolerance, False, None if copied else dual)
    return minimum.v, minimum.distance


def _ascended(x, steps, cover, reach, over_atoms, tolerance, dual, rounds) -> tuple[Tensor, float]:
    """Overlapping groups prox by accelerated projected gradient ascent on the dual, all groups at once, in torch.

    The momentum restarts from zero if a step overshoots.
    """
    places, owner = copies_of(cover, over_atoms)
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
    """Overlapping groups prox in torch: the dual problem.

    The prox minimises sum_g reach_g ||v_g|| + sum (v - x)^2 / (2 * steps). v_g are the entries of group g, and reach_g
    is the threshold of the group. The solution is x - steps * sum_g dual_g, where ||dual_g|| <= reach_g.
    """

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
        """Overlapping groups prox in torch: sum of values (one per entry and group) over each group."""
        return torch.zeros_like(self.reach).index_add(0, self.owner, values)

    def inner(self, one: Tensor, two: Tensor) -> Tensor:
        """Overlapping groups prox in torch: inner product of two dual vectors, with a weight per group.

        The weight is the inverse step size of the group in `ascend`."""
        return (self.total(one * two) * self.curvature).sum()

    def moved(self, dual: Tensor) -> Tensor:
        """Overlapping groups prox in torch: the primal point x - steps * (sum of the dual vectors of all groups)."""
        return self.x - self.steps * torch.zeros_like(self.x).index_add(0, self.places, dual)

    def ascend(self, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Overlapping groups prox in torch: one projected gradient step on the dual.

        Returns the new dual vector, and a mask of the groups whose dual norm is below the threshold.
        """
        dual = dual + self.moved(dual)[self.places] / self.curvature[self.owner]
        norm = self.total(dual.square()).sqrt()
        factor = torch.where(norm <= self.reach, 1.0, self.reach / norm)
        return dual * factor[self.owner], norm < self.reach

    def primal(self, dual: Tensor, inside: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Overlapping groups prox in torch: the primal point of a dual vector, and the duality gap.

        Two kinds of groups are set to zero: groups whose dual norm is below the threshold (mask `inside`), and groups
        with a norm of at most 0.1 * `tolerance` times the norm of x. These norms are in the metric 1 / steps.
        """
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
