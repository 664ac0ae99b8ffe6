"""Training runs of text categorization: results, peers, resumption and error messages."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from structsparse.tasks.textcat.data import DocumentData
from structsparse.tasks.textcat.task import ClassifierModule
from tests.support.classifiers import L1, PART_STRENGTHS, PARTS, SIZES, STRUCTURED, TEXTCAT, TREES, corpus, data_of
from tests.support.runs import asks_to_stop, at_step, run_here

NO_GROUPS = ("reg=structured", "reg.groups=null", "reg.group=0")
BY_FREQUENCY = (*NO_GROUPS, "reg.lasso=0", "reg.squares=0.01", "reg.frequency=documents")


@pytest.fixture
def textcat(tmp_path):
    """Runs of text categorization in this process, on a small planted corpus."""
    return lambda *options, folder="run", data=TEXTCAT: run_here(*options, folder=tmp_path / folder, data=data, base=())


@pytest.fixture(scope="module")
def data() -> DocumentData:
    return data_of()


def test_a_run_with_planted_groups_reports_their_precision_and_recall(textcat):
    run = textcat(*STRUCTURED)
    assert run.status == 0, run.errors
    metrics = run.metrics
    assert (metrics["task"], metrics["data"], metrics["loss"]) == ("textcat", "planted_documents", "logistic")
    assert 0 <= metrics["planted_precision"] <= 1
    assert 0 < metrics["planted_recall"] <= 1
    assert 0 < metrics["nonzero"] < metrics["weights"]
    assert 0 < metrics["groups_alive"] <= metrics["groups"] == SIZES["groups"]
    assert metrics["duality_gap"] < 1e-4 * metrics["objective"]
    assert metrics["accuracy"] > 0.5
    assert "planted" in (run.folder / "report" / "groups.md").read_text()


@pytest.mark.parametrize("choice", [f"{group}={name}" for group, names in PARTS.items() for name in names])
def test_every_option_trains(choice, textcat, tmp_path, monkeypatch):
    group, _, name = choice.partition("=")
    needs = PARTS[group][name]
    monkeypatch.chdir(tmp_path)
    words = [*corpus().groups.values()]
    (tmp_path / "words.json").write_text(json.dumps({f"group {k}": group for k, group in enumerate(words)}))
    options = () if needs is TREES else needs
    if group != "task":
        options = *options, *PART_STRENGTHS, *(() if group == "reg" else ("reg=structured",))
    if "topics" in choice:
        pytest.importorskip("tomotopy")
    options += ("data.train=40",)  # a dual problem of all pairs of sentences is solved in cubic time
    run = textcat(choice, *options)
    if needs is TREES:
        assert (run.status, "needs documents with parse trees" in run.errors) == (2, True)
        return
    assert run.status == 0, run.errors
    assert run.metrics["accuracy"] > 0.5
    assert run.metrics["duality_gap"] < (1e-8 if name not in ("admm", "early") else 1)
    assert group not in ("loss", "reg", "task") or run.metrics[group] == name


def test_the_report_explains_the_requested_documents(textcat):
    run = textcat(*STRUCTURED, "task.shown={test: [3, 0], train: [5]}")
    assert run.status == 0, run.errors
    page, plain = ((run.folder / "report" / f"explanation.{end}").read_text() for end in ("html", "txt"))
    shown = [line for line in plain.splitlines() if ", predicted " in line]
    assert [line.split(":")[0].split()[0] for line in shown] == ["test", "test", "train"]
    assert re.search(r"groups \(groups\): \d+ living, \d+ dead", plain)
    living = [line.split()[2] for line in plain.splitlines() if line.startswith("lives ")]
    assert living
    assert all(name.rstrip(":") in page for name in living)


def objective(data: DocumentData, table: np.ndarray, bias: float, lasso: float, squares: float) -> float:
    margins = data.targets("train") * (data.matrices["train"] @ table + bias)
    return float(np.log1p(np.exp(-margins)).mean() + lasso * np.abs(table).sum() + squares / 2 * np.square(table).sum())


@pytest.mark.parametrize(("reg", "l1_ratio"), [("l1", 1.0), ("l2", 0.0)])
def test_plain_penalties_reach_the_objective_of_scikit_learn(reg, l1_ratio, textcat, data):
    strength = 0.02
    options = (f"reg={reg}", f"reg.strength={strength}", "reg.relative=false", "solver=fista", "solver.tolerance=1e-11")
    run = textcat(*options, "trainer.max_epochs=2000", "features.weighting=log")
    assert run.status == 0, run.errors
    logs = data_of(weighting="log")
    options = {"solver": "saga" if reg == "l1" else "lbfgs", "tol": 1e-8, "max_iter": 3000, "random_state": 0}
    peer = LogisticRegression(l1_ratio=l1_ratio, C=1 / (strength * logs.items), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # saga has not converged
        peer.fit(logs.matrices["train"], logs.targets("train"))
    ours = torch.load(run.folder / "checkpoints" / "fit" / "last.ckpt", weights_only=True)["state_dict"]
    terms = (strength, 0.0) if reg == "l1" else (0.0, strength)
    expected = objective(logs, peer.coef_[0], float(peer.intercept_[0]), *terms)
    assert objective(logs, ours["model.table"].numpy(), float(ours["model.bias"]), *terms) == pytest.approx(
        run.metrics["objective"], rel=1e-9
    )
    assert run.metrics["objective"] == pytest.approx(expected, rel=1e-4 if reg == "l1" else 1e-7)
    assert run.metrics["objective"] < expected * (1 + 1e-7)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
@pytest.mark.parametrize("reg", ["structured", "l1", "elastic_net", "l2", "squares by frequency"])
def test_every_loss_and_penalty_ends_with_a_certificate(reg, loss, textcat):
    strengths = {"structured": PART_STRENGTHS, "elastic_net": ("reg.strength=0.2", "reg.mix=0.5")}
    penalty = f"reg={reg}", *strengths.get(reg, ("reg.strength=1",))
    run = textcat(*BY_FREQUENCY if reg == "squares by frequency" else penalty, f"loss={loss}", "solver.gap=0")
    assert run.status == 0, run.errors
    assert 0 <= run.metrics["duality_gap"] < 1e-7
    assert run.metrics["stationarity"] < 1e-7


@pytest.mark.parametrize(
    ("reg", "structured"),
    [
        (("reg=l1", "reg.strength=1"), ("reg.lasso=1", "reg.squares=0")),
        (("reg=l2", "reg.strength=1"), ("reg.lasso=0", "reg.squares=1")),
        (
            ("reg=elastic_net", "reg.strength=0.2", "reg.mix=0.5"),
            ("reg.strength=0.2", "reg.lasso=0.5", "reg.squares=0.5"),
        ),
    ],
)
def test_penalties_of_entries_are_the_structured_penalty_without_groups(reg, structured, textcat):
    """The models are equal, byte by byte."""
    plain = textcat(*reg, folder="plain")
    before = textcat(*NO_GROUPS, *structured, folder="structured")
    assert (plain.status, before.status) == (0, 0), plain.errors + before.errors
    assert plain.result.keys() == before.result.keys()
    different = {key for key, value in plain.result.items() if before.result[key] != value}
    assert different <= {"reg", "penalty"}
    assert plain.metrics["penalty"] == pytest.approx(before.metrics["penalty"], rel=1e-12)
    for file in (plain.folder / "model").iterdir():
        assert file.read_bytes() == (before.folder / "model" / file.name).read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ("solver=quasi_newton",),
        ("solver=owlqn",),
        ("solver=adam", "solver.lr=0.02", "trainer.max_epochs=600"),
        ("solver=sgd", "batch=32", "solver.lr=0.02", "trainer.max_epochs=100"),
    ],
    ids=lambda options: options[0],
)
def test_other_solvers_reach_nearly_the_same_objective(options, textcat):
    best = textcat(*L1, folder="best").metrics["objective"]
    run = textcat(*L1[:1], *L1[2:6], *options)
    assert run.status == 0, run.errors
    assert best * (1 - 1e-6) < run.metrics["objective"] < best * (1.002 if "batch=32" not in options else 1.15)


@pytest.mark.parametrize(
    ("classes", "loss", "metric"),
    [(3, "logistic", "accuracy"), (3, "squared_hinge", "accuracy"), (0, "squared", "mse")],
)
def test_several_classes_and_numbers_are_trained(classes, loss, metric, textcat):
    run = textcat(*L1, f"data.classes={classes}", f"loss={loss}", "trainer.max_epochs=150")
    assert run.status == 0, run.errors
    metrics = run.metrics
    assert metrics["loss"] == loss
    data = data_of(classes)
    assert metrics["weights"] == len(data.bag.layout) * max(1, classes)
    model = torch.load(run.folder / "checkpoints" / "fit" / "last.ckpt", weights_only=True)["state_dict"]
    scores = data.matrices["test"] @ model["model.table"].numpy() + model["model.bias"].numpy()
    gold = data.labelled.test.labels
    value = ((scores - gold) ** 2).mean() if classes == 0 else (scores.argmax(axis=1) == gold).mean()
    assert metrics[metric] == pytest.approx(value)
    assert f"dev_{metric}" in metrics


def test_a_resumed_run_gives_the_same_results(textcat, monkeypatch):
    options = (*L1, "batch=20", "solver=sgd", "solver.tolerance=null", "trainer.max_epochs=4")
    options = tuple(option for option in options if not option.startswith("solver.tolerance"))
    full = textcat(*options, folder="full")
    assert full.status == 0, full.errors
    with monkeypatch.context() as patch:
        at_step(patch, 10, asks_to_stop(), ClassifierModule)
        stopped = textcat(*options, folder="half")
    assert stopped.status == 128 + 2
    again = textcat(*options, "ckpt_path=last", folder="half")
    assert again.status == 0, again.errors
    assert again.result == full.result


@pytest.mark.parametrize("options", [(), ("reg=structured",), ("reg=l2",), ("reg=l1",)], ids=" ".join)
def test_dev_chooses_strengths_and_ridge_is_never_better_on_dev(options, textcat):
    run = textcat(*options)
    assert run.status == 0, run.errors
    with (run.folder / "report" / "path.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    scores, losses, shares = ([float(row[name]) for row in rows] for name in ("accuracy", "loss", "share"))
    second = next((k for k in range(1, len(rows)) if shares[k] > shares[k - 1]), len(rows))  # the second path rises
    first = min(range(second), key=lambda k: (-scores[k], losses[k]))
    (chosen,) = [k for k, row in enumerate(rows) if row["best"] == "yes"]
    assert chosen == first or (chosen >= second and scores[chosen] > scores[first] and losses[chosen] <= losses[first])
    assert run.metrics["dev_accuracy"] == pytest.approx(scores[chosen])
    assert run.metrics["search_fits"] == len(rows) + 1
    assert run.metrics["duality_gap"] <= 1e-9


def test_a_given_part_of_a_penalty_stays_while_dev_chooses_the_other(textcat):
    run = textcat("reg=structured", "reg.squares=0.5", "reg.lasso=0.02", "choose=one_se")
    assert run.status == 0, run.errors
    assert run.metrics["chosen_squares"] == pytest.approx(0.5)
    dead = run.metrics["weights"] - run.metrics["nonzero"]
    assert dead > 0  # the lasso is there too


def test_numbers_choose_by_their_squared_error(textcat):
    run = textcat("reg=l2", "data.classes=0", "loss=squared")
    assert run.status == 0, run.errors
    with (run.folder / "report" / "path.tsv").open() as file:
        errors = [(float(row["mse"]), row["best"]) for row in csv.DictReader(file, delimiter="\t")]
    assert len(errors) > 3
    assert min(errors)[1] == "yes"
    assert run.metrics["dev_mse"] == pytest.approx(min(errors)[0])


def test_groups_of_words_can_be_features(textcat, tmp_path):
    (tmp_path / "groups.json").write_text(json.dumps({"words": ["the", "of"]}))
    run = textcat(*L1, "+groups@features.extra=planted", "trainer.max_epochs=50")
    assert run.status == 0, run.errors
    assert run.metrics["features"] == len(data_of().bag.layout) + SIZES["groups"]


def test_dead_weights_stay_dead_in_the_next_stage(textcat):
    run = textcat(*L1, "recipe=select_refit", "trainer.max_epochs=60", "reg@recipe.refit.reg=l2")
    assert run.status == 0, run.errors
    select, refit = (
        torch.load(run.folder / "checkpoints" / stage / "last.ckpt", weights_only=True)["state_dict"]["model.table"]
        for stage in ("select", "refit")
    )
    assert 0 < int((refit != 0).sum()) <= int((select != 0).sum()) < len(select)
    assert not refit[select == 0].any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("loss=squared_hinge", "data.classes=0"), "take loss=squared"),
        (("solver=online_mira", *STRUCTURED), "solver: online solvers that go from sentence to sentence"),
        (("batch=0", "solver=sgd", "reg=l2", "reg.strength=1"), "batch=0: expected a number of documents"),
        (("reg=l1", "solver=fista", "reg.relative=true", "reg.strength=2"), "every group is dead"),
        (("features.weighting=loud",), "features.weighting"),
        (("features.log_ratio=-1",), "features.log_ratio is -1, expected a number of at least 0"),
        (("features.log_ratio=1", "data.classes=0", "loss=squared"), "set features.log_ratio=0"),
        (("groups=planted",), "reg=elastic_net takes no groups: choose reg=nested, overlap"),
        (("task.shown={test: [60]}",), "document 60 of test, expected a number from 0 to 59"),
        (("task.shown={tset: [0]}",), "there is no part 'tset'; there are train, dev, test"),
        (("task.shown=[0]",), "task.shown=[0]: expected parts and numbers"),
        (("solver=admm", "solver.w_steps=0", *STRUCTURED), "solver.w_steps is 0"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, reason, textcat):
    run = textcat("trainer.max_epochs=2", *options)
    assert (run.status, run.errors.count("\n")) == (2, 1), run.errors
    assert reason in run.errors


@pytest.mark.parametrize(
    "options",
    [
        ("task=textcat", "data=text"),
        ("task=textcat", "data=planted"),
        ("task=textcat", "model=sparse"),
        ("task=textcat", "loss=crf"),
        ("task=textcat", "features=ner"),
        ("task=textcat", "filter=gain", "filter.count=2"),
        ("task=textcat", "groups=template", "reg=group_lasso"),
        ("task=textcat", "groups=planted"),
        ("task=lm", "data=planted_documents"),
        ("task=lm", "loss=logistic", "data.limit=4000"),
        ("task=lm", "model=bag", "data.limit=4000"),
        ("data=planted_documents",),
        ("loss=logistic", "data=planted"),
    ],
    ids=" ".join,
)
def test_options_of_other_tasks_are_refused(options, textcat):
    run = textcat("trainer.max_epochs=1", *options, data=())
    assert (run.status, run.errors.count("\n")) == (2, 1), run.errors
