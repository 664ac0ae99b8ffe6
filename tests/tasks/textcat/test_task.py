"""Text categorization: losses, batches, whole runs that learn what they are told to, and what they refuse."""

import dataclasses
import json
import re
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from structsparse.corpora.planted.documents import planted_documents
from structsparse.losses.pointwise import Logistic, Squared, SquaredHinge
from structsparse.tasks.textcat.data import DocumentBatch, DocumentData, prepare, tensor_of
from structsparse.tasks.textcat.model import BagClassifier, outputs_of
from structsparse.tasks.textcat.scores import ClassScore, SquaredError
from structsparse.tasks.textcat.task import ClassifierModule
from structsparse.training.scores import gain
from tests.support.runs import asks_to_stop, at_step, run_here

SIZES = {"train": 80, "dev": 40, "test": 60, "groups": 10, "size": 12, "deciding": 2}
TEXTCAT = ("task=textcat", *(f"data.{name}={size}" for name, size in SIZES.items()))
L1 = (
    *("reg=l1", "solver=fista", "reg.strength=0.1", "reg.relative=true"),
    *("trainer.max_epochs=400", "solver.tolerance=1e-9"),
)
NO_GROUPS = ("reg=structured", "reg.groups=null", "reg.group=0")
BY_FREQUENCY = (*NO_GROUPS, "reg.lasso=0", "reg.squares=0.01", "reg.frequency=documents")
LOSSES = {"logistic": Logistic, "squared": Squared, "squared_hinge": SquaredHinge}

TREES = ("constituents",)  # which nothing that is planted has
PARTS = {  # files of conf/ that are for documents alone, each with the options that it needs here
    "task": {"textcat": ()},
    "features": {"textcat": ()},
    "loss": {"logistic": (), "squared": (), "squared_hinge": ()},
    "solver": {"majorize": (), "admm": (), "early": ()},
    "groups": {
        "planted": (), "sentences": (), "documents": (), "combined": (), "constituents": TREES,
        "topics": ("groups.topics=6",), "brown": ("groups.classes=12",), "ward": ("groups.classes=12",),
        "words_file": ("groups.path=words.json",),
    },
    "reg": {
        "structured": (), "sentences": (), "constituents": TREES, "topics": ("groups.topics=6",),
        "brown": ("groups.classes=12",), "ward": ("groups.classes=12",),
    },
}  # fmt: skip


@pytest.fixture
def textcat(tmp_path):
    """A run of text categorization in this process, on a small planted corpus."""
    return lambda *options, folder="run", data=TEXTCAT: run_here(*options, folder=tmp_path / folder, data=data, base=())


def data_of(classes: int = 2, **options) -> DocumentData:
    return prepare(planted_documents(seed=0, classes=classes, **SIZES), options)


@pytest.fixture(scope="module")
def data() -> DocumentData:
    return data_of()


# --- losses and the model


def plain_loss(kind: str, scores: np.ndarray, target: float) -> float:
    """Of one document, as its docstring says."""
    if scores.ndim and kind == "logistic":
        return float(np.log(np.exp(scores).sum()) - scores[int(target)])
    ys = np.array([1.0 if k == target else -1.0 for k in range(len(scores))]) if scores.ndim else np.array([target])
    total = 0.0
    for f, y in zip(np.atleast_1d(scores), ys, strict=True):
        total += {
            "logistic": np.log(1 + np.exp(-y * f)),
            "squared": (f - y) ** 2 / 2,
            "squared_hinge": max(0.0, 1 - y * f) ** 2,
        }[kind]
    return float(total)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_their_gradients_are_what_they_say(kind, classes):
    draw = np.random.default_rng(classes)
    matrix = sparse.csr_array(draw.poisson(0.5, (9, 7)).astype(float))
    targets = draw.integers(0, classes, 9) if classes > 2 else draw.choice([-1.0, 1.0], 9)
    model, loss = BagClassifier(7, outputs_of(tuple("abcd"[:classes]))), LOSSES[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(draw.normal(size=parameter.shape)))
    assert (loss.kind, loss.smooth) == (kind, True)

    def mean(table: np.ndarray, bias: np.ndarray) -> float:
        scores = matrix.toarray() @ table + bias
        return float(np.mean([plain_loss(kind, f, y) for f, y in zip(scores, targets, strict=True)]))

    table, bias = (p.detach().numpy().copy() for p in (model.table, model.bias))
    batch = DocumentBatch.of(matrix, targets, np.arange(9), 9)
    for transposed in (batch.transposed, None):
        model.zero_grad()
        found = loss(model(batch.matrix, transposed), batch.targets)
        assert found.shape == (9,)
        assert float(found.detach().mean()) == pytest.approx(mean(table, bias), rel=1e-12)
        found.mean().backward()
        for values, gradient in ((table, model.table.grad), (bias, model.bias.grad)):
            for place in np.ndindex(values.shape):
                before = values[place]
                values[place] = before + 1e-6
                above = mean(table, bias)
                values[place] = before - 1e-6
                slope = (above - mean(table, bias)) / 2e-6
                values[place] = before
                assert float(gradient[place]) == pytest.approx(slope, abs=1e-7)


