"""Softmax over trees of contexts: both implementations against a dense softmax with a feature for every entry."""

import copy
import dataclasses
import gc

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.corpora.text import encode
from structsparse.kernels.structures import contexts as kernels
from structsparse.kernels.structures import contexts_stable as stable
from structsparse.losses.softmax import SoftmaxLM
from structsparse.structures.contexts import Contexts, Increments, NativeRoute, TorchRoute, _Surprise
from structsparse.tasks.lm.contexts import ContextTree

EXACT = {"rtol": 1e-10, "atol": 1e-10}
TREES = [(1, False), (2, False), (4, False), (4, True), (6, True)]


def sentences(seed=0, count=60, words=12):
    draw = np.random.default_rng(seed)
    return [[f"w{w}" for w in draw.zipf(1.4, draw.integers(1, 9)) % words] for _ in range(count)]


def tree_of(order, collapse, seed=0, **options):
    return ContextTree.build(encode(sentences(seed, **options)), order, collapse)


def hand_made():
    """Three words a, b, c; contexts "", a, b, "c a" (below a) and "b c a", whose only entry skips a dead one."""
    return dataclasses.replace(
        tree_of(1, False),
        words=3,
        above=np.array([-1, 0, 0, 1, 3], np.int32),
        ends=np.array([2, 1, 0, 4, 3], np.int32),
        entry_node=np.array([0, 0, 0, 1, 1, 2, 3, 4], np.int32),
        entry_word=np.array([0, 1, 2, 0, 2, 1, 2, 0], np.int32),
        entry_above=np.array([-1, -1, -1, 0, 2, 1, 4, 3], np.int32),
        entry_ends=np.array([1, 2, 0, 2, 1, 0, 3, 1], np.int32),
        node_levels=np.array([0, 1, 3, 4, 5]),
        entry_levels=np.array([0, 3, 6, 7, 8]),
    )


def dense_scores(tree, increments):
    """The score of every word after every context, [nodes, V]: the increments summed along the path."""
    rows = []
    for node in range(len(tree.above)):
        own = torch.from_numpy(np.flatnonzero(tree.entry_node == node))
        row = rows[tree.above[node]] if node else increments.new_zeros(tree.words)
        rows.append(row.index_add(0, torch.from_numpy(tree.entry_word).long()[own], increments[own]))
    return torch.stack(rows)


def dense_surprise(tree, increments):
    scores = dense_scores(tree, increments)
    seen = scores[torch.from_numpy(tree.entry_node).long(), torch.from_numpy(tree.entry_word).long()]
    totals = torch.from_numpy(tree.ends) * torch.logsumexp(scores, 1)
    return totals.sum() - (torch.from_numpy(tree.entry_ends) * seen).sum()


class TorchContexts(Contexts):
    """Contexts by the torch implementation, which other devices use."""

    def surprise(self, increments, node_ends, entry_ends):
        return _Surprise.apply(TorchRoute, self, (node_ends, entry_ends), *self._checked(increments))


ROUTES = {"native": Contexts, "torch": TorchContexts}


def own_loss(structure, increments):
    """The loss on the targets that the tree was built from."""
    return structure.surprise(increments, structure.node_ends, structure.entry_ends)


def draw(size, scale=1.0, seed=0, dtype=torch.float64):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(scale).to(dtype)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("tree", [*TREES, "hand made"])
def test_loss_and_gradient_are_those_of_a_dense_softmax(tree, scale, route):
    tree = hand_made() if tree == "hand made" else tree_of(*tree)
    weights = draw(len(tree.entry_node), scale).requires_grad_()
    expected = dense_surprise(tree, weights)
    (slope,) = torch.autograd.grad(expected, weights)
    found = SoftmaxLM(ROUTES[route](tree))(weights, *(torch.from_numpy(e) for e in (tree.ends, tree.entry_ends)))
    torch.testing.assert_close(found, expected, **EXACT)
    torch.testing.assert_close(torch.autograd.grad(found, weights)[0], slope, **EXACT)


@pytest.mark.parametrize("route", ROUTES)
def test_gradients_are_finite_differences(route):
    tree = tree_of(3, False, count=15, words=5)
    structure = ROUTES[route](tree)
    features = draw(tree.entries, seed=1).abs()
    weights, base = draw(tree.entries).requires_grad_(), draw(tree.words, seed=2)
    assert torch.autograd.gradcheck(lambda w: own_loss(structure, Increments(w, features, base)), weights)


