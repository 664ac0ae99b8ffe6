"""Prox of overlapping groups by an interior point method with one unknown (eta) per group.

    argmin_v  sum_g reach_g ||v_g|| + sum_i (v_i - x_i)^2 / (2 steps_i)

v_g are the entries of group g, and reach_g is the threshold of the group. The method replaces ||v_g|| by (||v_g||^2 /
eta_g + eta_g) / 2, whose minimum over eta_g > 0 is ||v_g||. The solution for given eta is v_i = x_i / (1 + steps_i *
pull_i). pull_i is the sum of reach_g / eta_g over the groups of entry i.

The remaining problem in eta is smooth and convex. It is solved in these steps:
- Newton's method minimises it with a barrier -mu * log(eta), for smaller and smaller mu.
- The groups whose eta goes to zero are set to exactly zero.
- Newton's method without a barrier computes the other groups.
- If the duality gap of the result is too large, mu falls further.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.prox import overlaps_interior as kernels

FALL = 0.1  # factor by which the coefficient mu of the barrier falls from one stage to the next
# maximum numbers: barrier stages, Newton iterations per stage, halvings of a step, Newton iterations without barrier
STAGES, ROUNDS, HALVINGS, LAST_ROUNDS = 16, 25, 12, 40
COLLAPSE = -0.9  # a group counts as zero if the relative Newton step of its unknown eta is below this
SLOW = 3  # after this many iterations that do not halve the duality gap, the guess of zero groups is wrong
CLOSE = 0.1  # a barrier stage ends when the squared Newton decrement is at most CLOSE * mu (coefficient of the barrier)
DENSE = 1 << 23  # maximum number of entries of a dense matrix [groups, atoms (sets that no group divides)]


class Minimum(NamedTuple):
    """Interior point prox of overlapping groups: a solution, with a bound on its error."""

    v: Tensor  # the entries (or norms of atoms, sets that no group divides) after the prox
    etas: Tensor  # [groups]: the unknown of each group, for a warm start; negative if the group is zero
    distance: float  # bound on the distance to the exact prox, relative to the norm of the input


class State(NamedTuple):
    """Interior point prox of overlapping groups: one point of the iteration, given by one unknown eta per group.

    At this point, an entry x becomes v = x / (1 + step * pull). The pull of an entry is the sum of threshold / eta over
    its groups.
    """

    etas: Tensor  # [groups]: the unknown eta of each group
    slope: Tensor  # [groups]: derivative of the objective with barrier, with respect to log(eta)
    pulls: Tensor  # [groups]: threshold / eta of each group
    squares: Tensor  # [groups]: (threshold / eta) * squared norm of the entries of each group
    # [3, atoms]: for each atom (set of entries), the sums of v^2, step * v^2 / (1 + step * pull), and step * v^2
    sums: Tensor


class Entries:
    """Interior point prox of overlapping groups: entries x and their steps, and sums over the entries of each atom.

    Groups are unions of disjoint atoms. Atom k has the entries bounds[k] : bounds[k + 1]. `walk` selects the numba
    kernels instead of torch code.
    """

    def __init__(self, x: Tensor, steps: Tensor, bounds: Tensor, walk: bool):
        self.x, self.steps, self.bounds, self.walk = x, steps, bounds, walk
        if not walk:
            atoms = torch.arange(len(bounds) - 1, device=x.device)
            self.atom = atoms.repeat_interleave(bounds.diff(), output_size=len(x))

    def sums(self, pull: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: three sums over the entries of each atom (tensor [3, atoms]).

        Groups are unions of disjoint atoms. `pull` holds one number per atom, which gives v = x / (1 + steps * pull).
        The sums are over v^2, steps * v^2 / (1 + steps * pull), and steps * v^2.
        """
        if self.walk:
            sums = torch.empty(3, len(pull), dtype=torch.float64)
            kernels.pulled_sums(*self._arrays(), pull.numpy(), sums.numpy())
            return sums
        share = 1 / (1 + self.steps * pull[self.atom])
        squares = (self.x * share).square()
        return self._added(squares, squares * self.steps * share, squares * self.steps)

    def sums_at_zero(self) -> Tensor:
        """Interior point prox of overlapping groups: three sums over the entries x of each atom (tensor [3, atoms]).

        Groups are unions of disjoint atoms. The sums describe (v - x)^2 / (2 steps), a part of the objective, at v = 0:
        - The sum of x^2 / steps is twice its value.
        - The sum of x^2 / steps^2 is the squared norm of its gradient.
        - The third sum is the first without the entries of step 0, for which x^2 / steps is infinite.
        """
        if self.walk:
            sums = torch.empty(3, len(self.bounds) - 1, dtype=torch.float64)
            kernels.sums_at_zero(*self._arrays(), sums.numpy())
            return sums
        ratio = torch.where(self.x == 0, 0.0, self.x / self.steps)
        first = torch.where(self.x == 0, 0.0, self.x * ratio)
        return self._added(first, ratio.square(), torch.where(self.steps > 0, first, 0.0))

    def pulled(self, pull: Tensor, zero: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: the entries v = x / (1 + steps * pull) for pulls of atoms.

        Groups are unions of disjoint atoms. `pull` holds one number for each atom. In atoms marked in `zero` the
        entries are exactly zero.
        """
        if self.walk:
            v = torch.empty_like(self.x)
            kernels.pulled(*self._arrays(), pull.numpy(), zero.numpy(), v.numpy())
            return v
        return torch.where(zero[self.atom], 0.0, self.x / (1 + self.steps * pull[self.atom]))

    def _added(self, *terms: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: sums of each vector in `terms` over the entries of each atom.

        Groups are unions of disjoint atoms. Returns a tensor [terms, atoms].
        """
        terms = torch.stack(terms)
        return terms.new_zeros(len(terms), len(self.bounds) - 1).index_add(1, self.atom, terms)

    def _arrays(self):
        """Interior point prox of overlapping groups: numpy arrays of entries, steps, and bounds of entry sets."""
        return self.x.numpy(), self.steps.numpy(), self.bounds.numpy()


class Problem:
    """Interior point prox of overlapping groups as a smooth convex problem with one unknown, eta, per group.

    Groups with a threshold (`reach`) of 0 are ignored and keep eta = 1.
    """

    def __init__(self, entries: Entries, cover: Cover, reach: Tensor):
        self.entries, self.cover, self.reach, self.active = entries, cover, reach, reach > 0
        self.covered = cover.scatter(self.active.double()) > 0
        self.energy, self.at_zero, finite = entries.sums_at_zero()
        self.scale = float(torch.where(self.covered, finite, 0.0).sum())
        self.inside, self.sets = None, None
        self.norms = self.gather(entries.sums(torch.zeros_like(self.energy))[0]).sqrt()  # group norms before the prox

    def gather(self, values: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: for each group, the sum of `values` over its atoms.

        `values` holds one number per atom. Groups are unions of disjoint atoms. Groups with a threshold of 0 get zero.
        """
        return torch.where(self.active, self.cover.gather(values), 0.0)

    def state(self, etas: Tensor, mu: float, living: Tensor, zero: Tensor) -> State:
        """Interior point prox of overlapping groups: the `State` at given unknowns eta, one per group.

        `mu` is the coefficient of the barrier. Groups outside the mask `living` and atoms (sets of entries) in the mask
        `zero` are ignored.
        """
        pulls = torch.where(living, self.reach / etas, 0.0)
        sums = torch.where(zero | ~self.covered, 0.0, self.entries.sums(self.cover.scatter(pulls)))
        squares = pulls * self.gather(sums[0])
        slope = torch.where(living, (self.reach * etas - squares) / 2 - mu, 0.0)
        return State(etas, slope, pulls, squares, sums)

    def newton(self, at: State, mu: float, living: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: the Newton step of eta (one unknown per group), relative to eta.

        `mu` is the coefficient of the barrier.
        """
        diagonal = torch.where(living, at.squares + mu, 1.0)
        root = diagonal.rsqrt()
        rows = at.pulls * root
        matrix = -self.common(at.sums[1]) * rows[:, None] * rows
        matrix.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return -at.slope / diagonal  # a shorter step, from an upper bound of the curvature
        return -root * torch.cholesky_solve((root * at.slope)[:, None], factor)[:, 0]

    def common(self, values: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: for each pair of groups, the sum of `values` over common atoms.

        `values` holds one number per atom. Groups are unions of disjoint atoms. Returns a tensor [groups, groups].
        """
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
    """Interior point prox of overlapping groups: whether a dense [groups, atoms] matrix is small enough."""
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
    """Prox of overlapping groups at x by the interior point method.

    Groups are unions of disjoint atoms. Atom k has the entries bounds[k] : bounds[k + 1]. `reach` holds the threshold
    of the norm of each group. `walk` selects the numba kernels instead of torch code. `etas` are the unknowns of the
    method, one per group: those of a similar problem serve as a warm start.
    """
    if bool(steps.isinf().any()):  # the prox of a penalised entry with an infinite step is zero
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
    """Interior point prox of overlapping groups: follow the central path until the duality gap is small enough."""
    reach, best = problem.reach, None
    mu = float((reach * problem.norms).max())
    root = (mu**2 + (reach * problem.norms).square()).sqrt()
    etas = torch.where(problem.active, (mu + root) / reach, 1.0)
    for stage in range(STAGES):
        mu *= FALL
        before, at = etas, _centred(problem, etas, mu)
        etas, norms = at.etas, problem.gather(at.sums[0]).sqrt()
        # first guess of zero groups: the norm of the group is small, relative to its norm before the prox
        guess = 2 * mu / (reach * etas) * problem.norms > norms
        # second guess of zero groups: the unknown eta has fallen almost as much as the barrier coefficient mu
        for dead in (guess, etas < FALL**0.75 * before):
            minimum = _finished(problem, etas, problem.active & dead, tolerance, stage == STAGES - 1)
            if minimum is not None and (best is None or minimum.distance < best.distance):
                best = minimum
                if best.distance <= tolerance:
                    return best
    return Minimum(problem.entries.x, etas, torch.inf) if best is None else best


def _centred(problem: Problem, etas: Tensor, mu: float) -> State:
    """Interior point prox of overlapping groups: Newton's method to the minimum with a barrier.

    `mu` is the coefficient of the barrier. A step is halved until it does not overshoot.
    """
    everything = problem.active, torch.zeros_like(problem.covered)
    at = problem.state(etas, mu, *everything)
    for _ in range(ROUNDS):
        move = problem.newton(at, mu, problem.active)
        fall = -float(at.slope @ move)
        if not fall > CLOSE * mu:
            break
        start, share = at.etas, min(1.0, 0.95 / max(float(-move.min()), 1e-300))  # every unknown eta stays positive
        for _ in range(HALVINGS):
            at = problem.state(start * (1 + share * move), mu, *everything)
            if float((at.slope * (start / at.etas)) @ move) <= 0.5 * fall:
                break
            share *= 0.5
        else:
            break  # halving does not help: the slopes are only rounding errors
    return at


def _finished(problem: Problem, etas: Tensor, dead: Tensor, tolerance: float, always: bool) -> Minimum | None:
    """Interior point prox of overlapping groups: the solution with the groups in `dead` at exactly zero.

    Newton's method without a barrier computes the other groups. If the groups in `dead` cannot all be zero, the result
    is None, unless `always` is set.
    """
    reach, bound = problem.reach, tolerance**2 * problem.scale / 2
    dead, zero, gap = _laid_down(problem, etas, dead)
    if not (always or gap <= bound):
        return None
    best, least, slow = None, torch.inf, 0
    for _ in range(LAST_ROUNDS):
        living = problem.active & ~dead
        at = problem.state(etas, 0.0, living, zero)
        norms = problem.gather(at.sums[0]).sqrt()
        # for the duality gap: for each atom (set of entries), the sum of (reach / norm - pull) over its nonzero groups
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
    """Interior point prox of overlapping groups: the consequences of setting the groups `dead` to zero.

    Returns the mask of all zero groups, the mask of the zero atoms, and the duality gap that the zeros add. Groups are
    unions of disjoint atoms. The gap is 0 if the dual variables of the zero groups stay within their thresholds.
    """
    cover = problem.cover
    zero = cover.scatter(dead.double()) > 0
    dead = problem.active & (dead | (problem.gather((~zero).double()) == 0))
    pulls = torch.where(dead, problem.reach / etas, 0.0)
    total = torch.where(zero, cover.scatter(pulls), 1.0)
    dual = pulls * problem.gather(torch.where(zero, problem.at_zero / total.square(), 0.0)).sqrt()
    lost = torch.where(dual > problem.reach, 1 - problem.reach / dual, 0.0)
    lost = cover.scatter(pulls * lost) / total
    return dead, zero, float(torch.where(lost > 0, problem.energy * lost.square(), 0.0).sum()) / 2
