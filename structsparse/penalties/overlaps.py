"""Overlapping group lasso penalties: exact prox, one prox for each set of disjoint groups, or consensus ADMM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Cover, Partition
from structsparse.groups.cover import cover_families
from structsparse.kernels.memory import power_sum
from structsparse.penalties.base import Penalty, checked, past_signs
from structsparse.prox import Steps

ROUGH, FINE = 1e-2, 1e-12  # tolerance of the first and of the last prox in the search for a critical strength
PATIENCE = 60  # maximum number of passes over all groups in each prox of the search for a critical strength
# the prox tolerance is lowered if a Newton iteration raises the critical strength by a relative amount of at most
# max(GAIN * tolerance, LEAST_GAIN)
GAIN, LEAST_GAIN = 0.01, 1e-10
ROUNDS = 60  # maximum number of Newton iterations for a critical strength; usually fewer than 12 are needed


def climb(size: Tensor, omega: Callable[[Tensor], Tensor], shrink: Callable[..., Tensor], dual: Tensor) -> Tensor:
    """Overlapping group lasso penalty: the critical strength of a norm omega, by Newton's method.

    This is the smallest strength at which the prox of strength * omega, with steps of 1, is zero at the nonnegative
    tensor `size`. shrink(size, strength, ...) must compute this prox. `dual` holds the dual variables of the prox.

    The iterates rise from zero and never pass the result. Early proxes are inexact to save time. Each prox starts from
    the dual variables of the previous prox."""
    critical, V, tolerance = size.new_zeros(()), size, ROUGH
    for _ in range(ROUNDS):
        value = omega(V)
        bound = torch.where(value > 0, (size * V).sum() / value, 0.0)
        if not bool(bound > critical * (1 + max(GAIN * tolerance, LEAST_GAIN))):
            if tolerance <= FINE:
                break
            tolerance = max(FINE, 0.01 * tolerance)  # a more accurate prox may still raise the strength
        before, critical = critical, torch.maximum(bound, critical)
        dual *= torch.where(before > 0, critical / before, 0.0)
        V = shrink(size, critical, tolerance=tolerance, dual=dual, tell=False, rounds=PATIENCE)
    return critical


class OverlappingGroupLasso(Penalty):
    """Overlapping group lasso penalty: group norms over groups that may overlap, with an exact prox.

    The value is strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|). W_g are the entries of group g,
    weight_g is its factor, and i runs over all entries in groups.

    `prox_` stops when the duality gap shows that its error is at most tolerance * ||W||. Error and norm are in the
    metric 1 / steps. Groups whose dual variables lie strictly inside the dual ball become exactly zero.

    With `warm`, each prox starts from the dual variables of the previous call, otherwise from zero. A warm start is
    faster if W changes little. The last digits then depend on earlier calls."""

    groups: Cover
    takes = (Cover, Partition)

    def __init__(
        self, groups: Cover, strength: float, mix: float = 0.0, tolerance: float = prox.TOLERANCE, warm: bool = False
    ):
        super().__init__(strength, _checked_cover(groups, type(self).__name__))
        self.mix = checked(mix, f"the mix of {type(self).__name__}", most=1)
        self.tolerance = checked(tolerance, f"the tolerance of {type(self).__name__}", most=1)
        self.warm, self._duals = warm, {}

    def value(self, W: Tensor) -> Tensor:
        """Overlapping group lasso penalty: the value, strength times weighted group norms plus l1 norm."""
        omega = (1 - self.mix) * (self.groups.weight * self.groups.norms(W)).sum()
        if self.mix > 0:
            omega = omega + self.mix * power_sum(self._grouped(W), 1)
        return self.strength * omega

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Overlapping group lasso penalty: the prox, in place, exact up to `tolerance`."""
        strengths = self.strength * (1 - self.mix), self.strength * self.mix

        def shrink_(part: Tensor, groups: Cover) -> None:
            """Overlapping group lasso penalty: the prox of a part of the parameter, in place."""
            prox.overlapping_shrink_(part, groups, *strengths, steps, self.tolerance, self._dual(part, steps))

        return self.groups.apply_(W, shrink_)

    @torch.no_grad()
    def gap(self, W: Tensor, grad: Tensor) -> Tensor:
        """Overlapping group lasso penalty: norm of the smallest subgradient of loss plus penalty over each group.

        `grad` is the gradient of the loss at W. First, the gradients of the norms of nonzero groups are added. The
        penalties of zero groups and zero entries can balance part of this sum. A prox computes the remainder (Moreau's
        decomposition)."""
        groups, strength = self.groups, self.strength * (1 - self.mix)
        norms = groups.norms(W)
        pull = groups.scatter(torch.where(norms > 0, strength * groups.weight / norms, 0.0))
        rest = grad + groups.expand(pull, fill=0.0).to(W.dtype) * W
        rest = past_signs(rest, W, self.strength * self.mix * groups.covered().to(W.dtype))
        dead = torch.where(norms > 0, 0.0, groups.weight)
        prox.overlapping_shrink_(rest, groups, strength, 0.0, 1.0, self.tolerance, weight=dead)
        return groups.norms(rest)

    @torch.no_grad()
    def critical(self, grad_at_zero: Tensor) -> Tensor | None:
        """Overlapping group lasso penalty: the critical strength, which is the dual norm of the gradient.

        `grad_at_zero` is the gradient of the loss at W = 0."""
        # without the l1 norm, only the norms of the atoms matter; an atom is a set of entries that no group divides
        if self.mix == 0 and len(self.groups.atoms) < grad_at_zero.numel():
            return OverlappingGroupLasso(self.groups.outline(), 1.0).critical(self.groups.atoms.norms(grad_at_zero))
        covered = self.groups.covered() & self.groups.expand(self._reached(), fill=False)
        size = torch.where(covered, grad_at_zero.abs().double(), 0.0)
        return climb(size, self._omega, self._shrunk, prox.new_dual(self.groups, 1.0, size.device))

    def survivors(self, W: Tensor) -> Tensor:
        """Overlapping group lasso penalty: mask of the entries that lie in no zero group.

        With an l1 norm (mix > 0), zero entries of the groups are excluded."""
        spared = self.groups.spared(W).expand_as(W)
        return spared & ((W != 0) | ~self.groups.covered()) if self.mix > 0 else spared

    def _omega(self, V: Tensor) -> Tensor:
        """Overlapping group lasso penalty: the value at V without the strength: group norms plus l1 norm."""
        total = (1 - self.mix) * (self.groups.weight * self.groups.norms(V)).sum()
        return total + self.mix * V.abs().sum()

    def _shrunk(self, size: Tensor, strength: Tensor, **how) -> Tensor:
        """Overlapping group lasso penalty: the prox at the vector `size`, with the given strength and steps of 1."""
        return prox.overlapping_shrink_(
            size.clone(), self.groups, strength * (1 - self.mix), strength * self.mix, 1.0, **how
        )

    def _reached(self) -> Tensor:
        """Overlapping group lasso penalty: mask of the penalised atoms (sets of entries that no group divides)."""
        if self.mix > 0:
            return self.groups.multiplicity > 0
        return self.groups.scatter(self.groups.weight > 0) > 0

    def _grouped(self, W: Tensor) -> Tensor:
        """Overlapping group lasso penalty: copy of W with zeros at the entries that lie in no group."""
        return torch.where(self.groups.covered(), W, 0.0) if self.groups.free else W

    def _dual(self, W: Tensor, steps: Steps) -> Tensor | None:
        """Overlapping group lasso penalty: dual variables from which a warm prox starts; None without `warm`.

        Two sets of dual variables are stored. One is used if all entries of each atom have the same step, the other if
        not. An atom is a set of entries that no group divides."""
        if not self.warm:
            return None
        over_atoms = prox.one_step_per_atom(self.groups, steps)
        dual = self._duals.get(over_atoms)
        if dual is None or dual.device != W.device:
            dual = self._duals[over_atoms] = prox.new_dual(self.groups, steps, W.device)
        return dual


