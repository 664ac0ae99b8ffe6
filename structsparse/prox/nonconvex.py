"""Prox of nonconvex penalties of a size (l0, log-sum, MCP): the size of an entry, or the norm of a group.

The prox moves an entry or a group straight towards zero. How far is a function of its size and of its threshold =
strength * weight * step. As the penalty is not convex, the result is the better of zero and of the best point away
from it, zero if both are equally good.
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
    """How far the prox of a penalty moves sizes."""

    sizes: Callable[[Tensor, Tensor], Tensor]  # sizes, their thresholds -> how far each moves: at most to zero
    kernel: Callable  # the same for entries in CPU memory
    parameter: float = 0.0


def hard() -> Movement:
    """Hard threshold, of threshold * (1 if v > 0): to zero or not at all."""
    return Movement(lambda size, threshold: torch.where(size <= (2 * threshold).sqrt(), size, 0.0), kernels.move_hard)


def log_sum(epsilon: float) -> Movement:
    """Movement of the log-sum penalty, threshold * epsilon * log(1 + v / epsilon)."""

    def moves(size: Tensor, threshold: Tensor) -> Tensor:
        # v > 0 with (v + epsilon) (v - size) + epsilon * threshold = 0: the larger root of the two
        past = size - epsilon
        discriminant = past * past + 4 * epsilon * (size - threshold)
        root = discriminant.clamp(min=0).sqrt()
        near = 2 * epsilon * (size - threshold) / (root - past)  # the same root, where size < epsilon would cancel
        living = torch.where(past >= 0, (past + root) / 2, near)
        better = threshold * epsilon * torch.log1p(living / epsilon) < living * (size - living / 2)
        moved = threshold * (epsilon / (epsilon + living))
        dies = (discriminant < 0) | (living <= 0) | ~better
        return torch.where(dies & (threshold > 0), size, moved)

    return Movement(moves, kernels.move_log_sum, epsilon)


def firm(reach: float) -> Movement:
    """Firm threshold, of the MCP: threshold * (v - v^2 / (2 reach) up to reach, reach / 2 beyond)."""

    def moves(size: Tensor, threshold: Tensor) -> Tensor:
        concave = threshold >= reach  # everywhere: then only zero and the size itself can be best
        gentle = torch.where(concave, 0.0, threshold)
        kept = gentle * (reach - size) / (reach - gentle)
        dies = size <= torch.where(concave, (reach * threshold).sqrt(), threshold)
        return torch.where(dies, size, torch.where(concave | (size >= reach), 0.0, kept))

    return Movement(moves, kernels.move_firm, reach)


@torch.no_grad()
def move_entries_(W: Tensor, strength: Steps, steps: Steps, movement: Movement) -> Tensor:
    """Prox of a nonconvex penalty on each entry by itself."""
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
    """Prox of a nonconvex penalty on the norm of each group; one step for all entries."""
    norms = groups.norms(W)
    share = movement.sizes(norms, thresholds(strength, steps, W) * groups.weight) / norms.clamp(
        min=torch.finfo(norms.dtype).tiny
    )
    return W.addcmul_(W, groups.expand(share, fill=0.0).to(W.dtype), value=-1)


@torch.no_grad()
def drop_groups_(W: Tensor, groups: Partition, strength: Steps, steps: Steps) -> Tensor:
    """Prox of group l0, strength * sum of weight_g over the groups that are not zero, in any diagonal metric."""
    if is_scalar(steps):
        norms, least = groups.norms(W), (2 * thresholds(strength, steps, W) * groups.weight).sqrt()
    else:
        squares = W.double().square() / steps.double()  # 0 / 0 where a zero cannot move
        norms, least = groups.sums(torch.where(W == 0, 0.0, squares)), 2 * strength * groups.weight
    dies = (norms <= least) & (least > 0)  # squares may underflow where weights do not
    return W.masked_fill_(groups.expand(dies, fill=False), 0.0)
