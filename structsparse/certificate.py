"""What the whole training set says: the exact gradient, the critical strength, how stationary the end is.

Penalised parameters stop where W = prox(W - gradient). How far they are from that, relative to how far they were at
zero, is the evidence for the zeros of a trained model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from structsparse.bags import subtract_
from structsparse.penalties import Penalty


def mean_gradient(module, batches: Iterable, names: Sequence[str]) -> tuple[float, dict[str, Tensor]]:
    """The mean loss over all items, and its gradient with respect to the named parameters.

    `module.step(batch)` is the sum of the losses of the batch's items over `batch.items`."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if name in set(names)}
    gradients = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    before = {name: getattr(parameter, "pending", None) for name, parameter in parameters.items()}
    loss = torch.zeros((), dtype=torch.float64, device=module.device)
    items = 0
    try:
        for batch in batches:
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            items += batch.items
            for parameter in parameters.values():
                parameter.pending, parameter.grad = [], None
            part = module.step(batch) * batch.items
            part.backward()
            loss += part.detach()
            for name, parameter in parameters.items():
                for gradient in parameter.pending:
                    subtract_(gradients[name], gradient, -1.0)
                if parameter.grad is not None:
                    gradients[name] += parameter.grad
    finally:
        for name, parameter in parameters.items():
            parameter.pending, parameter.grad = before[name], None
        module.zero_grad(set_to_none=True)
    return float(loss) / items, {name: gradient / items for name, gradient in gradients.items()}


def fit_free(module, batches: Sequence, free: Mapping[str, Tensor], iterations: int = 25) -> None:
    """The optimum of the unpenalised parameters while the penalised ones are zero: where a regularization path
    begins, and where the gradient that decides the critical strength must be taken."""
    if not free:
        return
    parameters = list(free.values())
    solver = torch.optim.LBFGS(parameters, max_iter=iterations, history_size=10, line_search_fn="strong_wolfe")

    def evaluate() -> Tensor:
        loss, gradients = mean_gradient(module, batches, list(free))
        for name, parameter in free.items():
            parameter.grad = gradients[name]
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