def _checked_cover(groups, penalty: str) -> Cover:
    """Overlapping group lasso penalty: the groups as a Cover; a Partition is converted to a Cover."""
    if isinstance(groups, Partition):
        return cover_families([groups])
    if not isinstance(groups, Cover):
        raise UserError(
            f"{penalty} has groups of type {type(groups).__name__}, expected a Cover of groups that may overlap, such "
            "as groups=coarse_to_fine or a file of groups, or a Partition; for a Forest choose TreeGroupLasso"
        )
    return groups


class NestedGroupLasso(OverlappingGroupLasso):
    """Group lasso penalty over nested groups: of any two overlapping groups, one contains the other.

    The value is strength * sum_g weight_g ||W_g||. W_g are the entries of group g, and weight_g is its factor. With one
    step size for all entries, one pass over the groups computes the exact prox, inner groups first. A budget (limit on
    the number of nonzero groups) is possible, see callbacks.budget."""

    def __init__(self, groups: Cover, strength: float, tolerance: float = prox.TOLERANCE):
        super().__init__(groups, strength, 0.0, tolerance)
        if not self.groups.nested:
            raise UserError(
                f"the groups of {self.groups.parameter} are not nested: of two that overlap, one must hold the other; "
                "choose reg=overlap or overlap_sequential"
            )

    @property
    def families(self) -> list[int]:
        """Overlapping (nested) group lasso penalty: the number of groups, as a list of length 1.

        All groups are one family: they share one strength."""
        return [len(self.groups)]

    def cut_(self, W: Tensor, steps: Steps, choose: prox.Choose) -> None:
        """Overlapping (nested) group lasso penalty: the prox at a strength that the callback `choose` picks.

        The critical strength of a group is the strength at which the prox makes it zero. From all critical strengths,
        choose(0, critical strengths) returns the strength of the prox, and a mask of the groups that become exactly
        zero. The 0 says that all groups share one strength (they are family 0)."""
        prox.cut_nested_(W, self.groups, steps, choose, self.tolerance)


