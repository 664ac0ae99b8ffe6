"""Tables with some rows in memory: reserving keeps the rows held, releasing drops zero rows, checkpoints load."""

import pytest
import torch

from structsparse.weights.growing import LEAST, PartialTable


def filled(rows: int) -> PartialTable:
    """Rows 1, 2, ... of width 2, row k of feature 10 k."""
    table = PartialTable(2, [("features", torch.int64)])
    weights, features = table.reserve(rows)
    weights[:rows] = torch.arange(1.0, rows + 1)[:, None]
    features[:rows] = 10 * torch.arange(rows)
    table.hold(rows)
    return table


@pytest.mark.parametrize("rows", [0, 1, LEAST, LEAST + 1])
def test_reserved_memory_begins_with_the_rows_held(rows):
    table = filled(rows)
    assert table.held == rows
    before = table.table.detach().clone(), table.features.clone()
    weights, features = table.reserve(3 * LEAST)
    assert len(weights) == len(features) >= rows + 3 * LEAST
    assert torch.equal(weights[:rows], before[0])
    assert torch.equal(features[:rows], before[1])
    assert torch.equal(table.table.detach(), before[0])


def test_memory_with_enough_room_is_not_allocated_again():
    table = filled(5)
    assert table.reserve(LEAST - 5)[0].data_ptr() == table.table.data_ptr()
    table.table.data = table.table.detach().clone()  # no longer in the reserved memory
    assert table.reserve(1)[0].data_ptr() == table.table.data_ptr()
    assert table.features.tolist() == [0, 10, 20, 30, 40]


def test_zero_rows_are_released():
    table = filled(4)
    assert table.release() is None
    with torch.no_grad():
        table.table[1] = 0
        table.table[2, 0] = 0  # the row has another weight
    assert table.release().tolist() == [0, 2, 3]
    assert table.features.tolist() == [0, 20, 30]
    assert table.table.tolist() == [[1, 1], [0, 3], [4, 4]]


def test_a_checkpoint_of_another_size_is_loaded():
    saved, table = filled(3), filled(7)
    table.load_state_dict(saved.state_dict())
    assert torch.equal(table.table, saved.table)
    assert torch.equal(table.features, saved.features)
