"""Sparse codes against SPAMS, against linear equations, and by their optimality conditions."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from structsparse.corpora.text import read_coded
from structsparse.corpora.text_reading import TextReading
from structsparse.features import cooccurrences
from structsparse.groups import RepeatedForest
from structsparse.penalties import (
    L1,
    ElasticNet,
    Nonnegative,
    NoPenalty,
    SquaredL2,
    TreeGroupLasso,
    TreeGroupLassoMax,
)
from structsparse.solvers.sparse_codes import _State, objective, sparse_codes, violations
from structsparse.tasks.embeddings.data import encoded
from tests.support.forests import names_of

ATOMS, ITEMS, LENGTH, STRENGTH = 26, 60, 40, 0.3
PARENTS = [-1, 0, 1, 1, 1, 0, 5, 5, 5, 0, 9, 9, 9]  # a tree of 13 nodes, depth first


def forest(flat: bool = False) -> RepeatedForest:
    """Two trees of 13 dimensions each, or two flat groups of 13."""
    if flat:
        ids = torch.arange(2).repeat_interleave(13)
        return RepeatedForest([-1, -1], ids, names_of(2), (ATOMS, ITEMS), "one")
    parents = [*PARENTS, *(p + 13 if p >= 0 else -1 for p in PARENTS)]
    return RepeatedForest(parents, torch.arange(ATOMS), names_of(ATOMS), (ATOMS, ITEMS), "one")


PENALTIES = {
    "l1": lambda: L1(STRENGTH),
    "elastic_net": lambda: ElasticNet(STRENGTH, 0.6),
    "tree_l2": lambda: TreeGroupLasso(forest(), STRENGTH),
    "tree_linf": lambda: TreeGroupLassoMax(forest(), STRENGTH),
    "flat": lambda: TreeGroupLasso(forest(flat=True), STRENGTH),
    "nonnegative l1": lambda: Nonnegative(L1(STRENGTH)),
    "nonnegative tree_l2": lambda: Nonnegative(TreeGroupLasso(forest(), STRENGTH)),
    "ridge": lambda: SquaredL2(STRENGTH),
    "none": lambda: NoPenalty(),
}


def problem(dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Atoms of length 1, and items of which some are so small that their code is zero."""
    rng = torch.Generator().manual_seed(3)
    atoms = torch.randn(ATOMS, LENGTH, generator=rng, dtype=torch.float64)
    atoms /= atoms.norm(dim=1, keepdim=True)
    codes = torch.randn(ATOMS, ITEMS, generator=rng, dtype=torch.float64)
    codes *= torch.rand(ATOMS, ITEMS, generator=rng) < 0.2
    items = codes.T @ atoms + 0.1 * torch.randn(ITEMS, LENGTH, generator=rng, dtype=torch.float64)
    items[:20] *= 0.01
    return atoms.to(dtype), items.to(dtype)


