"""Penalties over overlapping groups: exact, in turn, by consensus; against cvxpy, trees, bisection and each other."""

import copy
import math
import warnings

import cvxpy
import pytest
import torch

from structsparse import prox
from structsparse.base.errors import UserError
from structsparse.groups import Cover, Partition, by_parents, by_row_blocks, cover_entries, cover_rows
from structsparse.groups.orders import coarse_to_fine
from structsparse.penalties import ConsensusGroupLasso, OverlappingGroupLasso, SequentialGroupLasso, SparseGroupLasso

SHAPE = (8, 3)
ROUTES = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}


def scattered():
    ids = torch.tensor([0, -1, 1, 2, 2, 0] * 4).view(SHAPE)
    ids[0, 0] = 3
    atoms = Partition(ids, ["a", "b", "c", "one", "none"], SHAPE)
    return Cover(atoms, [0, 1, 1, 2, 3, 0, 4], [0, 2, 5, 7], weights="log2_size")


COVERS = {
    "rows": lambda: cover_rows(SHAPE, [[0, 1, 2], [2, 3, 4], [4, 5, 0], [6], [1, 6]]),  # row 7 is free
    "entries": lambda: cover_entries(SHAPE, [[0, 5, 9, 13], [1, 5, 9, 20], [2, 3, 4, 5], [0, 23]], weights="one"),
    "blocks": lambda: coarse_to_fine(SHAPE, list("pqrs"), [0, 2, 4, 7, 8], [("r", "p"), ("r", "q")]),
    "scattered": scattered,
}


@pytest.fixture(params=COVERS)
def cover(request):
    return COVERS[request.param]()


def draw(seed, shape=SHAPE, dtype=torch.float64):
    """Weights, of which some are small, and steps: every second time a number, else one per entry."""
    generator = torch.Generator().manual_seed(seed)
    W, spread, steps = (torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, (shape[0], 1), shape))
    return (W * 10 ** (0.7 * spread)).to(dtype), (0.7 if seed % 2 else steps.exp().to(dtype))


def sets(cover):
    places, owner = cover.pairs()
    return [places[owner == g].tolist() for g in range(len(cover))]


def objective(penalty, V, W, steps):
    return float(penalty.value(V) + ((V - W).square() / steps).sum() / 2)


