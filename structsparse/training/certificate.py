"""Certificates of optimality on the whole training set: exact gradient, stationarity, duality gap, groups to be woken.

W denotes the penalised weights, and `gradient` the gradient of the mean loss at W.

- Stationarity: ||W - prox(W - gradient)||, divided by the same norm at W = 0. At an optimum it is 0.
- Groups to be woken: dead (zero) groups that become nonzero in prox(W - gradient). The gradient "would wake" them. They
  are zero only because of a budget or mini-batch noise.
- Duality gap, for convex losses and penalties: a bound on the objective minus its minimum.
- Near gap: a bound on how far the objective is above its minimum within a neighbourhood of the weights."""

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

BENDS = 5  # number of curvatures for which `near_gap` computes a bound; the smallest bound is its result
TIGHT = 1e-4  # the bound `near_gap` is not computed if the duality gap is below this share of the objective
POLISH = 15  # L-BFGS iterations that refit parameters without a penalty, before a duality gap is computed


@dataclass(frozen=True)
class Certificate:
    """Certificate of a stage: how close the final weights are to an optimum, measured on the whole train part.

    A figure is None if it is not known or was not requested."""

    objective: float | None = None
    penalty: float | None = None  # value of the main penalty (configured by `reg`), divided by its strength
    stationarity: float | None = None  # ||W - prox(W - gradient)|| at the weights W, divided by the same at W = 0
    duality_gap: float | None = None  # upper bound on the objective minus its global minimum
    near_gap: float | None = None  # upper bound on the objective minus its minimum in a neighbourhood of the weights
    groups_uncertified: int | None = None  # number of zero groups that a proximal gradient step makes nonzero


def mean_gradient(module, batches: Iterable, names: Sequence[str]) -> tuple[float, dict[str, Tensor]]:
    """Certificate: the mean loss over all items of the batches, and its gradient with respect to some parameters.

    `module.step(batch)` must return the sum of the item losses, divided by `batch.items`."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if name in set(names)}
    gradients = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    before = {name: (notes_of(p).pending, notes_of(p).columns) for name, p in parameters.items()}
    others = [p for name, p in module.named_parameters() if name not in parameters and p.requires_grad]
    for parameter in others:
        parameter.requires_grad_(False)  # backward then computes only the requested gradients
    loss = torch.zeros((), dtype=torch.float64, device=module.device)
    items = 0
    try:
        for batch in batches:
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            items += batch.items
            for parameter in parameters.values():
                notes_of(parameter).pending, notes_of(parameter).columns, parameter.grad = [], None, None
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
            (notes_of(parameter).pending, notes_of(parameter).columns), parameter.grad = before[name], None
        for parameter in others:
            parameter.requires_grad_(True)
        module.zero_grad(set_to_none=True)
    return float(loss) / items, {name: gradient / items for name, gradient in gradients.items()}


@torch.no_grad()
def objective(module, batches: Iterable, penalties: Mapping[str, Penalty]) -> float:
    """Certificate: the objective of training, which is the mean loss over all batches plus the penalties."""
    return mean_loss(module, batches) + module.penalty_value(penalties)


@torch.no_grad()
def mean_loss(module, batches: Iterable) -> float:
    """Certificate: the mean loss of a module over all items of the batches."""
    total, items = torch.zeros((), dtype=torch.float64, device=module.device), 0
    for batch in batches:
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        total += module.step(batch) * batch.items
        items += batch.items
    return float(total) / items


def fit_free(
    module, batches: Sequence, free: Mapping[str, Tensor], ridges: Mapping[str, Penalty], iterations: int = 25
) -> None:
    """Certificate: minimize the loss over the `free` parameters by L-BFGS; all other parameters stay fixed.

    `ridges` holds squared penalties on free parameters, by name. They are added to the loss."""
    if not free:
        return
    parameters = list(free.values())
    solver = torch.optim.LBFGS(parameters, max_iter=iterations, history_size=10, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        """Certificate: the closure for L-BFGS, which returns the objective and sets gradients of free parameters."""
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
    """Certificate: the norm ||W - prox(W - gradient)|| over all penalised parameters W, which is 0 at an optimum."""
    total = 0.0
    for name, penalty in penalties.items():
        moved = penalty.prox_(weights[name] - gradients[name], 1.0)
        total += float((weights[name] - moved).double().square().sum())
    return total**0.5


@torch.no_grad()
def living(penalty: Penalty, weights: Tensor) -> Tensor:
    """Certificate: a bool array that marks groups with a nonzero weight; rows, if the penalty has no groups."""
    if penalty.groups is not None:
        return penalty.groups.alive(weights)
    return (weights.flatten(1) if weights.dim() > 1 else weights[:, None]).ne(0).any(dim=1)


@torch.no_grad()
def violated(penalty: Penalty, weights: Tensor, gradient: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Certificate: a bool array that marks dead groups that the gradient would make nonzero (without groups: rows).

    A dead group is marked if its optimality gap (`penalty.gap`) exceeds `tolerance` * strength * group weight."""
    held = penalty.strength * (1.0 if penalty.groups is None else _weights(penalty.groups.weight))
    return ~living(penalty, weights) & (penalty.gap(weights, gradient) > tolerance * held)