class SequentialGroupLasso(OverlappingGroupLasso):
    """Overlapping group lasso penalty with an approximate prox: one set of disjoint groups after the other.

    Such a set is called a family. The value is strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|). W_g
    are the entries of group g, weight_g is its factor, and i runs over all entries in groups.

    If groups of different families overlap, `prox_` is not the prox of this value. Training then does not reach the
    optimum.

    `groups` is a Cover, which is split into families, or a list of Partitions in the order of application. `shared`
    says whether all families share one limit on the number of nonzero groups, see callbacks.budget."""

    def __init__(self, groups: Cover | Sequence[Partition], strength: float, mix: float = 0.0, shared: bool = False):
        if isinstance(groups, Partition):
            groups = [groups]
        if not (isinstance(groups, list | tuple) and groups and all(isinstance(f, Partition) for f in groups)):
            groups = _checked_cover(groups, type(self).__name__)
        if isinstance(groups, Cover):
            colours, order = groups.colours().sort(stable=True)
            cover = groups.subset(order)
        else:
            cover = cover_families(groups)
            sizes = [int((family.size > 0).sum()) for family in groups]
            colours = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        super().__init__(cover, strength, mix)
        self.shared = shared
        self.turns = prox.turns(cover, colours)

    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Overlapping group lasso penalty: approximate prox, in place, one set of disjoint groups after the other."""
        strengths = self.strength * (1 - self.mix), self.strength * self.mix
        return prox.shrink_in_turn_(W, self.groups, self.turns, *strengths, steps)

    @property
    def families(self) -> list[int]:
        """Overlapping group lasso penalty: the number of groups in each family (set of disjoint groups).

        The list is empty, and no budget of groups is possible, if there are several families and single entries are
        penalised."""
        if self.mix > 0 and len(self.turns) > 1:
            return []
        return [turn.groups.stop - turn.groups.start for turn in self.turns]

    def cut_(self, W: Tensor, steps: Steps, choose: prox.Choose) -> None:
        """Overlapping group lasso penalty: the prox of each set of disjoint groups at a strength that `choose` picks.

        Such a set, a family, shares one strength. The critical strength of a group is the strength at which the prox
        makes it zero. For family k, choose(k, critical strengths of its groups) returns the strength, and a mask of the
        groups that become exactly zero."""
        prox.cut_in_turn_(W, self.groups, self.turns, steps, choose)


class Residuals(NamedTuple):
    """Overlapping group lasso penalty: the residuals of consensus ADMM, both zero at the optimum."""

    primal: Tensor  # norm of the difference between the weights and the copies of all groups
    # rho (step parameter of ADMM) times the norm of d: for each entry, d is the change of the sum of its copies in one
    # outer iteration
    dual: Tensor


class ConsensusGroupLasso(OverlappingGroupLasso):
    """Overlapping group lasso penalty by consensus ADMM, where each group has a copy of its entries.

    The value is strength * ((1 - mix) * sum_g weight_g ||W_g|| + mix * sum |W_i|). W_g are the entries of group g,
    weight_g is its factor, and i runs over all entries in groups.

    v_g is the copy of W_g, u_g are scaled dual variables, and rho is the step parameter of ADMM. `prox_` pulls W
    towards the copies; it is the prox of strength * mix * ||W||_1 + rho / 2 * sum_g ||W_g - v_g + u_g||^2. Then
    `outer_update(W)` updates copies and dual variables:

        v_g <- group prox of (W_g + u_g) with strength * (1 - mix) * weight_g / rho,    u_g <- u_g + W_g - v_g.

    The iteration converges for every rho, if W is trained almost to the minimum before each update. With `adaptive`,
    rho changes by a factor of 2 to 10 if the primal and the dual relative residual differ by a factor of more than 4.

    W has exact zeros only if mix is above 0. The copies have exact zeros, and `survivors` uses the copies."""

    def __init__(self, groups: Cover, strength: float, mix: float = 0.0, rho: float = 1.0, adaptive: bool = False):
        super().__init__(groups, strength, mix)
        if not checked(rho, "the rho of ConsensusGroupLasso") > 0:
            raise UserError(f"the rho of ConsensusGroupLasso is {rho}, expected a number above 0")
        self.adaptive = adaptive
        entries = groups.atoms_entries
        self.register_buffer("rho", torch.tensor(float(rho), dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        for name, length in (("copies", groups.copies), ("duals", groups.copies)):
            self.register_buffer(name, torch.zeros(length, dtype=torch.float64))
        # sums over the copies and over the dual variables of each entry, sorted by atom (set that no group divides)
        for name in ("copy_sums", "dual_sums"):
            self.register_buffer(name, torch.zeros(entries, dtype=torch.float64))

    @torch.no_grad()
    def prox_(self, W: Tensor, steps: Steps) -> Tensor:
        """Overlapping group lasso penalty by consensus ADMM: the prox of l1 norm plus quadratic pull, in place.

        The quadratic pull draws W towards the copies of the groups."""
        self.groups.atoms.check(W)
        return prox.towards_consensus_(
            W, self.groups, self.copy_sums - self.dual_sums, self.rho, self.strength * self.mix, steps
        )

    @torch.no_grad()
    def outer_update(self, W: Tensor) -> Residuals:
        """Overlapping group lasso penalty by consensus ADMM: an outer iteration, which updates copies and duals.

        `W` holds the current weights. Returns the residuals."""
        self.groups.atoms.check(W)
        before = self.copy_sums.clone()
        reach = self.strength * (1 - self.mix) * self.groups.weight / self.rho
        apart, of_copies, of_weights = prox.update_consensus_(
            W, self.groups, reach, self.copies, self.duals, self.copy_sums, self.dual_sums
        )
        self.updates += 1
        residuals = Residuals(apart, self.rho * (self.copy_sums - before).norm())
        if self.adaptive:
            self._balance(residuals, torch.maximum(of_copies, of_weights))
        return residuals

    def survivors(self, W: Tensor) -> Tensor:
        """Overlapping group lasso penalty by consensus ADMM: mask of the selected entries.

        The mask excludes all entries of two kinds of groups: those whose weights in W are all zero, and those whose
        copy is all zero. With mix > 0, it excludes every zero entry of W that lies in a group."""
        if not bool(self.updates):
            return super().survivors(W)
        return super().survivors(W) & prox.spared_by_copies(self.groups, self.copies).view(W.shape)

    def _balance(self, residuals: Residuals, size: Tensor) -> None:
        """Overlapping group lasso penalty by consensus ADMM: change rho so that two relative residuals become similar.

        One is the primal residual / `size`, where `size` is the larger of two norms, of the copies and of the weights.
        The other is the dual residual / (rho * norm of the dual variables, summed over the copies of each entry). The
        products rho * duals do not change."""
        tiny = torch.finfo(torch.float64).tiny
        primal = residuals.primal / size.clamp(min=tiny)
        dual = residuals.dual / (self.rho * self.dual_sums.norm()).clamp(min=tiny)
        factor = (primal / dual.clamp(min=tiny)).sqrt().clamp(0.1, 10.0)
        factor = torch.where((factor > 2) | (factor < 0.5), factor, 1.0)
        self.rho *= factor
        self.duals /= factor
        self.dual_sums /= factor
