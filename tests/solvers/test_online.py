"""Online solvers: compiled sweeps against autograd sentence by sentence, means against plain means, growing tables."""

import csv
import math

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.known.tagging import planted
from structsparse.groups import by_column, by_row, by_row_blocks
from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.penalties import L1, GroupLasso, SparseGroupLasso
from structsparse.solvers.mira import MIRA
from structsparse.solvers.online import OnlineMIRA, OnlinePerceptron
from structsparse.solvers.sgd import RowSGD
from structsparse.structures.chain import Chain
from structsparse.tasks.tagging import data as tagging
from structsparse.tasks.tagging.growing import GrowingScorer
from structsparse.tasks.tagging.model import DenseScorer, SparseScorer, Tagger
from structsparse.weights.batch import Sizes
from tests.support.runs import PLANTED, asks_to_stop, at_step

TEMPLATES = ("word[0]", "suffix3[0]", "pos[-1..0]", "pos[1]")
BLOCK = 25
RULES = {
    "perceptron": (Perceptron, lambda p, **options: OnlinePerceptron(p, lr=0.5, decay=0.0, **options)),
    "mira": (Hinge, lambda p, **options: OnlineMIRA(p, cap=0.05, **options)),
    "mira, uncapped": (Hinge, lambda p, **options: OnlineMIRA(p, lr=0.7, cap=math.inf, **options)),
}
TWINS = {
    "perceptron": lambda p: RowSGD(p, lr=0.5),
    "mira": lambda p: MIRA(p, cap=0.05),
    "mira, uncapped": lambda p: MIRA(p, lr=0.7, cap=math.inf),
}


@pytest.fixture(scope="module")
def data():
    return tagging.prepare(planted(seed=0, train=60, dev=10, test=10), TEMPLATES)


def sparse(data, dtype=torch.float64):
    return Tagger(SparseScorer(data.sizes), len(data.labels)).to(dtype)


def growing(data, dtype=torch.float64):
    return Tagger(GrowingScorer(data.sizes), len(data.labels)).to(dtype)


def passages(data, epochs=2):
    """Passages, blocks of sentences, of some epochs."""
    loader = data.passages("train", BLOCK, seed=0)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        yield from loader


def sentence_by_sentence(data, tagger, loss, twin, watch=lambda: None):
    """The same by autograd, with batches of one sentence."""
    for passage in passages(data):
        for sentence in passage.sentences.numpy():
            batch = data.arrays["train"].batch(np.array([sentence]), items=1)

            def closure(batch=batch):
                twin.zero_grad()
                value = loss(tagger(batch), batch.gold, batch.lengths).sum()
                value.backward()
                return value.detach()

            twin.step(closure)
            watch()


def weights(tagger):
    """All weights, those of features in the order of the index."""
    scorer = tagger.scorer
    table = scorer.table.detach()
    if isinstance(scorer, GrowingScorer):
        table = scorer.dense(torch.ones(scorer.rows, dtype=torch.bool))
    return [table.clone(), *(getattr(tagger, name).detach().clone() for name in ("transitions", "start", "end"))]


def assert_same(found, expected, within=1e-9):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=within, atol=within)


@pytest.mark.parametrize("make", [sparse, growing])
@pytest.mark.parametrize("rule", RULES)
def test_a_sweep_equals_steps_of_single_sentences(data, rule, make):
    kind, solver = RULES[rule]
    tagger, twin = make(data), sparse(data)
    loss, optimizer = kind(Chain()), solver(tagger.parameters())
    losses = [float(optimizer.sweep(tagger, loss, passage)) for passage in passages(data)]
    sentence_by_sentence(data, twin, loss, TWINS[rule](list(twin.parameters())))
    assert_same(weights(tagger), weights(twin))
    assert losses[-1] < losses[0]
    assert optimizer.living == int((weights(tagger)[0] != 0).sum())


