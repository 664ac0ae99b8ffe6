"""A grid: one corpus under every combination of some options."""

import csv
import gc
import json
import weakref

import pytest

from structsparse.base.errors import UserError
from structsparse.features import words
from structsparse.groups import Cover
from structsparse.tasks.textcat import task as classification
from structsparse.tasks.textcat.data import DocumentData
from structsparse.training.search import grid
from tests.support.classifiers import TEXTCAT
from tests.support.runs import PLANTED, SMALL, asks_to_stop, at_step, run_here

PLAIN = ("reg=l1", "reg.relative=true", "solver=fista", "trainer.max_epochs=40")


@pytest.fixture
def textcat(tmp_path):
    return lambda *options, folder="run": run_here(*options, folder=tmp_path / folder, data=TEXTCAT, base=PLAIN)


def table(run, name="grid.tsv"):
    with (run.folder / "report" / name).open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_each_point_is_what_a_run_with_its_options_is(textcat):
    found = textcat("grid={reg.strength: [0.4, 0.1], solver.speed: [1]}")
    assert (found.status, found.errors.count("\n")) == (2, 1)
    assert "there is no option solver.speed" in found.errors
    found = textcat("grid={reg.strength: [0.6, 0.2], solver.tolerance: [1e-3, 1e-7]}")
    assert found.status == 0, found.errors
    rows = table(found)
    assert [(row["reg.strength"], row["solver.tolerance"]) for row in rows] == [
        (strength, tolerance) for strength in ("0.6", "0.2") for tolerance in ("0.001", "1e-07")
    ]
    for row in rows:
        options = (f"{name}={row[name]}" for name in ("reg.strength", "solver.tolerance"))
        alone = textcat(*options, folder="a")
        assert float(row["objective"]) == pytest.approx(alone.metrics["objective"], rel=1e-12)
        assert float(row["accuracy"]) == alone.metrics["dev_accuracy"]
        assert int(row["weights"]) == alone.metrics["nonzero"]


def test_dev_chooses_and_of_equals_the_smaller_model(textcat, monkeypatch):
    found = textcat("grid={reg.strength: [0.05, 0.2, 0.4, 0.7]}")
    rows = table(found)
    (best,) = [row for row in rows if row["best"]]
    assert float(best["accuracy"]) == max(float(row["accuracy"]) for row in rows)
    same = [int(row["weights"]) for row in rows if row["accuracy"] == best["accuracy"]]
    assert int(best["weights"]) == min(same) == found.metrics["nonzero"]
    assert found.metrics["chosen_reg.strength"] == float(best["reg.strength"])
    assert found.metrics["dev_accuracy"] == float(best["accuracy"])
    assert found.metrics["seconds_grid"] >= found.metrics["seconds_fit"]
    assert "chosen" not in json.dumps(textcat("reg.strength=0.2", folder="alone").metrics)
    monkeypatch.setattr(classification.ClassScore, "result", lambda score: {"accuracy": 0.5, "macro_f1": 0.5})
    rows = table(textcat("grid={reg.strength: [0.05, 0.7, 0.2]}"))
    assert [bool(row["best"]) for row in rows] == [False, True, False]


def test_the_loss_of_dev_may_choose(textcat):
    found = textcat("grid={reg.strength: [0.05, 0.2, 0.4, 0.7]}", "grid_by=loss")
    rows = table(found)
    (best,) = [row for row in rows if row["best"]]
    assert float(best["loss"]) == min(float(row["loss"]) for row in rows) < max(float(row["loss"]) for row in rows)
    alone = textcat(f"reg.strength={best['reg.strength']}", folder="alone")
    assert alone.metrics["dev_accuracy"] == float(best["accuracy"])
    wrong = textcat("grid={reg.strength: [0.05, 0.2]}", "grid_by=weights", folder="wrong")
    assert wrong.status == 2
    assert "grid_by is 'weights', expected score or loss" in wrong.errors


def test_numbers_are_better_the_nearer_they_are(textcat):
    found = textcat("grid={reg.strength: [0.9, 0.3, 0.1]}", "data.classes=0", "loss=squared")
    assert found.status == 0, found.errors
    rows = table(found)
    (best,) = [row for row in rows if row["best"]]
    assert float(best["mse"]) == min(float(row["mse"]) for row in rows) < max(float(row["mse"]) for row in rows)


def test_test_is_looked_at_once_and_groups_are_made_once(textcat, monkeypatch):
    looked, made = [], []
    batches, bag = DocumentData.batches, words.bag
    monkeypatch.setattr(
        DocumentData,
        "batches",
        lambda self, part, size, **sharing: looked.append(part) or batches(self, part, size, **sharing),
    )
    monkeypatch.setattr(words, "bag", lambda *a, **o: made.append("bag") or bag(*a, **o))
    cover = Cover.__init__
    monkeypatch.setattr(Cover, "__init__", lambda self, *a, **o: made.append("groups") or cover(self, *a, **o))
    found = textcat("reg=overlap", "groups=planted", "trainer.max_epochs=3", "grid={reg.strength: [0.5, 0.2, 0.1]}")
    assert found.status == 0, found.errors
    assert looked.count("test") == 1
    assert sorted(made) == ["bag", "groups"]