def _weights(weight: Tensor) -> Tensor:
    """Certificate: the group weights, with zeros replaced by the smallest positive group weight.

    A tolerance in proportion to the group weight is then positive for every group."""
    return torch.where(weight > 0, weight, weight[weight > 0].min() if bool((weight > 0).any()) else 1.0)


@torch.no_grad()
def lower_bound(
    loss: float, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> float | None:
    """Certificate: a lower bound on the objective over all weights, by duality; None if a penalty gives no such bound.

    The loss must be a maximum or soft maximum over structures, minus the score of the gold structure. The bound is

        share * (loss - <gradient, W> - slack) - conjugates

    - W, gradient: penalised weights, and the gradient of the loss with respect to W
    - share: the largest number from 0 to 1 such that share * gradient is feasible in the dual problem of every penalty
    - conjugates: the sum of the convex conjugates of the penalties
    - slack: sum of ||gradient with respect to V|| * max(1, ||V||) over all parameters V without a penalty

    `weights` and `gradients` hold all parameters. The bound assumes that the distance from V to its optimum is at most
    max(1, ||V||)."""
    share, conjugates, inner, slack = 1.0, 0.0, 0.0, 0.0
    for name, w in weights.items():
        if name not in penalties:
            slack += float(gradients[name].double().norm() * w.double().norm().clamp(min=1.0))
            continue
        held = penalties[name].held(w)
        if held is None:
            return None
        if not held.all():  # else skip these products, which copy large tables
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
    """Certificate: the near gap, which bounds how far the objective is above its minimum near the weights.

    "Near" the weights W are all weights V with ||V - W|| <= size, where size = ||W||, or 1 if W = 0. In
    these norms, `metrics` weighs the squared entries. `metrics` is positive and broadcasts to the weights.

    With a convex loss, for any number bend > 0, the objective can fall within the neighbourhood by at most

        max over V of -<gradient, V - W> - Omega(V) + Omega(W) - bend/2 (||V - W||^2 - size^2),

    where Omega is the sum of the penalties. One prox attains the maximum. The result is the smallest of these bounds
    for `BENDS` values of bend."""
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
    """Certificate: the prox step 1 / curvature: a float for a scalar curvature, else one step for each weight."""
    return 1 / float(curvature) if curvature.dim() == 0 else curvature.reciprocal().expand_as(weights).contiguous()


def masked(gradients: Mapping[str, Tensor], support: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Certificate: the gradients, set to zero at entries outside the support.

    `support` holds, by parameter name, masks of the entries that may be nonzero."""
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
    """The certificate of a stage: figures that bound how far its fit is from an optimum, on the whole training set.

    Also returns the gradients of the loss with respect to the penalised parameters.

    - main: the penalties that the options `reg` configure (without those of `also`), by parameter name
    - residual_at_zero: ||W - prox(W - gradient)|| at W = 0
    - proof: figures that the solver has proved; these are not computed again
    - bounded: whether the strength was fixed during training; if not, no duality gap is computed"""
    weights = {name: p.detach() for name, p in module.named_parameters()}
    smooth = module.loss.smooth
    if smooth:
        loss, gradients = mean_gradient(module, batches, list(penalties))
    else:  # without a smooth loss, the gradient certifies nothing
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
    """Certificate: the number of dead groups that the gradient would make nonzero; None if no penalty has groups."""
    grouped = {name: p for name, p in penalties.items() if p.groups is not None}
    found = [int(violated(p, weights[n], gradients[n]).sum()) for n, p in grouped.items()]
    return sum(found) if found else None


def _gaps(
    module, batches: Sequence, penalties: Mapping[str, Penalty], support, objective: float
) -> tuple[float | None, float | None]:
    """Certificate: the duality gap and the near gap of the objective; each is None if it cannot be computed.

    The duality gap bounds how far the objective is above its global minimum. The near gap bounds how far it is above
    its minimum within a neighbourhood of the weights. A small duality gap is returned as the near gap, too. For this
    computation, parameters without a penalty are refitted. Afterwards they get their values back."""
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
    """Certificate: the curvature of the loss for each entry of a parameter, or 1 if it is not known.

    If the prox of the penalty does not accept one curvature per entry, the result is the largest curvature."""
    curvature = notes_of(parameter).curvature
    if curvature is None:
        return torch.ones((), dtype=parameter.dtype, device=parameter.device)
    curvature = curvature.to(parameter)
    return curvature if penalty is None or penalty.takes_metric(parameter, curvature) else curvature.max()
