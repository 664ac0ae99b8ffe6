"""Whole runs: what they write, what they refuse, and that two processes and a device without values do as one."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from structsparse import artifact, losses
from structsparse.callbacks.proximal import ProximalStep
from structsparse.corpora.splits import planted
from structsparse.errors import UserError
from structsparse.features.layout import Layout, by_label, by_template
from structsparse.models import SparseScorer, Tagger
from structsparse.penalties import L1, ElasticNet, GroupLasso, NoPenalty, SparseGroupLasso, SquaredL2
from structsparse.recipe import penalised
from structsparse.structures.chain import Chain
from structsparse.tasks.tagging import Tagging, prepare
from tests.conftest import TWO_STAGES, run_here, run_program

KEYS = """task recipe loss reg data split seed f1 planted_precision planted_recall features weights nonzero rows_alive
groups groups_alive objective penalty stationarity critical_strength strength seconds_prepare seconds_fit seconds_test
items_per_second peak_memory_mb artifact_bytes""".split()


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory):
    """Select and refit, on the planted corpus."""
    options = [option for option in TWO_STAGES if "reg.strength" not in option]
    return run_here(*options, "reg.strength=0.6", folder=tmp_path_factory.mktemp("two") / "run")


def test_a_run_writes_every_figure_and_file(two_stages):
    assert two_stages.status == 0, two_stages.errors
    metrics = two_stages.metrics
    assert set(KEYS) <= set(metrics)
    assert all(value is None or isinstance(value, str | int | float) for value in metrics.values())
    assert all(0 <= metrics[key] <= 1 for key in ("f1", "precision", "recall", "planted_precision", "planted_recall"))
    assert metrics["objective"] >= metrics["strength"] * metrics["penalty"] > 0
    assert 0 < metrics["groups_alive"] <= metrics["groups"] == 5
    assert metrics["nonzero"] <= metrics["weights"]
    for name in (
        ".hydra/config.yaml", "tensorboard", "checkpoints/select/last.ckpt", "checkpoints/refit/best.ckpt",
        "model/model.json", "model/weights.safetensors", "report/groups.md", "report/groups.png",
    ):  # fmt: skip
        assert (two_stages.folder / name).exists(), name


def test_the_artifact_holds_what_the_figures_say(two_stages):
    model, metrics = artifact.load(two_stages.folder / "model"), two_stages.metrics
    table = dict(model.tagger.named_parameters())["scorer.table"]
    assert len(table) == metrics["rows_alive"]
    assert int((table != 0).sum()) == metrics["nonzero"]
    assert sum(f.stat().st_size for f in (two_stages.folder / "model").iterdir()) == metrics["artifact_bytes"]
    test = planted(seed=0, train=120, dev=40, test=40).test
    right = sum(a == b for a, b in zip(model.tag(test).strings(), test.columns["tag"].strings(), strict=True))
    assert right / test.tokens == pytest.approx(metrics["accuracy"])


def test_the_report_tells_living_groups_and_features(two_stages):
    with (two_stages.folder / "report" / "groups.tsv").open() as file:
        groups = list(csv.DictReader(file, delimiter="\t"))
    assert sum(row["lives"] == "yes" for row in groups) == two_stages.metrics["groups_alive"]
    assert {row["planted"] for row in groups} == {"yes", "no"}
    with (two_stages.folder / "report" / "features.tsv").open() as file:
        features = list(csv.DictReader(file, delimiter="\t"))
    assert len(features) == two_stages.metrics["rows_alive"]
    assert "=" in features[0]["feature"]


def test_the_event_files_can_be_read_back(two_stages):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags: dict[str, set] = {}
    for path in (two_stages.folder / "tensorboard").glob("events*"):
        events = EventAccumulator(str(path))
        events.Reload()
        for kind, names in events.Tags().items():
            tags.setdefault(kind, set()).update(names if isinstance(names, list) else [])
    table = "tagger.scorer.table"
    wanted = {
        "scalars": ["select/epoch/loss", "select/epoch/penalty", "select/epoch/objective", "select/dev/f1",
                    "refit/epoch/loss", f"select/epoch/rows_alive/{table}", f"select/epoch/groups_alive/{table}",
                    "select/step/learning_rate", "final/f1"],
        "histograms": [f"select/weights/{table}"],
        "images": [f"select/group_norms/{table}"],
        "tensors": [f"select/living_groups/{table}/text_summary"],
    }  # fmt: skip
    for kind, names in wanted.items():
        assert set(names) <= tags[kind], (kind, tags[kind])


@pytest.mark.parametrize("option", ["loss=hinge", "loss=perceptron", "reg=l2", "reg=none", "reg=elastic_net",
                                    "solver=sgd", "solver=momentum", "solver=adam", "solver=adamw"])  # fmt: skip
def test_every_choice_trains(option, run):
    name = option.partition("=")[2]
    relative = [f"reg.relative={str(name not in ('l2', 'none')).lower()}", "trainer.max_epochs=1"]
    strength = ["reg.strength=0"] if name == "none" else []
    result = run(option, *relative, *strength)
    assert result.status == 0, result.errors
    smooth = not option.startswith("loss=")
    assert (result.metrics["stationarity"] is not None) == smooth


@pytest.mark.parametrize("groups", ["template", "feature", "label"])
@pytest.mark.parametrize("reg", ["group_lasso", "sparse_group_lasso"])
def test_every_grouping_trains(reg, groups, run):
    result = run(f"reg={reg}", f"groups={groups}", "recipe=direct", "batch=16", "reg.strength=0.3")
    assert result.status == 0, result.errors
    assert 0 < result.metrics["groups_alive"] <= result.metrics["groups"]


def test_a_recurrent_scorer_takes_the_place_of_the_sparse_one(run):
    options = "model=recurrent", "features.codes=[word,pos]", "reg.parameters=['scorer.output.weight']", "solver=adam"
    result = run(*options, "reg.strength=0.1")
    assert result.status == 0, result.errors
    assert result.metrics["artifact_bytes"] > 0
    assert result.metrics["features"] is None


def columns_file(path: Path, lines: int, extra: str = "") -> Path:
    words = "the big dog saw New York at noon".split()
    tags = "O O O O B-LOC I-LOC O O".split()
    text = "".join(f"{w}\tN\t{k % 3 + 0.5}\t{t}\n" for k, (w, t) in enumerate(zip(words, tags, strict=True)))
    path.write_text((text + "\n") * lines + extra)
    return path


def files(tmp_path: Path, **parts: Path) -> tuple[str, ...]:
    paths = {part: parts.get(part) or columns_file(tmp_path / part, 12) for part in ("train", "dev", "test")}
    named = [f"data.{part}={path}" for part, path in paths.items()]
    return ("data=files", *named, "data.columns=[word,pos,size,tag]", "features.templates=['word[0]','pos[-1..0]']")


def test_numeric_columns_stand_beside_sparse_features(tmp_path, run):
    options = files(tmp_path)
    result = run(*options, "model=sparse_dense", "features.dense=[size]", data=())
    assert result.status == 0, result.errors
    assert result.metrics["f1"] > 0.5


BAD = {
    "a missing file": (["data.train=nowhere"], "nowhere"),
    "a ragged line": ("ragged", r"train.*line 109: 2 columns, expected 4"),
    "an empty file": ("", "train"),
    "a stray tag": ("stray", r"train.*I-LOC"),
    "no feature": (["features.min_count=99999"], r"no feature of 2 templates occurs 99999 times"),
    "a negative strength": (["reg.strength=-1"], r"strength.*-1"),
    "a strength that is none": (["reg.strength=.nan"], r"strength.*nan"),
    "a pattern without a parameter": (["reg.parameters=[nothing]"], r"'nothing' matches no parameter; there are"),
    "every parameter": (["reg.parameters=['*']"], "matches every parameter"),
    "a template mistake": (["features.templates=['word']"], r"template 'word'"),
    "an unknown column": (["task.tag=entity"], r"no column 'entity'"),
    "nothing to resume": (["ckpt_path=nowhere"], r"ckpt_path=nowhere"),
    "clipping": (["trainer.gradient_clip_val=1.0"], "gradient_clip_val"),
    "everything dead": (["reg.strength=1.5", "reg=group_lasso", "recipe=select_refit", "trainer.max_epochs=40",
                         "recipe.refit.trainer.max_epochs=1", "batch=null"], "every group is dead"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_sentence(case, tmp_path, run):
    what, said = BAD[case]
    parts, options = {}, []
    if case == "an empty file":
        parts["train"] = tmp_path / "train"
        parts["train"].write_text("")
    elif what == "ragged":
        parts["train"] = columns_file(tmp_path / "train", 12, "a b\n")
    elif what == "stray":
        parts["train"] = columns_file(tmp_path / "train", 12, "x\tN\t1\tO\nYork\tN\t1\tI-LOC\n")
        options = ["data.scheme=iob2", "data.stray=refuse"]
    else:
        options = what
    given = {option.partition("=")[0]: option for option in (*files(tmp_path, **parts), *options)}
    result = run(*given.values(), data=())
    assert result.status == 2
    assert re.search(said, result.errors), result.errors
    assert result.errors.startswith("error: ")
    assert result.errors.count("\n") == 1


def test_stray_tags_are_repaired_and_counted(tmp_path, run):
    train = columns_file(tmp_path / "train", 12, "x\tN\t1\tO\nYork\tN\t1\tI-LOC\n")
    result = run(*files(tmp_path, train=train), "data.scheme=iob2", data=())
    assert result.status == 0, result.errors
    assert "train: 1 tags outside the iob2 scheme were repaired" in result.output


def test_a_label_unseen_in_training_is_told_and_scored_as_wrong(tmp_path, run):
    test = columns_file(tmp_path / "test", 0, "the\tN\t1\tB-NEW\n\n")
    result = run(*files(tmp_path, test=test), data=())
    assert result.status == 0, result.errors
    assert "B-NEW: label not seen in training" in result.output
    assert result.metrics["recall"] == 0


def test_unknown_choices_are_answered_with_the_valid_ones(tmp_path):
    result = run_program("reg=lasso", folder=tmp_path / "run")
    assert result.status != 0
    assert "group_lasso" in result.errors + result.output
    assert "sparse_group_lasso" in result.errors + result.output


def test_groups_must_fit_the_parameter():
    layout = Layout(["a", "b"], np.array([0, 3, 5]), ["O", "B-X"])
    with pytest.raises(
        UserError, match=r"groups=template does not fit table \(4, 2\): expected a table with 5 features"
    ):
        by_template((4, 2), layout, parameter="table")
    with pytest.raises(UserError, match=r"groups=label does not fit table \(5, 3\): expected a table with 2 labels"):
        by_label((5, 3), layout, parameter="table")
    with pytest.raises(UserError, match="matches every parameter"):
        penalised(["*"], ["tagger.a", "tagger.b"])


def test_two_processes_do_as_one(tmp_path):
    """Gradients are added up in another order, so to float tolerance; both processes shrink alike."""
    options = "solver=momentum", "reg=group_lasso", "recipe=direct", "batch=16", "reg.strength=0.3"
    one = run_program(*options, folder=tmp_path / "one")
    shared = "trainer.devices=2", "trainer.accelerator=cpu", "trainer.strategy=ddp"
    two = run_program(*options, *shared, folder=tmp_path / "two")
    assert one.status == two.status == 0, two.errors
    for key in ("objective", "f1", "penalty", "strength"):
        assert two.metrics[key] == pytest.approx(one.metrics[key], rel=1e-4), key
    assert two.metrics["groups_alive"] == one.metrics["groups_alive"]
    a, b = (r.checkpoint()["state_dict"] for r in (one, two))
    assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)


@pytest.fixture(scope="module")
def data():
    return prepare(planted(seed=0, train=40, dev=10, test=10), ["word[0]", "pos[-1..0]", "suffix3[0]"])


def module_of(data, loss) -> Tagging:
    tagger = Tagger(SparseScorer(data.sizes), data.sizes.labels)
    return Tagging(tagger, loss(Chain()), None, data.score, ["tagger.scorer.table"])


@pytest.mark.parametrize("loss", [losses.CRF, losses.Hinge, losses.Perceptron])
def test_a_training_step_runs_without_values(loss, data):
    """On `meta` a mixed device, a hidden look at a value or a shape that depends on one is an error."""
    module = module_of(data, loss).to("meta")
    batch = next(iter(data.batches("train", 8)))
    batch = module.transfer_batch_to_device(batch, torch.device("meta"), 0)
    module.step(batch).backward()
    assert module.tagger.scorer.table.grad.shape == module.tagger.scorer.table.shape
    layout = Layout(data.index.names, data.index.offsets, data.labels)
    groups = by_template(tuple(module.tagger.scorer.table.shape), layout)
    for penalty in (NoPenalty(), SquaredL2(0.1), L1(0.1), ElasticNet(0.1, 0.5), GroupLasso(groups, 0.1),
                    SparseGroupLasso(groups, 0.1, 0.5)):  # fmt: skip
        weights = module.tagger.scorer.table.detach()
        penalty.to("meta").prox_(weights, 0.1)
        penalty.prox_(weights, torch.ones_like(weights))


class Counted(L1):
    """Remembers the steps it was given."""

    def __init__(self, strength: float) -> None:
        super().__init__(strength)
        self.steps: list[float] = []

    def prox_(self, W, steps):
        self.steps.append(float(steps))
        return super().prox_(W, steps)


@pytest.mark.parametrize(("every", "warmup", "accumulate"), [(1, 0, 1), (3, 0, 1), (1, 0, 4), (100, 0, 1), (1, 5, 1)])
def test_the_prox_follows_every_step_and_thresholds_add_up(data, every, warmup, accumulate):
    import lightning

    penalty = Counted(0.01)
    module = module_of(data, losses.CRF)
    module.make_optimizer, module.final_lr = lambda groups: torch.optim.SGD(groups, lr=0.1), 0.5
    proximal = ProximalStep({"tagger.scorer.table": penalty}, every=every, warmup=warmup)
    rates = []

    class Watch(lightning.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[proximal, Watch()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(module, data.batches("train", 4, shuffle=True))
    ramp = np.minimum(1, np.arange(1, len(rates) + 1) / warmup) if warmup else np.ones(len(rates))
    assert len(rates) == trainer.global_step
    assert sum(penalty.steps) == pytest.approx(float(ramp @ rates))
    if every == 1:
        assert len(penalty.steps) == trainer.global_step
    assert proximal.hook is None
    assert json.dumps(proximal.state_dict())


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), "penalised twice"),
        (lambda p: torch.optim.Adadelta(p), "not known"),
    ],
)
def test_optimizers_whose_step_is_wrong_or_unknown_are_refused(optimizer, said):
    from structsparse.solvers import steps

    parameter = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(UserError, match=said):
        steps.check(optimizer([parameter]), [parameter])
