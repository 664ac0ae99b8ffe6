"""The exact prox of overlapping groups by one number per group: an interior point method without copies of entries.

    argmin_v  sum_g reach_g |v_g| + sum_i (v_i - x_i)^2 / (2 steps_i),     reach |v| = min_eta reach (|v|^2 / eta + eta) / 2

so v_i = x_i / (1 + steps_i * pull of its atom), where the pull of an atom is the sum of reach_g / eta_g over its groups,
and what is left is a smooth convex problem in eta >= 0, one number per group. Its path under the barrier -mu log(eta)
leads by Newton to the neighbourhood of the solution; there the groups whose eta goes to zero are set to exact zero,
Newton without barrier ends the rest, and a duality gap says whether that guess was right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels import overlaps as kernels

FALL = 0.1  # of the barrier from one stage to the next
STAGES, INNER, HALVINGS, LAST_ROUNDS = 18, 40, 30, 15  # bounds that ordinary problems do not reach
CLOSE = 0.1  # squared Newton decrement, over the barrier, at which a stage ends
DENSE = 1 << 23  # numbers in a matrix of groups by atoms


class Found(NamedTuple):
    v: Tensor
    etas: Tensor  # [groups]: norms of living groups
    distance: float  # to the minimum at most, relative to x, both in the metric
    rounds: int  # over all entries


class Entries:
    """x atom by atom: sums over the entries of each atom, on the CPU or on any other device."""

    def __init__(self, x: Tensor, steps: Tensor, bounds: Tensor):
        self.x, self.steps, self.bounds, self.passes = x, steps, bounds, 0
        self.on_cpu = x.device.type == "cpu"
        self.atom = None
        if not self.on_cpu:
            atoms = torch.arange(len(bounds) - 1, device=x.device)
            self.atom = atoms.repeat_interleave(bounds.diff(), output_size=len(x))

    def sums(self, pull: Tensor) -> Tensor:
        """Of v^2, of its fall by steps * v^2 / (1 + steps * pull), and of steps * v^2: [3, atoms]."""
        self.passes += 1
        if self.on_cpu:
            sums = torch.empty(3, len(pull), dtype=torch.float64)
            kernels.pulled_sums(*self._arrays(), pull.numpy(), sums.numpy())
            return sums
        share = 1 / (1 + self.steps * pull[self.atom])
        squares = (self.x * share).square()
        terms = torch.stack([squares, squares * self.steps * share, squares * self.steps])
        return terms.new_zeros(3, len(pull)).index_add(1, self.atom, terms)

    def at_zero(self) -> Tensor:
        """Sums of x^2 / steps and of x^2 / steps^2: [2, atoms]; infinite where a step of zero holds an entry fast."""
        if self.on_cpu:
            sums = torch.empty(2, len(self.bounds) - 1, dtype=torch.float64)
            kernels.sums_at_zero(*self._arrays(), sums.numpy())
            return sums
        ratio = torch.where(self.x == 0, 0.0, self.x / self.steps)
        terms = torch.stack([torch.where(self.x == 0, 0.0, self.x * ratio), ratio.square()])
        return terms.new_zeros(2, len(self.bounds) - 1).index_add(1, self.atom, terms)

    def pulled(self, pull: Tensor, zero: Tensor) -> Tensor:
        """v, with exact zeros at the entries of some atoms."""
        if self.on_cpu:
            v = torch.empty_like(self.x)
            kernels.pulled(*self._arrays(), pull.numpy(), zero.numpy(), v.numpy())
            return v
        return torch.where(zero[self.atom], 0.0, self.x / (1 + self.steps * pull[self.atom]))

    def _arrays(self):
        return self.x.numpy(), self.steps.numpy(), self.bounds.numpy()


class Pulls:
    """The problem in eta. Groups without reach are not there: their eta is 1 and their pull is 0."""

    def __init__(self, entries: Entries, cover: Cover, reach: Tensor, scale: Tensor):
        self.entries, self.reach, self.active = entries, reach, reach > 0
        self.members, self.owner, self.atoms = cover.members.long(), cover.owner.long(), len(cover.atoms)
        self.cover = cover
        self.scale = scale
        self.at_zero = entries.at_zero()
        self.inside = None
        if self.entries.on_cpu and len(reach) * self.atoms > DENSE:
            self.sets = None
        else:
            self.inside = reach.new_zeros(len(reach), self.atoms)
            self.inside[self.owner, self.members] = 1.0

    def gather(self, values: Tensor) -> Tensor:
        return torch.where(self.active, self.cover.gather(values), 0.0)

    def scatter(self, values: Tensor) -> Tensor:
        """Sum over the groups of each atom."""
        return self.cover.scatter(values)

    def pulls(self, etas: Tensor) -> Tensor:
        return torch.where(self.active, self.reach / etas, 0.0)

    def start(self, mu: float) -> Tensor:
        norms = self.gather(self.entries.sums(self.reach.new_zeros(self.atoms))[0]).sqrt()
        return self.barrier_etas(norms, mu)

    def barrier_etas(self, norms: Tensor, mu: float) -> Tensor:
        root = (mu**2 + (self.reach * norms).square()).sqrt()
        return torch.where(self.active, (mu + root) / self.reach, 1.0)

    def slopes(self, etas: Tensor, mu: float, living: Tensor, free: Tensor):
        """The slope along each eta relative to it, and what Newton needs; `free` are the atoms that may live."""
        pulls = torch.where(living, self.pulls(etas), 0.0)
        sums = torch.where(free, self.entries.sums(self.scatter(pulls)), 0.0)
        squares = pulls * self.gather(sums[0])
        slope = torch.where(living, (self.reach * etas - squares) / 2 - mu, 0.0)
        return slope, pulls, squares, sums

    def newton(self, slope: Tensor, pulls: Tensor, squares: Tensor, falls: Tensor, mu: float, living) -> Tensor:
        diagonal = torch.where(living, squares + mu, 1.0)
        root = diagonal.rsqrt()
        rows = pulls * root
        matrix = -self.common(falls) * rows[:, None] * rows
        matrix.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return -slope / diagonal  # a bound of the curvature: never too far
        return -root * torch.cholesky_solve((root * slope)[:, None], factor)[:, 0]

    def common(self, values: Tensor) -> Tensor:
        """Sum of values over the atoms that two groups have in common: [groups, groups]."""
        if self.inside is not None:
            return (self.inside * values) @ self.inside.T
        if self.sets is None:
            order = self.members.argsort(stable=True)
            starts = torch.cat([self.members.new_zeros(1), self.cover.multiplicity.cumsum(0)])
            self.sets = self.owner[order].numpy(), starts.numpy()
        matrix = torch.zeros(len(self.reach), len(self.reach), dtype=torch.float64)
        kernels.common(*self.sets, values.numpy(), matrix.numpy())
        return matrix


def shrink_by_pulls(x, steps, bounds, cover: Cover, reach: Tensor, tolerance: float, etas: Tensor | None = None) -> Found:
    """The minimum, to `tolerance` if the distance says so; `etas` of a problem like it may save most of the way."""
    covered = cover.scatter((reach > 0).double()) > 0
    moved = covered.repeat_interleave(bounds.diff(), output_size=len(x))
    endless = steps.isinf() & moved
    held = torch.where(endless, 0.0 * x, x)
    entries = Entries(held, torch.where(steps.isinf(), 1.0, steps), bounds)
    living_part = moved & (entries.steps > 0) & (held != 0)
    scale = torch.where(living_part, held.square() / entries.steps, 0.0).sum()
    problem = Pulls(entries, cover, reach, scale)
    if not bool(scale > 0) or not bool(scale.isfinite()):
        return Found(entries.pulled(cover.scatter(reach), ~covered & False), torch.ones_like(reach), 0.0, 0)
    return follow(problem, tolerance, etas)


def follow(problem: Pulls, tolerance: float, etas: Tensor | None) -> Found:
    zero_norms = problem.gather(problem.entries.sums(problem.reach.new_zeros(problem.atoms))[0]).sqrt()
    mu = float((problem.reach * zero_norms).max())
    best = None
    if etas is not None and bool((etas > 0).all()):
        pass
    etas = problem.barrier_etas(zero_norms, mu)
    everything = torch.ones(problem.atoms, dtype=torch.bool, device=problem.reach.device)
    for _ in range(STAGES):
        mu *= FALL
        etas = centre(problem, etas, mu, everything)
        found = finish(problem, etas, mu, zero_norms, tolerance)
        if found is not None and (best is None or found.distance < best.distance):
            best = found
            if best.distance <= tolerance:
                break
    return best


def centre(problem, etas, mu, everything):
    slope, pulls, squares, sums = problem.slopes(etas, mu, problem.active, everything)
    for _ in range(INNER):
        move = problem.newton(slope, pulls, squares, sums[1], mu, problem.active)
        fall = -float(slope @ move)
        if not fall > CLOSE * mu:
            break
        share = min(1.0, 0.95 / max(1e-300, float((-move).max())))
        for _ in range(HALVINGS):
            tried = etas * (1 + share * move)
            slope, pulls, squares, sums = problem.slopes(tried, mu, problem.active, everything)
            # slope is relative to the new eta; along the move of the old one it is slope * etas / tried
            if float((slope * (etas / tried)) @ move) <= 0.5 * fall:
                break
            share *= 0.5
        etas = tried
    return etas


def finish(problem, etas, mu, zero_norms, tolerance):
    reach, active = problem.reach, problem.active
    pulls = problem.pulls(etas)
    norms = problem.gather(problem.entries.sums(problem.scatter(pulls))[0]).sqrt()
    dead = active & (2 * mu / (reach * etas) * zero_norms > norms)
    zero = problem.scatter(dead.double()) > 0
    dead = active & ((problem.gather((~zero).double()) == 0) | dead)
    living = active & ~dead
    # duals of the dead: shares of what there is
    shares = torch.where(dead, pulls, 0.0)
    total = problem.scatter(shares)
    unit = torch.where(zero, 1 / total, 0.0)
    on_dead = torch.where(zero, problem.at_zero[1], 0.0)
    dual = shares * problem.gather(torch.where(zero, on_dead * unit.square(), 0.0)).sqrt()
    factor = torch.where(dual > reach, reach / dual, 1.0)
    lost = problem.scatter(shares * (1 - factor)) * unit
    gap_dead = float(torch.where(lost > 0, problem.at_zero[0] * lost.square(), 0.0).sum() / 2)
    bound = tolerance**2 * float(problem.scale) / 2
    if not gap_dead <= bound and mu > 1e-17:
        return None
    free = ~zero
    mixed = torch.where(living, etas, 1.0)
    best = None
    for _ in range(LAST_ROUNDS):
        slope, pulls, squares, sums = problem.slopes(mixed, 0.0, living, free)
        norms = problem.gather(sums[0]).sqrt()
        target = torch.where(living & (norms > 0), reach / norms, pulls)
        apart = problem.scatter(target - pulls)
        gap = gap_dead + float((apart.square() * sums[2]).sum() / 2)
        if best is None or gap < best[0]:
            best = gap, mixed, pulls
        if gap <= bound:
            break
        move = problem.newton(slope, pulls, squares, sums[1], 0.0, living)
        if not float(move.abs().max()) < 0.9:
            break
        mixed = mixed * (1 + move)
    gap, mixed, pulls = best
    v = problem.entries.pulled(problem.scatter(pulls), zero)
    return Found(v, torch.where(living, mixed, 0.0), (2 * gap / float(problem.scale)) ** 0.5, problem.entries.passes)