def spams_codes(name: str, atoms: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """The codes by FISTA of SPAMS, whose NaN stands for the zero solution."""
    spams = pytest.importorskip("spams")
    options = {"loss": "square", "lambda1": STRENGTH, "numThreads": 1, "max_it": 1000, "tol": 1e-12}
    options |= {"intercept": False, "pos": name.startswith("nonnegative")}
    if name == "elastic_net":  # squares are further coordinates of the atoms, in which the items are zero
        options |= {"lambda1": 0.6 * STRENGTH}
        atoms = torch.cat([atoms, (0.4 * STRENGTH) ** 0.5 * torch.eye(ATOMS, dtype=torch.float64)], dim=1)
        items = torch.cat([items, torch.zeros(ITEMS, ATOMS, dtype=torch.float64)], dim=1)
    if "tree" in name:  # the root above all trees has an atom of its own, as SPAMS divides by its norm
        atoms, items = torch.block_diag(torch.ones(1, 1), atoms), torch.cat([torch.ones(ITEMS, 1), items], dim=1)
    data = np.asfortranarray(items.T.numpy()), np.asfortranarray(atoms.T.numpy())
    start = np.zeros((len(atoms), ITEMS), order="F")
    if "tree" in name:
        found = spams.fistaTree(*data, start, spams_tree(), False, regul=name.split()[-1].replace("_", "-"), **options)
        return torch.from_numpy(np.nan_to_num(found))[1:]
    regul = {"flat": "group-lasso-l2"}.get(name, "l1")
    options |= {"size_group": 13} if name == "flat" else {}
    return torch.from_numpy(np.nan_to_num(spams.fistaFlat(*data, start, False, regul=regul, **options)))


def spams_tree() -> dict:
    """Both trees below a root without weight; nodes are depth first, with a variable each."""
    size = ATOMS + 1
    groups = scipy.sparse.lil_matrix((size, size), dtype=bool)
    for node, parent in enumerate(forest().parents.tolist()):
        groups[node + 1, parent + 1 if parent >= 0 else 0] = True
    return {
        "eta_g": np.append(0.0, np.ones(ATOMS)),
        "groups": scipy.sparse.csc_matrix(groups),
        "own_variables": np.arange(size, dtype=np.int32),
        "N_own_variables": np.ones(size, np.int32),
    }


@pytest.mark.parametrize("name", [name for name in PENALTIES if name not in ("ridge", "none")])
def test_spams_finds_the_same_objective(name):
    atoms, items = problem()
    penalty, gram, pull = PENALTIES[name](), atoms @ atoms.T, atoms @ items.T
    found = objective(gram, pull, sparse_codes(gram, pull, penalty, tolerance=1e-9), penalty)
    theirs = objective(gram, pull, spams_codes(name, atoms, items), penalty)
    assert found == pytest.approx(theirs, rel=1e-6)


@pytest.fixture(scope="module")
def associations_of_words() -> tuple[torch.Tensor, torch.Tensor]:
    """Words of a real text as atoms, and others as items: their pointwise mutual information with all contexts."""
    path = Path(os.environ["STRUCTSPARSE_DATA"]) / "gutenberg-17m.txt.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    reading = TextReading("text", "words", lower=True, limit=200_000)
    codes, words, _ = encoded(read_coded(path, reading), 5, unknown=True)
    matrix = cooccurrences.associations(cooccurrences.count(codes, len(words), cooccurrences.Window()))
    chosen = np.random.default_rng(0).permutation(len(words))[: ATOMS + ITEMS]
    rows = torch.from_numpy(matrix[chosen].toarray()).double()
    atoms = rows[:ATOMS] + 0.1 * torch.randn(ATOMS, len(words), generator=torch.Generator().manual_seed(0))
    return atoms / atoms.norm(dim=1, keepdim=True), rows[ATOMS:]


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="STRUCTSPARSE_DATA is not set")
@pytest.mark.parametrize("name", ["l1", "tree_l2", "tree_linf"])
def test_codes_of_a_real_text_have_the_objective_of_spams_and_a_certificate(name, associations_of_words):
    spams = pytest.importorskip("spams")
    atoms, items = associations_of_words
    penalty, gram, pull = PENALTIES[name](), atoms @ atoms.T, atoms @ items.T
    codes = sparse_codes(gram, pull, penalty, tolerance=1e-8)
    assert violations(gram, pull, codes, penalty).max() < 1e-6
    assert 0.02 < (codes != 0).double().mean() < 1
    found = objective(gram, pull, codes, penalty)
    assert found == pytest.approx(objective(gram, pull, spams_codes(name, atoms, items), penalty), rel=1e-6)
    if name == "l1":
        data = np.asfortranarray(items.T.numpy()), np.asfortranarray(atoms.T.numpy())
        theirs = spams.lasso(*data, lambda1=STRENGTH, mode=2, numThreads=1).toarray()
        assert found == pytest.approx(objective(gram, pull, torch.from_numpy(theirs), penalty), rel=1e-6)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_column_is_certified(name, dtype):
    atoms, items = problem(dtype)
    penalty, gram, pull = PENALTIES[name](), atoms @ atoms.T, atoms @ items.T
    double = dtype == torch.float64
    codes = sparse_codes(gram, pull, penalty, tolerance=1e-8 if double else 1e-5)
    assert codes.dtype == dtype
    assert violations(gram, pull, codes, penalty).max() < (1e-7 if double else 1e-4)
    assert violations(gram, pull, torch.zeros_like(codes), penalty)[20:].max() > 0.1
    if name not in ("ridge", "none"):
        assert (codes[:, :20] == 0).all()
        assert (codes[:, 20:] != 0).any()


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_codes_under_squares_solve_linear_equations(strength):
    atoms, items = problem()
    penalty = SquaredL2(strength) if strength else NoPenalty()
    stacked = torch.cat([atoms.T, strength**0.5 * torch.eye(ATOMS, dtype=torch.float64)])
    padded = torch.cat([items.T, torch.zeros(ATOMS, ITEMS, dtype=torch.float64)])
    expected = torch.linalg.lstsq(stacked, padded).solution
    torch.testing.assert_close(sparse_codes(atoms @ atoms.T, atoms @ items.T, penalty), expected)


