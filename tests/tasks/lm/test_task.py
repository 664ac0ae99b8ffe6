"""Training runs of language models: results, baselines, resumption and error messages."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from structsparse import load
from structsparse.artifacts.quantization import REACHES, ArtifactOptions, quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.known.texts import files
from structsparse.corpora.text_reading import TextReading
from structsparse.losses.softmax import SoftmaxLM
from structsparse.tasks.lm import export
from structsparse.tasks.lm.contexts import ContextTree
from structsparse.tasks.lm.data import LanguageData
from structsparse.tasks.lm.kneser_ney import KneserNey
from structsparse.tasks.lm.model import NgramModel
from structsparse.tasks.lm.task import KneserNeyModule, LanguageModelTask, LanguageModule
from structsparse.training import certificate
from tests.support.runs import asks_to_stop, at_step, run_here
from tests.tasks.lm.test_export import back_off, read_arpa

LM = ("task=lm", "data.limit=4000", "data.min_count=2", "model.order=3")
REFERENCE = TextReading("text", "words", True, False, 4000)


@pytest.fixture
def lm(tmp_path):
    """Runs of language models in this process, on 4,000 words of the language reference."""
    return lambda *options, folder="run", data=LM: run_here(*options, folder=tmp_path / folder, data=data, base=())


def language_data() -> LanguageData:
    """The data of such a run."""
    return LanguageData(files(None, None, None, "text", "words", True, False, 2, 4000, 0.05))


def test_the_default_run_reports_living_weights_and_a_certificate(lm):
    run = lm("trainer.max_epochs=300")
    assert run.status == 0, run.errors
    metrics = run.metrics
    assert (metrics["task"], metrics["reg"], metrics["data"], metrics["loss"]) == ("lm", "tree_linf", "text", "softmax")
    assert 0 < metrics["parameters"] <= metrics["nonzero"] < metrics["weights"]
    assert metrics["groups"] == metrics["weights"]
    assert 1 < metrics["perplexity"] < metrics["weights"]
    assert metrics["stationarity"] < 1e-3
    assert 0 <= metrics["duality_gap"] < metrics["objective"]
    assert "words of context" in (run.folder / "report" / "depths.md").read_text()


@pytest.mark.parametrize("reg", ["l1", "tree_l2", "tree_linf"])
def test_every_penalty_reaches_a_stationary_point(reg, lm):
    run = lm(f"reg={reg}", "trainer.max_epochs=150", "solver.tolerance=1e-7")
    assert run.status == 0, run.errors
    assert run.metrics["stationarity"] < 1e-3
    assert 0 <= run.metrics["duality_gap"] < run.metrics["objective"]


@pytest.mark.parametrize("options", [("reg=l2",), ("reg=elastic_net",), ("preset=lm_best",)], ids=" ".join)
def test_with_squares_the_duality_gap_is_small(options, lm):
    run = lm(*options, "trainer.max_epochs=300")
    assert run.status == 0, run.errors
    assert 0 <= run.metrics["duality_gap"] < 1e-3 * run.metrics["objective"]


def test_a_strength_in_items_is_for_the_summed_loss(lm):
    per_item = lm("reg.strength=2", "reg.relative=items", "trainer.max_epochs=2", folder="items").metrics
    absolute = lm(
        f"reg.strength={per_item['strength']}", "reg.relative=false", "trainer.max_epochs=2", folder="absolute"
    ).metrics
    assert absolute["objective"] == per_item["objective"]
    run = lm("reg.relative=words")
    assert (run.status, "expected true, false or items" in run.errors) == (2, True)


def test_the_baseline_is_counted_and_not_trained(lm):
    run = lm("model=kneser_ney", "model.order=3")
    assert run.status == 0, run.errors
    texts = language_data().texts
    losses = -KneserNey(ContextTree.build(texts.train, 3)).log_probabilities(texts.test)
    known = texts.test.known[texts.test.targets]
    assert run.metrics["perplexity"] == pytest.approx(math.exp(losses[known].mean()))
    assert run.metrics["perplexity_open"] == pytest.approx(math.exp(losses.mean()))
    assert (run.metrics["model"], run.metrics["objective"]) == ("kneser_ney", None)


def test_the_artifact_of_the_baseline_has_its_probabilities(lm):
    run = lm("model=kneser_ney", "model.order=3")
    texts = language_data().texts
    tree = ContextTree.build(texts.train, 3)
    counted, model = KneserNey(tree), load(run.folder / "model")
    np.testing.assert_allclose(model.log_probabilities(texts.test), counted.log_probabilities(texts.test), atol=1e-5)
    assert model.trie.nodes == tree.nodes
    for context in ("the value of", "<s>", "of the"):
        expected = counted.distribution(model.trie.path(model._codes(context))[-1])
        np.testing.assert_allclose(model.distribution(context), expected, rtol=1e-5)
        (likely,) = model.next_words(context, 1)
        assert likely.word == texts.vocabulary.words[int(expected.argmax())]
    assert all(map(len, model.sample(3, seed=1)))


def test_the_baseline_is_exported_as_a_back_off_model(lm):
    run = lm("model=kneser_ney", "model.order=3")
    texts = language_data().texts
    counted, model = KneserNey(ContextTree.build(texts.train, 3)), load(run.folder / "model")
    _, grams = read_arpa("".join(export.arpa(model)))
    test, values = texts.test, []
    names = [model.vocabulary.name(code) for code in test.codes.tolist()]
    for place in test.targets[:200].tolist():
        before = tuple(names[place - min(2, int(test.history[place])) : place])
        values.append(back_off(grams, before, names[place]))
    expected = counted.log_probabilities(test)[:200]
    np.testing.assert_allclose(np.array(values) * math.log(10), expected, atol=1e-5)


def test_the_dev_loss_is_the_logarithm_of_the_perplexity(lm):
    run = lm("trainer.max_epochs=30", "solver.tolerance=0", "grid={reg.strength: [0.5, 5]}", "grid_by=loss")
    assert run.status == 0, run.errors
    header, *rows = [line.split("\t") for line in (run.folder / "report" / "grid.tsv").read_text().splitlines()]
    assert len(rows) == 2
    for row in rows:
        point = dict(zip(header, row, strict=True))
        assert float(point["loss"]) == pytest.approx(math.log(float(point["perplexity"])))


def test_quantization_is_chosen_on_dev_and_refused_for_counted_models():
    data = language_data()
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
    result = LanguageModelTask().rounded(SimpleNamespace(module=module, data=data), ArtifactOptions(bits=3))
    assert certificate.mean_loss(result.module, dev) == pytest.approx(min(losses))
    counted = KneserNeyModule(KneserNey(ContextTree.build(data.texts.train, 3)), data.texts.parts)
    with pytest.raises(UserError, match="bits=3: this model is counted, it has no weights"):
        LanguageModelTask().rounded(SimpleNamespace(module=counted, data=data), ArtifactOptions(bits=3))


def trained(data) -> LanguageModule:
    """A module after a few gradient steps, with weights of many sizes."""
    model = NgramModel(data.trie(3))
    module = LanguageModule(model, None, SoftmaxLM(model.structure), torch.optim.SGD, data.texts.parts, [])
    steps = torch.optim.SGD(module.parameters(), lr=50.0)
    for _ in range(5):
        for batch in data.whole("train"):
            steps.zero_grad()
            module.step(batch).backward()
            steps.step()
    return module


def test_a_collapsed_tree_gives_the_results_of_its_trie(lm):
    plain, joined = (
        lm("model.alpha=1", f"model.collapse={collapse}", "trainer.max_epochs=40", folder=collapse).metrics
        for collapse in ("false", "true")
    )
    assert joined["weights"] < plain["weights"]
    for key in ("objective", "perplexity", "perplexity_open"):
        assert joined[key] == pytest.approx(plain[key], rel=1e-6)
    assert lm("model.collapse=true").errors.count("set model.alpha=1") == 1


@pytest.mark.parametrize("reg", ["l1", "l2", "elastic_net"])
def test_a_joined_weight_has_the_penalty_of_all_weights_it_stands_for(reg, lm):
    options = (f"reg={reg}", "model.alpha=1", "reg.strength=1", "reg.relative=items", "trainer.max_epochs=300")
    plain, joined = (
        lm(*options, f"model.collapse={collapse}", folder=collapse).metrics for collapse in ("false", "true")
    )
    assert joined["weights"] < plain["weights"]
    assert joined["objective"] == pytest.approx(plain["objective"], rel=2e-5)


@pytest.mark.parametrize("options", [("reg=l0",), ("reg=tree_linf", "reg.ridge=0.1")])
def test_penalties_that_cannot_count_joined_weights_are_refused(options, lm):
    run = lm(*options, "model.alpha=1", "model.collapse=true")
    assert (run.status, "set model.collapse=false" in run.errors) == (2, True)


def test_mini_batches_reach_the_minimum_of_the_full_loss(lm):
    options = ("reg.strength=3",)
    full = lm(*options, "trainer.max_epochs=200", folder="full").metrics
    parts = lm(
        *options, "solver=accelerated_sgd", "solver.lr=2", "batch=400", "reg.every=1", "trainer.max_epochs=20",
        folder="parts",
    ).metrics  # fmt: skip
    assert full["objective"] < parts["objective"] < 1.02 * full["objective"]


def test_a_resumed_run_gives_the_same_results(lm, monkeypatch):
    full = lm("trainer.max_epochs=6", folder="full")
    with monkeypatch.context() as patch:
        at_step(patch, 3, asks_to_stop(), LanguageModule)
        stopped = lm("trainer.max_epochs=6", folder="half")
    assert stopped.status == 128 + 2
    again = lm("trainer.max_epochs=6", "ckpt_path=last", folder="half")
    assert again.status == 0, again.errors
    assert again.result == full.result


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("model.order=0",), "order"),
        (("model.alpha=0",), "model.alpha"),
        (("model.base=bigram",), "model.base"),
        (("model.kneser_ney=2",), "model.kneser_ney is 2; expected a share from 0 to 1, or dev"),
        (("model.kneser_ney=test",), "model.kneser_ney is test"),
        (("solver=online_mira",), "solver"),
        (("batch=0", "solver=sgd"), "batch=0"),
        (("data.train=nowhere.txt",), "nowhere.txt: no such file"),
        (("reg.strength=1000",), "every group is dead"),
        (("reg.ridge=-1",), "reg.ridge is -1"),
        (("recipe=reweighted",), "recipe.again: reg.reweight"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, reason, lm):
    run = lm(*options, "trainer.max_epochs=2")
    assert (run.status, run.errors.count("\n")) == (2, 1), run.errors
    assert reason in run.errors


def test_the_training_step_runs_on_the_meta_device():
    """No step looks at a value, so that nothing waits for a GPU."""
    data = language_data()
    model = NgramModel(data.trie(3), alpha=0.9, base="unigram")
    module = LanguageModule(model, None, SoftmaxLM(model.structure), torch.optim.SGD, data.texts.parts, ["model.table"])
    part, rows = model.tree.restrict(module.places("train").take(np.arange(50)))
    module = module.to("meta")
    for loss in (
        module.step(next(iter(data.batches("train", None)))),
        module.model.surprise_of(type(model.structure)(part).to("meta"), torch.from_numpy(rows).to("meta")),
    ):
        assert (loss.shape, loss.device.type) == ((), "meta")
        loss.backward()
        assert module.model.table.grad.shape == module.model.table.shape


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
def test_options_of_other_tasks_are_refused(options, lm):
    run = lm(*options, data=())
    assert (run.status, run.errors.count("\n")) == (2, 1), run.errors
