"""The paired bootstrap against a loop over draws, and tables that have one."""

import numpy as np
import pytest

from structsparse.report import bootstrap as resampling
from structsparse.report.bootstrap import Items, resampled


def drawn(seed, seeds=3, items=60):
    random = np.random.default_rng(seed)
    of = random.integers(1, 20, items)
    return [Items(random.binomial(of, 0.7), of) for _ in range(seeds)], [
        Items(random.binomial(of, 0.6), of) for _ in range(seeds)
    ]


def test_the_difference_is_that_of_means_and_its_error_that_of_draws():
    mine, theirs = drawn(0)
    found, of = resampled(mine, theirs), mine[0].of
    pooled = [sum(items.right.sum() for items in some) / len(some) / of.sum() for some in (mine, theirs)]
    assert found.mean == pytest.approx(pooled[0] - pooled[1])
    random, values = np.random.default_rng(7), []
    for _ in range(4000):  # the plain way: draw positions
        some = random.integers(len(of), size=len(of))
        shares = [np.mean([items.right[some].sum() for items in each]) / of[some].sum() for each in (mine, theirs)]
        values.append(shares[0] - shares[1])
    assert found.error == pytest.approx(np.std(values), rel=0.1)
    assert found.above == pytest.approx(np.mean(np.array(values) > 0), abs=0.03)


def test_a_row_does_not_differ_from_itself():
    mine, _ = drawn(1)
    assert resampled(mine, mine) == (0.0, 0.0, 0.0)


def test_items_are_read_as_they_were_written(tmp_path):
    (tmp_path / "report").mkdir()
    items = {"dev": Items(np.array([1, 0]), np.array([2, 3])), "test": Items(np.array([4]), np.array([4]))}
    resampling.write(tmp_path / "report", items)
    found = resampling.read(tmp_path)
    for part, own in items.items():
        assert [array.tolist() for array in found[part]] == [array.tolist() for array in own]
    assert resampling.read(tmp_path / "nothing") == {}
