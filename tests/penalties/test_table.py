"""One list of properties that each penalty must have: every row of `penalty_table`."""

import copy
import itertools
import math

import cvxpy
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Partition, by_row, by_row_blocks
from structsparse.penalties import L1, Drift, ElasticNet, GroupLasso, NoPenalty, SparseGroupLasso, SquaredL2
from tests.support.penalty_table import AT_THE_THRESHOLD, ROWS, SHAPE, blocks, distances, scattered

# Drawn in each test that draws most, of two points or twice as many where not convex: over 2000 for every row in the
# slow tests, and a fifth of that in all others.
TRIALS = [100, pytest.param(500, marks=pytest.mark.slow)]
ROUTES = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}
ACCURACY = {"tol_gap_abs": 3e-10, "tol_gap_rel": 3e-10, "tol_feas": 3e-10}


@pytest.fixture(params=ROWS)
def row(request):
    return ROWS[request.param]


@pytest.fixture
def penalty(row):
    return row.make()


@pytest.fixture
def convex(row):
    if not row.convex:
        pytest.skip("not convex")


def draws(row, trials, dtype=torch.float64):
    """Weights, of which some are small, and steps: every second time a number, else one per entry if it may be."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for trial in range(trials):
        W = normal(*SHAPE) * 10 ** (0.7 * normal(SHAPE[0], 1))
        if trial % 2 and row.steps is not None:
            yield W.to(dtype), row.steps(generator).to(dtype)
        else:
            yield W.to(dtype), math.exp(float(normal(1)))


def pairs(row, trials):
    """Weights with steps, and other weights."""
    for (W, steps), (Z, _) in itertools.pairwise(draws(row, trials + 1)):
        yield W, steps, Z.clamp(min=row.lower)


def moved(penalty, W, steps):
    return penalty.prox_(W.clone(), steps)


def objective(penalty, V, W, steps):
    return float(penalty.value(V) + ((V - W).square() / steps).sum() / 2)


def formula(row, strength, V):
    """The row's own expression, in float64."""
    V = V.detach().double()
    found = row.omega(V.numpy())
    return strength * float(getattr(found, "value", found)) + row.ridge / 2 * float(V.square().sum())


def feasible(row, V):
    return V.clamp(min=row.lower)


def under_force(penalty):
    """Weights, and what a very large strength makes of them: zeros, but for free entries."""
    strong = copy.deepcopy(penalty)
    strong.strength = 1e9 if type(penalty) is not NoPenalty else 0.0
    W = torch.linspace(0.5, 1.5, 24, dtype=torch.float64).view(SHAPE)
    return W, moved(strong, W, 1.0)


def penalised(penalty):
    return under_force(penalty)[1] == 0


def test_value_is_the_formula(row, penalty):
    for W, _ in draws(row, 20):
        V = feasible(row, W)
        expected = formula(row, float(penalty.strength), V)
        assert float(penalty.value(V)) == pytest.approx(expected, rel=1e-12, abs=1e-300)
        assert float(penalty.value(V.requires_grad_()).detach()) == pytest.approx(expected, rel=1e-12, abs=1e-300)
        assert penalty.value(V.float()).dtype == torch.float64


@pytest.mark.parametrize("trials", TRIALS)
def test_three_points(row, penalty, trials):
    """f(Z) >= f(V) + |Z - V|^2 / 2, for f with its minimum at V and, if convex, as convex as the metric."""
    for W, steps, Z in pairs(row, trials if row.convex else 2 * trials):
        V = moved(penalty, W, steps)
        best = objective(penalty, V, W, steps)
        for other in (Z, feasible(row, W), feasible(row, V + 1e-3 * Z), torch.zeros_like(W)):
            room = float(((other - V).square() / steps).sum()) / 2 if row.convex else 0.0
            assert objective(penalty, other, W, steps) >= best + room - 1e-11 * (1 + abs(best) + room)


def test_no_perturbation_beats_the_prox(row, penalty):
    generator = torch.Generator().manual_seed(1)
    for W, steps in draws(row, 60):
        V = moved(penalty, W, steps)
        best = objective(penalty, V, W, steps)
        for scale in (1e-1, 1e-3, 1e-5):
            nudge = scale * torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            for tried in (V + nudge, V + nudge * (V != 0), V * (1 + nudge)):
                assert objective(penalty, feasible(row, tried), W, steps) >= best - 1e-12 * (1 + best)


