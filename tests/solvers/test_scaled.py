"""Scaled tables, with a factor per group, against the eager method: a step on touched weights, a prox of all."""

import copy

import numba
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import by_column, by_row_blocks
from structsparse.kernels.weights import scaled as kernels
from structsparse.penalties import L1, GroupLasso, SparseGroupLasso
from structsparse.solvers.scaled import ScaledAdagrad, ScaledSGD
from structsparse.solvers.sgd import RowSGD
from structsparse.weights.bags import BagGradient, RowScale, bag_sum, concatenated
from structsparse.weights.notes import notes_of

LABELS = 5
BOUNDS = [0, 7, 7, 20, 21, 33, 48, 60]  # one group is empty, one is a single row
ROWS, NAMES = BOUNDS[-1], [str(k) for k in range(len(BOUNDS) - 1)]


@pytest.fixture(autouse=True)
def one_thread():
    """One thread: starting a second one would be most of the time of hundreds of tiny steps."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


def table_of(dtype=torch.float64, start=0.0):
    draw = torch.Generator().manual_seed(99)
    return torch.nn.Parameter((start * torch.randn(ROWS, LABELS, generator=draw, dtype=torch.float64) + 0.0).to(dtype))


def lasso(strength, **options):
    return GroupLasso(by_row_blocks((ROWS, LABELS), NAMES, BOUNDS, **options), strength)


def some_bags(seed, tokens=6, dtype=torch.float64):
    """Bags with a row of most groups, ascending, and few rows, so that tokens share them. A bag may be empty."""
    draw = torch.Generator().manual_seed(seed)
    begin, size = torch.tensor(BOUNDS[:-1]), torch.tensor(BOUNDS).diff()
    ids = begin + (torch.rand(tokens, len(size), generator=draw) ** 2 * size).long()
    kept = (torch.rand(tokens, len(size), generator=draw) < 0.6) & (size > 0)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), kept.sum(1).cumsum(0)])
    residuals = torch.randn(tokens, LABELS, generator=draw, dtype=torch.float64)
    return BagGradient(ids[kept].int(), offsets, (residuals * 2.0 ** ((seed // 40) % 5 - 3)).to(dtype))


def formed(gradient):
    """X'R by dense matrices."""
    active = torch.zeros(len(gradient.residuals), ROWS, dtype=gradient.residuals.dtype)
    token = torch.repeat_interleave(gradient.offsets.diff())
    active.index_put_((token, gradient.ids.long()), torch.ones(len(token), dtype=active.dtype), accumulate=True)
    return active.T @ gradient.residuals


def held(table):
    """The scaled rows of a table."""
    scale = notes_of(table).scale
    return table.detach() * torch.repeat_interleave(scale.factors, scale.offsets.diff())[:, None].to(table.dtype)


def eager_sgd(table, penalty, gradients, lr, state):
    with torch.no_grad():
        table -= lr * sum(formed(g) for g in gradients)
        penalty.prox_(table, lr)


def eager_adagrad(table, penalty, gradients, lr, state):
    gradient = sum(formed(g) for g in gradients)
    groups = penalty.groups
    state["sum"] = state.get("sum", 0.0) + groups.norms(gradient).square()
    steps = groups.expand(lr / (state["sum"].sqrt() + 1e-10), fill=0.0)
    with torch.no_grad():
        table -= steps * gradient
        penalty.prox_(table, steps.expand_as(table).contiguous())


