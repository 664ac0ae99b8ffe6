"""Batches of words to predict."""

import numpy as np

from tests.tasks.lm.test_task import language_data


def test_mini_batches_cover_the_text_once_in_an_order_of_the_seed():
    data = language_data()

    def chosen(seed: int, epoch: int) -> list[np.ndarray]:
        targets = data.batches("train", 400, shuffle=True, seed=seed)
        targets.set_epoch(epoch)
        return [batch.chosen for batch in targets]

    first = chosen(0, 0)
    assert sum(batch.size for batch in first) == data.items
    np.testing.assert_array_equal(np.sort(np.concatenate(first)), np.arange(data.items))
    np.testing.assert_array_equal(first[0], chosen(0, 0)[0])
    assert not np.array_equal(first[0], chosen(0, 1)[0])
    assert not np.array_equal(first[0], chosen(1, 0)[0])
