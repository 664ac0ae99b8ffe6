"""Effective step sizes of torch's own optimizers (SGD, Adagrad, RMSprop, Adam), for a prox after each step.

Each optimizer has a function that returns the effective step size divided by the learning rate. The arguments are the
options of a parameter group and the optimizer's state of one parameter."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from structsparse.base.errors import UserError


def check_group(name: str, group: dict, parameter: Tensor) -> None:
    """Raise an error if options of the optimizer, such as weight decay, allow no prox after its steps."""
    what = f"{name} of a penalised parameter {tuple(parameter.shape)}"
    if group.get("maximize", False):
        raise UserError(f"{what} has maximize=True: a penalty is for a loss that is minimised")
    if group.get("weight_decay", 0) != 0:
        raise UserError(f"{what} has weight_decay={group['weight_decay']}: it would be penalised twice; expected 0")
    if not group.get("momentum", 0) < 1:
        raise UserError(f"{what} has momentum={group['momentum']}: its step grows without end; expected less than 1")


def _sgd(group: dict, state: dict) -> float:
    """Effective step of torch's SGD, divided by the learning rate: (1 - dampening) / (1 - momentum).

    This is the limit of the momentum buffer divided by the gradient, under a constant gradient."""
    if group["momentum"] == 0:
        return 1.0
    return (1 - group["dampening"]) / (1 - group["momentum"])


def _adagrad(group: dict, state: dict) -> float | Tensor:
    """Effective step of torch's Adagrad, divided by the learning rate; includes the learning rate decay."""
    if not state:
        return 0.0
    inverse = state["sum"].sqrt().add_(group["eps"]).reciprocal_()
    return inverse.div_(1 + (state["step"] - 1) * group["lr_decay"]) if group["lr_decay"] != 0 else inverse


def _rmsprop(group: dict, state: dict) -> float | Tensor:
    """Effective step of torch's RMSprop, divided by the learning rate; includes the effect of momentum."""
    if not state:
        return 0.0
    square = state["square_avg"]
    if group["centered"]:
        square = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
    return square.sqrt().add_(group["eps"]).mul_(1 - group["momentum"]).reciprocal_()


def _adam(group: dict, state: dict) -> float | Tensor:
    """Effective step of torch's Adam and AdamW, divided by the learning rate.

    The result includes the bias correction of the mean squared gradient, but not that of the mean gradient."""
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
