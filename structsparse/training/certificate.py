"""What the whole training set says: the exact gradient, the critical strength, how stationary the end is.

Penalised parameters stop where W = prox(W - gradient). How far they are from that, relative to how far they were at
zero, is the evidence for the zeros of a trained model; group by group, it tells zeros that the optimum has from zeros
that a budget or the noise has made. For convex losses and penalties a duality gap bounds how far the objective is from
its smallest value, and a near gap how far it is from the smallest in the neighbourhood of the weights.
"""

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

BENDS = 5  # that a near gap is the best of
TIGHT = 1e-4  # share of the objective; no near gap is sought below
POLISH = 15  # iterations that bring the free parameters to their best before a bound is taken


@dataclass(frozen=True)
class Certificate:
    """How good the weights at the end of a stage are, on the whole train part. None: not known, or not asked for."""

    objective: float | None = None
    penalty: float | None = None  # value of the first term over its strength
    stationarity: float | None = None  # ||W - prox(W - gradient)||, relative to the same at zero
    duality_gap: float | None = None  # bound on how far the objective is above its minimum
    near_gap: float | None = None  # the same, among weights no farther away than the size of these
    groups_uncertified: int | None = None  # dead groups that the gradient would wake


def mean_gradient(module, batches: Iterable, names: Sequence[str]) -> tuple[float, dict[str, Tensor]]:
    """The mean loss over all items, and its gradient with respect to the named parameters.

    `module.step(batch)` is the sum of the losses of the batch's items over `batch.items`."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if name in set(names)}
    gradients = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    before = {name: notes_of(parameter).pending for name, parameter in parameters.items()}
    others = [p for name, p in module.named_parameters() if name not in parameters and p.requires_grad]
    for parameter in others:
        parameter.requires_grad_(False)  # what nobody asks for is not computed
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
    """The mean loss over all items plus the penalties."""
    weights = dict(module.named_parameters())
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    return mean_loss(module, batches) + value


@torch.no_grad()
def mean_loss(module, batches: Iterable) -> float:
    """The mean loss over all items."""
    total, items = torch.zeros((), dtype=torch.float64, device=module.device), 0
    for batch in batches:
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        total += module.step(batch) * batch.items
        items += batch.items
    return float(total) / items


def fit_free(
    module, batches: Sequence, free: Mapping[str, Tensor], ridges: Mapping[str, Penalty], iterations: int = 25
) -> None:
    """The optimum of the free parameters, some of them under squares, while the others stay: where a regularization
    path begins, and where the gradient that decides the critical strength must be taken."""
    if not free:
        return
    parameters = list(free.values())
    solver = torch.optim.LBFGS(parameters, max_iter=iterations, history_size=10, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
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
    """||W - prox(W - gradient)|| over all penalised parameters"""
    total = 0.0
    for name, penalty in penalties.items():
        moved = penalty.prox_(weights[name] - gradients[name], 1.0)
        total += float((weights[name] - moved).double().square().sum())
    return total**0.5


@torch.no_grad()
def living(penalty: Penalty, weights: Tensor) -> Tensor:
    """Bool [groups], or [rows] where the penalty has no groups."""
    if penalty.groups is not None:
        return penalty.groups.alive(weights)
    return (weights.flatten(1) if weights.dim() > 1 else weights[:, None]).ne(0).any(dim=1)


@torch.no_grad()
def violated(penalty: Penalty, weights: Tensor, gradient: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Which dead groups (or rows) the gradient would wake: those that it pulls from zero by more than a share of what
    holds them there."""
    held = penalty.strength * (1.0 if penalty.groups is None else _weights(penalty.groups.weight))
    return ~living(penalty, weights) & (penalty.gap(weights, gradient) > tolerance * held)


def _weights(weight: Tensor) -> Tensor:
    """Those of groups that weigh nothing as small as the least of the others."""
    return torch.where(weight > 0, weight, weight[weight > 0].min() if bool((weight > 0).any()) else 1.0)


