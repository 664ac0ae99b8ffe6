"""The choice among models along a path: the smallest that is not worse than the best by more than a standard error."""

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.training.search.choose import low_losses, mean_error, paired_errors, paired_gain, score, smallest


def counts(generator, items, rate):
    """Counts of right, gold and predicted spans of each item, where a share `rate` of the spans is right."""
    gold = generator.integers(0, 5, items)
    predicted = np.maximum(gold + generator.integers(-1, 2, items), 0)
    return np.stack([generator.binomial(np.minimum(gold, predicted), rate), gold, predicted], axis=1)


def test_the_score_is_f1():
    items = np.array([[1, 2, 1], [0, 1, 3], [2, 2, 2]])
    precision, recall = 3 / 6, 3 / 5
    assert score(items) == pytest.approx(2 * precision * recall / (precision + recall))


def test_the_error_is_that_of_the_delta_method():
    """F1 is a ratio of sums, so its variance is that of its linearisation, item by item."""
    generator = np.random.default_rng(0)
    models = [counts(generator, 1500, rate) for rate in (0.8, 0.7, 0.75)]
    errors = paired_errors(models, best=0)

    def influence(items):
        sums = items.sum(axis=0)
        total = sums[1] + sums[2]
        return 2 * items[:, 0] / total - 2 * sums[0] / total**2 * (items[:, 1] + items[:, 2])

    expected = [np.sqrt(((influence(m) - influence(models[0])) ** 2).sum()) for m in models]
    assert errors[0] == 0
    np.testing.assert_allclose(errors[1:], expected[1:], rtol=0.1)


def test_one_se_takes_the_smallest_model_within_a_standard_error():
    generator = np.random.default_rng(1)
    best = counts(generator, 1000, 0.8)
    near = best.copy()
    near[np.flatnonzero(near[:, 0] > 0)[:20], 0] -= 1  # wrong on 20 items more, right on 18 others
    near[np.flatnonzero(near[:, 0] < near[:, 1:].min(axis=1))[-18:], 0] += 1
    far = counts(generator, 1000, 0.5)
    models, sizes = [far, near, best], [(1, 10), (2, 20), (3, 30)]
    assert paired_errors(models, 2)[1] > score(best) - score(near) > 0
    assert smallest(models, sizes, "one_se") == 1
    assert smallest(models, sizes, "best") == 2
    assert smallest(models, sizes, "last") == 2
    assert smallest([near, best, far], sizes, "last") == 2


def test_lower_may_be_better():
    generator = np.random.default_rng(2)
    low, high = (np.stack([generator.poisson(mean, 500), np.ones(500), np.ones(500)], axis=1) for mean in (3, 9))
    assert smallest([high, low], [1, 2], "one_se", lower=True) == 1
    assert smallest([high, low], [1, 2], "one_se") == 0


def test_models_of_equal_score_are_chosen_by_size():
    items = counts(np.random.default_rng(3), 100, 0.6)
    assert [smallest([items] * 3, sizes, rule) for rule in ("one_se", "best") for sizes in ([3, 1, 2],)] == [1, 1]


def test_an_unknown_rule_is_refused():
    with pytest.raises(UserError, match="choose=two_se: expected one_se, best, last"):
        smallest([np.ones((2, 3))], [1], "two_se")


def test_a_gain_and_its_error_are_those_of_the_items():
    """With one gold and one predicted span in each item, F1 is the mean of the right ones."""
    right = np.random.default_rng(4).integers(0, 2, (2, 2000))
    better, default = (np.stack([r, np.ones(2000, int), np.ones(2000, int)], axis=1) for r in right)
    gained, error = paired_gain(better, default)
    differences = right[0] - right[1]
    assert gained == pytest.approx(differences.mean())
    assert error == pytest.approx(differences.std() / np.sqrt(2000), rel=0.1)
    assert paired_gain(better, default, lower=True) == (-gained, error)
    assert paired_gain(default, default) == (0, 0)


def test_low_losses_are_within_a_standard_error_of_the_least():
    generator = np.random.default_rng(5)
    least, noise = generator.exponential(1.0, 4000), generator.normal(0, 1, 4000)
    noise -= noise.mean()
    error = noise.std() / np.sqrt(4000)
    assert mean_error(noise) == pytest.approx(error, rel=1e-3)
    for excess, low in ((0.99 * error, True), (1.01 * error, False)):
        assert low_losses([least + excess + noise, least]) == [low, True]
    assert low_losses([least[:1], least[:1]]) == [True, True]
