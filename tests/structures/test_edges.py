"""Chains over observed pairs: kernels and torch against enumeration, finite differences, plain chains, each other."""

import math

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.structures.chain import Chain, ChainScores
from structsparse.structures.edges import EdgeChain, EdgeScores, TorchRoute, observed
from tests.support.chains import close
from tests.support.oracles import labelings

SEEDS = range(4)
INF = math.inf


class TorchEdgeChain(EdgeChain):
    def _route(self, scores):
        return TorchRoute


KINDS = {"native": EdgeChain, "torch": TorchEdgeChain}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def problem(seed, batch=5, time=5, labels=4, share=0.6, scale=2.0):
    """Steps, including each label to itself; float64 scores; gold labels that take listed steps; lengths."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    listed = torch.rand(labels, labels, generator=draw) < share  # [to, from]
    listed |= torch.eye(labels, dtype=torch.bool)
    steps = listed.nonzero().T.flip(0)
    lengths = torch.randint(1, time + 1, (batch,), generator=draw)
    lengths[0], lengths[-1] = 1, time
    tokens, count = int(lengths.sum()), steps.shape[1]
    scores = EdgeScores(
        normal(batch, time, labels) * scale,
        normal(tokens, count) * scale,
        normal(count),
        normal(labels),
        normal(labels),
    )
    gold = torch.randint(0, labels, (batch, time), generator=draw)
    for t in range(1, time):
        follows = listed[gold[:, t], gold[:, t - 1]]
        gold[:, t] = torch.where(follows, gold[:, t], gold[:, t - 1])
    return steps, scores, gold, lengths


def tracked(scores):
    return EdgeScores(*(score.detach().clone().requires_grad_() for score in scores))


def totals_of(steps, scores, lengths):
    """For each sentence the sequences [count, length] of listed steps, ordered by the last label first; their
    totals."""
    emissions, edges, transitions, start, end = scores
    number = {pair: k for k, pair in enumerate(zip(*steps.tolist(), strict=True))}
    begin = 0
    for sentence, length in zip(emissions, lengths.tolist(), strict=True):
        paths, totals = [], []
        for path in labelings(sentence.shape[1], length).tolist():
            taken = [number.get(pair) for pair in zip(path, path[1:], strict=False)]
            if None in taken:
                continue
            total = start[path[0]] + end[path[-1]] + sum(sentence[t, label] for t, label in enumerate(path))
            for t, k in enumerate(taken, start=1):
                total = total + transitions[k] + edges[begin + t, k]
            paths.append(path)
            totals.append(total)
        begin += length
        yield torch.tensor(paths), torch.stack(totals)


def gradients(total, scores):
    return torch.autograd.grad(total, tuple(scores))


@pytest.mark.parametrize("seed", SEEDS)
def test_log_partition_and_its_gradients_are_those_of_enumeration(kind, seed):
    steps, scores, _, lengths = problem(seed)
    left, right = tracked(scores), tracked(scores)
    weights = torch.linspace(-1.0, 2.0, len(lengths), dtype=torch.float64)
    found = kind(steps, 4).log_partition(left, lengths)
    truth = torch.stack([totals.logsumexp(0) for _, totals in totals_of(steps, right, lengths)])
    close(found, truth)
    pairs = zip(gradients(found @ weights, left), gradients(truth @ weights, right), strict=True)
    for ours, theirs in pairs:
        close(ours, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_best_score_and_marginals_are_those_of_enumeration(kind, seed):
    steps, scores, _, lengths = problem(seed)
    chain = kind(steps, 4)
    found, marginals = chain.best(scores, lengths), chain.marginals(scores, lengths)
    reached = chain.score(scores, found, lengths)
    for b, (paths, totals) in enumerate(totals_of(steps, scores, lengths)):
        length = int(lengths[b])
        assert found[b, :length].tolist() == paths[totals.argmax()].tolist()
        assert not found[b, length:].any()
        assert not marginals[b, length:].any()
        close(reached[b], totals.max())
        for t in range(length):
            close(marginals[b, t], torch.zeros(4).double().index_add_(0, paths[:, t], totals.softmax(0)))


@pytest.mark.parametrize("seed", range(12))
def test_ties_go_to_the_lowest_label(kind, seed):
    steps, scores, _, lengths = problem(seed)
    scores = EdgeScores(*(score.round().clamp(-1, 1) for score in scores))  # few distinct values: many exact ties
    found = kind(steps, 4).best(scores, lengths)
    for b, (paths, totals) in enumerate(totals_of(steps, scores, lengths)):
        first = int((totals == totals.max()).nonzero()[0])
        assert found[b, : lengths[b]].tolist() == paths[first].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_finite_differences(kind, seed):
    steps, scores, gold, lengths = problem(seed, batch=3, time=4)
    chain = kind(steps, 4)
    assert torch.autograd.gradcheck(lambda *s: chain.log_partition(EdgeScores(*s), lengths), tuple(tracked(scores)))
    assert torch.autograd.gradcheck(lambda *s: chain.score(EdgeScores(*s), gold, lengths), tuple(tracked(scores)))


@pytest.mark.parametrize("seed", SEEDS)
def test_with_all_steps_and_no_edges_it_is_the_plain_chain(kind, seed):
    steps, scores, gold, lengths = problem(seed, share=2.0, labels=5, time=9)
    scores = scores._replace(edges=torch.zeros_like(scores.edges))
    matrix = scores.transitions.view(5, 5).T.contiguous()  # steps ascend by their target
    plain = ChainScores(scores.emissions, matrix, scores.start, scores.end)
    ours, theirs = kind(steps, 5), Chain()
    close(ours.log_partition(scores, lengths), theirs.log_partition(plain, lengths))
    close(ours.score(scores, gold, lengths), theirs.score(plain, gold, lengths))
    close(ours.marginals(scores, lengths), theirs.marginals(plain, lengths))
    assert torch.equal(ours.best(scores, lengths), theirs.best(plain, lengths))


@pytest.mark.parametrize("scale", [1.0, 60.0, 1e4])
def test_kernels_and_torch_agree_on_long_sentences_and_large_scores(scale):
    steps, scores, gold, lengths = problem(1, batch=40, time=60, labels=9, share=0.4, scale=scale)
    weights = torch.linspace(0.5, 2.0, len(lengths), dtype=torch.float64)
    results = []
    for kind in KINDS.values():
        chain, mine = kind(steps, 9), tracked(scores)
        losses = chain.surprise(mine, gold, lengths)
        results.append([losses.detach(), *gradients(losses @ weights, mine)])
        assert torch.isfinite(losses).all()
        assert (losses > -1e-6).all()
    for left, right in zip(*results, strict=True):
        close(left, right, 1e-8)


def test_a_label_without_steps_to_it_occurs_at_the_beginning_only(kind):
    steps = torch.tensor([[0, 1], [1, 1]])  # 0 -> 1, 1 -> 1; nothing leads to 0
    scores = EdgeScores(*(torch.zeros(shape).double() for shape in ((1, 3, 2), (3, 2), (2,), (2,), (2,))))
    mine = tracked(scores)
    total = kind(steps, 2).log_partition(mine, torch.tensor([3]))
    close(total.detach(), torch.tensor([math.log(2.0)], dtype=torch.float64))
    emissions, *_ = gradients(total.sum(), mine)
    close(emissions[0], torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]).double())


def test_a_sequence_that_takes_a_step_not_listed_scores_minus_infinity(kind):
    steps, scores, _, _ = problem(0, batch=2, time=2)
    bars = [(a, b) for a in range(4) for b in range(4) if [a, b] not in steps.T.tolist()]
    lengths = torch.tensor([1, 2])
    gold = torch.tensor([bars[0], bars[0]])
    scores = scores._replace(emissions=scores.emissions[:2], edges=scores.edges[:3])
    found = kind(steps, 4).score(scores, gold, lengths)
    assert torch.isfinite(found[0])
    assert found[1] == -INF


def test_if_all_is_forbidden_the_total_is_minus_infinity_and_gradients_are_zero(kind):
    steps, scores, _, lengths = problem(0)
    mine = tracked(scores._replace(start=torch.full((4,), -INF, dtype=torch.float64)))
    total = kind(steps, 4).log_partition(mine, lengths)
    assert (total == -INF).all()
    assert all((gradient == 0).all() for gradient in gradients(total.sum(), mine))


@pytest.mark.parametrize("kept", range(5))
def test_a_sentence_is_the_same_alone_as_among_others(kept):
    steps, scores, gold, lengths = problem(2)
    chain = EdgeChain(steps, 4)
    begin, size = int(lengths[:kept].sum()), int(lengths[kept])
    own = EdgeScores(scores.emissions[kept : kept + 1, :size], scores.edges[begin : begin + size], *scores[2:])
    alone = chain.surprise(own, gold[kept : kept + 1, :size], lengths[kept : kept + 1])
    close(alone[0], chain.surprise(scores, gold, lengths)[kept])


@pytest.mark.parametrize("loss", [CRF, Hinge, Perceptron])
def test_losses_are_nonnegative_and_vanish_for_a_large_margin(loss):
    steps, scores, gold, lengths = problem(3)
    chain = EdgeChain(steps, 4)
    assert (loss(chain)(scores, gold, lengths) >= 0).all()
    sure = chain.add_cost(scores, gold, lengths, -1e3)
    close(loss(chain)(sure, gold, lengths), torch.zeros(5).double())


def test_observed_steps_are_those_between_neighbours_of_a_sentence():
    labels, offsets = np.array([2, 0, 0, 1, 0, 2, 2]), np.array([0, 2, 3, 7])
    pairs = {(2, 0), (1, 0), (0, 2), (2, 2)}
    found = observed(labels, offsets)
    assert set(map(tuple, found.T.tolist())) == pairs
    assert found.T.tolist() == sorted(found.T.tolist(), key=lambda pair: pair[::-1])


@pytest.mark.parametrize(
    ("steps", "change", "message"),
    [
        ([[1, 0], [0, 0]], {}, "must ascend"),
        ([[0, 4], [0, 0]], {}, "must ascend"),
        (None, {"edges": torch.zeros(3, 2)}, "edges have shape"),
        (None, {"lengths": torch.tensor([1, 2, 3, 4, 6])}, "sum to"),
    ],
)
def test_scores_that_do_not_fit_are_refused(steps, change, message):
    good, scores, _, lengths = problem(0)
    lengths = change.pop("lengths", lengths)
    with pytest.raises(UserError, match=message):
        EdgeChain(good if steps is None else torch.tensor(steps), 4).best(scores._replace(**change), lengths)
