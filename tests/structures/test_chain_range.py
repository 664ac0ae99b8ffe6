"""Chains with extreme scores: huge, forbidden, out of the range of a float, NaN."""

import math

import pytest
import torch

from structsparse.structures.chain import ChainScores, NativeRoute
from tests.support import oracles
from tests.support.chains import CHAINS, INF, SEEDS, agree, close, forbid, problem, weighted_gradients


@pytest.fixture(params=CHAINS)
def chain(request):
    return CHAINS[request.param]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cost", [-INF, -1e4])
def test_forbidden_transitions_carry_no_mass(chain, seed, cost):
    scores, _, lengths = problem(seed)
    scores = forbid(scores, seed, cost)
    weights = torch.ones(len(lengths), dtype=torch.float64)
    totals, found = weighted_gradients(chain, scores, lengths, weights)
    barred = forbid(scores._replace(transitions=torch.zeros(3, 3, dtype=torch.float64)), seed).transitions == -INF
    assert (found[1][barred] == 0).all()
    assert found[2][1] == found[3][0] == 0
    close(totals, oracles.chain_log_partition(scores, lengths))
    close(found[0], oracles.chain_marginals(scores, lengths))
    steps = (lengths - 1).sum().double()
    close(found[1].sum(), steps)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("part", ["emissions", "transitions", "start", "end"])
def test_scores_of_ten_thousand_are_summed_right(chain, seed, part):
    scores, _, lengths = problem(seed)
    scores = scores._replace(**{part: getattr(scores, part) * 1e4})
    close(chain.log_partition(scores, lengths), oracles.chain_log_partition(scores, lengths))
    close(chain.marginals(scores, lengths), oracles.chain_marginals(scores, lengths), 1e-9)
    assert torch.equal(chain.best(scores, lengths), oracles.chain_best(scores, lengths)[0])


@pytest.mark.parametrize(
    "losses", [[1.0] * 100, [3.0] * 100, [10.0] * 100, [45.0, 150.0], [45.0, 199.0], [45.0, 330.0]]
)
def test_a_label_that_falls_out_of_range_and_recovers_is_not_lost(chain, losses):
    """Two labels without transitions between them: one falls behind by twice the loss per step, then catches up."""
    falls = torch.tensor(losses, dtype=torch.float64)
    lead = torch.cat([falls, torch.tensor([-0.5]), -falls.flip(0)])  # [time]
    emissions = torch.stack([0 * lead, lead, -lead], 1)
    start = torch.tensor([-INF, 0.0, 0.0], dtype=torch.float64)
    scores = ChainScores(emissions.expand(2, -1, -1), torch.eye(3, dtype=torch.float64).log(), start, 0 * lead[:3])
    totals = emissions.sum(0) + start
    shares = totals.softmax(0)  # of each label, the same at every token
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found, counts = weighted_gradients(chain, scores, torch.tensor([len(lead)] * 2), weights)
    close(found, totals.logsumexp(0).expand(2))
    close(counts[0], (weights[:, None, None] * shares).expand(2, len(lead), 3))
    close(counts[1], 3 * (len(lead) - 1) * shares.diag())
    close(counts[2], 3 * shares)
    close(counts[3], 3 * shares)


def test_an_unreachable_label_does_not_swamp_the_others(chain):
    time = 101
    emissions = torch.tensor([10.0, 0.0, 0.03125]).double().expand(1, time, 3)
    start, end = torch.tensor([-INF, 0.0, 0.0]).double(), torch.zeros(3, dtype=torch.float64)
    scores = ChainScores(emissions, torch.eye(3, dtype=torch.float64).log(), start, end)
    totals = torch.tensor([-INF, 0.0, 0.03125 * time]).double()
    found, counts = weighted_gradients(chain, scores, torch.tensor([time]), torch.ones(1, dtype=torch.float64))
    close(found[0], totals.logsumexp(0))
    close(counts[0], totals.softmax(0).expand(1, time, 3))


@pytest.mark.parametrize("loss", [100.0, 180.0, 185.0, 190.0, 200.0])
def test_a_sum_out_of_range_is_detected(chain, loss):
    """One token, one allowed label, which has low scores in start, emissions and end."""
    scores = ChainScores(
        torch.tensor([[[0.0, loss, -loss, 0.0]]]).double(),
        torch.zeros(4, 4, dtype=torch.float64),
        torch.tensor([-INF, 0.0, -loss, -INF]).double(),
        torch.tensor([-INF, -INF, -loss, 0.0]).double(),
    )
    weights = torch.ones(1, dtype=torch.float64)
    totals, found = weighted_gradients(chain, scores, torch.tensor([1]), weights)
    assert totals.item() == -3 * loss
    for counts in (found[0][0, 0], found[2], found[3]):
        close(counts, torch.tensor([0.0, 0.0, 1.0, 0.0]).double())


