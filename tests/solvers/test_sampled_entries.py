"""Steps at sampled entries against gradients by autograd, the law of the draws, and blocks that share nothing."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from structsparse.base.errors import UserError
from structsparse.kernels.solvers import sampled_entries as kernels
from structsparse.penalties import L1, TreeGroupLasso
from structsparse.solvers import SampledEntries
from structsparse.solvers.sampled_entries import _Blocks
from structsparse.tasks.embeddings.groups import trees_of_dimensions

DIMENSIONS, BLOCKS = 7, 3


def matrix(rows: int = 20, columns: int = 17, density: float = 0.4) -> sparse.csr_array:
    rng = np.random.default_rng(1)
    found = sparse.random_array((rows, columns), density=density, rng=rng, dtype=np.float64, format="csr")
    found.data = rng.normal(size=found.nnz) * 3
    found.sort_indices()
    return found


def tables(X, dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return tuple(rng.normal(size=(size, DIMENSIONS)).astype(dtype) * 0.3 for size in X.shape)


def test_blocks_have_every_entry_once_and_share_neither_rows_nor_columns():
    X = matrix()
    blocks = _Blocks.of(X, BLOCKS, np.random.default_rng(0))
    begins, rows, columns, values = blocks.entries
    np.testing.assert_array_equal(sparse.coo_array((values, (rows, columns)), X.shape).toarray(), X.toarray())
    order, of_group = blocks.groups
    assert sorted(order) == [*range(17)]
    for number in range(BLOCKS):
        parts = [p * BLOCKS + (p + number) % BLOCKS for p in range(BLOCKS)]
        used = [(set(rows[begins[k] : begins[k + 1]]), set(columns[begins[k] : begins[k + 1]])) for k in parts]
        for side in (0, 1):
            assert sum(len(one[side]) for one in used) == len(set().union(*(one[side] for one in used)))
        for k, (_, named) in zip(parts, used, strict=True):
            q = k % BLOCKS
            assert named <= {*order[of_group[q] : of_group[q + 1]].tolist()}


@pytest.mark.parametrize("sampling", [kernels.MAGNITUDE, kernels.UNIFORM, kernels.WEIGHTED])
def test_entries_are_drawn_as_often_as_they_should_be(sampling):
    values, state, draws = np.array([9.0, 1.0, -3.0, 0.5, 2.0]), np.array([7], np.uint64), 40_000
    drawn = np.array([kernels.draw(values, 1, 5, 3.0, sampling, state) for _ in range(draws)])
    share = np.abs(values[1:]) if sampling == kernels.MAGNITUDE else np.ones(4)
    expected = draws * share / share.sum()
    chi = ((np.bincount(drawn - 1, minlength=4) - expected) ** 2 / expected).sum()
    assert len(np.bincount(drawn)) == 5
    assert chi < 16.3, "0.1 % of a chi square with 3 degrees of freedom"


@pytest.mark.parametrize("sampling", [kernels.MAGNITUDE, kernels.UNIFORM, kernels.WEIGHTED])
@pytest.mark.parametrize("negatives", [0, 2])
def test_steps_follow_the_gradients_of_autograd(sampling, negatives):
    """The route of the test: the same draws, and for each a step of torch's SGD on the loss of one entry."""
    X = matrix()
    blocks = _Blocks.of(X, BLOCKS, np.random.default_rng(0))
    begins, rows, columns, values = blocks.entries
    order, of_group = blocks.groups
    codes, atoms = tables(X)
    rate, decay, scale, k = 0.05, 0.02, 0.4, 4
    own = [torch.nn.Parameter(torch.from_numpy(table.copy())) for table in (codes, atoms)]
    solver = torch.optim.SGD(own, lr=rate)
    state, dense, total = np.array([11], np.uint64), X.toarray(), 0.0

    def learn(i, j, x, share) -> float:
        solver.zero_grad()
        error = (x - own[0][i] @ own[1][j]).square() / 2
        (share * (error + decay * own[1][j].square().sum() / 2)).backward()
        solver.step()
        return error.item()

    most = np.abs(values[begins[k] : begins[k + 1]]).max()
    for _ in range(30):
        e = kernels.draw(values, begins[k], begins[k + 1], most, sampling, state)
        share = abs(values[e]) * scale if sampling == kernels.WEIGHTED else 1.0
        total += learn(rows[e], columns[e], values[e], share)
        for _ in range(negatives):
            q = k % BLOCKS
            j = order[of_group[q] + kernels.random_below(of_group[q + 1] - of_group[q], state)]
            if dense[rows[e], j] == 0:
                learn(rows[e], j, 0.0, 1.0)
    options = rate, decay, sampling, negatives, scale
    state = np.array([11], np.uint64)
    error = kernels.block(k, codes, atoms, blocks.entries, blocks.groups, 30, state, options)
    np.testing.assert_allclose(codes, own[0].detach(), rtol=1e-9)
    np.testing.assert_allclose(atoms, own[1].detach(), rtol=1e-9)
    assert error == pytest.approx(total, rel=1e-9)


