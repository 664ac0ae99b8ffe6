"""Row kernels against numpy at every width: rows are processed in pieces of 16, 8, 4, 2 and 1."""

import numpy as np
import pytest

from structsparse.kernels.weights import bags as kernels

ROWS, TOKENS = 50, 30


def problem(width, dtype):
    """Bags of 0 to 6 ascending rows with many repeats; a table with rows of some width."""
    draw = np.random.default_rng(width)
    bags = [np.sort(draw.choice(ROWS, draw.integers(0, 7), replace=False)) for _ in range(TOKENS)]
    ids = np.concatenate(bags).astype(np.int32)
    active = np.zeros((TOKENS, ROWS))
    for token, rows in enumerate(bags):
        active[token, rows] = 1
    offsets = np.r_[0, np.cumsum([len(rows) for rows in bags])]
    table, residuals = (draw.standard_normal((n, width)).astype(dtype) for n in (ROWS, TOKENS))
    return ids, offsets, active, table, residuals


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", range(1, 34))
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_and_updates_of_rows_equal_numpys_at_every_width(width, dtype, threads):
    ids, offsets, active, table, residuals = problem(width, dtype)
    bounds = np.r_[0, np.arange(1, threads) * ROWS // threads, ROWS]
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-10, "atol": 1e-10}
    gradient = active.T @ residuals
    sums = np.zeros((TOKENS, width), dtype)
    kernels.total(ids, offsets, table, sums, threads)
    np.testing.assert_allclose(sums, active @ table, **close)
    plain = table.copy()
    kernels.subtract(ids, offsets, residuals, plain, dtype(0.5), bounds)
    np.testing.assert_allclose(plain, table - 0.5 * gradient, **close)
    weights, squares, slot = table.copy(), np.full_like(table, 0.1), np.full(ROWS, -1, np.int32)
    kernels.adagrad(ids, offsets, residuals, weights, squares, dtype(0.5), dtype(1e-10), bounds, slot)
    np.testing.assert_allclose(squares, 0.1 + gradient**2, **close)
    np.testing.assert_allclose(weights, table - 0.5 * gradient / np.sqrt(0.1 + gradient**2), **close)
    assert (slot == -1).all()


def test_empty_inputs_are_allowed():
    table, empty = np.ones((4, 3), np.float32), np.empty((0, 3), np.float32)
    ids, offsets = np.empty(0, np.int32), np.zeros(1, np.int64)
    kernels.total(ids, offsets, table, empty, 2)
    kernels.subtract(ids, offsets, empty, table, np.float32(1), kernels.owners(ids))
    slot = np.full(4, -1, np.int32)
    kernels.adagrad(ids, offsets, empty, table, table.copy(), np.float32(1), np.float32(1), kernels.owners(ids), slot)
    assert (table == 1).all()
