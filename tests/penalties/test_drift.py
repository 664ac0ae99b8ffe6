"""The drift penalty: tied features, its memory, and what EM promises, against dense linear algebra."""

import math

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.losses.pointwise import Squared
from structsparse.penalties.drift import Drift, Likelihood, PeriodLayout
from structsparse.solvers.newton_cg import NewtonCG
from structsparse.tasks.temporal.model import DriftModel
from tests.tasks.temporal.support import batch_of

PERIODS, FEATURES = 6, 7


def made(tied: tuple[int, ...] = (), **options) -> Drift:
    """A drift penalty of strength 1 over a small table."""
    penalty = Drift(1.0, **options)
    same = torch.zeros(FEATURES, dtype=torch.bool)
    same[[*tied]] = True
    effect = torch.arange(FEATURES) % 2
    penalty.fit(PeriodLayout(PERIODS, effect, torch.full((FEATURES,), 0.5, dtype=torch.float64), 0.9, same))
    return penalty


def weights(seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(PERIODS, FEATURES)))


def likelihood(curvature: torch.Tensor, pearson: float | None = None) -> Likelihood:
    learnt = None if pearson is None else torch.tensor(pearson, dtype=torch.float64)
    return Likelihood(curvature, torch.tensor(3.0, dtype=torch.float64), learnt, 40)


# --- tied features


def test_the_prox_of_tied_features_is_the_best_common_weight():
    penalty, W = made(tied=(1, 4)), weights()
    steps = weights(1).exp()
    moved = penalty.prox_(W.clone(), steps)
    for k in (1, 4):
        assert len(moved[:, k].unique()) == 1
        chain = penalty.chains(W)
        level = float(PERIODS * chain.middle[k])
        candidates = torch.linspace(-3, 3, 20001, dtype=torch.float64)
        values = level * candidates**2 / 2
        values += ((candidates[:, None] - W[:, k]) ** 2 / (2 * steps[:, k])).sum(dim=1)
        assert float(moved[0, k]) == pytest.approx(float(candidates[values.argmin()]), abs=4e-4)
    free = made().prox_(W.clone(), steps)
    torch.testing.assert_close(moved[:, [0, 2, 3, 5, 6]], free[:, [0, 2, 3, 5, 6]])


def test_posterior_variances_are_those_of_dense_matrices():
    penalty, curvature = made(tied=(2,)), weights().square()
    penalty.outer_update(weights(3), likelihood(curvature, pearson=20.0))
    variances, covariances, entropy = penalty.posterior(curvature)
    total = 0.0
    for k in range(FEATURES):
        first, middle, last, off = (float(part[k]) for part in penalty.precision)
        data = curvature[:, k].numpy() / float(penalty.noise)
        if k == 2:
            precision = np.array([[data.sum() + PERIODS * middle]])
            inverse = np.linalg.inv(precision) * np.ones((PERIODS, PERIODS))
        else:
            beside = np.eye(PERIODS, k=1) + np.eye(PERIODS, k=-1)
            precision = np.diag(data + np.array([first, *[middle] * (PERIODS - 2), last])) + off * beside
            inverse = np.linalg.inv(precision)
        np.testing.assert_allclose(variances[:, k], np.diag(inverse), rtol=1e-9)
        np.testing.assert_allclose(covariances[:, k], np.diag(inverse, 1), rtol=1e-9)
        total += 0.5 * (len(precision) * (1 + math.log(2 * math.pi)) - np.linalg.slogdet(precision)[1])
    assert float(entropy) == pytest.approx(total, rel=1e-10)


# --- memory


def test_shared_features_have_one_precision_and_own_features_their_own():
    W = weights()
    for share, expected in (("none", FEATURES), ("effect", 2), ("all", 1)):
        penalty = made(share=share, mode="map")
        penalty.outer_update(W, likelihood(W.square()))
        assert len({*zip(*(part.tolist() for part in penalty.precision), strict=True)}) == expected, share


def test_the_memory_travels_in_the_state():
    penalty, other = made(tied=(0,)), made(tied=(0,))
    penalty.outer_update(weights(), likelihood(weights().square(), pearson=11.0))
    other.load_state_dict(penalty.state_dict())
    torch.testing.assert_close(other.value(weights()), penalty.value(weights()), rtol=0, atol=0)
    assert float(made(tied=(0,)).value(weights())) != float(penalty.value(weights()))


def test_weak_noise_priors_keep_the_noise_positive():
    penalty = made()
    for _ in range(50):
        penalty.outer_update(torch.zeros(PERIODS, FEATURES, dtype=torch.float64), likelihood(weights().square(), 0.0))
    assert float(penalty.noise) > 1e-3


