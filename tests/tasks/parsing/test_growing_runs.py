"""Whole runs of parsers whose features come into being as they are moved."""

import csv

import pytest
import torch

from structsparse.tasks.parsing.features.index import ArcIndex
from structsparse.tasks.parsing.task import Parsing
from tests.support.runs import asks_to_stop, at_step

DATA = ("data=planted_treebank", "data.train=90", "data.dev=20", "data.test=20")
RUN = (
    *("task=parsing", "recipe=select_mira", "loss=perceptron", "solver=online_perceptron", "batch=30", "seed=0"),
    *("reg=group_lasso", "reg.budget=5", "groups.weights=log2_size", "trainer.max_epochs=3", "choose=last"),
    *("recipe.refit.trainer.max_epochs=2", "features.variants=[plain,direction]", "task.open=true"),
    "features.templates=['h.upos & m.upos',h.word,'h.lemma & m.upos','between.upos & h.upos','m.word & m-1.upos']",
)
SAME = ("uas", "dev_uas", "features", "nonzero", "groups", "groups_alive", "templates_alive", "weights_peak")


def run_of(run, *options, **more):
    found = run(*RUN, *options, data=DATA, base=(), **more)
    assert found.status == 0, found.errors
    return found


@pytest.mark.parametrize("open", ["true", "false"])
def test_a_run_by_budget_is_that_of_a_table_of_all_features(run, open):
    both = [run_of(run, f"model={m}", f"task.open={open}", folder=m) for m in ("arcs", "arcs_growing")]
    dense, grown = (found.metrics for found in both)
    assert {key: grown[key] for key in SAME} == {key: dense[key] for key in SAME}
    assert grown["groups_alive"] == 5
    with (both[1].folder / "report" / "counts.tsv").open() as file:
        counts = list(csv.DictReader(file, delimiter="\t"))
    assert {line["stage"] for line in counts} == {"select", "refit"}
    assert max(int(line["rows"]) for line in counts) == grown["rows_peak"] < dense["rows_peak"] == dense["features"]


def test_nothing_of_training_is_interned(run, monkeypatch):
    """But for the index of the features that live, which the finished parser has."""

    def refuse(*_):
        raise AssertionError("an index of all features was made")

    monkeypatch.setattr(ArcIndex, "fit", refuse)
    found = run_of(run, "model=arcs_growing")
    assert 0 < found.metrics["rows_alive"] < found.metrics["features"]


@pytest.mark.parametrize("step", [2, 6, 10])  # within an epoch of either stage, at the end of one
def test_an_interrupted_run_goes_on_to_the_same_end(step, run, monkeypatch):
    options = ("model=arcs_growing", "recipe.refit.batch=30")
    whole = run_of(run, *options)
    with monkeypatch.context() as patch:
        at_step(patch, step, asks_to_stop(), Parsing)
        assert run(*RUN, *options, data=DATA, base=(), folder="stopped").status == 130
    resumed = run_of(run, *options, "ckpt_path=last", folder="stopped")
    assert resumed.result == whole.result
    for stage in ("select", "refit"):
        for name, value in resumed.checkpoint(stage)["state_dict"].items():
            assert torch.equal(value, whole.checkpoint(stage)["state_dict"][name])


def test_a_stage_may_start_from_the_weights_before(run):
    options = ("recipe.refit.warm=true",)
    both = [run_of(run, f"model={m}", *options, folder=m).metrics for m in ("arcs", "arcs_growing")]
    assert {key: both[1][key] for key in SAME} == {key: both[0][key] for key in SAME}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("solver=sgd",), "model=arcs_growing needs solver=online_perceptron"),
        (("groups=feature",), "groups=template only"),
        (("features.min_count=2",), "model=arcs_growing does not count features"),
        (("features.bits=12",), "model=arcs_growing needs whole keys"),
        (("reg.freeze=1",), "come and go"),
    ],
)
def test_what_does_not_fit_is_said(change, said, run):
    found = run(*RUN, "model=arcs_growing", *change, data=DATA, base=())
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
    assert said in found.errors
