"""Groups: every answer against a scalar loop, every layout, both routes (kernels and torch)."""

import copy
import math

import pytest
import torch

from structsparse.base.errors import UserError
from structsparse.groups import Partition, by_column, by_row, by_row_blocks
from structsparse.kernels import memory

SHAPE = (7, 4)


def entries_with_free():
    ids = torch.tensor([0, 2, -1, 1] * 7).view(SHAPE)
    ids[5] = -1
    return Partition(ids, ["a", "b", "c", "empty"], SHAPE)


LAYOUTS = {
    "blocks": lambda: by_row_blocks(SHAPE, ["a", "none", "single", "b"], [0, 3, 3, 4, 7]),
    "rows": lambda: by_row(SHAPE),
    "columns": lambda: by_column(SHAPE, list("wxyz")),
    "scattered rows": lambda: Partition(torch.tensor([1, 0, 1, 2, 0, 2, 1])[:, None], list("abc"), SHAPE),
    "free rows": lambda: Partition(torch.tensor([0, 0, -1, 1, 1, -1, 2])[:, None], list("abc"), SHAPE),
    "entries": entries_with_free,
    "one dimension": lambda: by_row_blocks((6,), ["a", "b"], [0, 2, 6]),
    "three dimensions": lambda: by_row_blocks((4, 2, 3), ["a", "b"], [0, 1, 4]),
    "columns of three": lambda: by_column((4, 2, 3), ["a", "b"]),
    "no rows": lambda: by_row_blocks((0, 4), ["a", "b"], [0, 0, 0]),
}
ROUTES = {"kernels": lambda W: W.contiguous(), "torch": lambda W: torch.stack([W, W], -1)[..., 0]}


@pytest.fixture(params=LAYOUTS)
def groups(request):
    return LAYOUTS[request.param]()


def members(groups):
    """For each group the flat positions of its entries, by a loop."""
    ids = groups.ids.expand(groups.shape).flatten().tolist()
    return [[i for i, owner in enumerate(ids) if owner == g] for g in range(len(groups))]


