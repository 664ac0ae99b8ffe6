"""Effective step sizes of torch's own optimizers (SGD, Adagrad, RMSprop, Adam), for a prox after each step.

A metric function returns the effective step size divided by `group["lr"]`. The arguments are the options of a parameter
group and the optimizer's state of one parameter. The metric of Adam includes the bias correction of the mean squared
gradient."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from structsparse.base.errors import UserError


def check_group(name: str, group: dict, parameter: Tensor) -> None:
    """Raise an error for optimizer options whose effective step fits no prox, such as weight decay."""
    what = f"{name} of a penalised parameter {tuple(parameter.shape)}"
    if group.get("maximize", False):
        raise UserError(f"{what} has maximize=True: a penalty is for a loss that is minimised")
    if group.get("weight_decay", 0) != 0:
        raise UserError(f"{what} has weight_decay={group['weight_decay']}: it would be penalised twice; expected 0")
    if not group.get("momentum", 0) < 1:
        raise UserError(f"{what} has momentum={group['momentum']}: its step grows without end; expected less than 1")


def _sgd(group: dict, state: dict) -> float:
    """Effective step of torch's SGD over the learning rate: (1 - dampening) / (1 - momentum).

    Under a constant gradient g the momentum buffer tends to g * (1 - dampening) / (1 - momentum), also with Nesterov
    momentum."""
    if group["momentum"] == 0:
        return 1.0
    return (1 - group["dampening"]) / (1 - group["momentum"])


def _adagrad(group: dict, state: dict) -> float | Tensor:
    """Effective step of torch's Adagrad over the learning rate: 1 / (sqrt(sum of squares) + eps), with decay."""
    if not state:
        return 0.0
    inverse = state["sum"].sqrt().add_(group["eps"]).reciprocal_()
    return inverse.div_(1 + (state["step"] - 1) * group["lr_decay"]) if group["lr_decay"] != 0 else inverse


def _rmsprop(group: dict, state: dict) -> float | Tensor:
    """Effective step of torch's RMSprop over the learning rate: 1 / (sqrt(mean square) + eps) / (1 - momentum)."""
    if not state:
        return 0.0
    square = state["square_avg"]
    if group["centered"]:
        square = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
    return square.sqrt().add_(group["eps"]).mul_(1 - group["momentum"]).reciprocal_()


def _adam(group: dict, state: dict) -> float | Tensor:
    """Effective step of torch's Adam and AdamW over the learning rate: 1 / (sqrt(corrected mean square) + eps).

    The bias correction of the mean gradient is left out."""
    if not state:
        return 0.0
    square = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    correction = 1 - group["betas"][1] ** state["step"].double()
    return (square / correction).sqrt_().add_(group["eps"]).reciprocal_()


METRICS: dict[type[Optimizer], Callable[[dict, dict], float | Tensor]] = {
    SGD: _sgd,
    Adagrad: _adagrad,
    RMSprop: _rmsprop,
    Adam: _adam,
    AdamW: _adam,
}