def test_no_entry_row_or_column_is_better_kept_or_dropped(row, penalty):
    """Far from the prox as well, which matters where the penalty is not convex."""
    generator = torch.Generator().manual_seed(2)
    for W, steps in draws(row, 100):
        V = moved(penalty, W, steps)
        best = objective(penalty, V, W, steps)
        for shape in (SHAPE, (SHAPE[0], 1), (1, SHAPE[1])):
            mask = torch.rand(shape, generator=generator) < 0.3
            share = torch.rand((), generator=generator, dtype=torch.float64)
            for other in (0.0, W, share * W):
                tried = feasible(row, torch.where(mask, other, V))
                assert objective(penalty, tried, W, steps) >= best - 1e-12 * (1 + best)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.usefixtures("convex")
def test_firm_non_expansiveness_in_the_metric(row, penalty, trials):
    for W, steps, Z in pairs(row, trials):
        apart = moved(penalty, W, steps) - moved(penalty, Z, steps)
        norm = float((apart.square() / steps).sum())
        assert norm <= float((apart * (W - Z) / steps).sum()) + 1e-11 * (1 + norm)


@pytest.mark.parametrize("trials", TRIALS)
def test_value_and_prox_are_of_one_function(row, penalty, trials):
    """The gap is zero; where a gradient is the whole subdifferential, it is what the prox was pulled by."""
    pulled = 0
    for W, steps in draws(row, trials if row.convex else 2 * trials):
        V = moved(penalty, W, steps)
        pull = (V - W) / steps
        assert float(penalty.gap(V, pull).max()) < 1e-9 * (1 + float(pull.abs().max()))
        leaf = V.clone().requires_grad_()
        penalty.value(leaf).backward()
        assert leaf.grad.isfinite().all()
        living = V != 0
        pulled += int(living.sum())
        if row.gap is distances:
            torch.testing.assert_close(leaf.grad[living], -pull[living], rtol=1e-8, atol=1e-8)
    assert pulled > trials


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.usefixtures("convex")
def test_a_convex_solver_finds_the_same_minimum(row, penalty):
    for W, steps in draws(row, 4):
        W[3:5] *= 0.05
        scale = torch.as_tensor(steps, dtype=torch.float64).expand(SHAPE).sqrt().reciprocal().numpy()
        V = cvxpy.Variable(SHAPE)
        far = cvxpy.sum_squares(cvxpy.multiply(scale, V - W.numpy())) / 2
        problem = cvxpy.Problem(
            cvxpy.Minimize(far + float(penalty.strength) * row.omega(V) + row.ridge / 2 * cvxpy.sum_squares(V)),
            [row.lower <= V] if row.lower > -math.inf else [],
        )
        least = problem.solve(solver="CLARABEL", **ACCURACY)
        found = moved(penalty, W, steps)
        theirs = torch.from_numpy(V.value)
        assert objective(penalty, found, W, steps) == pytest.approx(least, rel=1e-7, abs=1e-7)
        # as strongly convex as 1 / steps, so a point is known to the square root of what its value is known to
        torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-4)


def test_gap_is_what_it_says(row, penalty):
    """Where nothing is zero, and at zero."""
    if row.gap is None:
        pytest.skip("its gap is known where it is zero only")
    for W, _, grad in pairs(row, 20):
        V = W.abs() if row.lower == 0 else W
        torch.testing.assert_close(penalty.gap(V, grad), row.gap(penalty, V, grad), rtol=1e-9, atol=1e-12)
        if type(penalty) in (Drift, ElasticNet, SquaredL2) or row.ridge or getattr(penalty, "squares", 0):
            continue  # the square has neither value nor slope at zero, and shortens what the prox leaves
        zero = torch.zeros_like(grad)
        at_zero = row.gap(penalty, zero, grad)
        if row.convex:
            torch.testing.assert_close(penalty.gap(zero, grad), at_zero, rtol=1e-9, atol=1e-12)


