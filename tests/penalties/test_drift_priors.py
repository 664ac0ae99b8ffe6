"""Priors of drift: against dense linear algebra, quadrature in two dimensions and automatic differentiation."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from structsparse.base.errors import UserError
from structsparse.penalties.drift_priors import (
    EDGE,
    RATE,
    SMOOTHEST,
    Autoregression,
    Bridge,
    Moments,
    RandomWalk,
    log_determinant,
    prior_named,
    thesis_bound,
)

PRIORS = (Bridge, Autoregression, RandomWalk)


def bridge(periods: int, shape: float) -> np.ndarray:
    """The dense matrix I + shape * N."""
    return np.eye(periods) + shape * (np.eye(periods, k=1) + np.eye(periods, k=-1))


def autoregression(periods: int, shape: float) -> np.ndarray:
    """The dense inverse of the correlation matrix of an autoregression, times 1 - shape^2."""
    lags = np.abs(np.subtract.outer(np.arange(periods), np.arange(periods)))
    return np.linalg.inv(shape**lags / (1 - shape**2))


def drawn(periods: int, count: int, seed: int = 0) -> torch.Tensor:
    """Chains of random smoothness and scale, a column each."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(periods, count)) * rng.choice([0.0, 0.05, 0.5, 2.0], count)
    return torch.from_numpy((rng.normal(size=count) + np.cumsum(steps, axis=0)) * np.exp(rng.normal(size=count)))


def dense(chain, column: int, periods: int) -> np.ndarray:
    """The matrix of one column of a chain of tridiagonal matrices."""
    first, middle, last, off = (float(part[column]) for part in chain)
    matrix = off * (np.eye(periods, k=1) + np.eye(periods, k=-1)) + middle * np.eye(periods)
    matrix[0, 0], matrix[-1, -1] = first, last
    return matrix


