"""Certificates of optimality on the whole training set: exact gradient, stationarity, duality gap, groups to be woken.

At an optimum, penalised weights satisfy W = prox(W - gradient). The distance from that equation, relative to the
distance at zero weights, is the stationarity of a trained model. For each dead group it tells whether the optimum has
that zero, or whether a budget or mini-batch noise has made it.

For convex losses and penalties a duality gap bounds how far the objective is above its minimum. A near gap bounds
how far the objective is above its minimum in a neighbourhood of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structsparse.penalties import Penalty
from structsparse.prox import Steps
from structsparse.solvers.base import Proof
from structsparse.weights.bags import subtract_
from structsparse.weights.notes import notes_of

BENDS = 5  # values of `bend` that are tried for a near gap
TIGHT = 1e-4  # if the duality gap is below this share of the objective, no near gap is computed
POLISH = 15  # L-BFGS iterations on the free parameters before a lower bound is computed


@dataclass(frozen=True)
class Certificate:
    """How close the weights at the end of a stage are to an optimum, measured on the whole train part.

    A figure that is not known, or was not asked for, is None."""

    objective: float | None = None
    penalty: float | None = None  # value of the first penalty term, divided by its strength
    stationarity: float | None = None  # ||W - prox(W - gradient)||, relative to this norm at zero weights
    duality_gap: float | None = None  # bound on how far the objective is above its minimum
    near_gap: float | None = None  # bound on how far it is above its minimum near the weights
    groups_uncertified: int | None = None  # dead groups that the gradient would wake


def mean_gradient(module, batches: Iterable, names: Sequence[str]) -> tuple[float, dict[str, Tensor]]:
    """The mean loss over all items of the batches, and its gradient with respect to the named parameters.

    `module.step(batch)` is the sum of the losses of the batch's items, divided by `batch.items`."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if name in set(names)}
    gradients = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    before = {name: notes_of(parameter).pending for name, parameter in parameters.items()}
    others = [p for name, p in module.named_parameters() if name not in parameters and p.requires_grad]
    for parameter in others:
        parameter.requires_grad_(False)  # saves the gradients that are not asked for
    loss = torch.zeros((), dtype=torch.float64, device=module.device)
    items = 0
    try:
        for batch in batches:
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            items += batch.items
            for parameter in parameters.values():
                notes_of(parameter).pending, parameter.grad = [], None
            part = module.step(batch) * batch.items
            part.backward()
            loss += part.detach()
            for name, parameter in parameters.items():
                for gradient in notes_of(parameter).pending:
                    subtract_(gradients[name], gradient, -1.0)
                if parameter.grad is not None:
                    gradients[name] += parameter.grad
    finally:
        for name, parameter in parameters.items():
            notes_of(parameter).pending, parameter.grad = before[name], None
        for parameter in others:
            parameter.requires_grad_(True)
        module.zero_grad(set_to_none=True)
    return float(loss) / items, {name: gradient / items for name, gradient in gradients.items()}


@torch.no_grad()
def objective(module, batches: Iterable, penalties: Mapping[str, Penalty]) -> float:
    """The objective of training: the mean loss over all items of the batches plus the penalties."""
    weights = dict(module.named_parameters())
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    return mean_loss(module, batches) + value


@torch.no_grad()
def mean_loss(module, batches: Iterable) -> float:
    """The mean loss over all items of the batches."""
    total, items = torch.zeros((), dtype=torch.float64, device=module.device), 0
    for batch in batches:
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        total += module.step(batch) * batch.items
        items += batch.items
    return float(total) / items


