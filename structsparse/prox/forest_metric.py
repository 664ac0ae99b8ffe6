"""Prox of Euclidean norms of nested groups (a forest) in a diagonal metric, by Newton's method.

A diagonal metric is a step per entry. `kernels.prox.forest_metric` explains the method.
"""

import torch
from torch import Tensor

from structsparse.groups.forest import Forest
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import forest_metric as kernels
from structsparse.prox.steps import Steps, changed, steps_array

ARRAYS = 8  # number of scratch arrays that the kernel needs, each with one number per node


@torch.no_grad()
def forest_shrink_metric_(W: Tensor, groups: Forest, strength: Steps, steps: Tensor, accuracy: float = 0.0) -> Tensor:
    """Prox of norms of the subtrees of a forest in a diagonal metric (a step per entry), in place.

    The penalty is strength * sum_g weight_g ||V_g||. V_g are the entries of subtree g, and weight_g is its factor.
    Newton's method stops at the relative error `accuracy` of the penalty's value.
    """
    if W.is_meta or len(groups) == 0:
        return W
    if not walkable(W):
        reach = groups.in_levels((strength * groups.weight).nan_to_num(nan=0.0, posinf=torch.inf))
        return _Newton(W, groups, steps, reach).shrink_(W, accuracy)
    scratch = groups.scratch.array("bent", ARRAYS * len(groups)).reshape(ARRAYS, -1)
    tree = groups.above.numpy(), groups.levels, groups.in_levels(groups.weight.double()).numpy(), float(strength)
    kernels.shrink_forest_metric(
        flat_array(W), steps_array(steps, W), *groups.level_memory().owned, *tree, accuracy, scratch
    )
    return changed(W)


