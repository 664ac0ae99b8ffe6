"""Prox of overlapping groups by an interior point method with one unknown (eta) per group.

    argmin_v  sum_g reach_g ||v_g|| + sum_i (v_i - x_i)^2 / (2 steps_i)

v_g are the entries of group g, and reach_g is the threshold of the group. reach ||v|| is the minimum of reach (||v||^2
/ eta + eta) / 2 over eta. So the solution is v_i = x_i / (1 + steps_i * pull). The pull of an atom is the sum of
reach_g / eta_g over the groups of the atom. This leaves a smooth convex problem in eta >= 0.

Newton's method follows the central path of the barrier -mu * log(eta), until the groups whose eta goes to zero are
known. These groups are set to exactly zero. Newton's method without a barrier solves the problem of the other groups.
If the duality gap of the result is too large, the path continues.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups.cover import Cover
from structsparse.kernels.prox import overlaps_interior as kernels

FALL = 0.1  # factor of the barrier mu from one stage to the next
STAGES, ROUNDS, HALVINGS, LAST_ROUNDS = 16, 25, 12, 40  # largest numbers of iterations; ordinary problems need fewer
COLLAPSE = -0.9  # relative Newton step of an eta below which the group counts as dead
SLOW = 3  # rounds in a row without a halved duality gap after which the guess of dead groups counts as wrong
CLOSE = 0.1  # a stage ends when the squared Newton decrement falls to CLOSE * mu
DENSE = 1 << 23  # largest number of entries of a dense matrix [groups, atoms]


class Minimum(NamedTuple):
    """Interior point prox of overlapping groups: a solution, with a bound on its error."""

    v: Tensor  # the entries (or norms of atoms) after the prox
    etas: Tensor  # [groups]: the norm of a living group; minus the last eta of a dead group
    distance: float  # bound on the distance to the exact minimum, relative to the norm of x, in the metric 1 / steps


class State(NamedTuple):
    """Interior point prox of overlapping groups: a point on the central path.

    v is the primal point, with v = x / (1 + steps * pull).
    """

    etas: Tensor  # the unknowns eta: [groups]
    slope: Tensor  # derivative of the objective with respect to log(eta): [groups]
    pulls: Tensor  # reach / eta of each group: [groups]
    squares: Tensor  # pull * |v_g|^2 of each group: [groups]
    sums: Tensor  # the result of Entries.sums: [3, atoms]


class Entries:
    """Interior point prox of overlapping groups: entries x and their steps, and sums over the entries of each atom.

    The order is atom by atom: atom k has the entries bounds[k] : bounds[k + 1]. `walk` selects the numba kernels
    instead of torch code.
    """

    def __init__(self, x: Tensor, steps: Tensor, bounds: Tensor, walk: bool):
        self.x, self.steps, self.bounds, self.walk = x, steps, bounds, walk
        if not walk:
            atoms = torch.arange(len(bounds) - 1, device=x.device)
            self.atom = atoms.repeat_interleave(bounds.diff(), output_size=len(x))

    def sums(self, pull: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: three sums over the entries of each atom: [3, atoms].

        The terms are v^2, steps * v^2 / (1 + steps * pull), and steps * v^2, where v = x / (1 + steps * pull). The
        second sum is minus half the derivative of the first with respect to the pull.
        """
        if self.walk:
            sums = torch.empty(3, len(pull), dtype=torch.float64)
            kernels.pulled_sums(*self._arrays(), pull.numpy(), sums.numpy())
            return sums
        share = 1 / (1 + self.steps * pull[self.atom])
        squares = (self.x * share).square()
        return self._added(squares, squares * self.steps * share, squares * self.steps)

    def sums_at_zero(self) -> Tensor:
        """Interior point prox of overlapping groups: three sums at v = 0 over the entries of each atom: [3, atoms].

        The terms are x^2 / steps, x^2 / steps^2, and x^2 / steps where steps > 0. The first two sums are infinite if
        the atom has a nonzero entry with step 0.
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

        The entries are exactly zero in atoms that are marked in `zero`.
        """
        if self.walk:
            v = torch.empty_like(self.x)
            kernels.pulled(*self._arrays(), pull.numpy(), zero.numpy(), v.numpy())
            return v
        return torch.where(zero[self.atom], 0.0, self.x / (1 + self.steps * pull[self.atom]))

    def _added(self, *terms: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: sums of terms [entries] over each atom: [terms, atoms]."""
        terms = torch.stack(terms)
        return terms.new_zeros(len(terms), len(self.bounds) - 1).index_add(1, self.atom, terms)

    def _arrays(self):
        """Interior point prox of overlapping groups: entries, steps and bounds of atoms as numpy arrays."""
        return self.x.numpy(), self.steps.numpy(), self.bounds.numpy()


class Problem:
    """Interior point prox of overlapping groups as a smooth convex problem with one unknown, eta, per group.

    Groups whose reach is 0 keep eta = 1 and do not pull.
    """

    def __init__(self, entries: Entries, cover: Cover, reach: Tensor):
        self.entries, self.cover, self.reach, self.active = entries, cover, reach, reach > 0
        self.covered = cover.scatter(self.active.double()) > 0
        self.energy, self.at_zero, finite = entries.sums_at_zero()
        self.scale = float(torch.where(self.covered, finite, 0.0).sum())
        self.inside, self.sets = None, None
        self.norms = self.gather(entries.sums(torch.zeros_like(self.energy))[0]).sqrt()  # norm of x over each group

    def gather(self, values: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: sums of values [atoms] over the atoms of each group.

        Groups whose reach is 0 get zero.
        """
        return torch.where(self.active, self.cover.gather(values), 0.0)

    def state(self, etas: Tensor, mu: float, living: Tensor, zero: Tensor) -> State:
        """Interior point prox of overlapping groups: the point at these etas, with its slopes.

        `mu` is the coefficient of the barrier. Groups that are not in `living` do not pull, and atoms marked in `zero`
        do not count.
        """
        pulls = torch.where(living, self.reach / etas, 0.0)
        sums = torch.where(zero | ~self.covered, 0.0, self.entries.sums(self.cover.scatter(pulls)))
        squares = pulls * self.gather(sums[0])
        slope = torch.where(living, (self.reach * etas - squares) / 2 - mu, 0.0)
        return State(etas, slope, pulls, squares, sums)

    def newton(self, at: State, mu: float, living: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: the Newton step, relative to eta: [groups].

        `mu` is the coefficient of the barrier.
        """
        diagonal = torch.where(living, at.squares + mu, 1.0)
        root = diagonal.rsqrt()
        rows = at.pulls * root
        matrix = -self.common(at.sums[1]) * rows[:, None] * rows
        matrix.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return -at.slope / diagonal  # a step for an upper bound of the curvature, never too long
        return -root * torch.cholesky_solve((root * at.slope)[:, None], factor)[:, 0]

    def common(self, values: Tensor) -> Tensor:
        """Interior point prox of overlapping groups: sums of values [atoms] over the atoms common to two groups.

        The result is [groups, groups], with one sum per pair of groups.
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

    `reach` [groups] is the threshold of each norm. The field `distance` of the result bounds the error. The `etas` of a
    similar problem serve as a warm start.
    """
    if bool(steps.isinf().any()):  # the prox of an entry with an infinite step is zero
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
        # first guess: as mu falls, 2 mu / (reach eta) falls like mu in a living group, the norm of v in a dead group
        guess = 2 * mu / (reach * etas) * problem.norms > norms
        # second guess: as mu falls, eta of a dead group falls like mu, of a living group not at all, else like sqrt(mu)
        for dead in (guess, etas < FALL**0.75 * before):
            minimum = _finished(problem, etas, problem.active & dead, tolerance, stage == STAGES - 1)
            if minimum is not None and (best is None or minimum.distance < best.distance):
                best = minimum
                if best.distance <= tolerance:
                    return best
    return Minimum(problem.entries.x, etas, torch.inf) if best is None else best


def _centred(problem: Problem, etas: Tensor, mu: float) -> State:
    """Interior point prox of overlapping groups: Newton's method to the minimum under the barrier mu.

    A step is halved until it does not overshoot. Slopes decide this, as slopes lose fewer digits than values.
    """
    everything = problem.active, torch.zeros_like(problem.covered)
    at = problem.state(etas, mu, *everything)
    for _ in range(ROUNDS):
        move = problem.newton(at, mu, problem.active)
        fall = -float(at.slope @ move)
        if not fall > CLOSE * mu:
            break
        start, share = at.etas, min(1.0, 0.95 / max(float(-move.min()), 1e-300))  # every eta stays positive
        for _ in range(HALVINGS):
            at = problem.state(start * (1 + share * move), mu, *everything)
            if float((at.slope * (start / at.etas)) @ move) <= 0.5 * fall:
                break
            share *= 0.5
        else:
            break  # no shorter step helps: the slopes are rounding errors
    return at


def _finished(problem: Problem, etas: Tensor, dead: Tensor, tolerance: float, always: bool) -> Minimum | None:
    """Interior point prox of overlapping groups: the solution with dead groups at exactly zero.

    Newton's method without a barrier computes the other groups. The result is None if the dual variables of the dead
    groups cannot hold their entries at zero, unless `always` is set.
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
        # with dual variables reach * v / |v|, whose slack is zero, v moves by steps * v * (reach / |v| - pull)
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

    Returns the mask of all dead groups, the mask of the zero atoms, and the added duality gap. The dual variables of
    the dead groups share the force that holds their entries at zero. The gap grows if the dual variables of a group
    leave their ball.
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
