"""One table of penalties, one list of properties that each of them must have."""

import copy
import math

import pytest
import torch

from structsparse.errors import UserError
from structsparse.groups import Partition, by_column, by_row, by_row_blocks
from structsparse.penalties import L1, ElasticNet, GroupLasso, NoPenalty, SparseGroupLasso, SquaredL2

SHAPE = (8, 3)
TRIALS = 500


def blocks(weights="sqrt_size"):
    return by_row_blocks(SHAPE, ["a", "none", "row", "b", "c"], [0, 3, 3, 4, 6, 8], weights)


def scattered():
    """Entries in groups of their own making: one of size 1, one of size 0, and free ones."""
    ids = torch.tensor([0, -1, 1, 2, 2, 0] * 4).view(SHAPE)
    ids[0, 0] = 3
    return Partition(ids, ["a", "b", "c", "one", "none"], SHAPE, "log2_size")


PENALTIES = {
    "none": lambda: NoPenalty(),
    "l1": lambda: L1(0.4),
    "squared l2": lambda: SquaredL2(0.4),
    "elastic net": lambda: ElasticNet(0.5, mix=0.7),
    "group lasso, blocks": lambda: GroupLasso(blocks(), 0.3),
    "group lasso, rows": lambda: GroupLasso(by_row(SHAPE, weights="one"), 0.6),
    "group lasso, columns": lambda: GroupLasso(by_column(SHAPE, list("xyz")), 0.2),
    "group lasso, scattered": lambda: GroupLasso(scattered(), 0.4),
    "sparse group lasso, blocks": lambda: SparseGroupLasso(blocks("one"), 0.5, mix=0.4),
    "sparse group lasso, scattered": lambda: SparseGroupLasso(scattered(), 0.5, mix=0.6),
    "sparse group lasso, all entries": lambda: SparseGroupLasso(blocks(), 0.4, mix=1.0),
}


@pytest.fixture(params=PENALTIES)
def penalty(request):
    return PENALTIES[request.param]()


