"""Penalties of trees against SPAMS, cvxpy and a loop over subtrees; the kernels against their torch twins."""

import copy
import math

import cvxpy
import numpy as np
import pytest
import scipy.sparse
import torch

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Forest, by_parents, by_row
from structsparse.penalties import L1, GroupLasso, SparseGroupLasso, TreeGroupLasso, TreeGroupLassoMax
from tests.support.forests import (
    FORESTS,
    SHAPE,
    members,
    names_of,
    random_parents,
    random_steps,
    random_weights,
    rows,
    scattered,
    slow_tree_prox,
    steps_of_trees,
)

ROUTES = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}
PROX = {"l2": prox.forest_shrink_, "linf": prox.forest_clip_}
PENALTIES = {"l2": TreeGroupLasso, "linf": TreeGroupLassoMax}
TREES = {  # parents: shallow and deep, with one root and with many
    "shallow": lambda nodes: random_parents(nodes, 1),
    "deep": lambda nodes: random_parents(nodes, 2, reach=3),
    "forest": lambda nodes: random_parents(nodes, 3, trees=nodes // 10),
    "chains": lambda nodes: random_parents(nodes, 4, reach=5, trees=5),
}
both = pytest.mark.parametrize("kind", PROX)
routes = pytest.mark.parametrize("route", ROUTES)


@routes
@both
@pytest.mark.parametrize("layout", FORESTS)
def test_steps_are_those_of_a_loop(layout, kind, route):
    forest, large = FORESTS[layout](), kind == "linf"
    for seed in range(6):
        W, strength = random_weights(forest.shape, seed), 0.05 * 2.0**seed
        for steps in (0.7, random_steps(forest.shape, seed) if large else steps_of_trees(forest, seed)):
            for entry_strength in (0.0, 0.1):
                expected = slow_tree_prox(W, forest, strength, entry_strength, steps, large)
                found = PROX[kind](ROUTES[route](W), forest, strength, entry_strength, steps)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def spams_prox(W, forest, strength, regul):
    """One entry a node. The roots hang below one without weight, which has an entry as SPAMS divides by its norm."""
    spams = pytest.importorskip("spams")
    children = [[] for _ in range(len(forest) + 1)]
    for node, parent in enumerate(forest.parents.tolist()):
        children[parent].append(node)  # the last one is of -1
    visited, groups, waiting = [], [], [(node, 0) for node in reversed(children[-1])]
    while waiting:  # depth first, as they want it
        node, above = waiting.pop()
        visited.append(node)
        groups.append(above)
        waiting += [(child, len(visited)) for child in reversed(children[node])]
    size = len(forest) + 1
    above = scipy.sparse.csc_matrix((np.ones(size - 1, bool), (np.arange(1, size), groups)), (size, size), dtype=bool)
    tree = {
        "eta_g": np.append(0.0, forest.weight.numpy()[visited]),
        "groups": above,
        "own_variables": np.arange(size, dtype=np.int32),
        "N_own_variables": np.ones(size, np.int32),
    }
    U = np.asfortranarray(np.append(1.0, W.flatten().numpy()[visited])[:, None])
    found = torch.empty(len(forest), dtype=W.dtype)
    found[visited] = torch.from_numpy(spams.proximalTree(U, tree, False, 1, lambda1=strength, regul=regul)[1:, 0])
    return found


@routes
@both
@pytest.mark.parametrize("tree", TREES)
def test_spams_finds_the_same(tree, kind, route):
    for nodes in (12, 400):
        W = random_weights((nodes,), nodes)
        for weights in ("one", "sqrt_size", "0.7**depth"):
            forest = by_parents((nodes,), TREES[tree](nodes), weights=weights)
            for strength in (0.1, 0.8):
                expected = spams_prox(W, forest, strength * 0.6, f"tree-{kind}")
                found = PROX[kind](ROUTES[route](W), forest, strength, 0.0, 0.6)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
                assert torch.equal(found == 0, expected == 0)


def omega(V, forest, norm, mix):
    """The formula, written out for cvxpy."""
    pairs = zip(forest.weight.tolist(), members(forest), strict=True)
    total = (1 - mix) * sum(weight * cvxpy.norm(V[m], norm) for weight, m in pairs if m)
    return total + mix * cvxpy.norm1(V[(forest.ids >= 0).expand(forest.shape).flatten().nonzero()[:, 0].numpy()])


@both
@pytest.mark.parametrize("mix", [0.0, 0.3])
@pytest.mark.parametrize("layout", ["rows", "scattered", "columns", "an entry each", "a chain", "three dimensions"])
def test_a_convex_solver_finds_the_same_minimum(layout, mix, kind):
    forest = FORESTS[layout]()
    W, penalty = random_weights(forest.shape, 1), PENALTIES[kind](forest, 0.2, mix)
    for steps in (0.6, random_steps(W.shape, 3) if kind == "linf" else steps_of_trees(forest, 3)):
        V = cvxpy.Variable(W.numel())
        scale = (torch.zeros_like(W) + steps).flatten().rsqrt().numpy()
        objective = cvxpy.sum_squares(cvxpy.multiply(scale, V - W.flatten().numpy())) / 2
        objective += 0.2 * omega(V, forest, 2 if kind == "l2" else "inf", mix)
        accuracy = {"tol_gap_abs": 3e-9, "tol_gap_rel": 3e-9, "tol_feas": 3e-9}
        least = cvxpy.Problem(cvxpy.Minimize(objective)).solve(solver="CLARABEL", **accuracy)
        found = penalty.prox_(W.clone(), steps)
        # known to the square root of what its value is known to
        torch.testing.assert_close(found.flatten(), torch.from_numpy(V.value), rtol=0, atol=1e-4)
        V.value = found.flatten().numpy()
        assert objective.value == pytest.approx(least, abs=1e-6)
        assert objective.value <= least + 1e-9
        value = float(penalty.value(found))
        assert value == pytest.approx(0.2 * omega(V, forest, 2 if kind == "l2" else "inf", mix).value, rel=1e-12)


@routes
def test_collapsed_nodes_are_written_out_chains(route):
    """The metric of a chain's one set of entries is steps / count."""
    nodes = 300
    draw = np.random.default_rng(0)
    counts = torch.from_numpy(draw.integers(1, 5, nodes))
    parents = random_parents(nodes, 6, reach=40, trees=3)
    small = by_parents((nodes, 2), parents, weights="one", counts=counts)
    last = counts.cumsum(0) - 1  # of the copies of a node; they hang below each other
    long_parents = torch.arange(-1, int(last[-1]))
    long_parents[last - counts + 1] = torch.tensor([int(last[p]) if p >= 0 else -1 for p in parents])
    long = by_parents((len(long_parents), 2), long_parents, weights="one")
    W, steps = random_weights((nodes, 2), 1), random_steps((nodes, 2), 1)
    copies = torch.repeat_interleave(torch.arange(nodes), counts)
    assert small.size.tolist() == long.size[last - counts + 1].tolist()
    for strength in (0.05, 4.0):
        for each in (torch.tensor(0.3, dtype=torch.float64), steps):
            each = torch.as_tensor(each).expand_as(W)
            expected = prox.forest_clip_(ROUTES[route](W[copies]), long, strength, 0.0, each[copies])
            found = prox.forest_clip_(ROUTES[route](W), small, strength, 0.0, each / counts[:, None])
            torch.testing.assert_close(found[copies], expected, rtol=0, atol=1e-13)
            assert float((found != W).double().mean()) > 0.1
            assert (found == 0).any() == (strength > 1)
        penalties = TreeGroupLassoMax(small, strength), TreeGroupLassoMax(long, strength)
        assert float(penalties[0].value(W)) == pytest.approx(float(penalties[1].value(W[copies])), rel=1e-12)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tree", TREES)
def test_kernels_and_torch_agree(tree, dtype, kind):
    nodes = 1500
    W = random_weights((nodes, 2), 2, dtype)
    forest = by_parents(W.shape, TREES[tree](nodes), weights="sqrt_size")
    steps = random_steps(W.shape, 2) if kind == "linf" else steps_of_trees(forest, 2)
    for strength in (0.02, 0.3):
        for each in (0.5, steps.to(dtype)):
            fast = PROX[kind](ROUTES["kernels"](W), forest, strength, 0.1, each)
            slow = PROX[kind](ROUTES["torch"](W), forest, strength, 0.1, each)
            torch.testing.assert_close(fast, slow, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-12)
            if dtype == torch.float64:
                assert torch.equal(fast == 0, slow == 0)
            single = each.float() if isinstance(each, torch.Tensor) else each
            rounded = PROX[kind](W.float(), forest, strength, 0.1, single)
            torch.testing.assert_close(rounded.double(), fast.double(), rtol=0, atol=5e-6)


@both
def test_the_order_of_nodes_and_rows_changes_nothing(kind):
    nodes = 200
    parents, W = random_parents(nodes, 0, trees=4), random_weights((nodes, 3))
    renamed = torch.randperm(nodes, generator=torch.Generator().manual_seed(2))
    moved = torch.empty(nodes, dtype=torch.long)
    moved[renamed] = torch.tensor([int(renamed[p]) if p >= 0 else -1 for p in parents])
    X = torch.empty_like(W)
    X[renamed] = W
    expected = PROX[kind](W.clone(), by_parents(W.shape, parents), 0.1, 0.05, 0.5)
    found = PROX[kind](X, by_parents(W.shape, moved), 0.1, 0.05, 0.5)
    torch.testing.assert_close(found[renamed], expected, rtol=0, atol=1e-14)
    assert 0 < int((expected != 0).sum()) < expected.numel()


def test_single_nodes_are_the_group_lasso_and_single_entries_the_lasso():
    forest, groups = by_parents(SHAPE, [-1] * 8), by_row(SHAPE)
    ones = Forest([-1] * 24, torch.arange(24).view(SHAPE), names_of(24), SHAPE, "one")
    for seed in range(20):
        W, steps = random_weights(SHAPE, seed), random_steps(SHAPE, seed)
        for mix in (0.0, 0.4):
            for each in (0.5, steps[:, :1].expand(SHAPE)):
                expected = SparseGroupLasso(groups, 0.4, mix).prox_(W.clone(), each)
                found = TreeGroupLasso(forest, 0.4, mix).prox_(W.clone(), each)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        for penalty in (TreeGroupLasso(ones, 0.4), TreeGroupLassoMax(ones, 0.4), TreeGroupLassoMax(forest, 0.4, 1.0)):
            expected = L1(0.4).prox_(W.clone(), steps)
            torch.testing.assert_close(
                penalty.prox_(W.clone(), steps if penalty.groups is ones else 0.5),
                expected if penalty.groups is ones else L1(0.4).prox_(W.clone(), 0.5),
            )
    grad = random_weights(SHAPE, 30)
    for made, other in (
        (TreeGroupLasso(forest, 0.4), GroupLasso(groups, 0.4)),
        (TreeGroupLasso(forest, 0.4, 0.5), SparseGroupLasso(groups, 0.4, 0.5)),
    ):
        torch.testing.assert_close(made.critical(grad), other.critical(grad), rtol=1e-13, atol=0)
        W = made.prox_(random_weights(SHAPE, 31), 1.0)
        torch.testing.assert_close(made.gap(W, grad), other.gap(W, grad), rtol=1e-12, atol=1e-13)


@routes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exactly_at_the_threshold_is_exactly_zero(dtype, route):
    """3, 4, 5, and a root that gets what is left: nothing is rounded."""
    W = torch.tensor([[6.0, 0.0], [3.0, -4.0], [6.0, 8.0]], dtype=dtype)
    forest = by_parents(W.shape, [-1, 0, 0], weights=torch.tensor([2.0, 1.0, 0.2]))
    V = TreeGroupLasso(forest, 10.0).prox_(ROUTES[route](W), 0.5)  # 5 is gone, 10 becomes 9
    assert V.ne(0).tolist() == [[True, False], [False, False], [True, True]]
    U = torch.tensor([[1.0, 0.0], [3.0, -2.0], [0.0, 4.0]], dtype=dtype)
    forest.weight.copy_(torch.tensor([1.0, 5.0, 2.0]))
    for steps in (0.5, torch.full_like(U, 0.5)):
        V = TreeGroupLassoMax(forest, 2.0).prox_(ROUTES[route](U), steps)  # 5 and 2 die; root: 1 and 2, minus 1
        torch.testing.assert_close(V, torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], dtype=dtype), rtol=0, atol=0)
        assert TreeGroupLassoMax(forest, 6.0).prox_(ROUTES[route](U), steps).eq(0).all()