@pytest.mark.parametrize("make", [sparse, growing])
@pytest.mark.parametrize("rule", RULES)
def test_the_mean_is_that_of_the_weights_after_each_sentence(data, rule, make):
    kind, solver = RULES[rule]
    tagger, twin = make(data), sparse(data)
    loss, optimizer = kind(Chain()), solver(tagger.parameters(), average=True)
    for passage in passages(data):
        optimizer.sweep(tagger, loss, passage)
    seen = []
    sentence_by_sentence(data, twin, loss, TWINS[rule](list(twin.parameters())), lambda: seen.append(weights(twin)))
    optimizer.take_mean()
    assert_same(weights(tagger), [torch.stack(each).mean(0) for each in zip(*seen, strict=True)])
    optimizer.take_mean()  # the second call changes nothing
    optimizer.resume()
    assert_same(weights(tagger), seen[-1])


def penalised(tagger, data, kind, strength):
    """A prox for the table after each block, and the penalty."""
    shape, offsets = (len(data.index), len(data.labels)), data.index.offsets
    groups = {
        "template": lambda: by_row_blocks(shape, list(TEMPLATES), offsets, "log2_size"),
        "label": lambda: by_column(shape, list(data.labels)),
        "feature": lambda: by_row(shape),
        "l1": lambda: None,
    }[kind.removeprefix("sparse ")]()
    if groups is None:
        return L1(strength)
    if isinstance(tagger.scorer, GrowingScorer):
        groups = tagger.scorer.held_of(groups)
    return SparseGroupLasso(groups, strength, mix=0.3) if kind.startswith("sparse") else GroupLasso(groups, strength)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", ["template", "label", "feature", "sparse template", "l1"])
def test_a_growing_table_holds_what_a_dense_one_does(data, kind, average):
    results, held = [], []
    for make in (sparse, growing):
        tagger = make(data)
        penalty = penalised(tagger, data, kind, 0.02 if kind in ("l1", "feature", "label") else 0.1)
        loss, optimizer = Perceptron(Chain()), OnlinePerceptron(tagger.parameters(), average=average)
        values = []
        for passage in passages(data, epochs=3):
            optimizer.sweep(tagger, loss, passage)
            group = optimizer.param_groups[0]
            assert optimizer.rate(group) == pytest.approx(len(passage.sentences) / math.sqrt(passage.epoch + 1))
            optimizer.place_(group, tagger.scorer.table)
            penalty.prox_(tagger.scorer.table.detach(), optimizer.rate(group))
            values.append(float(penalty.value(tagger.scorer.table.detach())))
            assert optimizer.rows == len(tagger.scorer.table)
            if make is growing:
                held.append(optimizer.rows)
        if not average:
            results.append((weights(tagger), values, penalty))
            continue
        ended = weights(tagger)[0] != 0
        optimizer.take_mean()
        results.append((weights(tagger), values, penalty))
        assert torch.equal(weights(tagger)[0] != 0, ended)  # weights killed by a prox are zero in the mean
    (dense, values, _), (grown, same, penalty) = results
    assert 0 < int((dense[0] != 0).sum()) < dense[0].numel()
    if not average:  # a growing table forgets the history of a row that dies and returns
        assert_same(grown, dense)
    assert same == pytest.approx(values)
    assert max(held) < len(data.index)
    assert any(later < before for before, later in zip(held, held[1:], strict=False)) or kind in ("label",)


def test_the_mean_includes_proxes(data):
    """Against the mean of the weights after each sentence, with a prox between two sentences."""
    tagger, twin = sparse(data), sparse(data)
    loss, penalty = Perceptron(Chain()), L1(0.01)
    optimizer = OnlinePerceptron(tagger.parameters(), decay=0.0, average=True)
    by_hand, seen = OnlinePerceptron(twin.parameters(), decay=0.0), []
    for passage in passages(data):
        optimizer.sweep(tagger, loss, passage)
        optimizer.place_(optimizer.param_groups[0], tagger.scorer.table)
        penalty.prox_(tagger.scorer.table.detach(), len(passage.sentences))
        for sentence in passage.sentences:
            passage.sentences = sentence[None]
            by_hand.sweep(twin, loss, passage)
            seen.append(weights(twin)[0])
        penalty.prox_(twin.scorer.table.detach(), BLOCK if len(seen) % 60 not in (0, 10) else 10)
    ended = weights(tagger)[0]
    optimizer.take_mean()
    mean = torch.stack(seen).mean(0)
    # the last prox follows the last sentence: it does not affect the mean
    torch.testing.assert_close(weights(tagger)[0], torch.where(ended != 0, mean, 0.0), rtol=1e-9, atol=1e-9)


