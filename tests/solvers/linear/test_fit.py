"""`fit_linear` against cvxpy and scikit-learn, and its certificates against more precise optima."""

import itertools
import math
from types import SimpleNamespace

import cvxpy
import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import Lasso, LogisticRegression

from structsparse.base.errors import UserError
from structsparse.groups import Partition, by_row_blocks
from structsparse.kernels.solvers import linear_newton as descent
from structsparse.kernels.solvers import linear_problem as linear
from structsparse.kernels.solvers import linear_ridge
from structsparse.penalties import L1, ElasticNet, GroupLasso, NoPenalty, SparseGroupLasso, SquaredL2
from structsparse.solvers.linear import critical_strength, fit_linear
from structsparse.solvers.linear.problem import make_blocks, make_problem

ITEMS, FEATURES = 60, 36
LOSSES = ["logistic", "squared"]


def scattered(weights="sqrt_size"):
    """Groups of scattered features: some features free, one group with a single feature, one empty."""
    ids = torch.arange(FEATURES) * 7 % 8
    ids[[3, 20]], ids[5] = -1, 8
    return Partition(ids, [f"g{i}" for i in range(10)], (FEATURES,), weights)


def blocks():
    return by_row_blocks((FEATURES, 1), list("abcd"), [0, 1, 10, 10, FEATURES], "one")


PENALTIES = {
    "l1": lambda: L1(1.0),
    "elastic net": lambda: ElasticNet(1.0, mix=0.6),
    "squared l2": lambda: SquaredL2(1.0),
    "group lasso, scattered": lambda: GroupLasso(scattered(), 1.0),
    "group lasso, blocks": lambda: GroupLasso(blocks(), 1.0),
    "sparse group lasso": lambda: SparseGroupLasso(scattered("log2_size"), 1.0, mix=0.4),
    "sparse group lasso, all entries": lambda: SparseGroupLasso(scattered(), 1.0, mix=1.0),
}


@pytest.fixture(params=PENALTIES)
def penalty(request):
    return PENALTIES[request.param]()


def draw(seed=0, loss="logistic", items=ITEMS, features=FEATURES):
    """A matrix with positive and negative entries, a column of zeros and one in a few items only; and targets."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((items, features)) * (random.random((items, features)) < 0.3)
    X[:, [1, 4]] = 0
    X[:3, 4] = 1
    y = X @ (random.standard_normal(features) * (random.random(features) < 0.3)) + random.standard_normal(items) + 0.5
    return scipy.sparse.csc_array(X), np.where(y > 0, 1.0, -1.0) if loss == "logistic" else y


def at_share(penalty, share, X, y, loss, intercept=True):
    """The penalty at a share of its critical strength."""
    critical = critical_strength(X, y, penalty, loss, intercept)
    penalty.strength = 0.02 if critical is None else share * critical
    return penalty


def objective(X, y, weights, constant, penalty, loss, quadratic=None):
    """The objective of the docstring, with the penalty's own `value`."""
    scores = X @ weights + constant
    losses = np.logaddexp(0, -y * scores) if loss == "logistic" else (scores - y) ** 2 / 2
    W = torch.as_tensor(weights)
    value = float(penalty.value(W if penalty.groups is None else W.view(penalty.groups.shape)))
    return losses.mean() + value + (0 if quadratic is None else (quadratic * weights**2).sum() / 2)


