"""Training runs of word vectors, from text to artifact: planted trees, penalties, resumption, what is refused."""

import re

import numpy as np
import pytest
import torch

from structsparse.corpora.known.running_text import running_text
from structsparse.penalties import L1
from structsparse.solvers.sparse_codes import violations
from structsparse.tasks import registry
from structsparse.tasks.embeddings.data import prepare
from structsparse.tasks.embeddings.task import VectorModule
from tests.support.runs import asks_to_stop, at_step

TEXT = ("data.planted.sentences=1500", "data.planted.trees=2", "data.planted.branching=2", "data.planted.size=5")
OPTIONS = ("task=embeddings", "batch=64", "cache=0", "trainer.max_epochs=2")
TINY = (*OPTIONS, *TEXT, "groups.trees=2")


@pytest.fixture(autouse=True)
def _no_sets(tmp_path, monkeypatch):
    """Sets of word pairs of this machine change no test."""
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))


def small(run, *options, folder="run"):
    result = run(*TINY, *options, data=(), base=(), folder=folder)
    assert result.status in (0, None), result.errors[-2000:]
    return result


def test_a_run_writes_vectors_that_find_planted_trees(run):
    result = small(
        run, "trainer.max_epochs=4", "reg.strength=1", "groups.branching=[2,2]", "data.planted.sentences=4000"
    )
    figures = result.metrics
    assert figures["dimensions"] == 14
    assert figures["planted_recall"] > 0.5
    assert figures["planted_precision"] > 0.5
    assert figures["stationarity"] < 1e-6, "every column is certified"
    assert 0 < figures["nonzero"] < figures["weights"]
    assert 0 < figures["explained"] < 1
    model = registry.load(result.folder)
    assert model.codes.nnz == figures["nonzero"]
    table = (result.folder / "report" / "dimensions.tsv").read_text().splitlines()
    assert len(table) == 15
    assert table[1].startswith("tree 1\t")
    alive = model.vectors != 0
    assert not (alive[:, 2:6] & ~alive[:, [0, 0, 1, 1]]).any(), "a dimension lives only below living ones"


@pytest.mark.parametrize(
    "options",
    [
        ("reg=l1", "model.dimensions=10"),
        ("reg=elastic_net", "reg.mix=0.5"),
        ("reg=l2",),
        ("reg=l1", "trainer.precision=64-true"),
        ("reg=none",),
        ("reg=tree_linf",),
        ("reg=tree_l2", "groups.nested=false"),
        ("reg=l1", "reg.nonnegative=true"),
        ("reg=overlap", "groups=random_dimensions", "groups.trees=2", "reg.strength=0.3"),
        ("reg=tree_l2", "reg.nonnegative=true", "reg.ridge=0.01"),
    ],
)
def test_codes_have_any_penalty(options, run):
    result = small(run, *options)
    assert result.metrics["stationarity"] < 1e-6
    model = registry.load(result.folder)
    if "reg.nonnegative=true" in options:
        assert model.vectors.min() >= 0
    if "groups.nested=false" in options:
        trees = (model.vectors != 0).reshape(len(model), 26)
        assert model.dimensions == 26
        roots = trees[:, :2]
        assert {tuple(row) for row in roots} >= {(True, True)}


def test_svd_explains_at_least_as_much_as_any_codes(run):
    others = small(run, "reg=none", "model.dimensions=8", folder="others").metrics
    for power in (0, 0.5, 1):
        found = small(run, "solver=svd", f"solver.power={power}", "reg=none", "model.dimensions=8", folder=f"{power}")
        assert found.metrics["stationarity"] < 1e-6
        assert found.metrics["explained"] >= others["explained"] - 1e-6
        spread = np.linalg.norm(registry.load(found.folder).vectors, axis=0)
        assert spread[0] / spread[-1] == pytest.approx((spread[0] / spread[-1]) ** (power > 0), rel=1e-3)