def formula(cover, mix, V):
    """sum of norms and absolute values of the docstring, for cvxpy."""
    flat = cvxpy.vec(V, order="C")
    norms = [w * cvxpy.norm(flat[own]) for w, own in zip(cover.weight.tolist(), sets(cover), strict=True) if own]
    return (1 - mix) * sum(norms) + mix * cvxpy.norm1(flat[sorted({i for own in sets(cover) for i in own})])


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("mix", [0.0, 0.3])
def test_a_convex_solver_finds_the_same_minimum(cover, mix, route):
    penalty, dead = OverlappingGroupLasso(cover, 0.4, mix), 0
    for seed in range(4):
        W, steps = draw(seed)
        penalty.strength = (0.15, 0.8)[seed // 2] * float(penalty.critical(W / 0.7))
        scale = (1 / torch.as_tensor(steps, dtype=torch.float64).expand(SHAPE).sqrt()).numpy()
        V = cvxpy.Variable(SHAPE)
        least = cvxpy.sum_squares(cvxpy.multiply(scale, V - W.numpy())) / 2
        problem = cvxpy.Problem(cvxpy.Minimize(least + float(penalty.strength) * formula(cover, mix, V)))
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        found = penalty.prox_(ROUTES[route](W), steps)
        assert float(penalty.value(found)) == pytest.approx(
            float(penalty.strength) * formula(cover, mix, found.numpy()).value, rel=1e-12
        )
        ours = objective(penalty, found, W, steps)
        assert ours == pytest.approx(problem.value, rel=1e-7, abs=1e-7)
        theirs = torch.from_numpy(V.value)
        assert ours <= objective(penalty, theirs, W, steps) + 1e-12
        torch.testing.assert_close(found, theirs, rtol=0, atol=1e-4)  # the root of what its value is known to
        assert float(penalty.gap(found, (found - W) / steps).max()) < 1e-9
        dead += int((~cover.alive(found)).sum())
    assert dead > 0


@pytest.mark.parametrize("mix", [0.0, 0.4])
@pytest.mark.parametrize("kind", [OverlappingGroupLasso, SequentialGroupLasso])
def test_disjoint_groups_are_a_partition(kind, mix):
    blocks = by_row_blocks(SHAPE, list("abc"), [0, 3, 4, 8])
    cover = cover_rows(SHAPE, [[0, 1, 2], [3], [4, 5, 6, 7]])
    for seed in range(12):
        W, steps = draw(seed)
        one, other = SparseGroupLasso(blocks, 0.4, mix), kind(cover, 0.4, mix)
        torch.testing.assert_close(other.prox_(W.clone(), steps), one.prox_(W.clone(), steps), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other.value(W), one.value(W))
        torch.testing.assert_close(other.critical(W), one.critical(W), rtol=1e-9, atol=0)


def group_root(w, reach):
    """By bisection: the norm theta of  w * theta / (theta + reach)."""
    if all(r > 0 for r in reach) and math.fsum((a / r) ** 2 for a, r in zip(w, reach, strict=True)) <= 1:
        return 0.0
    low, high = 0.0, math.hypot(*w)
    for _ in range(200):
        middle = (low + high) / 2
        above = middle > 0 and math.fsum((a / (middle + r)) ** 2 for a, r in zip(w, reach, strict=True)) <= 1
        low, high = (low, middle) if above else (middle, high)
    return (low + high) / 2


def composed(cover, strength, W, steps, order):
    """One group after the other, a scalar at a time."""
    w, s = W.flatten().tolist(), torch.as_tensor(steps, dtype=torch.float64).expand(SHAPE).flatten().tolist()
    for g in order:
        own = sets(cover)[g]
        reach = [strength * float(cover.weight[g]) * s[i] for i in own]
        theta = group_root([w[i] for i in own], reach)
        for i, r in zip(own, reach, strict=True):
            w[i] = w[i] * theta / (theta + r) if theta > 0 else 0.0
    return torch.tensor(w, dtype=torch.float64).view(SHAPE)


@pytest.mark.parametrize("route", ROUTES)
def test_nested_groups_are_composed_from_leaf_to_root(route):
    tree = cover_rows(SHAPE, [[0, 1, 2, 3, 4], [0, 1, 2], [1, 2], [4], [5, 6], [6]])
    inwards = [5, 4, 3, 2, 1, 0]
    for seed in range(10):
        W, _ = draw(seed)  # with a step per entry nested groups are no composition
        expected = composed(tree, 0.3, W, 0.7, inwards)
        found = OverlappingGroupLasso(tree, 0.3).prox_(ROUTES[route](W), 0.7)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-11)
        assert torch.equal(found == 0, expected == 0)


def drawn_tree(seed, rows=200):
    """Every node of a binary tree over rows, the rows below it."""
    generator, nodes = torch.Generator().manual_seed(seed), [[row] for row in range(rows)]
    found = []
    while len(nodes) > 1:
        one, other = (nodes.pop(int(torch.randint(len(nodes), (), generator=generator))) for _ in range(2))
        nodes.append(one + other)
        found.append(nodes[-1])
    return found


def test_which_covers_are_nested(cover):
    def by_pairs(cover):
        members = [set(own) for own in sets(cover)]
        return all(not a & b or a <= b or b <= a for a in members for b in members)

    assert cover.nested == by_pairs(cover)
    for seed in range(4):
        tree = drawn_tree(seed, 12)
        assert cover_rows((12, 2), tree).nested
        for broken in ([*tree, [*tree[0], *tree[1][:1]]], [*tree[:-1], [0, 5], [5, 7]]):
            assert cover_rows((12, 2), broken).nested == by_pairs(cover_rows((12, 2), broken))