def by_cvxpy(X, y, penalty, loss, intercept, quadratic=None):
    """Weights, intercept and value of the minimum, by an interior point method."""
    w, b = cvxpy.Variable(X.shape[1]), cvxpy.Variable() if intercept else 0.0
    scores = X.toarray() @ w + b
    if loss == "logistic":
        total = cvxpy.sum(cvxpy.logistic(-cvxpy.multiply(y, scores))) / len(y)
    else:
        total = cvxpy.sum_squares(scores - y) / (2 * len(y))
    strength = float(penalty.strength)
    if penalty.groups is None:
        total += strength * (penalty.mix * cvxpy.norm1(w) + (1 - penalty.mix) / 2 * cvxpy.sum_squares(w))
    else:
        ids = penalty.groups.ids.flatten().numpy()
        for g, weight in enumerate(penalty.groups.weight.tolist()):
            if (ids == g).any():
                total += strength * (1 - penalty.mix) * weight * cvxpy.norm2(w[ids == g])
                total += strength * penalty.mix * cvxpy.norm1(w[ids == g])
    if quadratic is not None:
        total += cvxpy.sum(cvxpy.multiply(quadratic, cvxpy.square(w))) / 2
    problem = cvxpy.Problem(cvxpy.Minimize(total))
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return SimpleNamespace(weights=w.value, intercept=b.value if intercept else 0.0, objective=problem.value)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridged", [False, True])
def test_the_optimum_is_that_of_cvxpy(penalty, loss, intercept, ridged):
    X, y = draw(loss=loss)
    at_share(penalty, 0.15, X, y, loss, intercept)
    quadratic = np.random.default_rng(1).random(FEATURES) * (np.arange(FEATURES) % 3 > 0) * 0.1 if ridged else None
    fit = fit_linear(X, y, penalty, loss, 1e-9, intercept=intercept, quadratic=quadratic)
    truth = by_cvxpy(X, y, penalty, loss, intercept, quadratic)
    assert fit.converged
    assert fit.gap <= 1e-9
    assert fit.objective == pytest.approx(truth.objective, abs=1e-8)
    assert fit.objective == pytest.approx(
        objective(X, y, fit.weights.numpy(), fit.intercept, penalty, loss, quadratic), rel=1e-12
    )
    used = np.abs(X).sum(0) > 0
    np.testing.assert_allclose(fit.weights.numpy()[used], truth.weights[used], atol=1e-3)
    assert fit.intercept == pytest.approx(float(truth.intercept), abs=1e-3)
    assert intercept or fit.intercept == 0


@pytest.mark.parametrize("intercept", [True, False])
def test_the_optimum_is_that_of_scikit_learn(intercept):
    X, y = draw(2, "squared")
    options = {"alpha": 0.05, "tol": 1e-14, "max_iter": 100_000, "fit_intercept": intercept}
    for penalty, other in (
        (L1(0.05), Lasso(**options)),
        (ElasticNet(0.05, mix=0.3), SklearnElasticNet(l1_ratio=0.3, **options)),
    ):
        other.fit(X, y)
        fit = fit_linear(X, y, penalty, "squared", 1e-13, intercept=intercept)
        np.testing.assert_allclose(fit.weights.numpy(), other.coef_, atol=1e-6)
        assert fit.intercept == pytest.approx(float(other.intercept_), abs=1e-6)
    X, y = draw(2)
    options = {"tol": 1e-10, "max_iter": 100_000, "fit_intercept": intercept, "solver": "saga"}
    for penalty, ratio in ((L1(0.02), 1.0), (ElasticNet(0.02, mix=0.5), 0.5), (SquaredL2(0.02), 0.0)):
        other = LogisticRegression(C=1 / (0.02 * ITEMS), l1_ratio=ratio, **options).fit(X.tocsr(), y)
        fit = fit_linear(X, y, penalty, tolerance=1e-12, intercept=intercept)
        constant = float(other.intercept_[0]) if intercept else 0.0
        np.testing.assert_allclose(fit.weights.numpy(), other.coef_[0], atol=1e-5)
        assert fit.intercept == pytest.approx(constant, abs=1e-5)
        assert fit.objective == pytest.approx(objective(X, y, other.coef_[0], constant, penalty, "logistic"), abs=1e-9)
    options |= {"solver": "liblinear", "fit_intercept": False}
    other = LogisticRegression(C=1 / (0.02 * ITEMS), l1_ratio=1.0, **options)
    fit = fit_linear(X, y, L1(0.02), tolerance=1e-12, intercept=False)
    np.testing.assert_allclose(fit.weights.numpy(), other.fit(X.tocsr(), y).coef_[0], atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [True, False])
def test_the_gap_bounds_the_suboptimality(penalty, loss, intercept):
    """Wherever the search stops, and not too loosely."""
    X, y = draw(3, loss)
    at_share(penalty, 0.1, X, y, loss, intercept)
    best = fit_linear(X, y, penalty, loss, 1e-12, intercept=intercept)
    unit = null_objective(y, loss, intercept)
    kept = 0
    for tolerance in (1.0, 1e-1, 1e-2, 1e-3, 1e-5, 1e-7):
        fit = fit_linear(X, y, penalty, loss, tolerance, intercept=intercept)
        assert fit.gap <= tolerance
        left = (fit.objective - best.objective) / unit
        assert -1e-12 <= left <= fit.gap + 1e-13
        kept += fit.gap < 1e4 * left
    random = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1.0):  # also at arbitrary points
        start = best.weights.numpy() + scale * random.standard_normal(FEATURES), best.intercept + scale
        fit = fit_linear(X, y, penalty, loss, 1e-30, start, intercept, iterations=0)
        here = objective(X, y, start[0], start[1] if intercept else 0.0, penalty, loss)
        assert fit.objective == pytest.approx(here, rel=1e-12)
        assert (here - best.objective) / unit <= fit.gap
    assert kept > 0


