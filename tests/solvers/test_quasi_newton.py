"""Parts of the quasi-Newton solvers, against explicit matrices."""

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.kernels.solvers.quasi_newton import coordinate_descent
from structsparse.penalties import L1
from structsparse.solvers.owlqn import OWLQN
from structsparse.solvers.quasi_newton import ProximalQuasiNewton
from structsparse.solvers.secants import Secants, _merge

ENTRIES = 9


def curved(seed):
    """A positive definite matrix, weights, and steps [pairs, entries]."""
    draw = torch.Generator().manual_seed(seed)
    root = torch.randn(ENTRIES, ENTRIES, generator=draw, dtype=torch.float64)
    steps = torch.randn(6, ENTRIES, generator=draw, dtype=torch.float64)
    return root @ root.T + torch.eye(ENTRIES), torch.rand(ENTRIES, generator=draw, dtype=torch.float64) + 0.5, steps


def bfgs(base, pairs):
    """BFGS from diag(base): B <- B - B s s' B / s' B s + y y' / s' y."""
    B = torch.diag(base)
    for s, y in pairs:
        B = B - torch.outer(B @ s, B @ s) / (s @ B @ s) + torch.outer(y, y) / (s @ y)
    return B


@pytest.mark.parametrize("history", [1, 4, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_model_is_the_matrix_of_bfgs(history, seed):
    H, weights, steps = curved(seed)
    secants = Secants(history, torch.arange(ENTRIES))
    for s in steps:
        secants.add(s, H @ s)
    pairs = [(s, H @ s) for s in steps[-history:]]
    assert len(secants) == len(pairs)
    scale = secants.secant(weights)
    s, y = pairs[-1]
    assert scale == pytest.approx(float((y * y / weights).sum() / (s @ y)))
    B = bfgs(scale * weights, pairs)
    rows = torch.tensor([0, 3, 4, 8])
    for some in (torch.arange(ENTRIES), rows):
        model, part = secants.model(some, weights, scale), B[some][:, some]
        torch.testing.assert_close(model.times(torch.eye(len(some), dtype=torch.float64)[0]), part[0])
        torch.testing.assert_close(model.diagonal(), part.diagonal())
        root = (scale * weights[some]).sqrt()
        largest = float(torch.linalg.eigvalsh(part / torch.outer(root, root))[-1])
        assert model.largest() == pytest.approx(max(1.0, largest))


def test_entries_join_and_leave_without_a_change_to_the_metric():
    secants = Secants(2, torch.zeros(0, dtype=torch.int64))
    H, _, steps = curved(1)
    pairs, active = [], [torch.tensor(a) for a in ([1, 4, 7], [0, 4, 7], [4, 8], [3, 4])]
    for s, places in zip(steps, active, strict=False):
        rows = secants.join(places)
        assert torch.equal(secants.places[rows], places)
        step = torch.zeros(len(secants.places), dtype=torch.float64)
        step[rows] = s[places]
        whole = torch.zeros(ENTRIES, dtype=torch.float64).index_copy(0, secants.places, step)
        change = (H @ whole)[secants.places]
        secants.add(step, change)
        pairs.append((whole, torch.zeros(ENTRIES, dtype=torch.float64).index_copy(0, secants.places, change)))
    rows = secants.join(torch.tensor([4, 5]))
    assert secants.places.tolist() == [3, 4, 5, 8]  # entries of the last two steps, and the active ones
    B = bfgs(torch.ones(ENTRIES, dtype=torch.float64), pairs[-2:])
    model = secants.model(rows, torch.ones(4, dtype=torch.float64), 1.0)
    torch.testing.assert_close(model.diagonal(), B.diagonal()[[4, 5]])


@pytest.mark.parametrize("seed", range(20))
def test_merged_indices_are_the_union_of_sets(seed):
    draw = np.random.default_rng(seed)
    old, new = (np.flatnonzero(draw.random(30) < draw.random()) for _ in range(2))
    kept = draw.random(len(old)) < 0.5
    places, of_old, of_new = _merge(*map(torch.from_numpy, (old, kept, new)))
    assert places.tolist() == sorted({*old[kept]} | {*new})
    assert [places[k].item() if k >= 0 else None for k in of_old] == [p if p in places else None for p in old]
    assert places[of_new].tolist() == new.tolist()


def test_a_pair_without_curvature_is_skipped():
    secants = Secants(3, torch.arange(2))
    secants.add(torch.tensor([1.0, 0.0]).double(), torch.tensor([-1.0, 2.0]).double())
    secants.add(torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 2.0]).double())
    assert len(secants) == 0