def test_survivors_of_a_growing_table_are_rows_of_the_index(data):
    tagger = growing(data)
    loss, optimizer = Perceptron(Chain()), OnlinePerceptron(tagger.parameters())
    optimizer.sweep(tagger, loss, next(passages(data)))
    scorer, offsets = tagger.scorer, torch.as_tensor(data.index.offsets)
    whole = penalised(tagger, data, "template", 0.1)
    scorer.table.data[whole.groups.ids.flatten() == 1] = 0.0  # a template dies
    template = torch.bucketize(torch.arange(len(data.index)), offsets[1:], right=True)
    living = scorer.spread(whole)
    assert living.shape == (len(data.index), len(data.labels))
    assert torch.equal(living, (template != 1)[:, None].expand_as(living))
    entries = scorer.spread(penalised(tagger, data, "sparse template", 0.1))
    assert torch.equal(entries, weights(tagger)[0] != 0)
    assert torch.equal(scorer.spread(L1(0.1)), weights(tagger)[0] != 0)
    assert torch.equal(scorer.dense(living.any(1)), weights(tagger)[0][living.any(1)])


def test_a_growing_table_scores_as_a_dense_one_and_can_be_restored(data):
    tagger, dense, copy = growing(data), sparse(data), growing(data)
    optimizer = OnlinePerceptron(tagger.parameters())
    batch = next(iter(data.batches("dev", 10)))
    assert not tagger.scorer(batch).any()
    for passage in passages(data, epochs=1):
        optimizer.sweep(tagger, Perceptron(Chain()), passage)
    dense.scorer.table.data = weights(tagger)[0]
    torch.testing.assert_close(tagger.scorer(batch), dense.scorer(batch))
    copy.load_state_dict(tagger.state_dict())
    assert_same(weights(copy), weights(tagger))
    torch.testing.assert_close(copy.scorer(batch), dense.scorer(batch))
    state = tagger.state_dict()
    state["scorer.features"] = state["scorer.features"] + len(data.index)
    with pytest.raises(UserError, match="a checkpoint holds feature"):
        growing(data).load_state_dict(state)


