"""Taggers with templates conjoined with steps: what they count, learn, keep, write and refuse."""

import hashlib
import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import safetensors.numpy
import torch

from structsparse import load
from structsparse.artifacts.quantization import quantize_
from structsparse.base.errors import UserError
from structsparse.corpora.columns import Column, Sentences
from structsparse.corpora.known.tagging import planted
from structsparse.corpora.splits import SentenceSplits
from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.tasks.tagging import artifact
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.model import SparseScorer, Tagger
from structsparse.tasks.tagging.task import Tagging
from structsparse.training.scores import AccuracyScore
from structsparse.weights.observed_pairs import PairScorer
from tests.support.runs import run_here

TEMPLATES = ["word[0]", "suffix2[0]", "pos[0]"]
EDGES = ["pos[-1..0]", "word[0]"]


@pytest.fixture(scope="module")
def data():
    return prepare(planted(3, 80, 10, 40), TEMPLATES, edges=EDGES)


def tagger_of(data, scorer=SparseScorer, dead=0.5):
    """Random weights; this share of the rows of edges is dead."""
    draw = torch.Generator().manual_seed(0)
    tagger = Tagger(scorer(data.sizes), len(data.labels), data.edge_scorer())
    with torch.no_grad():
        for weights in tagger.parameters():
            weights.copy_(torch.randn(weights.shape, generator=draw))
        alive = torch.rand(len(data.edges.index), generator=draw) >= dead
        tagger.edges.table *= tagger.edges.pairs.of(alive)
    return tagger


def batch_of(data, part="test"):
    return next(iter(data.batches(part, None)))


# --- what is counted


def test_there_is_a_weight_for_each_feature_and_step_that_occur_together(data):
    train, labels = data.splits.train, data.splits.train.columns["tag"].strings()
    words, pos = (train.columns[name].strings() for name in ("word", "pos"))
    together = set()
    for begin, end in zip(train.offsets[:-1], train.offsets[1:], strict=True):
        for t in range(begin + 1, end):
            step = f"{labels[t - 1]}>{labels[t]}"
            together |= {(f"pos[-1]={pos[t - 1]} & pos[0]={pos[t]}", step), (f"word[0]={words[t]}", step)}
    pairs, index = data.edges.pairs, data.edges.index
    living = np.flatnonzero(np.diff(pairs.offsets))
    described = dict(zip(living.tolist(), index.describe(living, train, data.edges.bags["train"]), strict=True))
    names = data.edges.names(data.labels)
    found = {(described[row], names[step]) for row, step in zip(pairs.rows, pairs.labels, strict=True)}
    assert found == together
    assert len(pairs) == len(together)


@pytest.mark.parametrize("scorer", [SparseScorer, PairScorer])
def test_the_score_of_a_step_is_the_sum_of_the_weights_of_its_features(data, scorer):
    tagger, batch = tagger_of(data, scorer), batch_of(data)
    scores, dense = tagger(batch), tagger.edges.dense()
    for token in range(len(batch.places)):
        rows = batch.edge_ids[batch.edge_offsets[token] : batch.edge_offsets[token + 1]].long()
        torch.testing.assert_close(scores.edges[token], dense[rows].sum(0))
    first = batch.lengths.cumsum(0) - batch.lengths
    assert (batch.edge_offsets.diff()[first] == 0).all()
    assert (batch.edge_offsets.diff() == 2).any()
    names = data.edges.names(data.labels)
    for k, (before, here) in enumerate(data.edges.label_pairs.T):
        assert scores.transitions[k] == tagger.transitions[before, here]
        assert names[k] == f"{data.labels[before]}>{data.labels[here]}"


@pytest.mark.parametrize("scorer", [SparseScorer, PairScorer])
def test_a_batch_of_many_sentences_scores_as_small_ones_do(scorer):
    data = prepare(planted(1, 300, 5, 5), TEMPLATES, edges=EDGES)
    tagger = tagger_of(data, scorer)
    module = Tagging(tagger, CRF(tagger.structure), None, None, ())
    whole = module.step(batch_of(data, "train"))  # one that comes again, its sentences end to end
    whole.backward()
    gradients = [p.grad.clone() for p in tagger.parameters()]
    for p in tagger.parameters():
        p.grad = None
    losses = [module.step(replace(batch, items=300)) for batch in data.batches("train", 20)]
    sum(losses).backward()
    torch.testing.assert_close(whole, sum(losses))
    for p, gradient in zip(tagger.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-5)


def flips(sentences, seed):
    """The label stays at `stay` and changes at `flip`: nothing that a word says of its own label helps."""
    draw = np.random.default_rng(seed)
    words, tags = [], []
    for _ in range(sentences):
        tag = draw.integers(2)
        for t in range(8):
            flip = draw.integers(2)
            tag = (tag + flip) % 2 if t else tag
            words.append("ab"[tag] if t == 0 else ("stay", "flip")[flip])
            tags.append("XY"[tag])
    columns = {"word": Column.from_strings(words), "tag": Column.from_strings(tags)}
    return Sentences(columns, np.arange(sentences + 1) * 8, "flips")


