"""A path: the same problem at falling strengths."""

import csv

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.tasks.tagging.data import table_name
from structsparse.tasks.tagging.task import TaggingTask
from structsparse.training.search import path as paths
from structsparse.training.search.strengths import shares
from tests.support.runs import asks_to_stop, at_step, run_here

GROUPED = ("reg=group_lasso", "groups.weights=sqrt_size", "solver=adam", "solver.lr=0.05", "batch=null")
WHOLE = (*GROUPED, "recipe=direct", "trainer.max_epochs=250", "trainer.check_val_every_n_epoch=250", "choose=last")


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
    found = run(*WHOLE, "path=3", "reg.strength=0.3")
    rows = table(found)
    assert int(rows[0]["rows kept"]) < found.metrics["features"]
    assert [int(row["rows kept"]) for row in rows] == sorted(int(row["rows kept"]) for row in rows)
    screen = paths._Walker._may_live
    monkeypatch.setattr(paths._Walker, "_may_live", lambda self, strength: screen(self, 1e9))  # forgets all but living
    again = run(*WHOLE, "path=3", "reg.strength=0.3")
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


def test_a_path_of_language_models_goes_down_to_the_best_on_dev(tmp_path):
    data = ("task=lm", "data.limit=4000", "model.order=3")
    options = "path=[0.03,0.01]", "reg.relative=true", "trainer.max_epochs=20"
    found = run_here(*options, folder=tmp_path / "run", data=data, base=())
    assert found.status == 0, found.errors
    header, *rows = [line.split("\t") for line in (found.folder / "report" / "path.tsv").read_text().splitlines()]
    perplexities = [float(row[header.index("perplexity")]) for row in rows]
    assert len(rows) == 2
    assert found.metrics["dev_perplexity"] == pytest.approx(min(perplexities), rel=1e-3)