def test_a_rival_with_the_same_features_moves_no_weight_of_features(data):
    """If gold and rival have equal features, only the weights of labels can move."""
    batch = next(iter(data.passages("train", 1, seed=0)))
    tagger = Tagger(SparseScorer(Sizes(1, 2, 0, ())), 2).double()
    corpus = {"ids": [0, 0], "offsets": [0, 1, 2], "begins": [0, 2], "gold": [1, 0], "sentences": [0]}
    for name, values in corpus.items():
        setattr(batch, name, torch.tensor(values, dtype=torch.int32 if name == "ids" else torch.int64))
    tagger.start.data[0], tagger.end.data[1], tagger.transitions.data[0, 1] = 9.0, 9.0, 9.0
    optimizer = OnlineMIRA(tagger.parameters(), cap=math.inf, average=False)
    before = weights(tagger)
    assert float(optimizer.sweep(tagger, Perceptron(Chain()), batch)) == pytest.approx(27.0)
    after = weights(tagger)
    moved = [a - b for a, b in zip(after, before, strict=True)]
    assert not moved[0].any()  # only the weights of labels differ
    assert float(moved[2][1]) == pytest.approx(27.0 / 6)  # start 2, end 2, transitions 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: OnlinePerceptron(p, lr=0.0), "solver.lr is 0.0"),
        (lambda p: OnlinePerceptron(p, decay=2.0), "solver.decay is 2.0"),
        (lambda p: OnlineMIRA(p, cap=0.0), "solver.cap is 0.0"),
        (lambda p: OnlineMIRA(p).step(), "call step"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make([torch.nn.Parameter(torch.zeros(1))])


def test_models_and_losses_that_do_not_fit_are_refused(data):
    passage, tagger = next(passages(data)), sparse(data)
    optimizer = OnlineMIRA(tagger.parameters())
    with pytest.raises(UserError, match="loss=perceptron or hinge, not CRF"):
        optimizer.sweep(tagger, CRF(Chain()), passage)
    with pytest.raises(UserError, match="OnlineMIRA has no sweep over sentences for a Linear"):
        optimizer.sweep(torch.nn.Linear(1, 1), Hinge(Chain()), passage)
    other = Tagger(DenseScorer(Sizes(1, 2, 3, ())), 2)
    with pytest.raises(UserError, match="model=sparse or growing"):
        optimizer.sweep(other, Hinge(Chain()), passage)


# --- whole runs

ONLINE = (
    *("loss=perceptron", "solver=online_perceptron", "batch=30", "model=growing", "reg=group_lasso", "reg.budget=2"),
    *("trainer.max_epochs=4", "trainer.check_val_every_n_epoch=1", "choose=last", "seed=0"),
    "features.templates=['word[0]','suffix3[0]','prefix4[0]','pos[-1..0]','shape[1]']",
)
REFIT = (
    *("+recipe.refit.warm=false", "+recipe.refit.model._target_=structsparse.tasks.tagging.model.SparseScorer"),
    *("+recipe.refit.model._partial_=true", "solver@recipe.refit.solver=online_mira", "reg@recipe.refit.reg=none"),
    *("+loss@recipe.refit.loss=hinge", "recipe.refit.trainer.max_epochs=3", "recipe.refit.choose=last"),
)


def test_a_run_selects_with_a_growing_table_and_refits(run):
    found = run(*PLANTED, *ONLINE, *REFIT, "recipe=select_refit")
    assert found.status == 0, found.errors
    metrics = found.metrics
    assert metrics["groups_alive"] == 2
    assert 0 < metrics["f1"] < 1
    with (found.folder / "report" / "counts.tsv").open() as file:
        counts = list(csv.DictReader(file, delimiter="\t"))
    assert [line["stage"] for line in counts] == ["select"] * 16 + ["refit"] * 12
    assert max(int(line["rows"]) for line in counts) == metrics["rows_peak"] < metrics["features"]
    assert max(int(line["weights"]) for line in counts) == metrics["weights_peak"]


def test_surviving_entries_are_refitted_with_a_dense_table(run):
    options = (*ONLINE, *REFIT, "recipe=select_refit", "reg=l1", "reg.relative=false", "reg.strength=0.01")
    options = tuple(option for option in options if "budget" not in option)
    refused = run(*options, "recipe.refit.model._target_=structsparse.tasks.tagging.growing.GrowingScorer")
    assert (refused.status, refused.errors.count("\n")) == (2, 1), refused.errors
    assert "take model=sparse" in refused.errors
    found = run(*options, folder="dense")
    assert found.status == 0, found.errors
    with (found.folder / "report" / "counts.tsv").open() as file:
        counts = [line for line in csv.DictReader(file, delimiter="\t") if line["stage"] == "refit"]
    assert found.metrics["nonzero"] <= int(counts[-1]["weights"])


def test_a_growing_table_alone_is_exported(run):
    found = run(*PLANTED, *ONLINE, "recipe=direct")
    assert found.status == 0, found.errors
    assert found.metrics["groups_alive"] == 2
    assert found.metrics["artifact_bytes"] > 0
    from structsparse import load

    model = load(found.folder / "model")
    assert len(model.index) == found.metrics["rows_alive"]


@pytest.mark.parametrize("average", ["false", "true"])
@pytest.mark.parametrize("step", [3, 8])  # within an epoch, at its end
def test_an_interrupted_run_resumes_to_the_same_end(step, average, run, monkeypatch):
    options = (*ONLINE, "recipe=direct", f"solver.average={average}", "reg.budget=3")
    whole = run(*options)
    assert whole.status == 0, whole.errors
    with monkeypatch.context() as patch:
        at_step(patch, step, asks_to_stop())
        assert run(*options, folder="stopped").status == 130
    resumed = run(*options, "ckpt_path=last", folder="stopped")
    assert resumed.result == whole.result
    for name, value in resumed.checkpoint()["state_dict"].items():
        assert torch.equal(value, whole.checkpoint()["state_dict"][name])
    assert (resumed.folder / "report" / "counts.tsv").read_text() == (
        whole.folder / "report" / "counts.tsv"
    ).read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("reg.budget=null",), "the critical strength is not known"),
        (("groups=template_tree", "reg=tree_l2", "reg.budget=null"), "model=growing takes disjoint groups"),
        (("solver=sgd",), "model=growing"),
        (("loss=crf",), "take loss=perceptron or hinge, not CRF"),
        (("solver.decay=2",), "solver.decay is 2"),
        (("trainer.devices=2", "trainer.strategy=ddp"), "one"),
        (("trainer.accumulate_grad_batches=2",), "trainer.accumulate_grad_batches=2 must be 1"),
        (("reg.freeze=1",), "rows of model=growing come and go"),
        (("trainer.precision=bf16-true",), "moves float32 or float64 weights, not bfloat16"),
        (("+reg@also.x=l1", "also.x.parameters=[transitions]"), "also.x.relative=true"),
    ],
)
def test_options_that_do_not_fit_are_refused(change, message, run):
    found = run(*ONLINE, "recipe=direct", *change)
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
    assert message in found.errors