@pytest.mark.parametrize("seed", range(4))
def test_coordinate_descent_ends_at_a_zero_subgradient_of_the_model(seed):
    H, weights, steps = curved(seed)
    secants = Secants(4, torch.arange(ENTRIES))
    for s in steps:
        secants.add(s, H @ s)
    model = secants.model(torch.arange(ENTRIES), weights, 1.0)
    here, gradient = steps[0] * (steps[1] > 0), 3 * steps[2]
    cut, ridge = torch.full((ENTRIES,), 2.0).double(), torch.full((ENTRIES,), 0.3).double()
    cut[0] = ridge[1] = 0.0
    given = here, gradient, model.base, model.Q, model.Q @ model.N, model.diagonal(), cut, ridge
    V = here.clone()
    sweeps = coordinate_descent(*(t.contiguous().numpy() for t in (V, *given)), 5000, 0.0)
    assert 1 < sweeps <= 5000
    slope = (gradient + model.times(V - here) + ridge * V).numpy()
    V = V.numpy()
    np.testing.assert_allclose(slope[V != 0], -(cut.numpy() * np.sign(V))[V != 0], atol=1e-8)
    assert (np.abs(slope[V == 0]) <= cut.numpy()[V == 0]).all()
    assert (V == 0).any()
    assert (V != 0).any()


def test_owlqn_directions_agree_in_sign_with_the_pseudo_gradient():
    H, _, steps = curved(3)
    w, free = (torch.nn.Parameter(torch.zeros(ENTRIES, dtype=torch.float64)) for _ in range(2))
    optimizer = OWLQN([w, free])
    optimizer.attach({w: L1(0.1)})
    optimizer.shared["products"] = []
    for parameter in (w, free):
        optimizer.state[parameter].update(steps=[], changes=[])
    for s in steps[:4]:
        optimizer._remember([s, s.flip(0)], [H @ s, H @ s.flip(0)])
    pseudo = [steps[4], steps[5]]
    direction = optimizer._direction(pseudo)
    B = torch.eye(2 * ENTRIES, dtype=torch.float64)
    pairs = [(torch.cat([s, s.flip(0)]), torch.cat([H @ s, H @ s.flip(0)])) for s in steps[:4]]
    s, y = pairs[-1]
    plain = -torch.linalg.solve(bfgs((y @ y) / (s @ y) * B.diagonal(), pairs), torch.cat(pseudo))
    against = plain[:ENTRIES] * pseudo[0] >= 0
    assert against.any()
    torch.testing.assert_close(direction[0], plain[:ENTRIES].masked_fill(against, 0.0))
    torch.testing.assert_close(direction[1], plain[ENTRIES:])
    assert (plain[ENTRIES:] * pseudo[1] >= 0).any()  # allowed for a parameter without a lasso


def test_weights_of_entries_are_respected_or_refused():
    draw = torch.Generator().manual_seed(0)
    X, y = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((30, 6), (30,)))
    weights = torch.tensor([1.0, 5.0, 0.2, 1.0, 3.0, 0.1], dtype=torch.float64)
    penalty = L1(0.1, weights)

    def solve(kind):
        w = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
        optimizer = kind([w], tolerance=0.0)
        optimizer.attach({w: penalty})

        def closure():
            optimizer.zero_grad()
            loss = (X @ w - y).square().mean()
            loss.backward()
            return loss

        for _ in range(200):
            optimizer.step(closure)
        closure()
        return float(penalty.gap(w.detach(), w.grad).max())

    assert solve(ProximalQuasiNewton) < 1e-6
    with pytest.raises(UserError):
        solve(OWLQN)
