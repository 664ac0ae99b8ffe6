"""Batches of documents."""

import numpy as np

from structsparse.tasks.textcat.data import DocumentBatch
from tests.support.classifiers import data_of


def test_mini_batches_cover_train_once_in_an_order_of_the_seed():
    data = data_of()

    def batches(seed: int, epoch: int) -> list[DocumentBatch]:
        result = data.batches("train", 30, shuffle=True, seed=seed)
        result.set_epoch(epoch)
        return list(result)

    first = batches(0, 0)
    chosen = np.concatenate([batch.sentences.numpy() for batch in first])
    np.testing.assert_array_equal(np.sort(chosen), np.arange(data.items))
    assert [len(batch.targets) for batch in first] == [batch.items for batch in first] == [30, 30, 20]
    matrix = data.matrices["train"].toarray()
    for batch in first:
        np.testing.assert_array_equal(batch.matrix.to_dense().numpy(), matrix[batch.sentences.numpy()])
        np.testing.assert_array_equal(batch.transposed.to_dense().numpy(), batch.matrix.to_dense().numpy().T)
        np.testing.assert_array_equal(batch.targets.numpy(), data.targets("train")[batch.sentences.numpy()])
    np.testing.assert_array_equal(chosen[:30], batches(0, 0)[0].sentences)
    assert not np.array_equal(chosen[:30], batches(0, 1)[0].sentences)
    shares = [next(iter(data.batches("train", 30, shuffle=True, rank=rank, world=2))) for rank in (0, 1)]
    np.testing.assert_array_equal(np.sort(np.concatenate([s.sentences for s in shares])), np.sort(chosen[:30]))
    assert {share.items for share in shares} == {30}
