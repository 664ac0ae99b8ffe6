"""Prox of total variation along sequences (fused lasso), and of the sorted l1 norm (SLOPE)."""

import torch
from torch import Tensor

from structsparse.kernels.memory import walkable
from structsparse.kernels.prox import sequences as kernels
from structsparse.prox.steps import Steps, changed, is_scalar, refuse_entry_steps, thresholds


@torch.no_grad()
def smooth_(W: Tensor, dimension: int, strength: Steps, steps: Steps) -> Tensor:
    """Prox of total variation along sequences, in place: strength * sum |V[t + 1] - V[t]|.

    The position t runs along one dimension. The result is exact, even with a step per entry.
    """
    if not strength > 0 or W.numel() == 0:
        return W
    if is_scalar(steps):
        strength, steps = float(thresholds(strength, steps, W)), torch.ones((1, 1, 1), dtype=W.dtype, device=W.device)
        if strength == 0:
            return W
    else:
        steps = as_chains(steps.to(W.dtype).expand_as(W).contiguous(), dimension)
    if walkable(W):
        kernels.smooth_chains(as_chains(W.detach(), dimension).numpy(), steps.numpy(), float(strength))
        return changed(W)
    chains = W.movedim(dimension, 0)  # shape [positions, ...]
    wide = steps.double().transpose(0, 1).flatten(1).expand(len(chains), -1)
    return W.copy_(_smooth(chains.flatten(1).double(), wide, strength).view(chains.shape).movedim(0, dimension))


def as_chains(X: Tensor, dimension: int) -> Tensor:
    """Total variation prox: view of a contiguous tensor as sequences along one dimension.

    The view has the shape [outer, positions, inner].
    """
    dimension = dimension % X.dim()
    return X.view(X.shape[:dimension].numel(), X.shape[dimension], X.shape[dimension + 1 :].numel())


def _smooth(X: Tensor, steps: Tensor, strength: Steps) -> Tensor:
    """Prox of total variation in torch, for all sequences of X [positions, sequences] at once.

    `kernels.prox.sequences` explains the algorithm.
    """
    time, chains = X.shape
    knots = X.new_zeros(3, 2 * time + 2, chains)
    first = torch.full((chains,), time, device=X.device)
    end = first.clone()
    lowest, highest = torch.empty_like(X), torch.empty_like(X)
    strength = X.new_ones(chains) * strength
    for t, (w, step) in enumerate(zip(X, steps.expand(time, chains), strict=True)):
        fixed, slope = step == 0, 1 / step.clamp(min=torch.finfo(X.dtype).tiny, max=kernels.LONGEST)
        start = strength if t == 0 else torch.zeros_like(strength)
        if t == time - 1:
            lowest[t] = torch.where(fixed, w, _crossing(w, start - strength, slope, 1, first, end, knots)[0])
            break
        left, rise, left_jump, passed = _crossing(w, start, slope, 1, first, end, knots)
        first = first + passed
        right, fall, right_jump, passed = _crossing(w, -start, slope, -1, first, end, knots)
        first, end = torch.where(fixed, time, first - 1), torch.where(fixed, time, end - passed)
        left, right = torch.where(fixed, w, left), torch.where(fixed, w, right)
        _put(knots, end, right, -fall, right_jump)
        _put(knots, first, left, rise.masked_fill(fixed, 0), torch.where(fixed, 2 * strength, left_jump))
        end, lowest[t], highest[t] = end + 1, left, right
    V = torch.empty_like(X)
    V[-1] = lowest[-1]
    for t in range(time - 2, -1, -1):
        V[t] = torch.minimum(torch.maximum(V[t + 1], lowest[t]), highest[t])
    return torch.clamp(V, X.amin(0), X.amax(0)).add_(0.0)  # despite rounding, the result stays in the range of X


def _put(knots: Tensor, where: Tensor, *values: Tensor) -> None:
    """Total variation prox of sequences in torch: add one knot to the queue of each sequence.

    The derivative of the objective is piecewise linear. A knot is a position where the slope of the derivative changes
    or the derivative itself jumps. It is stored as (position, change of slope, height of the jump).
    """
    knots.scatter_(1, where.expand(3, 1, -1), torch.stack(values)[:, None])


def _crossing(place, past, slope, side: int, first, end, knots):
    """Total variation prox of sequences in torch: where the derivative of the objective crosses a target value.

    All sequences are processed at once. The numba kernel of the same name explains the arguments.
    """
    rise, passed, jump = slope, torch.zeros_like(first), torch.zeros_like(slope)
    moving, jumped = first < end, torch.zeros_like(first, dtype=torch.bool)
    while moving.any():
        which = first + passed if side > 0 else end - 1 - passed
        spot, kink, leap = knots.gather(1, which.clamp(0, knots.shape[1] - 1).expand(3, 1, -1))[:, 0]
        there = past + rise * (spot - place)
        moving = moving & (side * there < 0)
        place, past = torch.where(moving, spot, place), torch.where(moving, there + side * leap, past)
        rise = torch.where(moving, torch.maximum(rise + side * kink, slope), rise)
        passed = passed + moving
        beyond = moving & (side * past >= 0)
        jump, jumped = torch.where(beyond, side * past, jump), jumped | beyond
        moving = moving & ~beyond & (first + passed < end)
    return torch.where(jumped, place, place - past / rise), rise, jump, passed


@torch.no_grad()
def sorted_shrink_(W: Tensor, weights: Tensor, strength: Steps, steps: float | Tensor) -> Tensor:
    """Prox of the sorted l1 norm (SLOPE) at W, in place; the sequence of the entries of W may have any order.

    The penalty is strength * sum_i weights_i |V|_(i), where |V|_(1) >= |V|_(2) >= ... The weights must be sorted in
    descending order.
    """
    refuse_entry_steps(steps, "sorted weights", "an order of entries that move at different rates has no such prox")
    size, order = W.abs().flatten().double().sort(descending=True)
    size.sub_((thresholds(strength, steps, W) * weights).nan_to_num(nan=0.0, posinf=torch.inf))
    if walkable(size):
        kernels.fall_and_stop(size.numpy())
    else:
        size = _fall_and_stop(size)
    size = torch.empty_like(size).index_copy_(0, order, size).view(W.shape).to(W.dtype)
    return W.copy_(torch.where(size == 0, 0.0, size.copysign_(W)))


def _fall_and_stop(x: Tensor) -> Tensor:
    """Sorted l1 prox (SLOPE) of a sequence in torch: isotonic regression of x.

    The result is the vector nearest to x that is nonnegative and does not increase. Each iteration merges neighbouring
    blocks whose means increase.
    """
    member = torch.arange(len(x), device=x.device)
    total, count = x, torch.ones_like(x)
    while (rises := (total / count).diff() > 0).any():
        block = torch.cat([member.new_zeros(1), (~rises).cumsum(0)])
        blocks = int(block[-1]) + 1
        total = total.new_zeros(blocks).index_add_(0, block, total)
        count = count.new_zeros(blocks).index_add_(0, block, count)
        member = block[member]
    return (total / count).clamp(min=0)[member]
