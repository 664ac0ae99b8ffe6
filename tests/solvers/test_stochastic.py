"""Stochastic solvers: their first steps against plain loops, their rates of convergence."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import by_row_blocks
from structsparse.penalties import L1, GroupLasso
from structsparse.solvers.base import solver_of
from structsparse.solvers.dual_averaging import RDA, AdagradRDA
from structsparse.solvers.fista import AcceleratedSGD
from structsparse.solvers.mira import MIRA
from structsparse.weights.bags import bag_sum
from structsparse.weights.notes import notes_of

ROWS, LABELS, STRENGTH = 5, 3, 0.05
FEATURES = 12


def soft(x, cut):
    return math.copysign(max(abs(x) - cut, 0.0), x)


def gradients(count, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(ROWS, LABELS)) for _ in range(count)]


def stepped(optimizer, w, gradient):
    """One step with this gradient, then the prox of L1."""

    def closure():
        optimizer.zero_grad()
        (w * torch.as_tensor(gradient)).sum().backward()
        return torch.tensor(1.0)

    optimizer.step(closure)
    L1(STRENGTH).prox_(w.detach(), solver_of(optimizer).effective_step(optimizer.param_groups[0], w))
    return w.detach().numpy()


# --- dual averaging


@pytest.mark.parametrize("start", [0.0, 0.3])
@pytest.mark.parametrize("kind", [RDA, AdagradRDA])
def test_dual_averaging_is_that_of_a_plain_loop(kind, start):
    w = torch.nn.Parameter(torch.full((ROWS, LABELS), start, dtype=torch.float64))
    optimizer, lr, delta = kind([w], lr=0.7), 0.7, 0.1
    total, squares = np.zeros((ROWS, LABELS)), np.zeros((ROWS, LABELS))
    for t, gradient in enumerate(gradients(12), start=1):
        found, expected = stepped(optimizer, w, gradient), np.zeros((ROWS, LABELS))
        for i in np.ndindex(ROWS, LABELS):
            total[i] += gradient[i]
            squares[i] += gradient[i] ** 2
            step = lr * math.sqrt(t) if kind is RDA else lr * t / (delta + math.sqrt(squares[i]))
            expected[i] = soft(start - step * total[i] / t, step * STRENGTH)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    assert (found == 0).any()
    assert (found != 0).any()


def random_bags(seed):
    """Bags of rows with repeats within and between bags, and weights for their sums [bags, labels]."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS - 1, (9,), generator=draw, dtype=torch.int32)  # the last row is never touched
    ids = torch.cat([part.sort().values for part in ids.split([2, 4, 3])])  # the rows of a bag ascend
    return ids, torch.tensor([0, 2, 2, 6, 9]), torch.randn(4, LABELS, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("kind", [RDA, AdagradRDA, MIRA])
def test_a_factored_gradient_makes_the_same_step_as_a_dense_one(kind, passes):
    found = []
    for formed in (True, False):
        w = torch.nn.Parameter(torch.zeros(ROWS, LABELS, dtype=torch.float64))
        optimizer = kind([w])
        for t in range(4):

            def closure(w=w, optimizer=optimizer, t=t, formed=formed):
                optimizer.zero_grad()
                notes_of(w).pending = None if formed else []
                for k in range(passes):
                    ids, offsets, pull = random_bags(10 * t + k)
                    loss = (bag_sum(w, ids, offsets) * pull).sum()
                    loss.backward()
                assert (w.grad is not None) == formed
                notes_of(w).pending = notes_of(w).pending or []
                return loss.detach() + 30.0

            optimizer.step(closure)
        found.append(w.detach().clone())
    assert (found[0][:-1] != 0).all()
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_a_held_parameter_rests_until_it_is_placed():
    w, free = (torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2))
    optimizer = RDA([w, free], lr=1.0)
    optimizer.hold([w])
    for _ in range(4):
        w.grad = free.grad = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
        optimizer.step()
    assert (w == 0).all()
    optimizer.place_(optimizer.param_groups[0], w)
    assert torch.equal(w, free)
    torch.testing.assert_close(w.detach(), torch.tensor([-2.0, 4.0, 0.0], dtype=torch.float64))
    optimizer.hold([])
    optimizer.step()
    assert torch.equal(w, free)
    assert float(w.detach()[0]) == pytest.approx(-math.sqrt(5))


