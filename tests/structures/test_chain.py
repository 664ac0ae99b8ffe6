"""Chains: kernels and torch against enumeration, torch-struct, finite differences and each other."""

import math

import numba
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.structures.chain import Chain, ChainScores
from tests.support import oracles
from tests.support.chains import CHAINS, SEEDS, agree, close, forbid, gradients, problem, tracked, weighted_gradients


@pytest.fixture(params=CHAINS)
def chain(request):
    return CHAINS[request.param]


# --- against enumeration


@pytest.mark.parametrize("seed", SEEDS)
def test_log_partition_and_its_gradients_are_those_of_enumeration(chain, seed):
    scores, _, lengths = problem(seed)
    weights = torch.linspace(-1.0, 2.0, len(lengths), dtype=torch.float64)
    totals, found = weighted_gradients(chain, scores, lengths, weights)
    scores = tracked(scores)
    truth = oracles.chain_log_partition(scores, lengths)
    close(totals, truth.detach())
    for left, right in zip(found, gradients((truth * weights).sum(), scores), strict=True):
        close(left, right)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bars", [False, True])
def test_marginals_are_those_of_enumeration(chain, seed, bars):
    scores, _, lengths = problem(seed)
    scores = forbid(scores, seed) if bars else scores
    close(chain.marginals(scores, lengths), oracles.chain_marginals(scores, lengths))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bars", [False, True])
def test_best_is_that_of_enumeration(chain, seed, bars):
    scores, _, lengths = problem(seed, labels=4)
    scores = forbid(scores, seed) if bars else scores
    labels, totals = oracles.chain_best(scores, lengths)
    found = chain.best(scores, lengths)
    assert torch.equal(found, labels)
    close(chain.score(scores, found, lengths), totals)


@pytest.mark.parametrize("seed", range(12))
def test_ties_go_to_the_lowest_label(chain, seed):
    scores, _, lengths = problem(seed)
    scores = ChainScores(*(score.round().clamp(-1, 1) for score in scores))  # few distinct values: many exact ties
    assert torch.equal(chain.best(scores, lengths), oracles.chain_best(scores, lengths)[0])


def test_score_and_its_gradients_are_those_of_the_sum_of_terms(chain):
    scores, gold, lengths = problem(0)
    weights = torch.linspace(-1.0, 2.0, len(lengths), dtype=torch.float64)
    left, right = tracked(scores), tracked(scores)
    found, truth = chain.score(left, gold, lengths), oracles.chain_scores_of(right, gold, lengths)
    close(found, truth)
    sums = zip(gradients((found * weights).sum(), left), gradients((truth * weights).sum(), right), strict=True)
    for ours, theirs in sums:
        close(ours, theirs)


@pytest.mark.parametrize("labels", [1, 2, 7, 8, 9])
def test_zero_scores_count_the_sequences(chain, labels):
    scores, _, lengths = problem(0, time=6, labels=labels)
    scores = ChainScores(*(torch.zeros_like(score) for score in scores))
    close(chain.log_partition(scores, lengths), lengths.double() * math.log(labels))
    close(chain.marginals(scores, lengths).sum(2), (torch.arange(6) < lengths[:, None]).double())


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_finite_differences(chain, seed):
    scores, gold, lengths = problem(seed, batch=3, time=4)
    assert torch.autograd.gradcheck(lambda *s: chain.log_partition(ChainScores(*s), lengths), tuple(tracked(scores)))
    assert torch.autograd.gradcheck(lambda *s: chain.score(ChainScores(*s), gold, lengths), tuple(tracked(scores)))


@pytest.mark.filterwarnings("ignore:.*arg_constraints")
@pytest.mark.parametrize("seed", SEEDS)
def test_torch_struct_agrees(chain, seed):
    struct = pytest.importorskip("torch_struct")
    scores, _, lengths = problem(seed, time=9, labels=5, shortest=2)
    scores = tracked(scores)
    emissions, transitions, start, end = scores
    edges = transitions.t() + emissions[:, 1:].unsqueeze(3)  # [batch, time - 1, labels to, labels from]
    edges = torch.cat([edges[:, :1] + (start + emissions[:, 0])[:, None, None], edges[:, 1:]], 1)
    last = torch.arange(1, 9) == lengths[:, None] - 1
    edges = edges + torch.where(last[:, :, None, None], end[:, None], 0.0)
    truth = struct.LinearChainCRF(edges, lengths=lengths).partition
    found = chain.log_partition(scores, lengths)
    close(found, truth)
    for ours, theirs in zip(gradients(found.sum(), scores), gradients(truth.sum(), scores), strict=True):
        close(ours, theirs)
    highest = struct.LinearChainCRF(edges.detach().requires_grad_(), lengths=lengths).max
    close(chain.score(scores, chain.best(scores, lengths), lengths), highest)


# --- batches


@pytest.mark.parametrize("garbage", [0.0, 1e9, math.nan])
def test_padding_changes_nothing(chain, garbage):
    scores, gold, lengths = problem(1, labels=4)
    wider = torch.cat([scores.emissions, torch.zeros(5, 3, 4, dtype=torch.float64)], 1)
    outside = torch.arange(8) >= lengths[:, None]
    wider[outside] = garbage
    padded, labels = scores._replace(emissions=wider), torch.cat([gold, gold.new_full((5, 3), 3)], 1)
    weights = torch.ones(5, dtype=torch.float64)
    totals, found = weighted_gradients(chain, padded, lengths, weights)
    truth, expected = weighted_gradients(chain, scores, lengths, weights)
    close(totals, truth)
    assert (found[0][outside] == 0).all()
    for left, right in zip([found[0][:, :5], *found[1:]], expected, strict=True):
        close(left, right)
    best = chain.best(padded, lengths)
    assert (best[outside] == 0).all()
    assert torch.equal(best[:, :5], chain.best(scores, lengths))
    close(chain.score(padded, labels, lengths), chain.score(scores, gold, lengths))
    assert torch.equal(chain.marginals(padded, lengths), found[0])


