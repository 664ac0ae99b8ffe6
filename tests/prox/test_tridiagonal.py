"""Tridiagonal systems: compiled and torch routes against dense linear algebra."""

import numpy as np
import pytest
import torch

from structsparse.prox import tridiagonal
from structsparse.prox.tridiagonal import Chain


def systems(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Diagonals, numbers beside them and right sides of definite matrices."""
    rng = np.random.default_rng(rows)
    off = rng.normal(size=columns)
    diagonal = 2 * np.abs(off) + rng.exponential(size=(rows, columns))
    return tuple(map(torch.from_numpy, (diagonal, off, rng.normal(size=(rows, columns)))))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (2, 1), (7, 300)])
def test_solutions_and_inverses_are_those_of_dense_matrices(rows, columns, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(tridiagonal, "compiled", lambda *_: False)
    diagonal, off, right = systems(rows, columns)
    pivots = tridiagonal.factor(diagonal, off)
    solution = tridiagonal.solve_(pivots, off, right.clone())
    variances, covariances = tridiagonal.inverse(pivots, off)
    for k in range(0, columns, 37):
        matrix = np.diag(diagonal[:, k]) + float(off[k]) * (np.eye(rows, k=1) + np.eye(rows, k=-1))
        inverse = np.linalg.inv(matrix)
        np.testing.assert_allclose(solution[:, k], inverse @ right[:, k].numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(variances[:, k], np.diag(inverse), rtol=1e-9)
        np.testing.assert_allclose(covariances[:, k], np.diag(inverse, 1), rtol=1e-9)
        assert float(pivots[:, k].log().sum()) == pytest.approx(np.linalg.slogdet(matrix)[1], abs=1e-9)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [2, 3, 9])
def test_products_are_those_of_dense_matrices(rows, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(tridiagonal, "compiled", lambda *_: False)
    rng = np.random.default_rng(rows)
    chain = Chain(*torch.from_numpy(rng.normal(size=(4, 5))))
    x = torch.from_numpy(rng.normal(size=(rows, 5)))
    product = chain.times(x)
    for k in range(5):
        matrix = float(chain.off[k]) * (np.eye(rows, k=1) + np.eye(rows, k=-1)) + np.diag(chain.diagonal(rows)[:, k])
        np.testing.assert_allclose(product[:, k], matrix @ x[:, k].numpy(), rtol=1e-12)
    doubled = chain.scaled(torch.tensor(2.0, dtype=torch.float64)).add_times_(product.clone(), x)
    torch.testing.assert_close(doubled, 3 * product)


def test_meta_tensors_pass():
    diagonal, off, right = (part.to("meta") for part in systems(4, 6))
    pivots = tridiagonal.factor(diagonal, off)
    assert tridiagonal.solve_(pivots, off, right).device.type == "meta"
    assert tridiagonal.inverse(pivots, off)[0].shape == (4, 6)