def test_gap_is_not_zero_elsewhere(row, penalty):
    W, left = under_force(penalty)
    free = torch.isclose(W / (1 + row.ridge), left) if type(penalty) is not NoPenalty else torch.tensor(False)
    for W, steps in draws(row, 50):
        V = moved(penalty, W, steps)
        pull = (V - W) / steps
        away = torch.where((V != 0) & ~free, 0.01 * (1 + V.abs()), 0.0)
        if away.any():
            assert float(penalty.gap(V, pull + away).max()) > 1e-4


def test_zero_stays_zero_and_zero_strength_changes_nothing(row, penalty):
    for W, steps in draws(row, 20):
        zero = torch.zeros_like(W)
        assert (moved(penalty, zero, steps) == 0).all()
        assert float(penalty.value(zero)) == 0
    penalty.strength = 0
    for W, steps in draws(row, 20):
        expected = feasible(row, W) / (1 + row.ridge * steps)
        torch.testing.assert_close(moved(penalty, W, steps), expected, rtol=1e-15 if row.ridge else 0, atol=0)
        assert float(penalty.value(feasible(row, W))) == pytest.approx(formula(row, 0.0, feasible(row, W)), rel=1e-13)


@pytest.mark.parametrize("route", ROUTES)
def test_no_zero_is_negative(row, penalty, route):
    strong = copy.deepcopy(penalty)
    for W, steps in draws(row, 20):
        for strength in (float(penalty.strength), 50.0 if float(penalty.strength) else 0.0):
            strong.strength = strength
            V = strong.prox_(ROUTES[route](W), steps)
            assert not V[V == 0].signbit().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("per_entry", [False, True])
@pytest.mark.parametrize("name", AT_THE_THRESHOLD)
def test_exactly_at_the_threshold_is_exactly_zero(name, dtype, route, per_entry):
    """Powers of two and Pythagorean triples: nothing is rounded."""
    make, W = AT_THE_THRESHOLD[name]
    penalty, W = make(), torch.tensor(W, dtype=dtype)
    steps = torch.full_like(W, 0.5) if per_entry else 0.5
    try:
        assert (penalty.prox_(ROUTES[route](W), steps) == 0).all()
    except UserError:
        assert per_entry  # which some refuse
        return
    penalty.strength = 0.999 * float(penalty.strength)
    assert penalty.prox_(ROUTES[route](W), steps).any()


SMALL = 2.0**-10  # a step so short that what is not convex is dominated by the metric


def test_critical_is_where_the_prox_at_zero_dies(row, penalty):
    """By bisection on the prox itself, which knows nothing of critical strengths."""
    checked = penalised(penalty)
    for grad, _ in draws(row, 10 if row.border < 1e-9 else 3):
        critical = penalty.critical(grad)
        if critical is None:
            penalty.strength = 1.0 if type(penalty) is not NoPenalty else 0.0
            assert moved(penalty, -1e3 * grad, 1.0).any()
            continue

        def dies(strength, grad=grad):
            penalty.strength = strength
            return bool((moved(penalty, -SMALL * grad, SMALL)[checked] == 0).all())

        low, high = 0.99 * float(critical), 1.01 * float(critical)
        assert all(dies(strength) for strength in (high, 2 * high, 1e6))
        assert not any(dies(strength) for strength in (low, low / 2, 0.0))
        while high - low > row.border / 4 * high and low < (low + high) / 2 < high:
            middle = (low + high) / 2
            low, high = (low, middle) if dies(middle) else (middle, high)
        assert float(critical) == pytest.approx(high, rel=row.border)
        assert dies(float(critical) * (1 + max(1e-9, 10 * row.border)))
        assert not dies(float(critical) * (1 - max(1e-9, 10 * row.border)))


def test_above_the_critical_strength_all_die_below_it_some_live_in_float32(row, penalty):
    checked = penalised(penalty)
    for grad, _ in draws(row, 20, torch.float32):
        critical = penalty.critical(grad)
        if critical is not None:
            for share, living in ((1 + 1e-5, False), (1 - 1e-5, True)):
                penalty.strength = share * float(critical)
                found = moved(penalty, -0.37 * SMALL * grad, 0.37 * SMALL)
                assert bool((found != 0)[checked].any()) == living


def test_float32_is_float64_rounded(row, penalty):
    for W, steps in draws(row, 60):
        single = steps.float() if isinstance(steps, torch.Tensor) else steps
        found = moved(penalty, W.float(), single)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), moved(penalty, W, steps), rtol=1e-5, atol=1e-5)


