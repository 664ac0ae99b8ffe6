"""Dated designs: compiled and torch routes against dense matrices; gradients against automatic differentiation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from structsparse.weights.dated_rows import DatedCounts, DatedRows, scores
from tests.tasks.temporal.support import batch_of, dense

PERIODS, FEATURES = 4, 6


@pytest.fixture(params=["compiled", "torch"])
def route(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(DatedRows, "_compiled", lambda self, x: False)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("ones", [True, False])
def test_products_are_those_of_the_dense_matrix(centred, ones, route):
    batch = batch_of(PERIODS, FEATURES, items=50, centred=centred)
    if ones:
        batch.design = replace(batch.design, values=torch.zeros(0, dtype=torch.float32))
    matrix = torch.from_numpy(dense(batch, PERIODS))
    table = torch.randn(PERIODS, FEATURES, dtype=torch.float64)
    numbers = torch.rand(50, dtype=torch.float64)
    torch.testing.assert_close(batch.design.scores(table), matrix @ table.flatten())
    torch.testing.assert_close(batch.design.pull(numbers, PERIODS).flatten(), matrix.T @ numbers)
    torch.testing.assert_close(batch.design.squares(numbers, PERIODS).flatten(), matrix.square().T @ numbers)


def test_scores_have_the_gradient_of_the_dense_matrix():
    batch = batch_of(PERIODS, FEATURES, items=50)
    matrix = torch.from_numpy(dense(batch, PERIODS))
    table = torch.randn(PERIODS, FEATURES, dtype=torch.float64, requires_grad=True)
    scores(table, batch.design).exp().sum().backward()
    other = table.detach().clone().requires_grad_()
    (matrix @ other.flatten()).exp().sum().backward()
    torch.testing.assert_close(table.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("living", [None, [0, 3, 4, 9]])
def test_counts_are_products_of_effects_and_words(living):
    rng = np.random.default_rng(0)
    effects, period, words = rng.normal(size=(7, 3)), rng.integers(PERIODS, size=7), 5
    columns = np.arange(15) if living is None else np.array(living)
    design = DatedCounts(
        torch.from_numpy(effects), torch.from_numpy(period), words, None if living is None else torch.tensor(living)
    )
    table = rng.normal(size=(PERIODS, len(columns)))
    whole = np.zeros((PERIODS, 15))
    whole[:, columns] = table
    tables = whole[period].reshape(7, 3, words)
    expected = np.array([[effects[d] @ tables[d, :, v] for v in range(words)] for d in range(7)])
    np.testing.assert_allclose(design.scores(torch.from_numpy(table)), expected)
    numbers = rng.random((7, words))
    pull = np.zeros((PERIODS, 3, words))
    squares = np.zeros((PERIODS, 3, words))
    for d in range(7):
        pull[period[d]] += np.outer(effects[d], numbers[d])
        squares[period[d]] += np.outer(effects[d] ** 2, numbers[d])
    found = design.pull(torch.from_numpy(numbers), PERIODS), design.squares(torch.from_numpy(numbers), PERIODS)
    np.testing.assert_allclose(found[0], pull.reshape(PERIODS, -1)[:, columns])
    np.testing.assert_allclose(found[1], squares.reshape(PERIODS, -1)[:, columns])


def test_designs_move_to_another_device():
    batch = batch_of(PERIODS, FEATURES).to("meta")
    table = torch.zeros(PERIODS, FEATURES, dtype=torch.float64, device="meta")
    assert batch.design.scores(table).shape == (120,)
    assert batch.design.pull(batch.targets, PERIODS).device.type == "meta"