@routes
@both
def test_zeros_are_plain_zeros_and_no_strength_changes_nothing(kind, route):
    for layout in ("rows", "scattered"):
        forest = FORESTS[layout]()
        W = -random_weights(SHAPE).abs()
        owned = (forest.ids >= 0).expand(SHAPE)
        V = PROX[kind](ROUTES[route](W), forest, 50.0, 0.1, 1.0)
        assert (V[owned] == 0).all()
        assert not V[owned].signbit().any()
        assert torch.equal(V[~owned], W[~owned])
        for steps in (0.3, math.inf, torch.full_like(W, 2.0), torch.full_like(W, math.inf)):
            assert torch.equal(PROX[kind](ROUTES[route](W), forest, 0.0, 0.0, steps), W)
        tiny = torch.full_like(W, 1e-200)
        assert torch.equal(PROX[kind](ROUTES[route](tiny), forest, 0.0, 0.0, 1.0), tiny)
        assert torch.equal(PROX[kind](ROUTES[route](W), forest, 5.0, 0.0, 0.0), W)
        assert PROX[kind](ROUTES[route](W), forest, 5.0, 0.0, math.inf)[owned].eq(0).all()


@routes
def test_entries_without_a_step_stay_and_those_with_an_endless_one_follow(route):
    forest = by_parents((4,), [-1, 0, 0, 1], weights=torch.tensor([1.0, 1.0, 1.0, 0.0]))
    W = torch.tensor([0.5, 3.0, -2.0, -9.0], dtype=torch.float64)
    steps = torch.tensor([1.0, 0.0, 1.0, math.inf], dtype=torch.float64)
    expected = torch.tensor([0.5, 3.0, -1.0, -3.0], dtype=torch.float64)
    V = prox.forest_clip_(ROUTES[route](W), forest, 1.0, 0.0, steps)  # 9 may be as large as the one that stays
    torch.testing.assert_close(V, expected, rtol=0, atol=1e-15)
    near = torch.tensor([1.0, 1e-9, 1.0, 1e9], dtype=torch.float64)
    torch.testing.assert_close(prox.forest_clip_(ROUTES[route](W), forest, 1.0, 0.0, near), expected, rtol=0, atol=1e-7)
    V = prox.forest_clip_(ROUTES[route](W), forest, 1.0, 0.1, steps)
    torch.testing.assert_close(V, torch.tensor([0.4, 3.0, -0.9, 0.0], dtype=torch.float64), rtol=0, atol=1e-15)


