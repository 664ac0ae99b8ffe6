"""Weights of few values: the update of the copies against brute force, ADMM against all there is, its controls."""

import csv
import itertools
import math
import signal

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.penalties import L1, Copied, Discrete
from structsparse.penalties.discrete import learn
from structsparse.prox import few_values as levels
from structsparse.solvers.few_values import Tied
from structsparse.solvers.owlqn import OWLQN
from structsparse.solvers.quasi_newton import ProximalQuasiNewton
from structsparse.training.callbacks.outer import Admm
from tests.runs.test_fault import assert_the_same_end
from tests.support.runs import asks_to_stop, at_step

DISCRETE = (
    *("reg=discrete", "recipe=discrete", "solver=quasi_newton", "model=pairs", "batch=null", "choose=best"),
    *("recipe.start.trainer.max_epochs=4", "recipe.start.trainer.check_val_every_n_epoch=4"),
    *("trainer.max_epochs=6", "trainer.check_val_every_n_epoch=2", "reg.strength=0", "reg.values=kmeans"),
    "reg.admm.inner=2",
)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- one entry


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(10))
def test_the_copies_take_the_best_of_all_values(seed, dtype):
    """Soft threshold, then the nearest value: against trying each value for each entry."""
    draw = torch.Generator().manual_seed(seed)
    penalty = Discrete(float(torch.rand((), generator=draw)), levels=1 + seed % 5, eta=0.3 / (1 + seed % 4))
    W, steps = 2 * normal(7, 5, seed=seed).to(dtype), normal(7, 5, seed=seed + 100).exp().to(dtype)
    found = penalty.prox_(W.clone(), steps)
    values = penalty.values.to(dtype)
    cost = penalty.strength * values.abs() + (values - W.unsqueeze(-1)) ** 2 / (2 * steps.unsqueeze(-1))
    ours = penalty.strength * found.abs() + (found - W) ** 2 / (2 * steps)
    torch.testing.assert_close(ours.double(), cost.amin(-1).double())
    assert set(found.unique().tolist()) <= set(values.tolist())
    assert math.isfinite(float(penalty.value(found)))
    assert float(penalty.value(found + 0.01)) == math.inf


def test_nearest_values_in_place():
    W = normal(6, 4)
    found = levels.nearest_(W, torch.tensor([-1.0, 0.0, 2.0]))
    assert found is W
    W = torch.tensor([-0.6, -0.4, 0.9, 1.1, 50.0, -0.0])
    assert levels.nearest_(W, torch.tensor([-1.0, 0.0, 2.0])).tolist() == [-1.0, 0.0, 0.0, 2.0, 2.0, 0.0]


def test_the_template_is_that_of_the_paper():
    """eta = 0.1, delta = 0.4, kappa = 4 and zeta = 3, the paper's example; and its defaults."""
    found = Discrete(levels=3, eta=0.1, delta=0.4, kappa=4).values
    torch.testing.assert_close(found, torch.tensor([-2.0, -0.8, -0.5, 0, 0.5, 0.8, 2.0], dtype=torch.float64))
    assert Discrete(levels=8, eta=2.0).values[-8:].tolist() == [3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 129.0, 257.0]
    assert Discrete(levels=1, eta=2.0).values.tolist() == [-3.0, 0.0, 3.0]


def test_given_values():
    assert Discrete(values=[0.5, 2, 0]).values.tolist() == [-2.0, -0.5, 0.0, 0.5, 2.0]
    assert Discrete(values=[-1, 3]).values.tolist() == [-1.0, 0.0, 3.0]


@pytest.mark.parametrize("seed", range(5))
def test_centres_are_those_that_no_other_cut_beats(seed):
    """For two of each sign, all cuts of the sorted sizes are tried; Lloyd's algorithm may end in a local optimum, so it
    must be one: each value the mean of what is nearest to it."""
    weights = normal(40, seed=seed)
    found = levels.centres(weights, 2)
    assert len(found) == 5
    assert found[2] == 0
    for sign in (-1, 1):
        own, mine = weights[weights * sign > 0], found[found * sign > 0]
        nearest = (own[:, None] - mine).abs().argmin(1)
        for k, value in enumerate(mine):
            torch.testing.assert_close(value, own[nearest == k].mean())
    assert levels.centres(torch.tensor([0.0, 1.0, 1.0, -2.0]), 4).tolist() == [-2.0, 0.0, 1.0]


