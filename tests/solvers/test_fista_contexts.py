"""Tree-structured proxes in a diagonal metric and solvers of language models, against optimality conditions."""

from functools import cache

import numpy as np
import pytest
import torch

from structsparse import prox
from structsparse.corpora.text import encode
from structsparse.groups import by_parents
from structsparse.penalties import L1, ElasticNet, Nonnegative, Ridged, SquaredL2, TreeGroupLasso, TreeGroupLassoMax
from structsparse.solvers.fista import FISTA, AcceleratedSGD
from structsparse.solvers.fista_passes import AcceleratedParameter
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.groups import ContextLayout, by_suffix
from structsparse.tasks.lm.model import NgramModel
from structsparse.training import certificate
from tests.support.forests import FORESTS, random_parents, random_steps, random_weights

STRIDED = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}
routes = pytest.mark.parametrize("route", STRIDED)

# --- Euclidean norms of subtrees with a step for each entry


@routes
@pytest.mark.parametrize("tree", ["shallow", "deep", "chains"])
def test_the_prox_of_subtrees_is_stationary_for_any_spread_of_steps(tree, route):
    parents = {
        "shallow": lambda seed: random_parents(300, seed, trees=9),
        "deep": lambda seed: random_parents(300, seed, reach=3),
        "chains": lambda seed: random_parents(300, seed, reach=2, trees=4),
    }[tree]
    living = 0
    for seed in range(6 if route == "torch" else 40):
        weights = random_steps((300,), seed + 7).masked_fill(random_weights((300,), seed) > 1.2, 0.0)
        forest = by_parents((300,), parents(seed), weights=weights)
        W, steps = random_weights((300,), seed), random_steps((300,), seed, spread=1 + seed % 5)
        penalty = TreeGroupLasso(forest, 0.02 * 1.5 ** (seed % 12))
        V = penalty.prox_(STRIDED[route](W), steps)
        pull = (V - W) / steps
        assert float(penalty.gap(V, pull).max()) < 1e-9 * (1 + float(pull.abs().max()))
        living += int((V != 0).sum())
    assert living > 300


def test_the_dead_subtrees_do_not_depend_on_the_metric():
    """At zero the metric does not matter: the zeros are those of the gradient under steps of 1."""
    forest = by_parents((200,), random_parents(200, 3, trees=5), weights="one")
    for seed in range(20):
        pull, strength = random_weights((200,), seed), 0.4 * 1.2 ** (seed % 7)
        steps = random_steps((200,), seed, spread=3)
        alike = prox.forest_shrink_(pull.clone(), forest, strength, 0.0, 1.0)
        found = prox.forest_shrink_(pull * steps, forest, strength, 0.0, steps)
        assert 0 < int((found == 0).sum()) < 200
        assert torch.equal(found == 0, alike == 0)


@pytest.mark.parametrize("layout", FORESTS)
def test_kernel_and_torch_agree_and_steps_of_zero_move_nothing(layout):
    forest = FORESTS[layout]()
    for seed in range(20):
        W, steps = random_weights(forest.shape, seed), random_steps(forest.shape, seed, spread=1.5)
        held = random_weights(forest.shape, seed + 50) > 1
        steps = torch.where(held, 0.0, steps) if seed % 2 else steps
        rest = 0.03 * 1.4 ** (seed % 13), 0.1 * (seed % 3), steps
        found = [prox.forest_shrink_(route(W), forest, *rest) for route in STRIDED.values()]
        torch.testing.assert_close(*found, rtol=0, atol=1e-11)
        if seed % 2:
            assert torch.equal(found[0][held], W[held])
        single = prox.forest_shrink_(W.float(), forest, *rest[:2], steps.float())
        torch.testing.assert_close(single.double(), found[0], rtol=1e-4, atol=1e-5)


@routes
def test_an_inexact_prox_keeps_its_accuracy(route):
    forest = by_parents((400,), random_parents(400, 5, trees=8), weights="one")
    W, steps, worst = random_weights((400,), 1), random_steps((400,), 1, spread=2), []
    exact = prox.forest_shrink_(W.clone(), forest, 0.3, 0.0, steps)
    for accuracy in (1.0, 1e-2, 1e-4, 1e-8):
        found = prox.forest_shrink_(STRIDED[route](W), forest, 0.3, 0.0, steps, accuracy)
        assert torch.equal(found == 0, exact == 0)
        worst.append(float((found - exact).norm() / exact.norm()))
    assert worst[0] > worst[1] > worst[2] >= worst[3]
    assert worst[0] > 1e-4
    assert worst[3] < 1e-7


# --- one step of the accelerated method