def null_objective(y, loss, intercept):
    if loss == "squared":
        return ((y - intercept * y.mean()) ** 2).mean() / 2
    share = (y > 0).mean()
    return -share * math.log(share) - (1 - share) * math.log(1 - share) if intercept else math.log(2)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [True, False])
def test_the_gap_at_the_start_is_the_dual_by_hand(loss, intercept):
    """At zero weights the slopes of the loss sum to zero, and scaled by the dual norm they are feasible."""
    X, y = draw(4, loss)
    penalty = at_share(GroupLasso(blocks(), 1.0), 0.3, X, y, loss, intercept)
    unit = null_objective(y, loss, intercept)
    constant = (math.log((y > 0).mean() / (y < 0).mean()) if loss == "logistic" else y.mean()) if intercept else 0.0
    slope = -y / (1 + np.exp(y * constant)) if loss == "logistic" else constant - y
    slope = slope * min(1, 0.3)
    miss = -y * slope
    conjugate = miss * np.log(miss) + (1 - miss) * np.log(1 - miss) if loss == "logistic" else slope**2 / 2 + slope * y
    fit = fit_linear(X, y, penalty, loss, 1e-6, intercept=intercept)
    assert fit.history[0] == pytest.approx((unit + conjugate.mean()) / unit, rel=1e-9)
    assert fit.history[-1] == fit.gap
    assert len(fit.history) == fit.iterations + 1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [True, False])
def test_all_weights_are_zero_at_the_critical_strength_and_some_live_below_it(penalty, loss, intercept):
    X, y = draw(5, loss)
    critical = critical_strength(X, y, penalty, loss, intercept)
    if critical is None:
        assert isinstance(penalty, SquaredL2)
        return
    penalised = torch.ones(FEATURES, dtype=torch.bool) if penalty.groups is None else penalty.groups.ids.view(-1) >= 0
    for share, lives in ((1.0, False), (1 + 1e-9, False), (2.0, False), (0.99, True)):
        penalty.strength = share * critical
        fit = fit_linear(X, y, penalty, loss, 1e-10, intercept=intercept)
        assert fit.converged
        assert bool((fit.weights[penalised] != 0).any()) == lives
        assert bool(len(fit.groups)) == lives
    penalty.strength = 2 * critical
    truth = by_cvxpy(X, y, penalty, loss, intercept)
    fit = fit_linear(X, y, penalty, loss, 1e-10, intercept=intercept)
    np.testing.assert_allclose(fit.weights.numpy(), truth.weights, atol=1e-4)


def test_living_groups_are_reported_and_zeros_are_exact(penalty):
    X, y = draw(6)
    at_share(penalty, 0.4, X, y, "logistic")
    fit = fit_linear(X, y, penalty)
    weights = fit.weights
    assert not torch.signbit(weights[weights == 0]).any()
    assert weights[1] == 0  # its column is zero
    if penalty.groups is None:
        assert torch.equal(fit.groups, weights.nonzero()[:, 0])
        return
    ids = penalty.groups.ids.view(-1)
    living = set(ids[(weights != 0) & (ids >= 0)].tolist())
    assert 0 < len(living) < len(penalty.groups)
    assert set(fit.groups.tolist()) == living


def test_another_start_gives_the_same_minimum(penalty):
    X, y = draw(7)
    at_share(penalty, 0.2, X, y, "logistic")
    quadratic = np.full(FEATURES, 1e-3)  # a unique minimum
    cold = fit_linear(X, y, penalty, tolerance=1e-12, quadratic=quadratic)
    penalty.strength = float(penalty.strength) * 1.1
    near = fit_linear(X, y, penalty, tolerance=1e-12, quadratic=quadratic)
    penalty.strength = float(penalty.strength) / 1.1
    far = torch.from_numpy(np.random.default_rng(0).standard_normal(FEATURES)), 3.0
    for start in (near, far, cold, (np.zeros(FEATURES), 0)):
        warm = fit_linear(X, y, penalty, tolerance=1e-12, quadratic=quadratic, start=start)
        assert warm.objective == pytest.approx(cold.objective, rel=1e-11)
        torch.testing.assert_close(warm.weights, cold.weights, rtol=0, atol=1e-5)
    assert fit_linear(X, y, penalty, tolerance=1e-11, quadratic=quadratic, start=cold).iterations == 0