def test_values_move_to_weighted_means():
    points, heavy = [normal(30, seed=k) for k in range(2)], [normal(30, seed=k + 5).exp() for k in range(2)]
    values = torch.tensor([-1.0, 0.0, 0.5, 9.0], dtype=torch.float64)
    found = levels.moved_to_means(values, points, heavy)
    p, w = torch.cat(points), torch.cat(heavy)
    nearest = (p[:, None] - values).abs().argmin(1)
    for k in (0, 2):
        torch.testing.assert_close(found[k], (w * p)[nearest == k].sum() / w[nearest == k].sum())
    assert found[[1, 3]].tolist() == [0.0, 9.0]


def test_one_set_of_values_for_all_parameters():
    penalties = {name: Discrete(levels=1, values="kmeans") for name in "ab"}
    weights = {"a": torch.tensor([1.0, 0.0, -4.0]), "b": torch.tensor([[3.0]])}
    Discrete.at_start(penalties, weights)
    assert [p.values.tolist() for p in penalties.values()] == [[-4.0, 0.0, 2.0]] * 2
    with pytest.raises(UserError, match="takes its values from the weights of the previous stage"):
        Discrete.at_start({"a": Discrete(values="kmeans")}, {"a": torch.zeros(3)})


# --- beside copies


def test_the_pull_is_one_penalty_in_value_and_prox():
    draw = normal(6, 4, seed=1)
    copied = Copied(Discrete(levels=2, eta=0.4), draw, normal(6, 1, seed=2).exp(), lasso=0.3)
    copied.outer_update(normal(6, 4, seed=3))
    W, steps = normal(6, 4, seed=4), normal(6, 4, seed=5).exp()
    found = copied.prox_(W.clone(), steps)

    def cost(V):
        return float(copied.value(V) + ((V - W) ** 2 / (2 * steps)).sum())

    for seed in range(50):
        assert cost(found) <= cost(found + 0.1 * normal(6, 4, seed=seed + 10)) + 1e-12
    grad = (found - W) / steps
    assert float(copied.gap(found, grad).max()) < 1e-9
    steps[0], steps[1] = 0.0, torch.inf
    ends = copied.prox_(W.clone(), steps)
    assert torch.equal(ends[0], W[0])
    assert ends.isfinite().all()


def test_outer_updates_follow_the_paper():
    W, pull = normal(5, 3, seed=1), torch.full((5, 1), 0.7, dtype=torch.float64)
    copied = Copied(Discrete(0.05, levels=2, eta=0.3), W, pull, rate=0.5, growth=2.0)
    u, alpha = copied.copy.clone(), torch.zeros_like(W)
    for k in range(4):
        W = normal(5, 3, seed=k + 2)
        moved = copied.outer_update(W)
        before, u = u, Discrete(0.05, levels=2, eta=0.3).prox_(W + alpha, 1 / (0.7 * 2.0**k))
        alpha = (alpha + 0.5 * (W - u)) / 2
        torch.testing.assert_close(copied.copy, u)
        torch.testing.assert_close(copied.centre, u - alpha)
        assert float(moved.apart) == pytest.approx(float((W - u).square().sum()))
        assert float(moved.change) == pytest.approx(float((u - before).square().sum()))
    assert copied.pull.unique().item() == pytest.approx(0.7 * 16)


def test_what_is_held_at_zero_stays_there():
    W = normal(4, 2)
    W[1] = 0
    copied = Copied(Discrete(levels=3, eta=0.01), W, torch.ones(()).double())
    for seed in range(3):
        V = normal(4, 2, seed=seed)
        V[1] = 0
        copied.outer_update(V)
        assert (copied.copy[1] == 0).all()
        assert (copied.centre[1] == 0).all()


