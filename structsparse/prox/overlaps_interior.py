"""Prox of overlapping groups by an interior point method with one number per group, without copies of entries.

    argmin_v  sum_g reach_g |v_g| + sum_i (v_i - x_i)^2 / (2 steps_i)

As reach |v| is the least of reach (|v|^2 / eta + eta) / 2 over eta, v_i = x_i / (1 + steps_i * pull of its atom), where
the pull of an atom is the sum of reach_g / eta_g over its groups. What remains is a smooth convex problem in eta >= 0.
Newton follows its path under the barrier -mu * log(eta), until groups whose eta goes to zero can be told from the
others. Those are set to exactly zero, Newton without a barrier solves the rest, and the duality gap verifies the
result; if it is too large, the path continues.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.prox import overlaps_interior as kernels

FALL = 0.1  # of the barrier from one stage to the next
STAGES, ROUNDS, HALVINGS, LAST_ROUNDS = 16, 25, 12, 40  # limits that ordinary problems do not reach
COLLAPSE = -0.9  # relative move of an eta that counts as going to zero
SLOW = 3  # rounds in a row that do not halve the gap, after which the guess counts as wrong
CLOSE = 0.1  # squared decrement of Newton, over the barrier, at which a stage ends
DENSE = 1 << 23  # numbers in a matrix of groups by atoms


class Minimum(NamedTuple):
    """A minimum of the prox problem of overlapping groups, and how near it is at least."""

    v: Tensor
    etas: Tensor  # [groups], the norms of living groups; of dead ones minus their place on the path
    distance: float  # to the exact minimum, at most, relative to x, both in the metric


class State(NamedTuple):
    """A point on the path of the interior point method."""

    etas: Tensor
    slope: Tensor  # along the logarithm of each eta
    pulls: Tensor  # reach / eta
    squares: Tensor  # pull * |v_g|^2
    sums: Tensor  # see Entries.sums


class Entries:
    """The entries x and their steps, one atom after the other, and sums over the entries of each atom."""

    def __init__(self, x: Tensor, steps: Tensor, bounds: Tensor, walk: bool):
        self.x, self.steps, self.bounds, self.walk = x, steps, bounds, walk
        if not walk:
            atoms = torch.arange(len(bounds) - 1, device=x.device)
            self.atom = atoms.repeat_interleave(bounds.diff(), output_size=len(x))

    def sums(self, pull: Tensor) -> Tensor:
        """Sums over each atom of v^2, of its rate of fall steps * v^2 / (1 + steps * pull), and of steps * v^2: [3,
        atoms]."""
        if self.walk:
            sums = torch.empty(3, len(pull), dtype=torch.float64)
            kernels.pulled_sums(*self._arrays(), pull.numpy(), sums.numpy())
            return sums
        share = 1 / (1 + self.steps * pull[self.atom])
        squares = (self.x * share).square()
        return self._added(squares, squares * self.steps * share, squares * self.steps)

    def sums_at_zero(self) -> Tensor:
        """Sums over each atom of x^2 / steps and of x^2 / steps^2, infinite where a step of zero holds an entry, and of
        the former without such entries: [3, atoms]."""
        if self.walk:
            sums = torch.empty(3, len(self.bounds) - 1, dtype=torch.float64)
            kernels.sums_at_zero(*self._arrays(), sums.numpy())
            return sums
        ratio = torch.where(self.x == 0, 0.0, self.x / self.steps)
        first = torch.where(self.x == 0, 0.0, self.x * ratio)
        return self._added(first, ratio.square(), torch.where(self.steps > 0, first, 0.0))

    def pulled(self, pull: Tensor, zero: Tensor) -> Tensor:
        """The entries v for these pulls of atoms, exactly zero in marked atoms."""
        if self.walk:
            v = torch.empty_like(self.x)
            kernels.pulled(*self._arrays(), pull.numpy(), zero.numpy(), v.numpy())
            return v
        return torch.where(zero[self.atom], 0.0, self.x / (1 + self.steps * pull[self.atom]))

    def _added(self, *terms: Tensor) -> Tensor:
        """Sums of terms [entries] over each atom."""
        terms = torch.stack(terms)
        return terms.new_zeros(len(terms), len(self.bounds) - 1).index_add(1, self.atom, terms)

    def _arrays(self):
        return self.x.numpy(), self.steps.numpy(), self.bounds.numpy()


class Problem:
    """The prox of overlapping groups as a smooth problem in eta. Groups without reach have an eta of 1 and no pull."""

    def __init__(self, entries: Entries, cover: Cover, reach: Tensor):
        self.entries, self.cover, self.reach, self.active = entries, cover, reach, reach > 0
        self.covered = cover.scatter(self.active.double()) > 0
        self.energy, self.at_zero, finite = entries.sums_at_zero()
        self.scale = float(torch.where(self.covered, finite, 0.0).sum())
        self.inside, self.sets = None, None
        self.norms = self.gather(entries.sums(torch.zeros_like(self.energy))[0]).sqrt()  # of x

    def gather(self, values: Tensor) -> Tensor:
        """Sums of values [atoms] over each group that has a reach."""
        return torch.where(self.active, self.cover.gather(values), 0.0)

    def state(self, etas: Tensor, mu: float, living: Tensor, zero: Tensor) -> State:
        """The point at these etas, without the pulls of dead groups and the entries of atoms that are zero."""
        pulls = torch.where(living, self.reach / etas, 0.0)
        sums = torch.where(zero | ~self.covered, 0.0, self.entries.sums(self.cover.scatter(pulls)))
        squares = pulls * self.gather(sums[0])
        slope = torch.where(living, (self.reach * etas - squares) / 2 - mu, 0.0)
        return State(etas, slope, pulls, squares, sums)

    def newton(self, at: State, mu: float, living: Tensor) -> Tensor:
        """The Newton move of each eta, relative to it."""
        diagonal = torch.where(living, at.squares + mu, 1.0)
        root = diagonal.rsqrt()
        rows = at.pulls * root
        matrix = -self.common(at.sums[1]) * rows[:, None] * rows
        matrix.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return -at.slope / diagonal  # the largest curvature, so that the move is never too long
        return -root * torch.cholesky_solve((root * at.slope)[:, None], factor)[:, 0]

    def common(self, values: Tensor) -> Tensor:
        """Sums of values over the atoms that two groups have in common: [groups, groups]."""
        members, owner = self.cover.members.long(), self.cover.owner.long()
        if fits(self.cover):
            if self.inside is None:
                self.inside = values.new_zeros(len(self.reach), len(values))
                self.inside[owner, members] = 1.0
            return (self.inside * values) @ self.inside.T
        if self.sets is None:
            starts = torch.cat([members.new_zeros(1), self.cover.multiplicity.cumsum(0)])
            self.sets = owner[members.argsort(stable=True)].numpy(), starts.numpy()
        matrix = torch.zeros(len(self.reach), len(self.reach), dtype=torch.float64)
        kernels.common(*self.sets, values.numpy(), matrix.numpy())
        return matrix


def fits(cover: Cover) -> bool:
    """Whether a dense matrix of groups by atoms is small enough."""
    return len(cover) * len(cover.atoms) <= DENSE


@torch.no_grad()
def shrink_by_pulls(
    x: Tensor,
    steps: Tensor,
    bounds: Tensor,
    cover: Cover,
    reach: Tensor,
    tolerance: float,
    walk: bool,
    etas: Tensor | None = None,
) -> Minimum:
    """Prox of overlapping groups at x, by the interior point method; `distance` bounds the error. `etas` of a similar
    problem are tried first."""
    if bool(steps.isinf().any()):  # an infinite step takes its entry to zero
        covered = (cover.scatter((reach > 0).double()) > 0).repeat_interleave(bounds.diff(), output_size=len(x))
        endless = steps.isinf() & covered
        x, steps = torch.where(endless, 0.0 * x, x), torch.where(steps.isinf(), 1.0, steps)
    problem = Problem(Entries(x, steps, bounds, walk), cover, reach)
    if not 0 < problem.scale < torch.inf:
        return Minimum(x, torch.zeros_like(reach), 0.0)
    if etas is not None and bool((etas != 0).all()):
        minimum = _finished(problem, etas.abs(), problem.active & (etas < 0), tolerance, True)
        if minimum.distance <= tolerance:
            return minimum
    return _followed(problem, tolerance)


def _followed(problem: Problem, tolerance: float) -> Minimum:
    """Follow the path until the gap is small enough."""
    reach, best = problem.reach, None
    mu = float((reach * problem.norms).max())
    root = (mu**2 + (reach * problem.norms).square()).sqrt()
    etas = torch.where(problem.active, (mu + root) / reach, 1.0)
    for stage in range(STAGES):
        mu *= FALL
        before, at = etas, _centred(problem, etas, mu)
        etas, norms = at.etas, problem.gather(at.sums[0]).sqrt()
        # 2 mu / (reach eta) = 1 - (|dual| / reach)^2 falls as mu does if the group lives; if it is dead, |v| does
        guess = 2 * mu / (reach * etas) * problem.norms > norms
        # the other guess: eta falls as mu does if the group is dead, stays if it lives, falls as sqrt(mu) if neither
        for dead in (guess, etas < FALL**0.75 * before):
            minimum = _finished(problem, etas, problem.active & dead, tolerance, stage == STAGES - 1)
            if minimum is not None and (best is None or minimum.distance < best.distance):
                best = minimum
                if best.distance <= tolerance:
                    return best
    return Minimum(problem.entries.x, etas, torch.inf) if best is None else best


def _centred(problem: Problem, etas: Tensor, mu: float) -> State:
    """Newton to the minimum under the barrier. A step is halved until it does not overshoot, judged by slopes, which
    lose fewer digits than values."""
    everything = problem.active, torch.zeros_like(problem.covered)
    at = problem.state(etas, mu, *everything)
    for _ in range(ROUNDS):
        move = problem.newton(at, mu, problem.active)
        fall = -float(at.slope @ move)
        if not fall > CLOSE * mu:
            break
        start, share = at.etas, min(1.0, 0.95 / max(float(-move.min()), 1e-300))  # eta stays above zero
        for _ in range(HALVINGS):
            at = problem.state(start * (1 + share * move), mu, *everything)
            if float((at.slope * (start / at.etas)) @ move) <= 0.5 * fall:
                break
            share *= 0.5
        else:
            break  # slopes are rounding errors
    return at


def _finished(problem: Problem, etas: Tensor, dead: Tensor, tolerance: float, always: bool) -> Minimum | None:
    """The minimum with dead groups at zero; None if their duals cannot hold their entries there."""
    reach, bound = problem.reach, tolerance**2 * problem.scale / 2
    dead, zero, gap = _laid_down(problem, etas, dead)
    if not (always or gap <= bound):
        return None
    best, least, slow = None, torch.inf, 0
    for _ in range(LAST_ROUNDS):
        living = problem.active & ~dead
        at = problem.state(etas, 0.0, living, zero)
        norms = problem.gather(at.sums[0]).sqrt()
        # duals reach * v / |v| have no slack; they would move v by steps * v * (their pull - pull)
        apart = problem.cover.scatter(torch.where(living & (norms > 0), reach / norms - at.pulls, 0.0))
        total = gap + float((apart.square() * at.sums[2]).sum()) / 2
        slow = 0 if total < 0.5 * least else slow + 1
        if total < least:
            best, least = (at.pulls, zero, torch.where(living, etas, -etas)), total
        if total <= bound or slow == SLOW:
            break
        move = problem.newton(at, 0.0, living)
        collapsing = living & (move < COLLAPSE)
        if bool(collapsing.any()):
            more = _laid_down(problem, etas, dead | collapsing)
            if more[-1] <= bound:
                dead, zero, gap = more
                least = torch.inf
                continue
        etas = etas * (1 + move.clamp(min=COLLAPSE))
    if best is None:
        return None
    pulls, zero, etas = best
    v = problem.entries.pulled(problem.cover.scatter(pulls), zero)
    return Minimum(v, etas, (2 * least / problem.scale) ** 0.5)


def _laid_down(problem: Problem, etas: Tensor, dead: Tensor) -> tuple[Tensor, Tensor, float]:
    """All groups that are dead if these are, the atoms that are then zero, and what that adds to the gap: the duals of
    dead groups share the force that holds their entries at zero, which may exceed their balls."""
    cover = problem.cover
    zero = cover.scatter(dead.double()) > 0
    dead = problem.active & (dead | (problem.gather((~zero).double()) == 0))
    pulls = torch.where(dead, problem.reach / etas, 0.0)
    total = torch.where(zero, cover.scatter(pulls), 1.0)
    dual = pulls * problem.gather(torch.where(zero, problem.at_zero / total.square(), 0.0)).sqrt()
    lost = torch.where(dual > problem.reach, 1 - problem.reach / dual, 0.0)
    lost = cover.scatter(pulls * lost) / total
    return dead, zero, float(torch.where(lost > 0, problem.energy * lost.square(), 0.0).sum()) / 2