def test_each_pass_of_a_step_is_that_of_torch():
    shape, draw = (1 << 19,), iter(range(100))
    for dtype, accuracy in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        x, before, gradient = (random_weights(shape, next(draw), dtype) for _ in range(3))
        step, told = random_steps(shape, next(draw)).to(dtype), []
        for route in STRIDED.values():
            parameter = torch.nn.Parameter(route(x))
            move = AcceleratedParameter(parameter)
            with torch.no_grad():
                move.ahead_(before, 0.7)
                assert torch.equal(move.here, x)
                assert torch.equal(move.point, parameter)
                point = parameter.detach().clone()
                taken = move.down_(gradient, step, 0.3)
                sums = move.sums(gradient, step)
                lower = parameter.detach().clone()
                move.stay_()
            assert torch.equal(parameter, x)
            assert torch.equal(move.point, x)
            told.append((point, taken.clone(), lower, torch.tensor(sums, dtype=torch.float64) / shape[0]))
        for one, other in zip(*told, strict=True):
            torch.testing.assert_close(one, other, rtol=accuracy, atol=accuracy)
        away, back = lower.double() - point.double(), lower.double() - x.double()
        expected = [(away**2 / step).mean(), (away * gradient).mean(), (-away / step * back).mean()]
        torch.testing.assert_close(told[0][3], torch.stack(expected), rtol=10 * accuracy, atol=accuracy)


# --- language models


@cache
def contexts(order=4, words="abcde", lines=60) -> ContextTree:
    draw = np.random.default_rng(0)
    chances = np.arange(len(words), 0, -1) / sum(range(len(words) + 1))
    texts = [[words[k] for k in draw.choice(len(words), draw.integers(1, 9), p=chances)] for _ in range(lines)]
    return ContextTree.build(encode(texts), order)


def collapsed():
    return contexts().collapse()[0]


def groups(tree, weights="one"):
    return by_suffix((tree.entries,), ContextLayout(tree), weights)


def depth_weights(tree):
    return torch.from_numpy(0.9**tree.entry_depth)


COUNTS = 0.7  # strength of a penalty, in targets
PENALTIES = {
    "l1": lambda tree, s: L1(s),
    "squared l2": lambda tree, s: SquaredL2(s),
    "elastic net": lambda tree, s: ElasticNet(s, 0.8),
    "tree l2": lambda tree, s: TreeGroupLasso(groups(tree), s),
    "tree l2, weights": lambda tree, s: TreeGroupLasso(groups(tree, depth_weights(tree)), s),
    "tree linf": lambda tree, s: TreeGroupLassoMax(groups(tree), s),
    "tree linf, weights": lambda tree, s: TreeGroupLassoMax(groups(tree, depth_weights(tree)), s),
    "tree linf, collapsed": lambda tree, s: TreeGroupLassoMax(groups(tree), s),
}


class Problem:
    def __init__(self, name, ridge=0.0, nonnegative=True, heeds=True, dtype=torch.float64, alpha=0.95):
        tree = collapsed() if "collapsed" in name else contexts()
        self.model = NgramModel(tree, alpha).to(dtype)
        with torch.no_grad():
            self.model.table.copy_(self.model.start())
        penalty = PENALTIES[name](tree, COUNTS / self.model.targets)
        penalty = Ridged(penalty, ridge / self.model.targets) if ridge else penalty
        self.penalty = Nonnegative(penalty) if nonnegative else penalty
        self.optimizer = FISTA([self.model.table], tolerance=0.0)
        self.optimizer.attach({self.model.table: self.penalty})
        self.heeds, self.losses, self.gradients = heeds, 0, 0

    def closure(self):
        self.optimizer.zero_grad()
        loss = self.model.surprise() / self.model.targets
        self.losses += 1
        if self.optimizer.slopes or not self.heeds:
            loss.backward()
            self.gradients += 1
        return loss.detach()

    def run(self, most=3000):
        for _ in range(most):
            self.optimizer.step(self.closure)
            if self.optimizer.converged:
                break
        return self

    def certified(self, table=None):
        """Objective and lower bound at the weights, or at others."""
        if table is not None:
            with torch.no_grad():
                self.model.table.copy_(table)
        self.optimizer.zero_grad()
        loss = self.model.surprise() / self.model.targets
        loss.backward()
        weights, gradient = self.model.table.detach().double(), self.model.table.grad.double()
        objective = float(loss.detach()) + float(self.penalty.value(weights))
        return objective, certificate.lower_bound(float(loss), {"w": self.penalty}, {"w": weights}, {"w": gradient})


