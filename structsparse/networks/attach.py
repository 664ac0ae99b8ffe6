"""Penalties for a network of one's own: which parameters, which groups, and the prox after each optimizer step.

    penalties = attach("group_lasso", model, groups="module_rows", parameters="*linear1.weight", strength=1e-3)
    trainer = lightning.Trainer(callbacks=[ProximalStep(penalties)])

or, in a loop of one's own, `handle = proximal(optimizer, model, penalties)` once before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from structsparse import penalties as kinds
from structsparse.base.errors import UserError
from structsparse.groups.modules import BY_MODULE
from structsparse.penalties import Penalty
from structsparse.solvers.base import solver_of


def attach(
    penalty: str | Callable[..., Penalty],
    model: nn.Module,
    groups: str | Mapping[str, nn.Module] | Callable | None = None,
    parameters: str | Sequence[str] = "*",
    weights: str = "sqrt_size",
    **options,
) -> dict[str, Penalty]:
    """A penalty for each chosen parameter of a model, by name: what ProximalStep, SparsityMonitor and the others take.

    `penalty`: a class, or its name in small letters ("l1", "group_lasso"); `options` go to it (strength, mix, ...).
    `groups`: a unit of the layers ("module_rows", one of modules.BY_MODULE), {parameter name: groups}, a function
    (shape, layout, parameter=name) -> groups, or None for a penalty on entries. `parameters`: patterns of their names.
    """
    make = _kind(penalty) if isinstance(penalty, str) else penalty
    if isinstance(groups, str):
        if groups not in BY_MODULE:
            raise UserError(f"groups={groups!r} is no unit of a layer; expected one of {', '.join(BY_MODULE)}")
        groups = BY_MODULE[groups](model, parameters, weights)
    if isinstance(groups, Mapping):
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        unknown = [name for name in groups if name not in shapes]
        if unknown:
            raise UserError(f"groups name the parameter {unknown[0]!r}; there are {', '.join(shapes)}")
        return {name: make(groups=given, **options) for name, given in groups.items()}
    found = {}
    for name, parameter in chosen(model, parameters).items():
        grouped = {} if groups is None else {"groups": groups(tuple(parameter.shape), None, parameter=name)}
        found[name] = make(**grouped, **options)
    return found


def chosen(model: nn.Module, patterns: str | Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters whose names match a pattern. One that matches nothing is a mistake."""
    named = dict(model.named_parameters())
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise UserError(f"{pattern!r} matches no parameter; there are {', '.join(named)}")
    return {name: p for name, p in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def proximal(optimizer: Optimizer, model: nn.Module, penalties: Mapping[str, Penalty]) -> RemovableHandle:
    """Apply each penalty's prox after every step of the optimizer, with the step it really took; `.remove()` ends it.

    For loops without Lightning. Do not clip gradients: that shortens the gradient, but not the threshold."""
    named = dict(model.named_parameters())
    unknown = [name for name in penalties if name not in named]
    if unknown:
        raise UserError(f"a penalty is for the parameter {unknown[0]!r}; there are {', '.join(named)}")
    solver = solver_of(optimizer)
    solver.check_prox([named[name] for name in penalties])
    if solver.carries_penalties:
        solver.attach({named[name]: penalty for name, penalty in penalties.items()})
        return optimizer.register_step_post_hook(lambda *_: None)
    targets = []
    for name, penalty in penalties.items():
        targets.append((penalty.to(named[name].device), solver.group_of(named[name]), named[name]))

    def apply(*_) -> None:
        for penalty, group, parameter in targets:
            penalty.prox_(parameter.detach(), solver.effective_step(group, parameter))

    return optimizer.register_step_post_hook(apply)


def _kind(name: str) -> type[Penalty]:
    """`group_lasso` is GroupLasso, `l1` is L1, `squared_l2` is SquaredL2."""
    classes = {_small(kind): getattr(kinds, kind) for kind in kinds.__all__ if kind not in ("Penalty", "Copied")}
    known = {small: kind for small, kind in classes.items() if isinstance(kind, type) and issubclass(kind, Penalty)}
    if name not in known:
        raise UserError(f"unknown penalty {name!r}; expected one of {', '.join(sorted(known))}, or a class")
    return known[name]


def _small(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