def test_the_critical_strength_of_a_tree_is_that_of_the_composition(monkeypatch):
    """By proxes of one round each, rough as they are: groups too small to matter one by one may matter together."""
    rounds, descend = [], prox.overlaps.kernels.descend
    monkeypatch.setattr(prox.overlaps.kernels, "descend", lambda *a: rounds.append(descend(*a)) or rounds[-1])
    for seed in range(3):
        groups = drawn_tree(seed)
        cover, (grad, _) = cover_rows((200, 1), groups), draw(seed, (200, 1))

        def norm_after(strength, grad=grad, groups=groups):
            left = grad.flatten().clone()
            for own in sorted(groups, key=len):
                norm = left[own].norm()
                left[own] *= (1 - strength * len(own) ** 0.5 / norm).clamp(min=0) if norm > 0 else 0.0
            return float(left.norm())

        low, high = 0.0, float(grad.norm())
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if norm_after(middle) == 0 else (middle, high)
        assert float(OverlappingGroupLasso(cover, 1.0).critical(grad)) == pytest.approx(high, rel=1e-9)
    assert {done for done, _ in rounds} == {1}


@pytest.mark.parametrize("route", ROUTES)
def test_in_turn_is_a_loop_over_the_families(cover, route):
    penalty = SequentialGroupLasso(cover, 0.2)
    listed = SequentialGroupLasso(cover.families(), 0.2)
    for seed in range(6):
        W, steps = draw(seed)
        expected = composed(penalty.groups, 0.2, W, steps, range(len(cover)))
        torch.testing.assert_close(penalty.prox_(ROUTES[route](W), steps), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(listed.prox_(ROUTES[route](W), steps), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(penalty.value(W), OverlappingGroupLasso(cover, 0.2).value(W))


def test_in_turn_is_not_the_prox_of_the_sum_where_groups_overlap():
    cover = cover_rows((3, 1), [[0, 1], [1, 2]], weights="one")
    W = torch.tensor([[3.0], [4.0], [1.0]], dtype=torch.float64)
    exact, turned = OverlappingGroupLasso(cover, 1.0), SequentialGroupLasso(cover, 1.0)
    V, Z = exact.prox_(W.clone(), 1.0), turned.prox_(W.clone(), 1.0)
    assert float((V - Z).norm() / V.norm()) > 0.005
    assert objective(exact, V, W, 1.0) < objective(exact, Z, W, 1.0) - 1e-5
    assert float(exact.gap(V, V - W).max()) < 1e-12 < 1e-3 < float(turned.gap(Z, Z - W).max())


@pytest.mark.parametrize("kind", [OverlappingGroupLasso, SequentialGroupLasso])
@pytest.mark.parametrize("mix", [0.0, 0.3])
def test_kernels_and_torch_agree_in_both_precisions(cover, kind, mix):
    penalty = kind(cover, 0.3, mix)
    for seed in range(6):
        for dtype, atol in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            W, steps = draw(seed, dtype=dtype)
            fast, slow = (penalty.prox_(route(W), steps) for route in ROUTES.values())
            assert fast.dtype == slow.dtype == dtype
            torch.testing.assert_close(fast, slow, rtol=0, atol=atol)
            if dtype == torch.float64:
                assert torch.equal(fast == 0, slow == 0)
            for V in (fast, slow):
                assert not V[V == 0].signbit().any()


def test_one_step_for_all_is_that_step_for_each_and_rows_may_have_their_own(cover):
    penalty = OverlappingGroupLasso(cover, 0.3, 0.2)
    for seed in range(4):
        W, _ = draw(seed)
        one = penalty.prox_(W.clone(), 0.6)
        torch.testing.assert_close(
            penalty.prox_(W.clone(), torch.full(SHAPE, 0.6, dtype=W.dtype)), one, rtol=1e-8, atol=1e-11
        )
        by_row = torch.rand(8, 1, dtype=torch.float64) + 0.1
        wide = penalty.prox_(W.clone(), by_row.expand(SHAPE).contiguous())
        for route in ROUTES.values():
            torch.testing.assert_close(penalty.prox_(route(W), by_row), wide, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("mix", [0.0, 0.4])
def test_gap_at_zero_is_what_the_prox_leaves(cover, mix):
    """Moreau: of -gradient the subdifferential at zero holds all but the prox."""
    penalty = OverlappingGroupLasso(cover, 0.3, mix)
    for seed in range(6):
        grad, _ = draw(seed)
        expected = cover.norms(penalty.prox_(-grad, 1.0))
        torch.testing.assert_close(
            penalty.gap(torch.zeros(SHAPE, dtype=torch.float64), grad), expected, rtol=1e-9, atol=1e-11
        )
        assert (expected > 0).any()


def test_gap_where_nothing_is_zero_is_the_gradient(cover):
    penalty = OverlappingGroupLasso(cover, 0.3, 0.4)
    W, grad = draw(0)[0].requires_grad_(), draw(1)[0]
    penalty.value(W).backward()
    torch.testing.assert_close(penalty.gap(W.detach(), grad), cover.norms(grad + W.grad))


@pytest.mark.parametrize("mix", [0.0, 0.4, 1.0])
def test_critical_is_where_the_prox_at_zero_dies(cover, mix):
    """Just above it; and just below it does not."""
    penalty, covered = OverlappingGroupLasso(cover, 1.0, mix), cover.covered().expand(SHAPE)
    for seed in range(4):
        grad, _ = draw(seed)
        critical = float(penalty.critical(grad))
        for share, dies in ((1 + 1e-5, True), (1 - 1e-5, False)):  # nearer to it the prox, not the dual norm, errs
            penalty.strength = share * critical
            assert bool((penalty.prox_(-grad, 1.0)[covered] == 0).all()) == dies


def test_survivors_are_the_entries_of_no_dead_group(cover):
    W = torch.ones(SHAPE, dtype=torch.float64)
    W.view(-1)[sets(cover)[1]] = 0
    dead = {i for own in sets(cover) if not W.view(-1)[own].any() for i in own}
    expected = torch.tensor([i not in dead for i in range(24)]).view(SHAPE)
    assert torch.equal(OverlappingGroupLasso(cover, 1.0).survivors(W), expected)
    inner = next(i for i in sets(cover)[0] if i not in dead)
    W.view(-1)[inner] = 0
    expected.view(-1)[inner] = False
    assert torch.equal(OverlappingGroupLasso(cover, 1.0, 0.5).survivors(W), expected)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", [OverlappingGroupLasso, SequentialGroupLasso])
def test_steps_of_zero_and_infinity_and_free_entries(cover, route, kind):
    covered = cover.covered().expand(SHAPE)
    W = draw(0)[0]
    steps = torch.ones(SHAPE, dtype=torch.float64)
    steps[0], steps[2], steps[5, 0] = 0.0, torch.inf, 1e6
    assert torch.equal(kind(cover, 0.0).prox_(ROUTES[route](W), steps), W)
    V = kind(cover, 0.2, 0.1).prox_(ROUTES[route](W), steps)
    assert V.isfinite().all()
    assert torch.equal(V[0], W[0])
    assert (V[2][covered[2]] == 0).all()
    for given in (steps, 0.5, math.inf):
        V = kind(cover, 0.2, 0.1).prox_(ROUTES[route](W), given)
        assert torch.equal(V[~covered], W[~covered])
    assert (V[covered] == 0).all()
    assert torch.equal(kind(cover, 0.2, 0.1).prox_(ROUTES[route](W), 0.0), W)


def test_what_is_not_a_number_does_not_become_a_zero(cover):
    W, steps = draw(0)
    W[2] = math.nan
    for route in ROUTES.values():
        for given in (1.0, steps):
            assert OverlappingGroupLasso(cover, 9.0, 0.1).prox_(route(W), given)[2].isnan().all()


def test_a_warm_start_changes_nothing_but_the_rounds(cover):
    cold, warm = OverlappingGroupLasso(cover, 0.3, 0.1), OverlappingGroupLasso(cover, 0.3, 0.1, warm=True)
    for seed in range(8):
        W, steps = draw(seed)
        warm.strength = cold.strength = 0.1 * (1 + seed % 5)
        for route in ROUTES.values():
            torch.testing.assert_close(warm.prox_(route(W), steps), cold.prox_(route(W), steps), rtol=1e-8, atol=1e-10)


def test_a_tolerance_is_kept():
    cover = cover_rows((60, 2), [list(range(i, i + 9)) for i in range(0, 52, 2)])
    W, steps = draw(3, (60, 2))[0], draw(4, (60, 2))[1]
    for given in (0.8, steps):
        exact = OverlappingGroupLasso(cover, 0.2).prox_(W.clone(), given)
        for tolerance in (1e-2, 1e-5):
            rough = OverlappingGroupLasso(cover, 0.2, tolerance=tolerance).prox_(W.clone(), given)
            assert ((rough - exact).square() / given).sum().sqrt() <= tolerance * (W.square() / given).sum().sqrt()
            assert not torch.equal(rough, exact)


@pytest.mark.parametrize("kind", [OverlappingGroupLasso, SequentialGroupLasso, ConsensusGroupLasso])
def test_it_works_in_place_leaves_no_graph_and_runs_on_meta(cover, kind):
    penalty = kind(cover, 0.3, 0.1)
    for given in (0.5, draw(0)[1]):
        leaf = draw(2)[0].requires_grad_()
        where, version = leaf.data_ptr(), leaf._version
        assert penalty.prox_(leaf, given) is leaf
        assert (leaf.data_ptr(), leaf.is_leaf, leaf.grad_fn) == (where, True, None)
        assert leaf._version > version
    penalty.value(leaf).backward()
    assert leaf.grad.isfinite().all()
    penalty = copy.deepcopy(penalty).to("meta")
    for given in (0.5, torch.empty(SHAPE, device="meta")):
        W = torch.empty(SHAPE, device="meta")
        assert penalty.prox_(W, given) is W
    assert penalty.value(W).shape == ()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("route", ROUTES)
def test_many_entries_with_a_step_each_are_no_harder(route):
    """Copies are never made; optimality is asked of the gap, with which the prox shares no formula but norms."""
    cover = cover_rows((1200, 3), [list(range(i, min(1200, i + 300))) for i in range(0, 1180, 12)])
    assert cover.copies > prox.overlaps.MANY
    W, steps = draw(4, (1200, 3))
    penalty = OverlappingGroupLasso(cover, 0.0)
    for strength in (0.05, 2.0):
        penalty.strength = strength
        V = penalty.prox_(ROUTES[route](W), steps)
        assert float(penalty.gap(V, (V - W) / steps).max()) < 1e-8 * float((W / steps).norm())
        assert bool(cover.alive(V).all()) == (strength == 0.05)
        assert V.any()


def test_what_is_not_reached_is_said_once(monkeypatch):
    monkeypatch.setattr(prox.overlaps, "ROUNDS", 2)
    monkeypatch.setattr(prox.overlaps, "FEW", 0)
    penalty, W = OverlappingGroupLasso(COVERS["rows"](), 0.3), draw(0)[0]
    with pytest.warns(RuntimeWarning, match=r"5 overlapping groups .* accurate only to .*, not to 1\.0e-13"):
        penalty.prox_(W.clone(), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penalty.prox_(W.clone(), 1.0)


# -- consensus


def least_squares(seed, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(40, 24, generator=generator, dtype=torch.float64) * spread
    truth = torch.where(torch.arange(24) < 9, torch.randn(24, generator=generator, dtype=torch.float64), 0.0)
    y = X @ truth + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
    return X, y


@pytest.mark.parametrize("mix", [0.0, 0.3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_consensus_ends_at_the_optimum(cover, mix, adaptive):
    """Which proximal gradient with the exact prox finds, and cvxpy."""
    X, y = least_squares(0)
    step = len(y) / float(torch.linalg.matrix_norm(X, 2) ** 2)
    exact = OverlappingGroupLasso(cover, 1.0, mix)
    gradient = -(X.T @ y).view(SHAPE) / len(y)
    exact.strength = 0.3 * float(exact.critical(gradient))
    best = torch.zeros(SHAPE, dtype=torch.float64)
    for _ in range(600):
        gradient = (X.T @ (X @ best.flatten() - y)).view(SHAPE) / len(y)
        best = exact.prox_(best - step * gradient, step)
    penalty = ConsensusGroupLasso(cover, float(exact.strength), mix, rho=2.0 if adaptive else 0.3, adaptive=adaptive)
    W, rho = torch.zeros(SHAPE, dtype=torch.float64), float(penalty.rho)
    for _ in range(300):
        for _ in range(6):
            gradient = (X.T @ (X @ W.flatten() - y)).view(SHAPE) / len(y)
            W = penalty.prox_(W - step * gradient, step)
        residuals = penalty.outer_update(W)
    assert max(residuals) < 1e-6
    torch.testing.assert_close(W, best, rtol=0, atol=1e-5)
    torch.testing.assert_close(penalty.value(W), exact.value(best), rtol=1e-5, atol=1e-9)
    assert float(penalty.rho) != rho or not adaptive
    assert torch.equal(penalty.survivors(W), exact.survivors(best))
    V = cvxpy.Variable(SHAPE)
    loss = cvxpy.sum_squares(X.numpy() @ cvxpy.vec(V, order="C") - y.numpy()) / (2 * len(y))
    problem = cvxpy.Problem(cvxpy.Minimize(loss + float(exact.strength) * formula(cover, mix, V)))
    least = problem.solve(solver="CLARABEL")
    ours = float((X @ best.flatten() - y).square().sum()) / (2 * len(y)) + float(exact.value(best))
    assert ours == pytest.approx(least, rel=1e-6)


def test_consensus_reaches_the_optimum_of_a_logistic_problem(cover):
    """Which cvxpy finds."""
    X, y = least_squares(3)
    sign = torch.where(y > 0, 1.0, -1.0).double()
    critical = float(OverlappingGroupLasso(cover, 1.0).critical(-(X.T @ sign).view(SHAPE) / (2 * len(y))))
    penalty = ConsensusGroupLasso(cover, 0.3 * critical, rho=0.3)
    V = cvxpy.Variable(SHAPE)
    margins = cvxpy.multiply(sign.numpy(), X.numpy() @ cvxpy.vec(V, order="C"))
    ridge = 0.005 * cvxpy.sum_squares(V)  # free entries would run away
    loss = cvxpy.sum(cvxpy.logistic(-margins)) / len(y) + ridge
    least = cvxpy.Problem(cvxpy.Minimize(loss + 0.3 * critical * formula(cover, 0.0, V))).solve(solver="CLARABEL")

    def objective_at(W):
        margins = sign * (X @ W.flatten())
        return torch.nn.functional.softplus(-margins).mean() + 0.005 * W.square().sum()

    step = 1 / (float(torch.linalg.matrix_norm(X, 2) ** 2) / (4 * len(y)) + 0.01)
    W = torch.zeros(SHAPE, dtype=torch.float64)
    for _ in range(300):
        for _ in range(6):
            slope = sign * torch.sigmoid(-sign * (X @ W.flatten()))
            gradient = -(X.T @ slope).view(SHAPE) / len(y) + 0.01 * W
            W = penalty.prox_(W - step * gradient, step)
        penalty.outer_update(W)
    assert float(objective_at(W) + penalty.value(W)) == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("route", ROUTES)
def test_the_pull_towards_the_copies_is_its_formula(cover, route):
    """rho / 2 * sum_g |V_g - v_g + u_g|^2 + l1 + |V - W|^2 / (2 * steps), by cvxpy."""
    penalty = ConsensusGroupLasso(cover, 0.4, mix=0.5, rho=0.7)
    for seed in range(3):
        W, steps = draw(seed)
        residuals = penalty.outer_update(ROUTES[route](W + seed))
        places, _ = cover.pairs()
        V = cvxpy.Variable(24)
        scale = torch.as_tensor(steps, dtype=torch.float64).expand(SHAPE).flatten().rsqrt().numpy()
        far = cvxpy.sum_squares(cvxpy.multiply(scale, V - W.flatten().numpy())) / 2
        apart = cvxpy.sum_squares(V[places.tolist()] - (penalty.copies - penalty.duals).numpy())
        l1 = cvxpy.norm1(V[sorted(set(places.tolist()))])
        cvxpy.Problem(cvxpy.Minimize(far + 0.35 * apart + 0.2 * l1)).solve(solver="CLARABEL", tol_gap_abs=1e-12)
        found = penalty.prox_(ROUTES[route](W), steps)
        torch.testing.assert_close(found.flatten(), torch.from_numpy(V.value), rtol=0, atol=1e-4)
        copied = (W + seed).flatten()[places]
        torch.testing.assert_close(residuals.primal, (copied - penalty.copies).norm())


@pytest.mark.parametrize("route", ROUTES)
def test_the_update_moves_copies_by_the_group_prox_and_keeps_their_sums(cover, route):
    penalty = ConsensusGroupLasso(cover, 0.4, rho=0.5)
    places, owner = cover.pairs()
    duals = torch.zeros(cover.copies, dtype=torch.float64)
    for seed in range(4):
        W, _ = draw(seed)
        before = penalty.copies.clone()
        residuals = penalty.outer_update(ROUTES[route](W))
        z = W.flatten()[places] + duals
        norms = torch.stack([z[owner == g].norm() for g in range(len(cover))])
        copies = z * (1 - 0.4 * cover.weight / 0.5 / norms).clamp(min=0)[owner]
        duals = z - copies
        torch.testing.assert_close(penalty.copies, copies)
        torch.testing.assert_close(penalty.duals, duals)
        moved = torch.zeros(24, dtype=torch.float64).index_add(0, places, copies - before)
        torch.testing.assert_close(residuals.dual, 0.5 * moved.norm())


def test_the_state_of_a_consensus_is_saved():
    one = ConsensusGroupLasso(COVERS["rows"](), 0.4, rho=5.0, adaptive=True)
    for seed in range(3):
        one.outer_update(draw(seed)[0])
    other = ConsensusGroupLasso(COVERS["rows"](), 0.1)
    other.load_state_dict(one.state_dict())
    W = draw(7)[0]
    assert torch.equal(other.prox_(W.clone(), 0.5), one.prox_(W.clone(), 0.5))
    assert float(other.rho) == float(one.rho)


def test_steps_of_zero_and_infinity_in_a_consensus(cover):
    penalty = ConsensusGroupLasso(cover, 0.4, 0.1)
    penalty.outer_update(draw(0)[0])
    W, covered = draw(1)[0], cover.covered().expand(SHAPE)
    near, end = penalty.prox_(W.clone(), 1e12), penalty.prox_(W.clone(), math.inf)
    torch.testing.assert_close(end, near, rtol=1e-6, atol=1e-6)
    assert torch.equal(end[~covered], W[~covered])
    assert torch.equal(penalty.prox_(W.clone(), 0.0), W)


WRONG = {
    "the mix of OverlappingGroupLasso is 2": lambda c: OverlappingGroupLasso(c, 1.0, 2),
    "the tolerance of OverlappingGroupLasso is -1": lambda c: OverlappingGroupLasso(c, 1.0, tolerance=-1),
    "the strength of SequentialGroupLasso is -1": lambda c: SequentialGroupLasso(c, -1),
    "the rho of ConsensusGroupLasso is 0": lambda c: ConsensusGroupLasso(c, 1.0, rho=0),
    "got a tensor (3, 3)": lambda c: OverlappingGroupLasso(c, 1.0).prox_(torch.zeros(3, 3), 1.0),
    "these groups are of the parameter (8, 3), got a tensor (8,)": lambda c: ConsensusGroupLasso(c, 1.0).outer_update(
        torch.zeros(8)
    ),
}


def test_a_partition_is_a_cover_and_a_forest_is_refused():
    blocks = by_row_blocks(SHAPE, ["a", "none", "b"], [0, 3, 3, 8])
    forest = by_parents(SHAPE, [-1, 0, 0, 1, 1, 2, 2, 3])
    W = draw(0)[0]
    for kind in (OverlappingGroupLasso, SequentialGroupLasso):
        torch.testing.assert_close(
            kind(blocks, 0.3).prox_(W.clone(), 0.7), SparseGroupLasso(blocks, 0.3, 0.0).prox_(W.clone(), 0.7)
        )
        for wrong, name in ((forest, "Forest"), (None, "NoneType"), ([], "list"), ([forest], "list")):
            with pytest.raises(UserError, match=f"{kind.__name__} has groups of type {name}, expected a Cover"):
                kind(wrong, 1.0)


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(message):
    with pytest.raises(UserError) as error:
        WRONG[message](COVERS["rows"]())
    assert message in str(error.value)