def test_no_look_at_a_value_on_a_device():
    """On `meta` each would be an error."""
    penalty = Discrete(0.1, levels=3).to("meta")
    W = torch.zeros(5, 3, device="meta")
    copied = Copied(penalty, W, torch.zeros(5, 1, device="meta"), 0.3, growth=1.1).to("meta")
    for steps in (0.1, torch.zeros(5, 3, device="meta")):
        assert copied.prox_(W, steps).device.type == "meta"
    assert copied.value(W).device.type == "meta"
    assert copied.outer_update(W).apart.device.type == "meta"
    values = levels.moved_to_means(penalty.values, [W], [copied.pull])
    assert (values.device.type, values.shape) == ("meta", (7,))


# --- small problems, all of whose solutions can be tried


class Least:
    """1/2 |X w - y|^2 / n + lasso |w|_1 over w of few values."""

    def __init__(self, seed, entries=6, lasso=0.02):
        self.X = normal(30, entries, seed=seed)
        self.X[:, 1] += 0.7 * self.X[:, 0]
        self.y = self.X @ (1.5 * normal(entries, seed=seed + 50)) + 0.3 * normal(30, seed=seed + 99)
        self.lasso = lasso

    def loss(self, w):
        return (self.X @ w - self.y).square().sum() / 60

    def objective(self, w):
        return float(self.loss(w) + self.lasso * w.abs().sum())

    def closure(self, w):
        def closure():
            w.grad = None
            loss = self.loss(w)
            loss.backward()
            return loss

        return closure

    def start(self):
        """Its minimum without the constraint."""
        w = torch.zeros(self.X.shape[1], dtype=torch.float64, requires_grad=True)
        solver = ProximalQuasiNewton([w], tolerance=0.0)
        solver.attach({w: L1(self.lasso)})
        for _ in range(60):
            solver.step(self.closure(w))
        return w

    def admm(self, penalty, outer=60, inner=4, pull=0.2, growth=1.05, lasso_on_copies=False):
        """The best copy by the objective, and the residuals of each outer iteration."""
        w = self.start()
        penalty.strength = self.lasso if lasso_on_copies else 0.0
        scale = torch.tensor(pull, dtype=torch.float64)
        copied = Copied(penalty, w, scale, 0.0 if lasso_on_copies else self.lasso, growth=growth)
        best, moves = copied.copy.clone(), []
        solver = ProximalQuasiNewton([w], tolerance=0.0)
        solver.attach({w: copied})
        for _ in range(outer):
            for _ in range(inner):
                solver.step(self.closure(w))
            moves.append(copied.outer_update(w.detach()))
            solver.renew()
            if self.objective(copied.copy) < self.objective(best):
                best = copied.copy.clone()
        return best, moves

    def best_of_all(self, values):
        tried = torch.tensor(list(itertools.product(values.tolist(), repeat=self.X.shape[1])), dtype=torch.float64)
        losses = (tried @ self.X.T - self.y).square().sum(1) / 60 + self.lasso * tried.abs().sum(1)
        return float(losses.min())


@pytest.mark.parametrize("on_copies", [False, True])
def test_admm_finds_the_best_of_all_in_most_problems_and_is_never_worse_than_rounding(on_copies):
    found = 0
    for seed in range(12):
        problem, penalty = Least(seed), Discrete(levels=2, eta=0.5)
        best, moves = problem.admm(penalty, lasso_on_copies=on_copies)
        rounded = levels.nearest_(problem.start().detach().clone(), penalty.values)
        least, ours = problem.best_of_all(penalty.values), problem.objective(best)
        assert ours >= least - 1e-12
        assert ours <= problem.objective(rounded) + 1e-12
        found += ours <= least + 1e-9
        assert float(moves[-1].apart) < 1e-8  # residuals vanish as the pull grows
        assert float(moves[-1].change) == 0
    assert found >= 8


def test_the_memory_of_the_loss_outlives_an_outer_iteration():
    """The pairs of the metric are of the loss alone: the pull may change under them."""
    problem = Least(3)
    w = problem.start().detach().clone().requires_grad_()
    copied = Copied(Discrete(levels=2, eta=0.5), w, torch.tensor(0.5).double(), problem.lasso, growth=3.0)
    solver = ProximalQuasiNewton([w], tolerance=0.0)
    solver.attach({w: copied})
    for _ in range(3):
        solver.step(problem.closure(w))
        copied.outer_update(w.detach())
        solver.renew()
    kept = solver.shared["secants"]
    H = problem.X.T @ problem.X / 30
    torch.testing.assert_close(kept["Y"], H[kept["places"]][:, kept["places"]] @ kept["S"])
    assert solver.shared["objective"] == pytest.approx(float((problem.loss(w) + copied.value(w)).detach()))