def test_dense_and_sparse_inputs_of_all_types_give_the_same_fit(penalty):
    X, y = draw(8)
    at_share(penalty, 0.2, X, y, "logistic")
    truth = fit_linear(X, y, penalty)
    doubled = scipy.sparse.coo_array(
        (np.tile(X.tocoo().data / 2, 2), tuple(np.tile(place, 2) for place in X.tocoo().coords)), shape=X.shape
    )
    halves = scipy.sparse.csc_array((np.repeat(X.data, 2) / 2, np.repeat(X.indices, 2), X.indptr * 2), shape=X.shape)
    before = halves.data.copy()
    for other in (X.toarray(), torch.from_numpy(X.toarray()), X.tocsr(), scipy.sparse.csc_matrix(X), doubled, halves):
        fit = fit_linear(other, torch.from_numpy(y), penalty)
        torch.testing.assert_close(fit.weights, truth.weights, rtol=1e-9, atol=1e-12)
    assert np.array_equal(halves.data, before)  # inputs are not changed
    rounded = fit_linear(X.astype(np.float32), y.astype(int), penalty)
    torch.testing.assert_close(rounded.weights, truth.weights, rtol=1e-3, atol=1e-3)


def test_working_sets_and_screening_lose_nothing():
    """More features than the first working set holds, and so many groups that most are never visited."""
    X, y = draw(9, items=80, features=1500)
    groups = Partition(
        torch.randint(-1, 400, (1500,), generator=torch.Generator().manual_seed(0)).clamp(min=0),
        [f"g{i}" for i in range(400)],
        (1500,),
    )
    for penalty in (L1(1.0), GroupLasso(groups, 1.0), SparseGroupLasso(groups, 1.0, 0.3)):
        for share, loss in itertools.product((0.5, 0.05), LOSSES):
            at_share(penalty, share, X, y, loss)
            fit = fit_linear(X, y, penalty, loss, 1e-9)
            assert fit.converged
            grad = gradient(X, y, fit, loss)
            assert float(penalty.gap(fit.weights, grad).max()) < 1e-4 * float(penalty.strength)
            assert float(penalty.critical(grad)) <= float(penalty.strength) * (1 + 1e-4)


def gradient(X, y, fit, loss):
    scores = X @ fit.weights.numpy() + fit.intercept
    slope = -y / (1 + np.exp(y * scores)) if loss == "logistic" else scores - y
    return torch.from_numpy(X.T @ slope / len(y))


def test_only_the_intercept_is_fitted_without_features():
    y = np.array([1.0, 1, 1, -1])
    for X in (np.zeros((4, 0)), np.zeros((4, 3))):
        fit = fit_linear(X, y, L1(0.1), tolerance=1e-12)
        assert fit.converged
        assert fit.intercept == pytest.approx(math.log(3))
        assert fit.weights.tolist() == [0.0] * X.shape[1]
        assert fit_linear(X, y, L1(0.1), intercept=False).objective == pytest.approx(math.log(2))


def test_a_separable_problem_of_one_word_and_rows_of_zeros():
    X = scipy.sparse.csc_array(np.array([[1.0, 0], [0, 0], [0, 0], [1, 0]]))
    y = np.array([1.0, -1, -1, 1])
    fit = fit_linear(X, y, L1(1e-6), tolerance=1e-9)
    assert fit.converged
    assert fit.weights[0] > 10
    same = fit_linear(X, np.ones(4), L1(0.1), "squared")
    assert (same.weights == 0).all()
    assert same.intercept == pytest.approx(1)
    assert same.gap == 0


# --- the kernels


def drawn_problem(penalty, loss="logistic", ridge=None):
    X, y = draw(10, loss)
    penalty.strength = 0.3
    return make_problem(X, y, make_blocks(penalty, FEATURES), loss, False, ridge)


