"""Trees of dimensions: which dimensions lie below which, for any number of trees and any branching."""

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import cover_entries
from structsparse.penalties import OverlappingGroupLasso
from structsparse.tasks.embeddings.groups import random_groups_of_dimensions, trees_of_dimensions


def test_dimensions_go_from_coarse_to_fine():
    forest = trees_of_dimensions((26, 5), trees=2, branching=[3, 3])
    assert forest.node_names[:3] == ["tree 1", "tree 2", "tree 1.1"]
    assert forest.depth.tolist() == [1] * 2 + [2] * 6 + [3] * 18
    name = {n: k for k, n in enumerate(forest.node_names)}
    assert forest.parents[name["tree 2.3.1"]] == name["tree 2.3"]
    assert forest.parents[name["tree 2.3"]] == name["tree 2"]
    alive = forest.sums(torch.eye(26)[:, :5])
    assert alive[:, 0].nonzero().flatten().tolist() == [0]
    below = forest.sums(torch.eye(26)[:, name["tree 1.2.3"]][:, None])
    assert [forest.node_names[k] for k in below[:, 0].nonzero().flatten().tolist()] == [
        "tree 1", "tree 1.2", "tree 1.2.3"
    ]  # fmt: skip


@pytest.mark.parametrize(("trees", "branching", "size"), [(4, [], 4), (3, [2], 9), (2, [2, 3, 1], 2 * (1 + 2 + 6 + 6))])
def test_any_branching_makes_trees(trees, branching, size):
    forest = trees_of_dimensions((size, 3), trees=trees, branching=branching)
    assert forest.levels[1] == trees
    assert forest.height == len(branching) + 1
    flat = trees_of_dimensions((size, 3), trees=trees, branching=branching, nested=False)
    assert flat.weight.shape == (trees, 1)
    assert torch.equal(flat.size.flatten(), torch.full((trees,), size // trees))


def test_random_groups_have_the_sizes_of_trees_and_are_not_nested():
    cover = random_groups_of_dimensions((26, 4), trees=2, branching=[3, 3], seed=1)
    forest = trees_of_dimensions((26, 4), trees=2, branching=[3, 3])
    assert sorted(cover.size.tolist()) == sorted(forest.size.flatten().tolist() * 4)
    assert not cover.nested
    lengths = cover.offsets.diff().tolist()
    of_column = [[m % 4 for m in group.tolist()] for group in cover.members.split(lengths)]
    assert all(len({*columns}) == 1 for columns in of_column), "a group lies in one column"
    assert cover.names[26] == "random group 1.1 of column 1"
    assert of_column[26][0] == 1
    other = random_groups_of_dimensions((26, 4), trees=2, branching=[3, 3], seed=2)
    assert not torch.equal(cover.members, other.members)
    with pytest.raises(UserError, match="2 trees with branching"):
        random_groups_of_dimensions((27, 4), trees=2, branching=[3, 3])


def test_the_prox_of_random_groups_is_the_same_for_some_columns_alone():
    groups = random_groups_of_dimensions((13, 9), trees=1, branching=[3, 3])
    table = torch.randn(13, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    repeated = OverlappingGroupLasso(groups, 0.4)
    whole = repeated.prox_(table.clone(), 1.0)
    some = repeated.prox_(table[:, [1, 5, 8]].clone(), 1.0)
    torch.testing.assert_close(whole[:, [1, 5, 8]], some, rtol=0, atol=1e-9)
    column = groups.members[: int(groups.offsets[26 // 2])] // 9
    alone = cover_entries((13,), column, groups.offsets[:14], weights="one")
    expected = OverlappingGroupLasso(alone, 0.4).prox_(table[:, 0].clone(), 1.0)
    torch.testing.assert_close(whole[:, 0], expected, rtol=0, atol=1e-9)
    assert 0 < (whole == 0).double().mean() < 1


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((52, 3), {"trees": 3}, r"3 trees with branching \[3, 3\] have 39 dimensions, the model has 52"),
        ((52, 3), {"trees": 0}, "groups.trees is 0"),
        ((52, 3), {"branching": [3, 0]}, r"groups.branching is \[3, 0\]"),
    ],
)
def test_trees_that_do_not_fit_get_one_sentence(shape, options, message):
    with pytest.raises(UserError, match=message):
        trees_of_dimensions(shape, **{"trees": 4, "branching": [3, 3], **options})
