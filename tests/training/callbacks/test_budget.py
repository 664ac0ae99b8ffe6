"""A budget: so many groups, whatever strength that takes."""

import csv

import lightning
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Cover, by_row, by_row_blocks, cover_entries, cover_rows
from structsparse.penalties import L1, GroupLasso, NestedGroupLasso, SequentialGroupLasso, SparseGroupLasso
from structsparse.solvers.fista import FISTA
from structsparse.training.callbacks.budget import Budget
from tests.prox.test_overlaps import ROUTES
from tests.training.callbacks.test_callbacks import ROWS, Regression, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`", "ignore:`isinstance.treespec")
SHAPE = (ROWS, 2)
KINDS = {
    "rows": lambda: GroupLasso(by_row(SHAPE, weights="one"), 0.0),
    "weighted": lambda: GroupLasso(by_row(SHAPE, weights=torch.tensor([1.0, 4.0, 0.5, 2.0, 1.0, 3.0])), 0.0),
    "sparse": lambda: SparseGroupLasso(by_row(SHAPE), 0.0, mix=0.4),
}


def fitted(budget: Budget, module=None, **options):
    module = Regression(fall=1.0) if module is None else module
    fit = trainer(budget, **{"max_epochs": 2, **options})
    fit.fit(module, loader())
    return module, fit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("most", [1, 3, 5])
def test_no_more_groups_live_than_the_budget_allows(kind, optimizer, most):
    penalty = KINDS[kind]()
    module, _ = fitted(Budget({"weights": penalty}, most, every=4), Regression(optimizer, fall=1.0))
    assert int(penalty.groups.alive(module.weights.detach()).sum()) == most
    assert float(penalty.strength) > 0


def test_what_lives_is_what_is_largest_for_its_weight():
    penalty = KINDS["weighted"]()
    budget = Budget({"weights": penalty}, 2)
    W = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    for steps in (0.1, torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)) + 0.1):
        ratios = (W / steps).norm(dim=1).double() / penalty.groups.weight
        strength = budget.needed(penalty.entering(W / steps), 2)
        second, third = ratios.sort(descending=True).values[1:3]
        assert float(strength) == pytest.approx(float(second + third) / 2, rel=1e-6)
        penalty.strength = float(strength)
        kept = penalty.prox_(W.clone(), steps)
        assert set(penalty.groups.alive(kept).nonzero().flatten().tolist()) == set(ratios.topk(2).indices.tolist())


def test_families_of_overlapping_groups_have_a_budget_each():
    pairs = cover_rows(SHAPE, [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]])
    penalty = SequentialGroupLasso(pairs, 0.0)
    module, _ = fitted(Budget({"weights": penalty}, 1, every=4))
    families = penalty.groups.families()
    assert [len(family) for family in families] == [3, 2]
    living = [int(family.alive(module.weights.detach()).sum()) for family in families]
    assert living[-1] == 1  # cut last
    assert max(living) == 1
    assert float(penalty.strength) > 0


def test_nested_families_share_a_budget():
    """A row and all finer ones are a group: six rows in three chains of two, and each family gets half."""
    chains = cover_rows(SHAPE, [[0, 1], [1], [2, 3], [3], [4, 5], [5]])
    penalty = SequentialGroupLasso(chains, 0.0, shared=True)
    budget = Budget({"weights": penalty}, 3, every=4)
    assert sorted(budget.most["weights"]) == [1, 2]
    module, _ = fitted(budget)
    W = module.weights.detach()
    rows = (W != 0).any(dim=1)
    assert 1 <= int(rows.sum()) <= 3
    assert not any(bool(rows[k + 1] and not rows[k]) for k in (0, 2, 4))  # the finer needs the coarser
    with pytest.raises(UserError, match="shared by 2 families"):
        Budget({"weights": penalty}, 1)


@pytest.mark.parametrize("steps", ["even", "by atom", "by entry"])
def test_families_are_cut_as_penalties_of_their_own_would_be(steps):
    random = torch.Generator().manual_seed(2)
    W = torch.randn(7, 2, generator=random)
    by_entry = torch.rand(7, 2, generator=random) + 0.1
    step = {"even": 0.3, "by atom": torch.tensor([0.1] * 3 + [0.4] * 4)[:, None], "by entry": by_entry}[steps]
    rows = by_row_blocks((7, 2), list("abcd"), [0, 1, 3, 5, 7], "one")
    cover = Cover(rows, [0, 1, 2, 1, 2, 3, 2], [0, 3, 5, 6, 7], list("ABCD"), torch.tensor([1.0, 0.7, 0.5, 2.0]))
    penalty = SequentialGroupLasso(cover, 0.0)
    budget = Budget({"weights": penalty}, 1)
    found = W.clone()
    budget.shrink("weights", found, step)

    expected = W.clone()
    for family in cover.families():
        own = GroupLasso(family, 0.0)
        own.strength = float(budget.needed(own.entering(expected / step), 1))
        own.prox_(expected, step)
    torch.testing.assert_close(found, expected)
    assert int((found == 0).sum()) > 0
    assert int((found != 0).sum()) > 0