@pytest.mark.parametrize("loss", [CRF, Hinge, Perceptron])
@pytest.mark.parametrize(("edges", "low", "high"), [([], 0.0, 0.8), (["word[0]"], 1.0, 1.0)])
def test_it_learns_what_no_template_of_a_label_can(loss, edges, low, high):
    splits = SentenceSplits("flips", flips(60, 0), flips(5, 1), flips(60, 2))
    data = prepare(splits, ["word[0]"], scheme=None, edges=edges)
    tagger = Tagger(SparseScorer(data.sizes), 2, data.edge_scorer())
    module = Tagging(tagger, loss(tagger.structure), None, partial(AccuracyScore, list(data.names)), ())
    optimizer = torch.optim.Adagrad(tagger.parameters(), lr=2.0)
    for _ in range(15):
        for batch in data.batches("train", 10, shuffle=True):
            optimizer.zero_grad()
            module.step(batch).backward()
            optimizer.step()
    assert low <= module.evaluate(data.batches("test", None)).result()["accuracy"] <= high


# --- what is kept and written


def test_rows_that_are_dead_leave_and_nothing_else_changes(data):
    tagger = tagger_of(data)
    alive = tagger.edges.pairs.any(tagger.edges.table != 0).numpy()
    less = data.keep(None, alive)
    smaller = Tagger(SparseScorer(less.sizes), len(less.labels), less.edge_scorer())
    with torch.no_grad():
        for name, weights in smaller.named_parameters():
            whole = dict(tagger.named_parameters())[name]
            rows = tagger.edges.pairs.of(torch.from_numpy(alive)) if name == "edges.table" else slice(None)
            weights.copy_(whole[rows])
    assert 0 < len(less.edges.index) < len(data.edges.index)
    for ours, theirs in zip(smaller(batch_of(less)), tagger(batch_of(data)), strict=True):
        torch.testing.assert_close(ours, theirs)


def predicted(tagger, data):
    module = Tagging(tagger, torch.nn.Identity(), None, None, ())
    batch = batch_of(data)
    found = module.predict_step(batch).numpy()
    tokens = np.concatenate([np.arange(*data.splits.test.offsets[s : s + 2]) for s in batch.sentences.tolist()])
    return [data.labels[label] for label in found[np.argsort(tokens)]]


@pytest.mark.parametrize("scorer", [SparseScorer, PairScorer])
def test_the_artifact_predicts_as_the_tagger_does(data, scorer, tmp_path):
    tagger = tagger_of(data, scorer)
    artifact.save(tmp_path / "model", tagger, data)
    model = load(tmp_path / "model")
    tags = predicted(tagger, data)
    assert model.tag(data.splits.test).strings() == tags
    assert len(set(tags)) > 2
    assert len(model.edges) == int(tagger.edges.pairs.any(tagger.edges.table != 0).sum())
    torch.testing.assert_close(model.probabilities(data.splits.test).sum(1), np.ones(len(tags), np.float32))
    with pytest.raises(UserError, match="best sequence only"):
        model.nbest(data.splits.test, 2)
    tagger.edges = None  # or the edges would not matter
    assert predicted(tagger, data) != tags


def test_a_small_artifact_predicts_as_the_rounded_tagger_does(data, tmp_path):
    tagger = tagger_of(data, PairScorer)
    for weights in tagger.parameters():
        quantize_(weights, 4)
    short = data.shortened(4, *artifact.living(tagger, len(data.index)))
    artifact.save(tmp_path / "model", tagger, short)
    model = load(tmp_path / "model")
    assert model.tag(data.splits.test).strings() == predicted(tagger, short)
    assert len(model.edges) == artifact.living(tagger, len(data.index))[1].sum()