def test_a_validation_within_an_epoch_leaves_training_as_it_was(run):
    options = (*ONLINE, "recipe=direct", "solver.average=true", "reg.budget=3")
    plain, often = run(*options, folder="plain"), run(*options, "+trainer.val_check_interval=0.5", folder="often")
    assert (plain.status, often.status) == (0, 0), often.errors
    for name, value in plain.checkpoint()["state_dict"].items():
        assert torch.equal(value, often.checkpoint()["state_dict"][name])


def test_a_growing_table_may_start_from_the_stage_before(run):
    options = (*ONLINE, *REFIT, "recipe=select_refit", "+recipe.refit.warm=true")
    growing = "+recipe.refit.model._target_=structsparse.tasks.tagging.growing.GrowingScorer"
    found = [run(*options, folder="dense"), run(*options, growing, folder="growing")]
    assert [each.status for each in found] == [0, 0], found[1].errors
    assert found[0].metrics["f1"] == found[1].metrics["f1"]
    assert found[0].metrics["nonzero"] == found[1].metrics["nonzero"]


def test_a_corpus_without_a_mistake_grows_nothing(data):
    tagger, batch = growing(data), next(iter(data.batches("dev", 10)))
    scores = tagger.scorer(batch)
    assert not scores.any()
    scores.sum().backward()  # the gradient is empty
    assert tagger.scorer.table.grad.shape == (0, len(data.labels))


def test_errors_of_a_later_stage_are_raised_before_the_first_runs(run):
    for change, message in (
        (("+loss@recipe.refit.loss=crf",), "recipe.refit: OnlineMIRA follows the best rival"),
        (
            (
                "solver@recipe.refit.solver=sgd",
                "+recipe.refit.model._target_=structsparse.tasks.tagging.growing.GrowingScorer",
            ),
            "model=growing needs",
        ),
        (("+reg@recipe.refit.also.x=l1", "recipe.refit.also.x.parameters=['*table']"), "recipe.refit: also.x.param"),
    ):
        options = [o for o in (*ONLINE, *REFIT) if o.partition("=")[0] not in [c.partition("=")[0] for c in change]]
        found = run(*options, "recipe=select_refit", *change)
        assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
        assert message in found.errors
        assert not (found.folder / "checkpoints" / "select").exists()