SOLVERS = {"sgd": (ScaledSGD, eager_sgd, 0.3), "adagrad": (ScaledAdagrad, eager_adagrad, 0.5)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("solver", SOLVERS)
def test_hundreds_of_steps_equal_the_eager_method(solver, start, dtype):
    """Groups die and return all the time; losses are those of the scaled rows."""
    kind, eager, lr = SOLVERS[solver]
    ours, theirs, penalty = table_of(dtype, start), table_of(torch.float64, start), lasso(0.4)
    optimizer, state, deaths, revivals, before = kind([ours], lr=lr), {}, 0, 0, None
    optimizer.attach({ours: penalty})
    close = 1e-12 if dtype == torch.float64 else 2e-5
    for step in range(600):
        optimizer.zero_grad()
        halves = [some_bags(2 * step + half, dtype=dtype) for half in range(2)]
        for g in halves:
            sums = bag_sum(ours, g.ids, g.offsets)
            (sums * g.residuals).sum().backward()
        optimizer.step()
        eager(theirs, penalty, [g._replace(residuals=g.residuals.double()) for g in halves], lr, state)
        torch.testing.assert_close(held(ours).double(), theirs.detach(), rtol=0, atol=close)
        alive = penalty.groups.alive(held(ours))
        if dtype == torch.float64:
            assert torch.equal(alive, penalty.groups.alive(theirs.detach()))
        if before is not None:
            deaths, revivals = deaths + int((before & ~alive).sum()), revivals + int((alive & ~before).sum())
        before = alive
    assert deaths > 50
    assert revivals > 50
    assert before.any()
    optimizer.flush()
    assert (notes_of(ours).scale.factors == 1).all()
    torch.testing.assert_close(ours.detach().double(), theirs.detach(), rtol=0, atol=close)
    assert torch.equal(penalty.groups.alive(ours), before)
    assert not ours[ours == 0].signbit().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norms_are_always_up_to_date(dtype):
    """Also if a group shrinks by many decades without dying, so that its factor is often multiplied into its rows."""
    table, penalty = table_of(dtype, 1.0), lasso(1.0)
    optimizer = ScaledSGD([table], lr=1.0)
    optimizer.attach({table: penalty})
    state, folds, before = optimizer.state[table], 0, torch.ones(len(NAMES), dtype=torch.float64)
    for step in range(90):
        g = some_bags(step, dtype=dtype)
        notes_of(table).pending[:] = [g._replace(residuals=g.residuals * 1e-3 * 0.5**step)]
        penalty.groups.weight.copy_(0.5 * state["squares"].sqrt())
        optimizer.step()
        folds, before = folds + int((state["factors"] > before).sum()), state["factors"].clone()
        norms = penalty.groups.norms(held(table).double())
        precision = 1e-12 if dtype == torch.float64 else 1e-6  # also that of `held`
        torch.testing.assert_close(state["squares"].sqrt(), norms, rtol=precision, atol=0)
    assert folds >= 6
    assert 0 < float(norms.max()) < 1e-24


def test_a_norm_lost_in_rounding_is_computed_anew():
    table, penalty, g = table_of(start=1e-3), lasso(1e-9), some_bags(0, tokens=20)
    optimizer = ScaledSGD([table], lr=1.0)
    optimizer.attach({table: penalty})
    notes_of(table).pending[:] = [g._replace(residuals=g.residuals * scale) for scale in (1e9, -1e9)]
    optimizer.step()
    norms = penalty.groups.norms(held(table))
    assert 0 < float(norms.max()) < 1
    torch.testing.assert_close(optimizer.state[table]["squares"].sqrt(), norms, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scaled_sums_are_sums_of_scaled_rows(dtype):
    table = table_of(dtype, 1.0)
    factors = torch.rand(len(NAMES), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    notes_of(table).scale = RowScale(factors, torch.tensor(BOUNDS))
    for g in (some_bags(4, 30), some_bags(5, 1), some_bags(6, 0)):
        theirs = torch.zeros(len(g.offsets) - 1, LABELS, dtype=dtype)
        for token in range(len(theirs)):
            theirs[token] = held(table)[g.ids[g.offsets[token] : g.offsets[token + 1]].long()].sum(0)
        torch.testing.assert_close(bag_sum(table, g.ids, g.offsets), theirs)
    notes_of(table).scale.factors.fill_(1.0)
    folded = torch.nn.Parameter(table.detach().clone())
    assert torch.equal(bag_sum(table, g.ids, g.offsets), bag_sum(folded, g.ids, g.offsets))


def test_the_group_of_a_row_is_found_from_any_start():
    rows = torch.tensor([0, 3, 3, *range(4, 40), 60]).numpy()
    owner = [max(g for g in range(len(rows) - 1) if rows[g] <= row) for row in range(60)]
    for start in range(len(rows) - 1):
        assert [kernels._group(rows, start, row) for row in range(60)] == owner


@pytest.mark.parametrize("solver", SOLVERS)
def test_results_do_not_depend_on_the_number_of_threads(solver):
    results = []
    for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
        numba.set_num_threads(threads)
        table = table_of(torch.float32, 0.1)
        optimizer = SOLVERS[solver][0]([table], lr=0.1)
        optimizer.attach({table: lasso(0.05)})
        for step in range(30):
            notes_of(table).pending[:] = [some_bags(step, 30, torch.float32)]
            optimizer.step()
        results.append((table.detach(), optimizer.state[table]["squares"]))
    for table, squares in results:
        assert torch.equal(table, results[0][0])
        assert torch.equal(squares, results[0][1])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("attached_first", [True, False])
def test_a_checkpoint_between_flushes_continues_to_the_same_bits(solver, attached_first):
    kind, _, lr = SOLVERS[solver]

    def steps(table, optimizer, numbers):
        for step in numbers:
            notes_of(table).pending[:] = [some_bags(step, dtype=torch.float32)]
            optimizer.step()

    one = table_of(torch.float32)
    optimizer = kind([one], lr=lr)
    optimizer.attach({one: lasso(0.05)})
    steps(one, optimizer, range(50))
    assert (notes_of(one).scale.factors != 1).any()
    saved = copy.deepcopy((one.detach(), optimizer.state_dict()))
    steps(one, optimizer, range(50, 100))
    two = torch.nn.Parameter(saved[0].clone())
    other = kind([two], lr=lr)
    if attached_first:
        other.attach({two: lasso(0.05)})
    other.load_state_dict(saved[1])
    if not attached_first:
        other.attach({two: lasso(0.05)})
    steps(two, other, range(50, 100))
    optimizer.flush()
    other.flush()
    assert torch.equal(one, two)


@pytest.mark.parametrize("solver", SOLVERS)
def test_attaching_again_starts_from_the_rows_as_they_are(solver):
    kind, _, lr = SOLVERS[solver]
    table, fresh = table_of(), table_of()
    optimizer = kind([table], lr=lr)
    optimizer.attach({table: lasso(0.05)})
    for step in range(20):
        notes_of(table).pending[:] = [some_bags(step)]
        optimizer.step()
    optimizer.attach({})
    assert notes_of(table).scale is None
    with torch.no_grad():
        fresh.copy_(table.mul_(2.0))
    optimizer.attach({table: lasso(0.05)})
    norms = lasso(0.05).groups.norms(fresh.detach())
    torch.testing.assert_close(optimizer.state[table]["squares"].sqrt(), norms)
    assert norms.any()


PENALTIES = {
    "l1": lambda: L1(0.05),
    "columns": lambda: GroupLasso(by_column((ROWS, LABELS), list("abcde")), 0.02),
    "sparse group lasso": lambda: SparseGroupLasso(lasso(0.05).groups, 0.05, mix=0.5),
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_other_penalties_are_applied_eagerly(solver, penalty):
    """To a table with factored gradients, and to a parameter with a dense one."""
    kind, _, lr = SOLVERS[solver]
    penalty = PENALTIES[penalty]()
    bagged, plain = table_of(), table_of()
    optimizers = [kind([table], lr=lr) for table in (bagged, plain)]
    expected, squares = table_of().detach(), 0.0
    for optimizer, table in zip(optimizers, (bagged, plain), strict=True):
        optimizer.attach({table: penalty})
    for step in range(20):
        g = some_bags(step)
        notes_of(bagged).pending[:] = [g]
        plain.grad = formed(g)
        for optimizer in optimizers:
            optimizer.step()
        squares = squares + plain.grad.square().sum()
        rate = lr if kind is ScaledSGD else float(lr / (squares.sqrt() + 1e-10))
        penalty.prox_(expected.sub_(rate * plain.grad), rate)
        if kind is ScaledAdagrad and type(penalty) is GroupLasso:
            torch.testing.assert_close(bagged, plain)
            continue
        torch.testing.assert_close(bagged.detach(), expected)
        torch.testing.assert_close(plain.detach(), expected)
    assert expected.any()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_dense_gradient_and_a_support_give_the_same(solver):
    kind, eager, lr = SOLVERS[solver]
    dense, masked, expected, state = table_of(), table_of(), table_of(), {}
    mask = torch.ones(ROWS, LABELS, dtype=torch.bool)
    optimizers = [kind([table], lr=lr) for table in (dense, masked)]
    optimizers[0].attach({dense: lasso(0.05)})
    optimizers[1].attach({masked: lasso(0.05)}, {masked: mask})
    for step in range(40):
        g = some_bags(step)
        notes_of(masked).pending[:] = [g]
        if step % 2:
            dense.grad = formed(g)
        else:
            dense.grad, notes_of(dense).pending[:] = None, [g]
        for optimizer in optimizers:
            optimizer.step()
        notes_of(dense).pending.clear()
        eager(expected, lasso(0.05), [g], lr, state)
        torch.testing.assert_close(held(dense), expected.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(masked, expected, rtol=0, atol=1e-12)
    mask[::2] = False
    optimizers[1].step()
    assert not masked[::2].any()
    assert masked.any()


@pytest.mark.parametrize("solver", SOLVERS)
def test_on_another_device_the_method_is_eager(solver):
    table = torch.nn.Parameter(torch.zeros(ROWS, LABELS, device="meta"))
    optimizer = SOLVERS[solver][0]([table], lr=0.1)
    optimizer.attach({table: lasso(0.05)})
    g = BagGradient(*(tensor.to("meta") for tensor in some_bags(0, dtype=torch.float32)))
    (bag_sum(table, g.ids, g.offsets) * g.residuals).sum().backward()
    assert len(notes_of(table).pending) == 1
    optimizer.step()
    assert notes_of(table).scale is None


def test_without_a_penalty_it_is_row_sgd():
    one, two = table_of(start=1.0), table_of(start=1.0)
    optimizers = ScaledSGD([one], lr=0.1), RowSGD([two], lr=0.1)
    for table, optimizer in zip((one, two), optimizers, strict=True):
        notes_of(table).pending[:] = [some_bags(0)]
        optimizer.step()
    assert torch.equal(one, two)


def test_a_parameter_that_is_not_moved_is_refused():
    with pytest.raises(UserError, match=r"\(60, 5\) is not among those that ScaledSGD moves"):
        ScaledSGD([torch.nn.Parameter(torch.zeros(2))]).attach({table_of(): lasso(0.05)})
    with pytest.raises(UserError, match=r"solver.lr is -1"):
        ScaledSGD([table_of()], lr=-1)


def test_several_backward_passes_are_one_gradient_for_adagrad():
    one, two = table_of(), table_of()
    for table, split in ((one, True), (two, False)):
        optimizer = ScaledAdagrad([table], lr=0.5)
        optimizer.attach({table: lasso(0.05)})
        parts = [some_bags(1), some_bags(2)]
        notes_of(table).pending[:] = parts if split else [concatenated(parts)]
        optimizer.step()
    torch.testing.assert_close(held(one), held(two))
    assert one.any()