def rewrite(folder, change, drop=None):
    """The description changed; or a tensor left out, with the checksum that belongs to it."""
    known = json.loads((folder / "model.json").read_text())
    change(known)
    if drop is not None:
        tensors = safetensors.numpy.load((folder / "weights.safetensors").read_bytes())
        del tensors[drop]
        content = safetensors.numpy.save(tensors)
        (folder / "weights.safetensors").write_bytes(content)
        known["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "model.json").write_text(json.dumps(known))


@pytest.mark.parametrize(
    ("change", "drop", "message"),
    [
        (lambda known: known["edges"]["steps"].reverse(), None, "must ascend"),
        (lambda known: known["edges"]["steps"].append([99, 99]), None, "expected|must ascend"),
        (lambda known: known["edges"].update(steps=[]), None, "edges is"),
        (lambda known: known["edges"].update(steps=[[0]]), None, "edges is"),
        (lambda known: known["edges"].update(templates={"word[0]": [-1, 40]}), None, "edges is"),
        (lambda known: known["edges"]["templates"].update({"nothing[0]": [1, 40]}), None, "neither a column"),
        (lambda known: known.pop("edges"), None, "has no place"),
        (lambda known: None, "edges.keys", "edges.keys is missing"),
    ],
)
def test_a_damaged_artifact_is_refused(data, change, drop, message, tmp_path):
    artifact.save(tmp_path / "model", tagger_of(data), data)
    rewrite(tmp_path / "model", change, drop)
    with pytest.raises(UserError, match=message):
        load(tmp_path / "model")


# --- on other devices


@pytest.mark.parametrize("loss", [CRF, Hinge, Perceptron])
@pytest.mark.parametrize("scorer", [SparseScorer, PairScorer])
def test_the_training_step_asks_for_no_value(data, loss, scorer):
    tagger = Tagger(scorer(data.sizes), len(data.labels), data.edge_scorer())
    module = Tagging(tagger, loss(tagger.structure), None, None, ()).to("meta")
    batch = next(iter(data.batches("train", 8)))
    moved = {f.name: v.to("meta") for f in fields(batch) if isinstance(v := getattr(batch, f.name), torch.Tensor)}
    found = module.step(replace(batch, **moved))
    assert (found.shape, found.device.type) == ((), "meta")
    found.backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in tagger.parameters())


# --- the program


BOTH = "reg.parameters=['*table']", "reg.strength=0.8"
OF_EDGES = "reg.parameters=['edges.table']", "reg.strength=0.6", "features.templates=['punctuation[0]']"


@pytest.mark.parametrize(("own", "groups"), [(BOTH, 8), (OF_EDGES, 3)], ids=["both", "edges"])
def test_two_stages_of_templates_of_both_kinds(own, groups, tmp_path):
    """A strong group lasso leaves some of the templates; the refit starts from their rows."""
    options = "recipe=select_refit", "reg=group_lasso", "model=pairs", "solver=fista", "reg.every=1"
    edges = "features.edges=['pos[-1..0]','suffix3[0]','punctuation[-1]']"
    stages = (
        "++recipe.select.batch=null",
        "++recipe.select.trainer.max_epochs=30",
        "++recipe.refit.trainer.max_epochs=2",
    )
    run = run_here(*options, edges, *stages, *own, folder=tmp_path / "run")
    assert (run.status, run.errors) == (0, "")
    metrics = run.metrics
    assert metrics["groups"] == groups
    assert 0 < metrics["groups_alive"] < groups
    weights = {
        name: p for name, p in run.checkpoint("refit", "best")["state_dict"].items() if name.startswith("tagger")
    }
    assert metrics["parameters_nonzero"] == sum(int((p != 0).sum()) for p in weights.values())
    assert metrics["edge_nonzero"] == int((weights["tagger.edges.table"] != 0).sum())
    assert weights["tagger.edges.table"].numel() < metrics["edge_weights"]  # dead rows have left
    lines = (tmp_path / "run" / "report" / "edges.tsv").read_text().splitlines()[1:]
    model = load(tmp_path / "run" / "model")
    assert len(lines) == (0 if model.edges is None else len(model.edges))


@pytest.mark.parametrize("model", ["sparse", "pairs"])
def test_a_path_goes_down_with_templates_of_both_kinds(model, tmp_path):
    """It screens rows of the features of labels, and leaves those of edges alone."""
    edges = "features.edges=['pos[-1..0]','suffix3[0]']"
    options = "recipe=direct", "reg=group_lasso", "batch=null", "solver=fista", "reg.every=1", "trainer.max_epochs=30"
    run = run_here(*options, edges, f"model={model}", "path=[0.5,0.2]", folder=tmp_path / "run")
    assert (run.status, run.errors) == (0, "")
    assert 0 < run.metrics["groups_alive"] < run.metrics["groups"]
    assert run.metrics["edge_nonzero"] > 0


def test_a_run_without_edges_says_nothing_of_them(tmp_path):
    run = run_here(folder=tmp_path / "run")
    assert not any(key.startswith("edge") for key in run.metrics)
    assert not (tmp_path / "run" / "report" / "edges.tsv").exists()
    assert "edges" not in json.loads((tmp_path / "run" / "model" / "model.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("features.edges=['tag[-1]']",), "the column to predict"),
        (("features.edges=['word[0]','word[0]']",), "given twice"),
        (
            ("features.edges=['word[0]']", "solver=online_perceptron", "loss=perceptron", "batch=20"),
            "does not support features.edges; choose another solver",
        ),
    ],
)
def test_what_cannot_be_is_told(options, message, tmp_path):
    run = run_here(*options, folder=tmp_path / "run")
    assert run.status == 2
    assert message in run.errors
    assert len(run.errors.splitlines()) == 1


def test_sentences_of_one_token_have_no_steps():
    words = Sentences({n: Column.from_strings(["a", "b"]) for n in ("word", "tag")}, np.arange(3), "words")
    with pytest.raises(UserError, match="two tokens"):
        prepare(SentenceSplits("words", words, words, words), ["word[0]"], scheme=None, edges=["word[0]"])
