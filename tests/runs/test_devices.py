"""Two processes give what one gives, and a training step never asks a device for a value."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from rich.console import Console

from structsparse.corpora.known.tagging import planted
from structsparse.corpora.text import encode
from structsparse.features.layout import TemplateLayout, by_feature, by_label, by_template
from structsparse.losses.softmax import SoftmaxLM
from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.penalties import L1, ElasticNet, GroupLasso, NoPenalty, SparseGroupLasso, SquaredL2
from structsparse.solvers.base import solver_of
from structsparse.solvers.sgd import RowAdagrad, RowSGD
from structsparse.structures.chain import Chain
from structsparse.structures.contexts import Contexts
from structsparse.tasks.lm.contexts import ContextTree, Places
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.model import DenseScorer, RecurrentScorer, SparseScorer, SumScorer, Tagger
from structsparse.tasks.tagging.task import Tagging
from structsparse.training import devices
from structsparse.training.run_folder import first_process
from structsparse.weights.batch import Sizes
from structsparse.weights.notes import notes_of
from tests.support.runs import PLANTED, TWO_STAGES, run_here, run_program

TWO_PROCESSES = ("trainer.devices=2", "trainer.accelerator=cpu", "trainer.strategy=ddp")

# The program, and from each process the weights that each stage ends with and how often results are written.
WITNESS = """
import os
import sys
import torch
from rich.console import Console
from structsparse.cli.train import main
from structsparse.training import finish, fit

def witnessed(what, name):
    def call(*arguments):
        found = what(*arguments)
        stem = os.path.join(os.environ["WITNESS"], f"{name(arguments)}-{os.environ.get('LOCAL_RANK', '0')}")
        assert not os.path.exists(stem)
        torch.save(found.module.state_dict() if found else {}, stem)
        return found
    return call

