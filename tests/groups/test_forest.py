"""Forests: every answer against a scalar loop that climbs from each entry, every layout, kernels and torch."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Forest, Partition, by_parents
from tests.support.forests import FORESTS, SHAPE, members, names_of, random_parents, random_weights, rows, scattered

ROUTES = {"kernels": lambda W: W.contiguous(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}


@pytest.fixture(params=FORESTS)
def forest(request):
    return FORESTS[request.param]()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_norms_maxima_and_alive_are_those_of_a_loop(forest, dtype, route):
    W = random_weights(forest.shape, dtype=dtype)
    for positions in members(forest)[1::2]:
        W.view(-1)[positions[:4]] = -0.0
    flat = W.flatten().tolist()
    W = ROUTES[route](W)
    assert W.numel() <= 1 or forest.in_memory(W) == (route == "kernels")
    expected = [[flat[i] for i in positions] for positions in members(forest)]
    tolerance = {"rtol": 1e-6 if dtype == torch.float32 else 1e-14, "atol": 1e-6 if dtype == torch.float32 else 1e-14}
    torch.testing.assert_close(forest.sums(W).tolist(), [math.fsum(e) for e in expected], **tolerance)
    torch.testing.assert_close(forest.norms(W).tolist(), [math.hypot(*e) for e in expected], **tolerance)
    assert forest.maxima(W).tolist() == [max(map(abs, e), default=0.0) for e in expected]
    assert forest.nonzeros(W).tolist() == [sum(value != 0 for value in e) for e in expected]
    assert forest.alive(W).tolist() == [any(value != 0 for value in e) for e in expected]
    for answer in (forest.sums(W), forest.norms(W), forest.maxima(W)):
        assert answer.dtype == torch.float64


def test_depth_size_and_children_are_those_of_a_loop(forest):
    parents = forest.parents.tolist()

    def depth(node):
        return 0 if node < 0 else 1 + depth(parents[node])

    assert forest.depth.tolist() == [depth(node) for node in range(len(forest))]
    assert forest.height == max(forest.depth.tolist(), default=0) or len(forest) == 0
    assert forest.size.tolist() == [len(positions) for positions in members(forest)]
    for node in range(len(forest)):
        assert forest.children_of(node).tolist() == [k for k, parent in enumerate(parents) if parent == node]


def test_rules_decide_the_weights(forest):
    sizes, depths = forest.size.tolist(), forest.depth.tolist()
    rules = {
        "one": lambda size, depth: 1.0,
        "sqrt_size": lambda size, depth: math.sqrt(size),
        "log2_size": lambda size, depth: math.log2(1 + size),
        "depth**0.5": lambda size, depth: depth**0.5,
        "depth ** -2": lambda size, depth: depth**-2,
        "0.9**depth": lambda size, depth: 0.9**depth,
    }
    for rule, weight in rules.items():
        made = Forest(forest.parents, forest.ids, forest.names, forest.shape, rule)
        expected = [weight(n, d) if n else 0.0 for n, d in zip(sizes, depths, strict=True)]
        assert made.weight.tolist() == pytest.approx(expected, rel=1e-14, abs=1e-15)
    given = torch.arange(1.0, 1 + len(forest))
    made = Forest(forest.parents, forest.ids, forest.names, forest.shape, given)
    assert made.weight.tolist() == [w if n else 0.0 for w, n in zip(given.tolist(), sizes, strict=True)]


def test_counts_multiply_weights_and_the_entries_of_their_node():
    parents, counts = [-1, 0, 1, 0], [2, 3, 1, 5]
    forest = by_parents((4, 2), parents, weights="depth**2", counts=counts)
    assert forest.size.tolist() == [2 * 11, 2 * 4, 2, 2 * 5]
    assert forest.weight.tolist() == [2 * 1, 3 * 4, 1 * 9, 5 * 4]


def test_every_entry_gets_the_value_of_its_own_node_and_free_ones_the_fill(forest):
    values = torch.arange(1.0, 1 + len(forest), dtype=torch.float64)
    owners = forest.ids.expand(forest.shape).flatten().tolist()
    found = forest.expand(values, fill=-7.0).expand(forest.shape).flatten().tolist()
    assert found == [values[owner] if owner >= 0 else -7.0 for owner in owners]


def test_single_nodes_are_a_partition():
    groups, forest = Partition(torch.arange(8)[:, None], names_of(8), SHAPE), by_parents(SHAPE, [-1] * 8)
    W = random_weights(SHAPE)
    torch.testing.assert_close(forest.norms(W), groups.norms(W), rtol=1e-15, atol=0)
    assert torch.equal(forest.weight, groups.weight)
    assert torch.equal(forest.size, groups.size)


@pytest.mark.parametrize(("reach", "trees"), [(None, 1), (3, 1), (None, 40), (2, 7)])
def test_orders_keep_parents_first_siblings_and_subtrees_together(reach, trees):
    parents = random_parents(500, 5, reach, trees)
    forest = by_parents((500,), parents, weights="one")
    order = forest.order.tolist()
    place = {node: k for k, node in enumerate(order)}
    above = [place[parents[node]] if parents[node] >= 0 else -1 for node in order]
    assert above == forest.above.tolist() == sorted(above)
    assert sorted(order) == list(range(500))
    depth = forest.depth[forest.order.long()].tolist()
    assert depth == sorted(depth)
    assert [depth.index(d) for d in sorted(set(depth))] == forest.levels.tolist()[:-1]
    plan = forest.preorder()
    nodes = plan.memory.nodes.tolist()
    position = {node: k for k, node in enumerate(nodes)}
    size = forest.size.tolist()
    for node, positions in enumerate(members(forest)):  # an entry for each node, so positions are nodes
        assert sorted(position[i] for i in positions) == list(range(position[node], position[node] + size[node]))
    assert (plan.depth + 1).tolist() == forest.depth[nodes].tolist()
    assert (np.diff(plan.chunks) > 0).all()
    assert (plan.chunks[0], plan.chunks[-1]) == (0, 500)
    assert all(parents[nodes[k]] == -1 for k in plan.chunks[:-1])
    assert len(plan.chunks) > (20 if trees == 40 else 1)


def test_answers_follow_the_names_of_nodes_and_the_order_of_rows():
    parents, W = random_parents(60, 0, trees=4), random_weights((60, 3))
    forest = by_parents(W.shape, parents, weights="one")
    renamed = torch.randperm(60, generator=torch.Generator().manual_seed(2))  # node k becomes node renamed[k]
    moved = torch.empty(60, dtype=torch.long)
    moved[renamed] = torch.tensor([int(renamed[p]) if p >= 0 else -1 for p in parents])
    other = by_parents(W.shape, moved, weights="one")
    X = torch.empty_like(W)
    X[renamed] = W
    torch.testing.assert_close(other.norms(X)[renamed], forest.norms(W), rtol=1e-14, atol=0)
    assert torch.equal(other.maxima(X)[renamed], forest.maxima(W))


def test_a_very_deep_tree_is_no_more_work_than_another():
    nodes = 200_000
    parents = torch.arange(1, nodes + 1)  # node k is below node k + 1
    parents[-1] = -1
    forest = by_parents((nodes,), parents, weights="one")
    assert forest.height == nodes
    W = random_weights((nodes,))
    torch.testing.assert_close(forest.norms(W), W.square().cumsum(0).sqrt(), rtol=1e-12, atol=0)
    assert torch.equal(forest.maxima(W), W.abs().cummax(0).values)
    assert len(forest.preorder().chunks) == 2


@pytest.mark.parametrize("route", ROUTES)
def test_gradients_of_sums_and_norms(forest, route):
    if forest.shape.numel() == 0:
        return
    W = random_weights(forest.shape, seed=3).requires_grad_()
    pull = random_weights((len(forest),), seed=4)
    assert torch.autograd.gradcheck(lambda X: forest.sums(ROUTES[route](X)) @ pull, W)
    assert torch.autograd.gradcheck(lambda X: forest.norms(ROUTES[route](X)) @ pull, W)
    assert torch.autograd.gradgradcheck(lambda X: forest.sums(ROUTES[route](X)) @ pull, W)


def test_gradients_at_zero_are_zero(forest):
    W = random_weights(forest.shape)
    for positions in members(forest)[1:]:
        W.view(-1)[positions] = 0
    W.requires_grad_()
    (forest.norms(W).sum() + forest.maxima(W).sum()).backward()
    assert W.grad.isfinite().all()
    assert (W.grad[W == 0] == 0).all()


@pytest.mark.parametrize("route", ROUTES)
def test_the_gradient_of_a_maximum_goes_to_one_entry_that_attains_it(forest, route):
    W = random_weights(forest.shape).round()  # with ties
    for node, positions in enumerate(members(forest)):
        leaf = W.clone().requires_grad_()
        maxima = forest.maxima(ROUTES[route](leaf))
        assert torch.equal(maxima.detach(), forest.maxima(W))
        maxima[node].backward()
        gradient = leaf.grad.flatten()
        (where,) = gradient.nonzero().T
        if not positions or maxima[node] == 0:
            assert len(where) == 0
        else:
            assert len(where) == 1
            assert int(where) in positions
            assert W.flatten()[where] == gradient[where] * maxima[node]


@pytest.mark.parametrize("route", ROUTES)
def test_only_exact_zeros_are_dead(route):
    forest = by_parents((5, 3), [-1, 0, -1, 2, 2])
    W = torch.zeros(5, 3, dtype=torch.float64)
    W[1, 1], W[4, 2] = -0.0, 5e-324  # the smallest number there is; its square is zero
    assert forest.alive(ROUTES[route](W)).tolist() == [False, False, True, False, True]
    W[1, 0] = math.nan
    assert forest.alive(ROUTES[route](W)).tolist() == [True, True, True, False, True]


def test_buffers_travel_in_the_state_and_between_devices(forest):
    forest.preorder()
    state = copy.deepcopy(forest.state_dict())
    assert {"parents", "weight", "size", "own.ids"} <= set(state)
    other = copy.deepcopy(forest)
    other.weight.zero_()
    other.load_state_dict(state)
    assert torch.equal(other.weight, forest.weight)
    W = random_weights(forest.shape)
    assert torch.equal(pickle.loads(pickle.dumps(other)).norms(W), forest.norms(W))
    meta = other.to("meta")
    W = torch.empty(forest.shape, device="meta")
    for answer in (meta.norms(W), meta.alive(W), meta.sums(W), meta.maxima(W)):
        assert answer.device.type == "meta"
        assert answer.shape == (len(forest),)
    assert meta.expand(meta.weight, fill=0.0).expand(forest.shape).device.type == "meta"


def test_it_says_what_it_is():
    assert "8 nodes, 2 trees, 3 levels over the parameter (8, 3)" in repr(rows())
    assert len(scattered()) == 9
    million = by_parents((1_000_000,), torch.arange(-1, 999_999) // 2, weights="one")
    assert million.names[7] == "row 7"  # made when asked for
    assert million.order is None


def forest_of(parents, names="abcd", ids=None, shape=(4, 3), **others):
    ids = torch.arange(4)[:, None] if ids is None else torch.as_tensor(ids)
    return Forest(parents, ids, list(names), shape, parameter="lm.weight", **others)


WRONG = {
    "the parents of lm.weight form a cycle: a > c > b > a": lambda: forest_of([2, 0, 1, -1]),
    "form a cycle: b > c > b": lambda: forest_of([1, 2, 1, 0]),
    "(30 nodes) > node 0": lambda: by_parents((30,), [*range(1, 30), 0], names_of(30)),
    "the parent of b is 4, expected -1 (a root) to 3": lambda: forest_of([-1, 4, 0, 0]),
    "the parent of c is -2": lambda: forest_of([-1, 0, -2, 0]),
    "d is its own parent; a root has the parent -1": lambda: forest_of([-1, 0, 0, 3]),
    "parents of the nodes of lm.weight must be integers, got torch.float32": lambda: forest_of([-1.0, 0, 0, 0]),
    "parents have shape (3,), expected one for each of 4 nodes": lambda: forest_of([-1, 0, 0]),
    "3 parents for the 4 rows of the parameter": lambda: by_parents((4, 2), [-1, 0, 0]),
    "groups say 5 rows, lm.weight has 4 rows": lambda: forest_of([-1, 0, 0, 0], ids=torch.zeros(5, 1).long()),
    "group id 4 at [0, 1] of lm.weight": lambda: forest_of([-1, 0, 0, 0], ids=[[0, 4, 1]]),
    "unknown group weights 'depth**x': expected one, sqrt_size, log2_size, depth**alpha, alpha**depth": (
        lambda: forest_of([-1, 0, 0, 0], weights="depth**x")
    ),
    "unknown group weights 'depth'": lambda: forest_of([-1, 0, 0, 0], weights="depth"),
    "the weight of group a is -2.0": lambda: forest_of([-1, 0, 0, 0], weights="-2**depth"),
    "the weight of group a is nan": lambda: forest_of([-1, 0, 0, 0], weights=torch.tensor([math.nan, 1.0, 1.0, 1.0])),
    "one for each of 4 groups": lambda: forest_of([-1, 0, 0, 0], weights=torch.ones(3)),
    "counts have shape (2,), expected one for each of 4 nodes": lambda: forest_of([-1, 0, 0, 0], counts=[1, 2]),
    "the count of c is 0, expected a whole number of at least 1": lambda: forest_of([-1, 0, 0, 0], counts=[1, 2, 0, 1]),
    "the count of a is 1.5": lambda: forest_of([-1, 0, 0, 0], counts=[1.5, 2.0, 2.0, 1.0]),
    "the count of d is nan": lambda: forest_of([-1, 0, 0, 0], counts=[1.0, 2.0, 2.0, math.nan]),
    "these groups are of lm.weight (4, 3), got a tensor (4, 2)": lambda: forest_of([-1, 0, 0, 0]).norms(
        torch.zeros(4, 2)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(message):
    with pytest.raises(UserError) as error:
        WRONG[message]()
    assert message in str(error.value)


def test_rules_of_depth_are_for_forests_alone():
    with pytest.raises(UserError, match=r"unknown group weights 'depth\*\*0.5': expected one, sqrt_size, log2_size or"):
        Partition(torch.zeros(1, 1, dtype=torch.long), ["all"], SHAPE, "depth**0.5")