class _Newton:
    """Forest prox in a diagonal metric: Newton's method in torch.

    The unknown of each node is tau = threshold / norm. The threshold (`reach`) is strength * weight of the node, and
    the norm is that of its subtree after the prox. q is the sum of tau along the path from the root to the node. Arrays
    with one number per node are in level order (sorted by depth).
    """

    def __init__(self, W: Tensor, groups: Forest, steps: Tensor, reach: Tensor) -> None:
        self.groups, self.reach = groups, reach
        self.steps = steps.double().expand(groups.shape)
        self.levels, self.roots = groups.steps_between_levels(), int(groups.levels[1])
        self.x = W.double()

    def shrink_(self, W: Tensor, accuracy: float) -> Tensor:
        """Forest prox in a diagonal metric: W <- the prox of norms of subtrees, by Newton's method.

        The iteration stops when the relative error of the penalty's value is at most `accuracy`.
        """
        tau = self._begin()
        last, safe = torch.inf, False
        for rounds in range(kernels.ROUNDS):
            q = self._down_path(tau)
            worst, share, state = self._up(tau, q)
            enough = max(accuracy, kernels.FAINT) if rounds > kernels.FEW else accuracy
            if not worst > kernels.EXACT or not share > enough:
                break
            safe = worst > kernels.STALLED * last and rounds > 3 and not safe
            last = worst
            tau = self._moved(tau, q, state, safe)
        q = self._of_entries(q, 0.0)
        return W.copy_(torch.where(q.isinf(), 0.0, self._shrunk(q))).add_(0.0)

    def _begin(self) -> Tensor:
        """Forest prox in a diagonal metric: starting point of Newton's method.

        The unknown of each subtree is tau = threshold / norm after the prox. This method returns the first tau, and
        stores upper bounds of tau.
        """
        metric = torch.where(self.x == 0, 0.0, self.x / self.steps)
        squares, factor = self._of_nodes(metric * metric), torch.empty_like(self.reach)
        for a, b in [*reversed(self.levels), (0, self.roots)]:
            norm = squares[a:b].sqrt()
            share = torch.where(norm <= self.reach[a:b], 0.0, 1 - self.reach[a:b] / norm)
            factor[a:b] = torch.where(self.reach[a:b] > 0, share, 1.0)
            squares[a:b] = torch.where(factor[a:b] > 0, squares[a:b] * factor[a:b].square(), 0.0)
            if a > 0:
                self._to_parents(squares, a, b, squares[a:b])
        # `squares`: squared norm of x / steps on each subtree; inner subtrees are shrunk first, then the subtree itself
        self.bound = self.reach / squares.sqrt()
        self.stiffest = self._stiffest()
        for a, b in self.levels:
            factor[a:b] *= factor[self.groups.above[a:b]]
        norms = self._up_path(self._of_nodes(self.x * self.x) * factor.square()).sqrt()
        return torch.where(factor == 0, torch.inf, torch.where(self.reach > 0, self.reach / norms, 0.0))

    def _up(self, tau: Tensor, q: Tensor):
        """Forest prox in a diagonal metric: upward pass of the elimination in Newton's method, from leaves to roots.

        `tau` is threshold / norm of each subtree, and `q` sums tau along the path from the root. The residual of a
        subtree is norm * tau / threshold - 1. Returns the largest absolute residual, the mean absolute residual with
        weights threshold * norm, and intermediate results for `_moved`.
        """
        of = self._of_entries(q, 0.0)
        v = torch.where(of.isinf(), 0.0, self._shrunk(of))
        weight = torch.where(of > 0, v * v / (1 + self.steps * of), 0.0).nan_to_num(nan=0.0)
        squares = self._up_path(self._of_nodes(v * v))
        moving = torch.where(weight > 0, weight * self.steps, 0.0)
        delta, metric, pull = self._of_nodes(moving), self._of_nodes(weight), torch.zeros_like(tau)
        dead = tau.isinf() | ((squares == 0) & (tau > 0))
        tau[dead], q[dead] = torch.inf, torch.inf
        bears = ~dead & (tau > 0)
        norms = squares.sqrt()
        residual = torch.where(bears, norms * tau / self.reach - 1, 0.0)
        of_node = squares * residual
        for a, b in [*reversed(self.levels), (0, self.roots)]:
            before = q[self.groups.above[a:b]] if a > 0 else torch.zeros_like(q[a:b])
            free = delta[a:b] == 0
            left = torch.where(free, torch.inf, metric[a:b] / delta[a:b])
            delta[a:b] = left
            ratio = torch.where(bears[a:b] & ~free, (q[a:b] + left) / (before + left), 1.0)
            pull[a:b] = (pull[a:b] + of_node[a:b]) * ratio
            if a > 0:
                counts = ~dead[a:b] & (before > 0)
                weight = torch.where(counts, squares[a:b] / (before + left), 0.0)
                held = torch.where(counts, squares[a:b] * torch.where(free, 1.0, left / (before + left)), 0.0)
                self._to_parents(delta, a, b, weight)
                self._to_parents(metric, a, b, held)
                self._to_parents(pull, a, b, torch.where(dead[a:b], 0.0, pull[a:b] - of_node[a:b]))
        value = self.reach[bears] * norms[bears]
        share = (value * residual[bears].abs()).sum() / value.sum().clamp(min=1e-300)
        return float(residual.abs().amax()), float(share), (squares, delta, pull, norms, bears)

    def _moved(self, tau: Tensor, q: Tensor, state, safe: bool) -> Tensor:
        """Forest prox in a diagonal metric: the next tau (threshold / norm) of each subtree, by a Newton step.

        `state` comes from the upward pass `_up`. If `safe`, a fixed-point iteration replaces the Newton step.
        """
        squares, delta, pull, norms, bears = state
        if safe:
            return self._bounded(torch.where(bears, self.reach / norms, tau), bears)
        y, change = torch.zeros_like(tau), torch.where(bears, pull / squares, 0.0)
        for a, b in [(0, self.roots), *self.levels]:
            if a > 0:
                above = self.groups.above[a:b]
                carried = torch.where(bears[a:b] & (y[above] != 0), y[above] / (q[above] + delta[a:b]), 0.0)
                change[a:b] += carried
                y[a:b] = y[above]
            y[a:b] += torch.where(bears[a:b], change[a:b] * tau[a:b], 0.0)
        return self._bounded(torch.where(bears, tau / (1 + change.clamp(kernels.LEAST, kernels.MOST)), tau), bears)

    def _bounded(self, tau: Tensor, bears: Tensor) -> Tensor:
        """Forest prox in a diagonal metric: tau (threshold / norm) of each subtree, clipped to its upper bound.

        `bears` marks the nonzero subtrees with a penalty.
        """
        q = torch.zeros_like(tau)
        for a, b in [(0, self.roots), *self.levels]:
            before = q[self.groups.above[a:b]] if a > 0 else 0.0
            most = (self.bound[a:b] * (self.stiffest[a:b] + before)).nan_to_num(nan=torch.inf, posinf=torch.inf)
            tau[a:b] = torch.where(bears[a:b], torch.minimum(tau[a:b], most), tau[a:b])
            q[a:b] = tau[a:b] + before
        return tau

    def _stiffest(self) -> Tensor:
        """Forest prox in a diagonal metric: largest 1 / step over the nonzero entries of each subtree."""
        metric = torch.where(self.x == 0, 0.0, 1 / self.steps)
        owners = self.groups.ids.expand(self.groups.shape).flatten().remainder(len(self.reach) + 1)
        largest = self.reach.new_zeros(len(self.reach) + 1).scatter_reduce(0, owners, metric.flatten(), "amax")[:-1]
        largest = self.groups.in_levels(largest).clone()
        for a, b in reversed(self.levels):
            largest[:a].scatter_reduce_(0, self.groups.above[a:b].long(), largest[a:b], "amax")
        return largest

    def _shrunk(self, q: Tensor) -> Tensor:
        """Forest prox in a diagonal metric: the entries x / (1 + step * q), with a number q for each entry.

        If q is 0 the entry does not change, even if the step is infinite.
        """
        return torch.where((q > 0) & (self.x != 0), self.x / (1 + self.steps * q), self.x)

    def _of_nodes(self, X: Tensor) -> Tensor:
        """Forest prox in a diagonal metric: sums of X over the entries of each node, without the nodes below.

        The nodes are in level order (sorted by depth).
        """
        return self.groups.in_levels(self.groups.own.sums(X))

    def _of_entries(self, values: Tensor, fill: float) -> Tensor:
        """Forest prox in a diagonal metric: expand values [nodes] to entries, each with the value of its node.

        The values are in level order (sorted by depth). Entries in no node get `fill`.
        """
        return self.groups.expand(self.groups.in_nodes(values), fill=fill)

    def _to_parents(self, values: Tensor, a: int, b: int, added: Tensor) -> None:
        """Forest prox in a diagonal metric: add one number per node of a level to the values of the parents, in place.

        The level has the indices a to b in level order (sorted by depth). `added` holds the numbers.
        """
        values[:a].index_add_(0, self.groups.above[a:b], added)

    def _up_path(self, values: Tensor) -> Tensor:
        """Forest prox in a diagonal metric: sums of values [nodes] over each subtree, in place."""
        for a, b in reversed(self.levels):
            self._to_parents(values, a, b, values[a:b])
        return values

    def _down_path(self, values: Tensor) -> Tensor:
        """Forest prox in a diagonal metric: sums of values [nodes] along the path from the root to each node."""
        values = values.clone()
        for a, b in self.levels:
            values[a:b] += values[self.groups.above[a:b]]
        return values
