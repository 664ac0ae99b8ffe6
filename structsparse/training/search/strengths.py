"""Strengths of penalties: the critical strength from the gradient at zero, relative strengths, strengths of a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from structsparse.base.errors import UserError
from structsparse.penalties import Penalty, Reweighting
from structsparse.training import certificate
from structsparse.training.stage import Objective, StageResult, Strengths
from structsparse.training.terms import ITEMS, critical_strength, set_strength
from structsparse.weights.notes import notes_of


def set_strengths(objective: Objective, cold: bool) -> tuple[Strengths, dict[str, Tensor]]:
    """Strengths of penalties: make the strengths of all terms absolute; return them, and gradients at zero weights.

    A term is one penalty of the configuration: `reg`, or an entry of `also`. The gradients are those of the mean loss,
    by name of the penalised parameter. While they are computed, parameters whose penalty can make weights zero are set
    to zero. `cold`: whether the initial weights do not come from another fit. If so and if the loss is smooth,
    parameters that were not set to zero are fitted first. They keep the fitted values."""
    module = objective.module
    if _needs_no_critical(objective):
        return set_absolute_strengths(objective), {}
    ridges = _ridges(objective)
    parameters = dict(module.named_parameters())
    zeroed = [name for name in objective.penalties if name not in ridges]
    start = {name: parameters[name].detach().clone() for name in zeroed}
    with torch.no_grad():
        for name in zeroed:
            parameters[name].zero_()
    batches = objective.data.whole("train")
    if cold and module.loss.smooth:
        certificate.fit_free(module, batches, {n: p for n, p in parameters.items() if n not in zeroed}, ridges)
    _, at_zero = certificate.mean_gradient(module, batches, list(objective.penalties))
    at_zero = certificate.masked(at_zero, objective.support)
    criticals = []
    for term, penalties in objective.terms:
        criticals.append(critical_strength(penalties, at_zero))
        set_strength(term, penalties, criticals[-1], objective.data.items)
    with torch.no_grad():
        for name, value in start.items():
            parameters[name].copy_(value)
    return _strengths(objective, criticals[0]), at_zero


def set_absolute_strengths(objective: Objective) -> Strengths:
    """Strengths of penalties: make the strengths of all configured penalties absolute without a gradient at zero.

    This is for growing tables, which have no features before training, and for penalties without a critical
    strength."""
    for k, (term, penalties) in enumerate(objective.terms):
        if term.relative == ITEMS:
            set_strength(term, penalties, None, objective.data.items)
        elif term.relative and (k > 0 or objective.stage.budget is None):
            raise UserError(
                f"{term.name}.relative=true: the critical strength is not known of a growing table, nor where nothing "
                f"is penalised or values are few; set it to false{'' if k else ', or give reg.budget'}"
            )
    return _strengths(objective, None)


def _needs_no_critical(objective: Objective) -> bool:
    """Strengths of penalties: whether the critical strength cannot be computed, or has no effect."""
    penalties, module = objective.penalties.values(), objective.module
    unpenalised = all(penalty.is_null for penalty in penalties)
    discrete = all(penalty.discrete for penalty in penalties)
    growing = any(notes_of(parameter).grows is not None for parameter in module.parameters())
    without_strength = unpenalised or objective.stage.budget is not None
    return growing or discrete or not module.certified or (without_strength and not module.loss.smooth)


def _ridges(objective: Objective) -> dict[str, Penalty]:
    """Strengths of penalties: the squared penalties that the options `also` configure, by parameter name."""
    further = [item for _, penalties in objective.terms[1:] for item in penalties.items()]
    return {name: penalty for name, penalty in further if penalty.selects_nothing}


def _strengths(objective: Objective, critical: float | None) -> Strengths:
    """Strengths of penalties: the absolute strengths of `reg` and `also`, and the critical strength of `reg`."""
    terms = {term.name: _strength_of(penalties) for term, penalties in objective.terms}
    return Strengths(critical, next(iter(terms.values())), terms)


def _strength_of(penalties: Mapping[str, Penalty]) -> float:
    """Strengths of penalties: the strength of a term (`reg` or an entry of `also`), the same for all its parameters."""
    return float(next(iter(penalties.values())).strength)


def reweight_groups(objective: Objective, before: StageResult | None) -> Strengths:
    """Strengths of penalties: take over the strength of the previous stage, and compute new group weights.

    Only the penalty that `reg` configures is changed. The new group weights are computed from the norms of the
    groups."""
    if before is None or not objective.stage.warm:
        raise UserError("reg.reweight is for a stage (warm=true) after another one, whose groups it weighs")
    parameters = dict(objective.module.named_parameters())
    for name, penalty in objective.main.items():
        penalty.strength = float(before.penalties[name].strength)
        Reweighting(penalty, **objective.stage.reweight).update(parameters[name])
    return before.figures.strengths


def residual_at_zero(penalties: Mapping[str, Penalty], at_zero: Mapping[str, Tensor]) -> float:
    """Strengths of penalties: the norm ||W - prox(W - gradient)|| at W = 0, at the present strengths."""
    return certificate.residual(penalties, {name: torch.zeros_like(g) for name, g in at_zero.items()}, at_zero)


def shares(path: int | Sequence[float], last: float) -> list[float]:
    """Strengths of penalties: the falling strengths of a path, as shares of the critical strength.

    `path` is a list of shares, or the count of shares. With a count, the shares fall geometrically to `last`."""
    if isinstance(path, int) and not isinstance(path, bool):
        if path < 1:
            raise UserError(f"path={path}: expected a number of strengths, at least 1, or a list of them")
        if not 0 < last < 1:
            raise UserError(f"path={path} goes down to reg.strength={last}: expected a share of the critical one")
        return [last ** (k / path) for k in range(1, path + 1)]
    try:
        listed = [float(share) for share in path]
    except (TypeError, ValueError):
        listed = []
    if not listed or any(not 0 < share < 1 for share in listed) or sorted(set(listed), reverse=True) != listed:
        raise UserError(f"path={path}: expected a number of strengths, or falling shares of the critical one")
    return listed