@pytest.mark.parametrize("route", ROUTES)
def test_features_multiply_and_the_base_is_added(route):
    tree = tree_of(4, True)
    structure = ROUTES[route](tree)
    features, base = draw(tree.entries, seed=1), draw(tree.words, seed=2)
    weights = draw(tree.entries).requires_grad_()
    plain = features * weights + torch.cat([base, torch.zeros(tree.entries - tree.words)])
    expected, found = own_loss(structure, plain), own_loss(structure, Increments(weights, features, base))
    torch.testing.assert_close(found, expected, **EXACT)
    for scale in (1.0, -2.5):
        slopes = [torch.autograd.grad(scale * loss, weights, retain_graph=True)[0] for loss in (found, expected)]
        torch.testing.assert_close(*slopes, **EXACT)


@pytest.mark.parametrize("scale", [10.0, 50.0, 300.0, 5000.0])
@pytest.mark.parametrize("collapse", [False, True])
def test_scores_of_any_size_are_right(collapse, scale):
    """Signed weights that give a word all the mass of a context, and take it away again in the next."""
    tree = tree_of(5, collapse)
    structure, weights = Contexts(tree), draw(tree.entries, scale).requires_grad_()
    expected, found = dense_surprise(tree, weights), own_loss(structure, weights)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-9)
    slopes = [torch.autograd.grad(loss, weights)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-9)
    totals = torch.logsumexp(dense_scores(tree, weights.detach()), 1)
    torch.testing.assert_close(structure.log_partition(structure.path_sums(weights)), totals, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("size", [290.0, 340.0, 700.0, 710.0, 745.0, 1000.0, 1420.0, 2900.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_single_steep_increment_is_right(sign, size):
    """Also if the entries below it cancel it."""
    tree = hand_made()
    for steep in range(8):
        weights = torch.full((8,), 0.1, dtype=torch.float64)
        weights[steep] = sign * size
        for back in ([], [e for e in range(8) if tree.entry_above[e] == steep]):
            weights[back] = -sign * size
            table = weights.clone().requires_grad_()
            expected, found = dense_surprise(tree, table), own_loss(Contexts(tree), table)
            torch.testing.assert_close(found, expected, **EXACT)
            slopes = [torch.autograd.grad(loss, table)[0] for loss in (found, expected)]
            torch.testing.assert_close(*slopes, **EXACT)


@pytest.mark.parametrize("share", [2.0**-k for k in (6, 11, 13, 20, 40, 60)])
def test_a_context_that_keeps_a_small_share_of_the_mass_above_it(share):
    """The word a has all the mass of the empty context and next to none after a; and vice versa."""
    tree = hand_made()
    down = np.log(share)
    weights = torch.tensor([0.0, down, down, down, 0.5, -down, -down, 1.0], dtype=torch.float64, requires_grad=True)
    expected, found = dense_surprise(tree, weights), own_loss(Contexts(tree), weights)
    torch.testing.assert_close(found, expected, **EXACT)
    slopes = [torch.autograd.grad(loss, weights)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, **EXACT)


def test_products_of_masses_do_not_overflow():
    """Two contexts with a target each; the mass of one uses the range of the fast kernels, and more."""
    tree = dataclasses.replace(hand_made(), ends=np.array([2, 1, 0, 0, 1], np.int32))
    for size in (100.0, 200.0, 290.0):
        weights = torch.zeros(8, dtype=torch.float64)
        weights[[3, 7]] = size  # a, the second on top of the first
        weights.requires_grad_()
        expected, found = dense_surprise(tree, weights), own_loss(Contexts(tree), weights)
        torch.testing.assert_close(found, expected, **EXACT)
        slopes = [torch.autograd.grad(loss, weights)[0] for loss in (found, expected)]
        torch.testing.assert_close(*slopes, **EXACT)


def ladder(steps):
    """A chain of contexts; the k-th has one entry, for word k - 1, and all targets are in the last."""
    ends, numbers = np.zeros(steps + 1, np.int32), np.arange(steps + 1, dtype=np.int32)
    ends[-1] = 5
    return dataclasses.replace(
        tree_of(1, False),
        words=steps + 1,
        above=numbers - 1,
        ends=ends,
        entry_node=np.concatenate([np.zeros(steps + 1, np.int32), numbers[1:]]),
        entry_word=np.concatenate([numbers, numbers[:-1]]),
        entry_above=np.concatenate([np.full(steps + 1, -1, np.int32), numbers[:-1]]),
        entry_ends=np.concatenate([ends, ends[:-1]]),
        node_levels=np.arange(steps + 2),
        entry_levels=np.concatenate([[0], np.arange(steps + 1, 2 * steps + 2)]),
    )


@pytest.mark.parametrize("share", [0.7 * 2.0**-k for k in (4, 8, 11, 13)])
def test_a_mass_that_is_lost_step_by_step(share):
    """Each context loses the best word of the one above; the share that remains is fine for a single step."""
    tree = ladder(6)
    weights = torch.cat([np.log(share) * torch.arange(7.0, dtype=torch.float64), torch.full((6,), -80.0).double()])
    weights.requires_grad_()
    expected, found = dense_surprise(tree, weights), own_loss(Contexts(tree), weights)
    torch.testing.assert_close(found, expected, **EXACT)
    slopes = [torch.autograd.grad(loss, weights)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, **EXACT)


def test_the_fast_and_the_stable_kernels_agree():
    """The fast kernels report when they are out of range, and only then the stable ones take over."""
    tree = tree_of(5, False)
    structure = Contexts(tree)
    for scale, fast in ((0.5, True), (40.0, False)):
        weights = draw(tree.entries, scale)
        loss, results = NativeRoute.sum(structure, Increments(weights), structure.node_ends, structure.entry_ends)
        assert (len(results) == 2) == fast
        sums = structure.path_sums(weights).numpy()
        masses, shifts, anew = NativeRoute.stable_masses(structure, sums)
        ends = (structure.node_ends.double().numpy(), structure.entry_ends.double().numpy())
        assert stable.loss(sums, *ends, masses, shifts) == pytest.approx(float(loss), rel=1e-12)
        assert (anew.sum() > 1) != fast


@pytest.mark.parametrize("scale", [10.0, 30.0, 60.0, 90.0])
@pytest.mark.parametrize("route", ROUTES)
def test_the_torch_route_stays_finite_where_it_loses_digits(route, scale):
    tree = tree_of(5, False)
    weights = draw(tree.entries, scale).requires_grad_()
    loss = own_loss(ROUTES[route](tree), weights)
    (slope,) = torch.autograd.grad(loss, weights)
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(slope).all())
    assert float(slope.abs().max()) <= 2 * tree.count[0]
    assert float(loss.detach()) == pytest.approx(float(dense_surprise(tree, weights.detach())), rel=1e-2)


@pytest.mark.parametrize("route", ROUTES)
def test_float32_weights_are_summed_in_float64(route):
    tree = tree_of(4, False)
    structure, weights = ROUTES[route](tree), draw(tree.entries, dtype=torch.float32).requires_grad_()
    wide = weights.detach().double().requires_grad_()
    found, expected = own_loss(structure, weights), own_loss(structure, wide)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, **EXACT)
    slope, exact = torch.autograd.grad(found, weights)[0], torch.autograd.grad(expected, wide)[0]
    assert slope.dtype == torch.float32
    torch.testing.assert_close(slope, exact.float())


def test_nan_shows_in_the_loss():
    tree = tree_of(3, False)
    for entry in (0, tree.entries - 1):
        weights = draw(tree.entries)
        weights[entry] = np.nan
        assert bool(torch.isnan(own_loss(Contexts(tree), weights)))


def test_large_trees_are_cut_into_parts_that_cover_them(monkeypatch):
    """The plan visits each context once, parents before children within a part; parts share node 0 only."""
    tree = tree_of(5, False, count=800, words=200)
    plans = {"whole": kernels.plan(tree.above, tree.starts.astype(np.int64))}
    small = kernels.plan.py_func
    monkeypatch.setitem(small.__globals__, "TILE", 40)
    monkeypatch.setitem(small.__globals__, "PART", 300)
    plans["cut"] = small(tree.above, tree.starts.astype(np.int64))
    assert len(plans["whole"][1]) == 2 < len(plans["cut"][1]) <= kernels.PARTS + 1
    losses, slopes = [], []
    weights = draw(tree.entries).requires_grad_()
    for runs, parts in plans.values():
        walked = np.concatenate([np.arange(a, b) for a, b in runs])
        assert sorted(walked) == list(range(1, tree.nodes))
        assert (parts[0], parts[-1]) == (0, len(runs))
        place = np.full(tree.nodes, -1)
        place[walked] = np.arange(len(walked))
        inner = tree.above[1:] > 0
        assert (place[tree.above[1:]][inner] < place[1:][inner]).all()
        part_of = np.empty(tree.nodes, np.int64)
        part_of[walked] = np.searchsorted(parts, np.repeat(np.arange(len(runs)), runs[:, 1] - runs[:, 0]), "right")
        assert (part_of[tree.above[1:]][inner] == part_of[1:][inner]).all()
        structure = Contexts(tree)
        structure.runs, structure.parts = runs, parts
        losses.append(own_loss(structure, weights))
        slopes.append(torch.autograd.grad(losses[-1], weights)[0])
    torch.testing.assert_close(*losses, **EXACT)
    torch.testing.assert_close(*slopes, **EXACT)


@pytest.mark.parametrize("scale", [1.0, 40.0])  # by the fast and the stable kernels
def test_graphs_alive_at_the_same_time_do_not_share_memory(scale):
    tree = tree_of(4, False)
    structure = Contexts(tree)
    tables = [draw(tree.entries, scale, seed).requires_grad_() for seed in range(3)]
    alone = [torch.autograd.grad(own_loss(Contexts(tree), table), table)[0] for table in tables]
    losses = [own_loss(structure, table) for table in tables]  # all alive before the first backward pass
    slopes = [
        torch.autograd.grad(loss, table, retain_graph=True)[0] for loss, table in zip(losses, tables, strict=True)
    ]
    again = [torch.autograd.grad(loss, table)[0] for loss, table in zip(losses[::-1], tables[::-1], strict=True)]
    for found in (slopes, again[::-1]):
        assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))


