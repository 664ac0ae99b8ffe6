"""Row updates from factored gradients against torch's optimizers on dense gradients; numba against torch."""

import numba
import pytest
import torch
import torch.nn.functional as F

from structsparse.base.errors import UserError
from structsparse.solvers.sgd import RowAdagrad, RowSGD
from structsparse.weights import bags
from structsparse.weights.bags import BagGradient, adagrad_, bag_sum, concatenated, row_sums, subtract_

ROWS, LABELS = 60, 5


def some_bags(seed: int, tokens: int = 40, templates: int = 6):
    """Bags of ascending rows, some templates missing; a bag may be empty."""
    draw = torch.Generator().manual_seed(seed)
    block = ROWS // templates
    ids = torch.randint(0, block, (tokens, templates), generator=draw) + torch.arange(templates) * block
    kept = torch.rand(tokens, templates, generator=draw) < 0.7
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), kept.sum(1).cumsum(0)])
    residuals = torch.randn(tokens, LABELS, generator=draw, dtype=torch.float64)
    return BagGradient(ids[kept].int(), offsets, residuals)


def formed(gradient: BagGradient) -> torch.Tensor:
    """X'R by a loop over tokens."""
    dense = torch.zeros(ROWS, LABELS, dtype=gradient.residuals.dtype)
    for token in range(len(gradient.offsets) - 1):
        for place in range(gradient.offsets[token], gradient.offsets[token + 1]):
            dense[gradient.ids[place]] += gradient.residuals[token]
    return dense


@pytest.mark.parametrize("seed", range(5))
def test_row_sums_are_the_dense_gradient(seed):
    gradient = some_bags(seed)
    rows, sums = row_sums(gradient)
    assert torch.allclose(torch.zeros(ROWS, LABELS).double().index_add_(0, rows, sums), formed(gradient))
    touched = sums.abs().sum(1) > 0
    assert len(rows[touched].unique()) == touched.sum()  # each row's sum appears once


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_the_cpu_kernels_equal_torch(seed, dtype, monkeypatch):
    gradient = some_bags(seed)
    gradient = gradient._replace(residuals=gradient.residuals.to(dtype))
    start = torch.randn(ROWS, LABELS, dtype=dtype)
    results = []
    for cpu in (True, False):
        monkeypatch.setattr(bags, "_on_cpu", lambda table, cpu=cpu: cpu)
        plain, table, squares = start.clone(), start.clone(), torch.full_like(start, 0.1)
        slot = torch.full((ROWS,), -1, dtype=torch.int32)
        subtract_(plain, gradient, 0.3)
        adagrad_(table, squares, gradient, 0.3, 1e-10, slot)
        assert (slot == -1).all()
        results.append((plain, table, squares))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_results_do_not_depend_on_the_number_of_threads():
    results = []
    for threads in (1, 2):
        numba.set_num_threads(threads)
        table = torch.ones(ROWS, LABELS, dtype=torch.float64)
        slot = torch.full((ROWS,), -1, dtype=torch.int32)
        adagrad_(table, torch.zeros_like(table), some_bags(7), 0.3, 1e-10, slot)
        subtract_(table, some_bags(8), 0.1)
        results.append(table)
    assert torch.equal(*results)


@pytest.mark.parametrize(("ours", "torchs"), [(RowSGD, torch.optim.SGD), (RowAdagrad, torch.optim.Adagrad)])
def test_a_step_equals_torchs_on_the_dense_gradient(ours, torchs):
    """With two backward passes per step, and a second parameter with a dense gradient."""
    tables = [torch.nn.Parameter(torch.ones(ROWS, LABELS, dtype=torch.float64)) for _ in range(2)]
    biases = [torch.nn.Parameter(torch.ones(LABELS, dtype=torch.float64)) for _ in range(2)]
    optimizers = [kind([t, b], lr=0.1) for kind, t, b in zip((ours, torchs), tables, biases, strict=True)]
    for step in range(4):
        for optimizer, table, bias in zip(optimizers, tables, biases, strict=True):
            optimizer.zero_grad()
            for half in range(2):
                g = some_bags(10 * step + half)
                ((bag_sum(table, g.ids, g.offsets) + bias).tanh() * g.residuals).sum().backward()
            optimizer.step()
    assert tables[0].grad is None
    assert tables[1].grad is not None
    assert torch.allclose(tables[0], tables[1], atol=1e-12)
    assert torch.allclose(biases[0], biases[1], atol=1e-12)


def test_zero_grad_drops_factored_gradients():
    table = torch.nn.Parameter(torch.ones(ROWS, LABELS, dtype=torch.float64))
    optimizer = RowSGD([table], lr=0.1)
    g = some_bags(0)
    bag_sum(table, g.ids, g.offsets).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert (table == 1).all()


def test_without_a_row_solver_the_gradient_is_dense():
    table = torch.nn.Parameter(torch.zeros(ROWS, LABELS, dtype=torch.float64))
    g = some_bags(3)
    (bag_sum(table, g.ids, g.offsets) * g.residuals).sum().backward()
    assert torch.allclose(table.grad, formed(g))


def test_bag_sums_add_up_the_rows():
    g, table = some_bags(4), torch.randn(ROWS, LABELS)
    slow = torch.stack([table[g.ids[a:b].long()].sum(0) for a, b in zip(g.offsets[:-1], g.offsets[1:], strict=True)])
    assert torch.allclose(bag_sum(table, g.ids, g.offsets), slow, atol=1e-6)


def test_concatenated_gradients_add_up():
    parts = [some_bags(seed) for seed in range(3)]
    assert torch.allclose(formed(concatenated(parts)), sum(formed(part) for part in parts))


def test_both_updates_run_on_meta():
    g = BagGradient(*(tensor.to("meta") for tensor in some_bags(0)))
    table = torch.zeros(ROWS, LABELS, dtype=torch.float64, device="meta")
    subtract_(table, g, 0.1)
    adagrad_(table, torch.zeros_like(table), g, 0.1, 1e-10, torch.zeros(ROWS, dtype=torch.int32, device="meta"))
    assert F.embedding_bag(g.ids, table, g.offsets, mode="sum", include_last_offset=True).shape == (40, LABELS)


def test_a_negative_rate_is_refused():
    with pytest.raises(UserError, match=r"solver.lr is -1"):
        RowSGD([torch.nn.Parameter(torch.zeros(2))], lr=-1)


def test_sums_do_not_change_when_zero_rows_are_left_out():
    """So an artifact, which has no dead rows, predicts exactly as its model."""
    g, table = some_bags(5), torch.randn(ROWS, LABELS)
    table[::3] = 0
    alive = g.ids % 3 != 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), alive.cumsum(0)])[g.offsets]
    assert torch.equal(bag_sum(table, g.ids, g.offsets), bag_sum(table, g.ids[alive], offsets))
