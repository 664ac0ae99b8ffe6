"""Sparse codes by active sets against FISTA over all atoms, for each penalty; they stay small."""

import numpy as np
import pytest
import torch
from scipy import sparse

from structsparse.penalties import L1, ElasticNet, Nonnegative, SquaredL2, TreeGroupLasso
from structsparse.solvers.active_codes import active_codes, largest_eigenvalue
from structsparse.solvers.sparse_codes import sparse_codes, violations
from structsparse.tasks.embeddings.groups import trees_of_dimensions

ATOMS, LENGTH, ITEMS, UNIT = 78, 40, 30, 30.0
TREE = {"trees": 6, "branching": [3, 3]}
PENALTIES = {
    "l1": L1(0.3 / UNIT),
    "elastic net": ElasticNet(0.4 / UNIT, 0.7),
    "tree": TreeGroupLasso(trees_of_dimensions((ATOMS, 0), **TREE), 0.15 / UNIT),
    "tree by depth": TreeGroupLasso(trees_of_dimensions((ATOMS, 0), weights="0.5**depth", **TREE), 0.5 / UNIT),
    "tree and l1": TreeGroupLasso(trees_of_dimensions((ATOMS, 0), **TREE), 0.2 / UNIT, mix=0.5),
    "flat trees": TreeGroupLasso(trees_of_dimensions((ATOMS, 0), nested=False, **TREE), 0.6 / UNIT),
    "nonnegative, by the dense route": Nonnegative(L1(0.3 / UNIT)),
    "squares, by the dense route": SquaredL2(0.5 / UNIT),
}


def problem(dtype=torch.float64, seed: int = 0):
    """Gram matrix and correlations of items that combine few atoms; the first item is zero."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(ATOMS, LENGTH))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    codes = rng.normal(size=(ATOMS, ITEMS)) * (rng.random((ATOMS, ITEMS)) < 0.08)
    items = codes.T @ atoms + rng.normal(size=(ITEMS, LENGTH)) * 0.05
    items[0] = 0
    D, X = (torch.from_numpy(array).to(dtype) for array in (atoms, items))
    return D @ D.T, D @ X.T, D, X


@pytest.mark.parametrize("name", PENALTIES)
def test_active_sets_find_the_codes_of_all_atoms(name):
    gram, pull, D, X = problem()
    penalty = PENALTIES[name]
    expected = sparse_codes(gram, pull, penalty, UNIT, tolerance=1e-12, iterations=100_000)
    found = active_codes(gram, pull, penalty, UNIT, tolerance=1e-11, iterations=100_000)
    codes = torch.from_numpy(found.codes.toarray().T)
    torch.testing.assert_close(codes, expected, rtol=0, atol=1e-8)
    assert found.violation.max() < 1.1e-11
    kept = X.square().sum(1) - (X - codes.T @ D).square().sum(1)
    np.testing.assert_allclose(found.gained, kept, atol=1e-9)
    if "dense" not in name:
        assert 0 < found.codes.nnz < 0.6 * ATOMS * ITEMS


@pytest.mark.parametrize("name", ["l1", "tree"])
def test_the_violation_is_that_of_the_certificate(name):
    gram, pull, _, _ = problem()
    penalty = PENALTIES[name]
    found = active_codes(gram, pull, penalty, UNIT, tolerance=1e-2)
    expected = violations(gram, pull, torch.from_numpy(found.codes.toarray().T), penalty, UNIT)
    np.testing.assert_allclose(found.violation, expected, rtol=0.05, atol=1e-6)
    assert found.violation.max() > 1e-5, "codes at a low tolerance are not exact"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codes_go_on_from_a_start(dtype):
    gram, pull, _, _ = problem(dtype)
    first = active_codes(gram, pull, PENALTIES["tree"], UNIT, tolerance=1e-2)
    second = active_codes(gram, pull, PENALTIES["tree"], UNIT, start=first.codes, tolerance=1e-5)
    expected = sparse_codes(gram, pull, PENALTIES["tree"], UNIT, tolerance=1e-6, iterations=100_000)
    assert second.codes.dtype == pull.numpy().dtype
    np.testing.assert_allclose(second.codes.toarray().T, expected, atol=1e-3)


def test_an_item_that_is_zero_and_a_strength_that_kills_all_have_no_codes():
    gram, pull, _, _ = problem()
    assert active_codes(gram, pull, PENALTIES["l1"], UNIT).codes[[0]].nnz == 0
    nothing = active_codes(gram, pull, L1(100.0), UNIT)
    assert nothing.codes.nnz == 0
    assert isinstance(nothing.codes, sparse.csr_array)
    assert nothing.violation.max() == 0


def test_the_largest_eigenvalue_is_bounded_from_above():
    gram, _, _, _ = problem()
    exact = float(torch.linalg.eigvalsh(gram)[-1])
    assert exact <= largest_eigenvalue(gram) <= 1.02 * exact
