"""Effective steps: an optimizer step and a prox with that step solve the right problem, the bare rate does not."""

from functools import cache, partial

import pytest
import torch
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, NAdam, RMSprop, Rprop

from structsparse.base.errors import UserError
from structsparse.groups import Partition
from structsparse.penalties import L1, GroupLasso
from structsparse.solvers.base import Solver, solver_of

FEATURES, GROUPS = 16, 4


class Halved(Solver):
    """A solver with a metric per entry."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * self.effective_step(group, parameter))

    def metric(self, group, parameter):
        return torch.linspace(0.5, 1, parameter.numel()).to(parameter)


class Quartered(Halved):
    """A solver whose metric is a number."""

    def metric(self, group, parameter):
        return 0.25


OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.2),
    "momentum": partial(SGD, lr=0.02, momentum=0.9),
    "dampened momentum": partial(SGD, lr=0.1, momentum=0.8, dampening=0.5),
    "nesterov": partial(SGD, lr=0.02, momentum=0.9, nesterov=True),
    "adagrad": partial(Adagrad, lr=0.5),
    "adagrad, decaying": partial(Adagrad, lr=0.5, lr_decay=1e-3, initial_accumulator_value=0.1),
    "rmsprop": partial(RMSprop, lr=0.005),
    "rmsprop, momentum": partial(RMSprop, lr=0.002, alpha=0.9, momentum=0.5),
    # a slow mean: otherwise torch takes the root of a variance that rounding has made negative
    "rmsprop, centred": partial(RMSprop, lr=0.005, alpha=0.999, centered=True, eps=0.1),
    "adam": partial(Adam, lr=0.01),
    "adam, amsgrad": partial(Adam, lr=0.01, amsgrad=True, betas=(0.8, 0.99)),
    "adam, rate in a tensor": lambda params: Adam(params, lr=torch.tensor(0.01)),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.0),
    "metric per entry": partial(Halved, lr=0.15),
    "metric": partial(Quartered, lr=0.8),
}
PENALTIES = {
    "lasso": lambda: L1(0.1),
    "group lasso": lambda: GroupLasso(
        Partition(torch.arange(FEATURES) // (FEATURES // GROUPS), list("abcd"), (FEATURES,)), 0.1
    ),
}


@cache
def problem():
    """Hessian and linear term of a least-squares problem with features of scales that differ by a factor of ten."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    scale = torch.logspace(-0.5, 0.5, FEATURES, dtype=torch.float64)[torch.randperm(FEATURES, generator=generator)]
    X, truth = normal(300, FEATURES) * scale, torch.zeros(FEATURES, dtype=torch.float64)
    truth[0], truth[4:8] = 1.0, normal(4)
    y = X @ truth + 0.3 * normal(300)
    return X.T @ X / 300, X.T @ y / 300


@cache
def solution(name):
    """The solution by proximal gradient, certified here: -gradient is in the subdifferential."""
    H, b = problem()
    penalty, step = PENALTIES[name](), 1 / float(torch.linalg.eigvalsh(H).max())
    w = torch.zeros(FEATURES, dtype=torch.float64)
    for _ in range(4000):
        w = penalty.prox_(w - step * (H @ w - b), step)
    size = 1 if name == "lasso" else FEATURES // GROUPS
    norms, reach = w.view(-1, size).norm(dim=1, keepdim=True), 0.1 * size**0.5
    pull = (b - H @ w).view(-1, size)
    alive = norms[:, 0] > 0
    torch.testing.assert_close(pull[alive], (reach * w.view(-1, size) / norms)[alive], rtol=0, atol=1e-10)
    assert (pull[~alive].norm(dim=1) < reach).all()
    assert 0 < int(alive.sum()) < len(alive)
    return w


def fit(make, penalty, effective, rounds=4000):
    """Optimizer steps at a rate that falls to zero, each followed by the prox."""
    H, b = problem()
    w = torch.zeros(FEATURES, dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    (group,) = optimizer.param_groups
    rate = group["lr"]
    for done in range(rounds):
        w.grad = H @ w.detach() - b
        group["lr"] = rate * (1 - done / rounds)
        optimizer.step()
        penalty.prox_(w, effective(optimizer, group, w))
    return w.detach()


def effective_step(optimizer, group, w):
    return solver_of(optimizer).effective_step(group, w)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_every_optimizer_reaches_the_solution(make, name):
    found = fit(make, PENALTIES[name](), effective_step)
    torch.testing.assert_close(found, solution(name), rtol=0, atol=1e-4)
    assert torch.equal(found != 0, solution(name) != 0)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "rmsprop", "adam"])