@routes
@both
def test_what_is_not_a_number_does_not_become_a_zero(kind, route):
    for layout in ("rows", "an entry each"):
        forest, W = FORESTS[layout](), random_weights(SHAPE)
        W[5] = math.nan
        for entry_strength in (0.0, 0.1):
            V = PROX[kind](ROUTES[route](W), forest, 9.0, entry_strength, 1.0)
            assert V[5].isnan().all()


@both
def test_no_number_of_threads_nor_other_trees_change_a_tree(kind):
    """Trees that chunks of threads are made of, and each alone."""
    sizes = [1, 700, 1, 3, 40, 2, 900, 1] * 3
    ends = np.cumsum(sizes)
    parents = [p + a if p >= 0 else -1 for n, a in zip(sizes, ends - sizes, strict=True) for p in random_parents(n, n)]
    W = random_weights((int(ends[-1]),), 4)
    found = PROX[kind](W.clone(), by_parents(W.shape, parents, weights="one"), 0.3, 0.0, 1.0)
    for n, b in zip(sizes, ends, strict=True):
        alone = W[b - n : b].clone()
        PROX[kind](alone, by_parents((n,), random_parents(n, n), weights="one"), 0.3, 0.0, 1.0)
        torch.testing.assert_close(found[b - n : b], alone, rtol=0, atol=1e-15)