# --- passive-aggressive


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("formed", [True, False])
def test_after_an_uncapped_step_on_one_item_its_hinge_is_zero(formed, seed):
    """The hinge 1 + score(wrong) - score(right) of two labels is linear where it is positive."""
    w = torch.nn.Parameter(
        torch.randn(ROWS, LABELS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    )
    optimizer = MIRA([w], cap=math.inf)
    ids, right, wrong = torch.tensor([0, 3, 3], dtype=torch.int32), 0, 2

    def margin():
        scores = w[ids.long()].sum(0) if formed else bag_sum(w, ids, torch.tensor([0, 3]))[0]
        return 4.0 + scores[wrong] - scores[right]

    def closure():
        optimizer.zero_grad()
        loss = margin().clamp(min=0)
        loss.backward()
        return loss

    assert float(margin().detach()) > 0
    told = optimizer.step(closure)
    assert float(told.detach()) > 0
    assert float(margin().detach()) == pytest.approx(0.0, abs=1e-12)
    before = w.detach().clone()
    with torch.no_grad():
        w[0, right] += 1.0  # now the loss is zero, and so is the gradient
    optimizer.step(closure)
    assert torch.equal(w.detach()[1:], before[1:])
    assert float(optimizer.rate(optimizer.param_groups[0])) == 0.0


@pytest.mark.parametrize(("cap", "lr"), [(math.inf, 1.0), (0.1, 1.0), (0.1, 0.5)])
def test_passive_aggressive_is_that_of_a_plain_loop(cap, lr):
    """Two parameters: the gradient's norm is that of both."""
    draw = np.random.default_rng(1)
    X, y = draw.normal(size=(20, ROWS)), draw.choice([-1.0, 1.0], size=20)
    w, b = (torch.nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (ROWS, 1))
    optimizer = MIRA([{"params": [w]}, {"params": [b]}], cap=cap, lr=lr)
    expected, intercept = np.zeros(ROWS), 0.0
    for x, label in zip(X, y, strict=True):

        def closure(x=x, label=label):
            optimizer.zero_grad()
            loss = (1 - label * (torch.as_tensor(x) @ w + b)).clamp(min=0).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        loss = max(0.0, 1 - label * (sum(e * f for e, f in zip(expected, x, strict=True)) + intercept))
        step = lr * min(cap, loss / (sum(f * f for f in x) + 1)) if loss > 0 else 0.0
        expected += step * label * x
        intercept += step * label
        for group in optimizer.param_groups:
            assert float(solver_of(optimizer).effective_step(group, w)) == pytest.approx(step, rel=1e-12)
        np.testing.assert_allclose(w.detach().numpy(), expected, rtol=0, atol=1e-13)
        assert float(b.detach()) == pytest.approx(intercept, abs=1e-13)


# --- the accelerated method


@pytest.mark.parametrize(("noise", "convexity"), [(0.3, 0.0), (0.0, 0.2)])
def test_the_accelerated_method_is_that_of_a_plain_loop(noise, convexity):
    """Gradients of 1/2 (x - c_t)^2 in each entry, which depend on x."""
    lr, centres = 0.5, gradients(10)
    w = torch.nn.Parameter(torch.zeros(ROWS, LABELS, dtype=torch.float64))
    optimizer = AcceleratedSGD([w], lr=lr, noise=noise, convexity=convexity)
    y, z = np.zeros((ROWS, LABELS)), np.zeros((ROWS, LABELS))
    product = 1.0
    for t, centre in enumerate(centres):

        def closure(centre=centre):
            optimizer.zero_grad()
            loss = ((w - torch.as_tensor(centre)) ** 2).sum() / 2
            loss.backward()
            return loss

        optimizer.step(closure)
        L1(STRENGTH).prox_(w.detach(), solver_of(optimizer).effective_step(optimizer.param_groups[0], w))
        if convexity == 0:
            a, L = 2 / (t + 2), noise * (t + 1) ** 1.5 + 1 / lr
        else:
            L = 1 / lr + convexity / product
            a = 1.0 if t == 0 else max(np.roots([1.0, product, -product]))
            product *= 1.0 if t == 0 else 1 - a
        for i in np.ndindex(ROWS, LABELS):
            x = (1 - a) * y[i] + a * z[i]
            y[i] = soft(x - (x - centre[i]) / L, STRENGTH / L)
            z[i] = z[i] - (L * (x - y[i]) + convexity * (z[i] - x)) / (L * a + convexity)
        np.testing.assert_allclose(w.detach().numpy(), y, rtol=0, atol=1e-12)


# --- rates


BATCH, EARLY, LATE = 4, 40, 1000  # items in a step; steps
RATES = {
    "rda": lambda params: RDA(params, lr=0.1),
    "adagrad rda": lambda params: AdagradRDA(params, lr=0.3),
    "accelerated": lambda params: AcceleratedSGD(params, lr=0.2, noise=1.0),
    "accelerated, convex": lambda params: AcceleratedSGD(params, lr=0.2, convexity=1.0),
}


@cache
def suboptimality(name, seed):
    """Suboptimality early and late, and the last weights, on a lasso with mini-batches.

    Features are independent and standard, the noise is one half: over all items there are, the objective is
    1/2 ||w - truth||^2 + strength * ||w||_1 and a constant, and its optimum entry by entry is that of soft."""
    draw = np.random.default_rng(seed)
    truth = torch.zeros(FEATURES, dtype=torch.float64)
    truth[:3] = torch.tensor([1.0, -1.0, 0.5])
    w, penalty = torch.nn.Parameter(torch.zeros(FEATURES, dtype=torch.float64)), L1(0.1)
    optimizer, found = RATES[name]([w]), []

    def objective(w):
        return float((w - truth).square().sum() / 2 + 0.1 * w.abs().sum())

    best = objective(truth.sign() * (truth.abs() - 0.1).clamp(min=0))
    for step in range(1, LATE + 1):
        x = torch.from_numpy(draw.normal(size=(BATCH, FEATURES)))
        y = x @ truth + 0.5 * torch.from_numpy(draw.normal(size=BATCH))

        def closure(x=x, y=y):
            error = x @ w.detach() - y
            w.grad = x.T @ error / BATCH
            return error.square().mean() / 2

        optimizer.step(closure)
        penalty.prox_(w.detach(), solver_of(optimizer).effective_step(optimizer.param_groups[0], w))
        if step in (EARLY, LATE):
            found.append(objective(w.detach()) - best)
    return *found, w.detach()


@pytest.mark.parametrize("name", RATES)
def test_the_suboptimality_falls_as_one_over_the_root_of_the_steps(name):
    """After 25 times as many steps at most a fifth is left, on average over seeds."""
    early, late, _ = zip(*(suboptimality(name, seed) for seed in range(4)), strict=True)
    assert min(early + late) >= 0
    assert np.mean(late) < np.mean(early) / 5
    assert max(late) < 0.05


@pytest.mark.parametrize("name", ["rda", "adagrad rda"])
def test_dual_averaging_finds_the_zeros(name):
    for seed in range(4):
        *_, w = suboptimality(name, seed)
        assert (w[:3] != 0).all()
        assert int((w[3:] == 0).sum()) >= 8  # of nine


# --- state and devices

KINDS = {"rda": RDA, "adagrad rda": AdagradRDA, "mira": MIRA, "accelerated": AcceleratedSGD}
KINDS |= {"accelerated, convex": lambda params: AcceleratedSGD(params, convexity=0.1)}


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_state_continues_to_the_same_bits(name, tmp_path):
    made, weights = [], []
    for _ in range(2):
        weights.append(torch.nn.Parameter(torch.full((ROWS, LABELS), 0.2)))
        made.append(KINDS[name]([weights[-1]]))
    given = [torch.from_numpy(gradient).float() for gradient in gradients(10)]
    for gradient in given[:5]:
        stepped(made[0], weights[0], gradient)
    torch.save([made[0].state_dict(), weights[0].detach()], tmp_path / "state")
    state, saved = torch.load(tmp_path / "state", weights_only=True)
    weights[1].data.copy_(saved)
    made[1].load_state_dict(state)
    for gradient in given[5:]:
        for optimizer, w in zip(made, weights, strict=True):
            stepped(optimizer, w, gradient)
        assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("penalty", [L1(0.1), GroupLasso(by_row_blocks((ROWS, LABELS), ["a", "b"], [0, 2, ROWS]), 0.1)])
@pytest.mark.parametrize("name", KINDS)
def test_steps_need_no_synchronisation_with_the_device(name, penalty):
    w, b = (torch.nn.Parameter(torch.zeros(ROWS, LABELS, device="meta")) for _ in range(2))
    optimizer = KINDS[name]([{"params": [w]}, {"params": [b]}])
    ids, offsets, pull = (part.to("meta") for part in random_bags(0))

    def closure():
        optimizer.zero_grad()
        loss = (bag_sum(w, ids, offsets) * pull.float()).sum() + (b * b).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        effective = solver_of(optimizer).effective_step(optimizer.param_groups[0], w)
        assert penalty.to("meta").prox_(w, effective) is w


def test_without_a_gradient_mira_makes_no_step():
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = MIRA([w])
    assert solver_of(optimizer).effective_step(optimizer.param_groups[0], w) == 0.0
    optimizer.step(lambda: torch.tensor(1.0))
    assert torch.equal(w.detach(), torch.ones(2))
    with pytest.raises(UserError, match="call step"):
        optimizer.step()