def test_the_bare_learning_rate_does_not(optimizer, name):
    found = fit(OPTIMIZERS[optimizer], PENALTIES[name](), lambda optimizer, group, w: group["lr"])
    assert float((found - solution(name)).norm()) > 0.05


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
def test_thresholds_of_several_steps_add_up_as_learning_rates(optimizer, name):
    """Every third step, with the sum of three rates times the latest metric."""
    rates = []

    def third(optimizer, group, w):
        rates.append(solver_of(optimizer).rate(group))
        if len(rates) < 3:
            return 0.0
        total = sum(rates)
        rates.clear()
        return total * solver_of(optimizer).metric(group, w)

    found = fit(OPTIMIZERS[optimizer], PENALTIES[name](), third, rounds=6000)
    torch.testing.assert_close(found, solution(name), rtol=0, atol=2e-3)
    assert torch.equal(found != 0, solution(name) != 0)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_the_effective_step_is_the_move_under_a_constant_gradient(make):
    gradient = torch.logspace(-2, 1, 7, dtype=torch.float64)
    w = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    (group,) = optimizer.param_groups
    for done in range(300):  # until momentum has built up
        before, w.grad = w.detach().clone(), gradient.clone()
        optimizer.step()
        effective = torch.as_tensor(solver_of(optimizer).effective_step(group, w))
        if done < 3 and group.get("momentum", 0) == 0:
            torch.testing.assert_close(effective * gradient, before - w.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(effective * gradient, before - w.detach(), rtol=1e-6, atol=0)
    split = solver_of(optimizer).rate(group) * solver_of(optimizer).metric(group, w)
    torch.testing.assert_close(torch.as_tensor(split), effective, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adagrad"])
def test_a_parameter_not_moved_yet_has_step_zero_or_the_first_step(optimizer):
    w, idle = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    made = OPTIMIZERS[optimizer]([w, idle])
    w.grad = torch.ones(3)
    made.step()
    found = solver_of(made).effective_step(made.param_groups[0], idle)
    if optimizer == "adagrad":  # its sum starts at zero: a huge step that kills every penalised weight
        assert torch.equal(L1(1.0).prox_(torch.tensor([5.0, -5.0, 0.0]), found), torch.zeros(3))
    else:
        assert found == 0.0


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_steps_need_no_synchronisation_with_the_device(make):
    w = torch.nn.Parameter(torch.empty(FEATURES, device="meta"))
    optimizer = make([w])
    w.grad = torch.empty(FEATURES, device="meta")
    optimizer.step()
    effective = solver_of(optimizer).effective_step(optimizer.param_groups[0], w)
    assert not isinstance(effective, torch.Tensor) or effective.device.type == "meta" or effective.dim() == 0
    for name in PENALTIES:
        assert PENALTIES[name]().to("meta").prox_(w, effective) is w


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_supported_optimizers_are_accepted(make):
    w, other = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    solver = solver_of(make([{"params": [w]}, {"params": [other]}]))
    solver.check_prox([w, other])
    assert solver.knows_step


class Unlike(Adam):
    """A subclass, whose step may be anything."""


REFUSED = {
    "LBFGS tries several points within one step": LBFGS,
    "the step that NAdam really takes is not known": NAdam,
    "the step that Rprop really takes is not known": Rprop,
    "the step that Unlike really takes is not known, so no prox fits after it; choose one of SGD, Adagrad": Unlike,
    "Adam of a penalised parameter (3,) has maximize=True": partial(Adam, maximize=True),
    "SGD of a penalised parameter (3,) has weight_decay=0.1: it would be penalised twice": partial(
        SGD, lr=0.1, weight_decay=0.1
    ),
    "AdamW of a penalised parameter (3,) has weight_decay=0.01": AdamW,
    "RMSprop of a penalised parameter (3,) has momentum=1.0: its step grows without end": partial(
        RMSprop, momentum=1.0
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_optimizers_are_refused_with_the_reason(message):
    w = torch.zeros(3, requires_grad=True)
    with pytest.raises(UserError) as error:
        solver_of(REFUSED[message]([w])).check_prox([w])
    assert message in str(error.value)


def test_only_the_groups_of_penalised_parameters_are_checked():
    penalised, bias = torch.zeros(3, requires_grad=True), torch.zeros(2, requires_grad=True)
    optimizer = SGD([{"params": [penalised]}, {"params": [bias], "weight_decay": 0.1}], lr=0.1)
    solver_of(optimizer).check_prox([penalised])
    with pytest.raises(UserError, match=r"penalised parameter \(2,\) has weight_decay"):
        solver_of(optimizer).check_prox([penalised, bias])
    with pytest.raises(UserError, match=r"\(4,\) is not among those that SGD moves"):
        solver_of(optimizer).check_prox([torch.zeros(4)])
