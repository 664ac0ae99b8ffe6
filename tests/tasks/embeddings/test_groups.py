"""Trees of dimensions: which dimensions lie below which, for any number of trees and any branching."""

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.tasks.embeddings.groups import trees_of_dimensions


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
