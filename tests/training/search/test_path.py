"""A path: the same problem at falling strengths."""

import csv

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Partition
from structsparse.penalties import L1, FusedLasso, GroupLasso
from structsparse.tasks.tagging.data import table_name
from structsparse.tasks.tagging.task import TaggingTask
from structsparse.training.search import path as paths
from structsparse.training.search.screening import Screen
from structsparse.training.search.strengths import shares
from tests.support.runs import PLANTED, asks_to_stop, at_step
from tests.tasks.textcat.test_task import TEXTCAT

GROUPED = ("reg=group_lasso", "groups.weights=sqrt_size", "solver=fista", "batch=null")
WHOLE = (*GROUPED, "recipe=direct", "trainer.max_epochs=60", "trainer.check_val_every_n_epoch=60", "choose=last")


def table(run):
    with (run.folder / "report" / "path.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_each_point_of_a_path_is_the_solution_at_its_strength(run):
    found = run(*WHOLE, "path=[0.6,0.3]")
    assert (found.status, found.errors) == (0, "")
    rows = table(found)
    assert [float(row["share"]) for row in rows] == [0.6, 0.3]
    for row in rows:
        alone = run(*WHOLE, f"reg.strength={row['share']}")
        assert float(row["objective"]) == pytest.approx(alone.metrics["objective"], rel=1e-3)
        assert int(row["groups"]) == alone.metrics["groups_alive"]
        assert float(row["strength"]) == pytest.approx(alone.metrics["strength"], rel=1e-4)


def test_rows_that_cannot_live_are_left_out_and_come_back_if_wanted(run, monkeypatch):
    found = run(*WHOLE, "path=2", "reg.strength=0.3")
    rows = table(found)
    assert int(rows[0]["rows kept"]) < found.metrics["features"]
    assert [int(row["rows kept"]) for row in rows] == sorted(int(row["rows kept"]) for row in rows)
    screen = paths.Walker._may_live
    monkeypatch.setattr(paths.Walker, "_may_live", lambda self, strength: screen(self, 1e9))  # forgets all but living
    again = run(*WHOLE, "path=2", "reg.strength=0.3")
    assert sorted(p.name for p in (again.folder / "checkpoints" / "path-00").iterdir()) == ["fit", "fit-2"]
    for row, other in zip(rows, table(again), strict=True):
        assert float(other["objective"]) == pytest.approx(float(row["objective"]), rel=1e-3)
        assert other["groups"] == row["groups"]


def test_stationarity_is_relative_to_zero_on_the_whole_table_at_that_strength(run):
    found = run(*WHOLE, "path=[0.6,0.4]", "solver=sgd", "solver.lr=1e-9", "trainer.max_epochs=1")
    assert int(table(found)[0]["rows kept"]) < found.metrics["features"]
    for row in table(found):  # where nothing has moved yet
        assert float(row["stationarity"]) == pytest.approx(1, rel=0.02)


def test_penalties_that_see_the_whole_table_keep_all_rows(run):
    for reg in ("oscar", "fused"):
        found = run(f"reg={reg}", "solver=fista", "batch=null", "recipe=direct", "path=[0.6]", "trainer.max_epochs=3")
        assert int(table(found)[0]["rows kept"]) == found.metrics["features"]


def test_further_terms_keep_their_strength_along_a_path(run):
    chain = ("+reg@also.chain=l1", "also.chain.parameters=[transitions]", "also.chain.relative=true")
    options = (*WHOLE, *chain, "also.chain.strength=0.3")
    alone = run(*options, "reg.strength=0.3").metrics["objective"]
    assert float(table(run(*options, "path=[0.6,0.3]"))[-1]["objective"]) == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("reg", ["l1", "sparse_group_lasso"])
def test_the_best_on_dev_of_all_stages_goes_on(reg, run):
    options = ("recipe=select_refit", "++recipe.select.batch=16", "++recipe.refit.trainer.max_epochs=2")
    found = run(*options, f"reg={reg}", "path=[0.9,0.5,0.2,0.05]", "solver=adagrad", "trainer.max_epochs=2")
    assert (found.status, found.errors) == (0, "")
    rows = table(found)
    best = [row for row in rows if row["best"]]
    assert len(best) == 1
    scored = [row for row in rows if row["f1"]]
    assert float(best[0]["f1"]) == max(float(row["f1"]) for row in scored)
    equals = [int(row["weights"]) for row in scored if row["f1"] == best[0]["f1"]]
    assert int(best[0]["weights"]) == min(equals) == found.metrics["nonzero"]
    assert found.metrics["strength"] == pytest.approx(float(best[0]["strength"]))
    assert {"path.tsv", "path.md", "path.png"} <= {p.name for p in (found.folder / "report").iterdir()}


def test_a_stopped_path_goes_on_where_it_was(run, monkeypatch):
    options = ("reg=l1", "path=[0.5,0.2,0.1]", "trainer.max_epochs=2", "batch=30")
    expected = run(*options).result
    with monkeypatch.context() as patch:
        at_step(patch, 11, asks_to_stop())
        stopped = run(*options)
    assert stopped.status == 130
    (stopped.folder / "metrics.json").unlink()
    again = run(*options, f"ckpt_path={stopped.folder}")
    assert (again.status, again.errors) == (0, "")
    assert again.result == expected


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("0", "path=0: expected a number of strengths, at least 1"),
        ("-3", "path=-3: expected a number"),
        ("[0.2,0.5]", "expected a number of strengths, or falling shares"),
        ("[1.5,0.5]", "falling shares of the critical one"),
        ("[]", "falling shares"),
        ("[a,b]", "falling shares"),
        ("many", "expected a number of strengths"),
        ("true", "expected a number of strengths"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused(wanted, reason, run):
    found = run(f"path={wanted}")
    assert (found.status, reason in found.errors, found.errors.count("\n")) == (2, True, 1), found.errors


def test_a_path_needs_a_critical_strength(run):
    found = run("reg=l2", "path=[0.5]")
    assert found.status == 2
    assert "no strength of this penalty makes every weight zero" in found.errors


def test_a_path_on_which_nothing_lives_says_so(run, monkeypatch):
    monkeypatch.setattr(TaggingTask, "alive", lambda task, result: False)
    found = run("reg=l1", "path=[0.9,0.8]", "trainer.max_epochs=1")
    assert found.status == 2
    assert "every group is dead at all of 2 strengths; go further down" in found.errors


def test_so_many_strengths_fall_in_equal_ratios():
    found = torch.tensor(shares(5, 0.01), dtype=torch.float64)
    assert float(found[-1]) == pytest.approx(0.01)
    torch.testing.assert_close(found[1:] / found[:-1], torch.full((4,), 0.01 ** (1 / 5), dtype=torch.float64))
    assert shares([0.5, 0.1], 3.0) == [0.5, 0.1]
    with pytest.raises(UserError, match=r"goes down to reg\.strength=3"):
        shares(5, 3.0)
    assert table_name(["tagger.start"]) is None


# --- every task


PARSING = (
    *("task=parsing", "data=planted_treebank", "data.train=40", "data.dev=15", "data.test=15", "task.labels=false"),
    "features.templates=['h.upos & m.upos',h.word,'between.upos & h.upos','m.word & m-1.upos']",
)
ARCS = ("recipe=direct", "loss=crf", "solver=fista", "batch=null", "choose=last", "seed=0")
LM = ("task=lm", "data.limit=4000", "model.order=3")


@pytest.mark.parametrize("reg", [("reg=group_lasso", "reg.budget=null"), ("reg=l1",)], ids=["groups", "entries"])
def test_a_path_of_parsers_leaves_out_rows_and_solves_each_strength(reg, run):
    options = (*ARCS, *reg, "trainer.max_epochs=60", "trainer.check_val_every_n_epoch=60")
    found = run(*options, "path=[0.7,0.5]", data=PARSING, base=())
    assert found.status == 0, found.errors
    rows = table(found)
    assert int(rows[0]["rows kept"]) < found.metrics["features"]
    for row in rows:
        alone = run(*options, f"reg.strength={row['share']}", data=PARSING, base=(), folder="alone")
        assert float(row["objective"]) == pytest.approx(alone.metrics["objective"], rel=1e-3)
        assert int(row["weights"]) == alone.metrics["nonzero"]


def test_a_path_of_classifiers_solves_each_strength(run):
    options = ("reg=l1", "reg.relative=true", "solver=fista", "trainer.max_epochs=200")
    found = run(*options, "path=[0.6,0.3]", data=TEXTCAT, base=())
    assert found.status == 0, found.errors
    for row in table(found):
        alone = run(*options, f"reg.strength={row['share']}", data=TEXTCAT, base=(), folder="alone")
        assert float(row["objective"]) == pytest.approx(alone.metrics["objective"], rel=1e-4)
        assert row["rows kept"] == ""  # groups of words may overlap, so that all words stay


def test_a_path_of_language_models_goes_down_to_the_best_on_dev(run):
    found = run("path=[0.03,0.01]", "reg.relative=true", "trainer.max_epochs=20", data=LM, base=())
    assert found.status == 0, found.errors
    rows = table(found)
    assert len(rows) == 2
    assert found.metrics["dev_perplexity"] == pytest.approx(min(float(row["perplexity"]) for row in rows), rel=1e-3)


@pytest.mark.parametrize(
    ("data", "options", "reason"),
    [
        (PARSING, (), "path and reg.budget both decide how many groups live: set reg.budget=null"),
        (PARSING, ("model=arcs_growing", "reg.budget=null"), "the critical strength of a growing table is not known"),
        (PLANTED, ("model=growing", "loss=perceptron", "solver=online_perceptron"), "of a growing table is not known"),
        (LM, ("model=kneser_ney", "reg=l1"), "path: this model is counted, not trained: it has no strength"),
        (TEXTCAT, ("reg=l2", "solver=majorize"), "no strength of this penalty makes every weight zero"),
    ],
)
def test_a_path_that_a_task_cannot_follow_is_refused_with_the_reason(data, options, reason, run):
    found = run(*options, "path=[0.5,0.2]", data=data, base=())
    assert (found.status, reason in found.errors, found.errors.count("\n")) == (2, True, 1), found.errors


# --- screens


def test_a_screen_says_which_rows_stand_in_some_groups():
    groups = Partition(torch.tensor([[0], [0], [1], [1], [-1]]), ("a", "b"), (5, 1))  # the last row is in none
    screen = Screen.of("table", GroupLasso(groups, 1.0), 5, torch.arange(5))
    assert screen.rows_of_groups(torch.tensor([False, True])).tolist() == [False, False, True, True, True]
    rows = torch.tensor([True, False, False, False, True])
    assert torch.equal(screen.entries_of_rows(rows), rows)


def test_a_row_of_observed_pairs_stays_if_one_of_its_entries_does():
    row_of = torch.tensor([0, 0, 1, 2, 2])
    screen = Screen.of("table", L1(1.0), 3, row_of)
    assert screen.rows_of_groups(torch.tensor([False, True, False, False, False])).tolist() == [True, False, False]
    assert screen.entries_of_rows(torch.tensor([True, False, True])).tolist() == [True, True, False, True, True]


@pytest.mark.parametrize(
    "penalty",
    [
        FusedLasso(1.0),  # no groups, and entries depend on each other
        GroupLasso(Partition(torch.tensor([[0, 1]]), ("x", "y"), (4, 2)), 1.0),  # columns
    ],
)
def test_all_rows_stay_where_groups_are_not_made_of_rows(penalty):
    screen = Screen.of("table", penalty, 4, torch.arange(4))
    assert screen.rows_of_groups(torch.zeros(2, dtype=torch.bool)).all()
