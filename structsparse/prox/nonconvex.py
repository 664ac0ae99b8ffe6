"""Prox of nonconvex penalties (l0, log-sum, MCP) on the size of an entry or on the norm of a group.

The prox moves an entry or a group straight towards zero. The length of the move depends on the absolute value or norm,
and on threshold = strength * weight * step. Of zero and the best nonzero point, the prox returns the better one, and
zero in a tie.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structsparse.groups import Partition
from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import nonconvex as kernels
from structsparse.prox.steps import Steps, changed, is_scalar, steps_array, thresholds


class Movement(NamedTuple):
    """Nonconvex prox as a function of absolute entries or group norms: how far the prox moves them towards zero."""

    sizes: Callable[[Tensor, Tensor], Tensor]  # function (sizes, thresholds): how far each size moves towards zero
    kernel: Callable  # numba kernel that applies the same prox to entries in CPU memory
    parameter: float = 0.0  # argument of the kernel: epsilon of log-sum, reach of the MCP; l0 ignores it


def hard() -> Movement:
    """Nonconvex prox of the l0 penalty, the hard threshold: an absolute value or norm v becomes zero or does not move.

    The penalty is threshold * (1 if v > 0).
    """
    return Movement(lambda size, threshold: torch.where(size <= (2 * threshold).sqrt(), size, 0.0), kernels.move_hard)


def log_sum(epsilon: float) -> Movement:
    """Nonconvex prox of the log-sum penalty, threshold * epsilon * log(1 + v / epsilon), of an entry or norm v."""

    def moves(size: Tensor, threshold: Tensor) -> Tensor:
        """Nonconvex prox of the log-sum penalty: how far absolute entries or group norms (`size`) move towards zero."""
        # the best nonzero size is the larger root v of (v + epsilon) (v - size) + epsilon * threshold = 0
        past = size - epsilon
        discriminant = past * past + 4 * epsilon * (size - threshold)
        root = discriminant.clamp(min=0).sqrt()
        near = 2 * epsilon * (size - threshold) / (root - past)  # the larger root, without cancellation
        living = torch.where(past >= 0, (past + root) / 2, near)
        better = threshold * epsilon * torch.log1p(living / epsilon) < living * (size - living / 2)
        moved = threshold * (epsilon / (epsilon + living))
        dies = (discriminant < 0) | (living <= 0) | ~better
        return torch.where(dies & (threshold > 0), size, moved)

    return Movement(moves, kernels.move_log_sum, epsilon)


def firm(reach: float) -> Movement:
    """Nonconvex prox of the MCP (minimax concave penalty), the firm threshold.

    The penalty of an absolute value or norm v is threshold * (v - v^2 / (2 reach)) up to v = reach. Beyond it is
    constant: threshold * reach / 2.
    """

    def moves(size: Tensor, threshold: Tensor) -> Tensor:
        """Nonconvex prox of the MCP: how far absolute entries or group norms (`size`) move towards zero."""
        concave = threshold >= reach  # if the objective is concave, its minimum is at 0 or at `size`
        gentle = torch.where(concave, 0.0, threshold)
        kept = gentle * (reach - size) / (reach - gentle)
        dies = size <= torch.where(concave, (reach * threshold).sqrt(), threshold)
        return torch.where(dies, size, torch.where(concave | (size >= reach), 0.0, kept))

    return Movement(moves, kernels.move_firm, reach)


@torch.no_grad()
def move_entries_(W: Tensor, strength: Steps, steps: Steps, movement: Movement) -> Tensor:
    """Nonconvex prox of a penalty on the absolute value of each entry, in place.

    `movement` computes how far an absolute value moves towards zero.
    """
    if not walkable(W):
        size = W.abs()
        return W.sub_(torch.copysign(movement.sizes(size, thresholds(strength, steps, W).to(W.dtype)), W))
    if is_scalar(steps):
        strength, steps = thresholds(strength, steps, W), torch.ones(1, dtype=W.dtype).numpy()
    else:
        steps = steps_array(steps, W)
    if strength > 0:
        movement.kernel(flat_array(W), steps, float(strength), movement.parameter)
    return changed(W)


@torch.no_grad()
def move_groups_(W: Tensor, groups: Partition, strength: Steps, steps: float | Tensor, movement: Movement) -> Tensor:
    """Nonconvex prox of a penalty on the norm of each disjoint group, in place, with one step for all entries.

    `movement` computes how far a norm moves towards zero.
    """
    norms = groups.norms(W)
    share = movement.sizes(norms, thresholds(strength, steps, W) * groups.weight) / norms.clamp(
        min=torch.finfo(norms.dtype).tiny
    )
    return W.addcmul_(W, groups.expand(share, fill=0.0).to(W.dtype), value=-1)


@torch.no_grad()
def drop_groups_(W: Tensor, groups: Partition, strength: Steps, steps: Steps) -> Tensor:
    """Nonconvex prox of group l0, in place, in any diagonal metric (a step per entry).

    The penalty is strength * sum of weight_g over the nonzero groups, where weight_g is the factor of group g.
    """
    if is_scalar(steps):
        norms, least = groups.norms(W), (2 * thresholds(strength, steps, W) * groups.weight).sqrt()
    else:
        squares = W.double().square() / steps.double()  # 0 / 0 = NaN for a zero entry with step 0
        norms, least = groups.sums(torch.where(W == 0, 0.0, squares)), 2 * strength * groups.weight
    dies = (norms <= least) & (least > 0)  # unpenalised groups are kept, even if the norm underflows to 0
    return W.masked_fill_(groups.expand(dies, fill=False), 0.0)