def test_both_routes_agree(row, penalty):
    for dtype in (torch.float32, torch.float64):
        for W, steps in draws(row, 30, dtype):
            found = penalty.prox_(ROUTES["torch"](W), steps)
            accuracy = 1e-5 if dtype == torch.float32 else 1e-11
            torch.testing.assert_close(found, moved(penalty, W, steps), rtol=accuracy, atol=accuracy)


def test_names_do_not_matter(row, penalty):
    """Rows in another order, with their groups: the same outcome in that order."""
    if row.symmetry is None:
        pytest.skip("it has no symmetry")
    other, permuted = row.symmetry(penalty)
    for W, steps in draws(row, 40):
        theirs = permuted(steps) if isinstance(steps, torch.Tensor) else steps
        found = moved(other, permuted(W), theirs)
        torch.testing.assert_close(found, permuted(moved(penalty, W, steps)), rtol=1e-11, atol=1e-11)
        V = feasible(row, W)
        assert float(other.value(permuted(V))) == pytest.approx(float(penalty.value(V)), rel=1e-12)


def test_it_works_in_place_and_leaves_no_graph(row, penalty):
    for W, steps in draws(row, 4):
        leaf = W.clone().requires_grad_()
        where = leaf.data_ptr()
        back = penalty.prox_(leaf, steps)
        assert back is leaf
        assert (leaf.data_ptr(), leaf.is_leaf, leaf.grad_fn, leaf.grad) == (where, True, None, None)
        assert torch.equal(leaf.detach(), moved(penalty, W, steps))


def test_one_step_for_all_is_that_step_for_each(row, penalty):
    for W, _ in draws(row, 60):
        for step in (0.01, 0.8, 30.0):
            scalar = moved(penalty, W, step)
            assert torch.equal(moved(penalty, W, torch.tensor(step, dtype=torch.float64)), scalar)
            if row.steps is not None:
                torch.testing.assert_close(moved(penalty, W, torch.full(SHAPE, step, dtype=W.dtype)), scalar)
                single = moved(penalty, W, torch.full((SHAPE[0], 1), step))
                torch.testing.assert_close(single, scalar, rtol=1e-6, atol=1e-6)


def test_steps_per_entry_are_refused_where_nothing_is_known(row, penalty):
    W, steps = torch.randn(SHAPE), torch.rand(SHAPE) + 0.5
    if row.steps is not None:
        assert moved(penalty, W, row.steps(torch.Generator()).float()).isfinite().all()
        return
    before = feasible(row, W)
    with pytest.raises(UserError, match="step"):
        penalty.prox_(W, steps)
    assert torch.equal(feasible(row, W), before)


def test_survivors_hold_all_that_is_not_zero(row, penalty):
    for W, steps in draws(row, 20):
        V = moved(penalty, W, steps)
        mask = penalty.survivors(V)
        assert mask.dtype == torch.bool
        assert mask.shape == SHAPE
        assert mask[V != 0].all()
    zero = penalty.survivors(torch.zeros(SHAPE))
    assert not zero[penalised(penalty)].any()


def test_it_runs_on_the_meta_device(row, penalty):
    if not row.meta:
        pytest.skip("it needs to see the weights")
    penalty = penalty.to("meta")
    for steps in (0.5, torch.tensor(0.5), torch.empty(SHAPE, device="meta")):
        if row.steps is None and torch.as_tensor(steps).dim() > 0:
            continue
        W = torch.nn.Parameter(torch.empty(SHAPE, device="meta"))
        assert penalty.prox_(W, steps) is W
        assert penalty.value(W).shape == ()


def test_the_strength_is_saved_and_can_be_set(penalty):
    saved = copy.deepcopy(penalty.state_dict())
    other = copy.deepcopy(penalty)
    other.strength = 0.0
    other.load_state_dict(saved)
    assert float(other.strength) == float(penalty.strength)
    assert other.strength.dtype == torch.float64


