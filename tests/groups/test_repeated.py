"""A forest that is repeated in every column of a table, against the plain forest with the nodes of all columns."""

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Forest, RepeatedForest
from structsparse.penalties import TreeGroupLasso, TreeGroupLassoMax
from tests.support.forests import names_of, random_parents, random_weights

ROUTES = {"kernels": lambda W: W.clone(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}
COLUMNS = 300  # more than one block of the kernel
FORESTS = {  # parents, and the node of each row: an entry each, several, none or in no node
    "an entry each": (random_parents(12, 1, trees=3), torch.arange(12)),
    "several entries": ([-1, 0, 0, -1, 3], torch.tensor([4, 4, 1, -1, 0, 2, 1, 0])),
    "a chain": ([1, 2, -1], torch.tensor([2, 1, 0])),
}


def repeated(name: str, weights: str = "sqrt_size", columns: int = COLUMNS) -> RepeatedForest:
    parents, ids = FORESTS[name]
    return RepeatedForest(parents, ids, names_of(len(parents)), (len(ids), columns), weights)


def copies(forest: RepeatedForest) -> Forest:
    """The same groups without any shortcut: the forest of one column, written out for each column in turn."""
    parents, ids, columns = forest.parents.tolist(), forest.own.ids, forest.shape[1]
    nodes = len(parents)
    each = [-1 if p < 0 else p + c * nodes for c in range(columns) for p in parents]
    owners = torch.stack([torch.where(ids < 0, -1, ids + c * nodes) for c in range(columns)], dim=1)
    weight = forest.weight.flatten().repeat(columns)
    return Forest(each, owners, names_of(len(each)), tuple(forest.shape), weight)


def by_column(forest: RepeatedForest, values: torch.Tensor) -> torch.Tensor:
    """Values of the nodes of `copies`, as an array [nodes, columns]."""
    return values.view(forest.shape[1], -1).T


@pytest.mark.parametrize("penalty", [TreeGroupLasso, TreeGroupLassoMax])
@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("route", ROUTES)
def test_the_prox_of_all_columns_is_that_of_each(route, name, penalty):
    forest = repeated(name, "0.7**depth")
    slow = copies(forest)
    for dtype, close in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        W = random_weights(forest.shape, 5).to(dtype)
        for strength, mix in ((0.3, 0.0), (0.8, 0.2)):
            expected = penalty(slow, strength, mix).prox_(W.clone(), 0.7)
            found = penalty(forest, strength, mix).prox_(ROUTES[route](W), 0.7)
            torch.testing.assert_close(found, expected, rtol=0, atol=close)
            assert torch.equal(found == 0, expected == 0)


@pytest.mark.parametrize("name", FORESTS)
def test_a_step_for_each_entry_is_taken_by_the_plain_forest(name):
    forest = repeated(name, columns=7)
    W, steps = random_weights(forest.shape, 1), 0.1 + torch.rand(forest.shape, dtype=torch.float64)
    expected = TreeGroupLasso(copies(forest), 0.4).prox_(W.clone(), steps)
    torch.testing.assert_close(TreeGroupLasso(forest, 0.4).prox_(W.clone(), steps), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("penalty", [TreeGroupLasso, TreeGroupLassoMax])
@pytest.mark.parametrize("name", FORESTS)
def test_value_gap_and_critical_strength_are_those_of_the_plain_forest(name, penalty):
    forest = repeated(name, columns=9)
    slow = copies(forest)
    W, grad = random_weights(forest.shape, 2), random_weights(forest.shape, 3)
    W = penalty(slow, 0.5).prox_(W, 1.0)
    mine, plain = penalty(forest, 0.4, 0.1), penalty(slow, 0.4, 0.1)
    torch.testing.assert_close(mine.value(W), plain.value(W))
    torch.testing.assert_close(mine.gap(W, grad), by_column(forest, plain.gap(W, grad)))
    torch.testing.assert_close(mine.critical(grad), plain.critical(grad))
    assert torch.equal(mine.survivors(W), plain.survivors(W))
    assert torch.equal(forest.alive(W), by_column(forest, slow.alive(W)))


@pytest.mark.parametrize("name", FORESTS)
def test_the_gradient_of_the_value_is_that_of_the_plain_forest(name):
    forest = repeated(name, columns=4)
    gradients = []
    for groups in (forest, copies(forest)):
        W = random_weights(forest.shape, 4).requires_grad_()
        TreeGroupLasso(groups, 0.3).value(W).backward()
        gradients.append(W.grad)
    torch.testing.assert_close(*gradients)


def test_some_columns_can_be_shrunk_alone():
    forest = repeated("an entry each")
    W = random_weights(forest.shape, 6)
    for penalty in (TreeGroupLasso(forest, 0.5), TreeGroupLassoMax(forest, 0.5)):
        whole = penalty.prox_(W.clone(), 1.0)
        assert torch.equal(penalty.prox_(W[:, 3:8].contiguous(), 1.0), whole[:, 3:8])


def test_groups_have_the_name_of_their_node_and_column():
    forest = repeated("a chain", columns=3)
    assert len(forest) == len(forest.names) == 9
    assert forest.names[4] == "node 1 of column 1"
    with pytest.raises(UserError, match="3 rows, got a tensor"):
        forest.check(torch.zeros(4, 3))
    with pytest.raises(UserError, match="has no columns"):
        RepeatedForest([-1], torch.tensor([0]), ["a"], (1,))
