"""Evidence of classes of features: against dense Gaussian densities, and on planted data."""

import math

import numpy as np
import torch

from structsparse.corpora.dated import CONSTANT, DEAD, DRIFTING
from structsparse.tasks.temporal import evidence


def log_normal(x: np.ndarray, cover: np.ndarray) -> float:
    return -0.5 * (x @ np.linalg.solve(cover, x) + np.linalg.slogdet(2 * math.pi * cover)[1])


def test_evidence_is_the_ratio_of_densities_of_noisy_weights():
    """Weights that are known up to independent noise: their density under each prior, from covariance matrices."""
    rng = np.random.default_rng(0)
    periods, features = 6, 4
    weights, curvature = rng.normal(size=(periods, features)), rng.exponential(size=(periods, features)) + 0.2
    slopes = rng.normal(size=(periods, features))
    found = evidence.log_evidences(*map(torch.from_numpy, (weights, curvature, slopes)))
    size = evidence.unit(torch.from_numpy(weights))
    t = np.arange(periods)
    for k in range(features):
        noise, seen = np.diag(1 / curvature[:, k]), weights[:, k] + slopes[:, k] / curvature[:, k]
        dead = log_normal(seen, noise)
        levels = [(a * size) ** 2 for a in evidence.LEVELS]
        steps = [(q * size) ** 2 for q in evidence.STEPS]
        constants = [log_normal(seen, noise + a) - dead for a in levels]
        drifts = [log_normal(seen, noise + a + q * np.minimum(t[:, None], t)) - dead for a in levels for q in steps]
        expected = [0, *(np.logaddexp.reduce(cells) - math.log(len(cells)) for cells in (constants, drifts))]
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-8, atol=1e-9)


def test_periods_without_items_tell_nothing():
    weights = torch.zeros(5, 1, dtype=torch.float64) + 0.5
    curvature = torch.tensor([[3.0], [0.0], [2.0], [0.0], [0.0]], dtype=torch.float64)
    seen = evidence.log_evidences(weights, curvature, torch.zeros_like(weights))
    other = weights.clone()
    other[[1, 3, 4]] = 0.4  # what was thought of periods that have no items
    unit = evidence.unit(weights) / evidence.unit(other)
    again = evidence.log_evidences(other * unit, curvature, curvature * (weights - other * unit))
    torch.testing.assert_close(seen, again)


def test_clear_classes_are_found():
    rng = np.random.default_rng(3)
    periods, features = 12, 300
    truth = rng.choice([DEAD, CONSTANT, DRIFTING], features, p=[0.7, 0.15, 0.15])
    weights = np.where(truth == DEAD, 0.0, rng.choice([-1, 1], features) * 0.7) * np.ones((periods, 1))
    weights[:, truth == DRIFTING] += np.cumsum(0.4 * rng.normal(size=(periods, (truth == DRIFTING).sum())), axis=0)
    seen = weights + 0.1 * rng.normal(size=weights.shape)
    curvature = torch.full(weights.shape, 100.0, dtype=torch.float64)
    kinds, shares = evidence.classes(torch.from_numpy(seen), curvature, torch.zeros_like(curvature))
    assert (kinds == truth).mean() > 0.98
    np.testing.assert_allclose(shares.sum(axis=0), 1)


def test_scales_do_not_matter():
    rng = np.random.default_rng(1)
    weights = torch.from_numpy(rng.normal(size=(5, 20)) * rng.choice([0, 0.1, 1], 20))
    curvature, slopes = torch.full_like(weights, 30.0), torch.from_numpy(rng.normal(size=(5, 20)))
    found = evidence.log_evidences(weights, curvature, slopes)
    scaled = evidence.log_evidences(1000 * weights, curvature / 1e6, slopes / 1000)
    torch.testing.assert_close(found, scaled)


def test_all_zeros_are_dead():
    zeros = torch.zeros(4, 3, dtype=torch.float64)
    assert evidence.classes(zeros, torch.ones_like(zeros), zeros)[0].tolist() == [DEAD] * 3