def test_a_batch_is_its_sentences(chain):
    scores, _, lengths = problem(2, batch=40, time=12, labels=6)
    together = chain.log_partition(scores, lengths), chain.marginals(scores, lengths), chain.best(scores, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = scores._replace(emissions=scores.emissions[b : b + 1, :length])
        size = torch.tensor([length])
        close(chain.log_partition(alone, size)[0], together[0][b])
        close(chain.marginals(alone, size)[0], together[1][b, :length])
        assert torch.equal(chain.best(alone, size)[0], together[2][b, :length])


def test_strided_scores_give_the_same(chain):
    scores, gold, lengths = problem(3)
    turned = ChainScores(
        scores.emissions.transpose(0, 1).contiguous().transpose(0, 1),
        scores.transitions.t().contiguous().t(),
        scores.start.repeat_interleave(2)[::2],
        scores.end,
    )
    weights = torch.ones(len(lengths), dtype=torch.float64)
    for left, right in zip(
        weighted_gradients(chain, turned, lengths, weights)[1],
        weighted_gradients(chain, scores, lengths, weights)[1],
        strict=True,
    ):
        assert torch.equal(left, right)
    assert torch.equal(chain.best(turned, lengths), chain.best(scores, lengths))
    assert torch.equal(chain.score(turned, gold, lengths), chain.score(scores, gold, lengths))


@pytest.mark.parametrize("labels", [3, 22])
@pytest.mark.parametrize("shares", [0.0, 0.4])
def test_routes_agree_on_larger_problems(labels, shares):
    scores, _, lengths = problem(4, batch=30, time=40, labels=labels)
    scores = forbid(scores, 4, share=shares)
    agree(scores, lengths)
    close(*(chain.marginals(scores, lengths) for chain in CHAINS.values()))
    assert torch.equal(*(chain.best(scores, lengths) for chain in CHAINS.values()))


def test_results_are_bitwise_the_same_again_and_with_any_number_of_threads():
    scores, _, lengths = problem(5, batch=100, time=20, labels=9)
    weights = torch.linspace(0.5, 2.0, 100, dtype=torch.float64)
    threads = numba.get_num_threads()
    runs = []
    try:
        for count in (1, 1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(count)
            totals, found = weighted_gradients(CHAINS["native"], scores, lengths, weights)
            runs.append([totals, *found, CHAINS["native"].best(scores, lengths)])
    finally:
        numba.set_num_threads(threads)
    for run in runs[1:]:
        assert all(torch.equal(left, right) for left, right in zip(run, runs[0], strict=True))


# --- scores, costs, types and errors


def test_cost_is_added_for_every_wrong_label(chain):
    scores, gold, lengths = problem(3)
    augmented = chain.add_cost(scores, gold, lengths, 2.5)
    other = gold.roll(1, 0)
    inside = torch.arange(5) < lengths[:, None]
    distance = ((other != gold) & inside).sum(1)
    gained = chain.score(augmented, other, lengths) - chain.score(scores, other, lengths)
    close(gained, 2.5 * distance.double())
    assert torch.equal(chain.score(augmented, gold, lengths), chain.score(scores, gold, lengths))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_have_the_type_of_the_scores(dtype):
    scores, gold, lengths = problem(0)
    scores = tracked(scores, dtype)
    chain = Chain()
    total = chain.log_partition(scores, lengths) - chain.score(scores, gold, lengths)
    assert total.dtype == torch.float64
    total.sum().backward()
    assert [score.grad.dtype for score in scores] == [dtype] * 4
    assert chain.marginals(scores, lengths).dtype == dtype


def test_no_synchronisation_with_the_host():
    scores, gold, lengths = problem(0)
    scores = ChainScores(*(score.to("meta").requires_grad_() for score in scores))
    gold, lengths = gold.to("meta"), lengths.to("meta")
    chain = Chain()
    best = chain.best(scores, lengths)
    assert best.shape == gold.shape
    assert chain.marginals(scores, lengths).shape == scores.emissions.shape
    total = chain.log_partition(scores, lengths) - chain.score(scores, best, lengths)
    total.sum().backward()
    assert [score.grad.shape for score in scores] == [score.shape for score in scores]


def test_wrong_shapes_and_lengths_are_named():
    scores, gold, lengths = problem(0)
    chain = Chain()
    with pytest.raises(UserError, match=r"start have shape \(1,\), expected \(3,\)"):
        chain.log_partition(scores._replace(start=scores.start[:1]), lengths)
    with pytest.raises(UserError, match=r"lengths have shape \(4,\), expected \(5,\)"):
        chain.score(scores, gold, lengths[:4])
    with pytest.raises(UserError, match="expected \\[batch, time, labels\\]"):
        chain.best(scores._replace(emissions=scores.emissions[0]), lengths)
    for wrong in (0, 6):
        with pytest.raises(UserError, match="expected from 1 to 5"):
            chain.best(scores, torch.full_like(lengths, wrong))