def nested_groups(seed):
    """Groups in groups, some of them equal, over rows or over entries, which lie in any order; some rows in none."""
    random = torch.Generator().manual_seed(seed)
    spans = [(0, 12), (0, 5), (1, 3), (1, 3), (2, 3), (3, 5), (6, 9), (7, 8), (12, 14), (15, 17), (15, 16)]
    places = torch.randperm(18, generator=random)
    sets = [places[begin:end].tolist() for begin, end in (spans[k] for k in torch.randperm(11, generator=random))]
    weights = torch.rand(11, generator=random, dtype=torch.float64) + 0.3
    make = (cover_rows, cover_entries)[seed % 2]
    cover = make((18, 3) if seed % 2 == 0 else (6, 3), sets, weights=weights)
    W = torch.randn(cover.shape, generator=random, dtype=torch.float64)
    return cover, W * 10 ** (0.5 * torch.randn(cover.shape[0], 1, generator=random, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(8))
def test_nested_groups_die_where_the_exact_prox_kills_them(seed):
    cover, W = nested_groups(seed)
    exact, step, told = NestedGroupLasso(cover, 0.0), 0.7, []

    def alive(strength):
        exact.strength = float(strength)
        return cover.alive(exact.prox_(W.clone(), step))

    def choose(family, strengths):
        told.append(strengths)
        return 0.0, torch.zeros(len(cover), dtype=torch.bool)

    exact.cut_(W.clone(), step, choose)
    for g in range(len(cover)):
        low, high = 0.0, 1e4  # by bisection
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if alive(middle)[g] else (low, middle)
        assert float(told[0][g]) == pytest.approx(high, rel=1e-9)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("most", [1, 2, 4, 7])
def test_nested_groups_are_cut_to_the_budget_by_their_exact_prox(most, route):
    together = 0
    for seed in range(6):
        cover, W = nested_groups(seed)
        penalty, found = NestedGroupLasso(cover, 0.0), ROUTES[route](W)
        Budget({"weights": penalty}, most).shrink("weights", found, 0.3)

        def lives(share, cover=cover, W=W, strength=float(penalty.strength)):
            return NestedGroupLasso(cover, share * strength).prox_(W.clone(), 0.3)

        torch.testing.assert_close(found, lives(1.0), rtol=1e-7, atol=1e-9)
        alive = int(cover.alive(found).sum())
        assert 0 < alive <= most or alive == 0 < int(cover.alive(lives(0.999)).sum())
        if alive < most:  # groups that die together would be more than the budget
            together += 1
            assert int(cover.alive(lives(0.999)).sum()) > most
    assert together > 0 or most != 4


def test_what_cannot_be_cut_as_nested_groups_is_named():
    with pytest.raises(UserError, match="are not nested"):
        NestedGroupLasso(cover_rows(SHAPE, [[0, 1], [1, 2]]), 0.0)
    budget = Budget({"weights": NestedGroupLasso(cover_rows(SHAPE, [[0, 1], [1]]), 0.0)}, 1)
    with pytest.raises(UserError, match="overlap_sequential"):
        budget.shrink("weights", torch.ones(SHAPE), torch.ones(SHAPE))
    light = cover_rows(SHAPE, [[0, 1], [1]], names=["both", "one"], weights=torch.tensor([1.0, 0.0]))
    with pytest.raises(UserError, match="group one of the parameter has no weight"):
        Budget({"weights": NestedGroupLasso(light, 0.0)}, 1).shrink("weights", torch.ones(SHAPE), 0.1)


def test_ties_leave_no_more_than_the_budget():
    penalty = KINDS["rows"]()
    for scale in (0.1, 1.0):
        W = scale * torch.tensor([[1.0, -1.0]] * ROWS)
        budget = Budget({"weights": penalty}, 2)
        budget.shrink("weights", W, 0.1)
        assert int(penalty.groups.alive(W).sum()) <= 2


def test_without_a_cut_there_is_no_strength_and_a_checkpoint_brings_it_back():
    penalty = GroupLasso(by_row(SHAPE, weights="one"), 0.7)
    fitted(Budget({"weights": penalty}, ROWS))
    assert float(penalty.strength) == 0
    cut = Budget({"weights": KINDS["rows"]()}, 2, freeze=1)
    fitted(cut, max_epochs=1)
    again = Budget({"weights": penalty}, 2, freeze=1)
    again.load_state_dict(cut.state_dict())
    fitted(again, max_epochs=1)
    assert float(penalty.strength) == cut.cuts[-1][2]


def test_within_the_budget_nothing_is_shrunk():
    free, _ = fitted(Budget({"weights": KINDS["rows"]()}, ROWS))
    plain, _ = fitted_without()
    assert torch.equal(free.weights, plain.weights)
    one = GroupLasso(by_row_blocks(SHAPE, ["all"], [0, ROWS]), 0.0)
    assert torch.equal(fitted(Budget({"weights": one}, 3))[0].weights, plain.weights)


def fitted_without():
    module = Regression(fall=1.0)
    fit = trainer(max_epochs=2)
    fit.fit(module, loader())
    return module, fit


def test_the_strengths_are_told_with_the_steps_at_which_groups_were_cut():
    penalty = KINDS["rows"]()
    budget = Budget({"weights": penalty}, 2, every=4)
    fitted(budget)
    steps = [step for step, _, _ in budget.cuts]
    assert set(steps) <= {4, 8, 10, 12, 16, 20}  # an epoch has ten, and its end is one of them
    assert steps == sorted(steps)
    assert all(name == "weights" and strength > 0 for _, name, strength in budget.cuts)
    assert budget.cuts[-1][2] == float(penalty.strength)


def test_after_freezing_the_dead_stay_dead_and_the_living_are_not_shrunk():
    penalty = KINDS["rows"]()
    budget = Budget({"weights": penalty}, 2, every=2, freeze=1)
    seen = []

    class Watch(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            seen.append((module.weights.detach().clone(), len(budget.cuts)))

    module = Regression(fall=1.0)
    trainer(budget, Watch(), max_epochs=6).fit(module, loader())
    alive = [penalty.groups.alive(weights) for weights, _ in seen]
    assert all(torch.equal(now, alive[0]) for now in alive)
    assert len({cuts for _, cuts in seen}) == 1
    assert not torch.equal(seen[0][0], seen[-1][0])


def test_a_checkpoint_holds_the_budget_too():
    budget = Budget({"weights": KINDS["rows"]()}, 2, every=3, freeze=1)
    fitted(budget, max_epochs=1)
    other = Budget({"weights": KINDS["rows"]()}, 2, every=3, freeze=1)
    other.load_state_dict(budget.state_dict())
    assert (other.cuts, other.frozen) == (budget.cuts, True)
    assert torch.equal(other.support["weights"], budget.support["weights"])


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "three"])
def test_a_budget_is_a_number_of_groups(most):
    with pytest.raises(UserError, match=r"reg.budget=.*: expected a number of groups, at least 1"):
        Budget({"weights": KINDS["rows"]()}, most)


