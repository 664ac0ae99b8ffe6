"""The k best label sequences: kernels and torch against enumeration."""

import numba
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.structures.chain import Chain, ChainScores
from tests.support import oracles
from tests.support.chains import CHAINS, INF, SEEDS, close, forbid, problem


@pytest.fixture(params=CHAINS)
def chain(request):
    return CHAINS[request.param]


def enumerated(scores, lengths, k):
    """The k best by enumeration: a stable sort keeps equals in the order in which ties are broken."""
    batch, time, _ = scores.emissions.shape
    paths, best = torch.zeros(batch, k, time, dtype=torch.int64), torch.full((batch, k), -INF, dtype=torch.float64)
    for b, (own, totals) in enumerate(oracles.chain_totals(scores, lengths)):
        totals, order = totals.sort(dim=0, descending=True, stable=True)
        count = min(k, int((totals > -INF).sum()))
        paths[b, :count, : lengths[b]], best[b, :count] = own[order[:count]], totals[:count]
    return paths, best


def whole(scores):
    """Scores with few distinct values: many exact ties."""
    return ChainScores(*(torch.where(score > -INF, score.round().clamp(-1, 1), score) for score in scores))


@pytest.mark.parametrize("k", [1, 2, 7, 300])  # there are 3 to 243 sequences
@pytest.mark.parametrize("bars", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_k_best_are_those_of_enumeration(chain, seed, bars, k):
    scores, _, lengths = problem(seed)
    scores = forbid(scores, seed) if bars else scores
    paths, totals = chain.best_k(scores, lengths, k)
    expected, theirs = enumerated(scores, lengths, k)
    assert torch.equal(paths, expected)
    close(totals, theirs)


@pytest.mark.parametrize("bars", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_ties_are_ordered_by_the_lowest_label_from_the_last_token_on(chain, seed, bars):
    scores, _, lengths = problem(seed)
    scores = whole(forbid(scores, seed) if bars else scores)
    paths, totals = chain.best_k(scores, lengths, 40)
    expected, theirs = enumerated(scores, lengths, 40)
    assert torch.equal(paths, expected)
    assert torch.equal(totals, theirs)
    assert len(totals.unique()) < totals.numel() / 4


def test_without_an_allowed_sequence_there_are_no_paths(chain):
    scores, _, lengths = problem(0)
    emissions = scores.emissions.clone()
    emissions[2, 0] = -INF
    paths, totals = chain.best_k(scores._replace(emissions=emissions), lengths, 3)
    assert (totals[2] == -INF).all()
    assert (paths[2] == 0).all()
    assert (totals[[0, 1, 3, 4], 0] > -INF).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_is_the_best_and_the_scores_are_its_scores(chain, dtype):
    scores, _, lengths = problem(1, batch=40, time=30, labels=9)
    scores = ChainScores(*(score.to(dtype) for score in forbid(scores, 1)))
    paths, totals = chain.best_k(scores, lengths, 6)
    assert torch.equal(paths[:, 0], chain.best(scores, lengths))
    for rank in range(6):
        close(
            chain.score(scores, paths[:, rank], lengths)[totals[:, rank] > -INF],
            totals[:, rank][totals[:, rank] > -INF],
        )
    assert (totals[:, 1:] <= totals[:, :-1]).all()


def test_kernels_torch_and_numbers_of_threads_agree():
    scores, _, lengths = problem(2, batch=60, time=20, labels=22)
    lengths[3], threads = 1, numba.get_num_threads()
    runs = [CHAINS["torch"].best_k(scores, lengths, 12)]
    try:
        for count in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(count)
            runs.append(Chain().best_k(scores, lengths, 12))
    finally:
        numba.set_num_threads(threads)
    for paths, totals in runs[1:]:
        assert torch.equal(paths, runs[0][0])
        assert torch.equal(totals, runs[0][1])


def test_padding_and_sentences_end_to_end_change_nothing():
    scores, _, lengths = problem(3, batch=7, time=6)
    scores = ChainScores(*(score.float() for score in scores))
    paths, totals = Chain().best_k(scores, lengths, 4)
    flat = scores._replace(emissions=scores.emissions[torch.arange(6) < lengths[:, None]])
    wide = scores._replace(emissions=torch.nn.functional.pad(scores.emissions, (0, 0, 0, 3), value=1e9))
    for other, time in ((flat, 6), (wide, 9)):
        again, same = Chain().best_k(other, lengths, 4)
        assert torch.equal(again[:, :, :6], paths)
        assert again.shape == (7, 4, time)
        assert torch.equal(same, totals)


def test_no_synchronisation_with_the_host():
    scores, _, lengths = problem(0)
    scores = ChainScores(*(score.to("meta") for score in scores))
    paths, totals = Chain().best_k(scores, lengths.to("meta"), 4)
    assert (paths.shape, totals.shape) == ((5, 4, 5), (5, 4))


def test_k_must_be_positive():
    scores, _, lengths = problem(0)
    with pytest.raises(UserError, match="k is 0, expected"):
        Chain().best_k(scores, lengths, 0)
