"""Batches: each sentence once an epoch, the same order for the same seed, shared and resumed without a loss."""

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.features.keys import Bags
from structsparse.training.batches import Batches, TokenArrays


def arrays(sentences: int = 23, seed: int = 0) -> TokenArrays:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 9, sentences)
    tokens = int(lengths.sum())
    sizes = draw.integers(0, 4, tokens)
    return TokenArrays(
        Bags(draw.integers(0, 50, sizes.sum()).astype(np.int32), np.r_[0, np.cumsum(sizes)]),
        np.arange(tokens),
        np.r_[0, np.cumsum(lengths)],
        draw.normal(size=(tokens, 2)).astype(np.float32),
        draw.integers(0, 5, (tokens, 1)),
    )


def seen(batches) -> list[list[int]]:
    return [batch.sentences.tolist() for batch in batches]


@pytest.mark.parametrize("size", [1, 2, 5, 23, None, 100])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_holds_each_sentence_once(size, shuffle):
    batches = Batches(arrays(), size, shuffle=shuffle)
    steps = seen(batches)
    assert len(steps) == len(batches)
    assert sorted(sum(steps, [])) == list(range(23))


def test_a_batch_holds_the_arrays_of_its_sentences():
    a = arrays()
    for batch in Batches(a, 5, shuffle=True):
        tokens = np.concatenate([np.arange(a.offsets[s], a.offsets[s + 1]) for s in batch.sentences])
        assert batch.lengths.tolist() == a.lengths[batch.sentences].tolist()
        assert batch.gold.view(-1)[batch.places].tolist() == a.gold[tokens].tolist()
        ids = [a.bags.ids[a.bags.offsets[t] : a.bags.offsets[t + 1]].tolist() for t in tokens]
        found = [batch.ids[i:j].tolist() for i, j in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
        assert found == ids
        assert torch.equal(batch.dense, torch.from_numpy(a.dense[tokens]))
        inside = torch.arange(batch.gold.shape[1]) < batch.lengths[:, None]
        assert torch.equal(batch.pad(torch.ones(len(tokens), 1))[..., 0].bool(), inside)


def test_the_order_depends_on_seed_and_epoch_alone():
    orders = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)):
        batches = Batches(arrays(), 4, shuffle=True, seed=seed)
        batches.set_epoch(epoch)
        orders.append(seen(batches))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != orders[3]


@pytest.mark.parametrize("size", [2, 5, 7, 11])
def test_processes_share_each_step(size):
    whole = Batches(arrays(), size, shuffle=True, seed=3)
    shares = [Batches(arrays(), size, shuffle=True, seed=3, rank=rank, world=2) for rank in range(2)]
    assert len(shares[0]) == len(shares[1])
    steps = list(zip(*(list(share) for share in shares), strict=True))
    assert all(len(part.sentences) > 0 for step in steps for part in step)
    assert all(part.items == len(step[0].sentences) + len(step[1].sentences) for step in steps for part in step)
    assert sorted(sum((p.sentences.tolist() for s in steps for p in s), [])) == sorted(sum(seen(whole), []))


def test_a_step_too_small_to_share_is_refused():
    with pytest.raises(UserError, match="batch=1 cannot be shared by 2"):
        Batches(arrays(), 1, shuffle=True, rank=0, world=2)


@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_a_loader_goes_on_where_it_stopped(stop):
    whole = Batches(arrays(), 4, shuffle=True, seed=5)
    whole.set_epoch(2)
    steps = seen(whole)
    first = Batches(arrays(), 4, shuffle=True, seed=5)
    first.set_epoch(2)
    begun = iter(first)
    before = [next(begun).sentences.tolist() for _ in range(stop)]
    second = Batches(arrays(), 4, shuffle=True, seed=5)
    second.load_state_dict(first.state_dict())
    second.set_epoch(2)
    if stop < len(steps):
        assert before + seen(second) == steps
    second.set_epoch(3)
    assert sorted(sum(seen(second), [])) == list(range(23))