def draws(trials=TRIALS, dtype=torch.float64):
    """Weights, of which some are small, and steps: every second time a number, else one per entry."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for trial in range(trials):
        W = normal(*SHAPE) * 10 ** (0.7 * normal(SHAPE[0], 1))
        steps = torch.exp(normal(*SHAPE)) if trial % 2 else math.exp(float(normal(1)))
        yield W.to(dtype), steps.to(dtype) if trial % 2 else steps


def moved(penalty, W, steps):
    return penalty.prox_(W.clone(), steps)


def objective(penalty, V, W, steps):
    return float(penalty.value(V) + ((V - W).square() / steps).sum() / 2)


def formula(penalty, W):
    """The docstring of each class, by a loop over floats."""
    entries = W.flatten().tolist()
    if penalty.groups is None:
        absolute, squares = math.fsum(map(abs, entries)), math.fsum(w * w for w in entries)
        return float(penalty.strength) * (penalty.mix * absolute + (1 - penalty.mix) / 2 * squares)
    ids = penalty.groups.ids.expand(SHAPE).flatten().tolist()
    total = penalty.mix * math.fsum(abs(w) for w, g in zip(entries, ids, strict=True) if g >= 0)
    for group, weight in enumerate(penalty.groups.weight.tolist()):
        norm = math.hypot(*(w for w, g in zip(entries, ids, strict=True) if g == group))
        total += (1 - penalty.mix) * weight * norm
    return float(penalty.strength) * total


def test_value_is_the_formula(penalty):
    for W, _ in draws(20):
        assert float(penalty.value(W)) == pytest.approx(formula(penalty, W), rel=1e-13)
        assert float(penalty.value(W.requires_grad_()).detach()) == pytest.approx(formula(penalty, W), rel=1e-13)


def test_three_points(penalty):
    """f(Z) >= f(V) + |Z - V|^2 / 2, for f with its minimum at V and as convex as the metric."""
    others = [W for W, _ in draws(TRIALS + 1)][1:]
    for (W, steps), Z in zip(draws(), others, strict=True):
        V = moved(penalty, W, steps)
        best = objective(penalty, V, W, steps)
        for other in (Z, W, V + 1e-3 * Z, torch.zeros_like(W)):
            room = float(((other - V).square() / steps).sum()) / 2
            assert objective(penalty, other, W, steps) >= best + room - 1e-11 * (1 + abs(best) + room)


def test_no_perturbation_beats_the_prox(penalty):
    generator = torch.Generator().manual_seed(1)
    for W, steps in draws(60):
        V = moved(penalty, W, steps)
        best = objective(penalty, V, W, steps)
        for scale in (1e-1, 1e-3, 1e-5):
            nudge = scale * torch.randn(SHAPE, generator=generator, dtype=torch.float64)
            for tried in (V + nudge, V + nudge * (V != 0), V * (1 + nudge)):
                assert objective(penalty, tried, W, steps) >= best - 1e-12 * (1 + best)


def test_firm_non_expansiveness_in_the_metric(penalty):
    others = [W for W, _ in draws(TRIALS + 1)][1:]
    for (W, steps), Z in zip(draws(), others, strict=True):
        apart = moved(penalty, W, steps) - moved(penalty, Z, steps)
        norm = float((apart.square() / steps).sum())
        assert norm <= float((apart * (W - Z) / steps).sum()) + 1e-11 * (1 + norm)


def test_value_and_prox_are_of_one_function(penalty):
    """Where the prox is not zero, the derivative of the value is what it was pulled by; everywhere the gap is zero."""
    pulled = 0
    for W, steps in draws():
        V = moved(penalty, W, steps)
        pull = (V - W) / steps
        assert float(penalty.gap(V, pull).max()) < 1e-9 * (1 + float(pull.abs().max()))
        leaf = V.clone().requires_grad_()
        penalty.value(leaf).backward()
        assert leaf.grad.isfinite().all()
        living = V != 0
        pulled += int(living.sum())
        torch.testing.assert_close(leaf.grad[living], -pull[living], rtol=1e-8, atol=1e-8)
    assert pulled > TRIALS


def test_gap_is_the_distance_where_nothing_is_zero(penalty):
    """There the subdifferential is the gradient alone, and autograd knows it."""
    others = [W for W, _ in draws(21)][1:]
    for (W, _), grad in zip(draws(20), others, strict=True):
        leaf = W.clone().requires_grad_()
        penalty.value(leaf).backward()
        assert_distances(penalty, penalty.gap(W, grad), grad + leaf.grad)


def test_gap_is_the_distance_at_zero(penalty):
    """There the prox leaves exactly what the subdifferential cannot hold (Moreau), for what grows linearly."""
    if float(penalty.strength) > 0 and penalty.groups is None and penalty.mix < 1:
        penalty = L1(float(penalty.strength * penalty.mix))  # the square has neither value nor slope at zero
    for grad, _ in draws(20):
        assert_distances(penalty, penalty.gap(torch.zeros_like(grad), grad), moved(penalty, -grad, 1.0))


def assert_distances(penalty, gap, rest):
    expected = rest.norm(dim=1) if penalty.groups is None else penalty.groups.norms(rest)
    torch.testing.assert_close(gap, expected, rtol=1e-9, atol=1e-12)


def test_zero_stays_zero_and_zero_strength_changes_nothing(penalty):
    for W, steps in draws(20):
        zero = torch.zeros_like(W)
        assert (moved(penalty, zero, steps) == 0).all()
        assert float(penalty.value(zero)) == 0
    penalty.strength = 0
    for W, steps in draws(20):
        assert torch.equal(moved(penalty, W, steps), W)
        assert float(penalty.value(W)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("route", ["kernels", "torch"])
@pytest.mark.parametrize("per_entry", [False, True])
def test_exactly_at_the_threshold_is_exactly_zero(dtype, route, per_entry):
    """3, 4, 5 and powers of two: nothing is rounded."""
    W = torch.tensor([[3.0, 4.0], [-6.0, 8.0], [3.0, -4.0]], dtype=dtype)
    steps = torch.full_like(W, 0.5) if per_entry else 0.5
    layout = (lambda V: V.clone()) if route == "kernels" else (lambda V: torch.stack([V, V], -1)[..., 0])
    groups = by_row(W.shape, weights=torch.tensor([1.0, 2.0, 0.5]))
    assert (L1(16.0).prox_(layout(W), steps) == 0).all()
    assert GroupLasso(groups, 10.0).prox_(layout(W), steps)[:2].eq(0).all()
    assert groups.alive(GroupLasso(groups, 10.0).prox_(layout(W), steps)).tolist() == [False, False, True]
    sparse = SparseGroupLasso(groups, 2.0, mix=0.5)  # cuts 0.5 off each entry
    assert sparse.prox_(layout(torch.full_like(W, 0.5)), steps).eq(0).all()
    kept = moved(GroupLasso(groups, 9.999), layout(W), steps)
    assert groups.alive(kept).all()


def test_critical_is_where_the_prox_at_zero_dies(penalty):
    """By bisection on the prox itself, which knows nothing of critical strengths."""
    for grad, _ in draws(10):
        critical = penalty.critical(grad)
        if critical is None:
            penalty.strength = 1e6 if type(penalty) is not NoPenalty else 0.0
            assert (moved(penalty, -grad, 1.0) != 0).all()
            continue
        penalised = torch.ones(SHAPE, dtype=torch.bool)
        if penalty.groups is not None:
            penalised = (penalty.groups.ids >= 0).expand(SHAPE)

        def dies(strength, grad=grad, penalised=penalised):
            penalty.strength = strength
            return bool((moved(penalty, -grad, 1.0)[penalised] == 0).all())

        low, high = 0.0, 1e6
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if dies(middle) else (middle, high)
        assert float(critical) == pytest.approx(high, rel=1e-12)
        assert dies(float(critical) * (1 + 1e-9))
        assert not dies(float(critical) * (1 - 1e-9))


def test_above_the_critical_strength_all_die_below_it_some_live_in_float32(penalty):
    for grad, _ in draws(20, torch.float32):
        critical = penalty.critical(grad)
        if critical is not None:
            penalised = torch.ones(SHAPE, dtype=torch.bool) if penalty.groups is None else penalty.groups.ids >= 0
            for share, living in ((1 + 1e-5, False), (1 - 1e-5, True)):
                penalty.strength = share * float(critical)
                found = moved(penalty, -0.37 * grad, 0.37)
                assert bool((found != 0)[penalised.expand(SHAPE)].any()) == living


def test_groups_without_weight_have_no_say_in_the_critical_strength():
    grad = torch.tensor([[100.0, 0.0], [3.0, 4.0]])
    groups = by_row((2, 2), weights=torch.tensor([0.0, 2.0]))
    assert float(GroupLasso(groups, 1.0).critical(grad)) == pytest.approx(2.5)
    nothing = by_row_blocks((0, 2), ["none"], [0, 0])
    assert float(GroupLasso(nothing, 1.0).critical(torch.zeros(0, 2))) == 0
    assert float(L1(1.0).critical(torch.zeros(0, 2))) == 0


def test_float32_is_float64_rounded(penalty):
    for W, steps in draws(60):
        single = steps.float() if isinstance(steps, torch.Tensor) else steps
        found = moved(penalty, W.float(), single)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), moved(penalty, W, steps), rtol=1e-5, atol=1e-5)


def test_rows_may_be_in_any_order(penalty):
    order = torch.tensor([5, 2, 7, 0, 6, 1, 4, 3])
    other = copy.deepcopy(penalty)
    if penalty.groups is not None:
        ids = penalty.groups.ids.expand(SHAPE)[order]
        other.groups = Partition(ids, penalty.groups.names, SHAPE, penalty.groups.weight)
    for W, steps in draws(40):
        permuted = steps[order] if isinstance(steps, torch.Tensor) else steps
        found = moved(other, W[order], permuted)
        torch.testing.assert_close(found, moved(penalty, W, steps)[order], rtol=1e-12, atol=1e-12)
        assert float(other.value(W[order])) == pytest.approx(float(penalty.value(W)), rel=1e-12)


def test_it_works_in_place_and_leaves_no_graph(penalty):
    for W, steps in draws(4):
        leaf = W.clone().requires_grad_()
        where = leaf.data_ptr()
        back = penalty.prox_(leaf, steps)
        assert back is leaf
        assert (leaf.data_ptr(), leaf.is_leaf, leaf.grad_fn, leaf.grad) == (where, True, None, None)
        assert torch.equal(leaf.detach(), moved(penalty, W, steps))


def test_one_step_for_all_is_that_step_for_each(penalty):
    for W, _ in draws(60):
        for step in (0.01, 0.8, 30.0):
            scalar = moved(penalty, W, step)
            torch.testing.assert_close(moved(penalty, W, torch.full(SHAPE, step, dtype=W.dtype)), scalar)
            torch.testing.assert_close(moved(penalty, W, torch.full((SHAPE[0], 1), step)), scalar, rtol=1e-6, atol=1e-6)
            assert torch.equal(moved(penalty, W, torch.tensor(step, dtype=torch.float64)), scalar)


def test_free_entries_are_left_alone():
    free = scattered().ids < 0
    for penalty in (GroupLasso(scattered(), 3.0), SparseGroupLasso(scattered(), 3.0, mix=0.5)):
        for W, steps in draws(20):
            V = moved(penalty, W, steps)
            assert torch.equal(V[free], W[free])
            assert (V[~free] != W[~free]).any()
        assert penalty.survivors(torch.zeros(SHAPE))[free].all()


def test_special_cases_are_the_general_one():
    singles = Partition(torch.arange(24).view(SHAPE), [str(i) for i in range(24)], SHAPE, "one")
    for W, steps in draws(40):
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


def test_it_runs_on_the_meta_device(penalty):
    penalty = penalty.to("meta")
    for steps in (0.5, torch.tensor(0.5), torch.empty(SHAPE, device="meta")):
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
def test_a_wrong_strength_is_refused(strength):
    for make in (L1, SquaredL2, lambda value: GroupLasso(blocks(), value)):
        with pytest.raises(UserError, match=f"the strength of .* is .*{strength}.*, expected a finite number"):
            make(strength)
        penalty = make(1.0)
        with pytest.raises(UserError, match="the strength of"):
            penalty.strength = strength


@pytest.mark.parametrize("mix", [-0.1, 1.1, math.nan])
def test_a_wrong_mix_is_refused(mix):
    with pytest.raises(UserError, match=f"the mix of ElasticNet is {mix}, expected a number from 0 to 1"):
        ElasticNet(1.0, mix)
    with pytest.raises(UserError, match=f"the mix of SparseGroupLasso is {mix}"):
        SparseGroupLasso(blocks(), 1.0, mix)
    with pytest.raises(UserError, match=r"NoPenalty has strength 0\.5, expected 0"):
        NoPenalty(0.5)
