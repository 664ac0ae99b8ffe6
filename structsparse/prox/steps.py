"""Step sizes of a prox: one step or a step per entry, thresholds, checks, and arrays for the numba kernels."""

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.kernels.memory import flat_array

Steps = float | Tensor


def thresholds(strength: Steps, steps: Steps, W: Tensor) -> Tensor:
    """Thresholds of a prox: strength * step sizes, in the precision of W; 0 * inf counts as 0."""
    strength = torch.as_tensor(strength, dtype=torch.float64) if is_scalar(strength) else strength
    steps = steps if is_scalar(steps) else steps.to(W.dtype)
    return (strength * steps).nan_to_num(nan=0.0, posinf=torch.inf)


def is_scalar(steps: Steps) -> bool:
    """Whether a prox has one step size for all entries, instead of a step size per entry."""
    return not isinstance(steps, Tensor) or steps.dim() == 0


def refuse_entry_steps(steps: Steps, penalty: str, advice: str) -> None:
    """Raise UserError for a step size per entry, if the prox needs one step size for all entries.

    `penalty` and `advice` are parts of the message.
    """
    if not is_scalar(steps):
        raise UserError(
            f"the prox of {penalty} takes one step for all entries, got one for each as in {tuple(steps.shape)} "
            f"(adaptive optimizers take such steps): {advice}"
        )


def number(value: Steps, W: Tensor):
    """Step size or threshold of a prox as a scalar in the dtype of W.

    The numba kernels then compute in this dtype.
    """
    return W.detach().numpy().dtype.type(value)


def steps_array(steps: Tensor, W: Tensor):
    """Step sizes of a prox as a flat numpy array, one step size per entry of W."""
    return flat_array(steps.to(W.dtype).expand_as(W).contiguous())


def changed(W: Tensor) -> Tensor:
    """Tell autograd that a prox (a numba kernel) has written to W in place; returns W."""
    torch.autograd.graph.increment_version(W)
    return W