def test_values_that_are_learnt_do_not_raise_the_augmented_lagrangian():
    W = {"a": normal(20, 3), "b": normal(5, seed=7)}
    own = {name: Discrete(levels=2, eta=0.2, learn=True) for name in W}
    copies = {name: Copied(own[name], w, torch.tensor(2.0).double()) for name, w in W.items()}

    def distance():
        return sum(float((w - levels.nearest_(w.clone(), own["a"].values)).square().sum()) for w in W.values())

    for _ in range(6):
        before = distance()
        learn(copies, W)
        assert distance() <= before + 1e-12
        assert own["a"].values.tolist() == own["b"].values.tolist()
    assert len(own["a"].values) == 5
    Discrete.at_end(own, {"a": torch.tensor([0.5, 0.5, 0.0]), "b": torch.tensor([-1.0])})
    assert own["b"].values.tolist() == [-1.0, 0.0, 0.5]


def test_tied_values_go_to_the_least_squares_of_their_sums():
    problem = Least(5, lasso=0.0)
    w = torch.tensor([1.0, 1.0, -2.0, 0.0, 1.0, -2.0], dtype=torch.float64, requires_grad=True)
    pattern = torch.stack([w.detach() == 1, w.detach() == -2], 1).double()
    free = torch.linalg.lstsq(problem.X @ pattern, problem.y).solution
    expected = torch.where(free * torch.tensor([1.0, -2.0]) > 0, free, 0.0)
    if not (expected != 0).all():
        problem.y = problem.X @ pattern @ torch.tensor([0.4, -3.0], dtype=torch.float64)
        expected = torch.tensor([0.4, -3.0], dtype=torch.float64)
    solver = Tied([w], tolerance=0.0)
    solver.attach({w: L1(0.0)})
    for _ in range(60):
        solver.step(problem.closure(w))
    torch.testing.assert_close(w.detach(), pattern @ expected, rtol=1e-5, atol=1e-6)


# --- runs


@pytest.mark.parametrize("recipe", ["discrete", "discrete_refit", "quantised", "quantised_refit", "straight_through"])
def test_each_way_leaves_no_more_values_than_it_may(recipe, run):
    found = run(*DISCRETE, f"recipe={recipe}", "reg.levels=2")
    assert (found.status, found.errors) == (0, "")
    assert 0 < found.metrics["distinct_values"] <= 4
    assert 0 <= found.metrics["sentence_accuracy"] <= 1


@pytest.mark.parametrize("solver", ["quasi_newton", "fista", "adagrad", "sgd"])
def test_any_solver_takes_the_steps_in_the_weights(solver, run):
    batch = () if solver in ("quasi_newton", "fista") else ("batch=16", "reg.admm.inner=1")
    found = run(*DISCRETE, "model=sparse", f"solver={solver}", *batch, "reg.learn=true")
    assert (found.status, found.errors) == (0, "")
    assert found.metrics["distinct_values"] <= 8


@pytest.mark.parametrize("number", [2, 5, 7, 9])
def test_a_stopped_run_of_copies_goes_on_as_if_it_had_not_been(number, run, monkeypatch):
    options = (*DISCRETE, "reg.learn=true", "reg.admm.growth=1.1")
    whole = run(*options, folder="whole")
    with monkeypatch.context() as patch:
        at_step(patch, number, asks_to_stop())
        assert run(*options, folder="stopped").status == 128 + signal.SIGINT
    assert_the_same_end(run(*options, "ckpt_path=last", folder="stopped"), whole)


