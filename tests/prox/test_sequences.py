"""Total variation along chains, sorted weights and clipped groups: kernels, their twins, and second opinions."""

import itertools
import math

import cvxpy
import numba
import numpy as np
import pytest
import torch
from sklearn.isotonic import isotonic_regression

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Partition, by_column, by_row, by_row_blocks
from structsparse.kernels.prox import sequences as kernels
from structsparse.penalties import L0, L1, OSCAR, SLOPE, FusedLasso, GroupLassoMax, GroupMCP, LogSum, Nonnegative
from structsparse.prox.sequences import _fall_and_stop

ROUTES = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}


def draw(seed, shape, spread=1.0, dtype=torch.float64):
    """Weights, and steps that range over 10 ** -spread to 10 ** spread."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(shape, generator=generator, dtype=torch.float64)
    steps = 10 ** (spread * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1))
    return W.to(dtype), steps.to(dtype)


def assert_optimal_chains(V, W, steps, strength, dimension, accuracy=1e-10):
    """(W - V) / steps added up along a chain is the dual: at most the strength, and just that where V jumps."""
    pull = ((W - V) / steps).movedim(dimension, 0).cumsum(0)
    jumps = V.movedim(dimension, 0).diff(dim=0)
    size = accuracy * (1 + pull.abs().max())
    assert (pull[-1].abs() < size).all()
    assert (pull[:-1].abs() < strength + size).all()
    rises, falls = jumps > 0, jumps < 0
    torch.testing.assert_close(
        pull[:-1][rises], -strength * torch.ones_like(pull[:-1][rises]), rtol=0, atol=float(size)
    )
    torch.testing.assert_close(pull[:-1][falls], strength * torch.ones_like(pull[:-1][falls]), rtol=0, atol=float(size))
    return int((jumps != 0).sum()), jumps.numel()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dimension", [0, 1, 2, -1])
def test_chains_are_optimal_along_any_dimension(route, dimension):
    jumped = 0
    for seed in range(12):
        W, steps = draw(seed, (7, 11, 5), spread=0.3 * (seed % 4))
        W = W.cumsum(dimension)
        strength = 0.02 * 2.0 ** (seed % 9)
        for scales in (torch.tensor(0.7, dtype=torch.float64), steps):
            V = prox.smooth_(ROUTES[route](W), dimension, strength, scales)
            count, _ = assert_optimal_chains(V, W, scales, strength, dimension)
            jumped += count
    assert jumped > 1000


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (0, 3), (3, 0), (400, 2)])
def test_chains_of_any_length(route, shape):
    W, steps = draw(3, shape)
    for scales in (torch.tensor(0.7, dtype=torch.float64), steps):
        V = prox.smooth_(ROUTES[route](W), 0, 0.5, scales)
        assert V.shape == shape
        if W.numel():
            assert_optimal_chains(V, W, scales, 0.5, 0)


def test_both_routes_agree_where_many_chains_meet_ties_and_still_entries():
    generator = torch.Generator().manual_seed(5)
    for seed in range(20):
        W, steps = draw(seed, (40, 30), spread=0.5)
        W = W.mul(2).round()  # ties
        steps[torch.rand(W.shape, generator=generator) < 0.2] = 0.0
        for scales in (steps, 1.0):
            fast, slow = (prox.smooth_(ROUTES[route](W), 0, 0.8, scales) for route in ROUTES)
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
        V = prox.smooth_(W.clone(), 0, 0.8, steps)
        assert torch.equal(V[steps == 0], W[steps == 0])


@pytest.mark.parametrize("route", ROUTES)
def test_still_entries_part_a_chain(route):
    """What cannot move is like a very short step, and a constraint to cvxpy."""
    for seed in range(8):
        W, steps = draw(seed, (12, 1), spread=0.5)
        still = torch.tensor([0, 4, 5, 9][: 1 + seed % 4])
        steps[still] = 0.0
        V = cvxpy.Variable(12)
        w, free = W[:, 0].numpy(), steps[:, 0] > 0
        inverse = np.where(free, 1 / np.where(free, steps[:, 0], 1.0), 0.0)
        cost = cvxpy.sum(cvxpy.multiply(inverse, cvxpy.square(V - w))) / 2 + 0.6 * cvxpy.norm1(cvxpy.diff(V))
        cvxpy.Problem(cvxpy.Minimize(cost), [V[i] == w[i] for i in still.tolist()]).solve(solver="CLARABEL")
        found = prox.smooth_(ROUTES[route](W), 0, 0.6, steps)[:, 0]
        torch.testing.assert_close(found, torch.from_numpy(V.value), rtol=0, atol=1e-5)


@pytest.mark.parametrize("route", ROUTES)
def test_endless_steps_follow_their_neighbours(route):
    W, steps = draw(0, (6, 2))
    steps[2:4] = torch.inf
    V = prox.smooth_(ROUTES[route](W), 0, 0.05, steps)
    assert V.isfinite().all()
    assert ((V[2] - V[1]) * (V[4] - V[2]) >= 0).all()  # on the way from one to the other
    assert ((V[3] - V[2]) * (V[4] - V[3]) >= 0).all()
    constant = prox.smooth_(ROUTES[route](W), 0, 1e6, 1.0)
    torch.testing.assert_close(constant, W.mean(0, keepdim=True).expand_as(W))
    assert constant.diff(dim=0).eq(0).all()
    assert torch.equal(prox.smooth_(ROUTES[route](W), 0, 0.0, steps), W)
    assert torch.equal(prox.smooth_(ROUTES[route](W), 0, 1.0, 0.0), W)


def test_steps_over_many_decades_do_little_harm():
    W, steps = draw(1, (300, 4), spread=4)
    for route in ROUTES:
        V = prox.smooth_(ROUTES[route](W), 0, 0.5, steps)
        assert_optimal_chains(V, W, steps, 0.5, 0, accuracy=1e-9)


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_not_a_number_does_not_hang(route):
    W, _ = draw(0, (9, 3))
    W[4, 1] = math.nan
    V = prox.smooth_(ROUTES[route](W), 0, 0.5, 1.0)
    assert V[4, 1].isnan()
    assert V[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("mix", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("lower", [-math.inf, 0.0])
def test_the_critical_strength_of_the_fused_lasso_is_that_of_the_worst_interval(mix, lower):
    """Over all intervals of all chains, one after the other."""
    for seed in range(20):
        grad, _ = draw(seed, (9, 2))
        grad = grad + 0.3 * (seed % 3)
        worst = 0.0
        for chain in grad.T:
            for a, b in itertools.combinations(range(10), 2):
                cost = mix * (b - a) + (1 - mix) * ((a > 0) + (b < 9))
                pull = -float(chain[a:b].sum())
                worst = max(worst, (pull if lower == 0 else abs(pull)) / cost)
        penalty = FusedLasso(1.0, 0, mix)
        found = (Nonnegative(penalty) if lower == 0 else penalty).critical(grad)
        assert float(found) == pytest.approx(worst, rel=1e-12)
    assert FusedLasso(1.0, 0, 0.0).critical(grad) is None
    assert float(FusedLasso(1.0, 0, 0.5).critical(torch.zeros(0, 2))) == 0


def test_a_fused_lasso_says_what_it_cannot_do():
    with pytest.raises(UserError, match=r"FusedLasso is along dimension 2, got a tensor \(4, 3\)"):
        FusedLasso(1.0, dimension=2).prox_(torch.zeros(4, 3), 1.0)
    with pytest.raises(UserError, match="FusedLasso with a mix above 0 takes one step for all entries"):
        FusedLasso(1.0, mix=0.5).prox_(torch.zeros(4, 3), torch.ones(4, 3))
    with pytest.raises(UserError, match="the mix of FusedLasso is 2"):
        FusedLasso(1.0, mix=2)


def test_the_nearest_vector_that_falls_is_that_of_scikit_learn():
    for seed in range(200):
        x, _ = draw(seed, (1 + seed % 40,))
        x = (x.round() if seed % 2 else x) + torch.linspace(1, -1, len(x))
        expected = np.maximum(isotonic_regression(x.numpy(), increasing=False), 0)
        np.testing.assert_allclose(_fall_and_stop(x).numpy(), expected, atol=1e-12)
        kernels.fall_and_stop(x.numpy())
        np.testing.assert_allclose(x.numpy(), expected, atol=1e-12)


def test_sorted_weights_have_special_cases():
    first = torch.zeros(24, dtype=torch.float64)
    first[0] = 2.0
    everything = by_row_blocks((8, 3), ["all"], [0, 8], weights=torch.tensor([2.0]))
    for seed in range(40):
        W, _ = draw(seed, (8, 3))
        for step in (0.1, 1.0):
            lasso = L1(0.4).prox_(W.clone(), step)
            for flat in (SLOPE(0.4, torch.ones(24)), OSCAR(0.4, mix=1.0)):
                torch.testing.assert_close(flat.prox_(W.clone(), step), lasso, rtol=0, atol=1e-14)
            largest = GroupLassoMax(everything, 0.4).prox_(W.clone(), step)
            torch.testing.assert_close(SLOPE(0.4, first).prox_(W.clone(), step), largest, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_routes_of_sorted_weights_agree_on_many_entries(dtype):
    W, _ = draw(2, (30_000,), dtype=dtype)
    weights = torch.linspace(2, 0, 30_000, dtype=torch.float64) ** 3 + 0.3
    fast, slow = (prox.sorted_shrink_(ROUTES[route](W), weights, 0.4, 0.5) for route in ROUTES)
    size = W.abs().double().sort(descending=True)
    expected = np.maximum(isotonic_regression((size.values - 0.2 * weights).numpy(), increasing=False), 0)
    for V in (fast, slow):
        np.testing.assert_allclose(
            V.abs()[size.indices].numpy(), expected, atol=1e-6 if dtype == torch.float32 else 1e-12
        )
        assert (V * W >= 0).all()
    assert 0 < int((fast == 0).sum()) < 30_000


def test_sorted_weights_that_are_none_are_refused():
    for weights, message in (
        ([1.0, 2.0], r"the weights of SLOPE rise from 1 at 0 to 2, expected the largest first"),
        ([1.0, -1.0], r"the weight of SLOPE at \[1\] is -1.0, expected a finite number of at least 0"),
        ([1.0, math.nan], "the weight of SLOPE"),
        ([[1.0]], r"the weights of SLOPE have shape \(1, 1\), expected one dimension"),
    ):
        with pytest.raises(UserError, match=message):
            SLOPE(1.0, torch.tensor(weights))
    with pytest.raises(UserError, match=r"SLOPE has 2 weights, expected one for each entry of \(3,\)"):
        SLOPE(1.0, torch.tensor([2.0, 1.0])).prox_(torch.zeros(3), 1.0)
    with pytest.raises(UserError, match="the prox of sorted weights takes one step for all entries"):
        OSCAR(1.0, 0.5).prox_(torch.zeros(3), torch.ones(3))


# Groups under their largest entry.

SHAPE = (8, 3)
LAYOUTS = {
    "blocks": lambda: by_row_blocks(SHAPE, ["a", "none", "single", "b"], [0, 3, 3, 4, 8]),
    "rows": lambda: by_row(SHAPE, weights="one"),
    "columns": lambda: by_column(SHAPE, list("xyz"), "log2_size"),
    "free rows": lambda: Partition(torch.tensor([0, 0, -1, 1, 1, -1, 0, 1])[:, None], list("ab"), SHAPE),
    "entries": lambda: Partition(torch.tensor([0, -1, 1, 2, 2, 0] * 4).view(SHAPE), list("abc"), SHAPE),
}


def height(w, steps, strength):
    """By trying every number of entries above it, from the largest down; bounded by those that cannot move."""
    held = max([0.0] + [abs(a) for a, s in zip(w, steps, strict=True) if s == 0])
    sizes = sorted(((abs(a), 1 / s) for a, s in zip(w, steps, strict=True) if s > 0), reverse=True)
    best = 0.0
    for k in range(1, len(sizes) + 1):
        total = math.fsum(a * i for a, i in sizes[:k]) - strength
        count = math.fsum(i for _, i in sizes[:k])
        best = max(best, total / count if count > 0 else 0.0)
    return max(held, best)


def slow_clip(W, groups, strength, steps):
    w, s = W.flatten().tolist(), steps.expand(W.shape).flatten().tolist()
    ids = groups.ids.expand(groups.shape).flatten().tolist()
    for g, weight in enumerate(groups.weight.tolist()):
        positions = [i for i, owner in enumerate(ids) if owner == g]
        top = height([w[i] for i in positions], [s[i] for i in positions], strength * weight)
        for i in positions:
            w[i] = math.copysign(min(abs(w[i]), top), w[i])
    return torch.tensor(w, dtype=W.dtype).view(W.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("route", ROUTES)
def test_clipped_groups_are_those_of_a_loop(layout, route):
    groups = LAYOUTS[layout]()
    for seed in range(30):
        W, steps = draw(seed, SHAPE, spread=0.8 * (seed % 5))
        steps[seed % 8, seed % 3] = (0.0, torch.inf, 1.0)[seed % 3]
        strength = 0.05 * 2.0 ** (seed % 8)
        for scales in (torch.tensor(0.7, dtype=torch.float64), steps, steps[:, :1]):
            found = prox.group_clip_(ROUTES[route](W), groups, strength, scales)
            expected = slow_clip(W, groups, strength, scales)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_routes_agree_on_large_and_small_groups(dtype, metric):
    W, steps = draw(1, (60_000, 3), dtype=dtype)
    W[1000:40_000] = W[1000:40_000].sign() * 10 ** W[1000:40_000]  # of many sizes
    bounds = [0, 5, 5, 1000, 40_000, 59_000, 59_001, 60_000, 60_000]
    groups = by_row_blocks(W.shape, [str(k) for k in range(8)], bounds)
    steps = steps if metric == "diagonal" else 0.5
    share = torch.tensor([0.5, 0.0, 0.0, 0.9, 0.1, 1.2, 1.2, 0.0])  # of the strength at which the group dies
    groups.weight.copy_(share * groups.sums((W / steps).abs()))
    fast, slow = (prox.group_clip_(ROUTES[route](W), groups, 1.0, steps) for route in ROUTES)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-12)
    assert groups.alive(fast).tolist() == [True, False, True, True, True, False, False, False]
    top = prox.group_maxima(fast.abs(), groups)
    clipped = groups.sums((fast.abs() == groups.expand(top.to(dtype), 0.0)) & (fast != 0))
    assert clipped[3] > 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("scales", [1.0, torch.ones(SHAPE, dtype=torch.float64)], ids=["scalar", "entries"])
def test_clipping_leaves_what_is_not_a_number(route, scales):
    W, _ = draw(7, SHAPE)
    W[5] = math.nan
    assert prox.group_clip_(ROUTES[route](W), LAYOUTS["blocks"](), 9.0, scales)[5].isnan().all()


def test_ties_share_the_gradient_of_the_maximum_and_zeros_have_none():
    groups = by_row_blocks((3, 2), ["a", "b"], [0, 2, 3], weights="one")
    W = torch.tensor([[2.0, -2.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    GroupLassoMax(groups, 3.0).value(W).backward()
    assert torch.equal(W.grad, torch.tensor([[1.5, -1.5], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64))


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")
def test_results_do_not_depend_on_the_number_of_threads():
    W, steps = draw(2, (100_000, 3), dtype=torch.float32)
    groups = by_row_blocks(W.shape, ["a", "b", "c"], [0, 10, 70_000, 100_000], weights="one")
    outcomes, before = [], numba.get_num_threads()
    for threads in (1, 2):
        numba.set_num_threads(threads)
        chains = [prox.smooth_(W.clone(), dimension, 1.0, steps) for dimension in (0, 1)]
        clipped = [prox.group_clip_(W.clone(), groups, 50.0, scales) for scales in (0.5, steps)]
        entries = [penalty.prox_(W.clone(), steps) for penalty in (L0(0.3), LogSum(0.3, 0.2), GroupMCP(0.3, 1.0))]
        outcomes.append(chains + clipped + entries)
    numba.set_num_threads(before)
    for one, two in zip(*outcomes, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, W)


@pytest.mark.parametrize("kind", [lambda penalty: penalty, Nonnegative], ids=["signed", "nonnegative"])
def test_a_vector_is_one_chain(kind):
    W, _ = draw(0, (7, 1))
    column, vector = (kind(FusedLasso(0.1, mix=0.5)) for _ in range(2))
    assert float(vector.critical(W[:, 0])) == float(column.critical(W)) > 0