@pytest.mark.parametrize("layout", ["a row each", "entries"])
def test_chunks_of_trees_that_threads_share_are_those_of_torch(layout):
    nodes, W = 140_000, random_weights((140_000, 2), 5)
    parents = random_parents(nodes, 8, trees=3000)
    ids = torch.arange(nodes)[:, None]
    if layout == "entries":  # in any order, some of them free, some nodes without
        ids = torch.from_numpy(np.random.default_rng(1).integers(-1, nodes, W.shape))
    forest = Forest(parents, ids, range(nodes), W.shape, "one")
    assert len(forest.preorder().chunks) > 20
    for steps in (0.5, random_steps(W.shape)):
        expected = prox.forest_clip_(ROUTES["torch"](W), forest, 0.4, 0.05, steps)
        torch.testing.assert_close(prox.forest_clip_(W.clone(), forest, 0.4, 0.05, steps), expected, rtol=0, atol=1e-12)


@both
def test_weights_that_change_are_heeded(kind):
    forest, W = rows(), random_weights(SHAPE)
    before = PROX[kind](W.clone(), forest, 0.1, 0.0, 1.0)
    forest.weight.mul_(2)
    assert torch.equal(PROX[kind](W.clone(), forest, 0.05, 0.0, 1.0), before)


def subgradients(penalty, W):
    """cvxpy: every subgradient of the value at W, and its constraints."""
    forest, pairs = penalty.groups, []
    w = W.flatten().numpy()
    total, constraints = np.zeros(W.numel()), []
    for weight, m in zip(forest.weight.tolist(), members(forest), strict=True):
        reach = float(penalty.strength) * (1 - penalty.mix) * weight
        if m and (w[m] != 0).any():
            z = np.zeros(W.numel())
            z[m] = w[m] / np.linalg.norm(w[m])
            total = total + reach * z
        elif m:
            pairs.append((reach, m))
    for reach, m in pairs:
        z = cvxpy.Variable(len(m))
        place = np.zeros((W.numel(), len(m)))
        place[m, range(len(m))] = reach
        total = total + place @ z
        constraints.append(cvxpy.norm(z, 2) <= 1)
    if penalty.mix > 0:
        owned = (forest.ids >= 0).expand(SHAPE).flatten().numpy()
        cut = float(penalty.strength) * penalty.mix
        z = cvxpy.Variable(W.numel())
        total = total + cut * z
        constraints += [z[i] == np.sign(w[i]) if w[i] != 0 else cvxpy.abs(z[i]) <= 1 for i in range(len(w)) if owned[i]]
        constraints += [z[i] == 0 for i in range(len(w)) if not owned[i]]
    return total, constraints