def test_the_unit_multiplies_the_strength():
    atoms, items = problem()
    gram, pull = atoms @ atoms.T, atoms @ items.T
    expected = sparse_codes(gram, pull, L1(0.3), tolerance=1e-10)
    torch.testing.assert_close(sparse_codes(gram, pull, L1(0.001), 300.0, tolerance=1e-10), expected)


def test_a_column_does_not_depend_on_the_others():
    atoms, items = problem()
    penalty, gram, pull = PENALTIES["tree_l2"](), atoms @ atoms.T, atoms @ items.T
    whole = sparse_codes(gram, pull, penalty, tolerance=1e-6)
    some = sparse_codes(gram, pull[:, 30:40].contiguous(), penalty, tolerance=1e-6)
    torch.testing.assert_close(some, whole[:, 30:40], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["l1", "tree_l2", "nonnegative tree_l2"])
def test_columns_of_zeros_begin_as_without_a_start(name):
    atoms, items = problem()
    penalty, gram, pull = PENALTIES[name](), atoms @ atoms.T, atoms @ items.T
    free = sparse_codes(gram, pull, penalty, tolerance=1e-3)
    half = sparse_codes(gram, pull, penalty, tolerance=1e-9)
    half[:, 40:] = 0
    codes = sparse_codes(gram, pull, penalty, start=half, tolerance=1e-3)
    torch.testing.assert_close(codes[:, 40:], free[:, 40:], rtol=0, atol=1e-12)
    torch.testing.assert_close(codes[:, 20:40], half[:, 20:40], rtol=0, atol=1e-7)
    assert not torch.allclose(free[:, 20:40], half[:, 20:40], rtol=0, atol=1e-6)


def test_few_iterations_come_near():
    """Ridge codes are a good beginning: eight iterations are enough for what took some twenty from zero."""
    atoms, items = problem()
    penalty, gram, pull = PENALTIES["l1"](), atoms @ atoms.T, atoms @ items.T
    best = objective(gram, pull, sparse_codes(gram, pull, penalty, tolerance=1e-9), penalty)
    found = objective(gram, pull, sparse_codes(gram, pull, penalty, iterations=8), penalty)
    assert (found - best) / abs(best) < 1e-2


def test_a_good_start_stays():
    atoms, items = problem()
    penalty, gram, pull = PENALTIES["l1"](), atoms @ atoms.T, atoms @ items.T
    codes = sparse_codes(gram, pull, penalty, tolerance=1e-9)
    again = sparse_codes(gram, pull, penalty, start=codes, tolerance=1e-7, iterations=10)
    torch.testing.assert_close(again, codes, rtol=0, atol=1e-7)


def test_the_kernel_takes_the_step_of_torch():
    rng = torch.Generator().manual_seed(0)
    new, codes, pull = (torch.randn(5, ITEMS, generator=rng, dtype=torch.float64) for _ in range(3))
    kernel, torch_route = _State(codes.clone(), pull), _State(codes.clone(), pull)
    for state in (kernel, torch_route):
        state.point = pull.clone()
        state.momentum = 1 + torch.arange(ITEMS) / 100
        state.momentum = state.momentum.double()
    kernel.advance(new)
    back, move = torch_route.point - new, new - codes
    for c in range(ITEMS):  # the method, written out for one column
        t = 1.0 if back[:, c] @ move[:, c] > 0 else float(torch_route.momentum[c])
        after = (1 + (1 + 4 * t * t) ** 0.5) / 2
        torch.testing.assert_close(kernel.point[:, c], new[:, c] + (t - 1) / after * move[:, c])
        assert float(kernel.momentum[c]) == pytest.approx(after)
        assert float(kernel.residual[c]) == pytest.approx(float(back[:, c].abs().max()))
    assert torch.equal(kernel.codes, new)


def test_an_empty_dictionary_has_zero_codes():
    codes = sparse_codes(torch.zeros(3, 3), torch.zeros(3, 5), L1(0.1), start=torch.ones(3, 5))
    assert torch.equal(codes, torch.zeros(3, 5))