def test_the_gauge_is_our_dual_norm(penalty):
    """The gauge is the critical strength over the strength."""
    if isinstance(penalty, SquaredL2):
        return
    problem, random = drawn_problem(penalty, ridge=np.ones(FEATURES)), np.random.default_rng(0)
    every = np.arange(len(problem.cut))
    for _ in range(50):
        grad = random.standard_normal(FEATURES)
        found = linear.gauge(problem, grad, np.zeros(FEATURES), every)
        shaped = torch.from_numpy(grad)
        critical = penalty.critical(shaped if penalty.groups is None else shaped.view(penalty.groups.shape))
        if isinstance(penalty, ElasticNet):
            assert found == pytest.approx(float(critical) / float(penalty.strength), rel=1e-12)
        else:
            assert found == pytest.approx(float(critical) / float(penalty.strength), rel=1e-9)


def test_the_conjugate_of_the_loss_is_a_supremum():
    """sup_f  dual * f - loss(f), by a grid; outside its domain the conjugate is infinite."""
    y, f, none = np.array([1.0, -1.0]), np.linspace(-40, 40, 400_001), np.zeros(0)
    for logistic in (True, False):
        problem = linear.LinearProblem(*[none] * 8, y, logistic)
        for dual in (np.array([-0.3, 0.8]), np.array([-1.0, 0.0])):
            losses = [np.logaddexp(0, -t * f) if logistic else (f - t) ** 2 / 2 for t in y]
            grid = np.mean([(2 * d * f - loss).max() for d, loss in zip(dual / 2, losses, strict=True)])
            assert linear.loss_conjugate(problem, dual * 4, 0.25) == pytest.approx(grid, abs=1e-6)
    for dual in ([0.1, 0.5], [-1.1, 0.5], [-0.5, -0.1], [-0.5, 1.1]):
        assert linear.loss_conjugate(linear.LinearProblem(*[none] * 8, y, True), np.array(dual), 1.0) == math.inf


def test_curvatures_bound_the_second_derivatives(penalty):
    problem, random = drawn_problem(penalty, ridge=np.random.default_rng(1).random(FEATURES)), np.random.default_rng(2)
    X, every = draw(10)[0].toarray(), np.arange(len(problem.cut))
    curvature, bound = random.random(ITEMS), np.empty(FEATURES)
    descent.curvatures(problem, curvature, every, bound)
    second = X.T @ (curvature[:, None] * X) / ITEMS + np.diag(problem.ridge)
    features = linear.features_of(problem, every)
    found = descent.second_derivatives(problem, features, curvature)
    np.testing.assert_allclose(found, second[features][:, features], rtol=1e-12, atol=1e-14)
    for g in every:
        members = problem.members[problem.bounds[g] : problem.bounds[g + 1]]
        room = np.diag(bound[members]) - second[members][:, members]
        assert np.linalg.eigvalsh(room).min() > -1e-12
        assert len(members) > 1 or room[0, 0] < 1e-12 + 1e-9 * bound[members[0]]


def test_the_norm_ratio_makes_a_block_stationary():
    random = np.random.default_rng(3)
    for _ in range(200):
        size = random.integers(1, 6)
        aims, bound, reach = random.standard_normal(size), np.exp(3 * random.standard_normal(size)), random.random() * 2
        ratio = descent.norm_ratio(aims, bound, np.arange(size), reach)
        if np.linalg.norm(aims) <= reach:
            assert ratio == math.inf
        else:
            v = aims / (bound + ratio)
            np.testing.assert_allclose(bound * v + reach * v / np.linalg.norm(v), aims, rtol=1e-9)


def test_dense_and_sparse_passes_reach_the_same_minimum(penalty):
    """Each kind of descent alone."""
    problem = drawn_problem(penalty, "squared", ridge=np.full(FEATURES, 1e-3))
    every, found = np.arange(len(problem.cut)), []
    slope, curvature = np.empty(ITEMS), np.empty(ITEMS)
    linear.total_loss(problem, np.zeros(ITEMS), slope, curvature)
    bound, grad, buffer = np.empty(FEATURES), np.empty(FEATURES), np.empty(FEATURES)
    descent.curvatures(problem, curvature, every, bound)
    linear.gradient(problem, slope, every, grad)
    for route in ("dense", "sparse"):
        w, pull = np.zeros(FEATURES), slope.copy()
        for _ in range(60):
            if route == "dense":
                at = w.copy()
                descent._descend_dense(problem, every, w, pull, curvature, bound, buffer)
                linear.add_columns(problem, w - at, every, pull)
            else:
                descent._descend_sparse(
                    problem, every, w, pull, np.zeros(FEATURES), grad, slope, curvature, bound, buffer
                )
        found.append(w)
    np.testing.assert_allclose(found[0], found[1], atol=1e-7)
    assert (found[0] != 0).any()