def test_the_codes_of_the_artifact_are_optimal_for_its_dictionary(run):
    result = small(run, "reg=l1", "model.dimensions=10", "reg.strength=0.5")
    model = registry.load(result.folder)
    planted = {"seed": 0, "trees": 2, "branching": 2, "size": 5, "sentences": 1500}
    corpus = running_text(None, "lines", "words", True, True, False, None, planted)
    features = {"min_count": 5, "unknown": True, "window": 5, "weighting": "none", "memory": None}
    data = prepare(corpus, {**features, "association": "ppmi", "smoothing": 1.0, "shift": 1.0, "contexts": None})
    assert data.words == model.words
    atoms = torch.from_numpy(model.atoms).double()
    pull = atoms @ torch.from_numpy(data.matrix.toarray().T).double()
    found = violations(atoms @ atoms.T, pull, torch.from_numpy(model.vectors.T.copy()).double(), L1(0.5))
    assert found.max() < 1e-6
    assert atoms.norm(dim=1).max() < 1 + 1e-6
    errors = data.matrix.toarray() - model.vectors @ model.atoms
    summed = (errors**2).sum() / 2 + 0.5 * np.abs(model.vectors).sum()
    assert result.metrics["objective"] == pytest.approx(summed / len(model), rel=1e-5)
    assert result.metrics["explained"] == pytest.approx(1 - (errors**2).sum() / (data.matrix.data**2).sum(), rel=1e-5)


@pytest.mark.parametrize("reg", ["tree_l2", "l1", "tree_linf"])
def test_overcomplete_codes_are_sparse_columns(reg, run, monkeypatch):
    """More dimensions than contexts; the final codes are optimal for the dictionary, and the table has no columns."""
    options = (f"reg={reg}", "groups.trees=6", "model.dimensions=78", "features.contexts=20", "reg.strength=0.2")
    whole = small(run, *options, "model.sparse=true", folder="whole")
    figures, model = whole.metrics, registry.load(whole.folder)
    assert figures["stationarity"] < 1e-6
    assert figures["dimensions"] == 78 > model.atoms.shape[1] == 20
    assert 0 < figures["nonzero"] == model.codes.nnz < 0.5 * figures["weights"]
    saved = whole.checkpoint("fit", "last")["state_dict"]
    assert (saved["model.table"].numel(), len(saved["model.codes.values"])) == (0, model.codes.nnz)
    dense = small(run, *options, "model.sparse=false", folder="dense").metrics
    assert figures["objective"] == pytest.approx(dense["objective"], rel=0.02)
    assert figures["explained"] == pytest.approx(dense["explained"], rel=0.02)
    with monkeypatch.context() as patch:
        at_step(patch, 2, asks_to_stop(), VectorModule)
        assert run(*TINY, *options, "model.sparse=true", data=(), base=(), folder="run").status == 130
    resumed = small(run, *options, "model.sparse=true", "ckpt_path=last", folder="run")
    np.testing.assert_array_equal(registry.load(resumed.folder).vectors, model.vectors)


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(run, monkeypatch):
    whole = small(run, folder="whole")
    with monkeypatch.context() as patch:
        at_step(patch, 3, asks_to_stop(), VectorModule)
        stopped = run(*TINY, data=(), base=(), folder="run")
    assert stopped.status == 130
    resumed = small(run, "ckpt_path=last", folder="run")
    assert resumed.result == whole.result
    np.testing.assert_array_equal(registry.load(resumed.folder).vectors, registry.load(whole.folder).vectors)


@pytest.mark.parametrize("solver", ["adamw", "adam", "adagrad", "sgd"])
@pytest.mark.parametrize("reg", ["tree_l2", "l1"])
def test_solvers_by_gradient_learn_sparse_codes_and_atoms_of_bounded_norm(solver, reg, run):
    result = small(run, f"solver={solver}", "trainer.max_epochs=10", f"reg={reg}", "reg.strength=1", "batch=32")
    model = registry.load(result.folder)
    assert np.linalg.norm(model.atoms, axis=1).max() < 1 + 1e-6
    assert 0 < result.metrics["nonzero"] < result.metrics["weights"]
    objectives = [float(line.split()[5]) for line in result.output.splitlines() if "  objective " in line]
    assert objectives[-1] < objectives[0]
    if reg == "tree_l2":
        alive = model.vectors != 0
        assert not (alive[:, 2:8] & ~alive[:, [0, 0, 0, 1, 1, 1]]).any(), "a dimension lives only below living ones"