def test_memory_returns_to_the_pool_when_it_is_garbage():
    """That of a gradient returns with the gradient itself, not with the graph."""
    tree = tree_of(4, False)
    structure, weights = Contexts(tree), draw(tree.entries).requires_grad_()

    def free():
        gc.collect()
        return sorted(array.ctypes.data for arrays in structure.memory.free.values() for array in arrays)

    own_loss(structure, weights).backward()
    gradient, copied = weights.grad, weights.grad.clone()
    weights.grad = None
    held = free()
    assert len(held) == 4
    assert gradient.data_ptr() not in held
    for scale in (1, 2, 3):
        (scale * own_loss(structure, weights)).backward()  # the first gradient still uses its memory
        own_loss(structure, weights.detach())
        torch.testing.assert_close(weights.grad, scale * copied)
        weights.grad = None
    assert torch.equal(gradient, copied)
    address, before = gradient.data_ptr(), free()
    del gradient
    assert free() == sorted([*before, address])
    assert not copy.deepcopy(structure).memory.free


def test_ends_that_change_are_counted_anew():
    tree = tree_of(3, False)
    structure, weights = Contexts(tree), draw(tree.entries)
    node_ends, entry_ends = structure.node_ends.clone(), structure.entry_ends.clone()
    first = structure.surprise(weights, node_ends, entry_ends)
    node_ends.mul_(2)
    entry_ends.mul_(2)
    torch.testing.assert_close(structure.surprise(weights, node_ends, entry_ends), 2 * first, **EXACT)
    torch.testing.assert_close(own_loss(structure, weights), first, **EXACT)