def fit_free(
    module, batches: Sequence, free: Mapping[str, Tensor], ridges: Mapping[str, Penalty], iterations: int = 25
) -> None:
    """Minimize the loss over the free (not penalised) parameters by L-BFGS, while all other parameters stay fixed.

    Parameters in `ridges` have a squared penalty. A regularization path begins at this optimum, and the gradient
    that decides the critical strength is taken there."""
    if not free:
        return
    parameters = list(free.values())
    solver = torch.optim.LBFGS(parameters, max_iter=iterations, history_size=10, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        """The objective in the free parameters; sets their gradients."""
        loss, gradients = mean_gradient(module, batches, list(free))
        for name, parameter in free.items():
            parameter.grad = gradients[name]
            if name in ridges:
                parameter.grad = parameter.grad + ridges[name].gradient(parameter.detach())
                loss += float(ridges[name].value(parameter.detach()))
        return torch.tensor(loss)

    solver.step(evaluate)
    module.zero_grad(set_to_none=True)


@torch.no_grad()
def residual(penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> float:
    """The norm ||W - prox(W - gradient)|| over all penalised parameters, which is 0 at an optimum."""
    total = 0.0
    for name, penalty in penalties.items():
        moved = penalty.prox_(weights[name] - gradients[name], 1.0)
        total += float((weights[name] - moved).double().square().sum())
    return total**0.5


@torch.no_grad()
def living(penalty: Penalty, weights: Tensor) -> Tensor:
    """Which groups have a nonzero weight: bool [groups], or bool [rows] if the penalty has no groups."""
    if penalty.groups is not None:
        return penalty.groups.alive(weights)
    return (weights.flatten(1) if weights.dim() > 1 else weights[:, None]).ne(0).any(dim=1)


@torch.no_grad()
def violated(penalty: Penalty, weights: Tensor, gradient: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Which dead groups (or rows) the gradient would wake: bool [groups] or [rows].

    The gradient must exceed the threshold of the penalty by more than the share `tolerance` of that threshold."""
    held = penalty.strength * (1.0 if penalty.groups is None else _weights(penalty.groups.weight))
    return ~living(penalty, weights) & (penalty.gap(weights, gradient) > tolerance * held)


def _weights(weight: Tensor) -> Tensor:
    """The weights of groups, where a weight of zero is replaced by the smallest positive one."""
    return torch.where(weight > 0, weight, weight[weight > 0].min() if bool((weight > 0).any()) else 1.0)


@torch.no_grad()
def lower_bound(
    loss: float, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> float | None:
    """A lower bound on the objective over all weights, by duality; None where a penalty gives no such bound.

    Every loss here is a maximum over structures (a soft maximum for the CRF) minus the score of the gold structure. Let
    p be the model's distribution over structures. The mixture s * p + (1 - s) * gold is a point of the dual problem.
    The entropy (or mean cost) of the mixture is at least s times that of p, which is loss - <gradient, W>. The residual
    of the mixture is s times the gradient; s = min(1, strength / critical(gradient)) makes it small enough for any
    norm. For a squared penalty the conjugate is finite for s = 1.

    `weights` and `gradients` hold all parameters. Parameters without a penalty should be close to their optimum: the
    bound assumes that the optimum is no farther away than the norm of the parameter (at least 1). That assumption
    costs this norm times the norm of the gradient."""
    share, conjugates, inner, slack = 1.0, 0.0, 0.0, 0.0
    for name, w in weights.items():
        if name not in penalties:
            slack += float(gradients[name].double().norm() * w.double().norm().clamp(min=1.0))
            continue
        held = penalties[name].held(w)
        if held is None:
            return None
        if not held.all():  # skipped if all are held: temporary copies of a large table need much memory
            slack += float((gradients[name].double() * ~held).norm() * (w.double() * ~held).norm().clamp(min=1.0))
        gradient = gradients[name].double() * held
        dual = penalties[name].conjugate(gradient)
        if dual is None:
            return None
        share, conjugates = min(share, dual.share), conjugates + dual.conjugate
        inner += float((gradient * w).sum())
    return share * (loss - inner - slack) - conjugates


@torch.no_grad()
def near_gap(
    penalties: Mapping[str, Penalty],
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    metrics: Mapping[str, Tensor],
) -> float:
    """A bound on how much the objective can fall within a neighbourhood of the weights.

    The neighbourhood holds all weights V whose distance ||V - W|| is at most size = ||W||. Distance and size are
    measured in diagonal metrics, which are positive and broadcastable to the weights.

    A convex loss lies above its tangent, so any such V lowers the objective by at most

        max over V of -<gradient, V - W> - Omega(V) + Omega(W) - bend/2 (||V - W||^2 - size^2)

    for any bend > 0. One prox with steps 1 / (bend * metric) attains the maximum; the best bend has ||V - W|| = size.

    The duality gap of an l1 or group penalty is loose as soon as one frequent feature is a little off: the whole
    dual point must be scaled down for that feature. In the near gap that feature costs its own share alone. If the
    optimum W' lies farther away, the objective exceeds its minimum by at most this bound times ||W' - W|| / size, by
    convexity."""
    squares = sum(float((weights[name].square() * m).sum(dtype=torch.float64)) for name, m in metrics.items())
    size = squares**0.5 or 1.0
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    best, bend = torch.inf, 1.0
    for _ in range(BENDS):
        lower, moved = value, 0.0
        for name, w in weights.items():
            steps = _steps(bend * metrics[name], w)
            way = gradients[name].mul(steps).neg_().add_(w)  # changed in place below, to save memory
            if name in penalties:
                penalties[name].prox_(way, steps)
                lower -= float(penalties[name].value(way))
            way.sub_(w)
            lower -= float(torch.sum(gradients[name] * way, dtype=torch.float64))
            moved += float(torch.sum(way.square_().mul_(metrics[name]), dtype=torch.float64))
        lower -= bend / 2 * moved
        best = min(best, lower + bend / 2 * size**2)
        if moved == 0:
            break
        bend *= moved**0.5 / size
    return max(0.0, best)


def _steps(curvature: Tensor, weights: Tensor) -> Steps:
    """The step size 1 / curvature: one number for a scalar curvature, else a tensor of the shape of the weights."""
    return 1 / float(curvature) if curvature.dim() == 0 else curvature.reciprocal().expand_as(weights).contiguous()


def masked(gradients: Mapping[str, Tensor], support: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients, set to zero at entries outside the support, which must stay zero."""
    return {name: g * support[name].to(g.device) if name in support else g for name, g in gradients.items()}


def prove(
    module,
    batches: Sequence,
    penalties: Mapping[str, Penalty],
    main: Mapping[str, Penalty],
    support: Mapping[str, Tensor],
    residual_at_zero: float | None,
    proof: Proof,
    bounded: bool = True,
) -> tuple[Certificate, dict[str, Tensor]]:
    """The certificate of a stage on the whole training set, and the gradients of the penalised parameters there.

    `main`: the penalties of the first term. `proof`: what the solver has proved already, since proving it again can
    take longer than a fit. `bounded`: whether the strength was fixed during training; otherwise a gap has no
    meaning."""
    weights = {name: p.detach() for name, p in module.named_parameters()}
    smooth = module.loss.smooth
    if smooth:
        loss, gradients = mean_gradient(module, batches, list(penalties))
    else:  # the gradient of a loss that is not smooth certifies nothing
        loss, gradients = mean_loss(module, batches), {}
    gradients = masked(gradients, support)
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    strength = float(next(iter(main.values())).strength)
    stationarity = proof.kkt
    if stationarity is None and smooth and residual_at_zero:
        stationarity = residual(penalties, weights, gradients) / residual_at_zero
    own = sum(float(penalty.value(weights[name])) for name, penalty in main.items())
    gap = near = proof.excess
    if module.linear and proof.excess is None and bounded:
        gap, near = _gaps(module, batches, penalties, support, loss + value)
    proven = Certificate(
        objective=loss + value,
        penalty=own / strength if strength else 0.0,
        stationarity=stationarity,
        duality_gap=gap,
        near_gap=near,
        groups_uncertified=_uncertified(penalties, weights, gradients) if smooth else None,
    )
    return proven, gradients


def _uncertified(penalties: Mapping[str, Penalty], weights: Mapping, gradients: Mapping) -> int | None:
    """The number of dead groups that the gradient would wake; None if no penalty has groups."""
    grouped = {name: p for name, p in penalties.items() if p.groups is not None}
    found = [int(violated(p, weights[n], gradients[n]).sum()) for n, p in grouped.items()]
    return sum(found) if found else None


def _gaps(
    module, batches: Sequence, penalties: Mapping[str, Penalty], support, objective: float
) -> tuple[float | None, float | None]:
    """The duality gap and the near gap of the objective; a tight duality gap serves as both.

    Parameters without a penalty are refitted for this computation, which lowers the objective a little."""
    if any(penalty.is_null for penalty in penalties.values()):
        return None, None
    free = {name: p for name, p in module.named_parameters() if name not in penalties}
    kept = {name: p.detach().clone() for name, p in free.items()}
    if module.loss.smooth:
        fit_free(module, batches, free, {}, iterations=POLISH)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    loss, gradients = mean_gradient(module, batches, list(weights))
    gradients = masked(gradients, support)
    bound = lower_bound(loss, penalties, weights, gradients)
    gap = near = None if bound is None else objective - max(0.0, bound)
    convex = all(penalty.convex for penalty in penalties.values())
    if module.loss.smooth and convex and (gap is None or gap > TIGHT * abs(objective)):
        metrics = {name: _metric(p, penalties.get(name)) for name, p in module.named_parameters()}
        value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
        near = near_gap(penalties, weights, gradients, metrics) + max(0.0, objective - loss - value)
        near = near if gap is None else min(gap, near)
    with torch.no_grad():
        for name, p in free.items():
            p.copy_(kept[name])
    return gap, near


def _metric(parameter: Tensor, penalty: Penalty | None) -> Tensor:
    """The curvature of the loss with respect to a parameter, if it is known, else 1.

    If the prox of the penalty does not take one curvature per entry, the largest curvature is used for all entries."""
    curvature = notes_of(parameter).curvature
    if curvature is None:
        return torch.ones((), dtype=parameter.dtype, device=parameter.device)
    curvature = curvature.to(parameter)
    return curvature if penalty is None or penalty.takes_metric(parameter, curvature) else curvature.max()