fit.run = witnessed(fit.run, lambda arguments: arguments[0].name)
finish.write_metrics = witnessed(finish.write_metrics, lambda arguments: "metrics")
main(sys.argv[1:])
"""

RUNS = {
    "rows, two stages": (*TWO_STAGES, "solver=adagrad"),
    "dense": ("solver=momentum", "reg.every=3", "batch=15"),  # eight sentences for one, seven for the other
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_two_processes_give_what_one_gives(options, tmp_path):
    (tmp_path / "witness.py").write_text(WITNESS)
    one = run_here(*options, folder=tmp_path / "one")
    two = run_program(
        *(*options, *TWO_PROCESSES),
        folder=tmp_path / "two",
        script=tmp_path / "witness.py",
        WITNESS=str(tmp_path),
    )
    assert (one.status, two.status, two.errors) == (0, 0, "")
    assert_alike(one.result, two.result)
    assert shown(two) == [pytest.approx(line, rel=1e-3, abs=2e-4) for line in shown(one)]
    stages = sorted(path.name for path in (one.folder / "checkpoints").iterdir() if path.is_dir())
    for stage in stages:
        first, second = (torch.load(tmp_path / f"{stage}-{rank}") for rank in (0, 1))
        assert all(torch.equal(first[name], second[name]) for name in first)
        chosen = one.checkpoint(stage, "best" if stage == "refit" else "last")["state_dict"]
        for name, weights in chosen.items():
            torch.testing.assert_close(first[name], weights, rtol=1e-3, atol=1e-4, msg=f"{stage} {name}")
    selected = torch.load(tmp_path / f"{stages[-1]}-1")["tagger.scorer.table"]  # select comes after refit
    assert 0 < (selected != 0).sum() < selected.numel()
    written = [path.name for path in tmp_path.glob("metrics-*")]
    assert written == ["metrics-0"]
    assert two.output.count("peak_memory_mb") == 1


def assert_alike(one: dict, two: dict) -> None:
    assert one.keys() == two.keys()
    for key, value in one.items():
        expected = pytest.approx(value, rel=1e-3, abs=1e-4) if isinstance(value, float) else value
        assert key == "artifact_bytes" or two[key] == expected, key


def shown(run) -> list[tuple[float, float]]:
    """Mean loss and objective of each epoch."""
    lines = [line.split() for line in run.output.splitlines() if "  objective " in line]
    assert lines
    return [(float(line[3]), float(line[5])) for line in lines]


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, True),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1"}, False),  # torchrun, the second node
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}, False),
    ],
)
def test_one_process_of_all_nodes_speaks(environment, first, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert first_process() is first


# --- `auto`


@pytest.mark.parametrize(
    ("device", "requested", "host_only", "expected", "line"),
    [
        ("cpu", "auto", "Majorize", "auto", ""),
        ("cuda", "auto", None, "auto", ""),
        ("cuda", "auto", "Majorize", "cpu", "Majorize runs on the CPU only: trainer.accelerator=auto is the CPU, not"),
        ("cuda", "gpu", "Majorize", "gpu", ""),  # the solver refuses it
        ("mps", "auto", None, "cpu", "sums are float64, which MPS does not have"),
    ],
)
def test_auto_is_the_cpu_where_nothing_else_is_possible(device, requested, host_only, expected, line, monkeypatch):
    monkeypatch.setattr(devices, "automatic", lambda: device)
    output = io.StringIO()
    assert devices.accelerator(requested, host_only, Console(file=output)) == expected
    assert output.getvalue().startswith(line)
    assert output.getvalue().count("\n") == bool(line)


HOST_ONLY = {
    "OnlinePerceptron": ("loss=perceptron", "solver=online_perceptron", "recipe=direct", "reg.strength=1e-4"),
    "Majorize": (
        *("task=textcat", "data=planted_documents", "data.train=30", "reg=structured", "solver=majorize"),
        *("reg.group=0.01", "reg.lasso=0.1", "reg.squares=0"),
    ),
    "OnlineMIRA": ("task=parsing", "data=planted_treebank", "data.train=10", "data.dev=5", "data.test=5"),
}


@pytest.mark.parametrize("solver", HOST_ONLY)
def test_a_solver_of_the_host_runs_on_a_machine_with_a_gpu(solver, run, monkeypatch):
    monkeypatch.setattr(devices, "automatic", lambda: "cuda")
    data = PLANTED if solver == "OnlinePerceptron" else ()
    found = run(*HOST_ONLY[solver], "trainer.max_epochs=1", data=data, base=())
    assert found.status == 0, found.errors
    assert f"{solver} runs on the CPU only: trainer.accelerator=auto is the CPU, not cuda" in found.output


# --- on `meta`, where a look at a value is an error


@pytest.fixture(scope="module")
def data():
    return prepare(planted(0, 20, 5, 5), ["word[0]", "suffix3[0]", "pos[-1..0]"], codes=["word", "pos"])


def on_meta(thing):
    moved = {
        field.name: value.to("meta") if isinstance(value := getattr(thing, field.name), torch.Tensor) else value
        for field in dataclasses.fields(thing)
    }
    return dataclasses.replace(thing, **moved)


def tagging(scorer, sizes: Sizes, loss=CRF, optimizer=torch.optim.SGD) -> Tagging:
    module = Tagging(Tagger(scorer, sizes.labels), loss(Chain()), optimizer, None, ["tagger.scorer.table"])
    return module.to("meta")


@pytest.mark.parametrize("loss", [CRF, Hinge, Perceptron])
@pytest.mark.parametrize("model", ["sparse", "sparse_dense", "recurrent"])
def test_the_training_step_asks_for_no_value(loss, model, data):
    sizes = data.sizes._replace(dense=3)
    scorers = {
        "sparse": SparseScorer,
        "sparse_dense": lambda sizes: SumScorer(sizes, [SparseScorer, DenseScorer]),
        "recurrent": lambda sizes: RecurrentScorer(sizes, embedding=4, hidden=3),
    }
    module = tagging(scorers[model](sizes), sizes, loss)
    batch = next(iter(data.batches("train", 8)))
    tokens = len(batch.places)
    batch = on_meta(dataclasses.replace(batch, dense=torch.zeros(tokens, 3)))
    found = module.step(batch)
    assert (found.shape, found.device.type) == ((), "meta")
    found.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape
    assert module.predict_step(batch).shape == (tokens,)


SOLVERS = {
    "RowSGD": lambda p: RowSGD(p, lr=0.1),
    "RowAdagrad": lambda p: RowAdagrad(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": torch.optim.Adam,
    "Adagrad": torch.optim.Adagrad,
}
PENALTIES = {
    "none": lambda layout: NoPenalty(),
    "l1": lambda layout: L1(0.1),
    "l2": lambda layout: SquaredL2(0.1),
    "elastic net": lambda layout: ElasticNet(0.1, 0.5),
    "group lasso by template": lambda layout: GroupLasso(by_template(*layout), 0.1),
    "group lasso by feature": lambda layout: GroupLasso(by_feature(*layout), 0.1),
    "group lasso by label": lambda layout: GroupLasso(by_label(*layout), 0.1),
    "sparse group lasso": lambda layout: SparseGroupLasso(by_template(*layout), 0.1, 0.5),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_optimizer_and_the_prox_after_it_ask_for_no_value(penalty, solver, data):
    module = tagging(SparseScorer(data.sizes), data.sizes)
    table = module.tagger.scorer.table
    layout = tuple(table.shape), TemplateLayout(data.index.names, data.index.offsets, data.labels)
    penalty = PENALTIES[penalty](layout).to("meta")
    optimizer = SOLVERS[solver](list(module.parameters()))
    module.step(on_meta(next(iter(data.batches("train", 8))))).backward()
    optimizer.step()
    (group,) = optimizer.param_groups
    with torch.no_grad():
        assert penalty.prox_(table, 0.1 * solver_of(optimizer).metric(group, table)) is table
        assert penalty.value(table).device.type == "meta"
    assert table.device.type == "meta"


@pytest.mark.parametrize("base", ["none", "unigram"])
def test_the_loss_of_a_language_model_asks_for_no_value(base):
    tree = ContextTree.build(encode([["a", "b", "a"], ["b", "a", "b", "c"]]), 3)
    small, rows = tree.restrict(Places(np.array([3, 4]), np.array([1, 2])))
    model = NgramModel(tree, 0.8, base).to("meta")
    structure = model.structure
    losses = (
        SoftmaxLM(structure)(model(), structure.node_ends, structure.entry_ends),
        model.surprise(),
        model.surprise_of(Contexts(small).to("meta"), torch.from_numpy(rows).to("meta")),
    )
    for loss in losses:
        assert (loss.shape, loss.device.type) == ((), "meta")
        model.table.grad = None
        loss.backward()
        assert (model.table.grad.shape, model.table.grad.device.type) == (model.table.shape, "meta")
    assert structure.log_partition(structure.path_sums(model())).shape == (tree.nodes,)
    assert notes_of(model.table).curvature.device.type == model.curvature().device.type == "meta"
    assert model.log_probabilities(Places(torch.zeros(3), torch.zeros(3))).shape == (3,)