def test_the_order_of_the_blocks_of_a_stratum_changes_nothing():
    """So threads, which take the blocks in any order, have the result of one thread, to the last bit."""
    X = matrix(density=0.7).astype(np.float32)
    blocks = _Blocks.of(X, BLOCKS, np.random.default_rng(0))
    counts = np.full(BLOCKS * BLOCKS, 200)
    states = np.arange(BLOCKS * BLOCKS).astype(np.uint64)
    options = 0.05, 1e-3, kernels.MAGNITUDE, 2, 1.0
    codes, atoms = tables(X, np.float32)
    errors = np.zeros(BLOCKS * BLOCKS)
    backwards, own, own_states = (codes.copy(), atoms.copy()), np.zeros_like(errors), states.copy()
    for number in range(BLOCKS):
        arrays = codes, atoms, blocks.entries, blocks.groups
        kernels.stratum(number, *arrays, counts, states, options, errors)
        for p in reversed(range(BLOCKS)):
            k = p * BLOCKS + (p + number) % BLOCKS
            state = own_states[k : k + 1]
            own[k] = kernels.block(k, *backwards, blocks.entries, blocks.groups, counts[k], state, options)
    np.testing.assert_array_equal(codes, backwards[0])
    np.testing.assert_array_equal(atoms, backwards[1])
    np.testing.assert_array_equal(errors, own)


def planted(words: int = 60, contexts: int = 40) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A model, and a batch with all rows of a matrix of low rank."""
    rng = np.random.default_rng(3)
    low = rng.normal(size=(words, 3)) @ rng.normal(size=(3, contexts))
    X = sparse.csr_array(low.astype(np.float32))
    shapes = {"table": (DIMENSIONS, words), "dictionary": (DIMENSIONS, contexts)}
    model = SimpleNamespace(**{name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})
    return model, SimpleNamespace(source=SimpleNamespace(matrix=X), words=torch.arange(words), epoch=0)


@pytest.mark.parametrize("sampling", ["magnitude", "uniform", "weighted"])
def test_a_matrix_of_low_rank_is_learnt(sampling):
    torch.manual_seed(0)
    model, batch = planted()
    solver = SampledEntries([model.table, model.dictionary], lr=0.03, sampling=sampling, decay=0.0, blocks=4)
    solver.attach({model.table: L1(0.0)})
    losses = [float(solver.sweep(model, None, batch)) for _ in range(40)]
    assert losses[-1] < 0.05 * losses[0]
    made = (model.table.T @ model.dictionary).detach().numpy()
    assert np.square(made - batch.source.matrix.toarray()).mean() < 0.05


def test_the_threshold_of_an_epoch_is_that_of_its_steps():
    """With entries of zero, gradients vanish at codes of zero atoms, so that only the prox moves the codes."""
    model, batch = planted()
    batch.source.matrix = sparse.csr_array(
        (np.zeros(60, np.float32), np.arange(60) % 40, np.arange(61)), shape=(60, 40)
    )
    groups = trees_of_dimensions((DIMENSIONS, 60), trees=1, branching=[2, 2])
    penalty = TreeGroupLasso(groups, 0.1 / 60)
    solver = SampledEntries([model.table, model.dictionary], lr=0.03, negatives=0, decay=0.0, draws=2.0, blocks=1)
    solver.attach({model.table: penalty})
    solver.state[model.table]["sweeps"] = 1
    torch.nn.init.normal_(model.table.data)
    expected = penalty.prox_(model.table.detach().clone(), 0.03 * 2.0 * 60)
    solver.sweep(model, None, batch)
    torch.testing.assert_close(model.table.detach(), expected)


@pytest.mark.parametrize(
    "options", [{"sampling": "other"}, {"lr": 0.0}, {"draws": -1.0}, {"negatives": -1}, {"blocks": 0}, {"decay": -1.0}]
)
def test_bad_options_get_one_sentence(options):
    (name,) = options
    with pytest.raises(UserError, match=re.escape(f"solver.{name}")):
        SampledEntries([torch.nn.Parameter(torch.zeros(2, 2))], **options)