def test_what_a_budget_cannot_do_is_refused():
    with pytest.raises(UserError, match=r"reg.budget=2: L1 of weights has no disjoint groups to count"):
        Budget({"weights": L1(0.1)}, 2)
    with pytest.raises(UserError, match=r"reg.freeze=0: expected a number of epochs"):
        Budget({"weights": KINDS["rows"]()}, 2, freeze=0)
    with pytest.raises(UserError, match="FISTA needs its strength before a step"):
        fitted(Budget({"weights": KINDS["rows"]()}, 2), Regression(FISTA))


def test_a_run_under_a_budget(run):
    options = (
        *("recipe=direct", "reg=group_lasso", "loss=perceptron", "solver=sgd", "solver.lr=0.1", "batch=8"),
        *("reg.budget=2", "reg.every=5", "trainer.max_epochs=3", "choose=last", "trainer.check_val_every_n_epoch=1"),
    )
    found = run(*options)
    assert (found.status, found.errors) == (0, "")
    assert found.metrics["groups_alive"] == 2
    with (found.folder / "report" / "budget.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert float(rows[-1]["strength"]) == pytest.approx(found.metrics["strength"])
    before = found.result
    (found.folder / "metrics.json").unlink()
    again = run(*options, f"ckpt_path={found.folder}")
    assert (again.status, again.errors) == (0, "")
    assert again.result == before