@pytest.mark.parametrize("mix", [0.0, 0.4])
@pytest.mark.parametrize("layout", ["rows", "scattered", "an entry each"])
def test_gap_is_the_distance_where_some_live_and_some_are_dead(layout, mix):
    forest = FORESTS[layout]()
    penalty = TreeGroupLasso(forest, 0.22 if layout == "scattered" else 0.4, mix)
    W, grad = penalty.prox_(random_weights(SHAPE, 3), 1.0), random_weights(SHAPE, 4)
    assert 0 < int(forest.alive(W).sum()) < int((forest.size > 0).sum())
    total, constraints = subgradients(penalty, W)
    rest = grad.flatten().numpy() + total
    accuracy = {"tol_gap_abs": 3e-9, "tol_gap_rel": 3e-9, "tol_feas": 3e-9}
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(rest)), constraints).solve(solver="CLARABEL", **accuracy)
    least = torch.from_numpy(np.asarray(rest.value)).view(SHAPE)
    torch.testing.assert_close(penalty.gap(W, grad), forest.norms(least), rtol=0, atol=1e-4)


@both
@pytest.mark.parametrize("mix", [0.0, 0.4])
def test_gap_is_zero_where_the_prox_ends(kind, mix):
    for layout in ("rows", "scattered", "an entry each", "a chain"):
        forest = FORESTS[layout]()
        penalty = PENALTIES[kind](forest, 0.3, mix)
        for seed in range(5):
            W = random_weights(SHAPE, seed)
            free = (forest.ids < 0).expand(SHAPE)
            V = penalty.prox_(W.clone(), 0.8)
            pull = (V - W) / 0.8
            assert float(penalty.gap(V, pull).max()) < 1e-12
            assert float(penalty.gap(V, pull + 0.1 * ~free).max()) > 1e-3


