"""The effective steps of torch's own optimizers, per entry where they have a metric: what a prox after them must use.

A metric is the step over `group["lr"]`, from the options of a parameter group and the state of a parameter. For Adam it
holds the bias correction.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from structsparse.base.errors import UserError


def check_group(name: str, group: dict, parameter: Tensor) -> None:
    """Refuse options under which the step on a penalised parameter is wrong for a prox."""
    what = f"{name} of a penalised parameter {tuple(parameter.shape)}"
    if group.get("maximize", False):
        raise UserError(f"{what} has maximize=True: a penalty is for a loss that is minimised")
    if group.get("weight_decay", 0) != 0:
        raise UserError(f"{what} has weight_decay={group['weight_decay']}: it would be penalised twice; expected 0")
    if not group.get("momentum", 0) < 1:
        raise UserError(f"{what} has momentum={group['momentum']}: its step grows without end; expected less than 1")


def _sgd(group: dict, state: dict) -> float:
    """SGD: under a constant gradient g the buffer tends to g * (1 - dampening) / (1 - momentum), also with nesterov."""
    if group["momentum"] == 0:
        return 1.0
    return (1 - group["dampening"]) / (1 - group["momentum"])


def _adagrad(group: dict, state: dict) -> float | Tensor:
    """Adagrad: 1 / (sqrt(sum of squares) + eps), with its decay."""
    if not state:
        return 0.0
    inverse = state["sum"].sqrt().add_(group["eps"]).reciprocal_()
    return inverse.div_(1 + (state["step"] - 1) * group["lr_decay"]) if group["lr_decay"] != 0 else inverse


def _rmsprop(group: dict, state: dict) -> float | Tensor:
    """RMSprop: 1 / (sqrt(mean square) + eps) / (1 - momentum)."""
    if not state:
        return 0.0
    square = state["square_avg"]
    if group["centered"]:
        square = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
    return square.sqrt().add_(group["eps"]).mul_(1 - group["momentum"]).reciprocal_()


def _adam(group: dict, state: dict) -> float | Tensor:
    """Adam and AdamW: 1 / (sqrt(corrected mean square) + eps), without the correction of the mean gradient."""
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