def test_all_weights_may_live_again(run):
    """survivors=false: the l1 of the start forbids nothing."""
    options = ("recipe.start.reg.strength=2", "reg.admm.lasso=0", "reg.values=template", "reg.eta=0.02", "choose=last")
    more = run(*DISCRETE, *options, folder="more")
    fewer = run(*DISCRETE, *options, "recipe.fit.survivors=true", folder="fewer")
    assert fewer.metrics["rows_alive"] < more.metrics["rows_alive"]


# --- what cannot be


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levels": 0}, "reg.levels is 0"),
        ({"levels": 2.5}, "reg.levels is 2.5"),
        ({"values": "means"}, "reg.values is 'means', expected template, kmeans or a list"),
        ({"values": [0.0]}, "one not zero"),
        ({"eta": 0}, "reg.eta is 0, expected a finite number above 0"),
        ({"kappa": -1}, "reg.kappa is -1"),
        ({"strength": -1}, "the strength of Discrete is -1"),
    ],
)
def test_values_that_cannot_be_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Discrete(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inner": 0}, "reg.admm.inner is 0, expected a number of epochs"),
        ({"rho": 0}, "reg.admm.rho is 0, expected a finite number above 0"),
        ({"growth": -1}, "reg.admm.growth is -1"),
        ({"outer": 3}, "reg.admm.outer is not understood; there are inner, rho"),
    ],
)
def test_outer_iterations_that_cannot_be_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Admm.of(options)


def test_solvers_that_know_no_copies_say_so():
    w = torch.zeros(3, requires_grad=True)
    with pytest.raises(UserError, match=r"OWLQN knows L1, .* got Discrete"):
        OWLQN([w]).attach({w: Discrete()})
    with pytest.raises(UserError, match=r"Tied knows L1, .* got Discrete"):
        Tied([w]).attach({w: Discrete()})
    solver = Tied([w])
    solver.attach({w: L1(0.1)})
    with pytest.raises(UserError, match="1 to 256 distinct values, not 0"):
        solver.step(lambda: w.sum())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("reg.admm.inner=0",), "reg.admm.inner is 0"),
        (("warm=false",), "takes its values from the weights of the previous stage"),
        (("~recipe.start", "reg.values=template", "model=growing", "loss=perceptron", "solver=online_perceptron",
          "solver.average=false", "batch=20"), "those of a growing table come and go"),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_are_refused_in_one_sentence(options, words, run):
    given = DISCRETE if "~recipe.start" not in options else [o for o in DISCRETE if "recipe.start" not in o]
    found = run(*given, *options)
    assert found.status == 2
    assert words in found.errors
    assert found.errors.count("\n") == 1


OTHERS = {
    "documents": ("task=textcat", "data=planted_documents", "model=bag"),
    "arcs": (
        *(
            "task=parsing",
            "data=planted_treebank",
            "data.train=20",
            "data.dev=8",
            "data.test=8",
            "model=arcs",
            "loss=crf",
        ),
        *("features.templates=['h.upos & m.upos',h.word]", "task.labels=false"),
    ),
    "words": ("task=lm", "model=ngram", "model.order=2", "data.limit=4000", "data.min_count=2"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_weights_of_any_task_may_be_few(case, run):
    few = [option for option in DISCRETE if not option.startswith("model=")]
    found = run(*OTHERS[case], *few, "reg.levels=2", data=(), base=())
    assert (found.status, found.errors) == (0, "")
    assert 1 <= found.metrics["distinct_values"] <= 4


def test_the_report_tells_outer_iterations(run):
    found = run(*DISCRETE)
    assert (found.status, found.errors) == (0, "")
    with (found.folder / "report" / "outer.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [(row["stage"], row["epoch"]) for row in rows] == [("fit", "1"), ("fit", "3"), ("fit", "5")]
    assert all(float(row["primal"]) > 0 and int(row["flips"]) > 0 for row in rows)
    assert int(rows[-1]["living"]) > 0


@pytest.mark.parametrize(
    ("option", "words"),
    [("reg.levels=0", "reg.levels is 0"), ("reg.values=[0]", "reg.values is [0]"), ("reg.admm.rho=0", "reg.admm.rho")],
)
def test_what_is_wrong_with_a_later_stage_is_said_before_the_first_one_begins(option, words, run):
    found = run(*DISCRETE, option)
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert words in found.errors
    assert "start" not in found.output