def test_a_logistic_loss_keeps_its_tails():
    scores = torch.tensor([-800.0, -40.0, 40.0, 800.0], dtype=torch.float64, requires_grad=True)
    loss = Logistic()(scores, torch.ones(4, dtype=torch.float64))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor([800.0, 40.0, np.exp(-40.0), 0.0], dtype=torch.float64))
    assert float(scores.grad[2]) == pytest.approx(-np.exp(-40.0))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_training_step_asks_for_no_value(kind, classes):
    data = data_of(classes)
    module = ClassifierModule(
        BagClassifier(len(data.bag.layout), data.outputs), LOSSES[kind](), torch.optim.SGD, data.score, ()
    ).to("meta")
    batch = next(iter(data.batches("train", 8)))
    moved = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    moved = {name: v.to("meta") if isinstance(v, torch.Tensor) else v for name, v in moved.items()}
    found = module.step(DocumentBatch(**moved))
    assert (found.shape, found.device.type) == ((), "meta")
    found.backward()
    assert module.model.table.grad.shape == module.model.table.shape
    assert module.model.bias.grad.shape == (data.outputs,)


def test_entry_by_entry_the_product_is_the_same(monkeypatch):
    from structsparse.tasks.textcat import model as models

    matrix = sparse.random_array((6, 5), density=0.5, rng=np.random.default_rng(0), format="csr")
    rows, dense = tensor_of(matrix), torch.rand(5, 3, dtype=torch.float64)
    expected = torch.from_numpy(matrix.toarray()) @ dense
    torch.testing.assert_close(models._product(rows, dense), expected)
    found = torch.zeros(6, 3, dtype=torch.float64)
    places, columns, values = models._entries(rows)
    found.index_add_(0, places, models._scaled(dense[columns], values))
    torch.testing.assert_close(found, expected)
    dense = torch.from_numpy(matrix.toarray())
    torch.testing.assert_close(models._transposed_product(rows, expected), dense.T @ expected)


# --- data and scores


def test_mini_batches_cover_train_once_in_an_order_of_the_seed(data):
    def drawn(seed: int, epoch: int) -> list[DocumentBatch]:
        rows = data.batches("train", 30, shuffle=True, seed=seed)
        rows.set_epoch(epoch)
        return list(rows)

    first = drawn(0, 0)
    chosen = np.concatenate([batch.sentences.numpy() for batch in first])
    np.testing.assert_array_equal(np.sort(chosen), np.arange(data.items))
    assert [len(batch.targets) for batch in first] == [batch.items for batch in first] == [30, 30, 20]
    whole = data.matrices["train"].toarray()
    for batch in first:
        np.testing.assert_array_equal(batch.matrix.to_dense().numpy(), whole[batch.sentences.numpy()])
        np.testing.assert_array_equal(batch.transposed.to_dense().numpy(), batch.matrix.to_dense().numpy().T)
        np.testing.assert_array_equal(batch.targets.numpy(), data.targets("train")[batch.sentences.numpy()])
    np.testing.assert_array_equal(chosen[:30], drawn(0, 0)[0].sentences)
    assert not np.array_equal(chosen[:30], drawn(0, 1)[0].sentences)
    shares = [next(iter(data.batches("train", 30, shuffle=True, rank=rank, world=2))) for rank in (0, 1)]
    np.testing.assert_array_equal(np.sort(np.concatenate([s.sentences for s in shares])), np.sort(chosen[:30]))
    assert {share.items for share in shares} == {30}


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

    draw = np.random.default_rng(0)
    gold, predicted = draw.choice(4, 60, p=[0.6, 0.3, 0.1, 0.0]), draw.choice(4, 60, p=[0.5, 0.3, 0.2, 0.0])
    score = ClassScore(("a", "b", "c", "never"))
    for part in np.array_split(np.arange(60), 3):
        score.add(gold[part], predicted[part])
    found = score.result()
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))
    numbers = draw.normal(size=(2, 60))
    error = SquaredError()
    for part in np.array_split(np.arange(60), 3):
        error.add(numbers[0, part], numbers[1, part])
    assert error.result()["mse"] == pytest.approx(mean_squared_error(*numbers))
    assert gain("dev/mse", 2.0) < gain("dev_mse", 1.0)
    assert np.isnan(SquaredError().result()["mse"])


