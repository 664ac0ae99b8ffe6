"""Tables of observed pairs: the same models as full tables with the other entries fixed at zero."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structsparse import load
from structsparse.corpora.known.tagging import planted
from structsparse.features.layout import TemplateLayout, by_feature, by_label, by_template, by_template_tree
from structsparse.losses.structured import CRF
from structsparse.penalties import L1, GroupLasso
from structsparse.solvers.quasi_newton import ProximalQuasiNewton
from structsparse.structures.chain import Chain, ChainScores
from structsparse.tasks.tagging.data import prepare
from structsparse.tasks.tagging.features.groups import by_coarse_to_fine
from structsparse.tasks.tagging.model import SparseScorer, Tagger
from structsparse.weights.batch import FLAT, BatchCache
from structsparse.weights.observed_pairs import Pairs, PairScorer, entries_of, rows_of
from tests.support.runs import TWO_STAGES

TEMPLATES = ["word[0]", "suffix3[0]", "pos[-1..0]"]


@pytest.fixture(scope="module")
def data():
    return prepare(planted(0, 60, 5, 5), TEMPLATES)


def seen_pairs(arrays, rows):
    """The labels observed with each row, by a plain loop."""
    labels = [set() for _ in range(rows)]
    for token, label in enumerate(arrays.gold):
        for row in arrays.bags.ids[arrays.bags.offsets[token] : arrays.bags.offsets[token + 1]]:
            labels[row].add(int(label))
    return labels


def test_the_pairs_are_those_observed(data):
    arrays, rows = data.arrays["train"], len(data.index)
    pairs = Pairs.observed(arrays, rows, len(data.labels))
    expected = [sorted(labels) for labels in seen_pairs(arrays, rows)]
    assert [pairs.labels[a:b].tolist() for a, b in itertools.pairwise(pairs.offsets)] == expected
    assert pairs.rows.tolist() == [row for row, labels in enumerate(expected) for _ in labels]
    bounds = zip(arrays.offsets[:-1], arrays.offsets[1:], strict=True)
    links = {(a, b) for begin, end in bounds for a, b in itertools.pairwise(arrays.gold[begin:end].tolist())}
    assert set(zip(*np.nonzero(pairs.links), strict=True)) == links
    assert 0 < len(links) < len(data.labels) ** 2


@pytest.mark.parametrize("labels", [64, 65, 130, 300])
def test_pairs_of_many_labels(labels):
    draw = np.random.default_rng(labels)
    arrays = prepare(planted(1, 40, 2, 2), TEMPLATES).arrays["train"]
    arrays = dataclasses.replace(arrays, gold=draw.integers(0, labels, len(arrays.gold)))
    rows = int(arrays.bags.ids.max()) + 1
    pairs = Pairs.observed(arrays, rows, labels)
    expected = [sorted(found) for found in seen_pairs(arrays, rows)]
    assert [pairs.labels[a:b].tolist() for a, b in itertools.pairwise(pairs.offsets)] == expected


# --- sums and gradients, against a dense table


def random_weights(size, seed, alive=0.5, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(size, generator=draw, dtype=dtype)
    return weights * (torch.rand(size, generator=draw) < alive)


@pytest.mark.parametrize("alive", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("whole", [False, True], ids=["batch", "batch that comes again"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_gradients_are_those_of_a_table(data, alive, whole, dtype):
    batch = next(iter(data.batches("train", None if whole else 7)))
    assert (batch.cache is not None) == whole
    scorer, table = PairScorer(data.sizes).to(dtype), SparseScorer(data.sizes).to(dtype)
    with torch.no_grad():
        scorer.table.copy_(random_weights(len(scorer.table), 1, alive, dtype))
        table.table.copy_(scorer.dense())
    found, expected = scorer(batch), table(batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    pull = random_weights(found.numel(), 2, 1.0, dtype).view_as(found)
    found.backward(pull)
    expected.backward(pull)
    gradient = table.table.grad.flatten()[scorer.places]
    torch.testing.assert_close(scorer.table.grad, gradient, rtol=1e-4, atol=1e-4)
    assert (gradient != 0).all() or not whole


def test_the_kernels_agree_with_torch_alone(data):
    """Other number types are summed by torch."""
    batch, scorer = next(iter(data.batches("train", 9))), PairScorer(data.sizes)
    with torch.no_grad():
        scorer.table.copy_(random_weights(len(scorer.table), 3))
    coarse = PairScorer(data.sizes)
    coarse.load_state_dict(scorer.state_dict())
    coarse = coarse.bfloat16()
    found, rough = scorer(batch), coarse(batch)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), found, rtol=0.05, atol=0.1)
    found.sum().backward()
    rough.sum().backward()
    torch.testing.assert_close(coarse.table.grad.float(), scorer.table.grad, rtol=0.05, atol=0.1)


def on_meta(thing):
    moved = {
        field.name: value.to("meta") if isinstance(value := getattr(thing, field.name), torch.Tensor) else value
        for field in dataclasses.fields(thing)
    }
    return dataclasses.replace(thing, **moved)


@pytest.mark.parametrize("observed", [False, True])
def test_a_training_step_needs_no_synchronisation_with_the_device(data, observed):
    tagger = Tagger(PairScorer(data.sizes, observed), len(data.labels)).to("meta")
    batch = on_meta(next(iter(data.batches("train", 8))))
    CRF(Chain())(tagger(batch), batch.gold, batch.lengths).sum().backward()
    assert all(parameter.grad is not None for parameter in tagger.parameters())


# --- sentences end to end


def brute_force(emissions, transitions, start, end, gold):
    """-log p(gold) by enumeration of all sequences."""
    time, labels = emissions.shape

    def score(path):
        inner = sum(emissions[t, y] for t, y in enumerate(path))
        steps = sum(transitions[a, b] for a, b in itertools.pairwise(path))
        return inner + steps + start[path[0]] + end[path[-1]]

    everything = torch.stack([score(path) for path in itertools.product(range(labels), repeat=time)])
    return everything.logsumexp(0) - score(gold)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    labels=st.integers(1, 3),
    spread=st.sampled_from([0.1, 3.0, 15.0, 60.0, 500.0]),
)
def test_surprise_end_to_end_is_that_of_enumeration(seed, lengths, labels, spread):
    """Widely spread scores are handled by other kernels, for a sentence or for all."""
    draw = torch.Generator().manual_seed(seed)
    tokens, total = sum(lengths), torch.tensor(lengths)

    def random(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=draw, dtype=torch.float64)

    far = torch.rand(tokens, 1, generator=draw) < 0.1
    emissions = torch.where(far, spread, 1.0) * random(tokens, labels)
    emissions = emissions.float().double()
    shared = random(labels, labels, scale=min(spread, 20.0)), random(labels), random(labels)
    gold = torch.randint(0, labels, (len(lengths), max(lengths)), generator=draw)
    leaves = [emissions.float().requires_grad_(), *(s.clone().requires_grad_() for s in shared)]
    truth_leaves = [emissions.clone().requires_grad_(), *(s.clone().requires_grad_() for s in shared)]
    found = Chain().surprise(ChainScores(*leaves), gold, total)
    begins = [0, *itertools.accumulate(lengths)]
    truth = torch.stack(
        [
            brute_force(truth_leaves[0][begins[b] : begins[b + 1]], *truth_leaves[1:], gold[b, :n].tolist())
            for b, n in enumerate(lengths)
        ]
    )
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)
    gradients = torch.autograd.grad(0.5 * found.sum(), leaves)
    expected = torch.autograd.grad(0.5 * truth.sum(), truth_leaves, materialize_grads=True)
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("labels", [2, 8, 9, 22, 40])
@pytest.mark.parametrize("forbids", [False, True])
@pytest.mark.parametrize("spread", [(2.0, 1.0), (25.0, 1.0), (200.0, 1.0), (2.0, 100.0)])
def test_end_to_end_and_padded_give_the_same(labels, forbids, spread):
    """For any spread of emissions and transitions, also out of the range of the fast kernels."""
    draw = torch.Generator().manual_seed(labels)
    lengths = torch.randint(1, 40 if max(spread) > 2 else 90, (60 if max(spread) > 2 else 300,), generator=draw)
    emissions = spread[0] * torch.randn(int(lengths.sum()), labels, generator=draw)
    shapes = ((labels, labels), (labels,), (labels,))
    shared = [spread[1] * torch.randn(*shape, generator=draw).double() for shape in shapes]
    gold = torch.randint(0, labels, (len(lengths), int(lengths.max())), generator=draw)
    if forbids:
        shared[0][labels - 1, 0] = -torch.inf
        gold.clamp_(max=labels - 2)
    leaves = [emissions.requires_grad_(), *(s.requires_grad_() for s in shared)]
    scores, chain = ChainScores(*leaves), Chain()
    found = CRF(chain)(scores, gold, lengths)
    inside = torch.arange(gold.shape[1]) < lengths[:, None]
    padded = torch.zeros(*gold.shape, labels).masked_scatter(inside.unsqueeze(2), emissions)
    other = scores._replace(emissions=padded)
    truth = chain.log_partition(other, lengths) - chain.score(other, gold, lengths)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-4)
    for mine, theirs in zip(
        torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(truth.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-4)
    assert torch.equal(chain.best(scores, lengths), chain.best(other, lengths))
    torch.testing.assert_close(chain.marginals(scores, lengths), chain.marginals(other, lengths))
    cost = chain.add_cost(scores, gold, lengths, 0.7).emissions
    torch.testing.assert_close(cost[inside], chain.add_cost(other, gold, lengths, 0.7).emissions[inside])


def test_large_batches_are_not_padded_and_the_full_batch_is_built_once():
    data = prepare(planted(3, FLAT, 3, 3), ["word[0]"])
    batches = data.batches("train", None, shuffle=True)
    batch = next(iter(batches))
    assert next(iter(batches)) is batch
    assert isinstance(batch.cache, BatchCache)
    for scorer in (PairScorer(data.sizes), SparseScorer(data.sizes)):
        assert scorer(batch).shape == (len(batch.places), len(data.labels))
    few = next(iter(data.batches("train", FLAT - 1)))
    assert SparseScorer(data.sizes)(few).dim() == 3


# --- the objective of crfsuite


def scalar_objective(data, weights, transitions, strength):
    """Mean loss by enumeration with weights by (row, label), without start and end, plus L1 on all weights."""
    arrays, labels, total = data.arrays["train"], len(data.labels), 0.0
    for begin, end in itertools.pairwise(arrays.offsets):
        emissions = torch.zeros(end - begin, labels, dtype=torch.float64)
        for token in range(begin, end):
            for row in arrays.bags.ids[arrays.bags.offsets[token] : arrays.bags.offsets[token + 1]]:
                for label in range(labels):
                    emissions[token - begin, label] += weights.get((int(row), label), 0.0)
        zero = torch.zeros(labels)
        total += float(brute_force(emissions, transitions, zero, zero, arrays.gold[begin:end].tolist()))
    return total / len(arrays) + strength * (sum(map(abs, weights.values())) + float(transitions.abs().sum()))


@pytest.fixture(scope="module")
def tiny():
    data = prepare(planted(5, 12, 2, 2), ["word[0]", "pos[0]"])
    arrays = data.arrays["train"]
    tokens = np.concatenate([np.arange(begin, begin + 4) for begin in arrays.offsets[:8]])  # four of each sentence
    begins, ends = arrays.bags.offsets[tokens], arrays.bags.offsets[tokens + 1]
    bags = dataclasses.replace(
        arrays.bags,
        ids=np.concatenate([arrays.bags.ids[a:b] for a, b in zip(begins, ends, strict=True)]),
        offsets=np.r_[0, np.cumsum(ends - begins)],
    )
    gold, offsets = arrays.gold[tokens] % 3, np.arange(0, len(tokens) + 1, 4)
    small = dataclasses.replace(
        arrays, bags=bags, gold=gold, offsets=offsets, dense=arrays.dense[tokens], codes=arrays.codes[tokens]
    )
    sizes = data.sizes._replace(labels=3, pairs=lambda: Pairs.observed(small, len(data.index), 3))
    return dataclasses.replace(data, arrays={"train": small}, labels=("a", "b", "c"), sizes=sizes)


def test_the_objective_is_that_of_crfsuite(tiny):
    """Only observed pairs have weights, all under L1; no small change lowers the minimum."""
    tagger = Tagger(PairScorer(tiny.sizes, observed=True), 3)
    batch, strength = next(iter(tiny.batches("train", None))), 1 / len(tiny.arrays["train"])
    optimizer = ProximalQuasiNewton(tagger.parameters(), tolerance=1e-9)
    optimizer.attach({tagger.scorer.table: L1(strength), tagger.transitions: L1(strength)})

    def closure():
        tagger.zero_grad()
        loss = CRF(Chain())(tagger(batch), batch.gold, batch.lengths).sum() / batch.items
        loss.backward()
        return loss

    def objective(weights, transitions):
        pairs = tagger.scorer.pairs
        named = {(r, int(l)): float(w) for r, l, w in zip(pairs.rows, pairs.labels, weights, strict=True) if w != 0}
        return scalar_objective(tiny, named, transitions.double(), strength)

    for _ in range(60):
        optimizer.step(closure)
    weights, transitions = tagger.scorer.table.detach(), tagger.transitions.detach()
    best = objective(weights, transitions)
    assert optimizer.shared["objective"] == pytest.approx(best, rel=1e-5)
    assert (transitions[~tagger.links] == 0).all()
    assert (tagger.start == 0).all()
    assert (tagger.end == 0).all()
    assert 0 < (weights != 0).sum() < len(weights)
    draw = torch.Generator().manual_seed(0)
    for scale in (0.3, 0.03):
        for _ in range(5):
            moved = weights + scale * torch.randn(len(weights), generator=draw)
            links = transitions + scale * torch.randn(3, 3, generator=draw) * tagger.links
            assert objective(moved, links) > best - 1e-6
    assert math.isfinite(best)


# --- groups, dropping rows, whole runs


def test_groups_are_those_of_the_table_on_the_pairs(data):
    """A pair lies in the groups of its feature, template and label in a full table."""
    labels, rows = len(data.labels), len(data.index)
    pairs = data.sizes.pairs()
    dense = TemplateLayout(data.index.names, data.index.offsets, data.labels)
    sparse = dataclasses.replace(dense, pairs=pairs)
    places = torch.from_numpy(pairs.places)
    for group in (by_template, by_feature, by_label):
        of_table, of_pairs = group((rows, labels), dense), group((len(pairs),), sparse)
        expected = of_table.ids.expand(rows, labels).flatten()[places]
        assert torch.equal(of_pairs.ids.expand(len(pairs)), expected)
        assert torch.equal(of_pairs.size, torch.bincount(expected, minlength=len(of_table)))
        assert list(of_pairs.names) == list(of_table.names)
    weights = random_weights(len(pairs), 7)
    table = torch.zeros(rows * labels).index_copy(0, places, weights).view(rows, labels)
    for group in (by_template_tree, by_coarse_to_fine):
        of_table, of_pairs = group((rows, labels), dense), group((len(pairs),), sparse)
        assert torch.equal(of_pairs.alive(weights), of_table.alive(table))
        torch.testing.assert_close(of_pairs.norms(weights), of_table.norms(table))


def test_rows_without_a_living_pair_are_dropped_and_others_keep_their_weights(data):
    tagger = Tagger(PairScorer(data.sizes), len(data.labels))
    weights = random_weights(len(tagger.scorer.table), 4, alive=0.3)
    with torch.no_grad():
        tagger.scorer.table.copy_(weights)
    rows = rows_of(tagger, weights != 0)
    assert torch.equal(rows, (tagger.scorer.dense() != 0).any(1))
    less = data.keep(rows.numpy())
    smaller = Tagger(PairScorer(less.sizes), len(data.labels))
    assert (smaller.scorer.pairs.offsets[1:] > smaller.scorer.pairs.offsets[:-1]).all()
    with torch.no_grad():
        smaller.scorer.table.copy_(weights[entries_of(tagger, rows)])
    torch.testing.assert_close(smaller.scorer.dense(), tagger.scorer.dense()[rows])
    for part in ("train", "dev"):
        one, two = (next(iter(d.batches(part, None))) for d in (data, less))
        torch.testing.assert_close(tagger.scorer(one), smaller.scorer(two))


RUNS = {
    "l1": ("reg=l1", "reg.strength=0.05"),
    "group lasso by feature": ("reg=group_lasso", "groups=feature", "reg.strength=0.2"),
    "by label": ("reg=group_lasso", "groups=label", "reg.strength=0.2"),
    "tree": ("reg=tree_l2", "groups=template_tree", "reg.strength=0.2", "solver=sgd"),
    "sparse group lasso, whole": ("reg=sparse_group_lasso", "solver=fista", "batch=null", "reg.strength=0.2"),
    "quasi-Newton": ("reg=l1", "solver=quasi_newton", "batch=null", "trainer.max_epochs=30"),
    "log sum": ("reg=log_sum", "reg.strength=0.2"),
    "mcp": ("reg=mcp", "reg.strength=0.2"),
    "l0": ("reg=l0", "reg.strength=0.05"),
    "dual averaging": ("reg=l1", "solver=adagrad_rda"),
    "path": ("reg=l1", "path=3", "reg.strength=0.05"),
    "path of groups": ("reg=group_lasso", "groups=feature", "path=3", "reg.strength=0.2"),
    "two stages": TWO_STAGES,
    "two stages by entry": (*TWO_STAGES, "reg=l1", "reg.strength=0.05"),
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_ends_with_a_model_that_predicts_the_same(run, options):
    found = run(*options, "model=pairs")
    assert (found.status, found.errors) == (0, "")
    metrics = found.metrics
    assert 0 < metrics["nonzero"] <= metrics["weights"]
    model = load(found.folder / "model")
    data = prepare(planted(0, 120, 40, 40), ["word[0]", "suffix3[0]", "prefix4[0]", "pos[-1..0]", "shape[1]"])
    score = data.score()
    sentences, arrays = data.splits.test, data.arrays["test"]
    tags = model.tag(sentences)
    place = {name: k for k, name in enumerate(data.names)}
    score.add(arrays.gold, np.array([place[tag] for tag in tags.values])[tags.codes], sentences.offsets)
    assert score.result()["f1"] == pytest.approx(metrics["f1"])


def test_if_all_pairs_occur_a_run_is_that_of_the_full_table(run):
    options = ("features.templates=['pos[0]']", "reg=l1", "reg.strength=0.02", "solver=quasi_newton", "batch=null")
    options = (*options, "trainer.max_epochs=100")
    pairs, table = (run(*options, f"model={model}", folder=model).metrics for model in ("pairs", "sparse"))
    assert pairs["weights"] == table["weights"] > pairs["nonzero"]
    assert pairs["objective"] == pytest.approx(table["objective"], rel=1e-4)
    for metrics in (pairs, table):
        assert metrics["duality_gap"] < 0.2 * metrics["objective"]
        assert metrics["stationarity"] < 1e-2


def test_groups_hold_only_observed_pairs(data):
    """A feature with one observed label is a group of one, whatever the number of labels."""
    pairs = data.sizes.pairs()
    layout = TemplateLayout(data.index.names, data.index.offsets, data.labels, pairs=pairs)
    penalty = GroupLasso(by_feature((len(pairs),), layout), 1.0)
    weights = torch.ones(len(pairs))
    penalty.prox_(weights, 0.25)
    torch.testing.assert_close(weights, torch.full_like(weights, 0.75))
