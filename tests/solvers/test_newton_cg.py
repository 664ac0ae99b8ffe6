"""Newton's method with conjugate gradients: optima against dense solvers, any likelihood, tied columns, `meta`."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from structsparse.base.errors import UserError
from structsparse.losses.counts import MultinomialCounts, PoissonCounts, counts
from structsparse.losses.pointwise import Logistic, Squared
from structsparse.penalties import L1, SquaredL2
from structsparse.penalties.drift import Drift, Likelihood, PeriodLayout
from structsparse.solvers import NewtonCG
from structsparse.tasks.temporal.data import DatedBatch
from structsparse.tasks.temporal.model import DriftModel
from structsparse.weights.dated_rows import DatedCounts
from tests.tasks.temporal.support import batch_of, dense

PERIODS, FEATURES = 4, 5


def drift(features: int = FEATURES, tied: tuple[int, ...] = ()) -> Drift:
    """A drift penalty at its first guess of the precision."""
    penalty, same = Drift(0.01), torch.zeros(features, dtype=torch.bool)
    same[[*tied]] = True
    scale = torch.linspace(0.2, 2.0, features, dtype=torch.float64)
    penalty.fit(PeriodLayout(PERIODS, torch.zeros(features, dtype=torch.int64), scale, 0.7, same))
    return penalty


def solved(loss, batch, penalty, features: int = FEATURES, bias: bool = True, sweeps: int = 12) -> DriftModel:
    model = DriftModel(PERIODS, features, bias)
    solver = NewtonCG(model.parameters(), newton=2, iterations=40)
    solver.attach({model.table: penalty})
    for _ in range(sweeps):
        solver.sweep(model, loss, batch)
    return model


def count_batch(documents: int = 6, words: int = 4) -> DatedBatch:
    """Word counts of documents with two effects."""
    rng = np.random.default_rng(1)
    design = DatedCounts(torch.from_numpy(rng.normal(size=(documents, 2))), torch.arange(documents) % PERIODS, words)
    table = torch.from_numpy(rng.poisson(5, size=(documents, words)).astype(float))
    offset = torch.zeros(words, dtype=torch.float64) + table.sum(dim=1, keepdim=True).log() - np.log(words)
    return DatedBatch(design, table, offset, torch.arange(documents), documents)


def gradients(model, loss, batch, penalty) -> list[torch.Tensor]:
    """Gradients of the objective by table and bias, by automatic differentiation."""
    model.zero_grad()
    (loss(model(batch), batch.targets).sum() / batch.items + penalty.value(model.table)).backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("tied", [(), (1, 3)])
def test_least_squares_have_the_solution_of_the_normal_equations(tied):
    batch, penalty = batch_of(PERIODS, FEATURES), drift(tied=tied)
    model = solved(Squared(), batch, penalty)
    matrix = np.column_stack([dense(batch, PERIODS), np.ones(batch.items)])
    precision = np.zeros((matrix.shape[1],) * 2)
    for k in range(FEATURES):
        first, middle, last, off = (float(part[k]) for part in penalty.chains(model.table))
        chain = np.diag([first, *[middle] * (PERIODS - 2), last]) + off * (np.eye(4, k=1) + np.eye(4, k=-1))
        places = np.arange(PERIODS) * FEATURES + k
        precision[np.ix_(places, places)] = chain
    basis = np.zeros((matrix.shape[1], 0))
    for k in range(FEATURES):
        columns = np.eye(matrix.shape[1])[:, np.arange(PERIODS) * FEATURES + k]
        basis = np.column_stack([basis, columns.sum(axis=1) if k in tied else columns])
    basis = np.column_stack([basis, np.eye(matrix.shape[1])[:, -1]])
    system = basis.T @ (matrix.T @ matrix / batch.items + precision) @ basis
    solution = basis @ np.linalg.solve(system, basis.T @ matrix.T @ batch.targets.numpy() / batch.items)
    np.testing.assert_allclose(model.table.detach().flatten(), solution[:-1], atol=1e-8)
    assert float(model.bias) == pytest.approx(solution[-1], abs=1e-8)


def test_logistic_regression_has_the_optimum_of_another_program():
    batch, penalty = batch_of(PERIODS, FEATURES), drift()
    batch.targets = batch.targets.sign()
    model = solved(Logistic(), batch, penalty)
    matrix = np.column_stack([dense(batch, PERIODS), np.ones(batch.items)])

    def objective(x):
        table = torch.from_numpy(x[:-1].reshape(PERIODS, FEATURES)).requires_grad_()
        return np.logaddexp(0, -batch.targets.numpy() * (matrix @ x)).mean() + float(penalty.value(table.detach()))

    best = minimize(objective, np.zeros(matrix.shape[1]), method="BFGS", options={"gtol": 1e-7})
    found = np.append(model.table.detach().flatten(), float(model.bias))
    assert objective(found) <= best.fun + 1e-9
    np.testing.assert_allclose(found, best.x, atol=1e-4)


@pytest.mark.parametrize("loss", [PoissonCounts(), MultinomialCounts()])
def test_counts_end_where_the_gradient_is_zero(loss):
    batch, penalty = count_batch(), drift(8)
    model = solved(loss, batch, penalty, features=8, bias=False)
    (gradient,) = gradients(model, loss, batch, penalty)
    assert float(gradient.abs().max()) < 1e-9
    assert float(model.table.abs().max()) > 0.1


@pytest.mark.parametrize("loss", [Squared(), Logistic(), PoissonCounts(), MultinomialCounts()])
def test_derivatives_are_those_of_automatic_differentiation(loss):
    rng = np.random.default_rng(0)
    counted = loss.kind in ("poisson", "multinomial")
    shape = (5, 4) if counted else (9,)
    y = rng.poisson(2, shape).astype(float) if counted else np.sign(rng.normal(size=shape))
    scores, targets = torch.from_numpy(rng.normal(size=shape)).requires_grad_(), torch.from_numpy(y)
    direction = torch.from_numpy(rng.normal(size=shape))
    if counted:
        saturated = loss(torch.log(targets + 1e-300), targets)
        torch.testing.assert_close(saturated, torch.zeros_like(saturated), rtol=0, atol=1e-9)
        assert float(loss(scores, targets).min()) > 0
    (first,) = torch.autograd.grad(loss(scores, targets).sum(), scores, create_graph=True)
    torch.testing.assert_close(loss.first(scores, targets), first, rtol=1e-10, atol=1e-10)
    if loss.quadratic:
        product = direction
    else:
        (product,) = torch.autograd.grad((first * direction).sum(), scores)
    found = loss.times(scores.detach(), targets, direction)
    torch.testing.assert_close(found, product, rtol=1e-10, atol=1e-10)
    bound = (direction**2 * loss.second(scores.detach(), targets)).sum()
    assert float((found * direction).sum()) <= float(bound) + 1e-12


def test_pearson_of_counts_is_near_one_per_word_where_the_model_is_true():
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.normal(3, 0.3, size=(200, 30)))
    sampled = torch.from_numpy(rng.poisson(scores.exp().numpy()).astype(float))
    assert float(PoissonCounts().pearson(scores, sampled)) / sampled.numel() == pytest.approx(1, abs=0.1)
    assert float(MultinomialCounts().pearson(scores, sampled)) / sampled.numel() == pytest.approx(1, abs=0.1)


def test_ridge_regression_converges_and_stops():
    batch = batch_of(PERIODS, FEATURES)
    model = DriftModel(PERIODS, FEATURES, True)
    solver, penalty = NewtonCG(model.parameters()), SquaredL2(0.05)
    solver.attach({model.table: penalty})
    sweeps = 0
    while not solver.converged and sweeps < 40:
        solver.sweep(model, Squared(), batch)
        sweeps += 1
    assert sweeps < 40
    assert all(float(g.abs().max()) < 1e-7 for g in gradients(model, Squared(), batch, penalty))


def test_a_penalty_with_kinks_is_refused():
    model = DriftModel(PERIODS, FEATURES, True)
    with pytest.raises(UserError, match="takes smooth penalties"):
        NewtonCG(model.parameters()).attach({model.table: L1(0.1)})


@pytest.mark.parametrize("loss", [Squared(), Logistic(), PoissonCounts(), MultinomialCounts()])
def test_a_step_asks_no_device_for_a_value(loss):
    counted = loss.kind in ("poisson", "multinomial")
    features = 8 if counted else FEATURES
    batch = (count_batch() if counted else batch_of(PERIODS, FEATURES)).to("meta")
    model, penalty = DriftModel(PERIODS, features, not counted).to("meta"), drift(features, tied=(1,)).to("meta")
    solver = NewtonCG(model.parameters())
    solver.attach({model.table: penalty})
    assert solver.sweep(model, loss, batch).device.type == "meta"
    scores = model(batch)
    curvature = batch.design.squares(loss.second(scores, batch.targets), PERIODS)
    pearson = loss.pearson(scores, batch.targets) if loss.dispersion is None else None
    updated = penalty.outer_update(model.table.detach(), Likelihood(curvature, scores.sum(), pearson, 9))
    assert updated.objective.device.type == "meta"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"newton": 0}, "solver.newton"), ({"iterations": 1.5}, "solver.iterations"), ({"tolerance": 0}, "solver.tol")],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        NewtonCG(DriftModel(2, 2, True).parameters(), **options)


def test_count_losses_refuse_unknown_options():
    with pytest.raises(UserError, match="expected one of poisson, multinomial"):
        counts("gaussian")
    with pytest.raises(UserError, match=r"loss\.dispersion"):
        counts("poisson", 0.0)
