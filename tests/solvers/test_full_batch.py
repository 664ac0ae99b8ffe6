"""Full-batch solvers: each against plain loops, and against the optimum by an independent method."""

from functools import cache, partial

import cvxpy
import numpy as np
import pytest
import torch
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import Lasso, LogisticRegression

from structsparse.base.errors import UserError
from structsparse.groups import by_row_blocks
from structsparse.penalties import L1, ElasticNet, GroupLasso, SparseGroupLasso, SquaredL2
from structsparse.solvers.dual_averaging import RDA, AdagradRDA
from structsparse.solvers.fista import FISTA, AcceleratedSGD
from structsparse.solvers.mira import MIRA
from structsparse.solvers.owlqn import OWLQN
from structsparse.solvers.quasi_newton import ProximalQuasiNewton
from structsparse.weights.notes import notes_of

ITEMS, FEATURES, SIZE = 80, 24, 4


@cache
def data(seed=0):
    """Features [items, features] that differ in scale by ten, targets [items], labels -1 and 1 [items]."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    scale = torch.logspace(-0.5, 0.5, FEATURES, dtype=torch.float64)[torch.randperm(FEATURES, generator=draw)]
    X, truth = normal(ITEMS, FEATURES) * scale, torch.zeros(FEATURES, dtype=torch.float64)
    truth[0], truth[1], truth[SIZE : 2 * SIZE] = 1.0, -2.0, normal(SIZE)
    y = X @ truth + 0.5 * normal(ITEMS) + 0.7
    return X, y, torch.where(y > 0.7, 1.0, -1.0).double()


def blocks():
    names = [str(k) for k in range(FEATURES // SIZE)]
    return by_row_blocks((FEATURES,), names, list(range(0, FEATURES + 1, SIZE)))


PENALTIES = {
    "lasso": lambda: L1(0.15),
    "elastic net": lambda: ElasticNet(0.2, 0.6),
    "squared l2": lambda: SquaredL2(0.05),
    "group lasso": lambda: GroupLasso(blocks(), 0.1),
    "sparse group lasso": lambda: SparseGroupLasso(blocks(), 0.15, 0.4),
}
BATCH = {"fista": FISTA, "owlqn": OWLQN, "quasi-newton": ProximalQuasiNewton}
CASES = [
    (solver, loss, penalty)
    for solver in BATCH
    for loss in ("squares", "logistic")
    for penalty in PENALTIES
    if not (solver == "owlqn" and "group" in penalty)
]


def loss_of(name, w, b):
    X, y, labels = data()
    if name == "squares":
        return (X @ w + b - y).square().sum() / (2 * ITEMS)
    return torch.nn.functional.softplus(-labels * (X @ w + b)).mean()


@cache
def optimum(name, penalty):
    """Weights and intercept by scikit-learn if it solves the problem, else by cvxpy."""
    X, y, labels = (part.numpy() for part in data())
    options = {"tol": 1e-14, "max_iter": 1_000_000}
    if name == "squares" and penalty == "lasso":
        found = Lasso(alpha=0.15, **options).fit(X, y)
    elif name == "squares" and penalty == "elastic net":
        found = SklearnElasticNet(alpha=0.2, l1_ratio=0.6, **options).fit(X, y)
    elif name == "logistic" and penalty == "squared l2":
        found = LogisticRegression(C=1 / (0.05 * ITEMS), tol=1e-12, max_iter=100_000).fit(X, labels)
    else:
        return by_cvxpy(name, penalty, X, y, labels)
    return found.coef_.reshape(-1), float(np.ravel(found.intercept_)[0])


def by_cvxpy(name, penalty, X, y, labels):
    w, b = cvxpy.Variable(FEATURES), cvxpy.Variable()
    scores = X @ w + b
    loss = (
        cvxpy.sum_squares(scores - y) / 2
        if name == "squares"
        else cvxpy.sum(cvxpy.logistic(-cvxpy.multiply(labels, scores)))
    )
    l1, squares = cvxpy.norm1(w), cvxpy.sum_squares(w) / 2
    norms = sum(SIZE**0.5 * cvxpy.norm2(w[k : k + SIZE]) for k in range(0, FEATURES, SIZE))
    value = {
        "lasso": 0.15 * l1,
        "elastic net": 0.2 * (0.6 * l1 + 0.4 * squares),
        "squared l2": 0.05 * squares,
        "group lasso": 0.1 * norms,
        "sparse group lasso": 0.15 * (0.6 * norms + 0.4 * l1),
    }[penalty]
    precise = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    cvxpy.Problem(cvxpy.Minimize(loss / ITEMS + value)).solve(solver=cvxpy.CLARABEL, **precise)
    return polished(name, penalty, torch.as_tensor(w.value), torch.as_tensor(float(b.value)))


def polished(name, penalty, w, b):
    """Refine a solution of cvxpy, precise to 1e-6, by Newton on its support, where the problem is smooth."""
    support = w.abs() > 1e-5
    spread = torch.eye(FEATURES, dtype=torch.float64)[:, support]  # embeds the living entries

    def objective(living):
        w = spread @ living[:-1]
        l1, squares = living[:-1].abs().sum(), w.square().sum() / 2
        norms = sum(
            SIZE**0.5 * block[alive].norm()
            for block, alive in zip(w.split(SIZE), support.split(SIZE), strict=True)
            if alive.any()
        )
        value = {
            "lasso": 0.15 * l1,
            "elastic net": 0.2 * (0.6 * l1 + 0.4 * squares),
            "squared l2": 0.05 * squares,
            "group lasso": 0.1 * norms,
            "sparse group lasso": 0.15 * (0.6 * norms + 0.4 * l1),
        }[penalty]
        return loss_of(name, w, living[-1]) + value

    living = torch.cat([w[support], b.view(1)])
    for _ in range(8):
        gradient = torch.func.grad(objective)(living)
        living = living - torch.linalg.solve(torch.func.hessian(objective)(living), gradient)
    assert float(gradient.abs().max()) < 1e-12
    return (spread @ living[:-1]).numpy(), float(living[-1])


class Problem:
    """Weights under a penalty and a free intercept, in groups of their own; counts its evaluations."""

    def __init__(self, make, name, penalty, *, dtype=torch.float64, curved=False, support=None):
        self.w = torch.nn.Parameter(torch.zeros(FEATURES, dtype=dtype))
        self.b = torch.nn.Parameter(torch.zeros((), dtype=dtype))
        self.name, self.penalty, self.evaluations = name, penalty, 0
        if curved:
            notes_of(self.w).curvature = data()[0].square().mean(0)
        self.optimizer = make([{"params": [self.w]}, {"params": [self.b]}])
        masks = {} if support is None else {self.w: support}
        self.optimizer.attach({self.w: penalty}, masks)

    def closure(self):
        self.evaluations += 1
        self.optimizer.zero_grad()
        loss = loss_of(self.name, self.w.double(), self.b.double())
        loss.backward()
        return loss

    def objective(self):
        with torch.no_grad():
            return float(loss_of(self.name, self.w.double(), self.b.double()) + self.penalty.value(self.w))

    def run(self, most=2000):
        for _ in range(most):
            self.optimizer.step(self.closure)
            if self.optimizer.converged:
                break
        return self


# --- solvers that carry the penalty


@pytest.mark.parametrize("curved", [False, True], ids=["plain", "curvature"])
@pytest.mark.parametrize(("solver", "loss", "penalty"), CASES)
def test_batch_solvers_reach_the_optimum(solver, loss, penalty, curved):
    problem = Problem(partial(BATCH[solver], tolerance=0.0), loss, PENALTIES[penalty](), curved=curved).run()
    assert problem.optimizer.converged
    weights, intercept = optimum(loss, penalty)
    best = Problem(BATCH[solver], loss, PENALTIES[penalty]())
    with torch.no_grad():
        best.w.copy_(torch.from_numpy(weights))
        best.b.fill_(intercept)
    assert problem.objective() == pytest.approx(best.objective(), rel=0, abs=1e-9)
    np.testing.assert_allclose(problem.w.detach().numpy(), weights, rtol=0, atol=1e-6)
    assert float(problem.b.detach()) == pytest.approx(intercept, abs=1e-6)
    support = np.abs(weights) > 1e-7
    np.testing.assert_array_equal(problem.w.detach().numpy() != 0, support)
    assert support.all() if penalty == "squared l2" else 0 < support.sum() < FEATURES
    assert not torch.signbit(problem.w.detach()[problem.w == 0]).any()


@pytest.mark.parametrize("solver", BATCH)
def test_the_objective_never_rises(solver):
    problem = Problem(BATCH[solver], "logistic", PENALTIES["lasso"]())
    seen = [problem.objective()]
    for _ in range(60):
        problem.optimizer.step(problem.closure)
        seen.append(problem.objective())
    assert (np.diff(seen) <= 1e-15).all()
    assert seen[-1] < 0.99 * seen[0]


@pytest.mark.parametrize("solver", BATCH)
@pytest.mark.parametrize("kind", [lambda loss: loss.item(), lambda loss: loss])
def test_a_step_returns_the_loss_whether_number_or_tensor(solver, kind):
    problem = Problem(BATCH[solver], "squares", PENALTIES["lasso"]())
    for _ in range(3):
        told = problem.optimizer.step(lambda: kind(problem.closure()))
    assert told == pytest.approx(problem.objective() - float(problem.penalty.value(problem.w.detach())), rel=1e-12)


@pytest.mark.parametrize("solver", ["fista", "quasi-newton"])
def test_the_curvature_saves_evaluations(solver):
    """The metric equalises columns of scales that differ by a factor of ten."""
    counts = []
    for curved in (False, True):
        problem = Problem(BATCH[solver], "logistic", PENALTIES["lasso"](), curved=curved)
        goal = problem_value("logistic", "lasso") + 1e-6
        while problem.objective() > goal:
            problem.optimizer.step(problem.closure)
        counts.append(problem.evaluations)
    assert counts[1] < 0.7 * counts[0]


@cache
def problem_value(loss, penalty):
    weights, intercept = (torch.as_tensor(part) for part in optimum(loss, penalty))
    return float(loss_of(loss, weights, intercept) + PENALTIES[penalty]().value(weights))


@pytest.mark.parametrize("solver", BATCH)
def test_entries_outside_the_support_stay_zero_and_the_others_are_optimal(solver):
    support = torch.ones(FEATURES, dtype=torch.bool)
    support[1] = support[5] = False
    make = partial(BATCH[solver], tolerance=0.0)
    problem = Problem(make, "squares", PENALTIES["lasso"](), support=support).run()
    X, y, _ = (part.numpy() for part in data())
    kept = support.numpy()
    found = Lasso(alpha=0.15, tol=1e-14, max_iter=1_000_000).fit(X[:, kept], y)
    assert (problem.w.detach()[~support] == 0).all()
    np.testing.assert_allclose(problem.w.detach().numpy()[kept], found.coef_, rtol=0, atol=1e-6)


class Scalar(GroupLasso):
    """A penalty whose prox takes no step per entry."""

    def prox_(self, W, steps):
        if isinstance(steps, torch.Tensor) and steps.dim() > 0:
            raise UserError("this penalty takes one step for all entries")
        return super().prox_(W, steps)


@pytest.mark.parametrize("solver", ["fista", "quasi-newton"])
def test_without_a_step_per_entry_the_parameter_has_one_step(solver):
    make = partial(BATCH[solver], tolerance=0.0)
    problem = Problem(make, "logistic", Scalar(blocks(), 0.1), curved=True).run()
    np.testing.assert_allclose(problem.w.detach().numpy(), optimum("logistic", "group lasso")[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("solver", BATCH)
def test_single_precision_converges_near_the_optimum(solver):
    problem = Problem(BATCH[solver], "logistic", PENALTIES["lasso"](), dtype=torch.float32, curved=True).run()
    assert problem.optimizer.converged
    assert problem.objective() == pytest.approx(problem_value("logistic", "lasso"), rel=1e-5)


def penalties_of(solver):
    return ["lasso"] if solver == "owlqn" else ["lasso", "group lasso"]


@pytest.mark.parametrize(("solver", "penalty"), [(s, p) for s in BATCH for p in penalties_of(s)])
def test_a_saved_state_continues_to_the_same_bits(solver, penalty, tmp_path):
    problem = Problem(BATCH[solver], "logistic", PENALTIES[penalty](), dtype=torch.float32, curved=True)
    for _ in range(7):
        problem.optimizer.step(problem.closure)
    torch.save([problem.optimizer.state_dict(), problem.w.detach(), problem.b.detach()], tmp_path / "state")
    state, w, b = torch.load(tmp_path / "state", weights_only=True)
    other = Problem(BATCH[solver], "logistic", PENALTIES[penalty](), dtype=torch.float32, curved=True)
    with torch.no_grad():
        other.w.copy_(w)
        other.b.copy_(b)
    other.optimizer.load_state_dict(state)
    before = problem.evaluations
    for _ in range(5):
        problem.optimizer.step(problem.closure)
        other.optimizer.step(other.closure)
        assert torch.equal(problem.w, other.w)
        assert torch.equal(problem.b, other.b)
    assert other.evaluations == problem.evaluations - before


@pytest.mark.parametrize("solver", BATCH)
def test_a_nan_loss_is_refused_at_the_start_and_backtracked_from_later(solver):
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    with pytest.raises(UserError, match="the loss is nan where"):
        BATCH[solver]([w]).step(lambda: float("nan"))
    optimizer = BATCH[solver]([w], lr=64.0, tolerance=0.0)

    def barrier():
        optimizer.zero_grad()
        loss = (w - w.log()).sum() + (w[0] - 2).square()  # NaN below zero
        loss.backward()
        return loss

    for _ in range(200):
        optimizer.step(barrier)
    root = (3 + 17**0.5) / 4  # of 1 - 1/w + 2 (w - 2) = 0
    torch.testing.assert_close(w.detach(), torch.tensor([root, 1.0], dtype=torch.float64), rtol=0, atol=1e-7)


def test_wrong_arguments_are_refused_with_the_reason():
    w, other = (torch.nn.Parameter(torch.zeros(FEATURES)) for _ in range(2))
    with pytest.raises(UserError, match=r"OWLQN knows L1, .* and NoPenalty, got GroupLasso"):
        OWLQN([w]).attach({w: GroupLasso(blocks(), 0.1)})
    with pytest.raises(UserError, match=r"\(24,\) is not among those that FISTA moves"):
        FISTA([w]).attach({other: L1(0.1)})
    with pytest.raises(UserError, match="FISTA evaluates the loss within a step"):
        FISTA([w]).step()
    for curvature in (torch.zeros(FEATURES), torch.ones(3), torch.ones(2, FEATURES)):
        notes_of(w).curvature = curvature
        with pytest.raises(UserError, match="must broadcast to it and be positive"):
            FISTA([w]).step(lambda: 1.0)
    wrong = [
        (FISTA, {"lr": 0.0}, "solver.lr is 0.0"),
        (FISTA, {"tolerance": -1.0}, "solver.tolerance is -1.0"),
        (OWLQN, {"history": 0}, "solver.history is 0"),
        (ProximalQuasiNewton, {"history": 0}, "solver.history=0"),
        (ProximalQuasiNewton, {"exponent": 1.5}, "solver.exponent is 1.5"),
        (AdagradRDA, {"delta": 0.0}, "solver.delta is 0.0"),
        (RDA, {"lr": -1.0}, "solver.lr is -1.0"),
        (MIRA, {"cap": 0.0}, "solver.cap is 0.0"),
        (AcceleratedSGD, {"lr": 0.0}, "solver.lr is 0.0"),
        (AcceleratedSGD, {"noise": -1.0}, "solver.noise is -1.0"),
        (AcceleratedSGD, {"convexity": -1.0}, "solver.convexity is -1.0"),
    ]
    for kind, options, message in wrong:
        with pytest.raises(UserError, match=message):
            kind([w], **options)
    for kind in (MIRA, AcceleratedSGD):
        with pytest.raises(UserError, match=r"call step\(closure\)"):
            kind([w]).step()
