"""The step that an optimizer really took, per entry where it has a metric: what a prox after it must use.

At a fixed point of `optimizer step, then prox` the update is step * gradient, so a threshold of step * strength
balances it; with the bare learning rate under momentum or a metric, another problem is solved. An effective step is
the learning rate of its parameter group times a metric, which for Adam holds the bias correction.

An optimizer of this project tells its own: `metric(group, parameter)`, or `effective_steps(group, parameter)` in
proportion to `group["lr"]`. It may have, besides,
    rate(group)         what the metric is multiplied by, where that is not the learning rate;
    from_start = True   the rate is that of all steps together: it takes the place of what has accumulated;
    place_(group, parameter) and hold(parameters)
                        it moves a parameter anew from its start, and leaves those it holds to be placed before a prox;
    prox_every = k      so many of its steps cost as much as one prox, which may wait for them;
    each_step = True    its next step builds on the prox of this one;
    evaluates = True    its step takes loss and gradient from the closure, so none may accumulate before it;
    full_batch = True   it compares losses of several steps, which must all be of the same items;
    attach(penalties, support), flush()
                        it carries the penalties itself: no prox after its steps; the weights are whole after a flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from structsparse.base.errors import UserError


def effective_steps(optimizer: Optimizer, group: dict, parameter: Tensor) -> float | Tensor:
    """The step taken last on each entry of a parameter of this group; 0 before the first one."""
    return rate(optimizer, group) * metric(optimizer, group, parameter)


def rate(optimizer: Optimizer, group: dict) -> float | Tensor:
    """What thresholds of several steps add up as."""
    return optimizer.rate(group) if hasattr(optimizer, "rate") else group["lr"]


def accumulated(optimizer: Optimizer, waiting: float | Tensor, latest: float | Tensor) -> float | Tensor:
    """The rate of the threshold that is due, after a step of this rate."""
    return latest if getattr(optimizer, "from_start", False) else waiting + latest


def place_(optimizer: Optimizer, group: dict, parameter: Tensor) -> None:
    """Move a parameter that the optimizer has held to where the prox shall find it."""
    if hasattr(optimizer, "place_"):
        optimizer.place_(group, parameter)


@torch.no_grad()
def metric(optimizer: Optimizer, group: dict, parameter: Tensor) -> float | Tensor:
    """Step over rate: thresholds of several steps add up as rates, times the latest metric."""
    if hasattr(optimizer, "metric"):
        return optimizer.metric(group, parameter)
    if hasattr(optimizer, "effective_steps"):
        return optimizer.effective_steps({**group, "lr": 1.0}, parameter)
    return METRICS[type(optimizer)](group, optimizer.state.get(parameter, {}))


def check(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Refuse, with the reason, an optimizer whose steps on these penalised parameters cannot be told or are wrong."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("LBFGS tries several points within one step, so no prox fits after it; choose SGD or Adagrad")
    known = any(hasattr(optimizer, tells) for tells in ("metric", "effective_steps", "attach"))
    if not known and type(optimizer) not in METRICS:
        raise UserError(
            f"the step that {name} really takes is not known, so no prox fits after it; "
            f"choose one of {', '.join(kind.__name__ for kind in METRICS)}"
        )
    for parameter in parameters:
        _check_group(name, _group_of(optimizer, parameter), parameter)


def _group_of(optimizer: Optimizer, parameter: Tensor) -> dict:
    for group in optimizer.param_groups:
        if any(member is parameter for member in group["params"]):
            return group
    raise UserError(
        f"a penalised parameter {tuple(parameter.shape)} is not among those that {type(optimizer).__name__} moves"
    )


def _check_group(name: str, group: dict, parameter: Tensor) -> None:
    what = f"{name} of a penalised parameter {tuple(parameter.shape)}"
    if group.get("maximize", False):
        raise UserError(f"{what} has maximize=True: a penalty is for a loss that is minimised")
    if group.get("weight_decay", 0) != 0:
        raise UserError(f"{what} has weight_decay={group['weight_decay']}: it would be penalised twice; expected 0")
    if not group.get("momentum", 0) < 1:
        raise UserError(f"{what} has momentum={group['momentum']}: its step grows without end; expected less than 1")


def _sgd(group: dict, state: dict) -> float:
    """Where the gradient g stays, the buffer holds g * (1 - dampening) / (1 - momentum); so too with nesterov."""
    if group["momentum"] == 0:
        return 1.0
    return (1 - group["dampening"]) / (1 - group["momentum"])


def _adagrad(group: dict, state: dict) -> float | Tensor:
    if not state:
        return 0.0
    inverse = state["sum"].sqrt().add_(group["eps"]).reciprocal_()
    return inverse.div_(1 + (state["step"] - 1) * group["lr_decay"]) if group["lr_decay"] != 0 else inverse


def _rmsprop(group: dict, state: dict) -> float | Tensor:
    if not state:
        return 0.0
    square = state["square_avg"]
    if group["centered"]:
        square = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
    return square.sqrt().add_(group["eps"]).mul_(1 - group["momentum"]).reciprocal_()


def _adam(group: dict, state: dict) -> float | Tensor:
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
