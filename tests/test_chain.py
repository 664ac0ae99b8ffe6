"""Chains: both routes against enumeration, torch-struct, finite differences and each other."""

import math

import numba
import pytest
import torch

from structsparse.errors import UserError
from structsparse.structures.chain import Chain, ChainScores, NativeRoute, TorchRoute
from tests import oracles


class TorchChain(Chain):
    def _route(self, scores):
        return TorchRoute


CHAINS = {"native": Chain(), "torch": TorchChain()}
SEEDS = range(4)
INF = math.inf


@pytest.fixture(params=CHAINS)
def chain(request):
    return CHAINS[request.param]


def problem(seed, batch=5, time=5, labels=3, scale=2.0, spread=1.0, shortest=1):
    """Scores in float64, lengths with the shortest and the longest among them, gold labels."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    lengths = torch.randint(shortest, time + 1, (batch,), generator=draw)
    lengths[0], lengths[-1] = shortest, time
    emissions, transitions = normal(batch, time, labels) * scale, normal(labels, labels) * spread
    gold = torch.randint(0, labels, (batch, time), generator=draw)
    return ChainScores(emissions, transitions, normal(labels), normal(labels)), gold, lengths


def tracked(scores, dtype=torch.float64):
    return ChainScores(*(score.detach().to(dtype, copy=True).requires_grad_() for score in scores))


def gradients(total, scores, dtype=torch.float64):
    return [gradient.to(dtype) for gradient in torch.autograd.grad(total, tuple(scores))]


def weighted_gradients(chain, scores, lengths, weights, dtype=torch.float64):
    scores = tracked(scores, dtype)
    totals = chain.log_partition(scores, lengths)
    return totals.detach(), gradients((totals * weights).sum(), scores)


def close(left, right, tolerance=1e-10):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def agree(scores, lengths, tolerance=1e-10):
    """Both routes give the same totals and gradients."""
    weights = torch.linspace(0.5, 2.0, len(lengths), dtype=torch.float64)
    native, torch_ = (weighted_gradients(chain, scores, lengths, weights) for chain in CHAINS.values())
    close(native[0], torch_[0])
    for left, right in zip(native[1], torch_[1], strict=True):
        close(left, right, tolerance)


def forbid(scores, seed, cost=-INF, share=0.4):
    """Forbid some transitions, never a label's to itself, and one label at either end."""
    draw = torch.Generator().manual_seed(seed)
    transitions, start, end = scores.transitions.clone(), scores.start.clone(), scores.end.clone()
    barred = torch.rand(transitions.shape, generator=draw) < share
    transitions[barred.fill_diagonal_(False)] = cost
    start[1], end[0] = cost, cost
    return scores._replace(transitions=transitions, start=start, end=end)


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
    scores = ChainScores(*(score.round().clamp(-1, 1) for score in scores))  # few values: many ties, all exact
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


# --- hostile scores


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
def test_a_part_that_sinks_out_of_range_and_comes_back_is_not_lost(chain, losses):
    """Two labels that never meet: one falls behind by twice the loss at every step, and then catches up."""
    falls = torch.tensor(losses, dtype=torch.float64)
    lead = torch.cat([falls, torch.tensor([-0.5]), -falls.flip(0)])  # [time]
    emissions = torch.stack([0 * lead, lead, -lead], 1)
    start = torch.tensor([-INF, 0.0, 0.0], dtype=torch.float64)
    scores = ChainScores(emissions.expand(2, -1, -1), torch.eye(3, dtype=torch.float64).log(), start, 0 * lead[:3])
    totals = emissions.sum(0) + start
    shares = totals.softmax(0)  # of each label, at every token alike
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found, counts = weighted_gradients(chain, scores, torch.tensor([len(lead)] * 2), weights)
    close(found, totals.logsumexp(0).expand(2))
    close(counts[0], (weights[:, None, None] * shares).expand(2, len(lead), 3))
    close(counts[1], 3 * (len(lead) - 1) * shares.diag())
    close(counts[2], 3 * shares)
    close(counts[3], 3 * shares)


def test_what_nothing_reaches_does_not_drown_the_rest(chain):
    time = 101
    emissions = torch.tensor([10.0, 0.0, 0.03125]).double().expand(1, time, 3)
    start, end = torch.tensor([-INF, 0.0, 0.0]).double(), torch.zeros(3, dtype=torch.float64)
    scores = ChainScores(emissions, torch.eye(3, dtype=torch.float64).log(), start, end)
    totals = torch.tensor([-INF, 0.0, 0.03125 * time]).double()
    found, counts = weighted_gradients(chain, scores, torch.tensor([time]), torch.ones(1, dtype=torch.float64))
    close(found[0], totals.logsumexp(0))
    close(counts[0], totals.softmax(0).expand(1, time, 3))


@pytest.mark.parametrize("loss", [100.0, 180.0, 185.0, 190.0, 200.0])
def test_a_sum_that_leaves_the_range_is_found(chain, loss):
    """One token, one allowed label, against which start, emissions and end all speak."""
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
def test_routes_agree_where_emissions_fight_transitions(spread, share, seed):
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


def test_ordinary_scores_stay_in_probabilities_and_hostile_ones_do_not():
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


# --- the rest of the door


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
def test_gradients_come_in_the_type_of_the_scores(dtype):
    scores, gold, lengths = problem(0)
    scores = tracked(scores, dtype)
    chain = Chain()
    total = chain.log_partition(scores, lengths) - chain.score(scores, gold, lengths)
    assert total.dtype == torch.float64
    total.sum().backward()
    assert [score.grad.dtype for score in scores] == [dtype] * 4
    assert chain.marginals(scores, lengths).dtype == dtype


def test_nothing_is_read_back_to_the_host():
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