# --- weak penalties


def rare_words(items=400, features=900):
    """Documents that a few words of their own separate almost: at weak penalties most curvatures nearly vanish."""
    random = np.random.default_rng(5)
    chance = 1 / np.arange(1, features + 1)
    X = np.zeros((items, features))
    for row in X:
        row[random.choice(features, 12, replace=False, p=chance / chance.sum())] = random.random(12) + 0.2
    return scipy.sparse.csc_array(X), np.where(X @ random.standard_normal(features) > 0, 1.0, -1.0)


@pytest.mark.parametrize("make", [L1, SquaredL2, lambda strength: ElasticNet(strength, mix=0.5)])
@pytest.mark.parametrize("intercept", [True, False])
def test_weak_penalties_reach_the_tolerance(make, intercept):
    X, y = rare_words()
    critical = critical_strength(X, y, L1(1.0), intercept=intercept)
    for share in (1e-2, 1e-3, 1e-4):
        fit = fit_linear(X, y, make(share * critical), tolerance=1e-8, intercept=intercept)
        assert fit.converged, (share, fit.history)
        assert fit.objective == pytest.approx(
            objective(X, y, fit.weights.numpy(), fit.intercept, make(share * critical), "logistic"), rel=1e-10
        )


def test_far_starts_leave_the_scores_exact():
    """From weights that misclassify items with scores of 30, where the loss is almost linear."""
    X, y = rare_words()
    strength = 0.01 * critical_strength(X, y, L1(1.0))
    start = -30 * np.sign(X.T @ y), 5.0
    for penalty in (L1(strength), SquaredL2(strength)):
        far, near = fit_linear(X, y, penalty, tolerance=1e-8, start=start), fit_linear(X, y, penalty, tolerance=1e-8)
        assert far.converged
        assert far.objective == pytest.approx(near.objective, rel=1e-7)