@pytest.mark.parametrize("spread", [50.0, 150.0, 190.0, 250.0])
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_kernels_and_torch_agree_when_emissions_contradict_transitions(spread, share, seed):
    scores, _, lengths = problem(seed, batch=12, time=30, labels=6)
    draw = torch.Generator().manual_seed(seed)
    shared = ((torch.rand(3, 6, 6, generator=draw).double() - 0.5) * spread).unbind()
    emissions = (torch.rand(12, 30, 6, generator=draw).double() - 0.5) * 2 * spread
    scores = ChainScores(emissions, shared[0], shared[1][0], shared[2][0])
    agree(forbid(scores, seed, share=share) if share else scores, lengths, 1e-9)


@pytest.mark.parametrize("spread", [20.0, 50.0, 70.0, 100.0])
def test_float32_scores_lose_no_gradient(chain, spread):
    draw = torch.Generator().manual_seed(int(spread))
    scores, _, lengths = problem(0, batch=16, time=30, labels=6)
    transitions = (torch.rand(6, 6, generator=draw).double() - 0.5) * spread
    scores = scores._replace(emissions=scores.emissions * spread / 2, transitions=transitions)
    scores = ChainScores(*(score.float().double() for score in scores))
    weights = torch.ones(16, dtype=torch.float64)
    truth = weighted_gradients(CHAINS["torch"], scores, lengths, weights)
    found = weighted_gradients(chain, scores, lengths, weights, torch.float32)
    close(found[0], truth[0])
    for left, right in zip(found[1], truth[1], strict=True):
        assert (left - right).abs().max() < 1e-5 * max(1.0, right.abs().max())


def test_ordinary_scores_use_probabilities_and_extreme_ones_log_space():
    scores, _, lengths = problem(6, batch=8, time=20, labels=9, scale=5.0)

    def in_logs(scores):
        return NativeRoute.sum(scores, lengths)[1][1].tolist()

    assert in_logs(scores) == in_logs(forbid(scores, 6)) == [False] * 8
    assert in_logs(forbid(scores, 6, cost=-1e4)) == [True] * 8
    emissions = scores.emissions.clone()
    emissions[3, 0, 2] += 1000.0
    assert in_logs(scores._replace(emissions=emissions)) == [b == 3 for b in range(8)]


def test_a_sentence_without_any_sequence_has_no_gradient(chain):
    scores, _, lengths = problem(0)
    emissions = scores.emissions.clone()
    emissions[2, 0] = -INF
    scores = scores._replace(emissions=emissions)
    totals, found = weighted_gradients(chain, scores, lengths, torch.ones(5, dtype=torch.float64))
    assert totals[2] == -INF
    assert (found[0][2] == 0).all()
    others = torch.arange(5) != 2
    rest = scores._replace(emissions=emissions[others])
    truth, expected = weighted_gradients(chain, rest, lengths[others], torch.ones(4, dtype=torch.float64))
    close(totals[others], truth)
    for left, right in zip([found[0][others], *found[1:]], expected, strict=True):
        close(left, right)


@pytest.mark.parametrize("part", ["transitions", "start", "end"])
def test_all_forbidden_is_minus_infinity_and_zero_gradient(chain, part):
    scores, _, lengths = problem(0, shortest=2)
    scores = scores._replace(**{part: torch.full_like(getattr(scores, part), -INF)})
    totals, found = weighted_gradients(chain, scores, lengths, torch.ones(5, dtype=torch.float64))
    assert (totals == -INF).all()
    assert all((gradient == 0).all() for gradient in found)
    best = chain.best(scores, lengths)
    assert ((best >= 0) & (best < 3)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_forbidden_emissions_are_left_out(chain, seed):
    scores, _, lengths = problem(seed, labels=4)
    emissions = scores.emissions.clone()
    emissions[:, 1:3, 0] = -INF
    scores = scores._replace(emissions=emissions)
    close(chain.log_partition(scores, lengths), oracles.chain_log_partition(scores, lengths))
    close(chain.marginals(scores, lengths), oracles.chain_marginals(scores, lengths))
    assert torch.equal(chain.best(scores, lengths), oracles.chain_best(scores, lengths)[0])


@pytest.mark.parametrize("label", [0, 1, 2])
def test_nan_shows_in_its_own_sentence_only(chain, label):
    scores, _, lengths = problem(1)
    emissions = scores.emissions.clone()
    emissions[2, 0, label] = math.nan
    spoilt = scores._replace(emissions=emissions)
    totals = chain.log_partition(spoilt, lengths)
    others = torch.arange(5) != 2
    assert totals[2].isnan()
    close(totals[others], chain.log_partition(scores, lengths)[others])
    marginals = chain.marginals(spoilt, lengths)
    assert marginals[2, : lengths[2]].isnan().any()
    close(marginals[others], chain.marginals(scores, lengths)[others])
    best = chain.best(spoilt, lengths)
    assert ((best >= 0) & (best < 3)).all()


@pytest.mark.parametrize("part", ["transitions", "start", "end"])
def test_nan_in_shared_scores_shows_in_every_total(chain, part):
    scores, _, lengths = problem(1, shortest=2)
    spoilt = getattr(scores, part).clone()
    spoilt[0] = math.nan
    assert chain.log_partition(scores._replace(**{part: spoilt}), lengths).isnan().all()
