"""Penalties that are not convex, against dense grids; rounds of reweighting against what they stand for."""

import math

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import by_row, by_row_blocks
from structsparse.penalties import L0, L1, GroupLasso, GroupLassoMax, GroupMCP, LogSum, Reweighting, SparseGroupLasso

# name -> how to make it for groups or None, and its height of a size at strength and weight 1
HEIGHTS = {
    "l0": (lambda s, g: L0(s, g), lambda t: (t > 0).double()),
    "log-sum": (lambda s, g: LogSum(s, 0.3, g), lambda t: 0.3 * torch.log(1 + t / 0.3)),
    "log-sum, gentle": (lambda s, g: LogSum(s, 5.0, g), lambda t: 5.0 * torch.log(1 + t / 5.0)),
    "mcp": (lambda s, g: GroupMCP(s, 0.8, g), lambda t: torch.where(t < 0.8, t - t * t / 1.6, 0.4)),
    "mcp, gentle": (lambda s, g: GroupMCP(s, 6.0, g), lambda t: torch.where(t < 6.0, t - t * t / 12, 3.0)),
}
SIZES = torch.linspace(0, 4, 41, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", HEIGHTS)
@pytest.mark.parametrize("strength", [0.01, 0.2, 0.79, 0.8, 0.81, 2.0])
def test_no_point_of_a_dense_grid_is_better(name, strength):
    """Of sizes from 0 to beyond the one that is to move, for many of those and many steps."""
    make, height = HEIGHTS[name]
    grid = torch.linspace(0, 5, 20_001, dtype=torch.float64)
    for step in (0.05, 1.0, 3.0):
        found = make(strength, None).prox_(SIZES.clone(), step)
        cost = strength * height(found) + (found - SIZES) ** 2 / (2 * step)
        for size, ours in zip(SIZES, cost, strict=True):
            theirs = strength * height(grid) + (grid - size) ** 2 / (2 * step)
            assert float(ours) <= float(theirs.min()) + 1e-12


@pytest.mark.parametrize("name", HEIGHTS)
def test_groups_move_along_themselves_as_an_entry_of_their_norm_does(name):
    make, _ = HEIGHTS[name]
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5], dtype=torch.float64)
    for seed in range(40):
        W, strength, step = normal(5, 3, seed=seed), 0.1 * 2.0 ** (seed % 5), 0.5 + (seed % 3)
        V = make(strength, by_row((5, 3), weights=weight)).prox_(W.clone(), step)
        for row, weighed, found in zip(W, weight.tolist(), V, strict=True):
            norm = row.norm()
            moved = make(strength * weighed, None).prox_(norm.clone().view(1), step)
            torch.testing.assert_close(found, row * moved / norm, rtol=1e-12, atol=1e-12)


def test_l0_of_groups_weighs_each_entry_by_its_step():
    for seed in range(60):
        W, steps = normal(4, 3, seed=seed), normal(4, 3, seed=seed + 1000).exp()
        steps[0, 0], steps[1] = 0.0, torch.inf
        found = L0(0.7, by_row((4, 3), weights="one")).prox_(W.clone(), steps)
        for row, step, v in zip(W.tolist(), steps.tolist(), found, strict=True):
            cost = sum(w * w / (2 * s) if s > 0 else math.inf for w, s in zip(row, step, strict=True))
            assert v.tolist() == (row if cost > 0.7 else [0.0, 0.0, 0.0])