def random_weights(groups, dtype=torch.float64, seed=0):
    W = torch.randn(groups.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return W.to(dtype)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_norms_and_alive_are_those_of_a_loop(groups, dtype, route):
    W = random_weights(groups, dtype)
    for positions in members(groups)[::2]:
        W.view(-1)[positions] = -0.0
    flat = W.flatten().tolist()
    W = ROUTES[route](W)
    assert W.numel() == 0 or groups.in_blocks(W) == (route == "kernels" and groups.offsets is not None)
    expected = [[flat[i] for i in positions] for positions in members(groups)]
    tolerance = {"rtol": 1e-6 if dtype == torch.float32 else 1e-14, "atol": 1e-6 if dtype == torch.float32 else 1e-14}
    torch.testing.assert_close(groups.sums(W).tolist(), [math.fsum(e) for e in expected], **tolerance)
    torch.testing.assert_close(groups.norms(W).tolist(), [math.hypot(*e) for e in expected], **tolerance)
    assert groups.nonzeros(W).tolist() == [sum(value != 0 for value in e) for e in expected]
    assert groups.alive(W).tolist() == [any(value != 0 for value in e) for e in expected]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_past_cuts_are_those_of_a_loop(groups, dtype, route):
    W = random_weights(groups, dtype)
    cuts = torch.linspace(0, 2, len(groups), dtype=torch.float64)
    flat = W.double().abs().flatten().tolist()
    past = [[flat[i] - cut for i in own if flat[i] > cut] for own, cut in zip(members(groups), cuts, strict=True)]
    found = groups.sums_past(ROUTES[route](W), cuts)
    expected = [[len(e), math.fsum(e), math.fsum(x * x for x in e)] for e in past]
    torch.testing.assert_close(found.T, torch.tensor(expected, dtype=torch.float64).view(-1, 3), rtol=1e-12, atol=1e-12)


def test_sums_past_cuts_over_many_entries():
    """More than one thread takes alone."""
    groups = by_row_blocks((400_000, 1), ["a", "b", "c"], [0, 1_000, 1_000, 400_000])
    W, cuts = random_weights(groups, torch.float32), torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    found = groups.sums_past(W, cuts)
    for g, own in enumerate((W[:1_000], W[1_000:1_000], W[1_000:])):
        past = (own.double().abs() - cuts[g]).clamp(min=0)
        expected = torch.stack([(past > 0).sum().double(), past.sum(), (past * past).sum()])
        torch.testing.assert_close(found[:, g], expected, rtol=1e-12, atol=0)


def test_size_counts_entries_and_decides_the_weights(groups):
    sizes = [len(positions) for positions in members(groups)]
    assert groups.size.tolist() == sizes
    expected = {
        "one": [float(n > 0) for n in sizes],
        "sqrt_size": [math.sqrt(n) for n in sizes],
        "log2_size": [math.log2(1 + n) for n in sizes],
    }
    for weights, values in expected.items():
        made = Partition(groups.ids, groups.names, groups.shape, weights)
        assert made.weight.tolist() == pytest.approx(values, abs=1e-15)
    given = torch.arange(1.0, 1 + len(groups))
    made = Partition(groups.ids, groups.names, groups.shape, given)
    assert made.weight.tolist() == [w if n else 0.0 for w, n in zip(given.tolist(), sizes, strict=True)]


def test_every_entry_gets_the_value_of_its_group_and_free_ones_the_fill(groups):
    values = torch.arange(1.0, 1 + len(groups), dtype=torch.float64)
    expected = torch.full((groups.shape.numel(),), -7.0, dtype=torch.float64)
    for g, positions in enumerate(members(groups)):
        expected[positions] = values[g]
    assert torch.equal(groups.expand(values, fill=-7.0).expand(groups.shape).flatten(), expected)


@pytest.mark.parametrize("route", ROUTES)
def test_only_exact_zeros_are_dead(route):
    groups = by_row((4, 3))
    W = torch.zeros(4, 3, dtype=torch.float64)
    W[0, 1], W[1, 2], W[2, 0] = -0.0, 5e-324, math.nan  # the smallest number there is; its square is zero
    assert groups.alive(ROUTES[route](W)).tolist() == [False, True, True, False]


def test_float32_norms_stay_exact_over_millions_of_entries():
    W = torch.rand(1_100_000, 2, generator=torch.Generator().manual_seed(0)) + 1
    groups = by_row_blocks(W.shape, ["large", "small"], [0, 1_090_000, 1_100_000])
    exact = torch.stack([part.double().square().sum().sqrt() for part in W.split([1_090_000, 10_000])])
    torch.testing.assert_close(groups.norms(W), exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(memory.power_sum(W, 1), W.double().sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(memory.power_sum(W, 2), W.double().square().sum(), rtol=1e-12, atol=0)


def test_norms_have_a_zero_gradient_at_zero(groups):
    W = random_weights(groups)
    for positions in members(groups)[::2]:
        W.view(-1)[positions] = 0
    W.requires_grad_()
    groups.norms(W).sum().backward()
    norms = groups.norms(W.detach())
    expected = W.detach() * groups.expand(torch.where(norms > 0, 1 / norms, 0.0), fill=0.0)
    torch.testing.assert_close(W.grad, expected)


def test_norms_follow_a_permutation_of_the_rows():
    groups, W = LAYOUTS["blocks"](), torch.randn(SHAPE, dtype=torch.float64)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    permuted = Partition(groups.ids[order], groups.names, SHAPE)
    torch.testing.assert_close(permuted.norms(W[order]), groups.norms(W))
    assert torch.equal(permuted.weight, groups.weight)


def test_buffers_travel_in_the_state_and_between_devices(groups):
    state = copy.deepcopy(groups.state_dict())
    assert {"weight", "size"} <= set(state)
    assert {"ids", "offsets"} & set(state)
    other = copy.deepcopy(groups)
    other.weight.zero_()
    other.load_state_dict(state)
    assert torch.equal(other.weight, groups.weight)
    meta = other.to("meta")
    W = torch.empty(groups.shape, device="meta")
    for answer in (meta.norms(W), meta.alive(W), meta.sums(W), meta.sums_past(W, meta.weight)[0]):
        assert answer.device.type == "meta"
        assert answer.shape == (len(groups),)
    assert meta.expand(meta.weight, fill=0.0).expand(groups.shape).device.type == "meta"


def test_names_of_rows_are_made_only_when_asked_for():
    groups = by_row((1_000_000, 2))
    assert len(groups) == len(groups.names) == 1_000_000
    assert groups.names[3] == "row 3"
    assert groups.names[-1] == "row 999999"
    assert list(groups.names[2:4]) == ["row 2", "row 3"]
    with pytest.raises(IndexError):
        groups.names[1_000_000]


def partition(ids, names="ab", shape=SHAPE, weights="one"):
    return Partition(torch.as_tensor(ids), list(names), shape, weights, "emissions.weight")


WRONG = {
    "groups say 8 rows, emissions.weight has 7 rows": lambda: partition(torch.zeros(8, 1, dtype=torch.long)),
    "groups say 5 columns, emissions.weight has 4 columns": lambda: partition(torch.zeros(1, 5, dtype=torch.long)),
    "more dimensions than emissions.weight (7, 4)": lambda: partition(torch.zeros(1, 7, 4, dtype=torch.long)),
    "must be integers, got torch.float32": lambda: partition(torch.zeros(7, 1)),
    "group id 2 at [0, 3]": lambda: partition([[0, 1, 1, 2]]),
    "expected -1 (free) to 1, as there are 2 names": lambda: partition([[0, 1, 1, -2]]),
    "unknown group weights 'sqrt': expected one, sqrt_size, log2_size": lambda: partition(
        [[0, 1, 1, 1]], weights="sqrt"
    ),
    "one for each of 2 groups": lambda: partition([[0, 1, 1, 1]], weights=torch.ones(3)),
    "the weight of group b is -1.0": lambda: partition([[0, 1, 1, 1]], weights=torch.tensor([1.0, -1.0])),
    "the weight of group a is nan": lambda: partition([[0, 1, 1, 1]], weights=torch.tensor([math.nan, 1.0])),
    "2 groups of table need 3 offsets, got 2": lambda: by_row_blocks(SHAPE, ["a", "b"], [0, 7], parameter="table"),
    "cover rows 0 to 6, table has rows 0 to 7": lambda: by_row_blocks(SHAPE, ["a"], [0, 6], parameter="table"),
    "the rows of group b start at 5 and end before, at 3": lambda: by_row_blocks(SHAPE, list("abc"), [0, 5, 3, 7]),
    "3 names for the 4 columns of the parameter": lambda: by_column(SHAPE, list("abc")),
    "3 names for the 7 rows of the parameter": lambda: by_row(SHAPE, list("abc")),
    "has no columns to group": lambda: by_column((7,), list("abcdefg")),
    "these groups are of the parameter (7, 4), got a tensor (7, 5)": lambda: by_row(SHAPE).norms(torch.zeros(7, 5)),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(message):
    with pytest.raises(UserError) as error:
        WRONG[message]()
    assert message in str(error.value)