@both
@pytest.mark.parametrize("mix", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("layout", ["rows", "scattered", "an entry each", "a chain"])
def test_critical_is_the_dual_norm(layout, mix, kind):
    """Its definition: the largest product with a W of penalty 1; and by bisection on the prox."""
    forest = FORESTS[layout]()
    penalty = PENALTIES[kind](forest, 1.0, mix)
    owned = (forest.ids >= 0).expand(SHAPE)
    for seed in range(3):
        grad = random_weights(SHAPE, seed) * 10.0 ** (seed - 1)
        critical = float(penalty.critical(grad))
        if seed == 0:
            V = cvxpy.Variable(24)
            inside = [omega(V, forest, 2 if kind == "l2" else "inf", mix) <= 1]
            inside += [V[i] == 0 for i in range(24) if not owned.flatten()[i]]
            most = cvxpy.Problem(cvxpy.Maximize(grad.flatten().numpy() @ V), inside).solve(solver="CLARABEL")
            assert critical == pytest.approx(most, rel=1e-6)
        low, high = 0.0, 1e4
        for _ in range(100):
            middle = penalty.strength = (low + high) / 2
            dead = bool((penalty.prox_(-grad, 1.0)[owned] == 0).all())
            low, high = (low, float(middle)) if dead else (float(middle), high)
        assert critical == pytest.approx(high, rel=1e-12)


def test_what_only_weightless_nodes_hold_has_no_say_in_the_critical_strength():
    grad = torch.tensor([[100.0, 0.0], [3.0, 4.0], [6.0, 8.0], [50.0, 0.0]], dtype=torch.float64)
    forest = by_parents((4, 2), [-1, 0, 1, -1], weights=torch.tensor([0.0, 2.0, 0.0, 0.0]))
    assert float(TreeGroupLasso(forest, 1.0).critical(grad)) == pytest.approx(math.sqrt(125) / 2)
    assert float(TreeGroupLassoMax(forest, 1.0).critical(grad)) == pytest.approx(21 / 2)
    assert float(TreeGroupLasso(by_parents((0, 2), []), 1.0).critical(torch.zeros(0, 2))) == 0


def test_survivors_are_entries_of_living_nodes():
    W = torch.zeros(SHAPE)
    W[0, 1] = 0.5  # node 0 lies below node 3 and above node 1
    living = torch.zeros(SHAPE, dtype=torch.bool)
    living[[0, 3]] = True
    assert torch.equal(TreeGroupLasso(rows(), 1.0).survivors(W), living)
    for penalty in (TreeGroupLasso(rows(), 1.0, 0.5), TreeGroupLassoMax(rows(), 1.0)):
        assert torch.equal(penalty.survivors(W), W != 0)
    for penalty in (TreeGroupLasso(scattered(), 1.0), TreeGroupLassoMax(scattered(), 1.0)):
        assert torch.equal(penalty.survivors(torch.zeros(SHAPE)), scattered().ids < 0)


@both
@pytest.mark.parametrize("layout", FORESTS)
def test_it_runs_on_the_meta_device(layout, kind):
    penalty = PENALTIES[kind](FORESTS[layout](), 0.3, 0.2)
    shape = penalty.groups.shape
    penalty = penalty.to("meta")
    for steps in (0.5, torch.tensor(0.5), torch.empty(shape, device="meta")):
        W = torch.nn.Parameter(torch.empty(shape, device="meta"))
        assert penalty.prox_(W, steps) is W
        assert penalty.value(W).shape == ()
    assert penalty.gap(W.detach(), W.detach()).shape == (len(penalty.groups),)


def test_what_is_not_exact_is_refused():
    forest = rows()
    counts = by_parents(SHAPE, [-1] * 8, counts=[1] * 7 + [2])
    with pytest.raises(UserError, match=r"TreeGroupLasso cannot take collapsed nodes .* choose TreeGroupLassoMax"):
        TreeGroupLasso(counts, 1.0)
    TreeGroupLasso(by_parents(SHAPE, [-1] * 8, counts=[1] * 8), 1.0)
    for penalty in PENALTIES.values():
        with pytest.raises(UserError, match="is a sum over a Forest, got a Partition"):
            penalty(by_row(SHAPE), 1.0)
        with pytest.raises(UserError, match="these groups are of the parameter"):
            penalty(forest, 1.0).prox_(torch.zeros(8, 4), 1.0)
        with pytest.raises(UserError, match="the mix of TreeGroupLasso"):
            penalty(forest, 1.0, 1.5)


@both
def test_autograd_knows_that_memory_changed(kind):
    penalty = PENALTIES[kind](rows(), 0.3)
    W = torch.randn(SHAPE, requires_grad=True)
    loss = W.square().sum()
    assert penalty.prox_(W, 1.0) is W
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    other = copy.deepcopy(penalty)
    other.load_state_dict(penalty.state_dict())
    assert torch.equal(other.prox_(W.detach().clone(), 1.0), penalty.prox_(W.detach().clone(), 1.0))