def test_the_curvature_is_raised_only_where_a_move_would_be_too_far():
    X = scipy.sparse.csc_array(np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    problem = make_problem(X, np.array([1.0, 1, -1]), make_blocks(L1(0.1), 2), "logistic", False, None)
    w, grad, bound = np.zeros(2), np.array([-0.6, 0.1]), np.array([1e-9, 1e-9])
    descent.restrain(problem, grad, w, np.arange(2), bound)
    assert (0.6 - 0.1) / bound[0] * 2 == pytest.approx(descent.REACH)  # the change of the score of the first item
    assert bound[1] == 1e-9


@pytest.mark.parametrize("loss", LOSSES)
def test_newton_steps_of_ridge_are_those_of_the_hessian(loss):
    """Conjugate gradients to the end against a dense solve."""
    X, y = draw(6, loss)
    problem = make_problem(X, y, make_blocks(SquaredL2(0.05), FEATURES), loss, True, None)
    rows = linear_ridge.rows_of(problem)
    scores, slope, curvature = np.linspace(-1, 1, ITEMS), np.empty(ITEMS), np.empty(ITEMS)
    linear.total_loss(problem, scores, slope, curvature)
    full = np.column_stack([X.toarray(), np.ones(ITEMS)])
    grad, diagonal = np.empty(FEATURES + 1), np.empty(FEATURES + 1)
    linear_ridge._derivatives(problem, rows, slope, curvature, grad, diagonal)
    hessian = full.T @ (curvature[:, None] * full) / ITEMS + np.diag(problem.ridge)
    np.testing.assert_allclose(grad, full.T @ slope / ITEMS, atol=1e-14)
    np.testing.assert_allclose(diagonal, np.diag(hessian), atol=1e-14)
    move, _ = linear_ridge._newton_step(problem, rows, grad, curvature, diagonal, 1e-12)
    np.testing.assert_allclose(move, np.linalg.solve(hessian, -grad), atol=1e-9)


def test_violations_are_the_blocks_that_a_small_step_wakes(penalty):
    problem, random = drawn_problem(penalty), np.random.default_rng(7)
    every, grad = np.arange(len(problem.cut)), 0.5 * random.standard_normal(FEATURES)
    tiny = 1e-6
    expected = 0
    for g in every:
        members = problem.members[problem.bounds[g] : problem.bounds[g + 1]]
        step = -tiny * grad[members]
        step = np.sign(step) * np.maximum(np.abs(step) - tiny * problem.cut[g], 0)
        expected += np.linalg.norm(step) > tiny * problem.reach[g]
    assert linear.violations(problem, grad, np.zeros(FEATURES), every) == expected
    assert linear.violations(problem, grad, np.ones(FEATURES), every) == 0


# --- wrong inputs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones(3)}, r"X is ndarray \(3,\), expected a matrix"),
        ({"X": [[1.0]]}, r"X is list \(\), expected a matrix"),
        (
            {"X": np.ones((0, 3))},
            r"X is ndarray \(0, 3\), expected a matrix \[items, features\] with at least one item",
        ),
        ({"X": np.ones((3, 3)) * 1j}, r"X holds complex128, expected real numbers"),
        ({"X": np.array([[1.0, 0], [0, np.nan], [0, 0]])}, "X is nan at item 1, feature 1; expected a number"),
        ({"y": np.ones(4)}, r"y has shape \(4,\), expected \(3,\): one for each item"),
        ({"y": np.array([1, 0, 1])}, "y is 0 at item 1, expected -1 or 1 for the logistic loss"),
        ({"y": np.array([1, np.inf, 1]), "loss": "squared"}, "y is inf at 1, expected finite numbers"),
        ({"loss": "hinge"}, "unknown loss 'hinge', expected logistic or squared"),
        ({"tolerance": 0}, "the tolerance of fit_linear is 0, expected a finite number above 0"),
        ({"tolerance": "small"}, "the tolerance of fit_linear is 'small'"),
        ({"penalty": "l1"}, "fit_linear does not support str, expected one of L1, ElasticNet"),
        ({"penalty": GroupLasso(by_row_blocks((5, 1), ["a"], [0, 5]), 1.0)}, r"the groups are of .* \(5, 1\), X has 2"),
        ({"quadratic": np.ones(3)}, r"quadratic has shape \(3,\), expected \(2,\): one for each feature"),
        ({"quadratic": np.array([1, -0.5])}, "quadratic is -0.5 at feature 1, expected at least 0"),
        ({"start": 3}, r"start is int, expected a LinearFit or \(weights, intercept\)"),
        ({"start": (np.ones(3), 0.0)}, r"the weights of start has shape \(3,\), expected \(2,\)"),
        ({"start": (np.ones(2), np.nan)}, "the intercept of start is nan"),
    ],
)
def test_wrong_inputs_are_refused(change, message):
    inputs = {"X": np.array([[1.0, 0], [0, 1], [1, 1]]), "y": np.array([1.0, -1, 1]), "penalty": L1(0.1)}
    assert fit_linear(**inputs).converged
    with pytest.raises(UserError, match=message):
        fit_linear(**{**inputs, **change})


def test_too_many_features_without_any_penalty_are_refused():
    X = scipy.sparse.eye_array(1200, format="csc")
    y = np.ones(1200)
    with pytest.raises(UserError, match="1201 features have neither penalty nor quadratic weight, expected at most"):
        fit_linear(X, y, NoPenalty())
    fit = fit_linear(X, y, NoPenalty(), quadratic=np.full(1200, 0.1), intercept=False)
    assert fit.converged


def test_weights_of_features_are_part_of_the_penalty():
    """A weighted lasso is the lasso of rescaled features."""
    draw = np.random.default_rng(0)
    X, y = draw.standard_normal((40, 8)), np.where(draw.random(40) < 0.5, 1.0, -1.0)
    weights = draw.uniform(0.5, 3.0, 8)
    own = fit_linear(X, y, L1(0.03, torch.from_numpy(weights)), tolerance=1e-10)
    scaled = fit_linear(X / weights, y, L1(0.03), tolerance=1e-10)
    assert own.objective == pytest.approx(scaled.objective, rel=1e-8)
    np.testing.assert_allclose(own.weights, scaled.weights / weights, atol=1e-5)
    assert own.converged
    with pytest.raises(UserError, match="the penalty has 7 weights, X has 8 features"):
        fit_linear(X, y, L1(0.03, torch.ones(7)))
