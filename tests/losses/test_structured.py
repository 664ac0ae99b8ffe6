"""Structured losses: on chains against enumeration, and on a minimal structure."""

import pytest
import torch
import torch.nn.functional as F

from structsparse.losses.structured import CRF, Hinge, Perceptron
from structsparse.structures.base import Structure
from structsparse.structures.chain import Chain, ChainScores
from tests.support import oracles

LOSSES = {"crf": CRF, "hinge": Hinge, "perceptron": Perceptron}
SEEDS = range(4)


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param](Chain())


def problem(seed, batch=6, time=5, labels=3, scale=1.0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    shapes = [(batch, time, labels), (labels, labels), (labels,), (labels,)]
    scores = (scale * torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes)
    gold = torch.randint(0, labels, (batch, time), generator=draw)
    lengths = torch.randint(1, time + 1, (batch,), generator=draw)
    lengths[0], lengths[-1] = 1, time
    return ChainScores(*(score.to(dtype) for score in scores)), gold, lengths


def distances(paths, gold, length):
    return (paths != gold[:length]).sum(1)


def raise_gold(scores, gold, margin):
    """The scores with `margin` added to every gold label."""
    return scores._replace(emissions=scores.emissions + margin * F.one_hot(gold, scores.start.numel()))


# --- on chains


@pytest.mark.parametrize("seed", SEEDS)
def test_crf_is_the_negative_log_probability_of_gold(seed):
    scores, gold, lengths = problem(seed)
    for b, (paths, totals) in enumerate(oracles.chain_totals(scores, lengths)):
        is_gold = distances(paths, gold[b], lengths[b]) == 0
        found = CRF(Chain())(scores, gold, lengths)[b]
        torch.testing.assert_close(found, -totals.log_softmax(0)[is_gold].squeeze())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cost", [0.0, 1.0, 5.0])
def test_hinge_is_the_largest_excess_of_score_and_cost_over_gold(seed, cost):
    scores, gold, lengths = problem(seed)
    found = Hinge(Chain(), cost)(scores, gold, lengths)
    for b, (paths, totals) in enumerate(oracles.chain_totals(scores, lengths)):
        apart = distances(paths, gold[b], lengths[b])
        truth = (totals + cost * apart).max() - totals[apart == 0].squeeze()
        torch.testing.assert_close(found[b], truth)


@pytest.mark.parametrize("seed", SEEDS)
def test_perceptron_is_the_excess_of_the_best_over_gold(seed):
    scores, gold, lengths = problem(seed)
    truth = oracles.chain_best(scores, lengths)[1] - oracles.chain_scores_of(scores, gold, lengths)
    torch.testing.assert_close(Perceptron(Chain())(scores, gold, lengths), truth)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_are_ordered_and_never_negative(seed, scale, dtype):
    problem_ = problem(seed, batch=20, time=30, labels=5, scale=scale, dtype=dtype)
    crf, hinge, perceptron = (loss(Chain())(*problem_) for loss in LOSSES.values())
    assert (perceptron >= 0).all()
    assert (hinge >= perceptron).all()
    assert (crf >= perceptron * (1 - 1e-12)).all()  # up to rounding, equal if nothing else has any mass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [1e2, 1e4])
def test_a_huge_margin_leaves_no_loss_and_no_gradient(loss, dtype, margin):
    scores, gold, lengths = problem(0, batch=20, time=30, labels=5, dtype=dtype)
    scores = ChainScores(*(score.requires_grad_() for score in raise_gold(scores, gold, margin)))
    found = loss(scores, gold, lengths)
    assert (found >= 0).all()
    assert (found < 1e-9).all()
    found.sum().backward()
    assert all(score.grad.abs().max() < 1e-6 for score in scores)


@pytest.mark.parametrize("seed", SEEDS)
def test_hinge_is_at_least_the_cost_of_the_prediction(seed):
    scores, gold, lengths = problem(seed, batch=30)
    chain = Chain()
    inside = torch.arange(gold.shape[1]) < lengths[:, None]
    wrong = ((chain.best(scores, lengths) != gold) & inside).sum(1)
    assert wrong.any()
    assert (Hinge(chain, 2.0)(scores, gold, lengths) >= 2.0 * wrong).all()


@pytest.mark.parametrize("seed", range(2))
def test_gradients_are_finite_differences(loss, seed):
    scores, gold, lengths = problem(seed, batch=2, time=4)

    def of(*scores):
        return loss(ChainScores(*scores), gold, lengths)

    assert torch.autograd.gradcheck(of, tuple(score.requires_grad_() for score in scores))


def test_only_the_crf_is_smooth():
    assert [loss.smooth for loss in LOSSES.values()] == [True, False, False]


@pytest.mark.parametrize("padding", [0, 2])
def test_padding_does_not_change_losses(loss, padding):
    scores, gold, lengths = problem(1)
    inside = torch.arange(gold.shape[1]) < lengths[:, None]
    changed = scores._replace(emissions=torch.where(inside[:, :, None], scores.emissions, 1e6))
    other = torch.where(inside, gold, padding)
    torch.testing.assert_close(loss(changed, other, lengths), loss(scores, gold, lengths))


def test_losses_need_no_synchronisation_with_the_host(loss):
    scores, gold, lengths = problem(0)
    scores = ChainScores(*(score.to("meta").requires_grad_() for score in scores))
    found = loss(scores, gold.to("meta"), lengths.to("meta"))
    assert found.shape == lengths.shape
    found.mean().backward()
    assert [score.grad.shape for score in scores] == [score.shape for score in scores]


# --- on any structure


class Classes(Structure):
    """One label an item: scores [batch, labels], gold [batch]."""

    def log_partition(self, scores, lengths):
        return scores.logsumexp(1)

    def best(self, scores, lengths):
        return scores.argmax(1)

    def score(self, scores, gold, lengths):
        return scores.gather(1, gold[:, None]).squeeze(1)

    def add_cost(self, scores, gold, lengths, cost=1.0):
        return scores + cost * (1 - F.one_hot(gold, scores.shape[1]))


def test_losses_rely_on_the_structure_interface_alone():
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(50, 4, generator=draw, dtype=torch.float64)
    gold, none = torch.randint(0, 4, (50,), generator=draw), torch.ones(50, dtype=torch.int64)
    own = scores.gather(1, gold[:, None])
    torch.testing.assert_close(CRF(Classes())(scores, gold, none), F.cross_entropy(scores, gold, reduction="none"))
    torch.testing.assert_close(Perceptron(Classes())(scores, gold, none), (scores - own).amax(1))
    wrong = scores.scatter(1, gold[:, None], -torch.inf)
    truth = (wrong + 3.0 - own).amax(1).clamp_min(0)
    torch.testing.assert_close(Hinge(Classes(), 3.0)(scores, gold, none), truth)


class Rounded(Classes):
    """Totals that are slightly too small, as in a lower precision."""

    def log_partition(self, scores, lengths):
        return super().log_partition(scores, lengths) - 1e-3


def test_negative_rounding_is_clamped_without_a_change_to_the_gradient():
    scores = torch.tensor([[9.0, 0.0], [0.0, 9.0]], dtype=torch.float64, requires_grad=True)
    gold = torch.tensor([0, 0])
    found = CRF(Rounded())(scores, gold, None)
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert found[0] == 0
    assert found[1] > 8
    torch.testing.assert_close(gradient, scores.detach().softmax(1) - F.one_hot(gold, 2))