@pytest.mark.parametrize("nonnegative", [True, False], ids=["nonnegative", "signed"])
@pytest.mark.parametrize("ridge", [0.0, 0.05], ids=["", "ridged"])
@pytest.mark.parametrize("name", PENALTIES)
def test_training_reaches_the_certificate_for_every_penalty(name, ridge, nonnegative):
    """The bound is below every objective, and equal to it at the end of training."""
    problem = Problem(name, ridge, nonnegative).run()
    objective, bound = problem.certified()
    assert bound <= objective
    assert objective - bound < 3e-5 * objective
    best, at, draw = objective, problem.model.table.detach().clone(), torch.Generator().manual_seed(0)
    for scale in (1e-3, 0.03, 1.0):
        near = at + scale * torch.randn(at.shape, generator=draw, dtype=at.dtype)
        there, bound = problem.certified(near.clamp(min=0) if nonnegative else near)
        assert bound <= best + 1e-12
        assert there >= best - 1e-9
    assert problem.certified(at)[0] == objective


@pytest.mark.parametrize("name", ["tree l2", "tree linf", "l1"])
def test_gradients_that_are_not_requested_are_not_needed(name):
    """A closure that skips them when it may takes the same path to the same end."""
    heeding, other = Problem(name), Problem(name, heeds=False)
    for _ in range(25):
        for problem in (heeding, other):
            problem.optimizer.step(problem.closure)
        torch.testing.assert_close(heeding.model.table, other.model.table, rtol=0, atol=1e-7)
    assert heeding.gradients < 0.7 * heeding.losses
    assert other.gradients == other.losses
    objectives = [problem.run().certified()[0] for problem in (heeding, other)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-10)


@pytest.mark.parametrize("heeds", [True, False])
def test_a_saved_state_continues_to_the_same_bits_with_or_without_gradients(heeds, tmp_path):
    problem = Problem("tree l2", heeds=heeds)
    for _ in range(6):
        problem.optimizer.step(problem.closure)
    torch.save([problem.optimizer.state_dict(), problem.model.table.detach()], tmp_path / "state")
    state, table = torch.load(tmp_path / "state", weights_only=True)
    other = Problem("tree l2", heeds=heeds)
    with torch.no_grad():
        other.model.table.copy_(table)
    other.optimizer.load_state_dict(state)
    for _ in range(12):
        problem.optimizer.step(problem.closure)
        other.optimizer.step(other.closure)
        assert torch.equal(problem.model.table, other.model.table)


def test_the_objective_never_rises_with_iterated_proxes():
    problem = Problem("tree l2", ridge=0.05, nonnegative=False)
    (tree,) = (part for part in problem.penalty.modules() if isinstance(part, TreeGroupLasso))
    assert tree.accuracy == FISTA.accuracy > 0
    seen = []
    for _ in range(50):
        problem.optimizer.step(problem.closure)
        seen.append(problem.certified()[0])
    assert (np.diff(seen) <= 1e-13).all()
    assert seen[-1] < seen[0] - 0.01
    problem.optimizer.attach({})
    assert tree.accuracy == 0.0


def test_single_precision_comes_near_the_optimum():
    for name in ("tree l2", "tree linf"):
        objective = Problem(name).run().certified()[0]
        assert Problem(name, dtype=torch.float32).run().certified()[0] == pytest.approx(objective, rel=2e-5)


# --- the paper's Algorithm 1


def hu_kwok_pan(gradient, prox_, W, L, convexity, steps):
    """Its lines 4 to 7 with ParamUpdate, with (1 - mu) Z of line 6 read as rho tau Z, so that the weights of the
    combination sum to one."""
    Z, tau, delta, rho = W.clone(), 1.0, 1.0, L + convexity
    for _ in range(steps):
        bar = (1 - tau) * W + tau * Z
        W = prox_(bar - gradient(bar) / rho, 1 / rho)
        Z = (rho * tau * Z + (convexity - rho) * bar + rho * W) / (rho * tau + convexity)
        rho, tau = L + convexity / delta, (np.sqrt(4 * delta + delta**2) - delta) / 2
        delta = (1 - tau) * delta
    return W


def test_the_stochastic_method_is_the_algorithm_of_the_paper():
    problem = Problem("tree linf", nonnegative=True)
    model, penalty = problem.model, problem.penalty

    def gradient(W):
        with torch.no_grad():
            model.table.copy_(W)
        model.table.grad = None
        (model.surprise() / model.targets).backward()
        return model.table.grad.clone()

    start, convexity, lr = model.table.detach().clone(), 0.02, 0.8
    expected = hu_kwok_pan(gradient, penalty.prox_, start.clone(), 1 / lr, convexity, 25)
    with torch.no_grad():
        model.table.copy_(start)
    solver = AcceleratedSGD([model.table], lr=lr, convexity=convexity)
    problem.optimizer = solver
    solver.slopes = True
    for _ in range(25):
        solver.step(problem.closure)
        penalty.prox_(model.table.detach(), solver.rate(solver.param_groups[0]))
    assert float((expected - start).abs().max()) > 0.1
    torch.testing.assert_close(model.table.detach(), expected, rtol=0, atol=1e-12)