@torch.no_grad()
def lower_bound(
    loss: float, penalties: Mapping[str, Penalty], weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> float | None:
    """A number that no weights can bring the objective below; None where a penalty gives no such bound.

    Every loss here is a maximum over structures (a soft one for the CRF) minus the score of the gold one. The mixture
    s * p + (1 - s) * gold of the model's distribution p with the gold structure is a point of the dual problem. Its
    entropy (or mean cost) is at least s times that of p, which is loss - <gradient, W>; its residual is s times the
    gradient, and s = min(1, strength / critical(gradient)) makes that small enough for any norm. Where squares are
    penalised their conjugate is finite for s = 1. `weights` and `gradients` hold all parameters; those without a
    penalty should be at their best, or nearly: a bound is claimed for best values within their own norm (at least 1)
    of where they are, which costs that times the norm of their gradient.
    """
    share, conjugates, inner, slack = 1.0, 0.0, 0.0, 0.0
    for name, w in weights.items():
        if name not in penalties:
            slack += float(gradients[name].double().norm() * w.double().norm().clamp(min=1.0))
            continue
        held = penalties[name].held(w)
        if held is None:
            return None
        if not held.all():  # of tables of which there is hardly room for one more, as few as can be
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
    """By how much weights no farther away than the size of these can lower the objective at most: distance and size in
    the diagonal metrics, broadcastable to the weights and positive.

    A convex loss lies above its tangent, so within that size these V lower it by at most
        max over V of  -<gradient, V - W> - Omega(V) + Omega(W) - bend/2 (||V - W||^2 - size^2)
    for any bend > 0, which one prox with steps 1 / (bend * metric) attains; a bend with ||V - W|| = size is the best.
    A penalty of all weights alike has a loose duality gap as soon as one frequent feature is a little off, since the
    whole dual point must be scaled down for it; here it costs its share alone. If the optimum W' lies farther away, the
    objective is above it by no more than this times ||W' - W|| / size, as it is convex on the way there.
    """
    squares = sum(float((weights[name].square() * m).sum(dtype=torch.float64)) for name, m in metrics.items())
    size = squares**0.5 or 1.0
    value = sum(float(penalty.value(weights[name])) for name, penalty in penalties.items())
    best, bend = torch.inf, 1.0
    for _ in range(BENDS):
        lower, moved = value, 0.0
        for name, w in weights.items():
            steps = _steps(bend * metrics[name], w)
            way = gradients[name].mul(steps).neg_().add_(w)  # of the few vectors of its size that there are at a time
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
    return 1 / float(curvature) if curvature.dim() == 0 else curvature.reciprocal().expand_as(weights).contiguous()


def masked(gradients: Mapping[str, Tensor], support: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Entries that may not live have no gradient."""
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
    """Objective, stationarity, gaps, and how many dead groups are so only by a budget or by noise: all on the whole
    training set; and the gradients there. `main` are the penalties of the first term. `proof`: what the solver has
    proved already; computing it here can take longer than a fit. `bounded`: whether there was a strength to be optimal
    under, so that a gap means anything."""
    weights = {name: p.detach() for name, p in module.named_parameters()}
    smooth = module.loss.smooth
    if smooth:
        loss, gradients = mean_gradient(module, batches, list(penalties))
    else:  # a gradient certifies nothing
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
    """How many dead groups the gradient would wake."""
    grouped = {name: p for name, p in penalties.items() if p.groups is not None}
    found = [int(violated(p, weights[n], gradients[n]).sum()) for n, p in grouped.items()]
    return sum(found) if found else None


def _gaps(
    module, batches: Sequence, penalties: Mapping[str, Penalty], support, objective: float
) -> tuple[float | None, float | None]:
    """The duality gap, and the near gap; a tight one of the first serves as both.

    Parameters without a penalty are at their best meanwhile, which lowers the objective a little."""
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
    """The curvature of the loss, if somebody knows it; one for all entries where the penalty takes no other."""
    curvature = notes_of(parameter).curvature
    if curvature is None:
        return torch.ones((), dtype=parameter.dtype, device=parameter.device)
    curvature = curvature.to(parameter)
    return curvature if penalty is None or penalty.takes_metric(parameter, curvature) else curvature.max()