def test_only_the_best_point_keeps_a_model(textcat):
    found = textcat("grid={reg.strength: [0.05, 0.2, 0.4]}")
    rows = table(found)
    here = found.folder / "checkpoints"
    kept = [(here / f"grid-{k:03d}" / "fit" / "last.ckpt").is_file() for k in range(3)]
    assert kept == [bool(row["best"]) for row in rows]
    assert all((here / f"grid-{k:03d}" / grid.LINE).is_file() for k in range(3))


def test_no_point_stays_in_memory(textcat, monkeypatch):
    """Two tables of a hundred million weights would be one too many."""
    row, fitted = grid._row, []

    def watched(options, outcomes):
        assert not any(module() for module in fitted)
        fitted.append(weakref.ref(outcomes[-1].module))
        return row(options, outcomes)

    monkeypatch.setattr(grid, "_row", watched)
    gc.disable()  # which may come at any moment, and may not come in time
    try:
        textcat("grid={reg.strength: [0.05, 0.2, 0.4]}")
    finally:
        gc.enable()
    assert len(fitted) == 3


def test_a_stopped_grid_goes_on_where_it_was(textcat, monkeypatch):
    points = ("solver=adam", "trainer.max_epochs=10", "grid={reg.strength: [0.05, 0.2, 0.4]}")
    whole = textcat(*points, folder="whole")
    with monkeypatch.context() as patch:
        at_step(patch, 15, asks_to_stop(), classification.ClassifierModule)
        stopped = textcat(*points)
    assert stopped.status == 130
    first = (stopped.folder / "checkpoints" / "grid-000" / grid.LINE).stat().st_mtime_ns
    again = textcat(*points, f"ckpt_path={stopped.folder}")
    assert again.status == 0, again.errors
    result = {key: value for key, value in again.result.items() if key != "seconds_grid"}
    assert result == {key: value for key, value in whole.result.items() if key != "seconds_grid"}
    assert (stopped.folder / "checkpoints" / "grid-000" / grid.LINE).stat().st_mtime_ns == first
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in table(again)]
    assert timeless == [{k: v for k, v in row.items() if k != "seconds"} for row in table(whole)]


def test_a_grid_of_taggers_with_two_stages(tmp_path):
    options = ("recipe=select_refit", "++recipe.refit.trainer.max_epochs=2", "grid={reg.strength: [0.3, 0.05]}")
    found = run_here(*options, folder=tmp_path / "run", data=PLANTED, base=SMALL)
    assert found.status == 0, found.errors
    rows = table(found)
    (best,) = [row for row in rows if row["best"]]
    assert found.metrics["dev_f1"] == pytest.approx(float(best["f1"]))
    assert found.metrics["nonzero"] == int(best["weights"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("grid=3",), "expected options and their values"),
        (("grid={}",), "expected options and their values"),
        (("grid={reg.strength: 3}",), "expected a list of values"),
        (("grid={reg.strength: []}",), "expected a list of values"),
        (("grid={reg.strength: [1, 1]}",), "has a value twice"),
        (("grid={reg.strenth: [1]}",), "there is no option reg.strenth"),
        (("grid={features.min_count: [1, 2]}",), "features.min_count is read once for all points"),
        (("grid={reg.strength: [1]}", "path=3"), "path must be null"),
        (("grid={reg.strength: [2, 3]}",), "every weight is zero at all of 2 points"),
        (("grid={solver.lr: [a]}",), "solver"),
        (("grid={reg.strength: [0.1]}", "trainer.max_epochs=0"), "leaves no model"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(options, reason, textcat):
    found = textcat(*options)
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
    assert reason in found.errors


def test_all_combinations_come_once():
    found = grid.combinations({"a": [1, 2], "b": ["x", None]})
    assert found == [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 2, "b": None}]
    with pytest.raises(UserError, match=r"task\.name is read once"):
        grid.combinations({"task.name": [1]})


def test_each_stage_of_a_point_has_a_trainer_of_its_own(run):
    options = ("recipe=select_refit", "reg=group_lasso", "reg.strength=0.1", "trainer.max_epochs=3")
    refit = "++recipe.refit.trainer.max_epochs"
    alone = run(*options, f"{refit}=2", folder="alone")
    point = run(*options, f"{refit}=2", "grid={reg.strength: [0.1]}", folder="point")
    longer = run(*options, f"{refit}=5", "grid={reg.strength: [0.1]}", folder="longer")
    assert [found.status for found in (alone, point, longer)] == [0, 0, 0]
    assert point.metrics["final_objective"] == alone.metrics["final_objective"]
    assert longer.metrics["final_objective"] != alone.metrics["final_objective"]
