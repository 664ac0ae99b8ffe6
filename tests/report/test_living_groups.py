"""The table of groups: living ones first, and what is known of the dead ones; its files."""

import csv

import pytest
import torch

from structsparse.groups import Partition
from structsparse.report.living_groups import group_table, norm_bars, norm_heatmap, write_groups

GROUPS = Partition(torch.tensor([0, 0, 1, 1, 2]), ["a", "b", "c"], (5,))
WEIGHTS = torch.tensor([0.0, 0.0, 3.0, 4.0, 1.0])


def test_living_groups_come_first_the_heaviest_on_top():
    table = group_table(GROUPS, WEIGHTS)
    assert table.header == ("group", "lives", "weights", "of", "norm", "share")
    assert [row[:5] for row in table.rows] == [("b", "yes", 2, 2, 5.0), ("c", "yes", 1, 1, 1.0), ("a", "no", 0, 2, 0.0)]
    assert sum(row[5] for row in table.rows) == pytest.approx(1.0)


def test_further_columns_appear_where_they_say_something():
    enters, wakes = torch.tensor([1.0, 4.0, 2.0]), torch.tensor([True, False, False])
    table = group_table(GROUPS, WEIGHTS, enters, wakes, truth=["a"])
    assert table.header[6:] == ("enters at", "would wake", "planted")
    assert [row[6:] for row in table.rows] == [(1.0, "", "no"), (0.5, "", "no"), (0.25, "yes", "yes")]
    assert group_table(GROUPS, WEIGHTS, enters, ~wakes & wakes).header[6:] == ("enters at",)


def test_files_and_pictures_are_written(tmp_path):
    table = group_table(GROUPS, WEIGHTS, truth=["b"])
    write_groups(tmp_path, table)
    with (tmp_path / "groups.tsv").open() as file:
        assert [row["group"] for row in csv.DictReader(file, delimiter="\t")] == ["b", "c", "a"]
    assert (tmp_path / "groups.md").read_text().startswith("| group | lives |")
    assert (tmp_path / "groups.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = norm_bars(table).axes
    assert axes.get_title() == "2 of 3 groups live (red: not planted)"
    assert norm_heatmap([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]], ["a", "b", "c"]).axes[0].get_title().endswith("1 of 3 live")