@pytest.mark.parametrize("solver", ["adamw", "algorithm1"])
def test_other_solvers_go_on_to_the_same_numbers(solver, run, monkeypatch):
    options = (f"solver={solver}", "batch=20")
    whole = small(run, *options, folder="whole")
    with monkeypatch.context() as patch:
        at_step(patch, 3, asks_to_stop(), VectorModule)
        assert run(*TINY, *options, data=(), base=(), folder="run").status == 130
    resumed = small(run, *options, "ckpt_path=last", folder="run")
    np.testing.assert_array_equal(registry.load(resumed.folder).vectors, registry.load(whole.folder).vectors)


def test_algorithm_1_finds_planted_trees(run):
    options = ("solver=algorithm1", "trainer.max_epochs=60", "groups.branching=[2,2]", "reg.strength=4", "batch=200")
    figures = small(run, *options, "data.planted.sentences=4000", "solver.lr=0.02").metrics
    assert figures["planted_recall"] > 0.3
    assert figures["explained"] > 0.4


def test_glove_fits_the_logarithms_of_frequent_pairs(run):
    """With biases and weights by counts, the weighted errors are much lower with five dimensions than with one."""
    options = ("solver=adamw", "trainer.max_epochs=30", "loss.weighting=glove", "features.association=log_count")
    glove = (*options, "reg=none", "model.biases=true", "loss.most=20", "batch=16")
    result = small(run, *glove, "model.dimensions=5", folder="glove")
    flat = small(run, *glove, "model.dimensions=1", folder="flat")
    assert result.metrics["objective"] < 0.85 * flat.metrics["objective"]


def test_a_text_of_the_user_is_enough(run, tmp_path):
    (tmp_path / "text.txt").write_text("the cat saw the dog\nthe dog saw the cat\n" * 30)
    result = small(run, f"data.train={tmp_path / 'text.txt'}", "reg=tree_l2", "groups=forest", "groups.trees=4")
    assert result.metrics["dimensions"] == 52
    assert registry.load(result.folder).words == ("the", "cat", "saw", "dog")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("model.dimensions=0", "reg=l1"), "model.dimensions is 0"),
        (("model.dimensions=30",), "2 trees with branching [3, 3] have 26 dimensions, the model has 30"),
        (("solver=svd",), "solver=svd decomposes without a penalty: take reg=none"),
        (("solver=svd", "reg=none", "solver.power=2"), "solver.power is 2"),
        (("solver=fista", "batch=null"), "take solver=online_dictionary"),
        (("loss.weighting=glove",), "set loss.weighting=none"),
        (("loss.weighting=glove", "solver=adamw"), "set features.association=log_count"),
        (("model.biases=true",), "solver=online_dictionary has no biases"),
        (("model.sparse=true", "solver=adamw"), "set model.sparse=false"),
        (("features.contexts=-1",), "features.contexts is -1"),
        (("reg.every=2", "solver=adamw"), "reg.every=2 must be 1"),
        (("reg=group_lasso",), "groups=forest makes nested groups"),
        (("reg.budget=3",), "leave out reg.budget"),
        (("recipe=select_refit",), "task=embeddings has one stage"),
        (("features=pos",), "task=embeddings has windows"),
        (("data.train=nowhere.txt",), "nowhere.txt: no such file"),
        (("solver.passes=0",), "solver.passes is 0"),
        (("reg.strength=1e6",), "every group is dead"),
    ],
)
def test_bad_options_get_one_sentence(options, message, run):
    refused = run(*TINY, *options, data=(), base=())
    assert refused.status == 2
    assert refused.errors.startswith("error: ")
    assert message in refused.errors
    assert len(re.findall("error: ", refused.errors)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("groups=template",), "groups=template is for a table of templates"),
        (("data=planted_documents",), "take data=running_text"),
    ],
)
def test_groups_and_data_of_other_tasks_are_refused(options, message, run):
    refused = run(*OPTIONS, *options, data=(), base=())
    assert refused.status == 2
    assert message in refused.errors
