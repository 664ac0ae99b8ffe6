"""Truncated singular value decomposition against numpy's of the dense matrix; the power of the singular values."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.penalties import L1, NoPenalty
from structsparse.solvers import TruncatedSVD
from structsparse.solvers.truncated_svd import truncated_svd


def decaying(rows: int, columns: int, seed: int) -> sparse.csr_array:
    """A sparse matrix whose singular values fall like those of words and contexts."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, 60)) * np.geomspace(1, 0.02, 60) @ rng.normal(size=(60, columns))
    return sparse.csr_array((table * (rng.random(table.shape) < 0.2)).astype(np.float32))


@pytest.mark.parametrize("shape", [(400, 300), (300, 500)])
def test_singular_values_and_vectors_are_those_of_the_dense_matrix(shape):
    matrix = decaying(*shape, seed=0)
    values, right = truncated_svd(matrix, 12)
    _, expected, vectors = np.linalg.svd(matrix.toarray().astype(float))
    np.testing.assert_allclose(values, expected[:12], rtol=2e-3)
    np.testing.assert_allclose(values[:4], expected[:4], rtol=1e-5)
    np.testing.assert_allclose(right @ right.T, np.eye(12), atol=1e-5)
    np.testing.assert_allclose(abs(right.numpy()[:4] @ vectors[:4].T), np.eye(4), atol=1e-3)
    left = matrix @ right.numpy().T
    kept = ((left @ right.numpy()) ** 2).sum()
    assert kept == pytest.approx((expected[:12] ** 2).sum(), rel=1e-3), "as much is explained as possible"


@pytest.mark.parametrize(("shape", "rank", "count"), [((30, 20), 20, 8), ((30, 20), 5, 8), ((6, 9), 6, 12)])
def test_small_matrices_and_those_of_low_rank_have_zeros_beyond_their_rank(shape, rank, count):
    rng = np.random.default_rng(0)
    table = (rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))).astype(np.float32)
    values, right = truncated_svd(sparse.csr_array(table), count)
    assert (values.shape, right.shape) == ((count,), (count, shape[1]))
    expected = np.linalg.svd(table.astype(float))[1][:count]
    np.testing.assert_allclose(values[: len(expected)], expected, atol=1e-5 * expected[0])
    assert not values[len(expected) :].any()
    approximation = table @ right.numpy().T @ right.numpy()
    assert ((table - approximation) ** 2).sum() == pytest.approx((np.linalg.svd(table)[1][count:] ** 2).sum(), abs=1e-3)


def test_a_large_matrix_of_low_rank_ends_the_search_early():
    table = np.zeros((200, 150), np.float32)
    table[:3, :3] = [[3, 0, 0], [0, 2, 0], [0, 0, 1]]
    values, right = truncated_svd(sparse.csr_array(table), 10)
    np.testing.assert_allclose(values, [3, 2, 1] + 7 * [0], atol=1e-5)
    np.testing.assert_allclose(right[:3, :3], np.eye(3), atol=1e-5)


def solved(matrix: sparse.csr_array, count: int, power: float) -> tuple[np.ndarray, np.ndarray, TruncatedSVD]:
    """Codes [items, count] and atoms of the solver with the options of a run."""
    words, contexts = matrix.shape
    model = SimpleNamespace(
        table=torch.nn.Parameter(torch.zeros(count, words)),
        dictionary=torch.nn.Parameter(torch.zeros(count, contexts)),
        codes=None,
    )
    solver = TruncatedSVD([model.table, model.dictionary], passes=1, power=power)
    solver.attach({model.table: NoPenalty()})
    batch = SimpleNamespace(words=torch.arange(10), epoch=0, source=SimpleNamespace(matrix=matrix))
    lost = [float(solver.step(lambda: solver.sweep(model, None, batch))) for _ in range(2)]
    solver.flush()
    codes, atoms = model.table.detach().numpy().T, model.dictionary.detach().numpy()
    squares = ((matrix.toarray() - codes @ atoms) ** 2).sum()
    assert lost == pytest.approx([squares / 2 / words] * 2, rel=1e-4)
    return codes, atoms, solver


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_codes_have_the_power_of_the_singular_values(power):
    matrix = decaying(200, 150, seed=1)
    codes, atoms, solver = solved(matrix, 6, power)
    values = truncated_svd(matrix, 6).values.numpy()
    np.testing.assert_allclose(codes.T @ codes, np.diag(values ** (2 * power)), atol=1e-3 * values[0] ** (2 * power))
    np.testing.assert_allclose(np.linalg.norm(atoms, axis=1), values ** (1 - power), rtol=1e-4)
    np.testing.assert_allclose(codes @ atoms, solved(matrix, 6, 1)[0] @ solved(matrix, 6, 1)[1], atol=1e-3)
    assert solver.proof().kkt < 1e-6


def test_penalties_and_powers_without_meaning_are_refused():
    table = torch.nn.Parameter(torch.zeros(3, 4))
    with pytest.raises(UserError, match="take reg=none"):
        TruncatedSVD([table]).attach({table: L1(0.1)})
    with pytest.raises(UserError, match="power is 2"):
        TruncatedSVD([table], power=2)