# --- whole runs


def test_the_default_run_says_how_much_of_the_planted_structure_it_found(textcat):
    found = textcat()
    assert found.status == 0, found.errors
    metrics = found.metrics
    assert (metrics["task"], metrics["data"], metrics["loss"]) == ("textcat", "planted_documents", "logistic")
    assert 0 <= metrics["planted_precision"] <= 1
    assert 0 < metrics["planted_recall"] <= 1
    assert 0 < metrics["nonzero"] < metrics["weights"]
    assert 0 < metrics["groups_alive"] <= metrics["groups"] == SIZES["groups"]
    assert metrics["duality_gap"] < 1e-4 * metrics["objective"]
    assert metrics["accuracy"] > 0.5
    assert "planted" in (found.folder / "report" / "groups.md").read_text()


@pytest.mark.parametrize("choice", [f"{group}={name}" for group, own in PARTS.items() for name in own])
def test_every_part_trains(choice, textcat, tmp_path, monkeypatch):
    group, _, name = choice.partition("=")
    needs = PARTS[group][name]
    monkeypatch.chdir(tmp_path)
    words = [*planted_documents(seed=0, classes=2, **SIZES).groups.values()]
    (tmp_path / "words.json").write_text(json.dumps({f"group {k}": own for k, own in enumerate(words)}))
    options = () if needs is TREES else needs
    if "topics" in choice:
        pytest.importorskip("tomotopy")
    found = textcat(choice, *options, *(("reg=sentences",) if name == "early" else ()))
    if needs is TREES:
        assert (found.status, "needs documents with parse trees" in found.errors) == (2, True)
        return
    assert found.status == 0, found.errors
    assert found.metrics["accuracy"] > 0.5
    assert found.metrics["stationarity"] < (1e-6 if name not in ("admm", "early") else 1)
    assert group not in ("loss", "reg", "task") or found.metrics[group] == name