@pytest.mark.parametrize("periods", [2, 3, 7, 30, 100, 365, 1000])
def test_the_closed_form_of_the_determinant_is_that_of_the_matrix(periods):
    for shape in (0.0, -0.1, -0.3, -0.45, -0.499, -EDGE):
        exact = np.linalg.slogdet(bridge(periods, shape))[1]
        closed = float(log_determinant(periods, np.array(shape)))
        assert closed == pytest.approx(exact, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("periods", [2, 3, 10, 100, 10_000])
def test_every_precision_is_positive_definite(periods):
    w = drawn(periods, 40)
    w[:, 0], w[:, 1], w[:, 2] = 1.0, 1e-12, (-1.0) ** torch.arange(periods)
    for kind in PRIORS:
        precision = kind(1e-3, 1e-6).learn(Moments.of(w), periods).precision
        diagonal = precision.diagonal(periods)
        pivot = diagonal[0].clone()
        for t in range(1, periods):
            assert bool((pivot > 0).all()), (kind.name, t)
            pivot = diagonal[t] - precision.off**2 / pivot
        assert bool((pivot > 0).all()), kind.name


@pytest.mark.parametrize("periods", [2, 4, 6])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_density_is_the_double_integral(periods, column):
    w = drawn(periods, 3, seed=5)[:, column].numpy()

    def inner(matrix: np.ndarray) -> float:
        """The integral over the scale s, at s = exp(x), of N(w; 0, s matrix^-1) / s."""
        half = math.sqrt(np.linalg.det(matrix)) * (2 * math.pi) ** (-periods / 2)
        total, peak = w @ matrix @ w / 2, math.log(w @ matrix @ w / periods)
        f = lambda x: math.exp(-x * periods / 2 - total * math.exp(-x))  # noqa: E731
        return half * integrate.quad(f, peak - 12, peak + 60, epsabs=0, epsrel=1e-11, points=[peak], limit=400)[0]

    def of_bridge(u: float) -> float:
        shape = -EDGE * (1 - u * u)
        density = RATE * math.exp(-RATE * shape) / math.expm1(RATE * EDGE)
        return density * inner(bridge(periods, shape)) * 2 * EDGE * u

    def of_autoregression(u: float) -> float:
        return inner(autoregression(periods, 1 - (1 - SMOOTHEST) ** u))

    column_of = torch.from_numpy(w)[:, None]
    for prior, f in ((Bridge(), of_bridge), (Autoregression(), of_autoregression)):
        exact = integrate.quad(f, 1e-12, 1, epsabs=0, epsrel=1e-10, limit=200)[0]
        assert float(prior.log_density(column_of)) == pytest.approx(math.log(exact), abs=1e-8)


@pytest.mark.parametrize("kind", PRIORS)
def test_proper_densities_of_the_scale_have_their_integral(kind):
    prior, w = kind(0.7, 0.3), drawn(4, 1, seed=2)
    proper = float(prior.log_density(w))
    rates = np.linspace(-25, 25, 4001)  # log of the scale; for one chain of a random walk, the other scale is exact
    if kind is RandomWalk:
        total = prior._scale_integral(Moments.of(w).first, torch.ones(1, dtype=torch.float64))
        sums, degrees = float(Moments.of(w).drifts), 3
        assert proper - float(total) == pytest.approx(inverse_gamma_integral(rates, sums, degrees), abs=1e-8)
    else:
        nodes = prior.nodes(4)
        sums = prior.sums(Moments.of(w), nodes.shapes[:, None])[:, 0].tolist()
        parts = [inverse_gamma_integral(rates, one, 4) for one in sums]
        log = nodes.log_weights + nodes.log_determinants / 2 + torch.tensor(parts, dtype=torch.float64)
        assert proper == pytest.approx(float(torch.logsumexp(log, 0)), abs=1e-8)


def inverse_gamma_integral(rates: np.ndarray, sums: float, degrees: int) -> float:
    """Log of the integral of an inverse gamma density (0.7, 0.3) times (2 pi s)^(-degrees/2) exp(-sums / 2 s)."""
    log = 0.7 * math.log(0.3) - math.lgamma(0.7) - 0.7 * rates - 0.3 * np.exp(-rates)
    log += -degrees / 2 * (math.log(2 * math.pi) + rates) - sums / 2 * np.exp(-rates)
    return math.log(np.trapezoid(np.exp(log), rates))


@pytest.mark.parametrize("kind", PRIORS)
def test_more_nodes_change_nothing(kind, monkeypatch):
    for periods in (2, 10, 100, 1000):
        w = drawn(periods, 30, seed=periods)
        before = kind().learn(Moments.of(w), periods)
        with monkeypatch.context() as patch:
            nodes, weights = np.polynomial.legendre.leggauss(4 * max(48, math.ceil(11 * math.sqrt(periods))))
            patch.setattr(
                "structsparse.penalties.drift_priors.unit_nodes", lambda _, n=nodes, w=weights: ((n + 1) / 2, w / 2)
            )
            for made in ("_bridge_nodes", "_autoregression_nodes"):
                cached = getattr(__import__("structsparse.penalties.drift_priors", fromlist=["x"]), made)
                patch.setattr(f"structsparse.penalties.drift_priors.{made}", cached.__wrapped__)
            after = kind().learn(Moments.of(w), periods)
        torch.testing.assert_close(before.evidence, after.evidence, rtol=0, atol=1e-8)
        for one, two in zip(before.precision, after.precision, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-7, atol=0)


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("periods", [2, 5, 40])
def test_the_expected_precision_is_the_gradient_of_the_density(kind, periods):
    w = drawn(periods, 20, seed=1).requires_grad_()
    prior = kind(0.1, 0.01)
    prior.log_density(w).sum().backward()
    precision = prior.learn(Moments.of(w.detach()), periods).precision
    expected = -precision.times(w.detach())
    size = w.grad.abs().max(dim=0).values
    assert float(((w.grad - expected).abs() / size).max()) < 1e-10


def test_the_walk_is_that_of_a_dense_matrix():
    w = drawn(5, 4, seed=9)
    moments = Moments.of(w)
    learnt = RandomWalk().learn(moments, 5)
    for column in range(4):
        chain = w[:, column].numpy()
        drifts = ((chain[1:] - chain[:-1]) ** 2).sum()
        differences = np.diff(np.eye(5), axis=0)
        matrix = np.diag([1 / chain[0] ** 2, 0, 0, 0, 0]) + 4 / drifts * differences.T @ differences
        np.testing.assert_allclose(dense(learnt.precision, column, 5), matrix, rtol=1e-9)


def test_moments_are_expected_sums(monkeypatch):
    """By sampling: sums over Gaussian chains; and some periods at a time give what all at once give."""
    rng = np.random.default_rng(0)
    cover = np.array([[1.0, 0.6, 0.1], [0.6, 0.9, 0.3], [0.1, 0.3, 0.5]])
    mean = np.array([0.5, -0.2, 1.0])
    drawn_chains = rng.multivariate_normal(mean, cover, size=400_000)
    expected = [
        (drawn_chains[:, 0] ** 2).mean(), (drawn_chains[:, 2] ** 2).mean(), (drawn_chains**2).sum(axis=1).mean(),
        (np.diff(drawn_chains) ** 2).sum(axis=1).mean(), 1.0,
    ]  # fmt: skip
    parts = mean[:, None], np.diag(cover).copy()[:, None], np.diag(cover, 1).copy()[:, None]
    found = Moments.of(*map(torch.from_numpy, parts))
    np.testing.assert_allclose([float(part) for part in found], expected, rtol=0.01)
    w = drawn(50, 7)
    whole = Moments.of(w)
    monkeypatch.setattr("structsparse.penalties.drift_priors.CHUNK", 30)
    for one, two in zip(whole, Moments.of(w), strict=True):
        torch.testing.assert_close(one, two)


def test_shared_chains_are_one_group():
    """The density of a group is the integral of the product of its chains, here by a sum over the same nodes."""
    w = drawn(6, 3, seed=4)
    prior = Autoregression()
    shared = prior.learn(Moments.of(w).summed(torch.zeros(3, dtype=torch.int64), 1), 6)
    nodes, total = prior.nodes(6), prior.sums(Moments.of(w), prior.nodes(6).shapes[:, None]).sum(dim=1)
    log = nodes.log_weights + 1.5 * nodes.log_determinants + math.lgamma(9) - 9 * torch.log(total / 2)
    assert float(shared.evidence) == pytest.approx(
        float(torch.logsumexp(log, 0)) - 9 * math.log(2 * math.pi), rel=1e-12
    )


def test_the_bound_of_the_thesis_is_below_the_density_in_random_cases():
    below = 0
    for periods in (2, 3, 5, 10, 30):
        w = drawn(periods, 200, seed=periods)
        bound, shape = thesis_bound(w)
        exact = Bridge().log_density(w)
        assert bool((bound <= exact + 1e-9).all())
        assert bool((bound > exact - 5).all()), "a bound without any worth"
        assert bool(((shape > -0.5) & (shape < 0)).all())
        below += len(bound)
    assert below == 1000


def test_the_rewritten_bound_of_the_thesis_is_none():
    """T = 10 and a lag-1 correlation of 0.5, where B' exceeds the density and B is below it."""
    w = torch.zeros(10, 1, dtype=torch.float64)
    w[4:6] = 1.0
    exact, (rewritten, _), (bound, _) = Bridge().log_density(w), thesis_bound(w, jensen=True), thesis_bound(w)
    assert float(rewritten) > float(exact) + 0.1
    assert float(exact) - 0.2 < float(bound) < float(exact)


def test_an_unknown_prior_is_refused():
    with pytest.raises(UserError, match="expected one of bridge, ar1, rw"):
        prior_named("spline")
