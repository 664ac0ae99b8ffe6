"""The public names of the package: imported on first use, typed, documented, and usable as the documentation says."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import structsparse as ss
from structsparse.tasks import registry
from tests.support.runs import PLANTED, ROOT, SMALL

LAZY_PACKAGES = ("structsparse", "structsparse.losses", "structsparse.solvers", "structsparse.structures")
HEAVY = {"torch", "numpy", "scipy", "numba", "lightning", "hydra", "omegaconf", "matplotlib", "rich"}


def in_a_new_process(code: str) -> str:
    """What a program prints that starts without any module loaded."""
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return finished.stdout.strip()


# --- names


def test_importing_the_package_imports_nothing_heavy():
    code = "import json, sys, structsparse; print(json.dumps([m.partition('.')[0] for m in sys.modules]))"
    assert HEAVY & {*json.loads(in_a_new_process(code))} == set()


def test_a_solver_needs_no_training_framework():
    code = "import sys, structsparse; structsparse.fit_linear; print({'lightning', 'hydra'} & {*sys.modules})"
    assert in_a_new_process(code) == "set()"


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_every_public_name_exists_and_is_documented(package):
    module = sys.modules.get(package) or __import__(package, fromlist=["_"])
    assert dir(module) == sorted(module.__all__)
    for name in {*module.__all__} - {"__version__"}:
        assert getattr(module, name).__doc__


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_type_checkers_see_the_names_that_are_public(package):
    folder = ROOT / package.replace(".", "/")
    tree = ast.parse((folder / "__init__.py").read_text())
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert names - {"TYPE_CHECKING", "lazy_names"} == {*__import__(package, fromlist=["_"]).__all__}


def test_the_package_is_typed():
    assert (Path(ss.__file__).parent / "py.typed").exists()


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'structsparse' has no attribute 'fit_linaer'"):
        ss.fit_linaer  # noqa: B018


# --- networks and linear models


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def test_a_network_is_trained_and_cut():
    net, inputs = network(), torch.randn(200, 4)
    gold = (inputs[:, 0] > 0).long()
    penalties = ss.attach("group_lasso", net, groups="module_rows", parameters="0.weight", strength=0.02)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    handle = ss.proximal(optimizer, net, penalties)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), gold).backward()
        optimizer.step()
    handle.remove()
    slim, report = ss.remove_dead(net)
    assert slim[0].out_features < 16
    assert report.parameters_after < report.parameters_before
    assert torch.allclose(slim(inputs), net(inputs), atol=1e-5)


def test_the_callback_takes_the_same_penalties():
    penalties = ss.attach("group_lasso", network(), groups="module_rows", parameters="0.weight", strength=0.02)
    assert ss.ProximalStep(penalties).penalties == penalties


def test_a_linear_model_is_fitted_to_its_gap():
    X = np.random.default_rng(0).normal(size=(80, 10))
    fit = ss.fit_linear(X, np.sign(X[:, 0]), ss.penalties.L1(0.1))
    assert fit.gap < 1e-4
    assert np.flatnonzero(fit.weights.numpy()).tolist() == [0]


# --- training and trained models


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return ss.train([*PLANTED, *SMALL], folder=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_training_gives_figures_a_folder_and_a_model(result):
    assert result.metrics == json.loads((result.folder / "metrics.json").read_text())
    assert sorted(result.model.labels) == ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]


def test_training_prints_nothing_if_it_is_told_to(tmp_path, capfd):
    ss.train([*PLANTED, *SMALL, "trainer.max_epochs=1"], folder=tmp_path, quiet=True)
    assert capfd.readouterr().out == ""


def test_a_run_of_the_same_options_gives_the_same_as_the_program(result, tmp_path):
    from tests.support.runs import run_here

    program = run_here(folder=tmp_path / "run")
    assert program.status == 0
    files = ("model.json", "weights.safetensors")
    assert [(program.folder / "model" / f).read_bytes() for f in files] == [
        (result.folder / "model" / f).read_bytes() for f in files
    ]


def test_options_of_a_run_are_written_down(result):
    overrides = (result.folder / ".hydra" / "overrides.yaml").read_text()
    assert "reg.strength=0.05" in overrides
    assert "strength: 0.05" in (result.folder / ".hydra" / "config.yaml").read_text()


def test_a_model_is_loaded_from_its_folder_or_from_that_of_its_run(result):
    inner, outer = ss.load(result.folder / "model"), ss.load(str(result.folder))
    assert inner.labels == outer.labels


def test_yaml_files_of_the_user_are_options(tmp_path):
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "data" / "tiny.yaml").write_text("defaults: [planted]\ntrain: 30\ndev: 10\ntest: 10\n")
    options = [*SMALL, "data=tiny", "trainer.max_epochs=1"]
    result = ss.train(options, folder=tmp_path / "run", config_dir=tmp_path / "mine", quiet=True)
    assert "train: 30" in (result.folder / ".hydra" / "config.yaml").read_text()


def test_a_model_shows_itself_in_one_line(result):
    assert repr(result.model) == f"SequenceTagger(5 labels, {result.metrics['rows_alive']:,} features)"


@pytest.mark.parametrize("task", registry.KINDS)
def test_every_kind_of_model_has_the_same_verbs(task):
    kind = registry.module(task, "artifact").load.__annotations__["return"]
    predictor = getattr(registry.module(task, "predictor"), kind)
    for verb in ("predict", "nbest", "marginals", "evaluate"):
        assert getattr(predictor, verb).__doc__
    assert "__repr__" in vars(predictor)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task=nerr"], "task=nerr is not known; did you mean task=ner\\?"),
        (["rge=l1"], "rge is no option of this run; did you mean reg\\?"),
        (["reg.strength=high"], "expected a finite number"),
        (["data=files"], "data.train needs a value"),
        (["reg=l1", "reg=l2="], "l2="),
        ("task=ner", "expected a list of strings"),
    ],
)
def test_mistakes_in_options_are_user_errors(options, message, tmp_path):
    with pytest.raises(ss.UserError, match=message):
        ss.train(options, folder=tmp_path, quiet=True)
