"""Whole runs of language models: they learn what they are told to, stop and go on, and say what is wrong."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from structsparse.artifacts.quantization import REACHES, ArtifactOptions, quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.known.texts import files
from structsparse.corpora.text_reading import TextReading
from structsparse.losses.softmax import SoftmaxLM
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.data import LanguageData
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.lm.report import by_depth, distinct_parameters
from structsparse.tasks.lm.scores import Perplexity
from structsparse.tasks.lm.task import KneserNeyModule, LanguageModelTask, LanguageModule
from structsparse.training import certificate
from structsparse.training.scores import gain
from tests.support.runs import asks_to_stop, at_step, run_here

LM = ("task=lm", "data.limit=4000", "data.min_count=2", "model.order=3")
REFERENCE = TextReading("text", "words", True, False, 4000)


@pytest.fixture
def lm(tmp_path):
    """A run of a language model in this process, of 4,000 words of the language reference."""
    return lambda *options, folder="run", data=LM: run_here(*options, folder=tmp_path / folder, data=data, base=())


@pytest.fixture(scope="module")
def data() -> LanguageData:
    return LanguageData(files(None, None, None, "text", "words", True, False, 2, 4000, 0.05))


def test_the_default_run_says_what_lives_and_how_sure_that_is(lm):
    found = lm("trainer.max_epochs=300")
    assert found.status == 0, found.errors
    metrics = found.metrics
    assert (metrics["task"], metrics["reg"], metrics["data"], metrics["loss"]) == ("lm", "tree_linf", "text", "softmax")
    assert 0 < metrics["parameters"] <= metrics["nonzero"] < metrics["weights"]
    assert metrics["groups"] == metrics["weights"]
    assert 1 < metrics["perplexity"] < metrics["weights"]
    assert metrics["stationarity"] < 1e-3
    assert 0 <= metrics["duality_gap"] < metrics["objective"]
    assert "words of context" in (found.folder / "report" / "depths.md").read_text()


@pytest.mark.parametrize("reg", ["l1", "tree_l2", "tree_linf"])
def test_every_penalty_is_brought_to_a_stationary_point(reg, lm):
    found = lm(f"reg={reg}", "trainer.max_epochs=150", "solver.tolerance=1e-7")
    assert found.status == 0, found.errors
    assert found.metrics["stationarity"] < 1e-3
    assert 0 <= found.metrics["duality_gap"] < found.metrics["objective"]


@pytest.mark.parametrize("options", [("reg=l2",), ("reg=elastic_net",), ("preset=lm_best",)], ids=" ".join)
def test_with_squares_a_bound_proves_the_minimum(options, lm):
    found = lm(*options, "trainer.max_epochs=300")
    assert found.status == 0, found.errors
    assert 0 <= found.metrics["duality_gap"] < 1e-3 * found.metrics["objective"]


def test_a_strength_in_items_is_one_of_the_summed_loss(lm):
    per_item = lm("reg.strength=2", "reg.relative=items", "trainer.max_epochs=2", folder="items").metrics
    absolute = lm(
        f"reg.strength={per_item['strength']}", "reg.relative=false", "trainer.max_epochs=2", folder="absolute"
    ).metrics
    assert absolute["objective"] == per_item["objective"]
    found = lm("reg.relative=words")
    assert (found.status, "expected true, false or items" in found.errors) == (2, True)


def test_a_yardstick_is_counted_and_not_trained(lm, data):
    found = lm("model=kneser_ney", "model.order=3")
    assert found.status == 0, found.errors
    texts = data.texts
    surprise = -KneserNey(ContextTree.build(texts.train, 3)).log_probabilities(texts.test)
    known = texts.test.known[texts.test.targets]
    assert found.metrics["perplexity"] == pytest.approx(math.exp(surprise[known].mean()))
    assert found.metrics["perplexity_open"] == pytest.approx(math.exp(surprise.mean()))
    assert (found.metrics["model"], found.metrics["objective"]) == ("kneser_ney", None)
    assert "no model folder: model=kneser_ney is a baseline" in found.output
    assert not (found.folder / "model").exists()


def test_the_loss_of_dev_is_that_of_its_words(lm):
    found = lm("trainer.max_epochs=30", "solver.tolerance=0", "grid={reg.strength: [0.5, 5]}", "grid_by=loss")
    assert found.status == 0, found.errors
    header, *rows = [line.split("\t") for line in (found.folder / "report" / "grid.tsv").read_text().splitlines()]
    assert len(rows) == 2
    for row in rows:
        point = dict(zip(header, row, strict=True))
        assert float(point["loss"]) == pytest.approx(math.log(float(point["perplexity"])))


def test_the_step_of_rounded_weights_is_chosen_on_dev_and_what_has_no_weights_is_refused(data):
    module = trained(data)
    before = module.model.table.detach().clone()
    dev = data.whole("dev")
    losses = []
    for reach in REACHES:
        with torch.no_grad():
            quantize_(module.model.table.copy_(before), 3, reach)
        losses.append(certificate.mean_loss(module, dev))
    with torch.no_grad():
        module.model.table.copy_(before)
    found = LanguageModelTask().rounded(SimpleNamespace(module=module, data=data), ArtifactOptions(bits=3))
    assert certificate.mean_loss(found.module, dev) == pytest.approx(min(losses))
    counted = KneserNeyModule(KneserNey(ContextTree.build(data.texts.train, 3)), data.texts.parts)
    with pytest.raises(UserError, match="bits=3: this model is counted, it has no weights"):
        LanguageModelTask().rounded(SimpleNamespace(module=counted, data=data), ArtifactOptions(bits=3))


def trained(data) -> LanguageModule:
    """A few steps down the loss, enough for weights of many sizes."""
    model = NgramModel(data.trie(3))
    module = LanguageModule(model, None, SoftmaxLM(model.structure), torch.optim.SGD, data.texts.parts, [])
    steps = torch.optim.SGD(module.parameters(), lr=50.0)
    for _ in range(5):
        for batch in data.whole("train"):
            steps.zero_grad()
            module.step(batch).backward()
            steps.step()
    return module


def test_a_collapsed_tree_gives_what_its_trie_gives(lm):
    plain, joined = (
        lm("model.alpha=1", f"model.collapse={collapse}", "trainer.max_epochs=40", folder=collapse).metrics
        for collapse in ("false", "true")
    )
    assert joined["weights"] < plain["weights"]
    for key in ("objective", "perplexity", "perplexity_open"):
        assert joined[key] == pytest.approx(plain[key], rel=1e-6)
    assert lm("model.collapse=true").errors.count("set model.alpha=1") == 1


@pytest.mark.parametrize("reg", ["l1", "l2", "elastic_net"])
def test_a_joined_weight_bears_the_penalty_of_all_that_it_stands_for(reg, lm):
    options = (f"reg={reg}", "model.alpha=1", "reg.strength=1", "reg.relative=items", "trainer.max_epochs=300")
    plain, joined = (
        lm(*options, f"model.collapse={collapse}", folder=collapse).metrics for collapse in ("false", "true")
    )
    assert joined["weights"] < plain["weights"]
    assert joined["objective"] == pytest.approx(plain["objective"], rel=2e-5)


@pytest.mark.parametrize("options", [("reg=l0",), ("reg=tree_linf", "reg.ridge=0.1")])
def test_a_penalty_that_cannot_count_joined_weights_is_refused(options, lm):
    found = lm(*options, "model.alpha=1", "model.collapse=true")
    assert (found.status, "set model.collapse=false" in found.errors) == (2, True)


def test_mini_batches_reach_the_minimum_of_the_whole(lm):
    options = ("reg.strength=3",)
    whole = lm(*options, "trainer.max_epochs=200", folder="whole").metrics
    parts = lm(
        *options, "solver=accelerated_sgd", "solver.lr=2", "batch=400", "reg.every=1", "trainer.max_epochs=20",
        folder="parts",
    ).metrics  # fmt: skip
    assert whole["objective"] < parts["objective"] < 1.02 * whole["objective"]


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(lm, monkeypatch):
    whole = lm("trainer.max_epochs=6", folder="whole")
    with monkeypatch.context() as patch:
        at_step(patch, 3, asks_to_stop(), LanguageModule)
        stopped = lm("trainer.max_epochs=6", folder="half")
    assert stopped.status == 128 + 2
    again = lm("trainer.max_epochs=6", "ckpt_path=last", folder="half")
    assert again.status == 0, again.errors
    assert again.result == whole.result


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("model.order=0",), "order"),
        (("model.alpha=0",), "model.alpha"),
        (("model.base=bigram",), "model.base"),
        (("solver=online_mira",), "solver"),
        (("batch=0", "solver=sgd"), "batch=0"),
        (("data.train=nowhere.txt",), "nowhere.txt: no such file"),
        (("reg.strength=1000",), "every group is dead"),
        (("reg.ridge=-1",), "reg.ridge is -1"),
        (("recipe=reweighted",), "recipe.again: reg.reweight"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(options, reason, lm):
    found = lm(*options, "trainer.max_epochs=2")
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
    assert reason in found.errors


def test_the_training_step_asks_for_no_value(data):
    model = NgramModel(data.trie(3), alpha=0.9, base="unigram")
    module = LanguageModule(model, None, SoftmaxLM(model.structure), torch.optim.SGD, data.texts.parts, ["model.table"])
    small, rows = model.tree.restrict(module.places("train").take(np.arange(50)))
    module = module.to("meta")
    for loss in (
        module.step(next(iter(data.batches("train", None)))),
        module.model.surprise_of(type(model.structure)(small).to("meta"), torch.from_numpy(rows).to("meta")),
    ):
        assert (loss.shape, loss.device.type) == ((), "meta")
        loss.backward()
        assert module.model.table.grad.shape == module.model.table.shape


def test_mini_batches_cover_the_text_once_in_an_order_of_the_seed(data):
    def drawn(seed: int, epoch: int) -> list[np.ndarray]:
        targets = data.batches("train", 400, shuffle=True, seed=seed)
        targets.set_epoch(epoch)
        return [batch.chosen for batch in targets]

    first = drawn(0, 0)
    assert sum(batch.size for batch in first) == data.items
    np.testing.assert_array_equal(np.sort(np.concatenate(first)), np.arange(data.items))
    np.testing.assert_array_equal(first[0], drawn(0, 0)[0])
    assert not np.array_equal(first[0], drawn(0, 1)[0])
    assert not np.array_equal(first[0], drawn(1, 0)[0])


def test_distinct_parameters_are_paths_without_branches_at_one_value(data):
    tree = data.trie(4)
    draw = np.random.default_rng(0)
    table = draw.integers(0, 3, tree.entries).astype(float)
    slow = 0
    children = [[] for _ in range(tree.entries)]
    for e in range(tree.words, tree.entries):
        if table[e]:
            children[tree.entry_above[e]].append(e)
    for e in range(tree.entries):
        above = tree.entry_above[e]
        joined = above >= 0 and table[above] == table[e] and len(children[above]) == 1
        slow += bool(table[e]) and not joined
    assert distinct_parameters(tree, table) == slow
    rows = by_depth(tree, table).rows
    assert sum(row[4] for row in rows) == (table != 0).sum()
    assert sum(row[1] for row in rows) == tree.nodes


def test_perplexity_adds_up_and_less_is_better():
    draw = np.random.default_rng(0)
    surprise, known = draw.random(100), draw.random(100) < 0.8
    score = Perplexity()
    for part in np.array_split(np.arange(100), 7):
        score.add(-surprise[part], known[part])
    found = score.result()
    assert found["perplexity"] == pytest.approx(np.exp(surprise[known].mean()))
    assert found["perplexity_open"] == pytest.approx(np.exp(surprise.mean()))
    assert (found["targets"], found["unknown"]) == (known.sum(), 100 - known.sum())
    assert gain("dev/perplexity", 100.0) < gain("dev_perplexity", 90.0)
    assert gain("dev/f1", 0.9) > gain("f1", 0.8)
    assert math.isnan(Perplexity().result()["perplexity"])
    score.add(np.array([-1e6]), np.array([True]))
    assert score.result()["perplexity"] == math.inf


@pytest.mark.parametrize(
    "options",
    [
        ("task=lm", "model=sparse"),
        ("task=lm", "loss=crf"),
        ("task=lm", "groups=feature"),
        ("task=lm", "data=planted"),
        ("task=lm", "features=ner", "data.limit=4000"),
        ("task=lm", "filter=gain", "filter.count=2", "data.limit=4000"),
        ("loss=softmax",),
        ("model=ngram", "recipe=direct"),
        ("groups=contexts", "reg=tree_l2"),
        ("data=text", "features=ner"),
        ("features=lm",),
    ],
    ids=" ".join,
)
def test_parts_of_another_task_are_refused(options, lm):
    found = lm(*options, data=())
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