@pytest.mark.parametrize("name", HEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_of_zero_and_infinity(name, dtype):
    penalty = HEIGHTS[name][0](0.5, None)
    W, steps = normal(6, 3).to(dtype), torch.ones(6, 3, dtype=dtype)
    steps[0], steps[1] = 0.0, torch.inf
    V = penalty.prox_(W.clone(), steps)
    assert torch.equal(V[0], W[0])
    assert (V[1] == 0).all()
    assert V.isfinite().all()
    penalty.strength = 0.0
    assert torch.equal(penalty.prox_(W.clone(), steps), W)
    tiny = torch.full((2, 2), 1e-30, dtype=dtype)
    assert torch.equal(penalty.prox_(tiny.clone(), 1.0), tiny)
    W[2, 1] = math.nan
    penalty.strength = 9.0
    assert penalty.prox_(W, 1.0)[2, 1].isnan()


def test_log_sum_and_mcp_become_the_lasso():
    groups = by_row((6, 3))
    for seed in range(20):
        W = normal(6, 3, seed=seed)
        lasso, grouped = L1(0.3).prox_(W.clone(), 0.7), GroupLasso(groups, 0.3).prox_(W.clone(), 0.7)
        for penalty, expected in (
            (LogSum(0.3, 1e9), lasso),
            (GroupMCP(0.3, 1e9), lasso),
            (LogSum(0.3, 1e9, groups), grouped),
            (GroupMCP(0.3, 1e9, groups), grouped),
        ):
            torch.testing.assert_close(penalty.prox_(W.clone(), 0.7), expected, rtol=1e-6, atol=1e-7)


def test_log_sum_is_as_exact_where_its_jump_vanishes():
    """At strength * step = epsilon = size the two roots and zero meet, and float32 has few digits to tell them by."""
    W = 1 + torch.linspace(-1e-3, 1e-2, 50)
    found = LogSum(1.0, 1.0).prox_(W.clone(), 1.0)
    exact = LogSum(1.0, 1.0).prox_(W.double(), 1.0)
    torch.testing.assert_close(found.double(), exact, rtol=2e-4, atol=1e-6)
    assert torch.equal(found == 0, exact == 0)


def test_what_they_cannot_do_is_refused():
    groups = by_row((2, 2))
    for penalty in (LogSum(1.0, 0.1, groups), GroupMCP(1.0, 2.0, groups)):
        with pytest.raises(UserError, match=r"over groups takes one step for all entries.*use Reweighting"):
            penalty.prox_(torch.zeros(2, 2), torch.ones(2, 2))
    for epsilon in (0.0, -1.0, math.nan, "small"):
        with pytest.raises(UserError, match=r"the epsilon of LogSum is .*, expected a finite number"):
            LogSum(1.0, epsilon)
        with pytest.raises(UserError, match=r"the reach of GroupMCP is .*, expected a finite number"):
            GroupMCP(1.0, epsilon)
        with pytest.raises(UserError, match="the growth of Reweighting is"):
            Reweighting(GroupLasso(groups, 1.0), growth=epsilon)
    with pytest.raises(UserError, match=r"reweighting takes .*group lasso.*, got L1"):
        Reweighting(L1(1.0))


def descend(penalty, features, targets, W, rounds=400):
    """Proximal gradient on a least squares problem, which never raises the objective."""
    step = 1 / float(torch.linalg.matrix_norm(features, 2) ** 2)
    for _ in range(rounds):
        W = penalty.prox_(W - step * features.T @ (features @ W - targets), step)
    return W


@pytest.mark.parametrize("make", [lambda g: GroupLasso(g, 3.0), lambda g: SparseGroupLasso(g, 3.0, 0.2)])
def test_rounds_of_reweighting_lower_the_log_sum(make):
    """Majorise and minimise: loss + log-sum falls with each round, and ends where its own prox stays."""
    names, offsets = [str(k) for k in range(6)], [0, 2, 4, 6, 9, 10, 12]
    features, truth = normal(30, 12, seed=1), normal(12, 2, seed=2)
    truth[4:] = 0
    targets = features @ truth + 0.5 * normal(30, 2, seed=3)
    penalty = make(by_row_blocks((12, 2), names, offsets))
    group_strength = float(penalty.strength) * (1 - penalty.mix)
    whole = LogSum(group_strength, 0.2, by_row_blocks((12, 2), names, offsets))
    entries = L1(float(penalty.strength) * penalty.mix)
    reweighting = Reweighting(penalty, epsilon=0.2)
    before, history = penalty.groups.weight.clone(), []
    W = torch.zeros(12, 2, dtype=torch.float64)
    for number in range(1, 9):
        W = descend(penalty, features, targets, W)
        loss = (features @ W - targets).square().sum() / 2
        history.append(float(loss + whole.value(W) + entries.value(W)))
        round = reweighting.update(W)
        expected = before * 0.2 / (0.2 + penalty.groups.norms(W))
        torch.testing.assert_close(penalty.groups.weight, expected)
        assert (round.number, round.groups, round.scale) == (number, 6, 0.2)
        assert round.alive == int(penalty.groups.alive(W).sum())
    assert all(later <= earlier + 1e-9 for earlier, later in zip(history[:-1], history[1:], strict=True))
    assert history[-1] < history[0] - 0.1
    if penalty.mix == 0:
        grad = features.T @ (features @ W - targets)
        assert float(whole.gap(W, grad).max()) < 1e-2 * float(grad.norm() + 1)


def test_a_median_needs_no_scale_and_the_dead_stay_dead():
    groups = by_row((4, 2), weights=torch.tensor([1.0, 2.0, 4.0, 1.0]))
    penalty = GroupLasso(groups, 0.5)
    reweighting = Reweighting(penalty, growth=1.5)
    W = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    said = reweighting.update(W)
    expected = 1.5 * torch.tensor([1 * 2 / 5, 2 * 2 / 1, 1 * 2 / 2], dtype=torch.float64)
    torch.testing.assert_close(groups.weight[[0, 1, 3]], expected)
    assert (said.alive, said.scale, said.lightest, said.heaviest) == (3, 2.0, 0.4, 2.0)
    assert "round 1: 3 of 4 groups alive" in str(said)
    assert float(penalty.value(W)) == pytest.approx(0.5 * float((expected * torch.tensor([5.0, 1.0, 2.0])).sum()))
    for steps in (0.1, torch.full((4, 2), 0.1)):
        for dtype in (torch.float32, torch.float64):
            revived = penalty.prox_(torch.full((4, 2), 100.0, dtype=dtype), steps)
            assert groups.alive(revived).tolist() == [True, True, False, True]
    said = reweighting.update(W * torch.tensor([[1.0], [0.0], [1.0], [1.0]]))
    assert (said.number, said.alive, said.scale) == (2, 2, 2.0)
    torch.testing.assert_close(groups.weight[[0, 3]], 1.5**2 * torch.tensor([2 / 5, 1.0], dtype=torch.float64))
    reweighting.update(torch.zeros(4, 2))
    assert penalty.value(torch.zeros(4, 2)) == 0


def test_reweighting_goes_on_after_a_checkpoint_and_knows_each_norm():
    W = normal(4, 2)
    outcomes = []
    for saved in (False, True):
        penalty = GroupLassoMax(by_row((4, 2)), 0.5)
        reweighting = Reweighting(penalty, epsilon=0.1, growth=1.2)
        reweighting.update(W)
        if saved:
            state, weights = reweighting.state_dict(), penalty.state_dict()
            penalty = GroupLassoMax(by_row((4, 2)), 0.5)
            penalty.load_state_dict(weights)
            reweighting = Reweighting(penalty, epsilon=0.1, growth=1.2)
            reweighting.load_state_dict(state)
        reweighting.update(2 * W)
        outcomes.append(penalty.groups.weight)
    assert torch.equal(*outcomes)
    expected = 1.2**2 * math.sqrt(2) * 0.1 / (0.1 + 2 * W.abs().amax(1))
    torch.testing.assert_close(outcomes[0], expected)