@pytest.mark.parametrize("options", [{"mode": "both"}, {"share": "some"}, {"prior": "walk"}, {"weight": -1.0}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(UserError, match=f"reg.{next(iter(options))}"):
        Drift(1.0, **options)


# --- EM


@pytest.mark.parametrize("prior", ["ar1", "rw", "bridge"])
@pytest.mark.parametrize("mode", ["eb", "map"])
@pytest.mark.parametrize(("share", "tied"), [("none", ()), ("effect", (0, 3)), ("all", ())])
def test_em_never_lowers_the_exact_objective(prior, mode, share, tied):
    """The objective of an update: with enough iterations of conjugate gradients, each step of EM raises it."""
    penalty, batch = made(tied=tied, prior=prior, mode=mode, share=share), batch_of(PERIODS, FEATURES, items=120)
    penalty.strength = 1 / batch.items
    model = DriftModel(PERIODS, FEATURES, bias=True)
    solver = NewtonCG(model.parameters(), iterations=80)
    solver.attach({model.table: penalty})
    objectives = []
    for _ in range(30):
        solver.sweep(model, Squared(), batch)
        objectives.append(float(penalty.outer_update(model.table.detach(), squared_likelihood(model, batch)).objective))
    rises = np.diff(objectives)
    assert rises.min() > -1e-7, objectives
    assert rises[0] > 1e-3, "nothing was learned"


def squared_likelihood(model: DriftModel, batch) -> Likelihood:
    """The likelihood of the squared loss with unknown noise."""
    with torch.no_grad():
        scores = model(batch)
    residuals = (scores - batch.targets).square().sum()
    curvature = batch.design.squares(torch.ones_like(scores), PERIODS)
    return Likelihood(curvature, residuals / 2, residuals, len(scores))


def test_the_objective_of_map_is_the_log_posterior():
    penalty, batch = made(prior="rw", mode="map", weight=0.3, floor=0.1), batch_of(PERIODS, FEATURES, items=60)
    model = DriftModel(PERIODS, FEATURES, bias=True)
    model.table.data.copy_(weights())
    noise = float(penalty.noise)
    got = float(penalty.outer_update(weights(), squared_likelihood(model, batch)).objective)
    residuals = ((model(batch) - batch.targets).detach() ** 2).sum()
    expected = float(penalty.prior.log_density(weights()).sum() - residuals / (2 * noise))
    expected -= 65 / 2 * math.log(2 * math.pi * noise) + 5 * 0.9 / (2 * noise)  # 60 items, and 5 of the first guess
    assert got == pytest.approx(expected, rel=1e-12)


def test_the_objective_of_eb_is_below_the_log_evidence():
    """One feature: its exact log evidence, by quadrature over the two scales of a random walk and known noise."""
    penalty = Drift(1.0, prior="rw", weight=1.0, floor=0.1)
    none = torch.zeros(1, dtype=torch.bool)
    penalty.fit(PeriodLayout(3, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64), 1.0, none))
    y, noise = np.array([0.7, 1.1, 0.4]), 1.0
    curvature = torch.ones(3, 1, dtype=torch.float64)
    W = torch.zeros(3, 1, dtype=torch.float64)
    for _ in range(200):
        matrix = np.diag(penalty.precision.diagonal(3)[:, 0].numpy() + 1)
        matrix += float(penalty.off[0]) * (np.eye(3, k=1) + np.eye(3, k=-1))
        W = torch.from_numpy(np.linalg.solve(matrix, y))[:, None]
        loss = torch.tensor(((y - W[:, 0].numpy()) ** 2).sum() / 2)
        bound = float(penalty.outer_update(W, Likelihood(curvature, loss, None, 3)).objective)
    bound -= 1.5 * math.log(2 * math.pi * noise)
    grid = np.linspace(-9, 9, 361)
    logs = []
    for level in grid:  # logs of scales
        for step in grid:
            t = np.arange(3)
            cover = np.exp(level) + np.exp(step) * np.minimum(t[:, None], t) + np.eye(3)
            log = -0.5 * y @ np.linalg.solve(cover, y) - 0.5 * np.linalg.slogdet(2 * math.pi * cover)[1]
            log += sum(math.log(0.1) - s - 0.1 * np.exp(-s) for s in (level, step))  # inverse gamma (1, 0.1)
            logs.append(log)
    exact = float(np.logaddexp.reduce(logs)) + 2 * math.log(grid[1] - grid[0])
    assert exact - 1.0 < bound < exact