def test_inputs_changed_in_place_before_the_gradient_are_an_error():
    tree = tree_of(3, False)
    structure, features = Contexts(tree), torch.ones(tree.entries, dtype=torch.float64)
    loss = own_loss(structure, Increments(draw(tree.entries).requires_grad_(), features))
    features.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_weights_may_change_between_loss_and_gradient():
    """The gradient is that at the weights of the loss: solvers move the weights while a graph is alive."""
    tree = tree_of(3, False)
    weights = torch.nn.Parameter(draw(tree.entries))
    structure = Contexts(tree)
    expected = torch.autograd.grad(own_loss(structure, weights), weights)[0]
    loss = own_loss(structure, weights)
    weights.data = weights.data * 2
    assert torch.equal(torch.autograd.grad(loss, weights)[0], expected)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_probabilities_of_each_context_sum_to_one(scale):
    tree = tree_of(5, False)
    structure, weights = Contexts(tree), draw(tree.entries, scale)
    sums = structure.path_sums(weights)
    log_z = structure.log_partition(sums)
    scores = dense_scores(tree, weights)
    torch.testing.assert_close(sums, scores[tree.entry_node, tree.entry_word], **EXACT)
    chances = torch.exp(scores - log_z[:, None]).sum(1)
    torch.testing.assert_close(chances, torch.ones_like(chances), **EXACT)
    other = TorchRoute.path_sums(structure, Increments(weights))
    torch.testing.assert_close(sums, other, **EXACT)


def test_wrong_shapes_are_named():
    tree = tree_of(3, False)
    structure = Contexts(tree)
    weights = torch.zeros(tree.entries)
    wrong = [
        (lambda: own_loss(structure, weights[1:]), "weights of increments"),
        (lambda: own_loss(structure, Increments(weights, weights[1:])), "features of increments"),
        (lambda: own_loss(structure, Increments(weights, None, weights)), "base of increments"),
        (lambda: structure.surprise(weights, structure.entry_ends, structure.entry_ends), "node_ends"),
        (lambda: structure.log_partition(weights[1:]), "path sums"),
    ]
    for call, reason in wrong:
        with pytest.raises(UserError, match=reason):
            call()
