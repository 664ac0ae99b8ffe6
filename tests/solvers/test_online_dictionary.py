"""Online dictionary learning: each step against a dense loop, the learnt objective beside SPAMS, dead atoms."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from structsparse.base.errors import UserError
from structsparse.penalties import L1
from structsparse.solvers import OnlineDictionary
from structsparse.solvers.sparse_codes import objective, sparse_codes
from tests.support.runs import ROOT

ATOMS, LENGTH, ITEMS, STRENGTH = 40, 60, 400, 0.15


@dataclass
class Source:
    matrix: sparse.csr_array


@dataclass
class Batch:
    source: Source
    words: torch.Tensor
    epoch: int = 0


class Model(nn.Module):
    def __init__(self, seed: int = 0, items: int = ITEMS) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        atoms = torch.randn(ATOMS, LENGTH, generator=rng)
        self.dictionary = nn.Parameter(atoms / atoms.norm(dim=1, keepdim=True))
        self.table, self.codes = nn.Parameter(torch.zeros(ATOMS, items)), None


def source(items: int = ITEMS, seed: int = 1) -> Source:
    """Items that are sparse combinations of sparse atoms."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(ATOMS // 2, LENGTH)) * (rng.random((ATOMS // 2, LENGTH)) < 0.4)
    codes = rng.normal(size=(items, ATOMS // 2)) * (rng.random((items, ATOMS // 2)) < 0.2)
    matrix = codes @ atoms
    matrix[0] = 0
    return Source(sparse.csr_array(matrix.astype(np.float32)))


def solver_of(model: Model, **options) -> OnlineDictionary:
    solver = OnlineDictionary([model.table, model.dictionary], **options)
    solver.attach({model.table: L1(STRENGTH / model.table.shape[1])})
    return solver


def learn(model: Model, items: Source, passes: int, batch: int, **options) -> OnlineDictionary:
    solver, rng = solver_of(model, passes=passes, **options), np.random.default_rng(0)
    for epoch in range(passes):
        order = rng.permutation(items.matrix.shape[0])
        for begin in range(0, len(order), batch):
            chosen = Batch(items, torch.from_numpy(order[begin : begin + batch]), epoch)
            solver.step(lambda chosen=chosen: solver.sweep(model, None, chosen))
    solver.flush()
    return solver


def total(model: Model, items: Source, dictionary: torch.Tensor | None = None) -> float:
    """The objective of a dictionary: that of the best codes, with the squares of the items."""
    atoms = (model.dictionary.detach() if dictionary is None else dictionary).double()
    data = torch.from_numpy(items.matrix.toarray()).double()
    gram, pull = atoms @ atoms.T, atoms @ data.T
    codes = sparse_codes(gram, pull, L1(STRENGTH), tolerance=1e-6)
    return objective(gram, pull, codes, L1(STRENGTH)) + float(data.square().sum()) / 2


def test_a_step_is_that_of_a_dense_loop():
    model, items, words = Model(), source(), torch.arange(50, 150)
    before = model.dictionary.detach().clone().double()
    solver = solver_of(model, tolerance=1e-6, iterations=2000, rounds=2)
    loss = solver.sweep(model, None, Batch(items, words))
    data = torch.from_numpy(items.matrix[words.numpy()].toarray()).double()
    codes = sparse_codes(before @ before.T, before @ data.T, L1(STRENGTH), tolerance=1e-9)
    torch.testing.assert_close(model.table[:, words].double(), codes, rtol=0, atol=1e-4)
    assert float(loss) == pytest.approx(float((data - codes.T @ before).square().sum() / 2 / 100), rel=1e-3)
    atoms = before.clone()
    for j in (*range(ATOMS), *range(ATOMS)):  # the best atom of norm at most 1, all others held
        rest = data - codes.T @ atoms + codes[j][:, None] * atoms[j]
        best = codes[j] @ rest / codes[j].square().sum()
        atoms[j] = best / best.norm().clamp(min=1.0)
    torch.testing.assert_close(model.dictionary.double(), atoms, rtol=0, atol=2e-3)
    assert model.table[:, :50].eq(0).all()


def test_the_objective_is_not_above_that_of_spams():
    spams = pytest.importorskip("spams")
    items, model = source(), Model()
    start = np.asfortranarray(model.dictionary.detach().double().numpy().T)
    learn(model, items, passes=3, batch=50)
    data = np.asfortranarray(items.matrix.toarray().astype(np.float64).T)
    options = {"mode": 2, "batchsize": 50, "iter": 3 * ITEMS // 50, "numThreads": 1, "verbose": False}
    theirs = spams.trainDL(data, D=start, lambda1=STRENGTH, **options)
    assert total(model, items) <= 1.01 * total(model, items, torch.from_numpy(np.ascontiguousarray(theirs.T)))


def test_final_codes_are_optimal_and_atoms_have_norms_of_at_most_one():
    items, model = source(), Model()
    start = total(model, items)
    solver = learn(model, items, passes=2, batch=64)
    assert solver.proof().kkt < 1e-6
    assert model.dictionary.norm(dim=1).max() < 1 + 1e-6
    assert total(model, items) < 0.9 * start
    data = torch.from_numpy(items.matrix.toarray())
    found = (data - model.table.detach().T @ model.dictionary.detach()).square().sum() / 2
    found = float(found + STRENGTH * model.table.detach().abs().sum())
    assert found == pytest.approx(total(model, items), rel=1e-5)


def test_atoms_that_no_item_uses_become_the_worst_items():
    model, items = Model(), source()
    with torch.no_grad():
        model.dictionary[3:6] = 0
    solver = solver_of(model)
    solver.sweep(model, None, Batch(items, torch.arange(100)))
    assert model.dictionary.norm(dim=1).min() > 0.01
    data = torch.from_numpy(items.matrix[:100].toarray())
    units = data / data.norm(dim=1, keepdim=True).clamp(min=1e-9)
    cosines = model.dictionary[3:6].detach() @ units.T
    torch.testing.assert_close(cosines.amax(dim=1), torch.ones(3))
    assert len({*cosines.argmax(dim=1).tolist()}) == 3
    assert (solver.state[model.dictionary]["gram"][3:6] == 0).all()


def test_a_restored_solver_goes_on_to_the_same_atoms():
    items = source()
    batches = [Batch(items, torch.arange(k, ITEMS, 4), k // 2) for k in range(4)]
    whole = Model()
    solver = solver_of(whole, passes=2)
    for batch in batches:
        solver.sweep(whole, None, batch)
    first, second = Model(), Model(seed=9)
    solver = solver_of(first, passes=2)
    for batch in batches[:3]:
        solver.sweep(first, None, batch)
    second.load_state_dict(first.state_dict())
    resumed = solver_of(second, passes=2)
    resumed.load_state_dict(solver.state_dict())
    resumed.sweep(second, None, batches[3])
    assert torch.equal(second.dictionary, whole.dictionary)
    assert torch.equal(second.table, whole.table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 0}, "solver.passes is 0"),
        ({"rounds": 0}, "solver.rounds is 0"),
        ({"forget": 2.0}, "solver.forget is 2.0"),
        ({"tolerance": 0}, "positive"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(UserError, match=message):
        solver_of(Model(), **options)


MEMORY = """
import resource
import sys
import numpy as np
import torch
from scipy import sparse
from structsparse.penalties import L1
from structsparse.solvers import OnlineDictionary
from structsparse.tasks.embeddings.model import SparseCodes
from tests.solvers.test_online_dictionary import Batch, Source

torch.manual_seed(0)
items, cut, rng = 60_000, float(sys.argv[1]), np.random.default_rng(0)
columns = rng.integers(0, 50, (items, 3))
matrix = sparse.csr_array((np.ones(items * 3, np.float32), columns.ravel(), np.arange(items + 1) * 3), (items, 50))
matrix.sum_duplicates()
model = SparseCodes(1000, items, 50, sparse_codes=True)
torch.nn.init.normal_(model.dictionary)
model.dictionary.data /= model.dictionary.norm(dim=1, keepdim=True)
solver = OnlineDictionary([model.table, model.dictionary], passes=1, final_tolerance=1e-2)
solver.attach({model.table: L1(cut / items)})
solver.sweep(model, None, Batch(Source(matrix), torch.arange(600)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
solver.flush()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(model.codes.values), (peak - before) * 1024)
"""


@pytest.mark.slow
def test_the_memory_of_sparse_columns_follows_their_nonzeros():
    """A dense table of 1,000 x 60,000 codes would be 240 MB."""
    found = []
    for cut in ("1.3", "0.9"):
        program = [sys.executable, "-c", MEMORY, cut]
        output = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found.append([int(number) for number in output.split()])
    (few, least), (many, most) = found
    assert 0 < few < 0.5 * many
    assert most < 90e6 + 40 * many
    assert least < 90e6 + 40 * few
