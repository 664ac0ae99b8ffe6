"""Whole small runs: every option composes and trains, and what a run says of itself is so."""

import contextlib
import csv
import functools
import inspect
import io
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import get_method, instantiate
from omegaconf import OmegaConf
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from structsparse import load
from structsparse.base.errors import UserError
from structsparse.base.partials import callee
from structsparse.cli import main as cli
from structsparse.corpora.columns import Column, write_columns
from structsparse.corpora.known.tagging import planted
from structsparse.features.layout import TemplateLayout
from structsparse.losses.pointwise import PointwiseLoss
from structsparse.losses.reconstruction import PMIReconstruction
from structsparse.losses.softmax import SoftmaxLM
from structsparse.losses.structured import StructuredLoss
from structsparse.penalties import Penalty
from structsparse.tasks.tagging.data import TaggingData, prepare
from structsparse.tasks.tagging.task import TaggingTask
from structsparse.training import compose as composing
from structsparse.training.stage import Stage
from structsparse.weights.batch import Sizes
from structsparse.weights.observed_pairs import Pairs
from tests.support.classifiers import PARTS as OF_DOCUMENTS
from tests.support.runs import PLANTED, ROOT, SMALL, TWO_STAGES, run_here, run_program

CONF = ROOT / "conf"
RATES = {"sgd": 0.03, "momentum": 0.005, "adagrad": 0.3, "adam": 0.03, "adamw": 0.03}  # fit for small corpora
RATES |= {
    "rda": 0.1,
    "adagrad_rda": 0.1,
    "mira": 0.1,
    "accelerated_sgd": 0.01,
    "scaled_sgd": 0.03,
    "scaled_adagrad": 0.1,
}
WHOLE = ("batch=null", "trainer.max_epochs=10")
SCALED = ("reg=group_lasso", "groups=template", "reg.strength=0.1")
ONLINE = ("loss=perceptron", "reg.relative=false", "reg.strength=1e-3", "reg.every=1")
SOLVERS = {
    "online_perceptron": ONLINE,
    "online_mira": (*ONLINE, "loss=hinge"),
    "fista": WHOLE,
    "owlqn": WHOLE,
    "quasi_newton": WHOLE,
    "scaled_sgd": SCALED,
    "scaled_adagrad": SCALED,
}
OF_GROUPS = {"template_tree": "tree_l2", "coarse_to_fine": "overlap"}
MISSING = {  # have no default, or one that only their own task takes
    **{f"data={name}": ("data.join_dev=false",) for name in ("dated", "fomc", "sotu")},
    "groups=file": ("groups.path=groups.json",),
    "groups=words_file": ("groups.path=groups.json",),
    "groups=module_heads": ("groups.heads=2",),
}
OWN_NETWORKS = {"module_filters", "module_heads", "file"}  # need more than a tagger, or a file
KEYS = """task recipe loss reg data split seed f1 planted_precision planted_recall features weights nonzero rows_alive
groups groups_alive objective penalty stationarity critical_strength strength seconds_prepare seconds_fit seconds_test
items_per_second peak_memory_mb artifact_bytes"""


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))


OTHERS = (  # not for taggers; the tests of their tasks train them
    *("lm", "parsing", "arcs_coarse_to_fine", "contexts"),
    *("embeddings", "reconstruction", "forest", "random_dimensions", "online_dictionary", "svd", "algorithm1"),
    *("temporal", "counts", "drift", "newton_cg"),
)
LOSSES = StructuredLoss | SoftmaxLM | PointwiseLoss | PMIReconstruction
OF_STAGES = ("discrete", "prox_only", "straight_through", "tied")  # go with recipes of their own: test_discrete.py


def of_taggers(group: str) -> list[str]:
    """The choices of a group that taggers can have."""
    return [name for name in options(group) if name not in (*OF_DOCUMENTS.get(group, ()), *OTHERS)]


