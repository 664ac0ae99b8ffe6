"""Attaching penalties to parameters of a torch network, with the prox applied after each optimizer step.

With Lightning:

    penalties = attach("group_lasso", model, groups="module_rows", parameters="*linear1.weight", strength=1e-3)
    trainer = lightning.Trainer(callbacks=[ProximalStep(penalties)])

In a plain training loop, call `handle = proximal(optimizer, model, penalties)` once before the loop."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from structsparse import penalties as kinds
from structsparse.base.errors import UserError
from structsparse.groups.modules import BY_MODULE
from structsparse.penalties import Penalty
from structsparse.solvers.base import solver_of

_HANDLES: WeakKeyDictionary[Optimizer, RemovableHandle] = WeakKeyDictionary()  # optimizer -> hook set by `proximal`


def attach(
    penalty: str | Callable[..., Penalty],
    model: nn.Module,
    groups: str | Mapping[str, nn.Module] | Callable | None = None,
    parameters: str | Sequence[str] = "*",
    weights: str = "sqrt_size",
    **options,
) -> dict[str, Penalty]:
    """Make the penalties to attach to the chosen parameters of a network: {parameter name: penalty}.

    Pass the result to the callback ProximalStep or to the function `proximal`. `penalty` is a class, or the name of a
    class in small letters ("l1", "group_lasso"). `options` are the arguments of the class (strength, mix, ...). A
    parameter is chosen if its name matches a pattern in `parameters`. `groups` is one of:

    * a name in BY_MODULE ("module_rows", ...): each unit of a layer is a group; `weights` is the rule for group weights
    * {parameter name: groups}
    * a function (shape, layout, parameter=name) -> groups
    * None, for a penalty on single weights"""
    make = _class_of(penalty) if isinstance(penalty, str) else penalty
    _check_options(make, {**({} if groups is None else {"groups": groups}), **options})
    if isinstance(groups, str):
        if groups not in BY_MODULE:
            raise UserError(f"groups={groups!r} is no unit of a layer; expected one of {', '.join(BY_MODULE)}")
        groups = BY_MODULE[groups](model, parameters, weights)
    if isinstance(groups, Mapping):
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        unknown = [name for name in groups if name not in shapes]
        if unknown:
            raise UserError(f"groups name the parameter {unknown[0]!r}; there are {', '.join(shapes)}")
        return {name: make(groups=of_parameter, **options) for name, of_parameter in groups.items()}
    attached = {}
    for name, parameter in chosen(model, parameters).items():
        grouped = {} if groups is None else {"groups": groups(tuple(parameter.shape), None, parameter=name)}
        attached[name] = make(**grouped, **options)
    return attached


def chosen(model: nn.Module, patterns: str | Sequence[str]) -> dict[str, nn.Parameter]:
    """The network parameters to attach penalties to: all parameters whose names match a pattern.

    A pattern that matches no parameter is an error."""
    named = dict(model.named_parameters())
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise UserError(f"{pattern!r} matches no parameter; there are {', '.join(named)}")
    return {name: p for name, p in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def proximal(optimizer: Optimizer, model: nn.Module, penalties: Mapping[str, Penalty]) -> RemovableHandle:
    """Attach penalties to a torch optimizer: a hook applies the prox of each penalty after every step.

    The prox uses the effective step size of the optimizer. Call `.remove()` on the result to remove the hook. Do not
    clip gradients: the threshold of the prox would not be reduced with them."""
    named = dict(model.named_parameters())
    unknown = [name for name in penalties if name not in named]
    if unknown:
        raise UserError(f"a penalty is for the parameter {unknown[0]!r}; there are {', '.join(named)}")
    if _is_active(_HANDLES.get(optimizer)):
        raise UserError(
            f"this {type(optimizer).__name__} applies penalties already, a second call would apply them twice; give "
            "all penalties in one call, or call .remove() on the handle of the first"
        )
    on_parameters = {named[name]: penalty for name, penalty in penalties.items()}
    solver = solver_of(optimizer)
    solver.check_prox(on_parameters)
    if solver.carries_penalties:
        solver.attach(on_parameters)
        hook = _nothing
    else:
        hook = _prox_after_step(optimizer, on_parameters)
    _HANDLES[optimizer] = optimizer.register_step_post_hook(hook)
    return _HANDLES[optimizer]


def _prox_after_step(optimizer: Optimizer, penalties: Mapping[torch.Tensor, Penalty]) -> Callable[..., None]:
    """Make the hook that applies the prox of each attached penalty after an optimizer step.

    The hook looks up the optimizer's parameter groups anew at each step, because `load_state_dict` replaces them.
    """
    targets = [(penalty.to(p.device), _place_of(optimizer, p), p) for p, penalty in penalties.items()]
    solver = solver_of(optimizer)

    def apply(*_) -> None:
        """Apply the prox of each attached penalty with the current effective step size of the optimizer."""
        for penalty, place, parameter in targets:
            step = solver.effective_step(optimizer.param_groups[place], parameter)
            penalty.prox_(parameter.detach(), step)

    return apply


def _place_of(optimizer: Optimizer, parameter: torch.Tensor) -> int:
    """The index of the optimizer's parameter group that contains a parameter with an attached penalty."""
    groups = enumerate(optimizer.param_groups)
    return next(place for place, group in groups if any(member is parameter for member in group["params"]))


def _nothing(*_) -> None:
    """Do nothing: the optimizer hook for solvers that apply the attached penalties themselves."""


def _is_active(handle: RemovableHandle | None) -> bool:
    """Whether the optimizer hook that applies attached penalties is still registered."""
    return handle is not None and handle.id in (handle.hooks_dict_ref() or ())


def _check_options(make: Callable[..., Penalty], options: Mapping[str, object]) -> None:
    """Check the options of a penalty to attach: unknown and missing options are errors."""
    parameters = inspect.signature(make).parameters
    name, takes = make.__name__, ", ".join(parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            near = difflib.get_close_matches(option, parameters, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{name} has no option {option!r}, it takes {takes}{hint}")
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise UserError(f"{name} needs the option {option!r}, it takes {takes}")


def _class_of(name: str) -> type[Penalty]:
    """The class of a penalty to attach, from a name in small letters: `group_lasso` gives GroupLasso."""
    public = [vars(kinds)[kind] for kind in kinds.__all__ if kind not in ("Penalty", "Copied")]
    classes = {_small(kind.__name__): kind for kind in public if isinstance(kind, type) and issubclass(kind, Penalty)}
    if name not in classes:
        raise UserError(f"unknown penalty {name!r}; expected one of {', '.join(sorted(classes))}, or a class")
    return classes[name]


def _small(name: str) -> str:
    """The name by which a penalty class is attached, in small letters: GroupLasso becomes group_lasso."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
