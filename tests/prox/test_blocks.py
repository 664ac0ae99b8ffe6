"""The proximal kernels against scalar loops, against cvxpy, and against their own twins."""

import math

import cvxpy
import numba
import pytest
import torch

from structsparse import prox
from structsparse.groups import Partition, by_column, by_row, by_row_blocks
from structsparse.kernels import vectors

ROUTES = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}
SHAPE = (8, 3)
LAYOUTS = {
    "blocks": lambda: by_row_blocks(SHAPE, ["a", "none", "single", "b"], [0, 3, 3, 4, 8]),
    "rows": lambda: by_row(SHAPE, weights="one"),
    "columns": lambda: by_column(SHAPE, list("xyz"), "log2_size"),
    "free rows": lambda: Partition(torch.tensor([0, 0, -1, 1, 1, -1, 0, 1])[:, None], list("ab"), SHAPE),
    "entries": lambda: Partition(torch.tensor([0, -1, 1, 2, 2, 0] * 4).view(SHAPE), list("abc"), SHAPE),
}


def draw(seed, shape=SHAPE, spread=1.0, dtype=torch.float64):
    """Weights, and steps that range over 10 ** -spread to 10 ** spread."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(shape, generator=generator, dtype=torch.float64)
    steps = 10 ** (spread * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1))
    return W.to(dtype), steps.to(dtype)


def members(groups):
    ids = groups.ids.expand(groups.shape).flatten().tolist()
    return [[i for i, owner in enumerate(ids) if owner == g] for g in range(len(groups))]


def group_norm(w, reach):
    """By bisection: the norm theta of  w * theta / (theta + reach)."""

    def left_of_root(theta):
        return math.fsum((a / (theta + r)) ** 2 for a, r in zip(w, reach, strict=True)) > 1

    low, high = 0.0, math.hypot(*w)
    if all(r > 0 for r in reach) and not left_of_root(0.0):
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle > 0 and left_of_root(middle) else (low, middle)
    return (low + high) / 2


def slow_sparse_group(W, groups, strength, entry_strength, steps):
    """One scalar after the other."""
    w, s = W.flatten().tolist(), steps.expand(W.shape).flatten().tolist()
    for g, positions in enumerate(members(groups)):
        for i in positions:
            w[i] = math.copysign(max(abs(w[i]) - entry_strength * s[i], 0.0), w[i])
        reach = [strength * float(groups.weight[g]) * s[i] for i in positions]
        theta = group_norm([w[i] for i in positions], reach) if positions else 0.0
        for i, r in zip(positions, reach, strict=True):
            w[i] = w[i] * theta / (theta + r) if theta > 0 else 0.0
    return torch.tensor(w, dtype=W.dtype).view(W.shape)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("strength", [0.0, 0.3, 1.5])
def test_entrywise_steps_are_those_of_a_loop(route, strength):
    W, steps = draw(0, (40, 5))
    for scales in (0.7, torch.tensor(0.7, dtype=torch.float64), steps, steps[:, :1]):
        s = torch.as_tensor(scales, dtype=torch.float64).expand(W.shape).flatten().tolist()
        pairs = list(zip(W.flatten().tolist(), s, strict=True))
        soft = [math.copysign(max(abs(w) - strength * s, 0.0), w) for w, s in pairs]
        ridge = [w / (1 + strength * s) for w, s in pairs]
        found = prox.soft_threshold_(ROUTES[route](W), strength, scales).flatten().tolist()
        assert found == pytest.approx(soft, abs=1e-15)
        found = prox.shrink_(ROUTES[route](W), strength, scales).flatten().tolist()
        assert found == pytest.approx(ridge, abs=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("route", ROUTES)
def test_group_steps_are_those_of_a_loop(layout, route):
    groups = LAYOUTS[layout]()
    for seed in range(12):
        W, steps = draw(seed, spread=0.5 * (seed % 5))
        strength = 0.05 * 2.0 ** (seed % 6)
        for scales in (0.7, steps, steps[:, :1]):
            s = torch.as_tensor(scales, dtype=torch.float64)
            found = prox.group_shrink_(ROUTES[route](W), groups, strength, scales)
            torch.testing.assert_close(found, slow_sparse_group(W, groups, strength, 0.0, s), rtol=0, atol=1e-13)
            found = prox.sparse_group_shrink_(ROUTES[route](W), groups, strength, 0.1, scales)
            torch.testing.assert_close(found, slow_sparse_group(W, groups, strength, 0.1, s), rtol=0, atol=1e-13)


@pytest.mark.parametrize("entry_strength", [0.0, 0.2])
@pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
@pytest.mark.parametrize("layout", ["blocks", "entries"])
def test_a_convex_solver_finds_the_same_minimum(layout, metric, entry_strength):
    groups = LAYOUTS[layout]()
    W, steps = draw(5, spread=0.5)
    W.view(-1)[members(groups)[0]] *= 0.05  # one group to die
    steps = steps if metric == "diagonal" else torch.tensor(0.6, dtype=torch.float64)
    V = cvxpy.Variable(W.numel())
    moved = cvxpy.multiply(1 / steps.expand(SHAPE).flatten().sqrt().numpy(), V - W.flatten().numpy())
    objective = cvxpy.sum_squares(moved) / 2
    for weight, positions in zip(groups.weight.tolist(), members(groups), strict=True):
        if positions:
            objective += 0.3 * weight * cvxpy.norm(V[positions]) + entry_strength * cvxpy.norm1(V[positions])
    accuracy = {"tol_gap_abs": 3e-9, "tol_gap_rel": 3e-9, "tol_feas": 3e-9}
    least = cvxpy.Problem(cvxpy.Minimize(objective)).solve(solver="CLARABEL", **accuracy)
    theirs = torch.from_numpy(V.value)
    found = prox.sparse_group_shrink_(W.clone(), groups, 0.3, entry_strength, steps)
    V.value = found.flatten().numpy()
    assert objective.value <= least + 1e-12
    assert objective.value == pytest.approx(least, abs=1e-7)
    # as strongly convex as 1 / steps, so a point is known to the square root of what its value is known to
    torch.testing.assert_close(found.flatten(), theirs, rtol=0, atol=1e-4)
    assert 0 < int(groups.alive(found).sum()) < len(groups)


@pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_torch_agree_on_large_and_small_blocks(dtype, metric):
    W, steps = draw(1, (750_000, 3), dtype=dtype)
    steps = steps if metric == "diagonal" else 0.5
    bounds = [0, 5, 5, 1000, 40_000, 745_000, 745_001, 750_000, 750_000]  # one is shared by all threads
    groups = by_row_blocks(W.shape, [str(k) for k in range(8)], bounds)
    share = torch.tensor([0.5, 0.0, 0.0, 0.9, 0.6, 1.2, 1.2, 0.0])  # of the strength at which the group dies
    groups.weight.copy_(share * groups.norms(W / steps))
    fast = prox.sparse_group_shrink_(W.clone(), groups, 1.0, 0.05, steps)
    slow = prox.sparse_group_shrink_(ROUTES["torch"](W), groups, 1.0, 0.05, steps)
    torch.testing.assert_close(fast, slow, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-13)
    assert groups.alive(fast).tolist() == [True, False, True, True, True, False, False, False]
    assert groups.alive(slow).tolist() == groups.alive(fast).tolist()


@pytest.mark.parametrize("entry_strength", [0.0, 0.3])
@pytest.mark.parametrize("mean", [5, 22, 80, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_torch_agree_on_many_blocks_of_few_entries(dtype, mean, entry_strength):
    """Some are empty, some long; together they take more than one portion, and the last ends with the array."""
    W = draw(10, (30_000, 1), dtype=dtype)[0]
    draws = torch.Generator().manual_seed(mean)
    cuts = torch.randint(0, 30_001, (30_000 // mean,), generator=draws).sort().values.tolist()
    bounds = [0, *cuts[:10], *cuts, 30_000]
    bounds.sort()
    groups = by_row_blocks(W.shape, [str(k) for k in range(len(bounds) - 1)], bounds)
    share = torch.rand(len(groups), generator=draws, dtype=torch.float64) * 1.5
    share[::7] = 0.0
    soft = prox.soft_threshold_(W.double().clone(), entry_strength, 1.0)
    groups.weight.copy_(share * groups.norms(soft))
    fast = prox.sparse_group_shrink_(W.clone(), groups, 1.0, entry_strength, 1.0)
    slow = prox.sparse_group_shrink_(ROUTES["torch"](W.double()), groups, 1.0, entry_strength, 1.0)
    torch.testing.assert_close(fast.double(), slow, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-13)
    assert torch.equal(groups.alive(fast), (share < 1) & (groups.norms(soft) > 0))


@pytest.mark.parametrize("size", [1e-25, 1e-16, 1e25])
def test_blocks_whose_squares_float32_cannot_hold(size):
    W, _ = draw(11, (400, 6), dtype=torch.float32)
    W *= size
    groups = by_row(W.shape, weights="one")
    for share in (0.5, 0.9, 2.0):
        found = prox.group_shrink_(W.clone(), groups, share * 2.4 * size, 1.0)
        expected = prox.group_shrink_(W.double(), groups, share * 2.4 * size, 1.0)
        torch.testing.assert_close(found.double() / size, expected / size, rtol=1e-6, atol=2e-6)
        assert 0 < int(groups.alive(found).sum()) < len(groups) or share == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_torch_agree_on_many_entries(dtype):
    W, steps = draw(1, (400_000, 1), dtype=dtype)
    for change in (prox.soft_threshold_, prox.shrink_):
        for scales in (0.5, steps):
            torch.testing.assert_close(change(W.clone(), 0.1, scales), change(ROUTES["torch"](W), 0.1, scales))


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")
def test_results_do_not_depend_on_the_number_of_threads():
    W, steps = draw(2, (750_000, 3), dtype=torch.float32)
    groups = by_row_blocks(W.shape, ["large", "a", "b"], [0, 710_000, 720_000, 750_000], weights="one")
    outcomes, before = [], numba.get_num_threads()
    for threads in (1, 2):
        numba.set_num_threads(threads)
        scalar = prox.sparse_group_shrink_(W.clone(), groups, 20.0, 0.1, 0.5)
        metric = prox.sparse_group_shrink_(W.clone(), groups, 20.0, 0.1, steps)
        outcomes.append((scalar, metric, groups.norms(W)))
    numba.set_num_threads(before)
    assert outcomes[0][1].any()
    for one, two in zip(*outcomes, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_of_zero_and_infinity(layout, route, dtype):
    groups = LAYOUTS[layout]()
    covered = (groups.ids >= 0).expand(SHAPE)
    W, steps = draw(3, dtype=dtype)
    steps[0], steps[1], steps[2, 0] = 0.0, torch.inf, 1e10
    changes = {
        "ridge": lambda V, strength: prox.shrink_(V, strength, steps),
        "soft": lambda V, strength: prox.soft_threshold_(V, strength, steps),
        "group": lambda V, strength: prox.group_shrink_(V, groups, strength, steps),
        "sparse group": lambda V, strength: prox.sparse_group_shrink_(V, groups, strength, strength, steps),
    }
    for name, change in changes.items():
        assert torch.equal(change(ROUTES[route](W), 0.0), W)
        found = change(ROUTES[route](W), 0.1)
        assert found.isfinite().all()
        assert torch.equal(found[0], W[0])
        assert (found[1][covered[1]] == 0).all()
        assert name == "ridge" or not found[found == 0].signbit().any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("route", ROUTES)
def test_steps_may_be_of_another_precision(layout, route):
    """Theirs is widened, not that of the weights narrowed."""
    groups, (W, steps) = LAYOUTS[layout](), draw(8)
    for change in (
        lambda s: prox.soft_threshold_(ROUTES[route](W), 0.1, s),
        lambda s: prox.shrink_(ROUTES[route](W), 0.1, s),
        lambda s: prox.sparse_group_shrink_(ROUTES[route](W), groups, 0.1, 0.1, s),
    ):
        torch.testing.assert_close(change(steps.float()), change(steps.float().double()), rtol=0, atol=1e-15)


@pytest.mark.parametrize("route", ROUTES)
def test_no_strength_leaves_even_weights_whose_squares_vanish(route):
    W, groups = torch.full(SHAPE, -1e-200, dtype=torch.float64), by_row(SHAPE)
    for steps in (1.0, torch.ones(SHAPE, dtype=torch.float64)):
        assert torch.equal(prox.group_shrink_(ROUTES[route](W), groups, 0.0, steps), W)
    steps[0] = 0.0
    found = prox.group_shrink_(ROUTES[route](W), by_row_blocks(SHAPE, ["all"], [0, 8]), 1.0, steps)
    assert torch.equal(found[0], W[0])
    assert (found[1:] == 0).all()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("spread", [3, 8, 12])
def test_newton_solves_groups_whose_steps_span_many_decades(route, spread):
    """Where a group lives, V = W * |V| / (|V| + strength * steps); where it dies, |W / steps| <= strength."""
    W, steps = draw(4, (600, 6), spread=spread)
    groups = by_row(W.shape, weights="one")
    critical = (W / steps).norm(dim=1)
    share = torch.rand(600, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 2
    groups.weight.copy_(critical * share[:, 0])
    V = prox.group_shrink_(ROUTES[route](W), groups, 1.0, steps)
    assert torch.equal(groups.alive(V), share[:, 0] < 1)
    alive = share[:, 0] < 1
    v, reach = V[alive], (groups.weight[:, None] * steps)[alive]
    norm = v.norm(dim=1, keepdim=True)
    torch.testing.assert_close(v, W[alive] * norm / (norm + reach), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("route", ROUTES)
def test_no_zero_is_negative(route):
    groups = by_row(SHAPE, weights="one")
    W, steps = draw(6)
    for scales in (1.0, steps):
        for V in (
            prox.soft_threshold_(ROUTES[route](-W.abs()), 50.0, scales),
            prox.group_shrink_(ROUTES[route](-W.abs()), groups, 50.0, scales),
            prox.sparse_group_shrink_(ROUTES[route](-W.abs()), groups, 50.0, 0.1, scales),
        ):
            assert (V == 0).all()
            assert not V.signbit().any()


@pytest.mark.parametrize("layout", ["blocks", "entries"])
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_not_a_number_does_not_become_a_zero(layout, route):
    groups = LAYOUTS[layout]()
    W, steps = draw(7)
    W[5] = math.nan
    for scales in (1.0, steps):
        assert prox.soft_threshold_(ROUTES[route](W), 9.0, scales)[5].isnan().all()
        assert prox.shrink_(ROUTES[route](W), 9.0, scales)[5].isnan().all()
        for entry_strength in (0.0, 0.1):
            V = prox.sparse_group_shrink_(ROUTES[route](W), groups, 9.0, entry_strength, scales)
            assert V[5].isnan().all()


def test_autograd_knows_that_memory_changed():
    groups = by_row(SHAPE)
    for change in (
        lambda V: prox.soft_threshold_(V, 0.1, 1.0),
        lambda V: prox.shrink_(V, 0.1, torch.ones(SHAPE)),
        lambda V: prox.group_shrink_(V, groups, 0.1, 1.0),
    ):
        W = torch.randn(SHAPE, requires_grad=True)
        loss = W.square().sum()
        change(W)
        assert W.requires_grad
        assert W.is_leaf
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@numba.njit
def vector_sums(x, start, stop, cut):
    absolute, squares = vectors.absolute_sum(x, start, stop, ()), vectors.square_sum(x, start, stop, ())
    return absolute, squares, vectors.soft_square_sum(x, start, stop, (cut,))


@numba.njit
def vector_changes(x, y, start, stop, cut, factor):
    vectors.multiply(x, start, stop, (factor,))
    vectors.soft_multiply(y, start, stop, (cut, factor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_end_where_the_entries_end(dtype):
    """Wherever they begin, and however many there are."""
    W = draw(9, (2100,), dtype=dtype)[0]
    cut, factor = W.numpy().dtype.type(0.3), W.numpy().dtype.type(0.7)
    for many in (*range(40), 63, 64, 65, 100, 511, 512, 513, 530, 600, 2000):
        for start in (0, 1, 3, 8, 21):
            stop = start + many
            x = W[start:stop].double()
            rest = (W[start:stop] - W[start:stop].clamp(-0.3, 0.3)).double()
            expected = float(x.abs().sum()), float(x.square().sum()), float(rest.square().sum())
            assert vector_sums(W.numpy(), start, stop, cut) == pytest.approx(expected, rel=1e-6)
            scaled, shrunk = W.clone(), W.clone()
            vector_changes(scaled.numpy(), shrunk.numpy(), start, stop, cut, factor)
            one, other = W.clone(), W.clone()
            one[start:stop], other[start:stop] = x.to(dtype) * 0.7, rest.to(dtype) * 0.7
            torch.testing.assert_close(scaled, one)
            torch.testing.assert_close(shrunk, other)
            outside = torch.ones(len(W), dtype=torch.bool)
            outside[start:stop] = False
            assert torch.equal(scaled[outside], W[outside])
            assert torch.equal(shrunk[outside], W[outside])


@numba.njit
def few_sums(x, start, stop, cut):
    squares = vectors.few_square_sum(x, start, stop, ()), vectors.two_square_sum(x, start, stop, ())
    rest = vectors.few_soft_square_sum(x, start, stop, (cut,)), vectors.two_soft_square_sum(x, start, stop, (cut,))
    return squares, rest


@numba.njit
def few_changes(x, y, start, stop, cut, factor, spread):
    vectors.fill(spread, 0, 1, (cut,))
    vectors.fill_two(spread, 1, stop - start, (factor,))
    vectors.multiply_each(x, start, stop, (), spread)
    vectors.fill(spread, 1, stop - start, (factor,))
    vectors.soft_multiply_each(y, start, stop, (cut,), spread)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_of_few_entries_end_where_these_end(dtype):
    W = draw(12, (1200,), dtype=dtype)[0]
    W[0::2] += 3.0  # a sum of squares that are not alike
    cut, factor = W.numpy().dtype.type(0.3), W.numpy().dtype.type(0.7)
    spread = torch.empty(vectors.FEW + 128, dtype=dtype)
    for many in (*range(1, 40), 63, 64, 65, 127, 128, 129, 200, 511, 512):
        for start in (0, 1, 21):
            stop = start + many
            around = W.clone()
            around[:start], around[stop:] = math.nan, math.nan  # what belongs to others is left out
            x, rest = W[start:stop].double(), (W[start:stop] - W[start:stop].clamp(-cut, cut)).double()
            squares, soft_squares = few_sums(around.numpy(), start, stop, cut)
            accuracy = 1e-6 if dtype == torch.float32 else 1e-14
            assert squares == pytest.approx([float(x.square().sum())] * 2, rel=accuracy)
            assert soft_squares == pytest.approx([float(rest.square().sum())] * 2, rel=accuracy)
            scaled, shrunk = W.clone(), W.clone()
            few_changes(scaled.numpy(), shrunk.numpy(), start, stop, cut, factor, spread.numpy())
            factors = torch.tensor([0.3] + [0.7] * (many - 1), dtype=torch.float64)
            one, other = W.clone(), W.clone()
            one[start:stop], other[start:stop] = (x * factors).to(dtype), (rest * factors).to(dtype)
            torch.testing.assert_close(scaled, one)
            torch.testing.assert_close(shrunk, other)


def test_a_factor_of_zero_makes_plain_zeros():
    for value in (-1.0, math.inf, -0.0):
        x, y = torch.full((37,), value), torch.full((37,), value)
        zero = x.numpy().dtype.type(0)
        vector_changes(x.numpy(), y.numpy(), 0, 37, zero, zero)
        for result in (x, y):
            assert (result == 0).all()
            assert not result.signbit().any()
