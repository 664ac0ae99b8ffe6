"""The paired bootstrap against a loop over draws; its table; item scores written and read."""

import numpy as np
import pytest

from structsparse.report.bootstrap import ItemScores, bootstrap_table, paired_bootstrap, read_items, write_items


def drawn(seed, runs=3, items=60):
    """Item scores of two systems, the first the better one."""
    generator = np.random.default_rng(seed)
    total = generator.integers(1, 20, items)
    return [[ItemScores(generator.binomial(total, chance), total) for _ in range(runs)] for chance in (0.7, 0.6)]


def test_the_difference_is_that_of_means_and_its_error_that_of_resampled_items():
    ours, theirs = drawn(0)
    result, total = paired_bootstrap(ours, theirs), ours[0].total
    pooled = [sum(items.right.sum() for items in runs) / len(runs) / total.sum() for runs in (ours, theirs)]
    assert result.difference == pytest.approx(pooled[0] - pooled[1])
    generator, values = np.random.default_rng(7), []
    for _ in range(4000):  # draw positions instead of counts
        sample = generator.integers(len(total), size=len(total))
        means = [np.mean([items.right[sample].sum() for items in runs]) for runs in (ours, theirs)]
        values.append((means[0] - means[1]) / total[sample].sum())
    assert result.error == pytest.approx(np.std(values), rel=0.1)
    assert result.above == pytest.approx(np.mean(np.array(values) > 0), abs=0.03)


def test_a_system_does_not_differ_from_itself():
    runs, _ = drawn(1)
    assert paired_bootstrap(runs, runs) == (0.0, 0.0, 0.0)


def test_items_are_read_as_they_were_written(tmp_path):
    (tmp_path / "report").mkdir()
    items = {
        "dev": ItemScores(np.array([1, 0]), np.array([2, 3])),
        "test": ItemScores(np.array([4]), np.array([4])),
    }
    write_items(tmp_path / "report", items)
    result = read_items(tmp_path)
    for part, scores in items.items():
        assert [array.tolist() for array in result[part]] == [array.tolist() for array in scores]
    assert read_items(tmp_path / "nothing") == {}


def test_the_table_has_a_row_for_each_pair_and_place_with_items(tmp_path):
    systems = {}
    for name, runs in zip(("new", "old"), drawn(2, runs=2), strict=True):
        for seed, items in enumerate(runs):
            folder = tmp_path / name / str(seed)
            (folder / "report").mkdir(parents=True)
            write_items(folder / "report", {"dev": items, "test": items})
            systems.setdefault(name, {})["ner", seed] = folder
    table = bootstrap_table(systems, [("new", "old"), ("old", "none")], ["ner", "chunking"], 100.0)
    assert table.header == ("row", "less", "place", "dev", "test")
    ((name, other, place, dev, test),) = table.rows
    assert (name, other, place, dev) == ("new", "old", "ner", test)
    assert dev.startswith("+")
    assert bootstrap_table({}, [("new", "old")], ["ner"], 100.0) is None