def test_the_report_explains_the_documents_that_are_asked_for(textcat):
    found = textcat("task.shown={test: [3, 0], train: [5]}")
    assert found.status == 0, found.errors
    page, plain = ((found.folder / "report" / f"explanation.{end}").read_text() for end in ("html", "txt"))
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
def test_plain_penalties_come_to_the_objective_of_scikit_learn(reg, l1_ratio, textcat, data):
    strength = 0.02
    options = (f"reg={reg}", f"reg.strength={strength}", "reg.relative=false", "solver=fista", "solver.tolerance=1e-11")
    found = textcat(*options, "trainer.max_epochs=2000", "features.weighting=log")
    assert found.status == 0, found.errors
    logs = data_of(weighting="log")
    how = {"solver": "saga" if reg == "l1" else "lbfgs", "tol": 1e-8, "max_iter": 3000, "random_state": 0}
    peer = LogisticRegression(l1_ratio=l1_ratio, C=1 / (strength * logs.items), **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # saga has not converged
        peer.fit(logs.matrices["train"], logs.targets("train"))
    ours = torch.load(found.folder / "checkpoints" / "fit" / "last.ckpt", weights_only=True)["state_dict"]
    terms = (strength, 0.0) if reg == "l1" else (0.0, strength)
    expected = objective(logs, peer.coef_[0], float(peer.intercept_[0]), *terms)
    assert objective(logs, ours["model.table"].numpy(), float(ours["model.bias"]), *terms) == pytest.approx(
        found.metrics["objective"], rel=1e-9
    )
    assert found.metrics["objective"] == pytest.approx(expected, rel=1e-4 if reg == "l1" else 1e-7)
    assert found.metrics["objective"] < expected * (1 + 1e-7)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
@pytest.mark.parametrize("reg", ["structured", "l1", "elastic_net", "l2", "squares by frequency"])
def test_every_loss_and_penalty_of_words_ends_with_a_proof(reg, loss, textcat):
    found = textcat(*BY_FREQUENCY if reg == "squares by frequency" else (f"reg={reg}",), f"loss={loss}")
    assert found.status == 0, found.errors
    assert 0 <= found.metrics["duality_gap"] < 1e-7
    assert found.metrics["stationarity"] < 1e-7


@pytest.mark.parametrize(
    ("reg", "structured"),
    [
        ("l1", ("reg.lasso=1",)),
        ("l2", ("reg.lasso=0", "reg.squares=1")),
        ("elastic_net", ("reg.strength=0.2", "reg.lasso=0.5", "reg.squares=0.5")),
    ],
)
def test_penalties_of_entries_are_the_structured_penalty_without_groups(reg, structured, textcat):
    """Earlier names of the right side: `reg=lasso_words`, `ridge_words`, `elastic_words`. The models are equal."""
    plain = textcat(f"reg={reg}", folder="plain")
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
def test_other_solvers_come_near_the_same_objective(options, textcat):
    best = textcat(*L1, folder="best").metrics["objective"]
    found = textcat(*L1[:1], *L1[2:5], *options)
    assert found.status == 0, found.errors
    assert best * (1 - 1e-6) < found.metrics["objective"] < best * (1.002 if "batch=32" not in options else 1.15)


@pytest.mark.parametrize(
    ("classes", "loss", "metric"),
    [(3, "logistic", "accuracy"), (3, "squared_hinge", "accuracy"), (0, "squared", "mse")],
)
def test_several_classes_and_numbers(classes, loss, metric, textcat):
    found = textcat(*L1, f"data.classes={classes}", f"loss={loss}", "trainer.max_epochs=150")
    assert found.status == 0, found.errors
    metrics = found.metrics
    assert metrics["loss"] == loss
    data = data_of(classes)
    assert metrics["weights"] == len(data.bag.layout) * max(1, classes)
    model = torch.load(found.folder / "checkpoints" / "fit" / "last.ckpt", weights_only=True)["state_dict"]
    scores = data.matrices["test"] @ model["model.table"].numpy() + model["model.bias"].numpy()
    gold = data.labelled.test.labels
    value = ((scores - gold) ** 2).mean() if classes == 0 else (scores.argmax(axis=1) == gold).mean()
    assert metrics[metric] == pytest.approx(value)
    assert f"dev_{metric}" in metrics


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(textcat, monkeypatch):
    options = (*L1, "batch=20", "solver=sgd", "solver.tolerance=null", "trainer.max_epochs=4")
    options = tuple(option for option in options if not option.startswith("solver.tolerance"))
    whole = textcat(*options, folder="whole")
    assert whole.status == 0, whole.errors
    with monkeypatch.context() as patch:
        at_step(patch, 10, asks_to_stop(), ClassifierModule)
        stopped = textcat(*options, folder="half")
    assert stopped.status == 128 + 2
    again = textcat(*options, "ckpt_path=last", folder="half")
    assert again.status == 0, again.errors
    assert again.result == whole.result


def test_groups_of_words_can_be_features(textcat, tmp_path):
    (tmp_path / "groups.json").write_text(json.dumps({"some": ["the", "of"]}))
    found = textcat(*L1, "+groups@features.extra=planted", "trainer.max_epochs=50")
    assert found.status == 0, found.errors
    assert found.metrics["features"] == len(data_of().bag.layout) + SIZES["groups"]


def test_a_second_stage_keeps_the_dead_dead(textcat):
    found = textcat(*L1, "recipe=select_refit", "trainer.max_epochs=60", "reg@recipe.refit.reg=l2")
    assert found.status == 0, found.errors
    select, refit = (
        torch.load(found.folder / "checkpoints" / stage / "last.ckpt", weights_only=True)["state_dict"]["model.table"]
        for stage in ("select", "refit")
    )
    assert 0 < int((refit != 0).sum()) <= int((select != 0).sum()) < len(select)
    assert not refit[select == 0].any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("loss=squared_hinge", "data.classes=0"), "take loss=squared"),
        (("solver=online_mira",), "solver: online solvers that go from sentence to sentence"),
        (("batch=0", "solver=sgd"), "batch=0: expected a number of documents"),
        (("reg=l1", "solver=fista", "reg.relative=true", "reg.strength=2"), "every group is dead"),
        (("features.weighting=loud",), "features.weighting"),
        (("task.shown={test: [60]}",), "document 60 of test, expected a number from 0 to 59"),
        (("task.shown={tset: [0]}",), "there is no part 'tset'; there are train, dev, test"),
        (("task.shown=[0]",), "task.shown=[0]: expected parts and numbers"),
        (("solver=admm", "solver.w_steps=0"), "solver.w_steps is 0"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(options, reason, textcat):
    found = textcat("trainer.max_epochs=2", *options)
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
    assert reason in found.errors


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
        ("task=lm", "data=planted_documents"),
        ("task=lm", "loss=logistic", "data.limit=4000"),
        ("task=lm", "model=bag", "data.limit=4000"),
        ("data=planted_documents",),
        ("loss=logistic", "data=planted"),
    ],
    ids=" ".join,
)
def test_parts_of_another_task_are_refused(options, textcat):
    found = textcat("trainer.max_epochs=1", *options, data=())
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