@pytest.mark.parametrize("strength", [-0.1, math.nan, math.inf, "strong", None])
def test_a_wrong_strength_is_refused(strength, penalty):
    with pytest.raises(UserError, match=f"the strength of .* is .*{strength}.*, expected a finite number"):
        penalty.strength = strength
    for make in (L1, SquaredL2, lambda value: GroupLasso(blocks(), value)):
        with pytest.raises(UserError, match=f"the strength of .* is .*{strength}.*, expected a finite number"):
            make(strength)


@pytest.mark.parametrize("mix", [-0.1, 1.1, math.nan])
def test_a_wrong_mix_is_refused(mix):
    with pytest.raises(UserError, match=f"the mix of ElasticNet is {mix}, expected a number from 0 to 1"):
        ElasticNet(1.0, mix)
    with pytest.raises(UserError, match=f"the mix of SparseGroupLasso is {mix}"):
        SparseGroupLasso(blocks(), 1.0, mix)
    with pytest.raises(UserError, match=r"NoPenalty has strength 0\.5, expected 0"):
        NoPenalty(0.5)


# What is true of a few.


def test_groups_without_weight_have_no_say_in_the_critical_strength():
    grad = torch.tensor([[100.0, 0.0], [3.0, 4.0]])
    groups = by_row((2, 2), weights=torch.tensor([0.0, 2.0]))
    assert float(GroupLasso(groups, 1.0).critical(grad)) == pytest.approx(2.5)
    nothing = by_row_blocks((0, 2), ["none"], [0, 0])
    assert float(GroupLasso(nothing, 1.0).critical(torch.zeros(0, 2))) == 0
    assert float(L1(1.0).critical(torch.zeros(0, 2))) == 0


def test_free_entries_are_left_alone():
    free = scattered().ids < 0
    row = ROWS["group lasso, scattered"]
    for penalty in (GroupLasso(scattered(), 3.0), SparseGroupLasso(scattered(), 3.0, mix=0.5)):
        for W, steps in draws(row, 20):
            V = moved(penalty, W, steps)
            assert torch.equal(V[free], W[free])
            assert (V[~free] != W[~free]).any()
        assert penalty.survivors(torch.zeros(SHAPE))[free].all()


def test_special_cases_are_the_general_one():
    singles = Partition(torch.arange(24).view(SHAPE), [str(i) for i in range(24)], SHAPE, "one")
    for W, steps in draws(ROWS["l1"], 40):
        lasso = moved(L1(0.4), W, steps)
        for other in (GroupLasso(singles, 0.4), SparseGroupLasso(blocks(), 0.4, 1.0), ElasticNet(0.4, 1.0)):
            torch.testing.assert_close(moved(other, W, steps), lasso, rtol=1e-12, atol=1e-12)
        grouped = moved(GroupLasso(blocks(), 0.4), W, steps)
        assert torch.equal(moved(SparseGroupLasso(blocks(), 0.4, 0.0), W, steps), grouped)


def test_survivors_are_whole_groups_unless_entries_are_penalised_too():
    W = torch.zeros(SHAPE)
    W[1, 2] = W[7, 0] = 0.5
    whole = torch.zeros(SHAPE, dtype=torch.bool)
    whole[0:3] = whole[6:8] = True
    assert torch.equal(GroupLasso(blocks(), 1.0).survivors(W), whole)
    assert torch.equal(SparseGroupLasso(blocks(), 1.0, 0.5).survivors(W), W != 0)
    assert torch.equal(L1(1.0).survivors(W), W != 0)


@pytest.mark.parametrize("route", ROUTES)
def test_a_group_whose_gradient_is_infinite_would_come_to_life_at_any_strength(route):
    """Nothing must take an overflow for a dead group."""
    grad = torch.ones(6, 1, dtype=torch.float64)
    grad[0] = math.inf
    found = GroupLasso(by_row_blocks((6, 1), ["a", "b"], [0, 3, 6]), 1.0).entering(ROUTES[route](grad))
    assert found.tolist() == [math.inf, 1.0]


def test_whole_groups_survive_if_asked_for():
    groups = by_row_blocks((4, 2), "ab", [0, 2, 4])
    W = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert torch.equal(SparseGroupLasso(groups, 1.0, 0.5).survivors(W), W != 0)
    whole = SparseGroupLasso(groups, 1.0, 0.5, whole=True).survivors(W)
    assert whole[:2].all()
    assert not whole[2:].any()
