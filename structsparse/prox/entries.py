"""Prox of penalties that are sums over single entries: soft threshold (l1) and shrinkage (squared l2)."""

import torch
from torch import Tensor

from structsparse.kernels.memory import flat_array, walkable
from structsparse.kernels.prox import entries as kernels
from structsparse.prox.steps import Steps, changed, is_scalar, number, steps_array, thresholds


@torch.no_grad()
def soft_threshold_(W: Tensor, strength: Steps, steps: Steps) -> Tensor:
    """Prox of the l1 norm on entries, strength * ||V||_1, in place: the soft threshold.

    Every entry moves towards zero by strength * step, but not beyond zero.
    """
    if not walkable(W):
        cut = thresholds(strength, steps, W)
        return W.sub_(torch.clamp(W, -cut, cut))
    if is_scalar(steps):
        kernels.soft_threshold(flat_array(W), number(thresholds(strength, steps, W), W))
    elif strength > 0:
        kernels.soft_threshold_metric(flat_array(W), steps_array(steps, W), number(strength, W))
    return changed(W)


@torch.no_grad()
def shrink_(W: Tensor, strength: Steps, steps: Steps) -> Tensor:
    """Prox of the squared l2 norm (ridge) on entries, strength / 2 * ||V||^2, in place.

    The result is V = W / (1 + strength * steps).
    """
    if not walkable(W) or is_scalar(steps):
        return W.div_(1 + thresholds(strength, steps, W))
    if strength > 0:
        kernels.shrink_metric(flat_array(W), steps_array(steps, W), number(strength, W))
    return changed(W)


@torch.no_grad()
def shrink_and_shorten_(W: Tensor, ridge: float, steps: Steps) -> Steps:
    """Prox of a ridge on entries beside another penalty, in place: W <- W / (1 + ridge * steps).

    The prox of the other penalty must follow. Returns its steps: steps / (1 + ridge * steps).
    """
    if ridge == 0:
        return steps
    if is_scalar(steps):
        steps = torch.as_tensor(steps, dtype=torch.float64)
    if is_scalar(steps) or not walkable(W):
        W.div_(1 + thresholds(ridge, steps, W))
        return 1 / (1 / steps + ridge)
    steps = steps.to(W.dtype).expand_as(W).contiguous()
    shorter = torch.empty_like(steps)
    kernels.shrink_and_shorten(flat_array(W), flat_array(steps), number(ridge, W), flat_array(shorter))
    changed(W)
    return shorter