def composed(*overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def stages(cfg) -> list[Stage]:
    return [
        composing.stage_of(name, composing.changed(cfg, changes), "f1", Path("unused"), Console(quiet=True))
        for name, changes in cfg.recipe.items()
    ]


def lines(run, stage: str = "fit") -> list[dict[str, float]]:
    """The figures of each epoch, as shown on the console."""
    found = re.findall(rf"^{stage} .*$", run.output, re.MULTILINE)
    pattern = r"(loss|objective|dev f1|dev accuracy|rows alive|weights alive|groups alive) ([\d.,e+-]+)"
    return [{name: float(value.replace(",", "")) for name, value in re.findall(pattern, line)} for line in found]


# --- options


CHOICES = sorted(CONF.glob("*/[!_]*.yaml"))


@pytest.mark.parametrize("choice", [f"{path.parent.name}={path.stem}" for path in CHOICES])
def test_every_option_composes_and_is_made(choice):
    cfg = composed(choice, *MISSING.get(choice, ()))
    for stage in stages(cfg):
        for term in stage.terms:
            assert issubclass(term.penalty.func, Penalty)
        made = callee(stage.loss)  # a class, or a function that chooses one
        assert issubclass(made, LOSSES) if inspect.isclass(made) else callable(made)
        assert isinstance(stage.optimizer([torch.nn.Parameter(torch.zeros(2))]), torch.optim.Optimizer)
        if stage.scorer.func not in TaggingTask.models:  # the tests of other tasks make them
            continue
        pairs = Pairs(np.arange(8), np.zeros(7, np.uint8), np.ones((3, 3), bool))
        scorer = stage.scorer(Sizes(rows=7, labels=3, dense=2, vocabularies=(5, 4), pairs=lambda pairs=pairs: pairs))
        assert isinstance(scorer, torch.nn.Module)
    names = [name for name in cfg.data if name != "_target_"]
    inspect.signature(get_method(cfg.data._target_)).bind(**dict.fromkeys(names))


@functools.cache
def stages_of(recipe: str) -> list[str]:
    return list(composed(f"recipe={recipe}").recipe)


def pairs_of_choices() -> list:
    """Each penalty with each recipe; two of three are slow tests, so that each choice occurs several times without."""
    pairs = itertools.product(enumerate(of_taggers("reg")), enumerate(options("recipe")))
    return [
        pytest.param(reg, recipe, marks=[pytest.mark.slow] if (i + k) % 3 else []) for (i, reg), (k, recipe) in pairs
    ]


@pytest.mark.parametrize(("reg", "recipe"), pairs_of_choices())
def test_every_penalty_goes_into_every_recipe(reg, recipe):
    found = stages(composed(f"reg={reg}", f"recipe={recipe}", "model=sparse_dense", "loss=hinge"))
    shape, layout = (7, 3), TemplateLayout(["word[0]", "word[-1..0]"], np.array([0, 4, 7]), ["x", "y", "z"])
    for stage in found:
        (term,) = stage.terms
        term = replace(term, strength=0.1 if term.strength == "auto" else term.strength)
        penalty = term.on(torch.zeros(shape), "table", layout)
        assert penalty.value(torch.zeros(shape)) == 0
        assert (penalty.groups is None) == (term.groups is None)
    assert [stage.name for stage in found] == stages_of(recipe)


def test_a_stage_overrides_what_it_names_and_keeps_the_rest():
    cfg = composed(
        *("recipe=select_refit", "reg=l1", "solver=adam", "loss=crf", "batch=17", "trainer.max_epochs=5"),
        *(
            "++recipe.refit={batch: 3, trainer: {max_epochs: 9}, loss: "
            "{_target_: structsparse.losses.structured.Hinge}}",
        ),
        "+recipe.refit.loss._partial_=true",
    )
    select, refit = (composing.changed(cfg, changes) for changes in cfg.recipe.values())
    assert (select.batch, select.trainer.max_epochs) == (17, 5)
    assert (refit.batch, refit.trainer.max_epochs) == (3, 9)
    assert refit.trainer.accelerator == cfg.trainer.accelerator  # merged
    assert instantiate(refit.loss).func.__name__ == "Hinge"
    assert refit.reg._target_.endswith("SquaredL2")  # replaced
    assert "relative" in refit.reg
    assert select.reg == cfg.reg
    assert (cfg.batch, cfg.trainer.max_epochs) == (17, 5)
    with pytest.raises(UserError, match="'speed' is no option of a stage; there are seed, batch"):
        composing.changed(cfg, OmegaConf.create({"speed": 3}))


# --- every part trains


def assert_trained(run) -> None:
    assert (run.status, run.errors) == (0, "")
    losses = [line["loss"] for line in lines(run)]
    assert losses[-1] < losses[0]
    metrics = run.metrics
    scores = {metrics[key] for key in ("f1", "precision", "recall", "accuracy") if key in metrics}
    assert scores
    assert all(0 <= score <= 1 for score in scores)
    assert math.isfinite(metrics["objective"])
    assert metrics["objective"] >= metrics["strength"] * metrics["penalty"] >= 0


@pytest.mark.parametrize(
    "choice",
    [
        *(f"loss={loss}" for loss in of_taggers("loss") if loss != "softmax"),
        *(f"solver={solver}" for solver in of_taggers("solver") if solver not in OF_STAGES),
        *(f"reg={reg}" for reg in of_taggers("reg") if reg not in ("none", *OF_STAGES)),
        *(f"groups={groups}" for groups in of_taggers("groups") if groups not in OWN_NETWORKS),
        *(f"features={features}" for features in of_taggers("features")),
        *(f"task={task}" for task in of_taggers("task")),
    ],
)
def test_every_part_trains(choice, run):
    group, _, name = choice.partition("=")
    own = {
        "reg": ("reg.strength=1e-3", "solver=sgd", "solver.lr=0.03"),  # one step for all entries is what all can take
        "groups": (f"reg={OF_GROUPS.get(name, 'group_lasso')}", "reg.strength=0.1", "solver=sgd", "solver.lr=0.03"),
        "loss": ("reg.strength=1e-3",),
        "solver": (*SOLVERS.get(name, ()), f"solver.lr={RATES.get(name, 1.0)}"),
    }
    found = run(choice, "trainer.max_epochs=4", *own.get(group, ()), "recipe=direct")
    assert_trained(found)
    metrics = found.metrics
    assert group not in ("loss", "reg", "task") or metrics[group] == name
    assert ("accuracy" in metrics, "f1" in metrics) == (True, choice != "task=pos")
    assert (metrics["stationarity"] is None) == (metrics["loss"] != "crf")


def test_without_a_penalty_every_seen_weight_lives(run):
    found = run("reg=none", "reg.strength=0", "trainer.max_epochs=3")
    assert_trained(found)
    assert (found.metrics["strength"], found.metrics["penalty"], found.metrics["critical_strength"]) == (0, 0, None)
    assert found.metrics["rows_alive"] == found.metrics["features"]


def columns_with_numbers(folder: Path) -> tuple[str, ...]:
    """Planted sentences with a numeric column that gives the entities away."""
    splits = planted(0, 80, 30, 30)
    for part, sentences in splits.parts.items():
        numbers = [f"{-1.5 if tag == 'O' else 2}" for tag in sentences.columns["tag"].strings()]
        with (folder / f"{part}.txt").open("wb") as stream:
            write_columns(stream, sentences.with_column("number", Column.from_strings(numbers)))
    return ("data=files", "data.columns=[word,pos,tag,number]", *(f"data.{p}={folder / p}.txt" for p in splits.parts))


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_numbers_stand_beside_sparse_features(precision, run, tmp_path):
    data = columns_with_numbers(tmp_path)
    found = run(
        *("model=sparse_dense", "features.dense=[number]", "features.templates=['word[0]']"),
        *("trainer.max_epochs=4", f"trainer.precision={precision}"),
        data=data,
    )
    assert_trained(found)
    state = found.checkpoint()["state_dict"]
    weights = state["tagger.scorer.parts.1.weights"]  # [columns, labels]
    outside = load(found.folder / "model").labels.index("O")
    assert (weights[0, outside] < weights[0]).sum() == weights.shape[1] - 1  # O is spoken for by low numbers
    assert found.metrics["accuracy"] > 0.8
    assert_the_artifact_scores_alike(found, tmp_path / "test.txt")


def test_a_recurrent_scorer_stands_in_for_sparse_features(run):
    found = run(
        *("model=recurrent", "model.hidden=8", "features.codes=[word,pos]", "solver=adam"),
        *("reg.parameters=['scorer.output.weight']", "reg.strength=0.3", "trainer.max_epochs=4"),
    )
    assert_trained(found)
    weight = found.checkpoint()["state_dict"]["tagger.scorer.output.weight"]
    assert 0 < (weight == 0).sum() < weight.numel()
    assert found.metrics["rows_alive"] is None
    assert {"features", "weights", "nonzero", "groups", "groups_alive"} <= found.metrics.keys()


class ByPos(torch.nn.Module):
    """A user's own scorer: a score for each part of speech and label."""

    def __init__(self, sizes: Sizes, scale: float):
        super().__init__()
        self.scale = scale
        self.own = torch.nn.Embedding(sizes.vocabularies[0], sizes.labels)
        torch.nn.init.zeros_(self.own.weight)

    def forward(self, batch):
        return self.scale * batch.pad(self.own(batch.codes[:, 0]))


def test_any_module_that_yields_scores_stands_in_for_the_scorer(run):
    found = run(
        *("model._target_=tests.runs.test_train.ByPos", "+model.scale=2.0", "features.codes=[pos]"),
        *("reg.parameters=['scorer.own.weight']", "trainer.max_epochs=4"),
    )
    assert_trained(found)
    assert "no artifact: " in found.output
    assert found.metrics["artifact_bytes"] is None
    assert not (found.folder / "model").exists()


# --- what a run of two stages leaves behind


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_here(*TWO_STAGES, folder=tmp_path_factory.mktemp("finished") / "run")


def the_data() -> TaggingData:
    """What `PLANTED` and `SMALL` say, prepared anew."""
    templates = next(line for line in SMALL if line.startswith("features.templates=")).partition("=")[2]
    return prepare(planted(0, 120, 40, 40), OmegaConf.create(templates))


def table_of(run, stage: str, name: str) -> torch.Tensor:
    return run.checkpoint(stage, name)["state_dict"]["tagger.scorer.table"]


def test_metrics_have_every_key(finished):
    metrics = finished.metrics
    assert not set(KEYS.split()) - metrics.keys()
    choices = {key: metrics[key] for key in ("task", "recipe", "loss", "reg", "data", "split", "seed")}
    assert choices == {
        "task": "ner", "recipe": "select_refit", "loss": "crf", "reg": "group_lasso", "data": "planted",
        "split": "test", "seed": 0,
    }  # fmt: skip
    assert all(value is None or isinstance(value, int | float | str) for value in metrics.values())  # flat
    for key in ("f1", "precision", "recall", "accuracy", "planted_precision", "planted_recall"):
        assert 0 <= metrics[key] <= 1
    for key in ("seconds_prepare", "seconds_fit", "seconds_test", "items_per_second", "peak_memory_mb"):
        assert metrics[key] > 0
    assert metrics["f1"] == pytest.approx(
        2 * metrics["precision"] * metrics["recall"] / (metrics["precision"] + metrics["recall"])
    )


def test_everything_a_run_makes_lies_in_its_folder(finished):
    found = {str(path.relative_to(finished.folder)) for path in finished.folder.rglob("*") if path.is_file()}
    expected = {"metrics.json", "model/model.json", "model/weights.safetensors", ".hydra/config.yaml"}
    expected |= {f"report/{name}" for name in ("groups.tsv", "groups.md", "groups.png", "features.tsv")}
    expected |= {"checkpoints/select/last.ckpt", "checkpoints/refit/last.ckpt", "checkpoints/refit/best.ckpt"}
    assert expected <= found
    assert any(path.startswith("tensorboard/events.out.tfevents") for path in found)
    assert all(path.partition("/")[0] in ("tensorboard", *{e.partition("/")[0] for e in expected}) for path in found)


def test_counts_agree_with_the_weights(finished):
    metrics, data = finished.metrics, the_data()
    selected, last = table_of(finished, "select", "last"), table_of(finished, "refit", "best")
    blocks = list(zip(data.index.offsets[:-1], data.index.offsets[1:], strict=True))
    alive = [bool(selected[a:b].any()) for a, b in blocks]
    assert 0 < sum(alive) < len(alive)
    assert (metrics["groups"], metrics["groups_alive"]) == (len(alive), sum(alive))
    assert (metrics["features"], metrics["weights"]) == (len(selected), selected.numel())
    assert metrics["rows_alive"] == int(last.any(dim=1).sum())
    assert metrics["nonzero"] == int((last != 0).sum())
    assert len(last) == sum(b - a for (a, b), lives in zip(blocks, alive, strict=True) if lives)


def test_the_penalty_and_the_objective_are_those_of_the_selecting_stage(finished):
    metrics, data = finished.metrics, the_data()
    table = table_of(finished, "select", "last").double()
    blocks = zip(data.index.offsets[:-1], data.index.offsets[1:], strict=True)
    penalty = sum(math.sqrt((b - a) * table.shape[1]) * float(table[a:b].norm()) for a, b in blocks)
    assert metrics["penalty"] == pytest.approx(penalty, rel=1e-6)
    assert metrics["strength"] == pytest.approx(0.7 * metrics["critical_strength"])
    loss = metrics["objective"] - metrics["strength"] * penalty
    last = lines(finished, "select")[-1]
    assert loss == pytest.approx(last["loss"], rel=0.1)  # the mean over the last epoch, while weights still moved
    assert metrics["final_objective"] < loss


def test_the_refit_keeps_what_was_selected_and_nothing_else(run):
    """Also inside the living groups, where the selecting penalty forbids single entries."""
    found = run(*TWO_STAGES, "reg=sparse_group_lasso", "reg.strength=0.5", "reg.mix=0.5")
    selected = table_of(found, "select", "last")
    kept = selected[selected.any(dim=1)]
    last = table_of(found, "refit", "last")
    assert last.shape == kept.shape
    assert 0 < (kept == 0).sum() < kept.numel()
    assert (last[kept == 0] == 0).all()
    assert (last[kept != 0] != kept[kept != 0]).any()


def test_the_report_says_which_groups_live(finished):
    with (finished.folder / "report" / "groups.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    metrics, data = finished.metrics, the_data()
    assert {row["group"] for row in rows} == set(data.index.names)
    living = {row["group"] for row in rows if row["lives"] == "yes"}
    assert len(living) == metrics["groups_alive"]
    table = table_of(finished, "select", "last").double()
    for row in rows:
        k = data.index.names.index(row["group"])
        weights = table[data.index.offsets[k] : data.index.offsets[k + 1]]
        assert float(row["norm"]) == pytest.approx(float(weights.norm()), rel=1e-6)
        assert (int(row["weights"]), int(row["of"])) == (int((weights != 0).sum()), weights.numel())
        assert (row["planted"] == "yes") == (row["group"] in data.splits.truth)
    norms = [float(row["norm"]) for row in rows]
    assert norms == sorted(norms, reverse=True)
    assert max(float(row["enters at"]) for row in rows) == pytest.approx(1.0)
    right = len(living & set(data.splits.truth))
    assert metrics["planted_precision"] == right / len(living)
    assert metrics["planted_recall"] == right / len(data.splits.truth)
    assert "living groups: 4 of 5" in finished.output
    text = (finished.folder / "report" / "groups.md").read_text()
    assert all(f"| {row['group']} |" in text for row in rows)
    assert (finished.folder / "report" / "groups.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_spells_out_the_living_features(finished):
    with (finished.folder / "report" / "features.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len(rows) == finished.metrics["rows_alive"]
    last = table_of(finished, "refit", "best")
    norms = sorted(last.norm(dim=1).tolist(), reverse=True)
    assert [float(row["norm"]) for row in rows] == pytest.approx(norms[: len(rows)], rel=1e-5)
    words = set(the_data().splits.train.columns["word"].strings())
    for row in rows:
        for atom in row["feature"].split(" & "):
            attribute, _, value = atom.partition("[")
            if attribute == "suffix3":
                value = value.partition("=")[2]
                assert any(word.endswith(value) for word in words)


def assert_the_artifact_scores_alike(run, test: Path) -> None:
    """`structsparse evaluate` says of the small model what the run says of the trained one."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main(["evaluate", str(run.folder / "model"), str(test), "--json"]) == 0
    scores = json.loads(output.getvalue())
    for key in ("f1", "precision", "recall", "accuracy"):
        assert scores[key] == run.metrics[key]


def test_the_artifact_holds_the_living_rows_and_scores_alike(finished, tmp_path):
    metrics, model = finished.metrics, load(finished.folder / "model")
    table = model.tagger.scorer.table
    assert len(model.index) == metrics["rows_alive"]
    assert int((table != 0).sum()) == metrics["nonzero"]
    last = table_of(finished, "refit", "best")
    assert torch.equal(table.flatten().sort().values, last[last.any(dim=1)].flatten().sort().values)
    assert metrics["artifact_bytes"] == sum(path.stat().st_size for path in (finished.folder / "model").iterdir())
    with (tmp_path / "test.txt").open("wb") as stream:
        write_columns(stream, the_data().splits.test)
    assert_the_artifact_scores_alike(finished, tmp_path / "test.txt")


@pytest.fixture(scope="module")
def board(finished):
    sizes = dict.fromkeys(("scalars", "histograms", "images", "tensors"), 0)  # all of them
    board = EventAccumulator(str(finished.folder / "tensorboard"), size_guidance=sizes)
    return board.Reload()


def scalar(board, name: str) -> list[float]:
    return [event.value for event in board.Scalars(name)]


def test_the_board_shows_each_epoch(finished, board):
    for stage in ("select", "refit"):
        shown = lines(finished, stage)
        assert len(shown) == 2
        for name in ("loss", "objective"):
            assert scalar(board, f"{stage}/epoch/{name}") == pytest.approx([line[name] for line in shown], abs=1e-4)
        loss, penalty, objective = (scalar(board, f"{stage}/epoch/{name}") for name in ("loss", "penalty", "objective"))
        assert objective == pytest.approx([a + b for a, b in zip(loss, penalty, strict=True)], rel=1e-5)
        assert [event.step for event in board.Scalars(f"{stage}/epoch/loss")] == [8, 16]
        for kind in ("rows", "weights"):
            name = f"{stage}/epoch/{kind}_alive/tagger.scorer.table"
            assert scalar(board, name) == [line[f"{kind} alive"] for line in shown]
    groups = scalar(board, "select/epoch/groups_alive/tagger.scorer.table")
    assert groups[-1] == finished.metrics["groups_alive"]
    assert scalar(board, "refit/epoch/rows_alive/tagger.scorer.table")[-1] == finished.metrics["rows_alive"]


def test_the_board_shows_the_steps(run):
    found = run("trainer.log_every_n_steps=3", "trainer.max_epochs=3", "solver.lr=0.2", "solver.final_lr=0.25")
    board = EventAccumulator(str(found.folder / "tensorboard")).Reload()
    steps = [event.step for event in board.Scalars("fit/step/loss")]
    assert steps == list(range(3, 25, 3))
    rates = [0.2 * (1 - 0.75 * step / 24) for step in steps]  # those of the steps to come
    assert scalar(board, "fit/step/learning_rate") == pytest.approx(rates, rel=1e-5)


def test_the_board_shows_weights_norms_and_living_groups(finished, board):
    tags = board.Tags()
    for stage, name in (("select", "last"), ("refit", "last")):
        histogram = board.Histograms(f"{stage}/weights/tagger.scorer.table")[-1].histogram_value
        table = table_of(finished, stage, name)
        assert histogram.num == int((table != 0).sum())
        assert (histogram.min, histogram.max) == pytest.approx((float(table.min()), float(table.max())))
    assert "select/group_norms/tagger.scorer.table" in tags["images"]
    image = board.Images("select/group_norms/tagger.scorer.table")[-1]
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.width > 100
    (name,) = (tag for tag in tags["tensors"] if tag.startswith("select/living_groups/tagger.scorer.table"))
    text = board.Tensors(name)[-1].tensor_proto.string_val[0].decode()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    living = [row[0] for row in rows[2:] if "yes" in row]
    assert len(living) == finished.metrics["groups_alive"]
    assert set(living) < {row[0] for row in rows[2:]} == set(the_data().index.names)


def test_the_board_shows_options_beside_results(finished, board):
    final = {tag.removeprefix("final/"): scalar(board, tag)[-1] for tag in board.Tags()["scalars"] if "final/" in tag}
    numbers = {key: value for key, value in finished.metrics.items() if isinstance(value, int | float)}
    assert final == {key: pytest.approx(value, rel=1e-5) for key, value in numbers.items()}
    content = board.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    for choice in (b"group_lasso", b"select_refit", b"adagrad", b"planted"):
        assert choice in content


def test_the_program_ends_with_the_same_figures(finished, tmp_path):
    """As a user starts it, in a process of its own."""
    found = run_program(*TWO_STAGES, folder=tmp_path / "run")
    assert (found.status, found.errors) == (0, "")
    assert found.result == finished.result
    assert (found.folder / "model" / "weights.safetensors").read_bytes() == (
        finished.folder / "model" / "weights.safetensors"
    ).read_bytes()
    config = OmegaConf.load(found.folder / ".hydra" / "config.yaml")
    assert config.reg.strength == 0.7
    assert f"all files are in {found.folder}" in found.output


@pytest.mark.parametrize(("option", "alike"), [("seed=0", True), ("seed=1", False)])
def test_a_seed_decides_a_run(option, alike, finished, run):
    again = run(*TWO_STAGES, option)
    assert torch.equal(table_of(again, "select", "last"), table_of(finished, "select", "last")) is alike


# --- zeros


@pytest.mark.parametrize("reg", ["l1", "elastic_net", "group_lasso", "sparse_group_lasso"])
@pytest.mark.parametrize("solver", ["sgd", "momentum", "adagrad", "adam"])
def test_weights_come_alive_below_the_critical_strength_and_not_above(reg, solver, run):
    """On the whole corpus, where a gradient is no matter of chance; exactly zero, not nearly."""
    epochs = 40 if solver == "momentum" else 8  # which needs them to gather
    whole = ("recipe=direct", f"reg={reg}", f"solver={solver}", f"solver.lr={RATES[solver] / 10}", "batch=null")
    whole += (f"trainer.max_epochs={epochs}", f"trainer.check_val_every_n_epoch={epochs}")
    above = run(*whole, "reg.strength=1.1")
    assert (above.status, above.errors.count("every group is dead")) == (2, 1)
    assert (table_of(above, "fit", "last") == 0).all()
    below = run(*whole, "reg.strength=0.9", folder="below")
    assert 0 < below.metrics["nonzero"] < below.metrics["weights"]
    assert f"critical {below.metrics['critical_strength']:.4g}" in above.errors


def test_more_strength_leaves_fewer_weights(run):
    whole = ("batch=null", "trainer.max_epochs=12")
    alive = [run(*whole, f"reg.strength={s}", folder=str(s)).metrics["nonzero"] for s in (0.02, 0.1, 0.3, 0.8)]
    assert alive == sorted(alive, reverse=True)
    assert alive[0] > 2 * alive[-1] > 0


def test_training_goes_towards_a_stationary_point(run):
    """The distance to it, relative to that of zero, says how far it has come."""
    options = ("recipe=direct", "reg=group_lasso", "reg.strength=0.3", "batch=null", "choose=last")
    options += ("solver=adam", "solver.lr=0.1", "solver.final_lr=0.05", "trainer.check_val_every_n_epoch=1000")
    found = [run(*options, f"trainer.max_epochs={n}", folder=str(n)).metrics for n in (3, 30, 150)]
    distances = [metrics["stationarity"] for metrics in found]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.01
    assert found[0]["objective"] > found[1]["objective"] > found[2]["objective"]


# --- choosing on dev, judging on test


def f1s(run, stage: str = "fit") -> list[float]:
    return [line["dev f1"] for line in lines(run, stage)]


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_a_stage_before_its_time(patience, run):
    found = run("choose=best", f"patience={patience}", "trainer.max_epochs=60", "solver.lr=0.5")
    best = found.checkpoint()["callbacks"]["Checkpoints"]
    assert len(f1s(found)) == best["best_epoch"] + 1 + patience < 60
    scores = np.array(f1s(found))
    assert best["best_epoch"] == int(np.argmax(scores))
    assert found.metrics["f1"] > 0


def test_the_best_model_on_dev_is_the_one_that_is_kept(run):
    """At a rate that stays, the best epoch's model is where a shorter run ends."""
    steady = ("solver=sgd", "solver.lr=0.1", "solver.final_lr=1", "reg.strength=1e-3")
    chosen = run(*steady, "choose=best", "trainer.max_epochs=8", folder="chosen")
    best = int(np.argmax(f1s(chosen)))
    assert best < 7
    shorter = run(*steady, "choose=last", f"trainer.max_epochs={best + 1}", folder="shorter")
    assert torch.equal(table_of(chosen, "fit", "best"), table_of(shorter, "fit", "last"))
    assert chosen.metrics["f1"] == shorter.metrics["f1"]
    assert chosen.metrics["objective"] == shorter.metrics["objective"]
    assert not torch.equal(table_of(chosen, "fit", "last"), table_of(chosen, "fit", "best"))


def test_test_is_looked_at_once_and_last(run, monkeypatch):
    asked = []
    batches = TaggingData.batches

    def recorded(self, part, *arguments, **options):
        asked.append(part)
        return batches(self, part, *arguments, **options)

    monkeypatch.setattr(TaggingData, "batches", recorded)
    assert run(*TWO_STAGES, "patience=1").status == 0
    assert asked.count("test") == 2  # scored, then predicted for report/predictions_test.txt
    first = asked.index("test")
    assert {"train"} & set(asked[first:]) == set()  # nothing is fitted after test was read
    assert {"train", "dev"} <= set(asked)


def test_planted_sizes_are_those_that_tests_rest_on():
    data = the_data()
    assert [f"data.{part}={len(arrays)}" for part, arrays in data.arrays.items()] == list(PLANTED[1:])
